//! One request and its response on their way.

use std::task::Poll;
use std::time::{Instant, SystemTime};

use bytes::Bytes;
use expressway_web::access_log::Record;
use expressway_web::{BodyError, Exchange, RequestHead, ResponseHead};

use super::held::Held;
use crate::quic::engine::{Http, Priority, SendError, Transport};

/// The most that is fetched from an exchange at a time, in bytes: large enough that its cost is spread over
/// many packets, small enough that streams of a connection share its send window.
const MAX_CHUNK: usize = 256 << 10;

/// The least that is fetched at a time, so that a trickle of capacity does not become a trickle of calls.
const MIN_CHUNK: usize = 16 << 10;

/// Bodies longer than this go as one DATA frame announced up front; see [`Http::begin_data`].
const WHOLE_FRAME: u64 = 64 << 10;

/// Where a stream stands after it was pumped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// The transport takes no more for now and will name the stream.
    Transport,
    /// The exchange has no more for now and will wake it.
    Exchange,
    /// The connection holds as much as it may until the peer acknowledges some.
    Memory,
    /// The response went out to its end.
    Complete,
    /// The peer stopped it.
    Cancelled,
    /// The body failed; the stream must be reset.
    Failed,
}

/// What of the response comes next.
enum Phase {
    /// The head, once the exchange has it.
    Head(Option<ResponseHead>),
    /// The body, a DATA frame for what fits.
    Body,
    /// The body, within a DATA frame of which this many bytes are left.
    Frame(u64),
    /// The end of the stream.
    End,
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
}

impl RequestStream {
    pub(super) fn new(id: u64, exchange: Exchange, priority: Priority, expected: Option<u64>) -> Self {
        Self {
            id,
            exchange,
            phase: Phase::Head(None),
            chunk: Bytes::new(),
            priority,
            logged: None,
            status: 0,
            body_sent: 0,
            expected,
            received: 0,
            request_ended: false,
        }
    }

    /// Moves as much of the response as goes now. `window` bounds the bytes that the connection holds.
    pub(super) fn pump(
        &mut self,
        http: &mut Http,
        transport: &mut Transport,
        held: &Held,
        window: usize,
    ) -> Progress {
        loop {
            let step = match &mut self.phase {
                Phase::Head(_) => self.send_head(http, transport),
                Phase::Body | Phase::Frame(_) => match self.fill(transport, held, window) {
                    Ok(()) => self.send_body(http, transport),
                    Err(progress) => Err(progress),
                },
                Phase::End => Err(match http.finish(transport, self.id) {
                    Ok(()) => Progress::Complete,
                    Err(error) => stuck(error),
                }),
            };
            if let Err(progress) = step {
                return progress;
            }
        }
    }

    fn send_head(&mut self, http: &mut Http, transport: &mut Transport) -> Result<(), Progress> {
        let Phase::Head(waiting) = &mut self.phase else { return Ok(()) };
        let head = match waiting.take() {
            Some(head) => head,
            None => match self.exchange.poll_head() {
                Poll::Ready(head) => head,
                Poll::Pending => return Err(Progress::Exchange),
            },
        };
        let end = head.is_bodyless();
        let fields = head.headers.iter().map(|(name, value)| (name.as_str().as_bytes(), value.as_bytes()));
        let status = (b":status".as_slice(), head.status.as_str().as_bytes());
        let sent =
            http.send_head(transport, self.id, std::iter::once(status).chain(fields), self.priority, end);
        match sent {
            Ok(()) => {
                self.status = head.status.as_u16();
                self.phase = Phase::Body;
                if end { Err(Progress::Complete) } else { Ok(()) }
            }
            Err(error) => {
                self.phase = Phase::Head(Some(head));
                Err(stuck(error))
            }
        }
    }

    /// Makes sure that there is a chunk to send, or turns to the end of the stream.
    fn fill(&mut self, transport: &mut Transport, held: &Held, window: usize) -> Result<(), Progress> {
        if !self.chunk.is_empty() {
            return Ok(());
        }
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
                self.chunk = held.count(chunk);
                Ok(())
            }
            Poll::Ready(Some(Err(error))) => Err(self.fail(&error)),
            Poll::Ready(None) => match self.phase {
                Phase::Frame(left) if left > 0 => Err(self.fail(&BodyError::Changed)),
                _ => {
                    self.phase = Phase::End;
                    Ok(())
                }
            },
        }
    }

    fn send_body(&mut self, http: &mut Http, transport: &mut Transport) -> Result<(), Progress> {
        match &mut self.phase {
            Phase::Body => self.send_frame(http, transport),
            Phase::Frame(left) => {
                if self.chunk.len() as u64 > *left {
                    return Err(self.fail(&BodyError::Changed));
                }
                let capacity = transport.capacity(self.id).ok_or(Progress::Cancelled)?;
                if capacity == 0 {
                    return Err(Progress::Transport);
                }
                let piece = self.chunk.split_to(capacity.min(self.chunk.len()));
                let (taken, rest) = transport.send(self.id, piece).ok_or(Progress::Cancelled)?;
                self.body_sent += taken as u64;
                *left -= taken as u64;
                let ended = *left == 0;
                if ended {
                    self.phase = Phase::End;
                } else if !rest.is_empty() {
                    // The capacity was asked for just before, so this is only ever a matter of form.
                    self.chunk = [rest, std::mem::take(&mut self.chunk)].concat().into();
                    return Err(Progress::Transport);
                }
                Ok(())
            }
            Phase::Head(_) | Phase::End => Ok(()),
        }
    }

    /// Sends the chunk in a DATA frame of its own, or announces one for all that is left.
    fn send_frame(&mut self, http: &mut Http, transport: &mut Transport) -> Result<(), Progress> {
        let remaining = self.exchange.remaining();
        let left = remaining.map(|remaining| remaining + self.chunk.len() as u64);
        if let Some(left) = left.filter(|left| *left > WHOLE_FRAME) {
            http.begin_data(transport, self.id, left).map_err(stuck)?;
            self.phase = Phase::Frame(left);
            return Ok(());
        }
        let last = remaining == Some(0);
        let sent = http.send_data(transport, self.id, &mut self.chunk, last).map_err(stuck)?;
        self.body_sent += sent as u64;
        if !self.chunk.is_empty() {
            return Err(Progress::Transport);
        }
        if last { Err(Progress::Complete) } else { Ok(()) }
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

fn stuck(error: SendError) -> Progress {
    match error {
        SendError::Blocked => Progress::Transport,
        SendError::Over => Progress::Cancelled,
    }
}
