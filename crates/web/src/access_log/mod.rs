//! One line per request, written by its own thread.
//!
//! [`AccessLog::log`] packs a [`Record`] into one allocation and puts it into a bounded queue; formatting and
//! writing happen on the log's thread, in batches. A full queue, a full disk or a pipe that nobody reads
//! costs lines, which are counted, and never time on the caller's thread. Neither does dropping the log,
//! which any of its users may do last: use [`Ending`] to find out when everything is written.

mod cmcd;
mod entry;
mod format;
mod record;
mod writer;

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use http::HeaderMap;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

use entry::Entry;
use expressway_metrics::{Metric, count, counters};
pub use record::Record;
use writer::Writer;

counters! {
    /// What became of access log lines.
    pub(crate) struct LogCounters {
        /// Lines written to the access log.
        pub(crate) access_log_lines: AtomicU64,
        /// Bytes written to the access log.
        pub(crate) access_log_bytes: AtomicU64,
        /// Lines lost because the access log's queue was full.
        pub(crate) access_log_dropped: AtomicU64,
        /// Lines lost because writing the access log failed.
        pub(crate) access_log_failed: AtomicU64,
        /// Times that the access log was reopened.
        pub(crate) access_log_reopened: AtomicU64,
        /// Times that reopening the access log failed and the old file was kept.
        pub(crate) access_log_reopen_failed: AtomicU64,
    }
}

/// Where lines go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// Standard output.
    Stdout,
    /// A file, appended to; reopened by [`AccessLog::reopen`].
    File(PathBuf),
}

impl Target {
    /// Opens it without waiting for a reader; writing waits.
    fn open(&self) -> io::Result<File> {
        let Self::File(path) = self else {
            return io::stdout().as_fd().try_clone_to_owned().map(File::from);
        };
        let nonblocking = OFlags::NONBLOCK.bits() as i32;
        let opened = File::options().append(true).create(true).custom_flags(nonblocking).open(path);
        let file = opened.map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::NXIO) => {
                io::Error::new(error.kind(), "this pipe has no reader: start the reader first")
            }
            _ => error,
        })?;
        fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
        Ok(file)
    }
}

/// How a line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// One JSON object per line.
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
    /// Whether what players say of themselves (CMCD, CTA-5004) is logged; in JSON only.
    pub cmcd: bool,
    /// Records that may wait for the writing thread; more are dropped and counted. Costs 176 octets each
    /// from the start.
    pub queue: usize,
    /// Octets of text that waiting records may hold together; more are dropped and counted.
    pub queue_bytes: usize,
}

impl AccessLogOptions {
    /// A queue of 8192 records and 8 MiB: 80 ms at 100,000 requests per second.
    pub fn new(target: Target, format: Format) -> Self {
        Self { target, format, cmcd: false, queue: 8192, queue_bytes: 8 * 1024 * 1024 }
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
    /// The thread has ended.
    ended: Mutex<bool>,
    end: Condvar,
}

/// An access log. On drop, the thread writes what is queued and ends; the caller does not wait for it.
#[derive(Debug)]
pub struct AccessLog {
    shared: Arc<Shared>,
    sender: SyncSender<Message>,
    queue_bytes: usize,
    cmcd: bool,
}

/// The end of a log: when it has been dropped and everything queued is written.
#[derive(Debug, Clone)]
pub struct Ending(Arc<Shared>);

impl Ending {
    /// Whether it has come.
    pub fn is_over(&self) -> bool {
        self.wait(Duration::ZERO)
    }

    /// Waits at most that long; false if it has not ended. It never ends while somebody holds the log, or
    /// while the thread waits for a pipe without a reader.
    pub fn wait(&self, most: Duration) -> bool {
        let ended = self.0.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.0.end.wait_timeout_while(ended, most, |ended| !*ended);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Octets of text that are still to be written.
    pub fn queued_bytes(&self) -> usize {
        self.0.queued_bytes.load(Ordering::Relaxed)
    }
}

/// Says that the thread has ended, however it does.
struct Thread(Arc<Shared>);

impl Drop for Thread {
    fn drop(&mut self) {
        *self.0.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.0.end.notify_all();
    }
}

impl AccessLog {
    /// Opens the target and starts the writing thread.
    pub fn open(options: AccessLogOptions) -> io::Result<Self> {
        if options.queue == 0 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the access log's queue must be at least 1",
            ));
        }
        let file = options.target.open()?;
        let shared = Arc::<Shared>::default();
        let (sender, receiver) = sync_channel(options.queue);
        let cmcd = options.cmcd && options.format == Format::Json;
        let writer = Writer::new(options.target, options.format, file, Arc::clone(&shared));
        let thread = Thread(Arc::clone(&shared));
        std::thread::Builder::new().name("access-log".into()).spawn(move || {
            let _thread = thread;
            writer.run(&receiver);
        })?;
        Ok(Self { shared, sender, queue_bytes: options.queue_bytes, cmcd })
    }

    /// What tells when it has been dropped and everything queued is written.
    pub fn ending(&self) -> Ending {
        Ending(Arc::clone(&self.shared))
    }

    /// What [`Record::cmcd`] is for a request with these fields.
    pub fn cmcd<'a>(&self, headers: &'a HeaderMap) -> Option<[&'a str; 4]> {
        self.cmcd.then(|| cmcd::fields(headers))
    }

    /// Queues one line. Never blocks: when the queue is full the record is dropped and counted.
    pub fn log(&self, record: &Record<'_>) {
        let bytes = record.text_length();
        let queued = self.shared.queued_bytes.fetch_add(bytes, Ordering::Relaxed);
        let fits = queued.saturating_add(bytes) <= self.queue_bytes;
        let sent = fits && self.sender.try_send(Message::Entry(Entry::new(record))).is_ok();
        if !sent {
            self.shared.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
            count(&self.shared.counters.access_log_dropped);
        }
    }

    /// Asks the writing thread to reopen the target after `logrotate` moved it away. Lines queued before may
    /// still go to the old file.
    pub fn reopen(&self) {
        self.shared.reopen.store(true, Ordering::Release);
        // A full queue needs no nudge: the thread is awake and looks at the flag after each batch.
        let _ = self.sender.try_send(Message::Nudge);
    }

    /// Lines written, dropped and failed.
    pub fn metrics(&self) -> Vec<Metric> {
        let queued = self.shared.queued_bytes.load(Ordering::Relaxed) as u64;
        let help = "Bytes of text in the access log's queue.";
        let queued = Metric::gauge("access_log_queued_bytes", help, queued);
        self.shared.counters.fields().into_iter().chain([queued]).collect()
    }
}
