//! The requests of one connection.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use expressway_web::access_log::AccessLog;
use expressway_web::{Exchange, Handler, Notify, Protocol, RequestHead, Scheme, Wake};
use http::{HeaderMap, Method, StatusCode};

use super::held::Held;
use super::request::{self, Refusal, Request};
use super::stream::{Logged, Progress, RequestStream};
use super::{code, priority};
use crate::quic::engine::{CloseKind, Fields, Http, HttpEvent, Priority, Transport};
use crate::quic::stats::Stats;

/// Requests that a client may abandon beyond those it sees through, before its connection is closed: what
/// "rapid reset" attacks do by the million, and impatient seeking by the dozen.
const ABANDONED_ALLOWANCE: u32 = 500;

/// Stream IDs of requests are multiples of 4 within a window of the configured width, so multiplying
/// spreads them and no client can aim collisions.
#[derive(Default)]
struct StreamIdHasher(u64);

impl Hasher for StreamIdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _bytes: &[u8]) {}

    fn write_u64(&mut self, id: u64) {
        self.0 = (id >> 2).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

type Streams = HashMap<u64, Box<RequestStream>, BuildHasherDefault<StreamIdHasher>>;

/// What a session needs of its surroundings while it handles an event.
pub(crate) struct SessionContext<'a> {
    pub(crate) transport: &'a mut Transport,
    pub(crate) stats: &'a mut Stats,
    pub(crate) handler: &'a dyn Handler,
    pub(crate) log: Option<&'a AccessLog>,
    /// Told when exchanges can make progress.
    pub(crate) notify: &'a Arc<dyn Notify>,
    /// The wake token of stream 0; the stream's number is added.
    pub(crate) token: u64,
    pub(crate) now: Instant,
    pub(crate) remote: SocketAddr,
    /// Bytes of bodies that the connection may hold.
    pub(crate) window: usize,
    pub(crate) max_header_size: u64,
    pub(crate) io_mode: &'a str,
    pub(crate) worker: u16,
    /// For body data that nobody wants.
    pub(crate) scratch: &'a mut [u8],
}

/// HTTP/3 on one connection.
pub(crate) struct Session {
    http: Http,
    streams: Streams,
    held: Held,
    /// Streams that wait for the peer to acknowledge some of what the connection holds.
    starved: Vec<u64>,
    /// The first request stream beyond all that the client has used.
    next_stream: u64,
    /// Streams below it whose request has not come yet, as packets overtake each other; no more than a
    /// client may have open.
    late: Vec<u64>,
    /// Requests that ended early, less those that went through.
    abandoned: u32,
    /// After GOAWAY: requests from this stream on are rejected.
    refused_from: Option<u64>,
    goaway_pending: bool,
    cipher: &'static str,
}

impl Session {
    /// Opens HTTP/3 on an established connection.
    pub(crate) fn start(transport: &mut Transport) -> Result<Self, String> {
        Ok(Self {
            http: transport.start_http()?,
            streams: Streams::default(),
            held: Held::default(),
            starved: Vec::new(),
            next_stream: 0,
            late: Vec::new(),
            abandoned: 0,
            refused_from: None,
            goaway_pending: false,
            cipher: transport.cipher(),
        })
    }

    /// Requests under way.
    pub(crate) fn active(&self) -> usize {
        self.streams.len()
    }

    /// Bytes of bodies that the connection holds in memory.
    pub(crate) fn held(&self) -> usize {
        self.held.bytes()
    }

    /// The number within a wake token of `stream`.
    fn token(context: &SessionContext<'_>, stream: u64) -> u64 {
        context.token | (stream >> 2) & super::STREAM_MASK
    }

    /// Handles whatever the client sent.
    pub(crate) fn handle_readable(&mut self, context: &mut SessionContext<'_>) {
        loop {
            match self.http.poll(context.transport) {
                Ok(None) => return,
                Ok(Some(event)) => self.handle_event(context, event),
                Err(error) => {
                    tracing::debug!(remote = %context.remote, error, "the client broke HTTP/3");
                    context.stats.connections_protocol_error += 1;
                    return;
                }
            }
        }
    }

    fn handle_event(&mut self, context: &mut SessionContext<'_>, event: HttpEvent) {
        match event {
            HttpEvent::Headers { stream, fields, more } => {
                self.handle_headers(context, stream, &fields, more)
            }
            HttpEvent::Data(stream) => self.discard_body(context, stream),
            HttpEvent::Finished(stream) => self.handle_finished(context, stream),
            HttpEvent::Reset(stream) => {
                if self.is_new(stream) {
                    // Given up before its header section was complete.
                    context.transport.reset_stream(stream, code::REQUEST_CANCELLED);
                    self.count_abandoned(context);
                }
                if self.streams.contains_key(&stream) {
                    context.transport.reset_stream(stream, code::REQUEST_CANCELLED);
                    self.end(context, stream, Progress::Cancelled);
                }
            }
            HttpEvent::Priority(stream) => {
                if let Some(value) = self.http.take_priority(stream) {
                    let priority = priority::parse(&value);
                    if let Some(request) = self.streams.get_mut(&stream) {
                        request.priority = priority;
                    }
                    self.http.set_priority(context.transport, stream, priority);
                }
            }
        }
    }

    fn handle_headers(&mut self, context: &mut SessionContext<'_>, stream: u64, fields: &Fields, more: bool) {
        if let Some(request) = self.streams.get_mut(&stream) {
            request.request_ended |= !more;
            if let Err(reason) = request::check_trailers(fields.iter()) {
                self.refuse_malformed(context, stream, reason);
            }
            return;
        }
        if !self.is_new(stream) {
            // Trailers of a request that was answered already.
            return;
        }
        context.stats.requests += 1;
        if self.refused_from.is_some_and(|first| stream >= first) {
            context.stats.refused_goaway += 1;
            self.abort(context, stream, code::REQUEST_REJECTED);
            return;
        }
        let early = context.transport.is_in_early_data();
        match request::parse(fields.iter(), context.remote, context.max_header_size) {
            Ok(request) if early && !matches!(request.head.method, Method::GET | Method::HEAD) => {
                context.stats.refused_early_data += 1;
                self.answer(context, stream, StatusCode::TOO_EARLY, fields, more);
            }
            Ok(request) => self.start_request(context, stream, request, more),
            Err(Refusal::Answer(status)) => {
                if status == StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE {
                    context.stats.refused_header_size += 1;
                }
                self.answer(context, stream, status, fields, more);
            }
            Err(Refusal::Malformed(reason)) => self.refuse_malformed(context, stream, reason),
        }
    }

    /// True the first time it is asked about a stream.
    fn is_new(&mut self, stream: u64) -> bool {
        if stream >= self.next_stream {
            self.late.extend((self.next_stream..stream).step_by(4));
            self.next_stream = stream + 4;
            return true;
        }
        let found = self.late.iter().position(|late| *late == stream);
        found.map(|index| self.late.swap_remove(index)).is_some()
    }

    fn start_request(&mut self, context: &mut SessionContext<'_>, stream: u64, request: Request, more: bool) {
        let wake = Wake::new(Arc::clone(context.notify), Self::token(context, stream));
        let exchange = context.handler.start(&request.head, wake);
        let mut state = RequestStream::new(stream, exchange, request.priority, request.content_length);
        if context.log.is_some() {
            let logged = Logged { head: request.head, time: SystemTime::now(), start: context.now };
            state.logged = Some(Box::new(logged));
        }
        self.open(context, state, more);
    }

    /// Answers with an error of this layer's own. `fields` may be anything, so that only what can be read of
    /// them is logged.
    fn answer(
        &mut self,
        context: &mut SessionContext<'_>,
        stream: u64,
        status: StatusCode,
        fields: &Fields,
        more: bool,
    ) {
        let method = request::method(fields.iter());
        let exchange = Exchange::error(&method, status, HeaderMap::new());
        let mut state = RequestStream::new(stream, exchange, Priority::default(), None);
        if context.log.is_some() {
            let head = RequestHead {
                method,
                scheme: Scheme::Https,
                authority: request::text(fields.iter(), b":authority"),
                target: request::text(fields.iter(), b":path"),
                headers: HeaderMap::new(),
                protocol: Protocol::H3,
                remote: context.remote,
            };
            state.logged = Some(Box::new(Logged { head, time: SystemTime::now(), start: context.now }));
        }
        self.open(context, state, more);
    }

    fn open(&mut self, context: &mut SessionContext<'_>, mut state: RequestStream, more: bool) {
        let stream = state.id;
        state.request_ended = !more;
        context.stats.requests_active += 1;
        self.streams.insert(stream, Box::new(state));
        if !more && self.is_length_wrong(stream) {
            self.refuse_malformed(context, stream, "content-length without a body");
        } else {
            self.pump(context, stream);
        }
    }

    fn discard_body(&mut self, context: &mut SessionContext<'_>, stream: u64) {
        loop {
            let read = self.http.read_body(context.transport, stream, context.scratch);
            if read == 0 {
                return;
            }
            if let Some(request) = self.streams.get_mut(&stream) {
                request.received += read as u64;
                if request.expected.is_some_and(|expected| request.received > expected) {
                    self.refuse_malformed(context, stream, "more body than content-length");
                    return;
                }
            }
        }
    }

    fn handle_finished(&mut self, context: &mut SessionContext<'_>, stream: u64) {
        if self.is_new(stream) {
            // It ended before its header section did.
            context.stats.refused_malformed += 1;
            self.abort(context, stream, code::REQUEST_INCOMPLETE);
            self.count_abandoned(context);
            return;
        }
        if let Some(request) = self.streams.get_mut(&stream) {
            request.request_ended = true;
            if self.is_length_wrong(stream) {
                self.refuse_malformed(context, stream, "less body than content-length");
            }
        }
    }

    fn is_length_wrong(&self, stream: u64) -> bool {
        self.streams
            .get(&stream)
            .is_some_and(|request| request.expected.is_some_and(|expected| expected != request.received))
    }

    fn refuse_malformed(&mut self, context: &mut SessionContext<'_>, stream: u64, reason: &str) {
        tracing::debug!(remote = %context.remote, stream, reason, "malformed request");
        context.stats.refused_malformed += 1;
        self.abort(context, stream, code::MESSAGE_ERROR);
        if self.streams.contains_key(&stream) {
            self.end(context, stream, Progress::Cancelled);
        } else {
            self.count_abandoned(context);
        }
    }

    /// Ends both sides of a stream.
    fn abort(&mut self, context: &mut SessionContext<'_>, stream: u64, code: u64) {
        context.transport.stop_stream(stream, code);
        context.transport.reset_stream(stream, code);
        self.http.forget(context.transport, stream);
    }

    fn count_abandoned(&mut self, context: &mut SessionContext<'_>) {
        self.abandoned += 1;
        if self.abandoned == ABANDONED_ALLOWANCE {
            context.stats.refused_rapid_reset += 1;
            context.transport.close(
                CloseKind::Application,
                code::EXCESSIVE_LOAD,
                "too many abandoned requests",
            );
        }
    }

    /// An exchange can make progress; `number` is what its wake token carries.
    pub(crate) fn handle_wake(&mut self, context: &mut SessionContext<'_>, number: u64) {
        // The token holds the low bits of the request's number; it is among the latest requests.
        let next = self.next_stream >> 2;
        let mut request = next & !super::STREAM_MASK | number;
        if request >= next {
            request = request.wrapping_sub(super::STREAM_MASK + 1);
        }
        let stream = request << 2;
        if self.streams.contains_key(&stream) {
            self.pump(context, stream);
        } else {
            context.stats.wakeups_stale += 1;
        }
    }

    /// Gives streams what the transport and the send window now have room for.
    pub(crate) fn handle_writable(&mut self, context: &mut SessionContext<'_>) {
        if self.goaway_pending {
            self.goaway(context);
        }
        if !self.starved.is_empty() && self.held.bytes() < context.window {
            for stream in std::mem::take(&mut self.starved) {
                self.pump(context, stream);
            }
        }
        while let Some(stream) = context.transport.writable() {
            self.pump(context, stream);
        }
    }

    fn pump(&mut self, context: &mut SessionContext<'_>, stream: u64) {
        let Some(request) = self.streams.get_mut(&stream) else { return };
        match request.pump(&mut self.http, context.transport, &self.held, context.window) {
            Progress::Transport | Progress::Exchange => {}
            Progress::Memory => {
                if !self.starved.contains(&stream) {
                    self.starved.push(stream);
                }
            }
            progress => self.end(context, stream, progress),
        }
    }

    /// The response is over, one way or the other.
    fn end(&mut self, context: &mut SessionContext<'_>, stream: u64, progress: Progress) {
        let Some(request) = self.streams.remove(&stream) else { return };
        context.stats.requests_active -= 1;
        context.stats.response_body_bytes += request.body_sent;
        match progress {
            Progress::Complete => {
                context.stats.responses_complete += 1;
                self.abandoned = self.abandoned.saturating_sub(1);
                if !request.request_ended {
                    // The rest of the request is of no use (RFC 9114, section 4.1).
                    context.transport.stop_stream(stream, code::NO_ERROR);
                }
            }
            Progress::Failed => {
                context.stats.responses_failed += 1;
                self.abort(context, stream, code::INTERNAL_ERROR);
            }
            _ => {
                context.stats.responses_cancelled += 1;
                if !request.request_ended {
                    context.transport.stop_stream(stream, code::REQUEST_CANCELLED);
                }
                self.http.forget(context.transport, stream);
                self.count_abandoned(context);
            }
        }
        self.log(context, &request, progress == Progress::Complete);
        if self.streams.is_empty() {
            // An idle connection keeps no room for requests.
            self.streams = Streams::default();
            self.starved = Vec::new();
            self.late.shrink_to_fit();
        }
    }

    fn log(&self, context: &SessionContext<'_>, request: &RequestStream, complete: bool) {
        if let (Some(log), Some(logged)) = (context.log, &request.logged) {
            let mut record =
                RequestStream::record(logged, request.status, request.body_sent, complete, context.now);
            record.tls_cipher = self.cipher;
            record.io_mode = context.io_mode;
            record.worker = context.worker;
            log.log(&record);
        }
    }

    /// Tells the client to open no more requests; those that it has opened are finished.
    pub(crate) fn goaway(&mut self, context: &mut SessionContext<'_>) {
        let first = *self.refused_from.get_or_insert(self.next_stream);
        self.goaway_pending = !self.http.send_goaway(context.transport, first);
    }

    /// The connection has gone: counts and logs what was under way.
    pub(crate) fn abandon(&mut self, context: &mut SessionContext<'_>) {
        for (_, request) in std::mem::take(&mut self.streams) {
            context.stats.requests_active -= 1;
            context.stats.responses_cancelled += 1;
            context.stats.response_body_bytes += request.body_sent;
            self.log(context, &request, false);
        }
    }
}
