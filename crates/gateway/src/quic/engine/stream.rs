//! The streams of a connection.

use std::time::Instant;

use bytes::Bytes;

use super::Transport;
use super::within::Side;

/// Added to an urgency of RFC 9218 (0 to 7) to make the engine's stream priority, so that urgency 3 is its
/// default of 127.
const URGENCY_OFFSET: u8 = 124;

/// A request's priority (RFC 9218, section 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Priority {
    /// 0 is the most urgent, 7 the least.
    pub(crate) urgency: u8,
    /// Streams of the same urgency take turns.
    pub(crate) incremental: bool,
}

impl Default for Priority {
    fn default() -> Self {
        Self { urgency: 3, incremental: false }
    }
}

/// What reading a stream brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// This many bytes; `last` ends the stream with them.
    Data {
        /// Bytes at the front of the buffer.
        length: usize,
        /// The peer's side has ended, and all of it was read.
        last: bool,
    },
    /// The peer reset its side of the stream.
    Reset,
    /// Nothing for now, or never again.
    Nothing,
}

/// Why something was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// No room now; the stream is named by [`Transport::writable`] when there is.
    Blocked,
    /// The stream is over: stopped by the peer, or the connection is closing.
    Over,
}

impl From<quiche::Error> for SendError {
    fn from(error: quiche::Error) -> Self {
        match error {
            // The peer's limit of streams counts when the first bytes of a stream of ours are sent.
            quiche::Error::Done | quiche::Error::StreamLimit => Self::Blocked,
            _ => Self::Over,
        }
    }
}

impl Transport {
    /// Some stream has data to read.
    #[inline]
    pub fn is_readable(&self) -> bool {
        self.quic.is_readable() || self.within.as_ref().is_some_and(|within| within.has_readable())
    }

    /// The next stream with something to read, once: it is named again only after all of it was read.
    #[inline]
    pub fn readable(&mut self) -> Option<u64> {
        match &mut self.within {
            Some(within) => within.next_readable(),
            None => self.next_readable(),
        }
    }

    /// The next of the connection's streams with something to read.
    #[inline]
    pub(crate) fn next_readable(&mut self) -> Option<u64> {
        self.quic.stream_readable_next()
    }

    /// Reads `stream` into `out`.
    #[inline]
    pub fn receive(&mut self, stream: u64, out: &mut [u8]) -> Received {
        if let Some(within) = &mut self.within
            && within.take_end(stream)
        {
            within.end_side(stream, Side::Read);
            return Received::Data { length: 0, last: true };
        }
        let received = match self.quic.stream_recv(stream, out) {
            Ok((length, last)) => Received::Data { length, last },
            Err(quiche::Error::StreamReset(_)) => Received::Reset,
            Err(_) => Received::Nothing,
        };
        if let Some(within) = &mut self.within
            && matches!(received, Received::Data { last: true, .. } | Received::Reset)
        {
            within.end_side(stream, Side::Read);
        }
        received
    }

    /// Bytes of memory that data takes which has come and was not read, and streams that nobody was told of.
    #[inline]
    pub(crate) fn received_held(&self) -> usize {
        self.quic.received_held()
    }

    /// Some of it cannot be read because what comes before it is missing.
    #[inline]
    pub(crate) fn received_waits(&self) -> bool {
        self.quic.received_waits()
    }

    /// Since `start` or before, as far as this was asked in between.
    pub(crate) fn received_has_waited(&mut self, now: Instant, start: Instant) -> bool {
        self.quic.received_has_waited(now, start)
    }

    /// The next stream that can take data or was stopped, once; see [`Self::capacity`] for how it is named
    /// again.
    #[inline]
    pub fn writable(&mut self) -> Option<u64> {
        if let Some(stream) = self.within.as_mut().and_then(|within| within.next_waiting()) {
            return Some(stream);
        }
        loop {
            let stream = self.quic.stream_writable_next()?;
            match &self.within {
                // Whoever has the others looks at them by itself. One that was stopped is let go of when it is looked at.
                Some(within) if !within.contains(stream) => _ = self.quic.stream_capacity(stream),
                _ => return Some(stream),
            }
        }
    }

    /// The number of the first stream that this side opens in both directions, or in one.
    pub fn first_own(&self, is_bidirectional: bool) -> u64 {
        match (is_bidirectional, &self.within) {
            // The first that a server opens (RFC 9000, section 2.1).
            (true, _) => 1,
            (false, None) => 3,
            (false, Some(within)) => within.first_unidirectional(),
        }
    }

    /// Streams that the peer lets us open now: in both directions, or in one.
    pub fn streams_left(&self, is_bidirectional: bool) -> u64 {
        let left = match is_bidirectional {
            true => self.quic.peer_streams_left_bidi(),
            false => self.quic.peer_streams_left_uni(),
        };
        match &self.within {
            Some(within) => left.min(within.streams_left(usize::from(!is_bidirectional))),
            None => left,
        }
    }

    /// [`Self::writable`] would return a stream.
    pub fn has_writable(&self) -> bool {
        self.quic.writable().len() > 0 || self.within.as_ref().is_some_and(|within| within.has_waiting())
    }

    /// Bytes that `stream` currently accepts, within flow control and the congestion window; after 0 the
    /// stream is returned by [`Self::writable`] once there is room. `None`: the peer has stopped it.
    pub fn capacity(&mut self, stream: u64) -> Option<usize> {
        let Some(within) = &mut self.within else { return self.capacity_of(stream, 0) };
        if within.denies(stream) {
            return None;
        }
        let (head, credit) = (within.head(stream).map_or(0, |head| head.len()), within.data_left());
        let Some(capacity) = self.capacity_of(stream, head) else {
            self.let_go(stream);
            return None;
        };
        if credit == 0
            && let Some(within) = &mut self.within
        {
            within.wait(stream);
        }
        Some(capacity.min(credit))
    }

    /// A session's stream takes nothing more.
    fn let_go(&mut self, stream: u64) {
        let is_collected = self.is_collected(stream);
        if let Some(within) = &mut self.within {
            within.let_go(stream, is_collected);
        }
    }

    /// What is left for others than so many bytes.
    fn capacity_of(&mut self, stream: u64, taken: usize) -> Option<usize> {
        let capacity = self.quic.stream_capacity(stream).ok()?.saturating_sub(taken);
        if capacity == 0 {
            let _ = self.quic.stream_writable(stream, taken + 1);
        }
        Some(capacity)
    }

    /// The engine has let go of `stream`: both ways are over, and all that was sent is acknowledged.
    pub fn is_collected(&mut self, stream: u64) -> bool {
        matches!(self.quic.stream_capacity(stream), Err(quiche::Error::InvalidStreamState(_)))
    }

    /// `stream` can take something now. It is not named for having been asked about.
    pub fn has_capacity(&mut self, stream: u64) -> bool {
        self.quic.stream_capacity(stream).is_ok_and(|capacity| capacity > 0)
    }

    /// The peer has stopped `stream`, which we have sent something on and have not ended. If all of that was acknowledged, the
    /// engine may have let go of the stream with that.
    #[inline]
    pub fn is_stopped(&mut self, stream: u64) -> bool {
        use quiche::Error::{InvalidStreamState, StreamStopped};
        let is_stopped =
            matches!(self.quic.stream_capacity(stream), Err(StreamStopped(_) | InvalidStreamState(_)));
        if is_stopped && self.within.is_some() {
            self.let_go(stream);
        }
        is_stopped
    }

    /// This side opens `stream`, of which nothing was sent: to be called before [`Self::send`] and [`Self::set_urgency`], and again as often as it is before the
    /// stream has taken something.
    pub fn begin(&mut self, stream: u64) {
        if let Some(within) = &mut self.within {
            within.begin(stream);
        }
    }

    /// Queues what fits of `data` on `stream` without copying, taking that from its front, and says how much it
    /// was. `last` ends the stream if all of it fits. When not all of it does, the stream is named by
    /// [`Self::writable`] once there is room.
    #[inline]
    pub fn send(&mut self, stream: u64, data: &mut Bytes, last: bool) -> Result<usize, SendError> {
        match self.within.is_some() {
            true => self.send_within(stream, data, last),
            false => self.send_on(stream, data, last),
        }
    }

    /// Queues the head of a session's stream, and of `data` what the session may send.
    fn send_within(&mut self, stream: u64, data: &mut Bytes, last: bool) -> Result<usize, SendError> {
        self.send_head(stream)?;
        let credit = self.within.as_ref().map_or(usize::MAX, |within| within.data_left());
        let sent = match data.len() <= credit {
            true => self.send_on(stream, data, last),
            false => self.send_part(stream, data, credit),
        };
        if let Some(within) = &mut self.within {
            within.spend(sent.unwrap_or_default());
            if !data.is_empty() && within.data_left() == 0 {
                within.wait(stream);
            }
            if sent == Err(SendError::Over) || sent.is_ok() && last && data.is_empty() {
                within.end_side(stream, Side::Write);
            }
        }
        sent
    }

    /// Queues what is left of the head of a session's stream. An error: not all of it was taken.
    fn send_head(&mut self, stream: u64) -> Result<(), SendError> {
        let Some(within) = &self.within else { return Ok(()) };
        if within.is_over() {
            return Err(SendError::Over);
        }
        if within.denies(stream) {
            return Err(SendError::Blocked);
        }
        let Some(mut head) = within.head(stream) else { return Ok(()) };
        let sent = self.send_on(stream, &mut head, false);
        let Some(within) = &mut self.within else { return Ok(()) };
        if sent == Err(SendError::Over) {
            within.end_side(stream, Side::Write);
        }
        match within.advance_head(stream, sent?) {
            true => Ok(()),
            false => Err(SendError::Blocked),
        }
    }

    /// Queues `most` bytes of `data` at most.
    fn send_part(&mut self, stream: u64, data: &mut Bytes, most: usize) -> Result<usize, SendError> {
        let Some(capacity) = self.capacity_of(stream, 0) else { return self.send_on(stream, data, false) };
        // The engine takes all of that.
        self.send_on(stream, &mut data.split_to(capacity.min(most)), false)
    }

    /// As [`Self::send`], on any stream of the connection.
    #[inline]
    pub(crate) fn send_on(&mut self, stream: u64, data: &mut Bytes, last: bool) -> Result<usize, SendError> {
        if data.is_empty() {
            return if last { Ok(self.quic.stream_send(stream, &[], true)?) } else { Ok(0) };
        }
        let kept = data.clone();
        match self.quic.stream_send_zc(stream, std::mem::take(data), last) {
            Ok((taken, rest)) => {
                *data = rest.unwrap_or_default();
                Ok(taken)
            }
            Err(error) => {
                *data = kept;
                // For a stream that was stopped and released, the engine answers the same as for one without
                // room.
                match self.quic.stream_capacity(stream) {
                    Err(quiche::Error::InvalidStreamState(_)) if !data.is_empty() && stream & 3 == 0 => {
                        Err(SendError::Over)
                    }
                    _ => Err(error.into()),
                }
            }
        }
    }

    /// Changes the priority of `stream`.
    pub(crate) fn set_priority(&mut self, stream: u64, priority: Priority) {
        let urgency = priority.urgency.min(7) + URGENCY_OFFSET;
        // An error says that the stream is over.
        let _ = self.quic.stream_priority(stream, urgency, priority.incremental);
    }

    /// Has streams of lower `urgency` sent before this one; 127 is what streams have by themselves.
    pub fn set_urgency(&mut self, stream: u64, urgency: u8) {
        if self.within.as_ref().is_some_and(|within| within.denies(stream)) {
            return;
        }
        // An error says that the stream is over.
        let _ = self.quic.stream_priority(stream, urgency, false);
    }

    /// Resets our side of `stream` with an error code of the application's.
    pub fn reset_stream(&mut self, stream: u64, code: u64) {
        let code = match &mut self.within {
            Some(within) => {
                within.end_side(stream, Side::Write);
                within.code(code)
            }
            None => code,
        };
        self.reset_with(stream, code);
    }

    /// Asks the peer to send no more on `stream`.
    pub fn stop_stream(&mut self, stream: u64, code: u64) {
        let code = match &mut self.within {
            Some(within) => {
                within.end_side(stream, Side::Read);
                within.code(code)
            }
            None => code,
        };
        self.stop_with(stream, code);
    }

    /// Resets our side of `stream` with a code of the connection's.
    pub(crate) fn reset_with(&mut self, stream: u64, code: u64) {
        // An error says that the stream is over already.
        let _ = self.quic.stream_shutdown(stream, quiche::Shutdown::Write, code);
    }

    /// Asks the peer, with a code of the connection's, to send no more on `stream`.
    pub(crate) fn stop_with(&mut self, stream: u64, code: u64) {
        let _ = self.quic.stream_shutdown(stream, quiche::Shutdown::Read, code);
    }

    /// Ends a stream of the session that has a part of the connection. False: there is none any more.
    pub(crate) fn end_one_within(&mut self, code: u64) -> bool {
        let Some(within) = &mut self.within else { return false };
        let Some(stream) = within.next_leaving() else { return false };
        within.forget(stream);
        // Streams in one direction have one side.
        if stream & 2 == 0 || stream & 1 != 0 {
            self.reset_with(stream, code);
        }
        if stream & 2 == 0 || stream & 1 == 0 {
            self.stop_with(stream, code);
        }
        true
    }
}
