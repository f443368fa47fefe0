//! Keys that several servers share, as one document: how it is made, rotated, signed, checked and followed.
//!
//! * [`Document`]: a version, and three sets of keys ([`Keys`]): the *current*, which is in use, the *next*, which other servers may
//!   use already, and the *previous*, which they may still use. All three are accepted, one makes what is new.
//! * [`Signer`] signs documents by Ed25519 (RFC 8032), [`Signers`] are the public keys whose signatures count.
//! * [`Section`] is where a configuration says which document that is.
//! * [`Store`] reads a file again when it changes. What is wrong with it is told once and counted, and the last good document stays.
//!
//! # Decisions
//!
//! A file, so that whatever distributes files distributes keys; and signed, so that what distributes them can withhold a document
//! but not make one. It is not encrypted: it is as secret as a private key of TLS, and one that others than owner and
//! group have any right to is refused. A version never goes back within a process's life. After a restart or an upgrade any signed document is taken: what a server would
//! remember it by would be another file beside the first.
//!
//! Keys of stateless resets, and of the check bytes of connection IDs, are not here: servers with the same ones would
//! disclose each other's reset tokens (RFC 9000, sections 10.3.2 and 21.11).

#![forbid(unsafe_code)]

mod document;
pub mod files;
mod section;
mod signature;
mod store;

pub use document::{CONFIGS, Document, Keys, RETRY_LENGTH, TICKET_LENGTH, TOKEN_LENGTH};
pub use section::Section;
pub use signature::{MAX_SIGNERS, Signer, Signers};
pub use store::{Report, Store, check, read};

/// Why a document is refused. Its display is one line, without the file's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The file cannot be read.
    #[error("cannot be read: {0}")]
    Unreadable(String),
    /// Others than its owner and group have rights to it.
    #[error("{0}")]
    Permissions(String),
    /// It is no document.
    #[error("{0}")]
    Format(String),
    /// None of the signers made its signature.
    #[error("none of the signers made the signature, or the text was changed")]
    Signature,
    /// The public keys of the signers cannot be had; names their file.
    #[error("{0}")]
    Signers(String),
    /// It is older than the one in use, or another one of the same version.
    #[error("{}; rotate the newest document", older(*used, *found))]
    Older {
        /// Of the document in use.
        used: u64,
        /// Of the refused one.
        found: u64,
    },
}

fn older(used: u64, found: u64) -> String {
    match found == used {
        true => format!("version {found} is in use with other keys"),
        false => format!("version {found} is older than {used}, which is in use"),
    }
}

impl Refusal {
    /// All that [`Refusal::reason`] says.
    pub const REASONS: [&'static str; 6] =
        ["unreadable", "permissions", "format", "signature", "signers", "older"];

    /// A word for it, for metrics.
    pub fn reason(&self) -> &'static str {
        Self::REASONS[self.index()]
    }

    pub(crate) fn index(&self) -> usize {
        match self {
            Self::Unreadable(_) => 0,
            Self::Permissions(_) => 1,
            Self::Format(_) => 2,
            Self::Signature => 3,
            Self::Signers(_) => 4,
            Self::Older { .. } => 5,
        }
    }
}
