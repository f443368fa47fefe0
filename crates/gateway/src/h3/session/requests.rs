//! Incoming requests: their header sections, their bodies, and the exchanges that answer them.

use std::sync::Arc;

use expressway_h3::qpack::Fields;
use expressway_h3::{Error, RequestEvent, RequestReader};
use expressway_netio::trace::Hop;
use expressway_web::{Exchange, Protocol, RequestBody, RequestHead, Scheme, Wake};
use http::{HeaderMap, Method, StatusCode};

use super::{Session, max_section};
use crate::h3::code;
use crate::h3::request::{self, Refusal, Request, TrailerError};
use crate::h3::stream::{Logged, RequestStream};
use crate::h3::upload::Upload;
use crate::quic::Turn;
use crate::quic::engine::{Priority, Received};

impl Session {
    /// Reads a request stream to its end for now, or until the slice is spent.
    pub(super) fn read_request(
        &mut self,
        turn: &mut Turn<'_>,
        stream: u64,
        scratch: &mut [u8],
    ) -> Result<(), Error> {
        if self.waits(turn, stream) {
            return Ok(());
        }
        let (mut reader, since) = self.incoming.take(stream, turn.now);
        let result = self.read_stream(turn, stream, scratch, &mut reader);
        // A stream that was answered or refused meanwhile is not read on.
        let goes_on = result == Ok(true)
            && (self.streams.contains_key(&stream)
                || stream >= self.next_stream
                || self.late.contains(&stream));
        if goes_on {
            return self.incoming.keep(stream, (reader, since), max_section(turn), &self.account);
        }
        self.incoming.forget(stream);
        result.map(|_| ())
    }

    /// Reads on in a request stream. False: nothing more is read of it.
    fn read_stream(
        &mut self,
        turn: &mut Turn<'_>,
        stream: u64,
        scratch: &mut [u8],
        reader: &mut RequestReader,
    ) -> Result<bool, Error> {
        let max_section = max_section(turn);
        let mut is_over = false;
        loop {
            let room = match self.body_room(turn, stream) {
                None => scratch.len(),
                Some(0) => break,
                Some(room) => room.min(scratch.len()),
            };
            let (length, last) = match turn.link.transport.receive(stream, &mut scratch[..room]) {
                Received::Data { length, last } => (length, last),
                Received::Reset => {
                    self.handle_reset(turn, stream);
                    return Ok(false);
                }
                Received::Nothing => break,
            };
            let mut input = &scratch[..length];
            while let Some(event) = reader.next(&mut input, max_section)? {
                match event {
                    RequestEvent::Headers(section) => {
                        // A request that is all there is is told so at once, for its answer; trailers are no answer's.
                        is_over = last && input.is_empty() && !self.streams.contains_key(&stream);
                        self.handle_headers(turn, stream, section, !is_over)?;
                    }
                    RequestEvent::Data(piece) => self.handle_data(turn, stream, piece),
                }
            }
            if let Some(upload) = self.streams.get_mut(&stream).and_then(|request| request.upload.as_mut()) {
                upload.flush(&self.account);
            }
            if last {
                reader.end()?;
                if !is_over {
                    self.handle_finished(turn, stream);
                }
                return Ok(false);
            }
            if length == room && turn.slice.spend() {
                // The engine will not name it again before all of it was read.
                self.unread.push_front(stream);
                break;
            }
        }
        Ok(true)
    }

    fn handle_headers(
        &mut self,
        turn: &mut Turn<'_>,
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
        if self.streams.contains_key(&stream) {
            let mut fields = Fields::new(section, &mut turn.worker.strings);
            let trailers = request::trailers(&mut fields, turn.link.settings().max_header_size);
            undecodable(&fields)?;
            match trailers {
                Ok(trailers) => {
                    if let Some(upload) = self.streams.get_mut(&stream).and_then(|r| r.upload.as_mut()) {
                        upload.set_trailers(trailers, &self.account);
                    }
                }
                Err(TrailerError::Malformed(reason)) => self.refuse_malformed(turn, stream, reason),
                Err(TrailerError::TooLarge) => {
                    return Err(Error::stream(code::EXCESSIVE_LOAD, "a trailer section beyond the limit"));
                }
            }
            return Ok(());
        }
        if !self.is_new(stream) {
            // Trailers of a request that was answered already.
            return Ok(());
        }
        turn.worker.stats.requests += 1;
        if self.refused_from.is_some_and(|first| stream >= first) {
            turn.worker.stats.refused_goaway += 1;
            self.abort(turn, stream, code::REQUEST_REJECTED);
            return Ok(());
        }
        let early = turn.link.transport.is_in_early_data();
        let mut fields = Fields::new(section, &mut turn.worker.strings);
        let parsed = request::parse(&mut fields, turn.link.remote(), turn.link.settings().max_header_size);
        undecodable(&fields)?;
        match parsed {
            Ok(mut request) => {
                request.head.client_subject.clone_from(&self.subject);
                let held = early && !matches!(request.head.method, Method::GET | Method::HEAD);
                if held && self.early.is_full() {
                    turn.worker.stats.refused_early_data += 1;
                    self.answer(turn, stream, StatusCode::TOO_EARLY, section, more);
                } else {
                    self.start_request(turn, stream, request, (more, held));
                }
            }
            Err(Refusal::Answer(status)) => {
                if status == StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE {
                    turn.worker.stats.refused_header_size += 1;
                }
                self.answer(turn, stream, status, section, more);
            }
            Err(Refusal::Malformed(reason)) => self.refuse_malformed(turn, stream, reason),
        }
        Ok(())
    }

    /// True on the first call for a stream.
    pub(super) fn is_new(&mut self, stream: u64) -> bool {
        if stream >= self.next_stream {
            self.late.extend((self.next_stream..stream).step_by(4));
            self.next_stream = stream + 4;
            return true;
        }
        self.late.remove(&stream)
    }

    /// `more` of the request follows; it is `held` until the handshake is complete.
    fn start_request(
        &mut self,
        turn: &mut Turn<'_>,
        stream: u64,
        request: Request,
        (more, held): (bool, bool),
    ) {
        let traced = turn.link.trace_request(&turn.worker.tracer, stream, || {
            let RequestHead { method, scheme, authority, target, .. } = &request.head;
            let scheme = if *scheme == Scheme::Https { "https" } else { "http" };
            format!("{method} {scheme}://{authority}{target}")
        });
        let wake = self.wake_of(turn, stream);
        let (upload, body) = match more {
            true => {
                let (upload, body) =
                    Upload::new(request.content_length, request.expects.then(|| wake.clone()));
                (Some(Box::new(upload)), body)
            }
            false => (None, RequestBody::empty()),
        };
        let handler = &self.http.handler;
        let exchange = if held {
            turn.worker.stats.requests_held_early += 1;
            self.early.hold(stream, handler, &request.head, body, (wake, &self.account))
        } else {
            handler.start(&request.head, body, wake)
        };
        if traced {
            turn.link.trace(&turn.worker.tracer, Hop::Started { stream });
        }
        let asked = self.early_priority(stream).or(request.priority);
        // A client that names none leaves it to the server (RFC 9218, section 10).
        let priority = asked.unwrap_or_else(|| match exchange.urgency() {
            Some(urgency) => Priority { urgency, ..Priority::default() },
            None => Priority::default(),
        });
        let mut state = RequestStream::new(stream, exchange, priority, request.content_length, &self.account);
        state.traced = traced;
        state.upload = upload.filter(|upload| upload.is_wanted());
        if self.http.access_log.is_some() {
            state.logged = Some(Logged::new(request.head, turn.now, &self.account));
        }
        self.open(turn, state, more);
    }

    /// The client's priority for `stream` sent before the request, which takes precedence over the one in
    /// the request.
    fn early_priority(&mut self, stream: u64) -> Option<Priority> {
        if self.early_priorities.is_empty() {
            return None;
        }
        let at = self.early_priorities.iter().position(|(id, _)| *id == stream)?;
        Some(self.early_priorities.swap_remove(at).1)
    }

    /// Answers with an error of this layer's own. `section` may hold anything, so that only what can be
    /// read of it is logged.
    fn answer(&mut self, turn: &mut Turn<'_>, stream: u64, status: StatusCode, section: &[u8], more: bool) {
        let method = request::method(Fields::new(section, &mut turn.worker.strings));
        let strings = &mut turn.worker.strings;
        let traced = turn.link.trace_request(&turn.worker.tracer, stream, || {
            format!("{method} {}", request::text(Fields::new(section, strings), b":path"))
        });
        let exchange = Exchange::error(&method, status, HeaderMap::new());
        let mut state = RequestStream::new(stream, exchange, Priority::default(), None, &self.account);
        state.traced = traced;
        if self.http.access_log.is_some() {
            let head = RequestHead {
                method,
                scheme: Scheme::Https,
                authority: request::text(Fields::new(section, &mut turn.worker.strings), b":authority"),
                target: request::text(Fields::new(section, &mut turn.worker.strings), b":path"),
                headers: HeaderMap::new(),
                protocol: Protocol::H3,
                remote: turn.link.remote(),
                client_subject: self.subject.clone(),
            };
            state.logged = Some(Logged::new(head, turn.now, &self.account));
        }
        self.open(turn, state, more);
    }

    fn open(&mut self, turn: &mut Turn<'_>, mut state: RequestStream, more: bool) {
        let stream = state.id;
        state.request_ended = !more;
        turn.worker.stats.requests_active += 1;
        self.streams.insert(stream, Box::new(state));
        if !more && self.is_length_wrong(stream) {
            self.refuse_malformed(turn, stream, "content-length without a body");
        } else {
            self.pump(turn, stream);
        }
    }

    /// What of a stream may be read now, in bytes, if its body is wanted; 0 until its reader has taken some.
    fn body_room(&mut self, turn: &Turn<'_>, stream: u64) -> Option<usize> {
        let wake = self.streams.get(&stream)?.upload.is_some().then(|| self.wake_of(turn, stream))?;
        let upload = self.streams.get_mut(&stream)?.upload.as_mut()?;
        upload.room(&self.account, &wake)
    }

    fn wake_of(&self, turn: &Turn<'_>, stream: u64) -> Wake {
        Wake::new(Arc::clone(&turn.worker.notify), turn.token(stream))
    }

    /// Reads a stream whose body had no room.
    pub(super) fn read_on(&mut self, turn: &mut Turn<'_>, stream: u64, scratch: &mut [u8]) {
        if let Err(error) = self.read_request(turn, stream, scratch) {
            self.fail(turn, stream, &error);
        }
    }

    /// Body data is counted, and passed on if it is wanted.
    fn handle_data(&mut self, turn: &mut Turn<'_>, stream: u64, piece: &[u8]) {
        if let Some(request) = self.streams.get_mut(&stream) {
            request.received += piece.len() as u64;
            if request.expected.is_some_and(|expected| request.received > expected) {
                self.refuse_malformed(turn, stream, "more body than content-length");
            } else if let Some(upload) = &mut request.upload {
                upload.write(piece);
            }
        }
    }

    fn handle_finished(&mut self, turn: &mut Turn<'_>, stream: u64) {
        if let Some(request) = self.streams.get_mut(&stream) {
            request.request_ended = true;
            if self.is_length_wrong(stream) {
                self.refuse_malformed(turn, stream, "less body than content-length");
            } else if let Some(upload) = self.streams.get_mut(&stream).and_then(|r| r.upload.take()) {
                upload.finish(&self.account);
            }
        }
    }

    fn is_length_wrong(&self, stream: u64) -> bool {
        self.streams
            .get(&stream)
            .is_some_and(|request| request.expected.is_some_and(|expected| expected != request.received))
    }
}
