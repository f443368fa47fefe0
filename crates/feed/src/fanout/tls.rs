//! The identity of TLS listeners.

use std::path::{Path, PathBuf};

use boring::error::ErrorStack;
use boring::pkey::PKey;
use boring::ssl::{SslAcceptor, SslContext, SslMethod, SslVersion};
use boring::x509::X509;

/// Why certificate or key cannot be used.
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
    /// The certificate file holds no certificate.
    #[error("{}: no certificate in PEM form (\"-----BEGIN CERTIFICATE-----\")", .0.display())]
    Certificate(PathBuf),
    /// The key file holds no unencrypted private key.
    #[error("{}: no unencrypted private key in PEM form (\"-----BEGIN PRIVATE KEY-----\")", .0.display())]
    PrivateKey(PathBuf),
    /// The two files do not belong together.
    #[error("{}: the private key does not belong to the first certificate of {}", key.display(), certificate.display())]
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

/// A certificate chain with its key, ready to serve TLS 1.2 and 1.3.
pub struct TlsIdentity {
    context: SslContext,
}

impl TlsIdentity {
    /// Reads both files, in PEM; the server's own certificate first.
    ///
    /// # Errors
    /// [`TlsError`] names the file and what is wrong with it.
    pub fn load(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let read = |path: &Path| {
            std::fs::read(path).map_err(|source| TlsError::Read { path: path.to_owned(), source })
        };
        let chain = X509::stack_from_pem(&read(certificate)?).unwrap_or_default();
        let Some((leaf, chain)) = chain.split_first() else {
            return Err(TlsError::Certificate(certificate.to_owned()));
        };
        let private =
            PKey::private_key_from_pem(&read(key)?).map_err(|_| TlsError::PrivateKey(key.to_owned()))?;
        if !leaf.public_key()?.public_eq(&private) {
            return Err(TlsError::Mismatch { certificate: certificate.to_owned(), key: key.to_owned() });
        }
        let mut builder = SslAcceptor::mozilla_intermediate_v5(SslMethod::tls())?;
        builder.set_min_proto_version(Some(SslVersion::TLS1_2))?;
        builder.set_certificate(leaf)?;
        for issuer in chain {
            builder.add_extra_chain_cert(issuer.clone())?;
        }
        builder.set_private_key(&private)?;
        Ok(Self { context: builder.build().into_context() })
    }

    pub(crate) fn context(&self) -> &SslContext {
        &self.context
    }
}
