//! One request and its response in progress.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::task::Poll;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use expressway_h3::frame;
use expressway_netio::Slice;
use expressway_web::access_log::Record;
use expressway_web::memory::{Account, Charge};
use expressway_web::patience::Pace;
use expressway_web::{BodyError, Exchange, RequestHead, Upstream};

use super::blocked::{BlockedStreams, Position};
use super::response;
use super::upload::Upload;
use crate::quic::engine::{Priority, SendError, Transport};

/// The most that is fetched from an exchange at a time, in bytes: large enough that its cost is spread over
/// many packets, small enough that streams of a connection share its send window.
const MAX_CHUNK: usize = 256 << 10;

/// What the header of a DATA frame takes of a chunk's room at most, in bytes.
const FRAME_HEADER: usize = 5;

/// What a request takes in memory while it is answered, in bytes: its state here, in the handler and in the engine, as an
/// allocator counts it.
const REQUEST: usize = 3500;

/// Bodies up to this many bytes are copied behind their head, so that a response is one buffer and one call
/// of the engine; beyond it a copy costs more than a second buffer.
const SMALL: u64 = 4 << 10;

/// Bytes of an incremental response per turn, when several wait for room.
const TURN: u64 = 16 << 10;

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
    /// It could continue: the connection's share of the turn is used up.
    Turn,
    /// The peer took nothing of it for too long.
    TimedOut,
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
    /// Nothing: what is fetched is the last data.
    Fetched,
}

/// What the access log records about a request.
pub(super) struct Logged {
    pub(super) head: RequestHead,
    pub(super) time: SystemTime,
    pub(super) start: Instant,
    _charge: Charge,
}

impl Logged {
    /// Of a request that has come now.
    pub(super) fn new(head: RequestHead, now: Instant, account: &Account) -> Box<Self> {
        let charge = account.charge_request(head.footprint());
        Box::new(Self { head, time: SystemTime::now(), start: now, _charge: charge })
    }
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
    /// Where they go, if the exchange may want them.
    pub(super) upload: Option<Box<Upload>>,
    /// The client's side has ended.
    pub(super) request_ended: bool,
    /// Somebody follows it.
    pub(super) traced: bool,
    /// It is queued for the connection's turn.
    pub(super) woken: bool,
    /// Where it waits for room in the connection's window.
    pub(super) position: Option<Position>,
    /// What the transport had taken when it got that position.
    taken_at_position: u64,
    /// Bytes of `front` or `chunk` when it was fetched: all of them count as long as some are left.
    fetched: usize,
    /// Why its last pump came to an end.
    waits: Progress,
    /// Bytes that the transport has taken, and how fast, as sweeps see it.
    taken: u64,
    pace: Pace,
    /// What the request takes.
    _charge: Charge,
}

impl RequestStream {
    pub(super) fn new(
        id: u64,
        mut exchange: Exchange,
        priority: Priority,
        expected: Option<u64>,
        account: &Account,
    ) -> Self {
        exchange.charge_to(account);
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
            upload: None,
            request_ended: false,
            traced: false,
            woken: false,
            position: None,
            taken_at_position: 0,
            fetched: 0,
            waits: Progress::Exchange,
            taken: 0,
            pace: Pace::default(),
            _charge: account.charge_request(REQUEST),
        }
    }

    /// Moves as much of the response as goes now and as `account` has room for; `slice` bounds the chunks that are fetched.
    pub(super) fn pump(
        &mut self,
        transport: &mut Transport,
        account: &Account,
        slice: &mut Slice,
    ) -> Progress {
        let progress = loop {
            let step = if self.front.is_empty() && self.chunk.is_empty() {
                self.fetch(transport, account)
            } else {
                Ok(())
            };
            if let Err(progress) = step.and_then(|()| self.send(transport)) {
                break progress;
            }
            if slice.spend() {
                break Progress::Turn;
            }
        };
        self.waits = progress;
        if matches!(progress, Progress::Transport | Progress::Memory) {
            self.exchange.rest();
        }
        progress
    }

    /// Memory counted for fetched data that the transport has not completely accepted.
    pub(super) fn fetched(&self) -> usize {
        if self.front.is_empty() && self.chunk.is_empty() { 0 } else { self.fetched }
    }

    /// It has sent what it had, and needs room in the connection's window for more.
    pub(super) fn wants_room(&self) -> bool {
        self.front.is_empty()
            && self.chunk.is_empty()
            && matches!(self.phase, Phase::Chunks | Phase::Frame(_))
    }

    /// Puts it last among those of its urgency that wait for room.
    pub(super) fn wait_for_room(&mut self, blocked: &mut BlockedStreams) {
        self.position = Some(blocked.add(self.priority.urgency, self.id));
        self.taken_at_position = self.taken;
    }

    /// While it had its position it got as much as one of several gets before the next is asked. Being asked when others
    /// have taken the room is no turn.
    pub(super) fn has_had_its_turn(&self) -> bool {
        self.taken - self.taken_at_position >= TURN
    }

    /// Bytes that the transport has taken.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    /// For a sweep: since when the client has sent less than `rate` bytes a second of a body that the exchange waits for.
    pub(super) fn owes_body_since(&mut self, now: Instant, rate: u64) -> Option<Instant> {
        let owed = self.expected.map_or(u64::MAX, |expected| expected.saturating_sub(self.received));
        self.upload.as_mut()?.owed_since(now, (self.received, owed), rate)
    }

    /// What a cache did.
    pub(super) fn cache(&self) -> &'static str {
        self.exchange.cache()
    }

    /// The server that answered, if it was another one.
    pub(super) fn upstream(&self) -> Option<Upstream> {
        self.exchange.upstream()
    }

    /// It waits for the exchange.
    pub(super) fn waits_for_exchange(&self) -> bool {
        self.waits == Progress::Exchange
    }

    /// For a sweep: since when the client has read less than `rate` bytes a second of the data available to it. The
    /// block it reads from is then released. If `excused`, others may have had the room that it waits for.
    pub(super) fn stalled_since(&mut self, now: Instant, excused: bool, rate: u64) -> Option<Instant> {
        if excused || self.waits != Progress::Transport {
            self.pace.forget();
            return None;
        }
        let since = self.pace.slow_since(now, self.taken, u64::MAX, rate)?;
        self.exchange.release();
        Some(since)
    }

    /// Makes sure that there is something to send, if only the end of the stream.
    fn fetch(&mut self, transport: &mut Transport, account: &Account) -> Result<(), Progress> {
        match self.phase {
            Phase::Head => self.fetch_head(transport, account),
            Phase::Chunks | Phase::Frame(_) => self.fetch_body(transport, account),
            Phase::Fetched => Ok(()),
        }
    }

    fn fetch_head(&mut self, transport: &mut Transport, account: &Account) -> Result<(), Progress> {
        let polled = self.exchange.poll_head();
        let is_good = matches!(&polled, Poll::Ready(head) if head.status.is_success());
        let continues = self.upload.as_mut().is_some_and(|upload| upload.continues(is_good));
        let Poll::Ready(head) = polled else {
            if !continues {
                return Err(Progress::Exchange);
            }
            let out = response::go_on();
            self.fetched = out.len();
            self.front = account.own(out);
            return Ok(());
        };
        self.status = head.status.as_u16();
        let length = if head.is_bodyless() { Some(0) } else { self.exchange.remaining() };
        let small = length.filter(|length| *length <= SMALL).unwrap_or(0) as usize;
        let mut out = response::head(&head, small);
        if continues {
            out.splice(..0, response::go_on());
        }
        self.phase = match length {
            Some(0) => Phase::Fetched,
            Some(length) => {
                frame::write_header(frame::DATA, length, &mut out);
                Phase::Frame(length)
            }
            None => Phase::Chunks,
        };
        if small > 0 && out.len() + small <= account.room() {
            let head = out.len();
            match self.exchange.poll_copy(small, &mut out) {
                Poll::Ready(Some(Ok(()))) => {
                    self.copied = out.len() - head;
                    self.take_in(self.copied)?;
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
        self.fetched = out.len();
        self.front = account.own(out);
        Ok(())
    }

    fn fetch_body(&mut self, transport: &mut Transport, account: &Account) -> Result<(), Progress> {
        let capacity = transport.capacity(self.id).ok_or(Progress::Cancelled)?;
        if capacity == 0 {
            return Err(Progress::Transport);
        }
        let room = account.room();
        if room == 0 {
            return Err(Progress::Memory);
        }
        // No more than the transport accepts: data left here may belong to a stream that the peer has paused
        // indefinitely, whose share of the window the others need.
        let header = if self.phase == Phase::Chunks { FRAME_HEADER } else { 0 };
        let most = capacity.saturating_sub(header).clamp(1, MAX_CHUNK);
        match self.exchange.poll_body(room.min(most)) {
            Poll::Pending => Err(Progress::Exchange),
            Poll::Ready(Some(Ok(chunk))) => {
                self.take_in(chunk.len())?;
                self.fetched = chunk.len();
                self.chunk = chunk;
                Ok(())
            }
            Poll::Ready(Some(Err(error))) => Err(self.fail(&error)),
            Poll::Ready(None) if self.phase == Phase::Chunks => {
                self.phase = Phase::Fetched;
                if let Some(trailers) = self.exchange.take_trailers() {
                    let out = response::trailers(&trailers);
                    self.fetched = out.len();
                    self.front = account.own(out);
                }
                Ok(())
            }
            Poll::Ready(None) => Err(self.fail(&BodyError::Changed)),
        }
    }

    /// Accounts for a chunk that the exchange gave.
    fn take_in(&mut self, length: usize) -> Result<(), Progress> {
        match self.phase {
            Phase::Frame(left) => {
                let left = left.checked_sub(length as u64);
                let left = left.ok_or_else(|| self.fail(&BodyError::Changed))?;
                self.phase = if left == 0 { Phase::Fetched } else { Phase::Frame(left) };
            }
            _ => {
                let mut header = Vec::with_capacity(16);
                frame::write_header(frame::DATA, length as u64, &mut header);
                self.front = header.into();
                if self.exchange.remaining() == Some(0) {
                    self.phase = Phase::Fetched;
                }
            }
        }
        Ok(())
    }

    /// Passes on what was fetched, and the end of the stream with the last of it.
    fn send(&mut self, transport: &mut Transport) -> Result<(), Progress> {
        let is_last = self.phase == Phase::Fetched;
        let has_chunk = !self.chunk.is_empty();
        if !self.front.is_empty() || !has_chunk {
            self.taken +=
                transport.send(self.id, &mut self.front, is_last && !has_chunk).map_err(stuck)? as u64;
            let copied = self.copied.min(self.front.len());
            self.body_sent += (self.copied - copied) as u64;
            self.copied = copied;
            if !self.front.is_empty() {
                return Err(Progress::Transport);
            }
        }
        if has_chunk {
            let sent = transport.send(self.id, &mut self.chunk, is_last).map_err(stuck)? as u64;
            self.taken += sent;
            self.body_sent += sent;
            if !self.chunk.is_empty() {
                return Err(Progress::Transport);
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
            client_subject: logged.head.client_subject.as_deref().unwrap_or(""),
            io_mode: "",
            cmcd: None,
            worker: 0,
            cache: "",
            upstream: "",
            upstream_status: 0,
            upstream_time: Duration::ZERO,
        }
    }
}

fn stuck(error: SendError) -> Progress {
    match error {
        SendError::Blocked => Progress::Transport,
        SendError::Over => Progress::Cancelled,
    }
}
