//! Certificates for tests.

use std::path::Path;
use std::sync::LazyLock;

use boring::pkey::PKey;
use boring::rsa::Rsa;
use rcgen::{CertificateParams, KeyPair};

use crate::identity::Identity;

/// What an identity signs with.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Key {
    Ecdsa,
    Rsa,
}

static ECDSA: LazyLock<KeyPair> = LazyLock::new(|| KeyPair::generate().unwrap());
static RSA: LazyLock<KeyPair> = LazyLock::new(|| {
    let key = PKey::from_rsa(Rsa::generate(2048).unwrap()).unwrap();
    let pem = key.private_key_to_pem_pkcs8().unwrap();
    KeyPair::from_pem_and_sign_algo(std::str::from_utf8(&pem).unwrap(), &rcgen::PKCS_RSA_SHA256).unwrap()
});

/// A self-signed ECDSA identity with these names.
pub(crate) fn identity(names: &[&str]) -> Identity {
    identity_of(names, Key::Ecdsa)
}

/// A self-signed identity with these names.
pub(crate) fn identity_of(names: &[&str], key: Key) -> Identity {
    let (chain, key) = pem(names, key);
    let path = Path::new("test.pem");
    Identity::from_pem(chain.as_bytes(), key.as_bytes(), path, path).unwrap()
}

/// Certificate and key in PEM.
pub(crate) fn pem(names: &[&str], key: Key) -> (String, String) {
    let parameters =
        CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).unwrap();
    let key = match key {
        Key::Ecdsa => &*ECDSA,
        Key::Rsa => &*RSA,
    };
    (parameters.self_signed(key).unwrap().pem(), key.serialize_pem())
}
