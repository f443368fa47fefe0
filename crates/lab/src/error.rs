//! Lab errors, and what to do about them.

use std::io;

/// Why a lab could not be made, entered or removed.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// The caller may not create network namespaces.
    #[error("lab: needs root (CAP_SYS_ADMIN and CAP_NET_ADMIN): run it with sudo")]
    NotRoot,
    /// A program that the lab drives is not installed.
    #[error("lab: cannot run `{program}`: {source} (on Debian: apt-get install {package})")]
    MissingProgram {
        /// The program.
        program: &'static str,
        /// The Debian package that has it.
        package: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// A program that the lab drives failed.
    #[error("lab: `{command}` failed ({status}): {output}")]
    Command {
        /// The command line.
        command: String,
        /// How it ended.
        status: String,
        /// What it printed, on one line.
        output: String,
    },
    /// A file or a system call failed.
    #[error("lab: {what}: {source}")]
    Io {
        /// The file or call.
        what: String,
        /// What the system said.
        source: io::Error,
    },
    /// A value of the configuration is invalid.
    #[error("lab: {0}")]
    Config(String),
    /// The running kernel lacks something that the configuration asks for.
    #[error("lab: this kernel does not support {0}")]
    Unsupported(&'static str),
    /// There is a finished lab of this name.
    #[error("lab {0} is already up: take it down first (expressway lab down {0}) or choose another name")]
    AlreadyUp(String),
    /// There is no lab of this name.
    #[error("lab {0} is not up: create it first (expressway lab up {0})")]
    NotUp(String),
    /// Processes in a lab were still there after SIGKILL and the time that `down` waits.
    #[error("lab {name}: processes {pids:?} did not exit; the lab is kept until they do")]
    Survivors {
        /// The lab.
        name: String,
        /// Their process IDs.
        pids: Vec<u32>,
    },
}

impl LabError {
    /// Wraps an I/O error with the file or call it came from.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }

    /// True if the request was wrong and not its execution: the command line then exits with 2.
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::Config(_))
    }
}
