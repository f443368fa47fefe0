//! The secrets that all workers share, derived from a private key so that they survive a restart.

use boring::error::ErrorStack;
use boring::hash::MessageDigest;
use boring::hkdf::HkdfSuite;
pub use expressway_tls::{Identity, Tls, TlsError, Validity};

use super::instance::Instance;

/// Keys shared by all workers of a server. A restarted server derives them again.
#[derive(Clone)]
pub struct Secrets {
    /// Keys the check bytes of connection IDs.
    pub cid: [u8; 32],
    /// Keys stateless reset tokens (RFC 9000, section 10.3.2).
    pub reset: [u8; 32],
    /// Master of the Retry token keys.
    pub retry: [u8; 32],
}

/// What secrets are derived from: the private key, by HKDF-SHA256 (RFC 5869).
pub(super) struct Root {
    hkdf: HkdfSuite,
    key: Vec<u8>,
}

impl Root {
    /// Whoever knows the key can impersonate the server anyway, so nothing is lost by deriving from it.
    pub(super) fn of(identity: &Identity) -> Result<Self, ErrorStack> {
        let material = identity.key().private_key_to_der()?;
        let hkdf = HkdfSuite::new(MessageDigest::sha256());
        let key = hkdf.extract(b"expressway quic secrets v1", &material)?;
        Ok(Self { hkdf, key: key.to_vec() })
    }

    /// Fills `out` for a purpose, of somebody.
    pub(super) fn expand(&self, purpose: &[u8], whose: &[u8], out: &mut [u8]) -> Result<(), ErrorStack> {
        self.hkdf.expand(&self.key, &[purpose, &[0], whose].concat(), out)
    }
}

impl Secrets {
    /// Derives them from the private key of `identity`. Those of connection IDs and resets also depend on
    /// `instance`, so that no other server answers for its connections. After a server was killed, its
    /// successor can reset its connections. A Retry token is valid at every server with the key, because the
    /// client's next packet may reach another.
    ///
    /// Must be created once, at start: a reload with a new private key must keep the old secrets, or open
    /// connections could no longer be reset.
    pub fn derive(identity: &Identity, instance: &Instance) -> Result<Self, ErrorStack> {
        let root = Root::of(identity)?;
        let mut secrets = Self { cid: [0; 32], reset: [0; 32], retry: [0; 32] };
        match instance.id() {
            Some(id) => {
                root.expand(b"connection id check", id, &mut secrets.cid)?;
                root.expand(b"stateless reset", id, &mut secrets.reset)?;
            }
            None => {
                boring::rand::rand_bytes(&mut secrets.cid)?;
                boring::rand::rand_bytes(&mut secrets.reset)?;
            }
        }
        root.expand(b"retry token", b"", &mut secrets.retry)?;
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
    use crate::quic::testing::certificate;

    #[test]
    fn secrets_survive_a_restart_and_differ_by_key_purpose_and_instance() {
        let (chain, key) = certificate("one.example");
        let path = Path::new("");
        let identity = Identity::from_pem(chain.as_bytes(), key.as_bytes(), path, path).unwrap();
        let derive = |node| Secrets::derive(&identity, &Instance::of(&identity, node, &[]).unwrap()).unwrap();
        let (first, again) = (derive(Some("a")), derive(Some("a")));
        assert_eq!((first.cid, first.reset, first.retry), (again.cid, again.reset, again.retry));
        assert_ne!(first.cid, first.reset);
        let other = derive(Some("b"));
        assert_ne!(first.reset, other.reset);
        assert_ne!(first.cid, other.cid);
        assert_eq!(first.retry, other.retry, "nodes take each other's Retry tokens");
        let stranger = crate::quic::testing::identity("one.example");
        let instance = Instance::of(&stranger, Some("a"), &[]).unwrap();
        assert_ne!(first.reset, Secrets::derive(&stranger, &instance).unwrap().reset);
    }

    #[test]
    fn of_a_server_that_nothing_is_known_of_the_secrets_are_its_own() {
        let identity = crate::quic::testing::identity("one.example");
        let derive = || Secrets::derive(&identity, &Instance::default()).unwrap();
        let (first, second) = (derive(), derive());
        assert_ne!(first.reset, second.reset);
        assert_ne!(first.cid, second.cid);
        assert_eq!(first.retry, second.retry);
    }
}
