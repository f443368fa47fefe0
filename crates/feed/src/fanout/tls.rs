//! The identity of TLS listeners.

use std::path::Path;

use boring::ssl::{SslAcceptor, SslContext, SslMethod, SslSessionCacheMode, SslVersion};
use expressway_tls::Identity;
pub use expressway_tls::TlsError;

/// A certificate chain with its key, ready to serve TLS 1.2 and 1.3.
pub struct TlsIdentity {
    context: SslContext,
}

impl TlsIdentity {
    /// Reads both files, in PEM; the server's own certificate first. An expired or not yet valid one is
    /// logged.
    ///
    /// # Errors
    /// [`TlsError`] names the file and the problem.
    pub fn load(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        Self::of(&Identity::load(certificate, key)?)
    }

    pub(crate) fn of(identity: &Identity) -> Result<Self, TlsError> {
        let mut builder = SslAcceptor::mozilla_intermediate_v5(SslMethod::tls())?;
        builder.set_min_proto_version(Some(SslVersion::TLS1_2))?;
        // Clients keep their sessions, in tickets; of those without, thousands would be kept here.
        builder.set_session_cache_mode(SslSessionCacheMode::OFF);
        identity.install(&mut builder)?;
        Ok(Self { context: builder.build().into_context() })
    }

    pub(crate) fn context(&self) -> &SslContext {
        &self.context
    }
}
