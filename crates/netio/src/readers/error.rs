//! Errors of readers, and of receivers that accept them.

use std::io;
use std::path::PathBuf;

use crate::sys::describe;

/// Memory could not be offered to readers in other processes.
#[derive(Debug, thiserror::Error)]
pub enum ReaderAccessError {
    /// The memory is private.
    #[error("the UMEM is private memory: create it with `shareable` to lend its frames")]
    Private,
    /// It is shared already.
    #[error("the UMEM already has a reader socket")]
    Twice,
    /// A number is out of its range.
    #[error("reader memory: {field} = {value}: {must}")]
    Config {
        /// Field of the configuration.
        field: &'static str,
        /// What it was set to.
        value: u64,
        /// What it must be.
        must: &'static str,
    },
    /// There is not enough memory.
    #[error("reader memory: {length} bytes: {}; out of memory or file descriptors", describe(source))]
    Memory {
        /// Bytes.
        length: u64,
        /// What the kernel said.
        source: io::Error,
    },
    /// A system call failed.
    #[error("reader socket {}: {step}: {}{advice}", path.display(), describe(source))]
    Socket {
        /// Path of the unix socket.
        path: PathBuf,
        /// What was tried.
        step: &'static str,
        /// What the kernel said.
        source: io::Error,
        /// What to do, after a separator; empty if nothing is known.
        advice: &'static str,
    },
}

/// A reader could not connect, or its receiver is gone.
#[derive(Debug, thiserror::Error)]
pub enum ReaderError {
    /// A system call failed.
    #[error("{}: {step}: {}", path.display(), describe(source))]
    Socket {
        /// Path of the receiver's unix socket.
        path: PathBuf,
        /// What was tried.
        step: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// The receiver said no.
    #[error("{}: reader rejected by the receiver: {reason}", path.display())]
    Refused {
        /// Path of the receiver's unix socket.
        path: PathBuf,
        /// Why.
        reason: &'static str,
    },
    /// What listens there speaks something else.
    #[error("{}: not a receiver of this version: {what}", path.display())]
    Foreign {
        /// Path of the unix socket.
        path: PathBuf,
        /// What was wrong with its message.
        what: String,
    },
    /// The receiver closed the connection, or wrote what cannot be into the rings. Connect again.
    #[error("{}: receiver disconnected: reconnect", path.display())]
    Gone {
        /// Path of the receiver's unix socket.
        path: PathBuf,
    },
}
