//! Why nothing can be captured, and notes about what cannot be captured.

use std::fmt;
use std::io;

/// Why a capture cannot be opened or goes on no more.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// Loading or attaching failed as a whole.
    #[error(transparent)]
    Programs(#[from] expressway_xbpf::Error),
    /// No, or too many, interfaces.
    #[error("{0} interfaces: 1 to {most} can be captured at once", most = super::CaptureOptions::INTERFACES)]
    Interfaces(usize),
    /// Not one of the hooks could be used.
    #[error("nothing to capture at: {0}")]
    Nothing(String),
    /// The network namespace could not be told, or the buffers not be read.
    #[error("{action}: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// Something that is not captured, or was not for a time, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uncaptured {
    /// The interface concerned; `None` is all.
    pub interface: Option<u32>,
    /// What is not captured, and why.
    pub text: String,
    /// It is about packets that may have passed in a certain moment: files say it where that is.
    pub gap: bool,
}

impl fmt::Display for Uncaptured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
