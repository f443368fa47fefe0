//! A session that has some of a connection's streams, as WebTransport's has.
//!
//! Whoever has the session is given the connection's [`Transport`](super::Transport) as it is for a session that has all streams. Here is
//! what differs: each of its streams that this side opens has a head, its streams are named once their own heads were read, its error
//! codes are others of the connection's, and it ends before its connection does. What is kept is a few bytes for each stream that is open.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

use bytes::Bytes;

/// What is still open of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Open {
    reads: bool,
    writes: bool,
}

/// A side of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Read,
    Write,
}

/// What the peer lets a session send beside the limits of QUIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Credit {
    /// Bytes on all of its streams.
    pub(crate) data: u64,
    /// Streams that may be opened: in both directions, in one.
    pub(crate) streams: [u64; 2],
}

impl Credit {
    /// As much as QUIC permits.
    pub(crate) const UNLIMITED: Self = Self { data: u64::MAX, streams: [u64::MAX; 2] };
}

/// How a session is to be closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Closing {
    pub(crate) code: u64,
    pub(crate) reason: String,
}

/// What differs for a session; see the module.
pub(crate) struct Within {
    /// In front of streams of ours: in both directions, in one.
    heads: [Bytes; 2],
    /// The code on the wire for one of the session's.
    code: fn(u64) -> u64,
    /// What the session was asked for.
    target: Box<str>,
    /// The first stream in one direction that this side opens for it.
    first_unidirectional: u64,
    /// Streams of ours with a part of their head to be sent, and how much was.
    headless: HashMap<u64, usize>,
    open: HashMap<u64, Open>,
    /// Streams to be named for reading.
    readable: VecDeque<u64>,
    /// Those that have ended with their heads.
    ended: HashSet<u64>,
    /// In all, and what of it is used up.
    credit: Credit,
    used: Credit,
    /// Streams that wait for credit.
    waiting: BTreeSet<u64>,
    closing: Option<Closing>,
    is_over: bool,
    /// Streams that are still to be ended with the session.
    leaving: Vec<u64>,
}

/// 0: both, 1: one.
fn direction(stream: u64) -> usize {
    usize::from(stream & 2 != 0)
}

/// A server has opened it, which we are.
fn is_ours(stream: u64) -> bool {
    stream & 1 != 0
}

impl Within {
    /// For a session that was asked for by `target`.
    pub(crate) fn new(
        target: &str,
        heads: [Bytes; 2],
        first_unidirectional: u64,
        code: fn(u64) -> u64,
    ) -> Self {
        Self {
            heads,
            code,
            target: target.into(),
            first_unidirectional,
            headless: HashMap::new(),
            open: HashMap::new(),
            readable: VecDeque::new(),
            ended: HashSet::new(),
            credit: Credit::UNLIMITED,
            used: Credit { data: 0, streams: [0; 2] },
            waiting: BTreeSet::new(),
            closing: None,
            is_over: false,
            leaving: Vec::new(),
        }
    }

    pub(super) fn target(&self) -> &str {
        &self.target
    }

    pub(super) fn first_unidirectional(&self) -> u64 {
        self.first_unidirectional
    }

    pub(super) fn code(&self, code: u64) -> u64 {
        (self.code)(code)
    }

    /// The stream is open, and the session's.
    pub(crate) fn contains(&self, stream: u64) -> bool {
        self.open.contains_key(&stream)
    }

    /// The client has opened a stream for it, whose head was read; `is_last`: and nothing is behind that.
    pub(crate) fn accept(&mut self, stream: u64, is_last: bool) {
        self.open.insert(stream, Open { reads: true, writes: direction(stream) == 0 });
        if is_last {
            self.ended.insert(stream);
        }
        self.readable.push_back(stream);
    }

    /// Has a stream named for reading.
    pub(crate) fn push_readable(&mut self, stream: u64) {
        self.readable.push_back(stream);
    }

    pub(crate) fn has_readable(&self) -> bool {
        !self.readable.is_empty()
    }

    pub(super) fn next_readable(&mut self) -> Option<u64> {
        self.readable.pop_front()
    }

    /// A stream has ended that ended with its head: true, once.
    pub(super) fn take_end(&mut self, stream: u64) -> bool {
        !self.ended.is_empty() && self.ended.remove(&stream)
    }

    /// A side of a stream is over.
    pub(super) fn end_side(&mut self, stream: u64, side: Side) {
        let Some(open) = self.open.get_mut(&stream) else { return };
        match side {
            Side::Read => open.reads = false,
            Side::Write => open.writes = false,
        }
        if side == Side::Read {
            self.ended.remove(&stream);
        } else {
            self.headless.remove(&stream);
            self.waiting.remove(&stream);
        }
        if !open.reads && !open.writes {
            self.open.remove(&stream);
        }
    }

    /// This side opens a stream, if the credit permits.
    pub(super) fn begin(&mut self, stream: u64) {
        let direction = direction(stream);
        let is_new = is_ours(stream) && !self.contains(stream);
        if is_new && !self.is_over && self.streams_left(direction) > 0 {
            self.used.streams[direction] += 1;
            self.open.insert(stream, Open { reads: direction == 0, writes: true });
            self.headless.insert(stream, 0);
        }
    }

    /// The credit does not permit a stream of ours, or the session is over.
    pub(super) fn denies(&self, stream: u64) -> bool {
        is_ours(stream) && !self.contains(stream)
    }

    /// What is left of the head of a stream.
    pub(super) fn head(&self, stream: u64) -> Option<Bytes> {
        if self.headless.is_empty() {
            return None;
        }
        let sent = *self.headless.get(&stream)?;
        Some(self.heads[direction(stream)].slice(sent..))
    }

    /// So much of it was sent. True: all of it.
    pub(super) fn advance_head(&mut self, stream: u64, count: usize) -> bool {
        let length = self.heads[direction(stream)].len();
        let Some(sent) = self.headless.get_mut(&stream) else { return true };
        *sent += count;
        let is_whole = *sent >= length;
        if is_whole {
            self.headless.remove(&stream);
        }
        is_whole
    }

    /// Streams that may be opened, by direction.
    pub(super) fn streams_left(&self, direction: usize) -> u64 {
        self.credit.streams[direction].saturating_sub(self.used.streams[direction])
    }

    /// Bytes that may be sent.
    pub(super) fn data_left(&self) -> usize {
        usize::try_from(self.credit.data.saturating_sub(self.used.data)).unwrap_or(usize::MAX)
    }

    /// Some were.
    pub(super) fn spend(&mut self, bytes: usize) {
        self.used.data = self.used.data.saturating_add(bytes as u64);
    }

    /// A stream waits for credit.
    pub(super) fn wait(&mut self, stream: u64) {
        self.waiting.insert(stream);
    }

    /// The next that has waited for it, if there is some.
    pub(super) fn next_waiting(&mut self) -> Option<u64> {
        if self.has_waiting() { self.waiting.pop_first() } else { None }
    }

    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty() && self.data_left() > 0
    }

    /// What the peer permits in all.
    pub(crate) fn credit(&mut self) -> &mut Credit {
        &mut self.credit
    }

    /// Has the session closed.
    pub(super) fn close(&mut self, code: u64, reason: &str) {
        if !std::mem::replace(&mut self.is_over, true) {
            self.closing = Some(Closing { code, reason: reason.to_owned() });
        }
    }

    /// How it is to be closed, once.
    pub(crate) fn take_closing(&mut self) -> Option<Closing> {
        self.closing.take()
    }

    /// The peer has ended it.
    pub(crate) fn set_over(&mut self) {
        self.is_over = true;
        self.readable.clear();
    }

    /// Nothing new happens in it.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    /// The next of the streams that are open, for a session that is over.
    pub(super) fn next_leaving(&mut self) -> Option<u64> {
        if self.leaving.is_empty() {
            self.leaving = self.open.keys().copied().collect();
        }
        while let Some(stream) = self.leaving.pop() {
            if self.contains(stream) {
                return Some(stream);
            }
        }
        None
    }

    /// Nothing more can be sent on a stream, which `is_collected` if QUIC has let go of it. One that QUIC has not heard of yet looks the same.
    pub(super) fn let_go(&mut self, stream: u64, is_collected: bool) {
        if self.headless.get(&stream) == Some(&0) {
            return;
        }
        self.end_side(stream, Side::Write);
        if is_collected {
            self.end_side(stream, Side::Read);
        }
    }

    /// A stream is over.
    pub(super) fn forget(&mut self, stream: u64) {
        self.end_side(stream, Side::Read);
        self.end_side(stream, Side::Write);
    }

    /// Gives back room that is not needed for what there is.
    pub(super) fn shrink_to_fit(&mut self) {
        self.headless.shrink_to_fit();
        self.open.shrink_to_fit();
        self.readable.shrink_to_fit();
        self.ended.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn within() -> Within {
        let heads = [Bytes::from_static(b"@A\0"), Bytes::from_static(b"@T\0")];
        Within::new("/a", heads, 7, |code| code + 1000)
    }

    #[test]
    fn a_stream_is_kept_until_both_of_its_sides_are_over() {
        let mut within = within();
        within.accept(4, false);
        within.accept(6, true);
        within.begin(1);
        within.begin(7);
        assert_eq!(
            (within.next_readable(), within.next_readable(), within.next_readable()),
            (Some(4), Some(6), None)
        );
        assert!(within.take_end(6) && !within.take_end(6));
        within.end_side(6, Side::Read);
        within.end_side(7, Side::Write);
        for stream in [4, 1] {
            within.end_side(stream, Side::Read);
            assert!(within.contains(stream));
            within.end_side(stream, Side::Write);
        }
        assert!(within.open.is_empty() && within.headless.is_empty() && within.ended.is_empty());
    }

    #[test]
    fn a_head_is_sent_in_parts_and_once() {
        let mut within = within();
        assert!(within.denies(7) && !within.denies(4));
        within.begin(7);
        assert_eq!(within.head(7).as_deref(), Some(&b"@T\0"[..]));
        assert!(!within.advance_head(7, 1));
        within.begin(7);
        assert_eq!(within.head(7).as_deref(), Some(&b"T\0"[..]));
        assert!(within.advance_head(7, 2));
        assert_eq!((within.head(7), within.denies(7)), (None, false));
    }

    #[test]
    fn a_stream_that_was_stopped_is_kept_no_longer_unless_it_has_yet_to_begin() {
        let mut within = within();
        within.begin(7);
        within.let_go(7, true);
        assert!(within.contains(7), "the peer has not let it begin");
        within.advance_head(7, 1);
        within.let_go(7, false);
        assert!(!within.contains(7) && within.headless.is_empty());
        within.accept(4, false);
        within.let_go(4, false);
        assert!(within.contains(4), "it may be read");
        within.let_go(4, true);
        assert!(within.open.is_empty());
    }

    #[test]
    fn all_streams_leave_with_their_session() {
        let mut within = within();
        (0..100).for_each(|number| within.accept(4 * number, false));
        within.set_over();
        let mut left = 0;
        while let Some(stream) = within.next_leaving() {
            within.forget(stream);
            left += 1;
        }
        assert_eq!((left, within.open.len()), (100, 0));
    }

    #[test]
    fn credit_is_kept_to_and_streams_wait_for_it() {
        let mut within = within();
        *within.credit() = Credit { data: 10, streams: [0, 1] };
        within.begin(7);
        within.begin(11);
        within.begin(1);
        assert_eq!([7, 11, 1].map(|stream| within.denies(stream)), [false, true, true]);
        within.credit().streams[1] = 2;
        within.begin(11);
        assert!(!within.denies(11) && within.streams_left(1) == 0);
        within.spend(10);
        within.wait(11);
        assert_eq!((within.data_left(), within.next_waiting()), (0, None));
        within.credit().data = 15;
        assert_eq!((within.data_left(), within.next_waiting(), within.next_waiting()), (5, Some(11), None));
    }

    #[test]
    fn a_session_is_closed_once_and_opens_nothing_then() {
        let mut within = within();
        within.close(3, "first");
        within.close(4, "second");
        assert_eq!(within.take_closing(), Some(Closing { code: 3, reason: "first".into() }));
        assert_eq!((within.take_closing(), within.is_over()), (None, true));
        within.begin(7);
        assert!(within.denies(7));
    }
}
