//! The secrets that all workers share, derived from a private key so that they survive a restart.

use boring::error::ErrorStack;
use boring::hash::MessageDigest;
use boring::hkdf::HkdfSuite;
pub use expressway_tls::{Identity, Tls, TlsError, Validity};

use super::cid::CheckKeys;
use super::filter_token::FilterTokens;
use super::instance::Instance;

/// A key that the server shares with filters in front of it (`expressway guard`).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FilterKey(pub [u8; 32]);

impl FilterKey {
    /// The part for connection IDs: its first half.
    fn id(&self) -> [u8; 16] {
        std::array::from_fn(|at| self.0[at])
    }

    /// The part for tokens: its second half.
    fn token(&self) -> [u8; 16] {
        std::array::from_fn(|at| self.0[16 + at])
    }
}

impl std::fmt::Debug for FilterKey {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("FilterKey(..)")
    }
}

/// Keys shared by all workers of a server. A restarted server derives them again.
#[derive(Clone)]
pub struct Secrets {
    /// Key the check bytes of connection IDs.
    pub cid: CheckKeys,
    /// Keys stateless reset tokens (RFC 9000, section 10.3.2).
    pub reset: [u8; 32],
    /// Master of the Retry token keys.
    pub retry: [u8; 32],
    /// Tokens that filters in front of the server make and take too.
    pub filter: FilterTokens,
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
        let (mut check, mut reset, mut retry) = ([0; 16], [0; 32], [0; 32]);
        match instance.id() {
            Some(id) => {
                root.expand(b"connection id check", id, &mut check)?;
                root.expand(b"stateless reset", id, &mut reset)?;
            }
            None => {
                boring::rand::rand_bytes(&mut check)?;
                boring::rand::rand_bytes(&mut reset)?;
            }
        }
        root.expand(b"retry token", b"", &mut retry)?;
        Ok(Self { cid: CheckKeys::new(&check, None), reset, retry, filter: FilterTokens::default() })
    }

    /// With keys that filters in front of the server know too, the one in use first; nothing changes if there are none.
    /// Servers that share them take each other's connection IDs for their own, and answer them by resets that nobody
    /// believes: reset tokens stay bound to the server.
    #[must_use]
    pub fn with_filter_keys(mut self, keys: &[FilterKey]) -> Self {
        if let Some(current) = keys.first() {
            self.cid = CheckKeys::new(&current.id(), keys.get(1).map(FilterKey::id).as_ref());
            let tokens: Vec<_> = keys.iter().map(FilterKey::token).collect();
            self.filter = FilterTokens::new(&tokens);
        }
        self
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
        assert_ne!(first.retry, first.reset);
        let other = derive(Some("b"));
        assert_ne!(first.reset, other.reset);
        assert_ne!(first.cid, other.cid);
        assert_eq!(first.retry, other.retry, "nodes take each other's Retry tokens");
        let stranger = crate::quic::testing::identity("one.example");
        let instance = Instance::of(&stranger, Some("a"), &[]).unwrap();
        assert_ne!(first.reset, Secrets::derive(&stranger, &instance).unwrap().reset);
    }

    #[test]
    fn servers_with_the_same_filter_key_know_each_others_ids_and_not_their_resets() {
        let identity = crate::quic::testing::identity("one.example");
        let of = |node, keys: &[FilterKey]| {
            let instance = Instance::of(&identity, Some(node), &[]).unwrap();
            Secrets::derive(&identity, &instance).unwrap().with_filter_keys(keys)
        };
        let (key, before) = (FilterKey([3; 32]), FilterKey([4; 32]));
        let (one, two) = (of("f", &[key, before]), of("g", &[key, before]));
        assert_eq!(one.cid, two.cid);
        assert_ne!(one.reset, two.reset);
        assert_ne!(one.cid, of("f", &[]).cid);
        assert_eq!(one.cid, CheckKeys::new(&[3; 16], Some(&[4; 16])));
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
