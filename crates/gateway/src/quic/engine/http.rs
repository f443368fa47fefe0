//! HTTP/3 framing on a transport (RFC 9114, QPACK with the static table only).

use bytes::Bytes;
use quiche::h3::NameValue;

use super::{Buffers, Transport};

/// Added to an urgency of RFC 9218 (0 to 7) to make the engine's stream priority; what the engine itself adds
/// in `send_response_with_priority`, so that urgency 3 is its default of 127.
const URGENCY_OFFSET: u8 = 124;

/// DATA frame type and the longest length (RFC 9114, section 7.2.1).
const DATA_HEADER: usize = 1 + 8;

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

/// Received header fields.
pub(crate) struct Fields(Vec<quiche::h3::Header>);

impl Fields {
    /// Names and values in the order received.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.0.iter().map(|field| (field.name(), field.value()))
    }
}

/// What came in.
pub(crate) enum HttpEvent {
    /// A header section; `more` says whether the client's side goes on.
    Headers {
        /// Stream.
        stream: u64,
        /// The fields.
        fields: Fields,
        /// More frames follow.
        more: bool,
    },
    /// Body data waits to be read.
    Data(u64),
    /// The client's side of the stream has ended.
    Finished(u64),
    /// The client reset its side of the stream.
    Reset(u64),
    /// The client asks for another priority; take it by [`Http::take_priority`].
    Priority(u64),
}

/// Why something was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendError {
    /// No room now; the stream is named by [`Transport::writable`] when there is.
    Blocked,
    /// The stream is over: stopped by the peer, or the connection is closing.
    Over,
}

fn send_error(error: quiche::h3::Error) -> SendError {
    match error {
        quiche::h3::Error::Done | quiche::h3::Error::StreamBlocked => SendError::Blocked,
        _ => SendError::Over,
    }
}

/// HTTP/3 state of one connection.
pub(crate) struct Http(quiche::h3::Connection);

impl Http {
    pub(super) fn new(connection: quiche::h3::Connection) -> Self {
        Self(connection)
    }

    /// The next event. `Err`: the peer broke HTTP/3 and the connection is closing.
    pub(crate) fn poll(&mut self, transport: &mut Transport) -> Result<Option<HttpEvent>, String> {
        loop {
            let (stream, event) = match self.0.poll(&mut transport.quic) {
                Ok(event) => event,
                Err(quiche::h3::Error::Done) => return Ok(None),
                Err(error) => return Err(error.to_string()),
            };
            return Ok(Some(match event {
                quiche::h3::Event::Headers { list, more_frames } => {
                    HttpEvent::Headers { stream, fields: Fields(list), more: more_frames }
                }
                quiche::h3::Event::Data => HttpEvent::Data(stream),
                quiche::h3::Event::Finished => HttpEvent::Finished(stream),
                quiche::h3::Event::Reset(_) => HttpEvent::Reset(stream),
                quiche::h3::Event::PriorityUpdate => HttpEvent::Priority(stream),
                // A client's GOAWAY concerns pushes, and this server never pushes.
                quiche::h3::Event::GoAway => continue,
            }));
        }
    }

    /// Reads body data into `scratch`; 0 when there is none left for now.
    pub(crate) fn read_body(&mut self, transport: &mut Transport, stream: u64, scratch: &mut [u8]) -> usize {
        self.0.recv_body(&mut transport.quic, stream, scratch).unwrap_or(0)
    }

    /// The last PRIORITY_UPDATE of `stream` (RFC 9218, section 7), as received.
    pub(crate) fn take_priority(&mut self, stream: u64) -> Option<Vec<u8>> {
        self.0.take_last_priority_update(stream).ok()
    }

    /// Changes the priority of `stream`.
    pub(crate) fn set_priority(&mut self, transport: &mut Transport, stream: u64, priority: Priority) {
        let urgency = priority.urgency.min(7) + URGENCY_OFFSET;
        // An error says that the stream is over.
        let _ = transport.quic.stream_priority(stream, urgency, priority.incremental);
    }

    /// Sends a response head; `end` ends the response with it.
    pub(crate) fn send_head<'a>(
        &mut self,
        transport: &mut Transport,
        stream: u64,
        fields: impl Iterator<Item = (&'a [u8], &'a [u8])>,
        priority: Priority,
        end: bool,
    ) -> Result<(), SendError> {
        let mut list: Vec<quiche::h3::HeaderRef<'_>> = Vec::with_capacity(16);
        list.extend(fields.map(|(name, value)| quiche::h3::HeaderRef::new(name, value)));
        let priority = quiche::h3::Priority::new(priority.urgency.min(7), priority.incremental);
        self.0
            .send_response_with_priority(&mut transport.quic, stream, &list, &priority, end)
            .map_err(send_error)
    }

    /// Sends a whole DATA frame of what fits of `chunk`, taking that from its front. `last` ends the response
    /// if all of it fits.
    pub(crate) fn send_data(
        &mut self,
        transport: &mut Transport,
        stream: u64,
        chunk: &mut Bytes,
        last: bool,
    ) -> Result<usize, SendError> {
        let length = chunk.len();
        let sent = self.0.send_body_zc(&mut transport.quic, stream, chunk, last).map_err(send_error)?;
        // The engine leaves the rest in place after a partial write, but the whole after a complete one.
        if sent == length {
            chunk.clear();
        }
        Ok(sent)
    }

    /// Announces one DATA frame of `length` bytes, whose payload then goes straight to the stream by
    /// [`Transport::send`]. A frame a call, as [`Self::send_data`] makes them, costs the engine a small
    /// allocation and a queue entry for every few kilobytes that the congestion window lets through.
    pub(crate) fn begin_data(
        &mut self,
        transport: &mut Transport,
        stream: u64,
        length: u64,
    ) -> Result<(), SendError> {
        match transport.quic.stream_capacity(stream) {
            Ok(capacity) if capacity >= DATA_HEADER => {}
            Ok(_) => {
                let _ = transport.quic.stream_writable(stream, DATA_HEADER);
                return Err(SendError::Blocked);
            }
            Err(_) => return Err(SendError::Over),
        }
        let mut header = [0u8; DATA_HEADER];
        // An 8-byte varint (RFC 9000, section 16) holds any length.
        header[1..].copy_from_slice(&(length | 0b11 << 62).to_be_bytes());
        match transport.quic.stream_send(stream, &header, false) {
            Ok(DATA_HEADER) => Ok(()),
            _ => Err(SendError::Over),
        }
    }

    /// Ends a response whose body went by [`Self::begin_data`]: an empty DATA frame with FIN, so that the
    /// engine's own state of the stream ends too.
    pub(crate) fn finish(&mut self, transport: &mut Transport, stream: u64) -> Result<(), SendError> {
        self.0.send_body(&mut transport.quic, stream, b"", true).map(|_| ()).map_err(send_error)
    }

    /// Drops the framing state of a stream that was reset from this side, as far as the engine can.
    pub(crate) fn forget(&mut self, transport: &mut Transport, stream: u64) {
        // On a stream that is over in both directions this fails, and removes the state.
        let _ = self.0.send_body::<Buffers>(&mut transport.quic, stream, b"", true);
    }

    /// Announces that requests from `first_refused` on will not be processed (RFC 9114, section 5.2). False
    /// if it must be tried again because there is no room.
    pub(crate) fn send_goaway(&mut self, transport: &mut Transport, first_refused: u64) -> bool {
        !matches!(
            self.0.send_goaway(&mut transport.quic, first_refused),
            Err(quiche::h3::Error::StreamBlocked)
        )
    }
}
