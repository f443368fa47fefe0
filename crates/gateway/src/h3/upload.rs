//! A request's body on its way to the exchange.
//!
//! The data read but not yet consumed is bounded for each request and for the connection. The rest stays in QUIC, whose
//! flow control stops the client.

use std::task::Poll;
use std::time::Instant;

use expressway_web::memory::{Account, Charge};
use expressway_web::patience::Pace;
use expressway_web::{PipeWriter, RequestBody, Wake, pipe};
use http::HeaderMap;

/// Bytes of a body that wait to be taken.
const WINDOW: usize = 64 << 10;

/// What a body whose reader has taken everything may have read however little the connection may hold, in bytes: a
/// few packets, so that each gets on.
const LEAST: usize = 4 << 10;

/// Part of what a connection may hold that may be bodies of requests.
const SHARE: usize = 4;

/// What a trailer field takes in addition to its name and value, in bytes.
const FIELD: usize = 64;

/// A body that is coming.
pub(super) struct Upload {
    writer: PipeWriter,
    /// What came in one read, which becomes one chunk: a chunk for each frame of a byte would take a hundred times what
    /// the client sends.
    pieces: Vec<u8>,
    trailers: Option<(HeaderMap, Charge)>,
    /// It waits for its reader.
    is_blocked: bool,
    /// The client waits until it is told to go on, and the worker is woken when it is to be.
    expects: Option<Wake>,
    /// How fast it comes, as sweeps see it.
    pace: Pace,
}

impl Upload {
    /// A body of `length` bytes, if that is known, and where it is read. If `expects`, the client waits to be told to
    /// go on.
    pub(super) fn new(length: Option<u64>, expects: Option<Wake>) -> (Self, RequestBody) {
        let (writer, reader) = pipe(WINDOW);
        let (pieces, pace) = (Vec::new(), Pace::default());
        let upload = Self { writer, pieces, trailers: None, is_blocked: false, expects, pace };
        (upload, RequestBody::new(reader, length))
    }

    /// Somebody may read it.
    pub(super) fn is_wanted(&self) -> bool {
        !self.writer.is_closed()
    }

    /// It waits for its reader, and is to be read on when that wakes it.
    pub(super) fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    /// Whether a client that waits for it is to be told to go on now, which is once: the body is asked for, or `is_good`
    /// is an answer without that, by a reader who still has it (RFC 9110, section 10.1.1).
    pub(super) fn continues(&mut self, is_good: bool) -> bool {
        let Some(wake) = &self.expects else { return false };
        let is_wanted = match self.writer.poll_asked(&wake.waker()) {
            Poll::Ready(is_asked) => is_asked,
            Poll::Pending if is_good => true,
            Poll::Pending => return false,
        };
        self.expects = None;
        is_wanted
    }

    /// For a sweep: since when the client, of whose body `received` bytes have come and `owed` have not, has sent less than `rate` a
    /// second. `None` if its reader holds it up, has something to read still, or wants none of it.
    pub(super) fn owed_since(
        &mut self,
        now: Instant,
        (received, owed): (u64, u64),
        rate: u64,
    ) -> Option<Instant> {
        let is_awaited =
            !self.is_blocked && self.expects.is_none() && self.is_wanted() && self.writer.held() == 0;
        if !is_awaited {
            self.pace.forget();
            return None;
        }
        self.pace.slow_since(now, received, owed, rate)
    }

    /// Bytes of the stream to read now. 0: `wake` is called when there is room. `None`: nobody reads it, so that any
    /// number may be.
    pub(super) fn room(&mut self, account: &Account, wake: &Wake) -> Option<usize> {
        if std::mem::take(&mut self.is_blocked) {
            self.pace.forget();
        }
        if self.writer.is_closed() {
            return None;
        }
        let held = self.writer.held();
        let least = if held == 0 { LEAST } else { 0 };
        let share = (account.limit() / SHARE).saturating_sub(account.requests());
        let room = WINDOW.saturating_sub(held).min(share).max(least);
        if room == 0 {
            self.is_blocked = true;
            self.writer.wake_when_read(&wake.waker());
        }
        Some(room)
    }

    /// Takes a piece of what a read brought; [`Self::flush`] passes all of them on.
    pub(super) fn write(&mut self, piece: &[u8]) {
        // It did not wait.
        self.expects = None;
        self.pieces.extend_from_slice(piece);
    }

    /// Passes on what the last read brought.
    pub(super) fn flush(&mut self, account: &Account) {
        let pieces = std::mem::take(&mut self.pieces);
        if !pieces.is_empty() && self.is_wanted() {
            self.writer.write(account.own_request(pieces));
        }
    }

    /// The trailers came; the end follows.
    pub(super) fn set_trailers(&mut self, trailers: HeaderMap, account: &Account) {
        let size: usize =
            trailers.iter().map(|(name, value)| name.as_str().len() + value.len() + FIELD).sum();
        self.trailers = Some((trailers, account.charge_request(size)));
    }

    /// It came to its end.
    pub(super) fn finish(mut self, account: &Account) {
        self.flush(account);
        self.writer.finish(self.trailers.map(|(trailers, _)| trailers));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use expressway_web::Notify;
    use expressway_web::memory::Memory;

    use super::*;

    #[derive(Default)]
    struct Calls(AtomicUsize);

    impl Notify for Calls {
        fn notify(&self, _: u64) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_read_of_many_small_frames_is_one_chunk_and_counts_what_it_takes() {
        let account = Account::new(&Memory::new(1 << 20).ledger(), 64 << 10, 64 << 10);
        let (mut upload, mut body) = Upload::new(None, None);
        for _ in 0..5000 {
            upload.write(b"x");
        }
        upload.flush(&account);
        assert!((5000..6000).contains(&account.requests()), "{}", account.requests());
        let wake = Wake::new(Arc::new(Calls::default()), 0);
        match body.poll_chunk(8000, &wake.waker()) {
            Poll::Ready(Some(Ok(chunk))) => assert_eq!(chunk.len(), 5000),
            other => panic!("{other:?}"),
        }
        assert_eq!(account.requests(), 0);
    }

    #[test]
    fn a_body_that_waits_for_the_connections_memory_is_woken_by_its_reader_and_not_at_once() {
        let calls = Arc::new(Calls::default());
        let wake = Wake::new(calls.clone(), 0);
        let account = Account::new(&Memory::new(1 << 20).ledger(), 64 << 10, 64 << 10);
        let _others = account.charge_request(20 << 10);
        let (mut upload, mut body) = Upload::new(None, None);
        assert_eq!(upload.room(&account, &wake), Some(LEAST), "nothing waits to be read");
        upload.write(&[0; 1000]);
        upload.flush(&account);
        assert_eq!(upload.room(&account, &wake), Some(0));
        assert_eq!(calls.0.load(Ordering::Relaxed), 0, "the worker would ask again and again");
        assert!(body.poll_chunk(100, &wake.waker()).is_ready());
        assert_eq!(calls.0.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_body_is_owed_while_its_reader_waits_and_not_while_that_has_something() {
        const RATE: u64 = 240;
        let start = Instant::now();
        let at = |second| start + Duration::from_secs(second);
        let account = Account::new(&Memory::new(1 << 20).ledger(), 64 << 10, 64 << 10);
        let (mut upload, mut body) = Upload::new(None, None);
        let wake = Wake::new(Arc::new(Calls::default()), 0);
        let mut received = 0;
        // A byte a second, which its reader takes at once.
        for second in 0..10 {
            upload.write(b"x");
            upload.flush(&account);
            received += 1;
            assert!(body.poll_chunk(100, &wake.waker()).is_ready());
            let since = (second > 0).then_some(start);
            assert_eq!(upload.owed_since(at(second), (received, u64::MAX), RATE), since);
        }
        // It has something to read: whatever is slow now, it is not the client.
        upload.write(b"xx");
        upload.flush(&account);
        received += 2;
        assert_eq!(upload.owed_since(at(10), (received, u64::MAX), RATE), None);
        assert!(body.poll_chunk(100, &wake.waker()).is_ready());
        assert_eq!(upload.owed_since(at(11), (received, u64::MAX), RATE), None);
        assert_eq!(upload.owed_since(at(12), (received, u64::MAX), RATE), Some(at(11)));
        // What is left may be less than the rate asks for.
        assert_eq!(upload.owed_since(at(13), (received + 480, 10), RATE), None);
        assert_eq!(upload.owed_since(at(20), (received + 490, 0), RATE), None);
        drop(body);
        assert_eq!(upload.owed_since(at(60), (received + 490, 0), RATE), None, "nobody wants it");
    }
}
