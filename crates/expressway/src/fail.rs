//! How a command fails: one line on stderr, and the exit code that says whose fault it is.

use std::fmt::{self, Display};
use std::process::ExitCode;

/// A failed command.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    /// It failed at run time: exit code 1.
    pub(crate) fn run_time(message: impl Display) -> Self {
        Self { code: 1, message: message.to_string() }
    }

    /// Wrong usage or configuration: exit code 2.
    pub(crate) fn usage(message: impl Display) -> Self {
        Self { code: 2, message: message.to_string() }
    }

    /// Prints the line and gives the exit code.
    pub(crate) fn report(&self) -> ExitCode {
        eprintln!("expressway: {self}");
        ExitCode::from(self.code)
    }
}

impl From<expressway_dataplane::Error> for Failure {
    fn from(error: expressway_dataplane::Error) -> Self {
        Self::run_time(error)
    }
}

impl Display for Failure {
    /// One line, whatever the parts said.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = self.message.lines().map(str::trim).filter(|line| !line.is_empty());
        f.write_str(&lines.collect::<Vec<_>>().join("; "))
    }
}
