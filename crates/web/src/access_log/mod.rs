//! One line a request, written by a thread of its own.

mod record;

use std::io;
use std::path::PathBuf;

use crate::metrics::Metric;
pub use record::Record;

/// Where lines go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// Standard output.
    Stdout,
    /// A file, appended to; opened anew by [`AccessLog::reopen`].
    File(PathBuf),
}

/// How a line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// One JSON object a line.
    Json,
    /// The combined format of nginx and Apache httpd, with nginx's escaping.
    Combined,
}

/// What an access log is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessLogOptions {
    /// Where lines go.
    pub target: Target,
    /// How a line looks.
    pub format: Format,
    /// Records that may wait for the writing thread; more are dropped and counted.
    pub queue: usize,
}

/// An access log. Dropping it writes what is queued and ends the thread.
#[derive(Debug)]
pub struct AccessLog {}

impl AccessLog {
    /// Opens the target and starts the writing thread.
    pub fn open(options: AccessLogOptions) -> io::Result<Self> {
        let _ = options;
        Ok(Self {})
    }

    /// Queues one line. Never blocks: when the queue is full the record is dropped and counted.
    pub fn log(&self, record: &Record<'_>) {
        let _ = record;
    }

    /// Asks the writing thread to open the target anew, after `logrotate` moved it away.
    pub fn reopen(&self) {}

    /// Lines written, dropped and failed.
    pub fn metrics(&self) -> Vec<Metric> {
        Vec::new()
    }
}
