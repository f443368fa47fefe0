//! The parts that fuzz targets reach: a peer's cryptography, and that of sessions whose media are not encrypted.

use std::sync::Arc;

use str0m::config::DtlsCert;
use str0m::crypto::CryptoProvider;

use super::answer::Identity;
use super::crypto;

/// What sessions and their peers encrypt by.
pub fn provider() -> Arc<CryptoProvider> {
    crypto::provider()
}

/// A new certificate of a peer.
///
/// # Errors
/// In words.
pub fn certificate() -> Result<DtlsCert, String> {
    crypto::certificate().map_err(|error| error.to_string())
}

/// Sessions that encrypt by something else.
///
/// # Errors
/// In words.
pub fn identity(provider: CryptoProvider) -> Result<Identity, String> {
    Identity::new().map(|identity| identity.with_provider(provider))
}
