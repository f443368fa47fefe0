//! The [`Arbiter`]: lines in, one stream of messages out.
//!
//! ```text
//!      delivered          missing   kept           missing, known by what followed
//!   ─────────────────────┬────────┬──────────────┬───────┬──────┐
//!                        ▲ next                                 ▲ highest
//!                        └── at most `window` messages ─────────┘  (a hole alone may be longer)
//! ```
//!
//! The first copy of a message wins, whichever line it came by. The message expected next is delivered where it
//! is. An early message is copied aside until the messages in front of it have arrived or are given up. A hole
//! is given up when it is older than `hold`, or when the window is full, and is then reported as a gap. Messages
//! of it that arrive later are delivered as late.

use std::time::{Duration, Instant};

use crate::framing::{Decoded, Framing};
use crate::line::{Line, LineState, Reference, Standing};
use crate::mold::{FIRST_SEQUENCE, Session};
use crate::ranges::Ranges;
use crate::reorder::{Origin, Reorder};
use crate::stats::{ArbiterStats, LineStats};

/// Most lines of a feed.
const MAX_LINES: u8 = 8;
/// Largest window, in messages: a second of a busy feed.
const MAX_WINDOW: u32 = 1 << 20;
/// Ranges of announced gaps that are remembered, to tell late messages from duplicates.
const MAX_LOST: usize = 1024;
/// Sessions that are remembered as over.
const PAST_SESSIONS: usize = 4;

/// How a feed is put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArbiterConfig {
    /// How datagrams are numbered.
    pub framing: Framing,
    /// Lines: 1 to 8.
    pub lines: u8,
    /// Messages that are kept at most while one in front of them is missing: 1 to 1,048,576. It must hold what
    /// comes in the time by which lines differ, or in which a reply comes.
    pub window: u32,
    /// Bytes of them.
    pub window_bytes: usize,
    /// How long a missing message is waited for before its gap is announced.
    pub hold: Duration,
    /// Number of the first message wanted, those below count as duplicates; `None`: of the first that comes.
    pub start: Option<u64>,
    /// A line that goes back after such a silence has a sender that began anew.
    pub restart: Duration,
}

impl ArbiterConfig {
    /// One line, a window of 4096 messages and 8 MiB, a hold of 10 ms.
    pub fn new(framing: Framing) -> Self {
        Self {
            framing,
            lines: 1,
            window: 4096,
            window_bytes: 8 << 20,
            hold: Duration::from_millis(10),
            start: None,
            // Three heartbeats of MoldUDP64.
            restart: Duration::from_secs(3),
        }
    }
}

/// A number of [`ArbiterConfig`] is out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} = {value}: must be {must}")]
pub struct ConfigError {
    /// Which.
    pub field: &'static str,
    /// Its value.
    pub value: u64,
    /// What it must be.
    pub must: &'static str,
}

/// A message of the feed, with a stamp of the caller's kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a, S = u64> {
    /// Its number.
    pub sequence: u64,
    /// Its bytes: of MoldUDP64 the message, of plain numbers the datagram with its number.
    pub data: &'a [u8],
    /// The line that brought it first.
    pub line: Line,
    /// What [`Arbiter::handle_datagram`] was told with it.
    pub stamp: S,
    /// It is out of order: its gap had been announced.
    pub late: bool,
}

/// What comes of a feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a, S = u64> {
    /// A message. Their numbers rise, but for late ones.
    Message(Message<'a, S>),
    /// Messages that did not come in time.
    Gap {
        /// Number of the first.
        first: u64,
        /// How many.
        count: u64,
    },
    /// Messages are of this session from here on, and numbered from 1.
    Session(Session),
    /// The session is over, as its sender says.
    End {
        /// Number behind its last message.
        next: u64,
    },
    /// The sender has begun to number anew; nothing can be said of what was lost in between.
    Reset {
        /// What would have come next.
        expected: u64,
        /// What came.
        found: u64,
    },
}

/// Messages that are waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hole {
    /// Number of the first.
    pub first: u64,
    /// Number behind the last.
    pub end: u64,
    /// When they were found missing.
    pub since: Instant,
}

/// Merges the lines of a feed into its messages. `S` is what the caller stamps datagrams with: the arbiter hands it on and
/// does not look at it.
pub struct Arbiter<S = u64> {
    config: ArbiterConfig,
    session: Option<Session>,
    past: [Option<Session>; PAST_SESSIONS],
    ended: bool,
    /// Counts resets and sessions.
    numbering: u64,
    next: Option<u64>,
    /// Number behind the highest that is known to exist. Below it and from `next` on, a number is missing
    /// (`holes`) or kept (`reorder`); `next` itself is never kept.
    highest: u64,
    holes: Ranges<Instant>,
    lost: Ranges<()>,
    reorder: Reorder<S>,
    /// The feed's lines, then the replies.
    lines: Vec<LineState>,
    /// When a line last brought something of the current session.
    heard: Option<Instant>,
    stats: ArbiterStats,
}

type Sink<'a, S> = dyn FnMut(Event<'_, S>) + 'a;

impl<S: Copy> Arbiter<S> {
    /// # Errors
    /// [`ConfigError`] names the number that is out of range.
    pub fn new(config: ArbiterConfig) -> Result<Self, ConfigError> {
        let complain = |field, value, must| Err(ConfigError { field, value, must });
        if !(1..=MAX_LINES).contains(&config.lines) {
            return complain("lines", config.lines.into(), "1 to 8");
        }
        if !(1..=MAX_WINDOW).contains(&config.window) {
            return complain("window", config.window.into(), "1 to 1048576");
        }
        if config.window_bytes < usize::from(u16::MAX) {
            return complain("window_bytes", config.window_bytes as u64, "at least 65535, one message");
        }
        Ok(Self {
            config,
            session: None,
            past: [None; PAST_SESSIONS],
            ended: false,
            numbering: 0,
            next: None,
            highest: 0,
            holes: Ranges::default(),
            lost: Ranges::default(),
            reorder: Reorder::new(config.window),
            lines: (0..=config.lines).map(|_| LineState::default()).collect(),
            heard: None,
            stats: ArbiterStats::default(),
        })
    }

    /// Takes a datagram in; `stamp` comes out again with each of its messages. Ignores a line that the feed has
    /// not.
    pub fn handle_datagram(
        &mut self,
        now: Instant,
        line: Line,
        stamp: S,
        datagram: &[u8],
        sink: &mut Sink<'_, S>,
    ) {
        let index = match line {
            Line::Feed(number) if number < self.config.lines => usize::from(number),
            Line::Feed(_) => return,
            Line::Reply => usize::from(self.config.lines),
        };
        self.lines[index].stats.datagrams += 1;
        let Some(decoded) = self.config.framing.decode(datagram) else {
            self.lines[index].stats.malformed += 1;
            return;
        };
        let is_current = match line {
            Line::Feed(_) => self.place(now, index, &decoded, sink),
            Line::Reply => self.next.is_some() && self.session == decoded.session,
        };
        if !is_current {
            self.lines[index].stats.stale += 1;
            return;
        }
        let Decoded { first, end, ends_session, messages, .. } = decoded;
        if line != Line::Reply {
            self.find_missing(now, first);
        }
        if first == end {
            self.lines[index].stats.heartbeats += 1;
        }
        for (number, message) in (first..end).zip(messages) {
            let fresh = self.take_in(now, number, message, Origin { line, stamp }, sink);
            let stats = &mut self.lines[index].stats;
            *(if fresh { &mut stats.first } else { &mut stats.duplicates }) += 1;
        }
        if ends_session && !self.ended && line != Line::Reply {
            self.ended = true;
            self.stats.ended += 1;
            sink(Event::End { next: first });
        }
    }

    /// Decides what numbering a datagram of the feed is of. False if that is over.
    fn place(&mut self, now: Instant, index: usize, decoded: &Decoded<'_>, sink: &mut Sink<'_, S>) -> bool {
        if self.session != decoded.session && !self.change_session(now, decoded.session, sink) {
            return false;
        }
        let reference = Reference {
            next: self.next,
            numbering: self.numbering,
            window: self.reorder.window(),
            restart: self.config.restart,
            without_sessions: decoded.session.is_none(),
        };
        let line = &mut self.lines[index];
        match line.judge(now, decoded.session, (decoded.first, decoded.end), reference) {
            Standing::Stale => return false,
            Standing::Current => {}
            Standing::Reset => {
                self.numbering += 1;
                line.lead(self.numbering);
                self.flush(sink);
                self.stats.resets += 1;
                let expected = self.next.unwrap_or(decoded.first);
                sink(Event::Reset { expected, found: decoded.first });
                self.begin(decoded.first);
            }
        }
        self.heard = Some(now);
        if self.next.is_none() {
            self.begin(self.config.start.unwrap_or(decoded.first));
        }
        true
    }

    /// Goes over to another session, unless that was over before.
    fn change_session(&mut self, now: Instant, session: Option<Session>, sink: &mut Sink<'_, S>) -> bool {
        let silent =
            self.heard.is_some_and(|heard| now.saturating_duration_since(heard) >= self.config.restart);
        if !silent && self.past.contains(&session) {
            return false;
        }
        self.flush(sink);
        if self.session.is_some() {
            self.past.rotate_right(1);
            self.past[0] = self.session;
            self.begin(FIRST_SEQUENCE);
        }
        self.past.iter_mut().filter(|past| **past == session).for_each(|past| *past = None);
        self.session = session;
        self.ended = false;
        self.numbering += 1;
        if let Some(session) = session {
            self.stats.sessions += 1;
            sink(Event::Session(session));
        }
        true
    }

    fn begin(&mut self, next: u64) {
        debug_assert!(self.holes.is_empty() && self.reorder.messages() == 0);
        self.next = Some(next);
        self.highest = next;
        self.lost.clear();
    }

    /// What is below `number` exists.
    fn find_missing(&mut self, now: Instant, number: u64) {
        if number > self.highest {
            self.holes.push(self.highest, number, now, self.config.window as usize);
            self.highest = number;
        }
    }

    /// Takes one message in. False if it had come before, or nobody knows of it.
    fn take_in(
        &mut self,
        now: Instant,
        number: u64,
        data: &[u8],
        origin: Origin<S>,
        sink: &mut Sink<'_, S>,
    ) -> bool {
        let Some(next) = self.next else { return false };
        if number < next {
            return self.take_late(number, data, origin, sink);
        }
        if number >= self.highest {
            if origin.line == Line::Reply {
                return false;
            }
            self.find_missing(now, number);
        } else if self.holes.overlap(number, number + 1).is_none() {
            return false;
        }
        let was_missing = number < self.highest;
        self.make_room(number, data.len(), sink);
        if was_missing {
            self.holes.remove(number);
            self.stats.recovered += 1;
        } else {
            self.highest = number + 1;
        }
        if self.next == Some(number) {
            self.hand_on(number, data, origin, sink);
            self.drain(sink);
        } else {
            self.reorder.store(number, data, origin);
        }
        true
    }

    fn take_late(&mut self, sequence: u64, data: &[u8], origin: Origin<S>, sink: &mut Sink<'_, S>) -> bool {
        if self.lost.remove(sequence).is_none() {
            return false;
        }
        self.bound_lost();
        self.stats.late += 1;
        let Origin { line, stamp } = origin;
        sink(Event::Message(Message { sequence, data, line, stamp, late: true }));
        true
    }

    /// Gives up what is in front of a message for as long as there is no room to keep it.
    fn make_room(&mut self, number: u64, length: usize, sink: &mut Sink<'_, S>) {
        while let Some(next) = self.next.filter(|next| *next < number) {
            let too_far = number - next >= self.reorder.window();
            let too_much = self.reorder.bytes() + length > self.config.window_bytes;
            if !too_far && !too_much {
                return;
            }
            self.stats.forced += 1;
            self.give_up(number, sink);
        }
    }

    /// Announces the first hole, as far as it is below `limit`, and hands on what is behind it.
    fn give_up(&mut self, limit: u64, sink: &mut Sink<'_, S>) {
        let Some(hole) = self.holes.cut_front(limit) else { return };
        debug_assert_eq!(self.next, Some(hole.first));
        let count = hole.end - hole.first;
        self.stats.gaps += 1;
        self.stats.lost = self.stats.lost.saturating_add(count);
        self.lost.push(hole.first, hole.end, (), MAX_LOST);
        self.bound_lost();
        sink(Event::Gap { first: hole.first, count });
        self.next = Some(hole.end);
        self.drain(sink);
    }

    fn bound_lost(&mut self) {
        while self.lost.len() > MAX_LOST {
            self.lost.pop_front();
        }
    }

    /// Hands on what is kept, up to the next hole.
    fn drain(&mut self, sink: &mut Sink<'_, S>) {
        while let Some(number) = self.next.filter(|next| *next < self.highest)
            && self.holes.front().is_none_or(|hole| hole.first != number)
        {
            self.stats.messages += 1;
            self.next = Some(number + 1);
            self.reorder.take(number, |data, Origin { line, stamp }| {
                sink(Event::Message(Message { sequence: number, data, line, stamp, late: false }));
            });
        }
    }

    fn hand_on(&mut self, sequence: u64, data: &[u8], origin: Origin<S>, sink: &mut Sink<'_, S>) {
        self.stats.messages += 1;
        self.next = Some(sequence + 1);
        let Origin { line, stamp } = origin;
        sink(Event::Message(Message { sequence, data, line, stamp, late: false }));
    }

    /// When [`Arbiter::handle_timeout`] is to be called; `None`: nothing is missing.
    pub fn poll_timeout(&self) -> Option<Instant> {
        // Holes are found in the order of their numbers.
        self.holes.front().map(|hole| hole.what + self.config.hold)
    }

    /// Announces the gaps that have been waited for long enough.
    pub fn handle_timeout(&mut self, now: Instant, sink: &mut Sink<'_, S>) {
        while self.poll_timeout().is_some_and(|time| time <= now) {
            self.give_up(u64::MAX, sink);
        }
    }

    /// Waits for nothing any more: announces all gaps and hands on all that is kept. At the end of a feed.
    pub fn flush(&mut self, sink: &mut Sink<'_, S>) {
        while !self.holes.is_empty() {
            self.give_up(u64::MAX, sink);
        }
    }

    /// What is waited for, lowest numbers first.
    pub fn holes(&self) -> impl Iterator<Item = Hole> {
        self.holes.iter().map(|range| Hole { first: range.first, end: range.end, since: range.what })
    }

    /// The first numbers of `first..end` that are waited for: first, and behind the last.
    pub fn missing(&self, first: u64, end: u64) -> Option<(u64, u64)> {
        self.holes.overlap(first, end)
    }

    /// The session, where the framing has any and one has come.
    pub fn session(&self) -> Option<Session> {
        self.session
    }

    /// Number of the message to be handed on next; `None` before the first datagram.
    pub fn expected(&self) -> Option<u64> {
        self.next
    }

    /// What became of the feed.
    pub fn stats(&self) -> ArbiterStats {
        self.stats
    }

    /// What came by a line; nothing of a line that the feed has not.
    pub fn line_stats(&self, line: Line) -> LineStats {
        let index = match line {
            Line::Feed(number) if number < self.config.lines => usize::from(number),
            Line::Feed(_) => return LineStats::default(),
            Line::Reply => usize::from(self.config.lines),
        };
        self.lines[index].stats
    }
}

#[cfg(test)]
#[path = "arbiter_tests.rs"]
mod tests;
