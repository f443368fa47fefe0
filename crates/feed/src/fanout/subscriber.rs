//! One subscriber: a connection and a cursor, and what happens when it falls behind.
//!
//! ```text
//!   ahead (handshake's answer, snapshot, rest of a cut frame, gap marker, pong) ─▶ socket
//!   then the ring's bytes from `cursor` on                                      ─▶ socket
//! ```
//!
//! `ahead` is bounded: it is only filled when it is empty, with one of these.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::framing::{append_close, append_pong};
use super::options::{Limits, Protocol, SlowClient, Start};
use super::ring::{Cursor, View};
use super::stats::{Account, Reason, Tally, add_alone};
use super::transport::{Refused, Transport};
use super::websocket::{Input, Parser};

/// Bytes that one subscriber is sent before the next has its turn.
const TURN: usize = 256 << 10;

/// The time, in nanoseconds, in which a subscriber may send [`Limits::input`]; it has nothing to say but pings and a close.
const INPUT_WINDOW: u64 = 1_000_000_000;

/// The additional cost of a read, a TLS record and a frame in bytes: each costs at least what so many bytes
/// cost.
const INPUT_UNIT: usize = 64;

/// Bytes that are taken of a subscriber before others have their turn.
const READ: usize = 4096;

/// WebSocket status codes (RFC 6455, section 7.4.1, and the IANA registry): going away, protocol error, policy
/// violation, try again later.
const GOING_AWAY: u16 = 1001;
const PROTOCOL_ERROR: u16 = 1002;
const POLICY: u16 = 1008;
const TRY_AGAIN: u16 = 1013;

/// The newest snapshot.
#[derive(Clone)]
pub(crate) struct Snapshot {
    pub(crate) payload: Arc<[u8]>,
    /// Its frame number in each ring.
    pub(crate) frames: [u64; 2],
}

/// How a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It has received everything.
    Idle,
    /// Its socket takes no more now.
    Blocked,
    /// It could take more.
    More,
    /// It is to be disconnected.
    Gone(Reason),
}

/// What one step came to.
enum Step {
    /// Bytes were taken.
    Sent,
    /// Bytes were taken, and those were all that there are.
    SentAll,
    /// Something is ready to be sent first.
    Prepared,
    /// There is nothing to send.
    Nothing,
    /// Others have their turn.
    TurnOver,
}

/// State that a connection brings when it becomes a subscriber.
pub(crate) struct Newcomer {
    pub(crate) transport: Transport,
    pub(crate) protocol: Protocol,
    pub(crate) peer: std::net::SocketAddr,
    pub(crate) start: Start,
    /// What goes out before anything else.
    pub(crate) greeting: Vec<u8>,
    /// What it has sent beyond the handshake.
    pub(crate) input: Vec<u8>,
}

/// A subscriber on its shard.
pub(crate) struct Subscriber {
    transport: Transport,
    pub(crate) account: Arc<Account>,
    parser: Option<Box<Parser>>,
    cursor: Cursor,
    ahead: Vec<u8>,
    ahead_sent: usize,
    /// A pong, for the next frame boundary.
    pong: Option<Vec<u8>>,
    /// It will skip to the newest frame once `ahead` is sent: the first frame that it misses.
    jump: Option<u64>,
    /// `ahead` ends with a frame that is counted once it is sent.
    finishing: bool,
    pub(crate) blocked: bool,
    /// Since when its socket has accepted nothing of what was offered.
    stuck: Option<u64>,
    /// When it came: nothing counts as older than that.
    came: u64,
    /// Since when it has been quiet: when it has ended its side of the connection, or since then was sent something.
    half_closed: Option<u64>,
    input: usize,
    input_since: u64,
}

impl Subscriber {
    /// A subscriber at its start. `now` is the ring's clock.
    pub(crate) fn new(
        newcomer: Newcomer,
        account: Arc<Account>,
        view: &View,
        snapshot: Option<&Snapshot>,
        limits: &Limits,
        now: u64,
    ) -> Self {
        let mut subscriber = Self {
            transport: newcomer.transport,
            parser: newcomer.protocol.is_websocket().then(Box::default),
            account,
            cursor: view.head(),
            ahead: newcomer.greeting,
            ahead_sent: 0,
            pong: None,
            jump: None,
            finishing: false,
            blocked: false,
            stuck: None,
            came: now,
            half_closed: None,
            input: 0,
            input_since: now,
        };
        match (newcomer.start, snapshot) {
            (Start::Next, _) | (Start::Snapshot, None) => {}
            (Start::Last(count), _) => {
                subscriber.replay(view, view.frames().saturating_sub(count.into()), limits);
            }
            (Start::Snapshot, Some(snapshot)) => {
                view.framing().append_frame(&snapshot.payload, &mut subscriber.ahead);
                let next = snapshot.frames[usize::from(newcomer.protocol.is_websocket())] + 1;
                if !subscriber.replay(view, next, limits) {
                    subscriber.jump = Some(next);
                }
            }
        }
        subscriber.note_place(view);
        subscriber
    }

    /// Starts at frame `first`, or as near as retained data and its limits allow. False: not at `first`.
    fn replay(&mut self, view: &View, first: u64, limits: &Limits) -> bool {
        let head = view.head();
        let end = view.byte_of(head).unwrap_or(0);
        let within =
            |cursor: &Cursor| view.byte_of(*cursor).is_some_and(|byte| end - byte <= limits.lag_bytes as u64);
        let (mut low, mut high) = (first.max(view.oldest_frame()), view.frames());
        // The oldest frame from which on everything is within the limit.
        while low < high {
            let middle = low + (high - low) / 2;
            if within(&view.cursor_of_frame(middle)) { high = middle } else { low = middle + 1 }
        }
        self.cursor = if low >= view.frames() { head } else { view.cursor_of_frame(low) };
        low == first
    }

    /// The oldest position in the ring that it still needs.
    pub(crate) fn oldest_place(&self) -> Cursor {
        self.cursor
    }

    /// Has the processor fetch what a turn takes behind the subscriber itself.
    pub(crate) fn prefetch(&self) {
        super::sys::prefetch(&*self.account);
        if let Transport::Plain(socket) = &self.transport {
            super::sys::prefetch(&**socket);
        }
    }

    pub(crate) fn transport(&self) -> &Transport {
        &self.transport
    }

    /// Sends what it has not received, as far as its socket accepts.
    pub(crate) fn turn(
        &mut self,
        view: &View,
        now: u64,
        limits: &Limits,
        slow: SlowClient,
        tally: &mut Tally,
    ) -> Turn {
        if self.blocked {
            return self.judge(view, now, limits, slow);
        }
        let mut left = TURN;
        let mut progress = false;
        let refused = loop {
            match self.step(view, &mut left, tally) {
                Ok(Step::Sent) => {
                    progress = true;
                    continue;
                }
                Ok(Step::Prepared) => continue,
                Ok(Step::SentAll) => progress = true,
                Ok(Step::Nothing) => {}
                Ok(Step::TurnOver) => {
                    self.stuck = None;
                    return Turn::More;
                }
                Err(refused) => break refused,
            }
            match self.transport.drain() {
                Ok(true) => {
                    self.stuck = None;
                    return self.judge_idle(now, progress, limits);
                }
                Ok(false) => break Refused::Later,
                Err(reason) => return Turn::Gone(reason),
            }
        };
        if let Refused::Gone(reason) = refused {
            return Turn::Gone(reason);
        }
        if progress || self.stuck.is_none() {
            self.stuck = Some(now);
        }
        self.blocked = true;
        self.judge(view, now, limits, slow)
    }

    /// One send, or what must be done before the next.
    fn step(&mut self, view: &View, left: &mut usize, tally: &mut Tally) -> Result<Step, Refused> {
        if self.ahead_sent < self.ahead.len() {
            let sent = self.transport.send(&self.ahead[self.ahead_sent..])?;
            self.ahead_sent += sent;
            self.count(sent, 0, tally);
            return Ok(Step::Sent);
        }
        if !self.ahead.is_empty() {
            self.ahead.clear();
            self.ahead_sent = 0;
            let finished = u64::from(std::mem::take(&mut self.finishing));
            self.count_frames(finished, tally);
        }
        if let Some(first) = self.jump.take() {
            self.jump_to_newest(view, first, tally);
            return Ok(Step::Prepared);
        }
        if *left == 0 {
            return Ok(Step::TurnOver);
        }
        let Some((cursor, mut bytes)) = view.next(self.cursor) else {
            // The ring went round while this shard was not scheduled. Blocks end at boundaries.
            self.jump = Some(view.frame_of(self.cursor).unwrap_or_else(|| view.frames()));
            return Ok(Step::Prepared);
        };
        self.cursor = cursor;
        let mut all = view.is_newest(cursor);
        if self.pong.is_some() {
            all = false;
            let rest = view.rest_of_frame(cursor).unwrap_or_default();
            if rest.is_empty() {
                self.ahead = self.pong.take().unwrap_or_default();
                return Ok(Step::Prepared);
            }
            bytes = rest;
        }
        if bytes.is_empty() {
            return Ok(Step::Nothing);
        }
        let sent = self.transport.send(&bytes[..bytes.len().min(*left)])?;
        all &= sent == bytes.len();
        *left -= sent;
        let before = view.frame_of(self.cursor).unwrap_or_default();
        self.cursor.offset += sent;
        let after = view.frame_of(self.cursor).unwrap_or(before);
        self.count(sent, after - before, tally);
        self.note(after, view);
        Ok(if all { Step::SentAll } else { Step::Sent })
    }

    /// It has closed its side of the connection. Whether it is gone altogether only shows in the response to
    /// something sent to it.
    pub(crate) fn half_close(&mut self, now: u64) {
        if self.half_closed.is_none() {
            self.half_closed = Some(now);
            self.account.half_closed.store(true, Ordering::Relaxed);
        }
    }

    /// Decides about a subscriber that has received everything: one that has closed its side and was sent
    /// nothing for the stall limit is considered gone.
    fn judge_idle(&mut self, now: u64, progress: bool, limits: &Limits) -> Turn {
        match &mut self.half_closed {
            None => Turn::Idle,
            Some(since) if progress => {
                *since = now;
                Turn::Idle
            }
            Some(since) if now.saturating_sub(*since) > nanoseconds(limits.stall) => {
                Turn::Gone(Reason::Closed)
            }
            Some(_) => Turn::Idle,
        }
    }

    /// Decides about a subscriber whose socket takes nothing.
    fn judge(&mut self, view: &View, now: u64, limits: &Limits, slow: SlowClient) -> Turn {
        if self.stuck.is_some_and(|since| now.saturating_sub(since) > nanoseconds(limits.stall)) {
            return Turn::Gone(Reason::Stalled);
        }
        if self.jump.is_some() {
            return Turn::Blocked;
        }
        let end = view.byte_of(view.head()).unwrap_or(0);
        let lag = end - view.byte_of(self.cursor).unwrap_or(end);
        let oldest = view.time_of(self.cursor).map_or(now, |time| time.max(self.came));
        let reason = if lag > limits.lag_bytes as u64 {
            Reason::TooManyBytes
        } else if now.saturating_sub(oldest) > nanoseconds(limits.lag_age) {
            Reason::TooOld
        } else {
            return Turn::Blocked;
        };
        match slow {
            SlowClient::Disconnect => Turn::Gone(reason),
            SlowClient::Drop => {
                self.fall_behind(view);
                Turn::Blocked
            }
        }
    }

    /// Lets go of the ring: what remains of the frame in flight is copied, and then comes the jump.
    fn fall_behind(&mut self, view: &View) {
        let rest = view.rest_of_frame(self.cursor).unwrap_or_default();
        let frame = view.frame_of(self.cursor).unwrap_or_else(|| view.frames());
        self.jump = Some(frame + u64::from(!rest.is_empty()));
        if !rest.is_empty() {
            // Part of a frame is in the ring only after all of `ahead` is sent.
            self.ahead.clear();
            self.ahead.extend_from_slice(rest);
            self.ahead_sent = 0;
            self.finishing = true;
        }
        self.cursor = view.head();
        tracing::debug!(subscriber = self.account.id, peer = %self.account.peer, "subscriber fell behind");
    }

    fn jump_to_newest(&mut self, view: &View, first: u64, tally: &mut Tally) {
        self.cursor = view.head();
        let head = view.frame_of(self.cursor).unwrap_or(first);
        let missed = head.saturating_sub(first);
        if missed != 0 {
            view.framing().append_gap(missed, &mut self.ahead);
            add_alone(&self.account.gaps, 1);
            add_alone(&self.account.skipped, missed);
            tally.gaps += 1;
            tally.skipped_frames += missed;
        }
        self.note_place(view);
    }

    fn count(&mut self, bytes: usize, frames: u64, tally: &mut Tally) {
        add_alone(&self.account.sends, 1);
        add_alone(&self.account.bytes, bytes as u64);
        tally.sends += 1;
        tally.sent_bytes += bytes as u64;
        self.count_frames(frames, tally);
    }

    fn count_frames(&mut self, frames: u64, tally: &mut Tally) {
        if frames != 0 {
            add_alone(&self.account.frames, frames);
            tally.sent_frames += frames;
        }
    }

    fn note_place(&self, view: &View) {
        let frame = self.jump.or_else(|| view.frame_of(self.cursor));
        self.note(frame.unwrap_or_default(), view);
    }

    fn note(&self, frame: u64, view: &View) {
        self.account.at_frame.store(frame, Ordering::Relaxed);
        self.account.at_byte.store(view.byte_of(self.cursor).unwrap_or_default(), Ordering::Relaxed);
    }

    /// Whether it has nothing to wait for.
    pub(crate) fn is_done(&mut self, view: &View) -> bool {
        self.ahead_sent == self.ahead.len()
            && self.jump.is_none()
            && view.next(self.cursor).is_none_or(|(_, bytes)| bytes.is_empty())
            && self.transport.drain() == Ok(true)
    }

    /// Reads what it has sent, up to some KiB. True: there may be more, which the socket will not report
    /// again. Plain TCP subscribers are never read: what they send stays in the kernel.
    pub(crate) fn receive(&mut self, now: u64, limits: &Limits, scratch: &mut [u8]) -> Result<bool, Reason> {
        if matches!(self.transport, Transport::Plain(_)) && self.parser.is_none() {
            return Ok(false);
        }
        self.transport.allow(1);
        let mut left = READ.min(scratch.len());
        while left != 0 {
            let before = self.transport.wire_received();
            let received = self.transport.receive(&mut scratch[..left]);
            // With TLS, what arrived may be much more than what it delivers.
            let length = *received.as_ref().unwrap_or(&0);
            let wire = self.transport.wire_received().zip(before).map_or(0, |(now, before)| now - before);
            self.charge(length.max(wire as usize), usize::from(length != 0), now, limits)?;
            match received {
                Err(Refused::Later) => return Ok(self.transport.is_starved()),
                Err(Refused::Gone(reason)) => return Err(reason),
                // Without a close frame a WebSocket has ended; a TLS subscriber may still read.
                Ok(0) if self.parser.is_some() => return Err(Reason::Closed),
                Ok(0) => return Ok(false),
                Ok(length) => {
                    left -= length;
                    self.parse(&scratch[..length], now, limits)?;
                }
            }
        }
        Ok(true)
    }

    /// Charges its input against the limit per second.
    fn charge(&mut self, bytes: usize, units: usize, now: u64, limits: &Limits) -> Result<(), Reason> {
        if now.saturating_sub(self.input_since) > INPUT_WINDOW {
            (self.input, self.input_since) = (0, now);
        }
        self.input += bytes + units * INPUT_UNIT;
        if self.input > limits.input { Err(Reason::Flooded) } else { Ok(()) }
    }

    /// Handles input that came together with its handshake.
    pub(crate) fn read(&mut self, bytes: &[u8], now: u64, limits: &Limits) -> Result<(), Reason> {
        self.charge(bytes.len(), 0, now, limits)?;
        self.parse(bytes, now, limits)
    }

    fn parse(&mut self, bytes: &[u8], now: u64, limits: &Limits) -> Result<(), Reason> {
        let Some(parser) = &mut self.parser else { return Ok(()) };
        let (mut closed, mut ping) = (None, None);
        let result = parser.read(bytes, &mut |input| match input {
            // Only the newest has to be answered (RFC 6455, section 5.5.3).
            Input::Ping(payload) => ping = Some(payload),
            Input::Close(code) => closed = Some(code),
        });
        if let Some(payload) = ping {
            let mut pong = Vec::new();
            append_pong(&payload, &mut pong);
            self.pong = Some(pong);
        }
        match (result, closed) {
            (Err(problem), _) => {
                tracing::debug!(peer = %self.account.peer, "WebSocket: {problem}");
                Err(Reason::Protocol)
            }
            (Ok(_), Some(_)) => Err(Reason::Closed),
            (Ok(frames), None) => self.charge(0, frames, now, limits),
        }
    }

    /// Ends the connection: in order where the stream stands at a boundary, else by a reset.
    pub(crate) fn end(mut self, view: &View, reason: Reason) {
        let boundary = self.ahead_sent == self.ahead.len()
            && view.rest_of_frame(self.cursor).is_none_or(<[u8]>::is_empty)
            && self.transport.drain() == Ok(true);
        let over = matches!(reason, Reason::Reset | Reason::TimedOut);
        if !boundary && reason != Reason::Closed {
            self.transport.abort();
            return;
        }
        if self.parser.is_some() && boundary && !over {
            let (code, text) = match reason {
                Reason::Closed => (1000, ""),
                Reason::Stopped => (GOING_AWAY, "shutting down"),
                Reason::Protocol => (PROTOCOL_ERROR, "protocol error"),
                Reason::Flooded => (POLICY, "too much data sent"),
                _ => (TRY_AGAIN, "too slow"),
            };
            let mut close = Vec::new();
            append_close(code, text, &mut close);
            // A socket without room is told by the end alone.
            let _ = self.transport.send(&close);
        }
        self.transport.close();
    }
}

fn nanoseconds(limit: Duration) -> u64 {
    u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX)
}
