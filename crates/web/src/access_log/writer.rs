//! The access log's thread.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;

use super::format::append;
use super::{Format, Message, Shared, Target};
use expressway_metrics::count;

/// Octets after which a batch is written.
const BATCH: usize = 64 * 1024;

/// How long lines gather while there is traffic. A thread that sleeps on the clock instead of on the queue
/// costs the senders no wake-up call each.
const GATHER: Duration = Duration::from_millis(10);

/// The thread's state.
pub(super) struct Writer {
    target: Target,
    format: Format,
    file: File,
    shared: Arc<Shared>,
    batch: Vec<u8>,
    /// The last write ended within a line.
    torn: bool,
    /// The last write failed; the next failure is not reported again.
    failing: bool,
}

impl Writer {
    pub(super) fn new(target: Target, format: Format, file: File, shared: Arc<Shared>) -> Self {
        let batch = Vec::with_capacity(BATCH + 4096);
        Self { target, format, file, shared, batch, torn: false, failing: false }
    }

    /// Writes what arrives until the log is dropped: sleeps on the queue while idle, on the clock otherwise.
    pub(super) fn run(mut self, receiver: &Receiver<Message>) {
        while let Ok(message) = receiver.recv() {
            self.take(message);
            while self.drain(receiver) {
                std::thread::sleep(GATHER);
            }
        }
    }

    /// Writes everything queued, and reopens if asked. False if there was nothing or the log was dropped.
    fn drain(&mut self, receiver: &Receiver<Message>) -> bool {
        let mut drained = !self.batch.is_empty();
        let connected = loop {
            match receiver.try_recv() {
                Ok(message) => {
                    drained = true;
                    self.take(message);
                    if self.batch.len() >= BATCH {
                        self.write();
                        self.reopen();
                    }
                }
                Err(TryRecvError::Empty) => break true,
                Err(TryRecvError::Disconnected) => break false,
            }
        };
        self.write();
        self.reopen();
        drained && connected
    }

    fn take(&mut self, message: Message) {
        if let Message::Entry(entry) = message {
            self.shared.queued_bytes.fetch_sub(entry.text_length(), Ordering::Relaxed);
            append(self.format, &entry.record(), &mut self.batch);
        }
    }

    /// Writes the batch. What cannot be written is lost and counted by lines.
    fn write(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        if self.torn {
            self.batch.insert(0, b'\n');
        }
        let mut written = 0;
        let result = loop {
            match self.file.write(&self.batch[written..]) {
                Ok(0) => break Err(ErrorKind::WriteZero.into()),
                Ok(count) => written += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
            }
            if written == self.batch.len() {
                break Ok(());
            }
        };
        let counters = &self.shared.counters;
        let lines = |octets: &[u8]| octets.iter().filter(|&&b| b == b'\n').count() as u64;
        let (done, lost) = self.batch.split_at(written);
        let mending = u64::from(self.torn && written > 0);
        counters.access_log_bytes.fetch_add(written as u64, Ordering::Relaxed);
        counters.access_log_lines.fetch_add(lines(done) - mending, Ordering::Relaxed);
        counters
            .access_log_failed
            .fetch_add(lines(lost) - u64::from(self.torn && written == 0), Ordering::Relaxed);
        match result {
            Ok(()) if self.failing => tracing::warn!("access log is writable again"),
            Err(ref error) if !self.failing => {
                tracing::error!(%error, target = ?self.target, "writing the access log failed; lost lines are counted");
            }
            Ok(()) | Err(_) => {}
        }
        self.failing = result.is_err();
        if written > 0 {
            self.torn = self.batch[written - 1] != b'\n';
        }
        self.batch.clear();
    }

    /// Reopens the target if requested; keeps the old file if that fails.
    fn reopen(&mut self) {
        if !self.shared.reopen.swap(false, Ordering::AcqRel) {
            return;
        }
        match self.target.open() {
            Ok(file) => {
                self.file = file;
                self.torn = false;
                count(&self.shared.counters.access_log_reopened);
            }
            Err(error) => {
                count(&self.shared.counters.access_log_reopen_failed);
                tracing::error!(%error, target = ?self.target, "reopening the access log failed; keeping the old file");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::sync::atomic::AtomicU64;

    use rustix::pipe::{PipeFlags, pipe_with};

    use super::*;

    fn value(counter: &AtomicU64) -> u64 {
        counter.load(Ordering::Relaxed)
    }

    /// A pipe that accepts 64 KiB and then refuses simulates a disk that fills within a line.
    #[test]
    fn a_torn_line_is_ended_before_the_next_one() {
        let (reader, writer) = pipe_with(PipeFlags::NONBLOCK).unwrap();
        let mut reader = File::from(reader);
        let shared = Arc::<Shared>::default();
        let mut log = Writer::new(Target::Stdout, Format::Json, File::from(writer), Arc::clone(&shared));
        let counters = &shared.counters;

        let line = [vec![b'x'; 9999], vec![b'\n']].concat();
        log.batch = line.repeat(10);
        log.write();
        assert_eq!((value(&counters.access_log_lines), value(&counters.access_log_failed)), (6, 4));
        log.batch = b"lost\n".to_vec();
        log.write();
        assert_eq!((value(&counters.access_log_lines), value(&counters.access_log_failed)), (6, 5));

        let mut taken = vec![0; 1 << 17];
        let length = reader.read(&mut taken).unwrap();
        assert_eq!(length, 65536);
        log.batch = b"kept\n".to_vec();
        log.write();
        let length = reader.read(&mut taken).unwrap();
        assert_eq!(&taken[..length], b"\nkept\n");
        assert_eq!((value(&counters.access_log_lines), value(&counters.access_log_failed)), (7, 5));
        assert!(!log.torn && !log.failing);
    }
}
