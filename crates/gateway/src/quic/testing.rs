//! Certificates for unit tests, made on the spot.

use std::path::Path;

use super::tls::Identity;

/// A self-signed certificate for `name` and its key, in PEM.
pub(crate) fn certificate(name: &str) -> (String, String) {
    let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
    (made.cert.pem(), made.signing_key.serialize_pem())
}

/// The same, loaded.
pub(crate) fn identity(name: &str) -> Identity {
    let (chain, key) = certificate(name);
    Identity::from_pem(chain.as_bytes(), key.as_bytes(), Path::new("c.pem"), Path::new("k.pem")).unwrap()
}
