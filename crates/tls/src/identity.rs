//! The identity of a TLS server: its certificates and private key, read and checked against each other.
//!
//! The caller chooses versions, ciphers and protocols, and [`Identity::install`] puts the identity into its context.
//! A certificate that is expired or not yet valid is only a warning in the log: clients refuse it, but the operator
//! still wants the server to run.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use boring::asn1::{Asn1Time, Asn1TimeRef};
use boring::error::ErrorStack;
use boring::pkey::{Id, PKey, Private};
use boring::ssl::SslContextBuilder;
use boring::x509::X509;

use crate::credential::Credential;
use crate::error::{TlsError, read};

/// How a certificate's validity stands at the time of loading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Validity {
    /// In force.
    Valid,
    /// It begins in the future.
    NotYet,
    /// It has ended; clients will refuse it.
    Expired,
}

/// Kinds of keys in the order in which they are tried: RSA costs most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum KeyKind {
    P256,
    Ec,
    Other,
    Rsa,
}

/// Bytes of a certificate, key or OCSP file at most.
const MAX_FILE: u64 = 1 << 20;

/// Certificates of a chain at most.
const MAX_CHAIN: usize = 16;

/// A certificate chain with its private key, known to belong together.
#[derive(Debug)]
pub struct Identity {
    chain: Vec<X509>,
    key: PKey<Private>,
    kind: KeyKind,
    names: Vec<String>,
    label: String,
    validity: Validity,
    not_before: SystemTime,
    not_after: SystemTime,
    must_staple: bool,
    has_ocsp: bool,
    credential: Credential,
}

impl Identity {
    /// Reads both files. An expired certificate is no error but is logged, and told by [`Self::validity`].
    pub fn load(certificate: &Path, private_key: &Path) -> Result<Self, TlsError> {
        Self::load_with(certificate, private_key, None)
    }

    /// As [`Self::load`], with an OCSP response in DER (RFC 6960) that clients are given if they ask for it.
    pub fn load_with(certificate: &Path, private_key: &Path, ocsp: Option<&Path>) -> Result<Self, TlsError> {
        let mut identity = Self::from_pem(
            &read(certificate, MAX_FILE)?,
            &read(private_key, MAX_FILE)?,
            certificate,
            private_key,
        )?;
        if let Some(path) = ocsp {
            let response = read(path, MAX_FILE)?;
            check_ocsp(&response).map_err(|problem| TlsError::content(path, problem))?;
            identity.credential = Credential::new(&identity.chain, &identity.key, Some(&response))?;
            identity.has_ocsp = true;
        }
        identity.warn(certificate);
        Ok(identity)
    }

    /// Says in the log what clients will not like.
    fn warn(&self, certificate: &Path) {
        if self.validity != Validity::Valid {
            tracing::warn!(
                certificate = %certificate.display(),
                not_before = %self.chain[0].not_before(),
                not_after = %self.chain[0].not_after(),
                "the certificate is {}: clients will refuse it",
                if self.validity == Validity::Expired { "expired" } else { "not valid yet" }
            );
        }
        if self.must_staple && !self.has_ocsp {
            tracing::warn!(
                certificate = %certificate.display(),
                "the certificate says must-staple and has no OCSP response: clients may refuse it; set ocsp"
            );
        }
    }

    /// Parses PEM texts; the paths only serve error messages.
    pub fn from_pem(
        certificate: &[u8],
        private_key: &[u8],
        certificate_path: &Path,
        key_path: &Path,
    ) -> Result<Self, TlsError> {
        let no_certificate = |source| TlsError::Certificate { path: certificate_path.to_owned(), source };
        let chain = X509::stack_from_pem(certificate).map_err(no_certificate)?;
        let Some(leaf) = chain.first() else { return Err(no_certificate(ErrorStack::get())) };
        if chain.len() > MAX_CHAIN {
            let problem = format!("more than {MAX_CHAIN} certificates");
            return Err(TlsError::content(certificate_path, problem));
        }
        let key = PKey::private_key_from_pem(private_key)
            .map_err(|source| TlsError::PrivateKey { path: key_path.to_owned(), source })?;
        if !leaf.public_key()?.public_eq(&key) {
            return Err(TlsError::Mismatch {
                certificate: certificate_path.to_owned(),
                key: key_path.to_owned(),
            });
        }
        let now = Asn1Time::days_from_now(0)?;
        let validity = if leaf.not_before().compare(&now)? == Ordering::Greater {
            Validity::NotYet
        } else if leaf.not_after().compare(&now)? == Ordering::Less {
            Validity::Expired
        } else {
            Validity::Valid
        };
        let names = names(leaf);
        let label = names.first().cloned().unwrap_or_else(|| certificate_path.display().to_string());
        Ok(Self {
            kind: match key.id() {
                Id::RSA => KeyKind::Rsa,
                Id::EC if key.bits() == 256 => KeyKind::P256,
                Id::EC => KeyKind::Ec,
                _ => KeyKind::Other,
            },
            names,
            label,
            validity,
            not_before: time(leaf.not_before())?,
            not_after: time(leaf.not_after())?,
            must_staple: contains(&leaf.to_der()?, TLS_FEATURE),
            has_ocsp: false,
            credential: Credential::new(&chain, &key, None)?,
            chain,
            key,
        })
    }

    /// How the first certificate's validity stood when it was loaded.
    pub fn validity(&self) -> Validity {
        self.validity
    }

    /// When it begins; 1970 if that was earlier.
    pub fn not_before(&self) -> SystemTime {
        self.not_before
    }

    /// When it ends.
    pub fn not_after(&self) -> SystemTime {
        self.not_after
    }

    /// The DNS names in it, in lower case, some with `*.` in front.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// What it is called in logs and metrics: its first name, or the file.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Whether clients are given an OCSP response.
    pub fn has_ocsp(&self) -> bool {
        self.has_ocsp
    }

    /// The server's own certificate.
    pub fn leaf(&self) -> &X509 {
        &self.chain[0]
    }

    /// The kind of its key: `ecdsa`, `rsa` or `other`.
    pub fn key_type(&self) -> &'static str {
        match self.kind {
            KeyKind::P256 | KeyKind::Ec => "ecdsa",
            KeyKind::Rsa => "rsa",
            KeyKind::Other => "other",
        }
    }

    pub(crate) fn key_kind(&self) -> KeyKind {
        self.kind
    }

    pub(crate) fn credential(&self) -> &Credential {
        &self.credential
    }

    /// Gives a server's TLS context the certificates and the key.
    ///
    /// # Errors
    /// When the TLS library refuses.
    pub fn install(&self, context: &mut SslContextBuilder) -> Result<(), ErrorStack> {
        context.set_certificate(&self.chain[0])?;
        for certificate in &self.chain[1..] {
            context.add_extra_chain_cert(certificate.clone())?;
        }
        context.set_private_key(&self.key)
    }

    /// The private key.
    pub fn key(&self) -> &PKey<Private> {
        &self.key
    }
}

fn time(time: &Asn1TimeRef) -> Result<SystemTime, ErrorStack> {
    let since = Asn1Time::from_unix(0)?.diff(time)?;
    let seconds = i64::from(since.days) * 86_400 + i64::from(since.secs);
    Ok(UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
}

/// The DNS names of a certificate, each once. Names of the subject do not count (RFC 9525, section 2).
fn names(leaf: &X509) -> Vec<String> {
    let mut seen = HashSet::new();
    let alternatives = leaf.subject_alt_names();
    let names = alternatives.iter().flatten().filter_map(|name| name.dnsname().map(str::to_ascii_lowercase));
    names.filter(|name| seen.insert(name.clone())).collect()
}

/// The extension with which a certificate says must-staple: 1.3.6.1.5.5.7.1.24 with the value status_request (RFC 7633,
/// section 4).
const TLS_FEATURE: &[u8] =
    &[0x06, 0x08, 0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x01, 0x18, 0x04, 0x05, 0x30, 0x03, 0x02, 0x01, 0x05];

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// Says what is wrong with an OCSP response: it must be one DER value that says successful (RFC 6960, section 4.2.1).
/// Whether it is about this certificate, and in force, is for clients to check.
fn check_ocsp(response: &[u8]) -> Result<(), &'static str> {
    const NO_RESPONSE: &str = "no OCSP response in DER";
    if response.starts_with(b"-----BEGIN") {
        return Err("an OCSP response in PEM; give it in DER");
    }
    let (length, rest) = match response {
        [0x30, length @ 0..=0x7f, rest @ ..] => (usize::from(*length), rest),
        [0x30, 0x81, length, rest @ ..] => (usize::from(*length), rest),
        [0x30, 0x82, high, low, rest @ ..] => (usize::from(u16::from_be_bytes([*high, *low])), rest),
        _ => return Err(NO_RESPONSE),
    };
    match rest {
        _ if rest.len() != length => Err(NO_RESPONSE),
        [0x0a, 0x01, 0x00, ..] => Ok(()),
        [0x0a, 0x01, ..] => Err("the OCSP responder reports an error; fetch the response again"),
        _ => Err(NO_RESPONSE),
    }
}

#[cfg(test)]
mod tests {
    use boring::ssl::SslMethod;

    use super::*;

    /// A self-signed certificate and its key, in PEM, in force between two years.
    fn certificate(name: &str, from: i32, to: i32) -> (String, String) {
        let mut parameters = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
        parameters.not_before = rcgen::date_time_ymd(from, 1, 1);
        parameters.not_after = rcgen::date_time_ymd(to, 1, 1);
        let key = rcgen::KeyPair::generate().unwrap();
        (parameters.self_signed(&key).unwrap().pem(), key.serialize_pem())
    }

    fn parse(certificate: &str, key: &str) -> Result<Identity, TlsError> {
        Identity::from_pem(certificate.as_bytes(), key.as_bytes(), Path::new("c.pem"), Path::new("k.pem"))
    }

    #[test]
    fn errors_name_the_file_and_the_cause() {
        let (chain, key) = certificate("one.example", 2000, 4000);
        let (_, other) = certificate("two.example", 2000, 4000);
        assert!(parse(&chain, &key).is_ok());
        let error = parse(&chain, &other).unwrap_err().to_string();
        assert!(error.contains("k.pem") && error.contains("does not match"), "{error}");
        let error = parse(&key, &key).unwrap_err().to_string();
        assert!(error.starts_with("c.pem: no PEM certificate"), "{error}");
        let error = parse(&chain, &chain).unwrap_err().to_string();
        assert!(error.starts_with("k.pem: no unencrypted PEM private key"), "{error}");
        let error = Identity::load(Path::new("/nonexistent/c.pem"), Path::new("/k")).unwrap_err();
        assert!(error.to_string().starts_with("/nonexistent/c.pem: "), "{error}");
    }

    #[test]
    fn a_certificate_that_is_not_in_force_is_told_and_served() {
        let directory = tempfile::tempdir().unwrap();
        for (from, to, validity) in
            [(2000, 4000, Validity::Valid), (2000, 2001, Validity::Expired), (3999, 4000, Validity::NotYet)]
        {
            let (chain, key) = certificate("edge.example", from, to);
            let [chain_file, key_file] = ["c.pem", "k.pem"].map(|name| directory.path().join(name));
            std::fs::write(&chain_file, chain).unwrap();
            std::fs::write(&key_file, key).unwrap();
            let identity = Identity::load(&chain_file, &key_file).unwrap();
            assert_eq!(identity.validity(), validity);
            let mut context = SslContextBuilder::new(SslMethod::tls()).unwrap();
            identity.install(&mut context).unwrap();
            assert!(context.build().certificate().is_some());
            assert_eq!(identity.names(), ["edge.example"]);
            let seconds = identity.not_after().duration_since(UNIX_EPOCH).unwrap().as_secs();
            assert_eq!(seconds, rcgen::date_time_ymd(to, 1, 1).unix_timestamp() as u64);
        }
    }

    #[test]
    fn ocsp_responses_are_successful_and_in_der() {
        let good = [0x30, 0x05, 0x0a, 0x01, 0x00, 0x05, 0x00];
        assert_eq!(check_ocsp(&good), Ok(()));
        let mut long = vec![0x30, 0x82, 0x01, 0x03, 0x0a, 0x01, 0x00];
        long.resize(4 + 0x103, 0);
        assert_eq!(check_ocsp(&long), Ok(()));
        for bad in [&good[..6], b"", b"0", b"-----BEGIN", &[0x30, 0x03, 0x0a, 0x01, 0x06]] {
            assert!(check_ocsp(bad).is_err(), "{bad:?}");
        }
        let directory = tempfile::tempdir().unwrap();
        let (chain, key) = certificate("edge.example", 2000, 4000);
        let [chain_file, key_file, ocsp] = ["c.pem", "k.pem", "o"].map(|name| directory.path().join(name));
        std::fs::write(&chain_file, chain).unwrap();
        std::fs::write(&key_file, key).unwrap();
        std::fs::write(&ocsp, good).unwrap();
        assert!(Identity::load_with(&chain_file, &key_file, Some(&ocsp)).unwrap().has_ocsp());
        std::fs::write(&ocsp, "").unwrap();
        let error = Identity::load_with(&chain_file, &key_file, Some(&ocsp)).unwrap_err().to_string();
        assert!(error.contains("no OCSP response in DER") && error.contains("/o:"), "{error}");
    }

    #[test]
    fn must_staple_is_seen() {
        let mut parameters = rcgen::CertificateParams::new(vec!["a.example".to_owned()]).unwrap();
        let plain = parse_parameters(&parameters);
        assert!(!plain.must_staple);
        let feature = rcgen::CustomExtension::from_oid_content(
            &[1, 3, 6, 1, 5, 5, 7, 1, 24],
            vec![0x30, 0x03, 0x02, 0x01, 0x05],
        );
        parameters.custom_extensions.push(feature);
        assert!(parse_parameters(&parameters).must_staple);
    }

    fn parse_parameters(parameters: &rcgen::CertificateParams) -> Identity {
        let key = rcgen::KeyPair::generate().unwrap();
        parse(&parameters.self_signed(&key).unwrap().pem(), &key.serialize_pem()).unwrap()
    }
}
