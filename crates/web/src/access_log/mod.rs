//! One line a request, written by a thread of its own.
//!
//! [`AccessLog::log`] packs a [`Record`] into one allocation and puts it into a bounded queue; formatting
//! and writing happen on the log's thread, in batches. A full queue, a full disk and a pipe that nobody
//! reads cost lines, which are counted, and never time on the caller's thread.

mod entry;
mod format;
mod record;
mod writer;

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

use crate::metrics::{Kind, Metric, count, counters};
use entry::Entry;
pub use record::Record;
use writer::Writer;

counters! {
    /// What became of access log lines.
    pub(crate) struct LogCounters {
        "Lines written to the access log." access_log_lines,
        "Octets written to the access log." access_log_bytes,
        "Lines lost because the access log's queue was full." access_log_dropped,
        "Lines lost because writing the access log failed." access_log_failed,
        "Times that the access log was opened anew." access_log_reopened,
        "Times that opening the access log anew failed and the old file was kept." access_log_reopen_failed,
    }
}

/// Where lines go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// Standard output.
    Stdout,
    /// A file, appended to; opened anew by [`AccessLog::reopen`].
    File(PathBuf),
}

impl Target {
    fn open(&self) -> io::Result<File> {
        match self {
            Self::Stdout => io::stdout().as_fd().try_clone_to_owned().map(File::from),
            Self::File(path) => File::options().append(true).create(true).open(path),
        }
    }
}

/// How a line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// One JSON object a line.
    Json,
    /// The combined format of nginx and Apache httpd, with nginx's escaping, times in UTC.
    Combined,
}

/// What an access log is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessLogOptions {
    /// Where lines go.
    pub target: Target,
    /// How a line looks.
    pub format: Format,
    /// Records that may wait for the writing thread; more are dropped and counted. Costs 128 octets each
    /// from the start.
    pub queue: usize,
    /// Octets of text that waiting records may hold together; more are dropped and counted.
    pub queue_bytes: usize,
}

impl AccessLogOptions {
    /// A queue of 8192 records and 8 MiB: 80 ms of 100,000 requests a second.
    pub fn new(target: Target, format: Format) -> Self {
        Self { target, format, queue: 8192, queue_bytes: 8 * 1024 * 1024 }
    }
}

/// What the log's thread is told.
enum Message {
    Entry(Entry),
    /// Look at `Shared::reopen`.
    Nudge,
}

/// What callers and the log's thread share.
#[derive(Debug, Default)]
struct Shared {
    counters: LogCounters,
    /// Octets of text in the queue.
    queued_bytes: AtomicUsize,
    reopen: AtomicBool,
}

/// An access log. Dropping it writes what is queued and ends the thread.
#[derive(Debug)]
pub struct AccessLog {
    shared: Arc<Shared>,
    sender: Option<SyncSender<Message>>,
    thread: Option<JoinHandle<()>>,
    queue_bytes: usize,
}

impl AccessLog {
    /// Opens the target and starts the writing thread.
    pub fn open(options: AccessLogOptions) -> io::Result<Self> {
        if options.queue == 0 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the access log's queue is 0: use 1 or more",
            ));
        }
        let file = options.target.open()?;
        let shared = Arc::<Shared>::default();
        let (sender, receiver) = sync_channel(options.queue);
        let writer = Writer::new(options.target, options.format, file, Arc::clone(&shared));
        let thread =
            std::thread::Builder::new().name("access-log".into()).spawn(move || writer.run(&receiver))?;
        Ok(Self { shared, sender: Some(sender), thread: Some(thread), queue_bytes: options.queue_bytes })
    }

    /// Queues one line. Never blocks: when the queue is full the record is dropped and counted.
    pub fn log(&self, record: &Record<'_>) {
        let bytes = record.text_length();
        let queued = self.shared.queued_bytes.fetch_add(bytes, Ordering::Relaxed);
        let fits = queued.saturating_add(bytes) <= self.queue_bytes;
        let sent = fits
            && self
                .sender
                .as_ref()
                .is_some_and(|sender| sender.try_send(Message::Entry(Entry::new(record))).is_ok());
        if !sent {
            self.shared.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
            count(&self.shared.counters.access_log_dropped);
        }
    }

    /// Asks the writing thread to open the target anew, after `logrotate` moved it away. Lines queued
    /// before may still go to the old file.
    pub fn reopen(&self) {
        self.shared.reopen.store(true, Ordering::Release);
        // A full queue needs no nudge: the thread is awake and looks at the flag after each batch.
        if let Some(sender) = &self.sender {
            let _ = sender.try_send(Message::Nudge);
        }
    }

    /// Lines written, dropped and failed.
    pub fn metrics(&self) -> Vec<Metric> {
        let queued = Metric {
            name: "access_log_queued_bytes",
            help: "Octets of text in the access log's queue.",
            kind: Kind::Gauge,
            value: self.shared.queued_bytes.load(Ordering::Relaxed) as u64,
        };
        self.shared.counters.fields().chain([queued]).collect()
    }
}

impl Drop for AccessLog {
    fn drop(&mut self) {
        drop(self.sender.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the access log's thread panicked");
        }
    }
}
