//! Certificates and keys: read, checked against each other, and turned into the engine's TLS context; and
//! the secrets that all workers share, derived from the private key so that they survive a restart.

use std::cmp::Ordering;
use std::path::{Path, PathBuf};

use boring::asn1::Asn1Time;
use boring::error::ErrorStack;
use boring::hash::MessageDigest;
use boring::hkdf::HkdfSuite;
use boring::pkey::{PKey, Private};
use boring::ssl::{SslContextBuilder, SslMethod, SslVersion};
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
    #[error("{}: no certificate in PEM form (\"-----BEGIN CERTIFICATE-----\"){}", path.display(), reason(.source))]
    Certificate {
        /// The file.
        path: PathBuf,
        /// What the parser said; empty when it found none.
        source: ErrorStack,
    },
    /// The key file holds no unencrypted PEM private key.
    #[error("{}: no unencrypted private key in PEM form (\"-----BEGIN PRIVATE KEY-----\"){}", path.display(), reason(.source))]
    PrivateKey {
        /// The file.
        path: PathBuf,
        /// What the parser said.
        source: ErrorStack,
    },
    /// The two files do not belong together.
    #[error(
        "{}: the private key does not belong to the first certificate of {}; \
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

    /// A TLS 1.3 server context with this identity.
    pub(crate) fn context(&self) -> Result<SslContextBuilder, ErrorStack> {
        let mut context = SslContextBuilder::new(SslMethod::tls())?;
        context.set_min_proto_version(Some(SslVersion::TLS1_3))?;
        context.set_max_proto_version(Some(SslVersion::TLS1_3))?;
        context.set_certificate(&self.chain[0])?;
        for certificate in &self.chain[1..] {
            context.add_extra_chain_cert(certificate.clone())?;
        }
        context.set_private_key(&self.key)?;
        Ok(context)
    }
}

/// Keys that all workers of a server share, and that a restarted server finds again.
#[derive(Clone)]
pub struct Secrets {
    /// Keys the check bytes of connection IDs.
    pub cid: [u8; 32],
    /// Keys stateless reset tokens (RFC 9000, section 10.3.2).
    pub reset: [u8; 32],
    /// Master of the Retry token keys.
    pub retry: [u8; 32],
    /// TLS session ticket key: name, HMAC key and AES key, 16 bytes each.
    pub ticket: [u8; 48],
}

impl Secrets {
    /// Derives them by HKDF-SHA256 (RFC 5869) from the identity's private key. Whoever knows that key can
    /// impersonate the server anyway, so nothing is lost; and a server that was killed can reset the
    /// connections of its predecessor.
    ///
    /// Make them once, at start: a reload with a new private key must keep the old secrets, or open
    /// connections could no longer be reset.
    pub fn derive(identity: &Identity) -> Result<Self, ErrorStack> {
        let material = identity.key.private_key_to_der()?;
        let hkdf = HkdfSuite::new(MessageDigest::sha256());
        let root = hkdf.extract(b"expressway quic secrets v1", &material)?;
        let mut secrets = Self { cid: [0; 32], reset: [0; 32], retry: [0; 32], ticket: [0; 48] };
        hkdf.expand(&root, b"connection id check", &mut secrets.cid)?;
        hkdf.expand(&root, b"stateless reset", &mut secrets.reset)?;
        hkdf.expand(&root, b"retry token", &mut secrets.retry)?;
        // Tickets get fresh keys at each start, for forward secrecy: a stolen certificate key must not open
        // recorded resumptions.
        boring::rand::rand_bytes(&mut secrets.ticket)?;
        Ok(secrets)
    }
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Secrets(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quic::testing::{certificate, identity};

    fn parse(certificate: &str, key: &str) -> Result<Identity, TlsError> {
        Identity::from_pem(certificate.as_bytes(), key.as_bytes(), Path::new("c.pem"), Path::new("k.pem"))
    }

    #[test]
    fn errors_name_the_file_and_the_cause() {
        let (chain, key) = certificate("one.example");
        let (_, other) = certificate("two.example");
        assert!(parse(&chain, &key).is_ok());
        let error = parse(&chain, &other).unwrap_err().to_string();
        assert!(error.contains("k.pem") && error.contains("does not belong"), "{error}");
        let error = parse(&key, &key).unwrap_err().to_string();
        assert!(error.starts_with("c.pem: no certificate"), "{error}");
        let error = parse(&chain, &chain).unwrap_err().to_string();
        assert!(error.starts_with("k.pem: no unencrypted private key"), "{error}");
        let error = Identity::load(Path::new("/nonexistent/c.pem"), Path::new("/k")).unwrap_err();
        assert!(error.to_string().starts_with("/nonexistent/c.pem: "), "{error}");
    }

    #[test]
    fn secrets_survive_a_restart_and_differ_by_key_and_purpose() {
        let (chain, key) = certificate("one.example");
        let first = Secrets::derive(&parse(&chain, &key).unwrap()).unwrap();
        let again = Secrets::derive(&parse(&chain, &key).unwrap()).unwrap();
        assert_eq!((first.cid, first.reset, first.retry), (again.cid, again.reset, again.retry));
        assert_ne!(first.ticket, again.ticket);
        assert_ne!(first.cid, first.reset);
        assert_ne!(first.reset, Secrets::derive(&identity("one.example")).unwrap().reset);
    }
}
