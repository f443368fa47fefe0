//! The requests of one connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use expressway_h3::qpack::Fields;
use expressway_h3::{Error, RequestEvent, Scope};
use expressway_web::access_log::AccessLog;
use expressway_web::{Exchange, Handler, Notify, Protocol, RequestHead, Scheme, Wake};
use http::{HeaderMap, Method, StatusCode};

use super::code;
use super::held::Held;
use super::incoming::Incoming;
use super::peer::Peer;
use super::request::{self, Refusal, Request};
use super::stream::{Logged, Progress, RequestStream, StreamMap};
use crate::quic::engine::{CloseKind, Priority, Received, Transport};
use crate::quic::stats::Stats;

/// Requests that a client may abandon beyond those it sees through, before its connection is closed: what
/// "rapid reset" attacks do by the million, and impatient seeking by the dozen.
const ABANDONED_ALLOWANCE: u32 = 500;

/// Priorities that a connection keeps for requests that have not come yet (RFC 9218, section 7.1); of more,
/// the last are not kept, since a priority is advice.
const MAX_EARLY_PRIORITIES: usize = 128;

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
    pub(crate) max_requests: u64,
    /// For what is read off streams.
    pub(crate) scratch: &'a mut [u8],
    /// For strings decoded from header sections.
    pub(crate) strings: &'a mut Vec<u8>,
}

/// HTTP/3 on one connection.
pub(crate) struct Session {
    peer: Peer,
    incoming: Incoming,
    streams: StreamMap<RequestStream>,
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
    /// Priorities of requests that have not come yet.
    early_priorities: Vec<(u64, Priority)>,
    cipher: &'static str,
}

impl Session {
    /// Opens HTTP/3 on a connection: its SETTINGS go out before all else.
    pub(crate) fn start(context: &mut SessionContext<'_>) -> Self {
        let mut seed = [0; 4];
        // Reserved numbers need no secrecy, so a generator that fails costs only their variety.
        let _ = boring::rand::rand_bytes(&mut seed);
        let mut session = Self {
            peer: Peer::new(max_section(context), u32::from_ne_bytes(seed)),
            incoming: Incoming::default(),
            streams: StreamMap::default(),
            held: Held::default(),
            starved: Vec::new(),
            next_stream: 0,
            late: Vec::new(),
            abandoned: 0,
            refused_from: None,
            early_priorities: Vec::new(),
            cipher: context.transport.cipher(),
        };
        session.flush(context);
        session
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
        let scratch = std::mem::take(&mut context.scratch);
        while !context.transport.is_ending()
            && let Some(stream) = context.transport.readable()
        {
            // Streams that a server opens are read by nobody, and are not named here.
            let read = if stream & 3 == 0 {
                self.read_request(context, stream, scratch)
            } else {
                self.read_peer(context, stream, scratch)
            };
            if let Err(error) = read {
                self.fail(context, stream, &error);
            }
        }
        context.scratch = scratch;
    }

    /// Ends what `error` ends.
    fn fail(&mut self, context: &mut SessionContext<'_>, stream: u64, error: &Error) {
        match error.scope {
            Scope::Connection => {
                tracing::debug!(remote = %context.remote, %error, "the client broke HTTP/3");
                context.stats.connections_protocol_error += 1;
                context.transport.close(CloseKind::Application, error.code, error.reason);
            }
            Scope::Stream => {
                tracing::debug!(remote = %context.remote, stream, %error, "request refused");
                self.is_new(stream);
                match error.code {
                    code::EXCESSIVE_LOAD => context.stats.refused_header_size += 1,
                    _ => context.stats.refused_malformed += 1,
                }
                self.abort(context, stream, error.code);
                self.give_up(context, stream);
            }
        }
    }

    fn read_peer(
        &mut self,
        context: &mut SessionContext<'_>,
        stream: u64,
        scratch: &mut [u8],
    ) -> Result<(), Error> {
        let Self { peer, streams, early_priorities, next_stream, late, .. } = self;
        // The client's limit is what it has used plus what it may have open, or less.
        let limit = *next_stream + 4 * context.max_requests;
        peer.read(context.transport, stream, scratch, |transport, id, priority| {
            if id >= limit {
                return Err(Error::connection(code::ID_ERROR, "PRIORITY_UPDATE beyond the limit of streams"));
            }
            if let Some(request) = streams.get_mut(&id) {
                request.priority = priority;
                transport.set_priority(id, priority);
            } else if id >= *next_stream || late.contains(&id) {
                early_priorities.retain(|(known, _)| *known != id);
                if early_priorities.len() < MAX_EARLY_PRIORITIES {
                    early_priorities.push((id, priority));
                }
            }
            Ok(())
        })
    }

    /// Reads a request stream to its end for now.
    fn read_request(
        &mut self,
        context: &mut SessionContext<'_>,
        stream: u64,
        scratch: &mut [u8],
    ) -> Result<(), Error> {
        let max_section = max_section(context);
        let mut reader = self.incoming.take(stream);
        let mut is_over = false;
        loop {
            let (length, last) = match context.transport.receive(stream, scratch) {
                Received::Data { length, last } => (length, last),
                Received::Reset => {
                    self.handle_reset(context, stream);
                    return Ok(());
                }
                Received::Nothing => break,
            };
            let mut input = &scratch[..length];
            while let Some(event) = reader.next(&mut input, max_section)? {
                match event {
                    RequestEvent::Headers(section) => {
                        is_over = last && input.is_empty();
                        self.handle_headers(context, stream, section, !is_over)?;
                    }
                    RequestEvent::Data(piece) => self.handle_data(context, stream, piece.len()),
                }
            }
            if last {
                reader.end()?;
                if !is_over {
                    self.handle_finished(context, stream);
                }
                return Ok(());
            }
        }
        // A stream that was answered or refused meanwhile is not read on.
        if self.streams.contains_key(&stream) || stream >= self.next_stream || self.late.contains(&stream) {
            self.incoming.keep(stream, reader, max_section)?;
        }
        Ok(())
    }

    fn handle_reset(&mut self, context: &mut SessionContext<'_>, stream: u64) {
        if self.is_new(stream) {
            // Given up before its header section was complete.
            context.transport.reset_stream(stream, code::REQUEST_CANCELLED);
            self.count_abandoned(context);
        } else if self.streams.contains_key(&stream) {
            context.transport.reset_stream(stream, code::REQUEST_CANCELLED);
            self.end(context, stream, Progress::Cancelled);
        }
    }

    fn handle_headers(
        &mut self,
        context: &mut SessionContext<'_>,
        stream: u64,
        section: &[u8],
        more: bool,
    ) -> Result<(), Error> {
        let undecodable = |fields: &Fields<'_>| match fields.error() {
            Some(error) => {
                tracing::debug!(stream, %error, "a header section cannot be decoded");
                Err(Error::connection(code::QPACK_DECOMPRESSION_FAILED, "a section that cannot be decoded"))
            }
            None => Ok(()),
        };
        if let Some(request) = self.streams.get_mut(&stream) {
            request.request_ended |= !more;
            let mut fields = Fields::new(section, context.strings);
            let checked = request::check_trailers(&mut fields);
            undecodable(&fields)?;
            if let Err(reason) = checked {
                self.refuse_malformed(context, stream, reason);
            }
            return Ok(());
        }
        if !self.is_new(stream) {
            // Trailers of a request that was answered already.
            return Ok(());
        }
        context.stats.requests += 1;
        if self.refused_from.is_some_and(|first| stream >= first) {
            context.stats.refused_goaway += 1;
            self.abort(context, stream, code::REQUEST_REJECTED);
            return Ok(());
        }
        let early = context.transport.is_in_early_data();
        let mut fields = Fields::new(section, context.strings);
        let parsed = request::parse(&mut fields, context.remote, context.max_header_size);
        undecodable(&fields)?;
        match parsed {
            Ok(request) if early && !matches!(request.head.method, Method::GET | Method::HEAD) => {
                context.stats.refused_early_data += 1;
                self.answer(context, stream, StatusCode::TOO_EARLY, section, more);
            }
            Ok(request) => self.start_request(context, stream, request, more),
            Err(Refusal::Answer(status)) => {
                if status == StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE {
                    context.stats.refused_header_size += 1;
                }
                self.answer(context, stream, status, section, more);
            }
            Err(Refusal::Malformed(reason)) => self.refuse_malformed(context, stream, reason),
        }
        Ok(())
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
        let priority = self.early_priority(stream).unwrap_or(request.priority);
        let mut state = RequestStream::new(stream, exchange, priority, request.content_length);
        if context.log.is_some() {
            let logged = Logged { head: request.head, time: SystemTime::now(), start: context.now };
            state.logged = Some(Box::new(logged));
        }
        self.open(context, state, more);
    }

    /// What the client said of `stream` before it came, which goes before what it says with it.
    fn early_priority(&mut self, stream: u64) -> Option<Priority> {
        if self.early_priorities.is_empty() {
            return None;
        }
        let at = self.early_priorities.iter().position(|(id, _)| *id == stream)?;
        Some(self.early_priorities.swap_remove(at).1)
    }

    /// Answers with an error of this layer's own. `section` may hold anything, so that only what can be
    /// read of it is logged.
    fn answer(
        &mut self,
        context: &mut SessionContext<'_>,
        stream: u64,
        status: StatusCode,
        section: &[u8],
        more: bool,
    ) {
        let method = request::method(Fields::new(section, context.strings));
        let exchange = Exchange::error(&method, status, HeaderMap::new());
        let mut state = RequestStream::new(stream, exchange, Priority::default(), None);
        if context.log.is_some() {
            let head = RequestHead {
                method,
                scheme: Scheme::Https,
                authority: request::text(Fields::new(section, context.strings), b":authority"),
                target: request::text(Fields::new(section, context.strings), b":path"),
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

    /// Body data is counted, and wanted by nobody.
    fn handle_data(&mut self, context: &mut SessionContext<'_>, stream: u64, length: usize) {
        if let Some(request) = self.streams.get_mut(&stream) {
            request.received += length as u64;
            if request.expected.is_some_and(|expected| request.received > expected) {
                self.refuse_malformed(context, stream, "more body than content-length");
            }
        }
    }

    fn handle_finished(&mut self, context: &mut SessionContext<'_>, stream: u64) {
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
        self.give_up(context, stream);
    }

    /// Counts a request that came to nothing.
    fn give_up(&mut self, context: &mut SessionContext<'_>, stream: u64) {
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
        self.incoming.forget(stream);
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
        self.flush(context);
        if !self.starved.is_empty() && self.held.bytes() < context.window {
            for stream in std::mem::take(&mut self.starved) {
                self.pump(context, stream);
            }
        }
        while let Some(stream) = context.transport.writable() {
            self.pump(context, stream);
        }
    }

    /// Gives our control stream what it takes.
    fn flush(&mut self, context: &mut SessionContext<'_>) {
        if context.transport.is_ending() {
            return;
        }
        if let Err(error) = self.peer.flush(context.transport) {
            self.fail(context, 0, &error);
        }
    }

    fn pump(&mut self, context: &mut SessionContext<'_>, stream: u64) {
        let Some(request) = self.streams.get_mut(&stream) else { return };
        match request.pump(context.transport, &self.held, context.window) {
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
                self.count_abandoned(context);
            }
        }
        self.log(context, &request, progress == Progress::Complete);
        if !request.request_ended {
            self.incoming.forget(stream);
        }
        if self.streams.is_empty() {
            // An idle connection keeps no room for requests.
            self.streams = StreamMap::default();
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
        self.peer.goaway(first);
        self.flush(context);
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

/// The largest encoded header section that is read, in bytes; what decodes to more than the limit in force is
/// answered 431.
fn max_section(context: &SessionContext<'_>) -> u64 {
    context.max_header_size * 2
}
