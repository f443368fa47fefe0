//! A connection on its way to become a subscriber: TLS, then the WebSocket request or the line that says the
//! start. Never blocks, and holds a bounded part of what the peer sends.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use boring::ssl::{HandshakeError, MidHandshakeSslStream, Ssl, SslContext};

use super::options::{Protocol, Start, StartPolicy};
use super::request::{self, Answer, MAX_HEAD};
use super::stats::Reason;
use super::transport::{Refused, Transport, Wire};

/// Longest line that says a start.
const MAX_LINE: usize = 64;

/// What is discarded at once behind a page, in bytes.
const MAX_DISCARDED: usize = 16 << 10;

/// What a handshake needs to know.
pub(crate) struct Rules {
    pub(crate) start: StartPolicy,
    pub(crate) origins: Vec<String>,
    pub(crate) tls: Option<SslContext>,
}

/// How far it has come.
pub(crate) enum Progress {
    /// It waits for the peer.
    Waiting,
    /// Done.
    Subscribe(Ready),
    /// A page was asked for and sent, as far as the socket took it; the connection waits for its end.
    Served,
    /// Refused; the connection is to be closed.
    Failed(Failure),
}

/// Why a handshake failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The peer broke a protocol, or said no start.
    Handshake,
    /// The page's origin is not allowed.
    Origin,
    /// The peer went.
    Gone,
}

/// A connection that may subscribe.
pub(crate) struct Ready {
    pub(crate) transport: Transport,
    pub(crate) start: Start,
    pub(crate) greeting: Vec<u8>,
    pub(crate) input: Vec<u8>,
}

enum State {
    Tls(Box<MidHandshakeSslStream<Wire>>),
    Request(Transport),
    /// A page has been sent: what the peer still sends is discarded until it closes.
    Lingering(Transport),
    /// Taken.
    Done,
}

/// A handshake.
pub(crate) struct Handshake {
    protocol: Protocol,
    state: State,
    received: Vec<u8>,
}

impl Handshake {
    /// Begins one on a fresh connection. `None` when the TLS library fails.
    pub(crate) fn new(protocol: Protocol, socket: Arc<OwnedFd>, rules: &Rules) -> Option<Self> {
        let state = match &rules.tls {
            Some(context) if protocol.is_tls() => {
                let ssl = Ssl::new(context).ok()?;
                State::Tls(Box::new(ssl.setup_accept(Wire::new(socket))))
            }
            _ => State::Request(Transport::Plain(socket)),
        };
        Some(Self { protocol, state, received: Vec::new() })
    }

    /// Goes on as far as the socket lets it.
    pub(crate) fn advance(&mut self, rules: &Rules) -> Progress {
        if let State::Tls(_) = self.state
            && let Err(progress) = self.advance_tls()
        {
            return progress;
        }
        match &mut self.state {
            State::Request(_) => self.advance_request(rules),
            State::Lingering(transport) => {
                // Closed with something unread, TCP would take the page back.
                let mut scratch = [0; 1024];
                for _ in 0..MAX_DISCARDED / scratch.len() {
                    match transport.receive(&mut scratch) {
                        Ok(1..) => {}
                        Err(Refused::Later) => break,
                        _ => return Progress::Failed(Failure::Gone),
                    }
                }
                Progress::Served
            }
            State::Tls(_) | State::Done => Progress::Waiting,
        }
    }

    fn advance_tls(&mut self) -> Result<(), Progress> {
        let State::Tls(stream) = std::mem::replace(&mut self.state, State::Done) else { return Ok(()) };
        match stream.handshake() {
            Ok(mut stream) => {
                stream.get_mut().drain().map_err(|_| Progress::Failed(Failure::Gone))?;
                self.state = State::Request(Transport::Tls(Box::new(stream)));
                Ok(())
            }
            Err(HandshakeError::WouldBlock(mut stream)) => {
                let drained = stream.get_mut().drain();
                self.state = State::Tls(Box::new(stream));
                Err(drained.map_or(Progress::Failed(Failure::Gone), |_| Progress::Waiting))
            }
            Err(HandshakeError::Failure(mut stream)) => {
                // The alert that says why.
                let _ = stream.get_mut().drain();
                tracing::debug!("TLS handshake: {}", stream.error());
                Err(Progress::Failed(Failure::Handshake))
            }
            Err(HandshakeError::SetupFailure(error)) => {
                tracing::debug!("TLS handshake: {error}");
                Err(Progress::Failed(Failure::Handshake))
            }
        }
    }

    fn advance_request(&mut self, rules: &Rules) -> Progress {
        let asks = rules.start == StartPolicy::Ask && !self.protocol.is_websocket();
        if !self.protocol.is_websocket() && !asks {
            return self.ready(fixed(rules), Vec::new(), Vec::new());
        }
        let limit = if asks { MAX_LINE } else { MAX_HEAD };
        let State::Request(transport) = &mut self.state else { return Progress::Waiting };
        while self.received.len() < limit {
            let mut scratch = [0; 1024];
            let room = scratch.len().min(limit - self.received.len());
            match transport.receive(&mut scratch[..room]) {
                Ok(0) | Err(Refused::Gone(Reason::Closed)) => return Progress::Failed(Failure::Gone),
                Ok(length) => self.received.extend_from_slice(&scratch[..length]),
                Err(Refused::Later) => break,
                Err(Refused::Gone(Reason::Protocol)) => return Progress::Failed(Failure::Handshake),
                Err(Refused::Gone(_)) => return Progress::Failed(Failure::Gone),
            }
        }
        if asks { self.line() } else { self.request(rules) }
    }

    /// A line such as `last:10`.
    fn line(&mut self) -> Progress {
        let Some(end) = self.received.iter().position(|byte| *byte == b'\n') else {
            let full = self.received.len() >= MAX_LINE;
            return if full { Progress::Failed(Failure::Handshake) } else { Progress::Waiting };
        };
        let line = String::from_utf8_lossy(&self.received[..end]);
        match line.trim_end_matches('\r').parse() {
            Ok(start) => self.ready(start, Vec::new(), Vec::new()),
            Err(error) => {
                let error: String = error;
                tracing::debug!("start: {error}");
                Progress::Failed(Failure::Handshake)
            }
        }
    }

    fn request(&mut self, rules: &Rules) -> Progress {
        let answer = request::answer(&self.received, self.protocol.is_tls(), &rules.origins);
        let (response, progress) = match answer {
            Answer::Incomplete => return Progress::Waiting,
            Answer::Subscribe { start, response, length } => {
                let input = self.received.split_off(length);
                return self.ready(start.unwrap_or_else(|| fixed(rules)), response, input);
            }
            Answer::Page(response) => (response, Progress::Served),
            Answer::Refuse(response) => (response, Progress::Failed(Failure::Handshake)),
            Answer::RefuseOrigin(response) => (response, Progress::Failed(Failure::Origin)),
        };
        if let State::Request(mut transport) = std::mem::replace(&mut self.state, State::Done) {
            // A fresh connection has room for a page; a peer that has none gets a part.
            let mut rest = &response[..];
            while let Ok(sent @ 1..) = transport.send(rest) {
                rest = &rest[sent..];
                if rest.is_empty() {
                    break;
                }
            }
            transport.close();
            self.state = State::Lingering(transport);
        }
        progress
    }

    fn ready(&mut self, start: Start, greeting: Vec<u8>, input: Vec<u8>) -> Progress {
        match std::mem::replace(&mut self.state, State::Done) {
            State::Request(transport) => Progress::Subscribe(Ready { transport, start, greeting, input }),
            _ => Progress::Waiting,
        }
    }
}

fn fixed(rules: &Rules) -> Start {
    match rules.start {
        StartPolicy::Fixed(start) => start,
        StartPolicy::Ask => Start::Next,
    }
}
