//! A request's body on its way to the exchange.
//!
//! What is read and not taken is bounded for each request and for the connection; the rest stays in QUIC, whose flow
//! control holds up the client.

use std::time::Instant;

use bytes::Bytes;
use expressway_web::memory::{Account, Charge};
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
    trailers: Option<(HeaderMap, Charge)>,
    /// It waits for its reader.
    is_blocked: bool,
    /// When the client last sent some of it, or could.
    moved: Instant,
}

impl Upload {
    /// A body of `length` bytes, if that is known, and where it is read.
    pub(super) fn new(length: Option<u64>, now: Instant) -> (Self, RequestBody) {
        let (writer, reader) = pipe(WINDOW);
        let upload = Self { writer, trailers: None, is_blocked: false, moved: now };
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

    /// Since when the client has owed the rest; `None` if its reader holds it up, or wants none of it.
    pub(super) fn awaited_since(&self) -> Option<Instant> {
        (!self.is_blocked && self.is_wanted()).then_some(self.moved)
    }

    /// Bytes of the stream to read now. 0: `wake` is called when there is room. `None`: nobody reads it, so that any
    /// number may be.
    pub(super) fn room(&mut self, account: &Account, now: Instant, wake: &Wake) -> Option<usize> {
        if std::mem::take(&mut self.is_blocked) {
            self.moved = now;
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
            self.writer.wake_with_room(&wake.waker());
        }
        Some(room)
    }

    /// Passes on what came.
    pub(super) fn write(&mut self, piece: &[u8], account: &Account, now: Instant) {
        self.moved = now;
        if self.is_wanted() {
            self.writer.write(account.own_request(Bytes::copy_from_slice(piece)));
        }
    }

    /// The trailers came; the end follows.
    pub(super) fn set_trailers(&mut self, trailers: HeaderMap, account: &Account) {
        let size: usize =
            trailers.iter().map(|(name, value)| name.as_str().len() + value.len() + FIELD).sum();
        self.trailers = Some((trailers, account.charge_request(size)));
    }

    /// It came to its end.
    pub(super) fn finish(self) {
        self.writer.finish(self.trailers.map(|(trailers, _)| trailers));
    }
}
