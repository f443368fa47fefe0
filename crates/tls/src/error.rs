//! Errors in files.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use boring::error::ErrorStack;
use expressway_settings::secret;

/// Why something cannot be used. Names the file and what to do.
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
    /// A file holds something else than what it is for.
    #[error("{}: {problem}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// Nothing to serve with.
    #[error("no certificate")]
    None,
    /// More certificates than are served.
    #[error("more than {} certificates", crate::MAX_CERTIFICATES)]
    TooMany,
    /// The TLS library refused.
    #[error("TLS: {0}")]
    Library(#[from] ErrorStack),
}

impl TlsError {
    pub(crate) fn content(path: &Path, problem: impl Into<String>) -> Self {
        Self::Content { path: path.to_owned(), problem: problem.into() }
    }
}

/// A file's bytes, of which there may be `most`.
pub(crate) fn read(path: &Path, most: u64) -> Result<Vec<u8>, TlsError> {
    let read = secret::read(path, most).map_err(|source| match source.kind() {
        ErrorKind::FileTooLarge => TlsError::content(path, source.to_string()),
        _ => TlsError::Read { path: path.to_owned(), source },
    });
    read.map(|(bytes, _)| bytes)
}

fn reason(stack: &ErrorStack) -> String {
    if stack.errors().is_empty() { String::new() } else { format!(": {stack}") }
}
