//! The engine's TLS context for an identity, and the secrets that all workers share, derived from its private key
//! so that they survive a restart.

use boring::error::ErrorStack;
use boring::hash::MessageDigest;
use boring::hkdf::HkdfSuite;
use boring::ssl::{SslContextBuilder, SslMethod, SslVersion};
pub use expressway_identity::{Identity, TlsError, Validity};

/// A TLS 1.3 server context with an identity.
pub(crate) fn context(identity: &Identity) -> Result<SslContextBuilder, ErrorStack> {
    let mut context = SslContextBuilder::new(SslMethod::tls())?;
    context.set_min_proto_version(Some(SslVersion::TLS1_3))?;
    context.set_max_proto_version(Some(SslVersion::TLS1_3))?;
    identity.install(&mut context)?;
    Ok(context)
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
        let material = identity.key().private_key_to_der()?;
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
    use std::path::Path;

    use super::*;
    use crate::quic::testing::{certificate, identity};

    #[test]
    fn secrets_survive_a_restart_and_differ_by_key_and_purpose() {
        let (chain, key) = certificate("one.example");
        let derive = || {
            let path = Path::new("");
            Secrets::derive(&Identity::from_pem(chain.as_bytes(), key.as_bytes(), path, path).unwrap())
                .unwrap()
        };
        let (first, again) = (derive(), derive());
        assert_eq!((first.cid, first.reset, first.retry), (again.cid, again.reset, again.retry));
        assert_ne!(first.ticket, again.ticket);
        assert_ne!(first.cid, first.reset);
        assert_ne!(first.reset, Secrets::derive(&identity("one.example")).unwrap().reset);
    }
}
