//! Client certificates: whether they are requested, and which authorities are trusted.

use std::path::Path;

use boring::error::ErrorStack;
use boring::hash::MessageDigest;
use boring::ssl::{SslContextBuilder, SslRef, SslVerifyMode};
use boring::x509::store::X509StoreBuilder;
use boring::x509::{X509, X509NameRef};

use crate::error::{TlsError, read};

/// Bytes of a file of authorities at most.
const MAX_FILE: u64 = 4 << 20;

/// Bytes of a subject at most; a longer one is cut.
const MAX_SUBJECT: usize = 512;

/// Certificates of a client's chain at most, without the authority's own.
const MAX_DEPTH: u32 = 8;

/// Whether clients are asked for a certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientAuthMode {
    /// No.
    #[default]
    None,
    /// Asked; one that is shown must be good.
    Optional,
    /// Asked; without a good one there is no connection.
    Required,
}

/// Whether clients are asked for a certificate, and by whom it must be signed.
#[derive(Debug, Default)]
pub struct ClientAuth {
    mode: ClientAuthMode,
    authorities: Vec<X509>,
}

impl ClientAuth {
    /// Trusts the authorities in a PEM file.
    ///
    /// # Errors
    /// Names the file and the problem.
    pub fn load(mode: ClientAuthMode, authorities: &Path) -> Result<Self, TlsError> {
        let no_certificate = |source| TlsError::Certificate { path: authorities.to_owned(), source };
        let list = X509::stack_from_pem(&read(authorities, MAX_FILE)?).map_err(no_certificate)?;
        if list.is_empty() {
            return Err(no_certificate(ErrorStack::get()));
        }
        Ok(Self { mode, authorities: list })
    }

    /// Sets up a context, and which sessions it resumes: only those of connections that were asked the same, so that
    /// nobody gets past a certificate by a session from before it was required.
    pub(crate) fn install(&self, context: &mut SslContextBuilder) -> Result<(), TlsError> {
        let mut all = vec![self.mode as u8];
        for authority in &self.authorities {
            all.extend_from_slice(&authority.digest(MessageDigest::sha256())?);
        }
        context.set_session_id_context(&boring::sha::sha256(&all))?;
        if self.mode == ClientAuthMode::None {
            return Ok(());
        }
        let mut store = X509StoreBuilder::new()?;
        for authority in &self.authorities {
            store.add_cert(authority)?;
            context.add_client_ca(authority)?;
        }
        context.set_verify_cert_store(store.build())?;

        context.set_verify_depth(MAX_DEPTH);
        context.set_verify(match self.mode {
            ClientAuthMode::Required => SslVerifyMode::PEER | SslVerifyMode::FAIL_IF_NO_PEER_CERT,
            _ => SslVerifyMode::PEER,
        });
        Ok(())
    }
}

/// The subject of the certificate that a client has shown and that was verified, as RFC 4514 writes names
/// (`CN=alice,O=Example`).
pub fn peer_subject(ssl: &SslRef) -> Option<String> {
    ssl.peer_certificate().map(|certificate| subject(certificate.subject_name()))
}

/// Written by hand because the library's text of a name may hold control characters.
fn subject(name: &X509NameRef) -> String {
    let mut parts: Vec<String> = name
        .entries()
        .map(|entry| {
            let kind = entry.object().nid().short_name().unwrap_or("UNDEF");
            let value = entry.data().as_utf8().map_or_else(|_| String::new(), |text| escape(&text));
            format!("{kind}={value}")
        })
        .collect();
    parts.reverse();
    let mut text = parts.join(",");
    if text.len() > MAX_SUBJECT {
        let end = (0..=MAX_SUBJECT).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
    }
    text
}

/// RFC 4514, section 2.4; what is not printable ASCII goes in hexadecimal.
fn escape(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    let last = value.len().saturating_sub(1);
    for (index, byte) in value.bytes().enumerate() {
        match byte {
            b',' | b'+' | b'"' | b'\\' | b'<' | b'>' | b';' | b'=' => {
                out.push('\\');
                out.push(char::from(byte));
            }
            b'#' | b' ' if index == 0 => {
                out.push('\\');
                out.push(char::from(byte));
            }
            b' ' if index == last => out.push_str("\\ "),
            b' '..=b'~' => out.push(char::from(byte)),
            _ => out.push_str(&format!("\\{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use boring::nid::Nid;
    use boring::x509::X509Name;

    use super::*;

    #[test]
    fn subjects_are_one_line_of_printable_ascii() {
        let mut builder = X509Name::builder().unwrap();
        builder.append_entry_by_nid(Nid::ORGANIZATIONNAME, "A, \"B\" = Ü").unwrap();
        builder.append_entry_by_nid(Nid::COMMONNAME, " al\nice ").unwrap();
        let name = builder.build();
        assert_eq!(subject(&name), "CN=\\ al\\0Aice\\ ,O=A\\, \\\"B\\\" \\= \\C3\\9C");
    }

    #[test]
    fn a_long_subject_is_cut() {
        let mut builder = X509Name::builder().unwrap();
        for _ in 0..20 {
            builder.append_entry_by_nid(Nid::ORGANIZATIONALUNITNAME, &"x".repeat(60)).unwrap();
        }
        assert_eq!(subject(&builder.build()).len(), MAX_SUBJECT);
    }

    #[test]
    fn a_file_without_authorities_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("ca.pem");
        std::fs::write(&file, "nothing").unwrap();
        let error = ClientAuth::load(ClientAuthMode::Required, &file).unwrap_err().to_string();
        assert!(error.contains("ca.pem: no PEM certificate"), "{error}");
    }
}
