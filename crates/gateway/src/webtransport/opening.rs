//! Requests on a connection: the one for its session, and others.

use bytes::Bytes;
use expressway_h3::qpack::Fields;
use expressway_h3::webtransport::{self as codec, Limits};
use expressway_h3::{Capsule, Error, RequestEvent, RequestReader, code};
use expressway_web::ResponseHead;
use http::header::{CONTENT_LENGTH, ORIGIN};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};

use super::Request;
use super::connection::{Connect, Connection, MAX_SECTION};
use super::protocols::{self, CHOSEN, Choice};
use crate::h3::request::{self, Refusal};
use crate::h3::response;
use crate::quic::Turn;
use crate::quic::engine::{Credit, Received, Within};

/// What is asked for by CONNECT: in drafts 2 to 14, and since.
const PROTOCOLS: [&str; 2] = ["webtransport", "webtransport-h3"];

/// A client that speaks draft 2 says so, and is answered the same.
const DRAFT_02: HeaderName = HeaderName::from_static("sec-webtransport-http3-draft02");
const DRAFT: HeaderName = HeaderName::from_static("sec-webtransport-http3-draft");

/// Requests whose header sections are incomplete, or whose answers were not taken.
const INCOMPLETE: usize = 8;

/// Requests of a connection, of which one is for its session and the rest find nothing here.
const MAX_REQUESTS: u32 = 256;

/// Behind the control stream, 3. QPACK's are not opened.
const FIRST_UNIDIRECTIONAL: u64 = 7;

/// What becomes of a request.
enum Verdict {
    /// It is for the session.
    Session(Box<request::Request>),
    /// It is answered.
    Answer(StatusCode),
    /// It is not processed.
    Reject,
}

impl Connection {
    /// Reads on in a request's stream, of which `first` was read already; `is_last`: and that is all of it.
    pub(super) fn read_request(
        &mut self,
        turn: &mut Turn<'_>,
        stream: u64,
        (first, is_last): (&[u8], bool),
        scratch: &mut [u8],
    ) -> Result<(), Error> {
        let is_new = !self.requests.contains(stream);
        if is_new {
            self.begun_requests += 1;
            if self.begun_requests > MAX_REQUESTS {
                turn.worker.stats.refused_rapid_reset += 1;
                return Err(Error::connection(code::EXCESSIVE_LOAD, "too many requests"));
            }
        }
        let is_full = self.requests.len() + self.answers.len() >= INCOMPLETE;
        if is_new && is_full {
            self.abort(turn, stream, code::REQUEST_REJECTED);
            return Ok(());
        }
        let (reader, since) = self.requests.take(stream, turn.now);
        self.next_request = self.next_request.max(stream + 4);
        match self.read_section(turn, (stream, reader), (first, is_last), scratch) {
            Ok(Some(reader)) => self.requests.keep(stream, (reader, since), MAX_SECTION, &turn.link.account),
            done => {
                self.requests.forget(stream);
                done.map(|_| ())
            }
        }
    }

    /// Reads on in a header section. Returns the reader if it is still incomplete.
    fn read_section(
        &mut self,
        turn: &mut Turn<'_>,
        (stream, mut reader): (u64, RequestReader),
        (first, is_last): (&[u8], bool),
        scratch: &mut [u8],
    ) -> Result<Option<RequestReader>, Error> {
        let (mut length, mut is_last) = (first.len(), is_last);
        scratch[..length].copy_from_slice(first);
        loop {
            let mut input = &scratch[..length];
            let verdict = match reader.next(&mut input, MAX_SECTION)? {
                Some(RequestEvent::Headers(section)) => Some(self.look(turn, stream, section)?),
                // There is no body before the header section.
                Some(RequestEvent::Data(_)) | None => None,
            };
            match verdict {
                Some(Verdict::Session(request)) => {
                    self.connect = Some(Connect::new(stream, reader, *request));
                    self.take_capsules(turn, input, is_last)?;
                    self.open_session(turn);
                    if !is_last {
                        self.read_connect(turn, stream, scratch)?;
                    }
                    return Ok(None);
                }
                Some(Verdict::Answer(status)) => {
                    self.answer(turn, stream, status, !is_last);
                    return Ok(None);
                }
                Some(Verdict::Reject) => {
                    self.abort(turn, stream, code::REQUEST_REJECTED);
                    return Ok(None);
                }
                None if is_last => return reader.end().map(|()| None),
                None => {}
            }
            // One that was read on in this turn has had its piece; nothing was read at its beginning.
            if length > 0 && turn.spend() {
                self.unread.push_front(stream);
                break;
            }
            match turn.link.transport.receive(stream, scratch) {
                Received::Data { length: read, last } => (length, is_last) = (read, last),
                Received::Reset => {
                    turn.link.transport.reset_with(stream, code::REQUEST_CANCELLED);
                    return Ok(None);
                }
                Received::Nothing => break,
            }
        }
        Ok(Some(reader))
    }

    /// What a header section asks for.
    fn look(&mut self, turn: &mut Turn<'_>, stream: u64, section: &[u8]) -> Result<Verdict, Error> {
        turn.worker.stats.requests += 1;
        if self.refused_from.is_some_and(|first| stream >= first) {
            turn.worker.stats.refused_goaway += 1;
            return Ok(Verdict::Reject);
        }
        let mut fields = Fields::new(section, &mut turn.worker.strings);
        let parsed = request::parse_extended(&mut fields, turn.link.remote(), MAX_SECTION);
        if fields.error().is_some() {
            let words = "a section that cannot be decoded";
            return Err(Error::connection(code::QPACK_DECOMPRESSION_FAILED, words));
        }
        let request = match parsed {
            Ok(request) => request,
            Err(Refusal::Malformed(reason)) => return Err(Error::stream(code::MESSAGE_ERROR, reason)),
            Err(Refusal::Answer(status)) => return Ok(Verdict::Answer(status)),
        };
        Ok(match request.protocol.as_deref() {
            // There are no pages here.
            None => Verdict::Answer(StatusCode::NOT_FOUND),
            Some(protocol) if request.head.method != Method::CONNECT || !PROTOCOLS.contains(&protocol) => {
                Verdict::Answer(StatusCode::NOT_IMPLEMENTED)
            }
            Some(_) if self.connect.is_some() => {
                turn.worker.stats.refused_webtransport_session += 1;
                Verdict::Reject
            }
            Some(_) => Verdict::Session(Box::new(request)),
        })
    }

    /// Answers a request; `has_more`: of it, which is not read.
    fn answer(&mut self, turn: &mut Turn<'_>, stream: u64, status: StatusCode, has_more: bool) {
        let headers = HeaderMap::from_iter([(CONTENT_LENGTH, HeaderValue::from_static("0"))]);
        let head = ResponseHead { status, headers, body_length: Some(0) };
        self.answers.push((stream, response::head(&head, 0).into()));
        if has_more {
            turn.link.transport.stop_with(stream, code::NO_ERROR);
        }
        self.flush(turn);
    }

    /// Begins the session, if it was asked for and the client has said what it speaks.
    pub(super) fn open_session(&mut self, turn: &mut Turn<'_>) {
        let Some(settings) = self.peer.settings().filter(|_| turn.link.transport.is_established()) else {
            return;
        };
        let Some(connect) = &mut self.connect else { return };
        let Some(asked) = connect.request.take() else { return };
        let (stream, headers) = (connect.stream, &asked.head.headers);
        let origin = headers.get(ORIGIN).map(|origin| origin.to_str().unwrap_or_default());
        let remote = turn.link.remote();
        let request = Request { target: &asked.head.target, origin, remote };
        let mut answer = HeaderMap::new();
        let admitted = match protocols::choose(headers, self.service.session_protocols()) {
            Choice::None => Err(StatusCode::BAD_REQUEST),
            Choice::Silent => self.service.admit(&request),
            Choice::Spoken(protocol) => self.service.admit(&request).map(|()| {
                // A string of a structured field; names of protocols have nothing to be escaped.
                answer.extend(
                    HeaderValue::try_from(format!("\"{protocol}\""))
                        .ok()
                        .map(|value| (Some(chosen()), value)),
                );
            }),
        };
        if let Err(status) = admitted {
            // A token may be behind the path.
            let path = asked.head.target.split('?').next().unwrap_or_default();
            tracing::debug!(%remote, path, %status, "a WebTransport session is refused");
            turn.worker.stats.refused_webtransport_session += 1;
            self.connect = None;
            self.refuse_early(turn, stream);
            return self.answer(turn, stream, status, true);
        }
        if headers.contains_key(DRAFT_02) {
            answer.insert(DRAFT, HeaderValue::from_static("draft02"));
        }
        let head = ResponseHead { status: StatusCode::OK, headers: answer, body_length: None };
        connect.append(|out| out.extend_from_slice(&response::head(&head, 0)));
        turn.worker.stats.webtransport_sessions += 1;
        let within = within(stream, &asked.head.target, settings.webtransport, connect.raised);
        turn.link.transport.within = Some(Box::new(within));
        self.flush(turn);
        self.take_early(turn, stream);
        let service = std::sync::Arc::clone(&self.service);
        self.inner = Some(service.begin(turn));
        self.is_fresh = true;
    }

    /// Reads on in the stream of the session's request.
    pub(super) fn read_connect(
        &mut self,
        turn: &mut Turn<'_>,
        stream: u64,
        scratch: &mut [u8],
    ) -> Result<(), Error> {
        loop {
            match turn.link.transport.receive(stream, scratch) {
                Received::Data { length, last } => {
                    self.take_capsules(turn, &scratch[..length], last)?;
                    if last {
                        return Ok(());
                    }
                }
                Received::Reset => {
                    self.abort(turn, stream, code::REQUEST_CANCELLED);
                    return Ok(());
                }
                Received::Nothing => return Ok(()),
            }
            if turn.spend() {
                self.unread.push_front(stream);
                return Ok(());
            }
        }
    }

    /// Takes in what has come on that stream behind the header section.
    fn take_capsules(&mut self, turn: &mut Turn<'_>, mut input: &[u8], is_last: bool) -> Result<(), Error> {
        let Some(connect) = &mut self.connect else { return Ok(()) };
        while let Some(event) = connect.reader.next(&mut input, MAX_SECTION)? {
            // Trailers say nothing.
            let RequestEvent::Data(mut piece) = event else { continue };
            while !piece.is_empty() {
                if connect.is_closed {
                    return Err(Error::stream(code::MESSAGE_ERROR, "octets behind the end of a session"));
                }
                let Some(capsule) = connect.capsules.next(&mut piece)? else { break };
                if let Capsule::Close(code, reason) = capsule {
                    let reason = String::from_utf8_lossy(reason);
                    tracing::debug!(remote = %turn.link.remote(), code, ?reason, "the client closes its session");
                    connect.is_closed = true;
                } else {
                    match &mut turn.link.transport.within {
                        Some(within) => raise(within.credit(), &capsule),
                        None => raise(&mut connect.raised, &capsule),
                    }
                }
            }
        }
        if is_last {
            connect.reader.end()?;
            connect.capsules.end()?;
        }
        if !is_last && !connect.is_closed {
            return Ok(());
        }
        match connect.request.is_some() {
            // It had not begun.
            true => {
                let stream = connect.stream;
                self.abort(turn, stream, code::REQUEST_CANCELLED);
            }
            false => self.end(turn, None, true),
        }
        Ok(())
    }
}

fn chosen() -> HeaderName {
    HeaderName::from_static(CHOSEN)
}

/// What a session's streams are like.
/// `raised` is what the client has let it send before it was answered.
fn within(session: u64, target: &str, limits: Limits, raised: Credit) -> Within {
    let head = |is_bidirectional: bool| {
        let mut head = Vec::new();
        codec::write_head(session, is_bidirectional, &mut head);
        Bytes::from(head)
    };
    let code = |code: u64| codec::to_http3(u32::try_from(code).unwrap_or(u32::MAX));
    let mut within = Within::new(target, [head(true), head(false)], FIRST_UNIDIRECTIONAL, code);
    if limits.is_wanted() {
        *within.credit() = Credit {
            data: limits.data.max(raised.data),
            streams: [
                limits.bidirectional.max(raised.streams[0]),
                limits.unidirectional.max(raised.streams[1]),
            ],
        };
    }
    within
}

/// The client lets the session send more. What is less than before says nothing.
fn raise(credit: &mut Credit, capsule: &Capsule<'_>) {
    let (limit, value) = match capsule {
        Capsule::MaxData(value) => (&mut credit.data, value),
        Capsule::MaxStreamsBidi(value) => (&mut credit.streams[0], value),
        Capsule::MaxStreamsUni(value) => (&mut credit.streams[1], value),
        Capsule::Close(..) | Capsule::Drain => return,
    };
    *limit = (*limit).max(*value);
}
