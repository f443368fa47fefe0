//! A connection of HTTP/3 with a session on it: its life cycle.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use expressway_h3::webtransport::SETTINGS;
use expressway_h3::{CapsuleReader, Error, RequestReader, Scope, capsule, code};

use super::Service;
use super::heads::Heads;
use super::streams::Early;
use crate::h3::incoming::Incoming;
use crate::h3::peer::Peer;
use crate::h3::request::Request;
use crate::h3::unsent::Unsent;
use crate::quic::engine::{Closing, Credit};
use crate::quic::{self, SendError, Turn};

/// The largest header section that is read, in bytes, as it is encoded and as RFC 9114, section 4.2.2 counts it.
pub(super) const MAX_SECTION: u64 = 16 << 10;

/// How long a client may take to ask for its session.
const SETUP_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a connection stays after its session, so that the client hears of the end.
const LINGER: Duration = Duration::from_secs(1);

/// See the module.
pub(super) struct Connection {
    pub(super) service: Arc<dyn Service>,
    pub(super) peer: Peer,
    begun: Instant,
    /// Streams whose beginning is incomplete, each of which has as long as the session to be asked for.
    pub(super) heads: Heads,
    /// Requests whose header section is, each of which has as long as the session to be asked for.
    pub(super) requests: Incoming,
    /// The first request stream beyond all that the client has used.
    pub(super) next_request: u64,
    /// Requests that the client has begun.
    pub(super) begun_requests: u32,
    /// After GOAWAY: requests from this stream on are refused.
    pub(super) refused_from: Option<u64>,
    /// Streams that wait for their session.
    pub(super) early: VecDeque<Early>,
    /// Streams that were not read to their end, which the engine will not name again.
    pub(super) unread: VecDeque<u64>,
    /// What is left to be sent of answers, each the end of its stream.
    pub(super) answers: Vec<(u64, Bytes)>,
    /// The request for the session.
    pub(super) connect: Option<Connect>,
    /// The session; `None` before it and after it.
    pub(super) inner: Option<Box<dyn quic::Session>>,
    /// It has begun, and was not called since.
    pub(super) is_fresh: bool,
    /// There is something to do whatever the engine says.
    is_awake: bool,
    /// The session is over.
    pub(super) is_over: bool,
    /// When the connection is closed then.
    closes: Option<Instant>,
}

/// The request for a session, whose stream has the capsules.
pub(super) struct Connect {
    pub(super) stream: u64,
    /// It was not answered yet.
    pub(super) request: Option<Box<Request>>,
    pub(super) reader: RequestReader,
    pub(super) capsules: CapsuleReader,
    /// The client has closed the session.
    pub(super) is_closed: bool,
    /// What the client has let the session send before that was there.
    pub(super) raised: Credit,
    /// What is left to be sent, and whether the stream ends with it.
    unsent: Unsent,
    ends: bool,
}

impl Connect {
    pub(super) fn new(stream: u64, reader: RequestReader, request: Request) -> Self {
        Self {
            stream,
            request: Some(Box::new(request)),
            reader,
            capsules: CapsuleReader::default(),
            is_closed: false,
            raised: Credit { data: 0, streams: [0; 2] },
            unsent: Unsent::default(),
            ends: false,
        }
    }

    /// Has something sent behind what is.
    pub(super) fn append(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        self.unsent.append(write);
    }
}

impl Connection {
    /// Begins on a connection: SETTINGS are sent before anything else.
    pub(super) fn start(service: Arc<dyn Service>, turn: &mut Turn<'_>) -> Self {
        let mut connection = Self {
            service,
            peer: Peer::new(MAX_SECTION, &SETTINGS),
            begun: turn.now,
            heads: Heads::default(),
            requests: Incoming::default(),
            next_request: 0,
            begun_requests: 0,
            refused_from: None,
            early: VecDeque::new(),
            unread: VecDeque::new(),
            answers: Vec::new(),
            connect: None,
            inner: None,
            is_fresh: false,
            is_awake: false,
            is_over: false,
            closes: None,
        };
        connection.flush(turn);
        connection
    }

    /// Has it look at what it is to do, in this turn or the next.
    pub(super) fn wake(&mut self) {
        self.is_awake = true;
    }

    /// It is to do so, once.
    pub(super) fn take_awake(&mut self) -> bool {
        std::mem::take(&mut self.is_awake)
    }

    pub(super) fn is_awake(&self) -> bool {
        self.is_awake
    }

    /// The client has broken HTTP/3, or WebTransport.
    pub(super) fn fail(&mut self, turn: &mut Turn<'_>, stream: u64, error: &Error) {
        tracing::debug!(remote = %turn.link.remote(), stream, %error, "WebTransport protocol error by the client");
        if error.scope == Scope::Connection {
            turn.worker.stats.connections_protocol_error += 1;
            turn.link.transport.close_connection(error.code, error.reason);
            return;
        }
        match error.code {
            code::EXCESSIVE_LOAD => turn.worker.stats.refused_header_size += 1,
            _ => turn.worker.stats.refused_malformed += 1,
        }
        self.abort(turn, stream, error.code);
    }

    /// Ends both sides of a request's stream. If it is the session's, that ends too.
    pub(super) fn abort(&mut self, turn: &mut Turn<'_>, stream: u64, code: u64) {
        turn.link.transport.stop_with(stream, code);
        turn.link.transport.reset_with(stream, code);
        self.requests.forget(stream);
        if self.connect.as_ref().is_none_or(|connect| connect.stream != stream) {
            return;
        }
        if self.inner.is_some() {
            if let Some(connect) = &mut self.connect {
                connect.unsent.clear();
            }
            self.end(turn, None, false);
        } else if !self.is_over {
            // It had not begun.
            self.connect = None;
            self.refuse_early(turn, stream);
        }
    }

    /// The session is over. If this side has closed it, the client is told how.
    pub(super) fn end(&mut self, turn: &mut Turn<'_>, closing: Option<Closing>, says_goodbye: bool) {
        if std::mem::replace(&mut self.is_over, true) {
            return;
        }
        if let Some(within) = &mut turn.link.transport.within {
            within.set_over();
        }
        if let Some(connect) = &mut self.connect {
            if let Some(Closing { code, reason }) = closing {
                let code = u32::try_from(code).unwrap_or(u32::MAX);
                connect.append(|out| capsule::write_close(code, &reason, out));
            }
            connect.ends = says_goodbye;
        }
        self.closes = Some(turn.now + LINGER);
        self.wake();
        self.flush(turn);
    }

    /// Takes in that the session was closed by its own side.
    fn follow_session(&mut self, turn: &mut Turn<'_>) {
        if let Some(closing) = turn.link.transport.within.as_mut().and_then(|within| within.take_closing()) {
            self.end(turn, Some(closing), true);
        }
    }

    /// Calls the session, if there is one. True: there is more, because the slice was used up or the session is over.
    pub(super) fn with_session(
        &mut self,
        turn: &mut Turn<'_>,
        action: impl FnOnce(&mut dyn quic::Session, &mut Turn<'_>) -> bool,
    ) -> bool {
        let Some(session) = self.inner.as_mut().filter(|_| !self.is_over) else { return self.is_awake };
        let is_left = action(session.as_mut(), turn);
        self.follow_session(turn);
        is_left || self.is_awake
    }

    /// Gives up the session and its streams. True: the slice was used up, and there is more.
    pub(super) fn give_up(&mut self, turn: &mut Turn<'_>) -> bool {
        if let Some(session) = &mut self.inner {
            if session.abandon(turn) {
                return true;
            }
            self.inner = None;
        }
        while turn.link.transport.end_one_within(code::WT_SESSION_GONE) {
            if turn.spend() {
                return true;
            }
        }
        false
    }

    /// Sends what there is of the connection's own.
    pub(super) fn flush(&mut self, turn: &mut Turn<'_>) {
        let transport = &mut turn.link.transport;
        if transport.is_closing() {
            return;
        }
        self.answers.retain_mut(|(stream, octets)| match transport.send_on(*stream, octets, true) {
            Ok(_) | Err(SendError::Blocked) => !octets.is_empty(),
            Err(SendError::Over) => false,
        });
        let mut is_stopped = false;
        if let Some(connect) = &mut self.connect
            && (!connect.unsent.is_empty() || connect.ends)
        {
            let sent = connect.unsent.send(transport, connect.stream, connect.ends);
            is_stopped = sent == Err(SendError::Over);
            if sent.is_ok() && connect.unsent.is_empty() {
                connect.ends = false;
            }
        }
        if let Err(error) = self.peer.flush(transport) {
            self.fail(turn, 0, &error);
        } else if is_stopped || self.is_refused(turn) {
            self.end(turn, None, false);
        }
    }

    /// The client has stopped our side of the session's stream, which ends it.
    fn is_refused(&self, turn: &mut Turn<'_>) -> bool {
        match &self.connect {
            Some(connect) if self.inner.is_some() && !self.is_over => {
                turn.link.transport.is_stopped(connect.stream)
            }
            _ => false,
        }
    }

    /// When the session must have been asked for, or the connection ends.
    pub(super) fn own_deadline(&self) -> Option<Instant> {
        let setup = (self.inner.is_none() && !self.is_over).then(|| self.begun + SETUP_TIMEOUT);
        let incomplete = self.requests.oldest().map(|(_, since)| since + SETUP_TIMEOUT);
        let heads = self.heads.deadline(SETUP_TIMEOUT);
        self.closes.or(setup).into_iter().chain(incomplete).chain(heads).min()
    }

    /// It is then.
    pub(super) fn handle_own_deadline(&mut self, turn: &mut Turn<'_>) {
        while let Some((stream, since)) = self.requests.oldest()
            && since + SETUP_TIMEOUT <= turn.now
        {
            self.abort(turn, stream, code::REQUEST_INCOMPLETE);
        }
        for stream in self.heads.overdue(SETUP_TIMEOUT, turn.now) {
            self.refuse(turn, stream, code::WT_BUFFERED_STREAM_REJECTED);
        }
        if self.own_deadline().is_none_or(|at| at > turn.now) {
            return;
        }
        let words = if self.is_over { "" } else { "no session in time" };
        turn.link.transport.close_connection(code::NO_ERROR, words);
        // The deadline is over, whatever becomes of the connection.
        self.closes = None;
        self.begun = turn.now;
    }

    /// Tells the client that this will end.
    pub(super) fn say_goaway(&mut self, turn: &mut Turn<'_>) {
        if self.refused_from.is_some() {
            return;
        }
        self.refused_from = Some(self.next_request);
        self.peer.goaway(self.next_request);
        if let Some(connect) = self.connect.as_mut().filter(|_| self.inner.is_some() && !self.is_over) {
            connect.append(capsule::write_drain);
        }
        self.flush(turn);
    }
}
