//! One request and its response on their way.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::task::Poll;
use std::time::{Instant, SystemTime};

use bytes::{Buf, Bytes};
use expressway_h3::frame;
use expressway_netio::Slice;
use expressway_web::access_log::Record;
use expressway_web::{BodyError, Exchange, RequestHead};

use super::held::Held;
use super::response;
use super::starved::Place;
use crate::quic::engine::{Priority, SendError, Transport};

/// The most that is fetched from an exchange at a time, in bytes: large enough that its cost is spread over
/// many packets, small enough that streams of a connection share its send window.
const MAX_CHUNK: usize = 256 << 10;

/// The least that is fetched at a time, so that a trickle of capacity does not become a trickle of calls.
const MIN_CHUNK: usize = 16 << 10;

/// Bodies up to this many bytes are copied behind their head, so that a response is one buffer and one call
/// of the engine; beyond it a copy costs more than a second buffer.
const SMALL: u64 = 4 << 10;

/// Stream IDs of requests are multiples of 4 within a window of the configured width, so multiplying
/// spreads them and no client can aim collisions.
#[derive(Default)]
pub(super) struct StreamIdHasher(u64);

impl Hasher for StreamIdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _bytes: &[u8]) {}

    fn write_u64(&mut self, id: u64) {
        self.0 = (id >> 2).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// What is kept by stream ID.
pub(super) type StreamMap<T> = HashMap<u64, Box<T>, BuildHasherDefault<StreamIdHasher>>;

/// Where a stream stands after it was pumped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// The transport takes no more for now and will name the stream.
    Transport,
    /// The exchange has no more for now and will wake it.
    Exchange,
    /// The connection holds as much as it may until the peer acknowledges some.
    Memory,
    /// It could go on: the connection's part of the turn is over.
    Turn,
    /// The response went out to its end.
    Complete,
    /// The peer stopped it.
    Cancelled,
    /// The body failed; the stream must be reset.
    Failed,
}

/// What of the response comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The head, once the exchange has it.
    Head,
    /// A body of unknown length, a DATA frame for each chunk.
    Chunks,
    /// A body of known length within its one DATA frame, of which this many bytes are still to be fetched.
    Frame(u64),
    /// Nothing: what is fetched is the last.
    Fetched,
}

/// What the access log wants to know of a request.
pub(super) struct Logged {
    pub(super) head: RequestHead,
    pub(super) time: SystemTime,
    pub(super) start: Instant,
}

/// State of a request stream.
pub(super) struct RequestStream {
    pub(super) id: u64,
    exchange: Exchange,
    phase: Phase,
    /// Framing, with a small body perhaps, that goes before the chunk.
    front: Bytes,
    /// Bytes at the end of `front` that are body.
    copied: usize,
    /// Fetched and not yet taken by the transport.
    chunk: Bytes,
    pub(super) priority: Priority,
    pub(super) logged: Option<Box<Logged>>,
    pub(super) status: u16,
    pub(super) body_sent: u64,
    /// Body bytes that the client announced, and those it sent.
    pub(super) expected: Option<u64>,
    pub(super) received: u64,
    /// The client's side has ended.
    pub(super) request_ended: bool,
    /// It is among those that go on in the connection's turn.
    pub(super) woken: bool,
    /// Where it waits for room in the connection's window.
    pub(super) place: Option<Place>,
}

impl RequestStream {
    pub(super) fn new(id: u64, exchange: Exchange, priority: Priority, expected: Option<u64>) -> Self {
        Self {
            id,
            exchange,
            phase: Phase::Head,
            front: Bytes::new(),
            copied: 0,
            chunk: Bytes::new(),
            priority,
            logged: None,
            status: 0,
            body_sent: 0,
            expected,
            received: 0,
            request_ended: false,
            woken: false,
            place: None,
        }
    }

    /// Moves as much of the response as goes now. `window` bounds the bytes that the connection holds, `slice` the chunks
    /// that are fetched.
    pub(super) fn pump(
        &mut self,
        transport: &mut Transport,
        held: &Held,
        window: usize,
        slice: &mut Slice,
    ) -> Progress {
        loop {
            let step = if self.front.is_empty() && self.chunk.is_empty() {
                self.fetch(transport, held, window)
            } else {
                Ok(())
            };
            if let Err(progress) = step.and_then(|()| self.send(transport, held, window)) {
                return progress;
            }
            if slice.spend() {
                return Progress::Turn;
            }
        }
    }

    /// Makes sure that there is something to send, if only the end of the stream.
    fn fetch(&mut self, transport: &mut Transport, held: &Held, window: usize) -> Result<(), Progress> {
        match self.phase {
            Phase::Head => self.fetch_head(transport, held, window),
            Phase::Chunks | Phase::Frame(_) => self.fetch_body(transport, held, window),
            Phase::Fetched => Ok(()),
        }
    }

    fn fetch_head(&mut self, transport: &mut Transport, held: &Held, window: usize) -> Result<(), Progress> {
        let Poll::Ready(head) = self.exchange.poll_head() else { return Err(Progress::Exchange) };
        self.status = head.status.as_u16();
        let length = if head.is_bodyless() { Some(0) } else { self.exchange.remaining() };
        let small = length.filter(|length| *length <= SMALL).unwrap_or(0) as usize;
        let mut out = response::head(&head, small);
        self.phase = match length {
            Some(0) => Phase::Fetched,
            Some(length) => {
                frame::write_header(frame::DATA, length, &mut out);
                Phase::Frame(length)
            }
            None => Phase::Chunks,
        };
        let copies = small > 0 && held.bytes() + out.len() + small <= window;
        if copies {
            match self.exchange.poll_body(small) {
                Poll::Ready(Some(Ok(chunk))) => {
                    self.take_in(&chunk)?;
                    out.extend_from_slice(&chunk);
                    self.copied = chunk.len();
                }
                Poll::Ready(Some(Err(error))) => return Err(self.fail(&error)),
                Poll::Ready(None) => return Err(self.fail(&BodyError::Changed)),
                Poll::Pending => {}
            }
        }
        // The engine's own default takes turns with others, which makes no difference to a response that is
        // handed over whole.
        if self.phase != Phase::Fetched || self.priority.urgency != Priority::default().urgency {
            transport.set_priority(self.id, self.priority);
        }
        self.front = out.into();
        Ok(())
    }

    fn fetch_body(&mut self, transport: &mut Transport, held: &Held, window: usize) -> Result<(), Progress> {
        let capacity = transport.capacity(self.id).ok_or(Progress::Cancelled)?;
        if capacity == 0 {
            return Err(Progress::Transport);
        }
        let room = window.saturating_sub(held.bytes());
        if room == 0 {
            return Err(Progress::Memory);
        }
        match self.exchange.poll_body(room.min(capacity.clamp(MIN_CHUNK, MAX_CHUNK))) {
            Poll::Pending => Err(Progress::Exchange),
            Poll::Ready(Some(Ok(chunk))) => {
                self.take_in(&chunk)?;
                self.chunk = chunk;
                Ok(())
            }
            Poll::Ready(Some(Err(error))) => Err(self.fail(&error)),
            Poll::Ready(None) if self.phase == Phase::Chunks => {
                self.phase = Phase::Fetched;
                Ok(())
            }
            Poll::Ready(None) => Err(self.fail(&BodyError::Changed)),
        }
    }

    /// Accounts for a chunk that the exchange gave.
    fn take_in(&mut self, chunk: &Bytes) -> Result<(), Progress> {
        match self.phase {
            Phase::Frame(left) => {
                let left = left.checked_sub(chunk.len() as u64);
                let left = left.ok_or_else(|| self.fail(&BodyError::Changed))?;
                self.phase = if left == 0 { Phase::Fetched } else { Phase::Frame(left) };
            }
            _ => {
                let mut header = Vec::with_capacity(16);
                frame::write_header(frame::DATA, chunk.len() as u64, &mut header);
                self.front = header.into();
                if self.exchange.remaining() == Some(0) {
                    self.phase = Phase::Fetched;
                }
            }
        }
        Ok(())
    }

    /// Hands over what was fetched, and the end of the stream with the last of it.
    fn send(&mut self, transport: &mut Transport, held: &Held, window: usize) -> Result<(), Progress> {
        let is_last = self.phase == Phase::Fetched;
        let has_chunk = !self.chunk.is_empty();
        if !self.front.is_empty() || !has_chunk {
            let last = is_last && !has_chunk;
            // A connection has no more heads than requests; what counts towards its window is bodies.
            if self.copied > 0 {
                hand_over(transport, held, self.id, &mut self.front, last)?;
            } else {
                transport.send(self.id, &mut self.front, last).map_err(stuck)?;
            }
            let copied = self.copied.min(self.front.len());
            self.body_sent += (self.copied - copied) as u64;
            self.copied = copied;
            if !self.front.is_empty() {
                return Err(Progress::Transport);
            }
        }
        if has_chunk {
            // All of it, where it was fetched just now.
            let room = window.saturating_sub(held.bytes()).min(self.chunk.len());
            if room == 0 {
                return Err(Progress::Memory);
            }
            let mut part = self.chunk.slice(..room);
            let is_rest = room == self.chunk.len();
            let sent = hand_over(transport, held, self.id, &mut part, is_last && is_rest)?;
            self.body_sent += sent as u64;
            self.chunk.advance(sent);
            if !self.chunk.is_empty() {
                return Err(if part.is_empty() { Progress::Memory } else { Progress::Transport });
            }
        }
        if is_last { Err(Progress::Complete) } else { Ok(()) }
    }

    fn fail(&mut self, error: &BodyError) -> Progress {
        tracing::debug!(stream = self.id, %error, "a response body failed");
        Progress::Failed
    }

    /// The line that the access log writes of it.
    pub(super) fn record<'a>(
        logged: &'a Logged,
        status: u16,
        body_bytes: u64,
        complete: bool,
        now: Instant,
    ) -> Record<'a> {
        let header = |name: http::HeaderName| {
            logged.head.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("")
        };
        Record {
            time: logged.time,
            duration: now.duration_since(logged.start),
            remote: logged.head.remote,
            method: logged.head.method.as_str(),
            scheme: logged.head.scheme,
            host: &logged.head.authority,
            target: &logged.head.target,
            protocol: logged.head.protocol,
            status,
            body_bytes,
            complete,
            range: header(http::header::RANGE),
            referer: header(http::header::REFERER),
            user_agent: header(http::header::USER_AGENT),
            tls_version: "TLSv1.3",
            tls_cipher: "",
            io_mode: "",
            worker: 0,
        }
    }
}

/// Hands over what fits of `bytes`, taking that from their front, and says how much it was. That counts as held until the
/// peer has acknowledged it. What was not taken does not count: it may be a stream that the peer has paused, for as long as
/// it likes, whose share of the window the others need.
fn hand_over(
    transport: &mut Transport,
    held: &Held,
    stream: u64,
    bytes: &mut Bytes,
    last: bool,
) -> Result<usize, Progress> {
    let capacity = transport.capacity(stream).ok_or(Progress::Cancelled)?;
    if capacity == 0 {
        return Err(Progress::Transport);
    }
    // All are given, so that the stream is named again when there is room for what was not taken.
    let mut given = held.count(bytes.clone(), capacity.min(bytes.len()));
    let sent = transport.send(stream, &mut given, last).map_err(stuck)?;
    bytes.advance(sent);
    Ok(sent)
}

fn stuck(error: SendError) -> Progress {
    match error {
        SendError::Blocked => Progress::Transport,
        SendError::Over => Progress::Cancelled,
    }
}
