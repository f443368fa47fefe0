//! The qlog (draft-ietf-quic-qlog-main-schema) of one connection of a running server, on request.
//!
//! A [`Recording`] waits for the first datagram of a connection that its filter selects, and records that connection's
//! events from then on, as the engine writes them: JSON text sequences (RFC 7464). They go to the reader through a
//! bounded queue. Nothing waits for the reader; events for which there is no room are counted. Nothing is written to
//! files here.
//!
//! A new connection is recorded on trial: if its first packet turns out not to be authentic, the recording waits again.
//!
//! Without a recording, a datagram costs one check of a flag; while a recording waits, it also costs the filter,
//! without a lock. The engine cannot stop: a connection that was recorded continues to make events until it closes,
//! which are dropped.
//!
//! Stateless reset tokens, with which anyone could end a connection, are left out of every qlog ([`Blank`]).

use std::collections::VecDeque;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use arc_swap::ArcSwapOption;
use expressway_netio::trace::Filter;

/// Bytes that may wait for the reader.
const QUEUE: usize = 4 << 20;

/// The longest event that is told, in bytes: readers take lines of 64 KiB.
const MAX_EVENT: usize = 60 << 10;

/// Why a recording is not begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QlogError {
    /// One at a time.
    #[error("another qlog is being recorded; try again when it has ended")]
    Busy,
    /// All connections write one.
    #[error("[quic] qlog already records every connection")]
    All,
    /// The build cannot.
    #[error("this build does not support qlog; build with the feature `qlog`")]
    Unsupported,
}

/// How far a recording has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QlogPhase {
    /// No datagram of such a connection has come yet.
    Waiting,
    /// A connection is recorded.
    Running,
    /// The connection has closed.
    Closed,
    /// As many bytes as may be are recorded.
    Full,
}

/// What is recorded, or nothing. All workers look here.
#[derive(Default)]
pub(crate) struct Qlogs {
    /// A recording waits for its connection.
    wanted: AtomicBool,
    /// The one that waits. This and `wanted` change with its state locked.
    waiting: ArcSwapOption<Inner>,
    /// There is a recording.
    taken: AtomicBool,
}

struct Inner {
    filter: Filter,
    limit: usize,
    state: Mutex<State>,
}

struct State {
    /// Nobody is told of the connection yet: it may turn out to be none.
    on_trial: bool,
    queue: VecDeque<Vec<u8>>,
    queued: usize,
    phase: QlogPhase,
    began: Option<Instant>,
    bytes: usize,
    events: u64,
    lost: u64,
}

/// A recording, which ends when this is dropped.
pub struct Recording {
    qlogs: Arc<Qlogs>,
    inner: Arc<Inner>,
}

/// What a recording has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QlogReport {
    /// How far it has come.
    pub phase: QlogPhase,
    /// When the connection was found.
    pub began: Option<Instant>,
    /// Events, the header included.
    pub events: u64,
    /// Events that found no room.
    pub lost: u64,
}

impl Qlogs {
    pub(crate) fn start(self: &Arc<Self>, filter: Filter, limit: usize) -> Result<Recording, QlogError> {
        if self.taken.swap(true, Ordering::AcqRel) {
            return Err(QlogError::Busy);
        }
        let inner = Arc::new(Inner { filter, limit, state: Mutex::new(State::waiting()) });
        let state = lock(&inner.state);
        self.wait_for(Some(&inner));
        drop(state);
        Ok(Recording { qlogs: Arc::clone(self), inner })
    }

    /// Whether a recording waits for its connection.
    #[inline]
    pub(crate) fn are_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    /// Where the events of a connection go, if it is the one that somebody waits for: its client's address, and IDs that lead to it.
    #[cold]
    pub(crate) fn take<'a>(
        self: &Arc<Self>,
        remote: SocketAddr,
        ids: impl Iterator<Item = &'a [u8]>,
    ) -> Option<QlogWriter> {
        self.take_as(remote, ids, false)
    }

    /// The same for a connection that may turn out to be none: events are told once [`Trial::pass`] says that it is one, and if
    /// the writer is dropped before, the recording waits again.
    #[cold]
    pub(crate) fn try_out<'a>(
        self: &Arc<Self>,
        remote: SocketAddr,
        ids: impl Iterator<Item = &'a [u8]>,
    ) -> Option<(QlogWriter, Trial)> {
        let writer = self.take_as(remote, ids, true)?;
        let trial = Trial(Arc::clone(&writer.inner));
        Some((writer, trial))
    }

    fn take_as<'a>(
        self: &Arc<Self>,
        remote: SocketAddr,
        ids: impl Iterator<Item = &'a [u8]>,
        on_trial: bool,
    ) -> Option<QlogWriter> {
        let waiting = self.waiting.load();
        let inner = waiting.as_ref().filter(|inner| inner.filter.selects(remote, ids))?;
        let mut state = lock(&inner.state);
        if state.phase != QlogPhase::Waiting {
            return None;
        }
        self.wait_for(None);
        (state.phase, state.began, state.on_trial) = (QlogPhase::Running, Some(Instant::now()), on_trial);
        drop(state);
        Some(QlogWriter { qlogs: Arc::clone(self), inner: Arc::clone(inner), event: Vec::new() })
    }

    fn wait_for(&self, inner: Option<&Arc<Inner>>) {
        self.waiting.store(inner.cloned());
        self.wanted.store(inner.is_some(), Ordering::Release);
    }
}

impl State {
    fn waiting() -> Self {
        Self {
            on_trial: false,
            queue: VecDeque::new(),
            queued: 0,
            phase: QlogPhase::Waiting,
            began: None,
            bytes: 0,
            events: 0,
            lost: 0,
        }
    }

    /// What is told of it.
    fn report(&self) -> QlogReport {
        if self.on_trial {
            return QlogReport { phase: QlogPhase::Waiting, began: None, events: 0, lost: 0 };
        }
        QlogReport { phase: self.phase, began: self.began, events: self.events, lost: self.lost }
    }
}

/// The other end of a [`QlogWriter`] on trial.
pub(crate) struct Trial(Arc<Inner>);

impl Trial {
    /// The connection is one.
    pub(crate) fn pass(self) {
        lock(&self.0.state).on_trial = false;
    }
}

impl Recording {
    /// The events that have come since the last time, each ended by a line feed.
    pub fn read(&self) -> Vec<u8> {
        let mut state = lock(&self.inner.state);
        if state.on_trial {
            return Vec::new();
        }
        state.queued = 0;
        let queue = std::mem::take(&mut state.queue);
        drop(state);
        queue.into_iter().flatten().collect()
    }

    /// What it has taken so far.
    pub fn report(&self) -> QlogReport {
        lock(&self.inner.state).report()
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let mut state = lock(&self.inner.state);
        // Nothing is taken for it any more.
        if matches!(state.phase, QlogPhase::Waiting | QlogPhase::Running) {
            state.phase = QlogPhase::Closed;
        }
        self.qlogs.wait_for(None);
        let queue = std::mem::take(&mut state.queue);
        drop(state);
        self.qlogs.taken.store(false, Ordering::Release);
        // Megabytes: workers don't wait for that.
        drop(queue);
    }
}

/// Takes the events of a connection from the engine, piece by piece.
pub(crate) struct QlogWriter {
    qlogs: Arc<Qlogs>,
    inner: Arc<Inner>,
    /// The event that is being written; longer ones than may be are not kept.
    event: Vec<u8>,
}

impl QlogWriter {
    fn end_event(&mut self) {
        let event = std::mem::take(&mut self.event);
        let mut state = lock(&self.inner.state);
        if state.phase != QlogPhase::Running {
            return;
        }
        if event.len() > MAX_EVENT || state.queued + event.len() > QUEUE {
            state.lost += 1;
            return;
        }
        if state.bytes + event.len() > self.inner.limit {
            state.phase = QlogPhase::Full;
            return;
        }
        state.queued += event.len();
        state.bytes += event.len();
        state.events += 1;
        state.queue.push_back(event);
    }
}

impl Write for QlogWriter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        // JSON has no line feed of its own: the engine ends each event with one.
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let room = (MAX_EVENT + 1).saturating_sub(self.event.len());
            self.event.extend_from_slice(&part[..part.len().min(room)]);
            if part.ends_with(b"\n") {
                self.end_event();
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Drop for QlogWriter {
    fn drop(&mut self) {
        let mut state = lock(&self.inner.state);
        if state.phase == QlogPhase::Closed {
            return;
        }
        if std::mem::take(&mut state.on_trial) {
            // A few events at most: those of one datagram.
            *state = State::waiting();
            self.qlogs.wait_for(Some(&self.inner));
        } else if state.phase == QlogPhase::Running {
            state.phase = QlogPhase::Closed;
        }
    }
}

/// What the engine writes before the value of a stateless reset token.
#[cfg(feature = "qlog")]
const TOKEN: &[u8] = b"\"stateless_reset_token\":\"";

/// Leaves stateless reset tokens (RFC 9000, section 10.3) out of what is written: their values are empty.
#[cfg(feature = "qlog")]
pub(crate) struct Blank<W> {
    inner: W,
    /// Bytes of [`TOKEN`] that have come.
    matched: usize,
}

#[cfg(feature = "qlog")]
impl<W: Write> Blank<W> {
    pub(crate) fn new(inner: W) -> Self {
        Self { inner, matched: 0 }
    }
}

#[cfg(feature = "qlog")]
impl<W: Write> Write for Blank<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let within = self.matched == TOKEN.len();
        // What is written next.
        let mut from = if within { bytes.len() } else { 0 };
        for (at, byte) in bytes.iter().enumerate() {
            if self.matched == TOKEN.len() {
                // Within a token, which has no quotes.
                if matches!(byte, b'"' | b'\n') {
                    self.matched = 0;
                    from = at;
                }
                continue;
            }
            // In JSON no other quote than the first begins it anew.
            self.matched = match *byte {
                byte if byte == TOKEN[self.matched] => self.matched + 1,
                b'"' => 1,
                _ => 0,
            };
            if self.matched == TOKEN.len() {
                self.inner.write_all(&bytes[from..=at])?;
                from = bytes.len();
            }
        }
        self.inner.write_all(&bytes[from..])?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.inner.flush()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remote(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn of_client(address: &str) -> Filter {
        Filter { client: Some((address.parse().unwrap(), None)), connection: Vec::new() }
    }

    fn no_ids() -> impl Iterator<Item = &'static [u8]> {
        std::iter::empty()
    }

    #[test]
    fn the_first_connection_that_is_selected_is_recorded_and_no_other() {
        let qlogs = Arc::new(Qlogs::default());
        assert!(!qlogs.are_wanted() && qlogs.take(remote("192.0.2.1:1"), no_ids()).is_none());
        let recording = qlogs.start(of_client("192.0.2.1"), 1000).unwrap();
        assert_eq!(qlogs.start(Filter::default(), 1000).err(), Some(QlogError::Busy));
        assert!(qlogs.are_wanted());
        assert!(qlogs.take(remote("192.0.2.2:1"), no_ids()).is_none());
        let mut writer = qlogs.take(remote("192.0.2.1:1"), no_ids()).unwrap();
        assert!(!qlogs.are_wanted() && qlogs.take(remote("192.0.2.1:1"), no_ids()).is_none());
        assert_eq!(recording.read(), b"");
        writer.write_all(b"\x1e{\"a\"").unwrap();
        assert_eq!(recording.read(), b"", "half an event is none");
        writer.write_all(b":1}\n\x1e{}\n").unwrap();
        assert_eq!(recording.read(), b"\x1e{\"a\":1}\n\x1e{}\n");
        assert_eq!((recording.report().events, recording.report().phase), (2, QlogPhase::Running));
        drop(writer);
        assert_eq!(recording.report().phase, QlogPhase::Closed);
        drop(recording);
        let by_id = Filter { client: None, connection: vec![1, 2] };
        let _recording = qlogs.start(by_id, 1000).unwrap();
        assert!(qlogs.take(remote("192.0.2.1:1"), [&[1, 3][..]].into_iter()).is_none());
        assert!(qlogs.take(remote("192.0.2.1:1"), [&[1, 3][..], &[1, 2, 3]].into_iter()).is_some());
    }

    #[test]
    fn a_connection_that_turns_out_to_be_none_leaves_the_recording_waiting() {
        let qlogs = Arc::new(Qlogs::default());
        let recording = qlogs.start(of_client("192.0.2.1"), 1000).unwrap();
        let client = remote("192.0.2.1:1");
        for _ in 0..3 {
            let (mut writer, _trial) = qlogs.try_out(client, no_ids()).unwrap();
            writer.write_all(b"\x1e{\"none\":1}\n").unwrap();
            assert!(qlogs.try_out(client, no_ids()).is_none());
            assert_eq!((recording.read(), recording.report().phase), (Vec::new(), QlogPhase::Waiting));
            drop(writer);
            assert!(qlogs.are_wanted());
        }
        let (mut writer, trial) = qlogs.try_out(client, no_ids()).unwrap();
        writer.write_all(b"\x1e{}\n").unwrap();
        trial.pass();
        assert_eq!((recording.read(), recording.report().events), (b"\x1e{}\n".to_vec(), 1));
        drop(writer);
        assert_eq!((recording.report().phase, qlogs.are_wanted()), (QlogPhase::Closed, false));
        drop(recording);
        // What ends while a connection is tried out does not come back.
        let recording = qlogs.start(Filter::default(), 1000).unwrap();
        let (writer, _trial) = qlogs.try_out(client, no_ids()).unwrap();
        drop(recording);
        drop(writer);
        assert!(!qlogs.are_wanted() && qlogs.take(client, no_ids()).is_none());
        assert!(qlogs.start(Filter::default(), 1000).is_ok());
    }

    #[cfg(feature = "qlog")]
    #[test]
    fn reset_tokens_are_left_out_however_they_are_cut() {
        let text = b"\x1e{\"a\":\"stateless_reset_token\",\"stateless_reset_token\":\"00ff\",\"b\":\"c\"}\n\
            {\"stateless_reset_token\":\"\"}\n{\"stateless_reset_token\":null,\"x\":[{\"stateless_reset_token\":\"ab\"}]}\n";
        let blank = b"\x1e{\"a\":\"stateless_reset_token\",\"stateless_reset_token\":\"\",\"b\":\"c\"}\n\
            {\"stateless_reset_token\":\"\"}\n{\"stateless_reset_token\":null,\"x\":[{\"stateless_reset_token\":\"\"}]}\n";
        for size in 1..=text.len() {
            let mut writer = Blank::new(Vec::new());
            text.chunks(size).for_each(|part| writer.write_all(part).unwrap());
            assert_eq!(writer.inner, blank, "{size}");
        }
    }

    #[test]
    fn what_is_too_much_is_not_kept() {
        let qlogs = Arc::new(Qlogs::default());
        let recording = qlogs.start(Filter::default(), 3 * QUEUE).unwrap();
        let mut writer = qlogs.take(remote("192.0.2.1:1"), no_ids()).unwrap();
        let mut event = vec![b'x'; MAX_EVENT - 1];
        event.push(b'\n');
        writer.write_all(&[b'y'; 2 * MAX_EVENT]).unwrap();
        writer.write_all(b"\n").unwrap();
        assert_eq!((recording.report().events, recording.report().lost), (0, 1), "too long");
        let fit = QUEUE / MAX_EVENT;
        for _ in 0..fit + 5 {
            writer.write_all(&event).unwrap();
        }
        assert_eq!((recording.report().events, recording.report().lost), (fit as u64, 6), "nobody reads");
        while recording.report().phase == QlogPhase::Running {
            recording.read();
            writer.write_all(&event).unwrap();
        }
        assert_eq!(recording.report().phase, QlogPhase::Full);
        assert!(recording.report().events as usize * MAX_EVENT <= 3 * QUEUE);
        recording.read();
        writer.write_all(&event).unwrap();
        assert_eq!(recording.read(), b"");
        drop(recording);
        writer.write_all(&event).unwrap();
        assert!(lock(&writer.inner.state).queue.is_empty(), "nothing is kept for nobody");
    }
}
