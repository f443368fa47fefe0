//! The streams of a connection.

use std::time::Instant;

use bytes::Bytes;

use super::Transport;

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
        self.quic.is_readable()
    }

    /// The next stream with something to read, once: it is named again only after all of it was read.
    #[inline]
    pub fn readable(&mut self) -> Option<u64> {
        self.quic.stream_readable_next()
    }

    /// Reads `stream` into `out`.
    #[inline]
    pub fn receive(&mut self, stream: u64, out: &mut [u8]) -> Received {
        match self.quic.stream_recv(stream, out) {
            Ok((length, last)) => Received::Data { length, last },
            Err(quiche::Error::StreamReset(_)) => Received::Reset,
            Err(_) => Received::Nothing,
        }
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
        self.quic.stream_writable_next()
    }

    /// Streams that the peer lets us open now: in both directions, or in one.
    pub fn streams_left(&self, is_bidirectional: bool) -> u64 {
        match is_bidirectional {
            true => self.quic.peer_streams_left_bidi(),
            false => self.quic.peer_streams_left_uni(),
        }
    }

    /// [`Self::writable`] would return a stream.
    pub fn has_writable(&self) -> bool {
        self.quic.writable().len() > 0
    }

    /// Bytes that `stream` currently accepts, within flow control and the congestion window; after 0 the
    /// stream is returned by [`Self::writable`] once there is room. `None`: the peer has stopped it.
    pub fn capacity(&mut self, stream: u64) -> Option<usize> {
        let capacity = self.quic.stream_capacity(stream).ok()?;
        if capacity == 0 {
            let _ = self.quic.stream_writable(stream, 1);
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
        matches!(self.quic.stream_capacity(stream), Err(StreamStopped(_) | InvalidStreamState(_)))
    }

    /// Queues what fits of `data` on `stream` without copying, taking that from its front, and says how much it
    /// was. `last` ends the stream if all of it fits. When not all of it does, the stream is named by
    /// [`Self::writable`] once there is room.
    #[inline]
    pub fn send(&mut self, stream: u64, data: &mut Bytes, last: bool) -> Result<usize, SendError> {
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
        // An error says that the stream is over.
        let _ = self.quic.stream_priority(stream, urgency, false);
    }

    /// Resets our side of `stream` with an error code of the application's.
    pub fn reset_stream(&mut self, stream: u64, code: u64) {
        // An error says that the stream is over already.
        let _ = self.quic.stream_shutdown(stream, quiche::Shutdown::Write, code);
    }

    /// Asks the peer to send no more on `stream`.
    pub fn stop_stream(&mut self, stream: u64, code: u64) {
        let _ = self.quic.stream_shutdown(stream, quiche::Shutdown::Read, code);
    }
}
