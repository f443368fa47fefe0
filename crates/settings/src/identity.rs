//! The identity of a TLS server: its certificates and private key, read and checked against each other.
//!
//! Who serves decides on versions, ciphers and protocols, and has [`Identity::install`] put the identity into its
//! context. A certificate that is not in force is no error but a warning in the log: clients refuse it, and whoever
//! runs the server wants it up all the same.

use std::cmp::Ordering;
use std::path::{Path, PathBuf};

use boring::asn1::Asn1Time;
use boring::error::ErrorStack;
use boring::pkey::{PKey, Private};
use boring::ssl::SslContextBuilder;
use boring::x509::X509;

/// Why certificate or key cannot be used. Names the file and what to do.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The certificate file holds no PEM certificate, or a damaged one.
    #[error("{}: no PEM certificate (\"-----BEGIN CERTIFICATE-----\"){}", path.display(), reason(.source))]
    Certificate {
        /// The file.
        path: PathBuf,
        /// What the parser said; empty when it found none.
        source: ErrorStack,
    },
    /// The key file holds no unencrypted PEM private key.
    #[error("{}: no unencrypted PEM private key (\"-----BEGIN PRIVATE KEY-----\"){}", path.display(), reason(.source))]
    PrivateKey {
        /// The file.
        path: PathBuf,
        /// What the parser said.
        source: ErrorStack,
    },
    /// The two files do not belong together.
    #[error(
        "{}: the private key does not match the first certificate of {}; \
         the server's own certificate must come first",
        key.display(), certificate.display()
    )]
    Mismatch {
        /// The certificate file.
        certificate: PathBuf,
        /// The key file.
        key: PathBuf,
    },
    /// The TLS library refused.
    #[error("TLS: {0}")]
    Library(#[from] ErrorStack),
}

fn reason(stack: &ErrorStack) -> String {
    if stack.errors().is_empty() { String::new() } else { format!(": {stack}") }
}

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

/// A certificate chain with its private key, known to belong together.
#[derive(Debug)]
pub struct Identity {
    chain: Vec<X509>,
    key: PKey<Private>,
    validity: Validity,
}

impl Identity {
    /// Reads both files. An expired certificate is no error but is logged, and told by [`Self::validity`].
    pub fn load(certificate: &Path, private_key: &Path) -> Result<Self, TlsError> {
        let read = |path: &Path| {
            std::fs::read(path).map_err(|source| TlsError::Read { path: path.to_owned(), source })
        };
        let identity = Self::from_pem(&read(certificate)?, &read(private_key)?, certificate, private_key)?;
        if identity.validity != Validity::Valid {
            tracing::warn!(
                certificate = %certificate.display(),
                not_before = %identity.chain[0].not_before(),
                not_after = %identity.chain[0].not_after(),
                "the certificate is {}: clients will refuse it",
                if identity.validity == Validity::Expired { "expired" } else { "not valid yet" }
            );
        }
        Ok(identity)
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
        Ok(Self { chain, key, validity })
    }

    /// How the first certificate's validity stood when it was loaded.
    pub fn validity(&self) -> Validity {
        self.validity
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
        }
    }
}
