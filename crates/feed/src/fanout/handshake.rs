//! A connection on its way to becoming a subscriber: TLS, then the WebSocket request or the line that selects the
//! start. It never blocks, and buffers a bounded amount of what the peer sends.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use boring::ssl::{HandshakeError, MidHandshakeSslStream, Ssl, SslContext};

use super::options::{Protocol, Start, StartPolicy};
use super::request::{Answer, Head};
use super::stats::Reason;
use super::transport::{Refused, TlsSocket, Transport, refused};

/// Longest line that says a start.
const MAX_LINE: usize = 64;

/// Bytes discarded after a page; a peer that sends more is disconnected.
const MAX_DISCARDED: usize = 64 << 10;

/// Bytes of TLS that a peer may send until it has subscribed, in addition to four times the request's: a
/// hello of 16 KiB, the longest that BoringSSL accepts, in records of one byte.
const MAX_TLS: u64 = 96 << 10;

/// Reads of the socket of a TLS connection before other handshakes have their turn.
const READS: usize = 4;

/// What a handshake needs to know.
pub(crate) struct Rules {
    pub(crate) start: StartPolicy,
    pub(crate) origins: Vec<String>,
    pub(crate) tls: Option<SslContext>,
    /// Maximum length of a request's head.
    pub(crate) request: usize,
}

impl Rules {
    /// Whether subscribers of a protocol have something to say before they are some.
    pub(crate) fn have_handshake(&self, protocol: Protocol) -> bool {
        protocol.is_tls() || protocol.is_websocket() || self.start == StartPolicy::Ask
    }
}

/// How far it has come.
pub(crate) enum Progress {
    /// It waits for the peer.
    Waiting,
    /// It has had its turn; more may be there, of which the socket won't tell again.
    TurnOver,
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
    /// The peer sent too much.
    Size,
    /// It took too long.
    Timeout,
    /// It took long, and others wait.
    Displaced,
    /// The threads that send take no more subscribers.
    Busy,
    /// None: what the peer wanted was a page, and it has that.
    Served,
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
    Tls(Box<MidHandshakeSslStream<TlsSocket>>),
    Request(Transport),
    /// A page has been sent: what the peer still sends is discarded until it closes, or until that is too much.
    Lingering(Transport, usize),
    /// Taken.
    Done,
}

/// A handshake.
pub(crate) struct Handshake {
    protocol: Protocol,
    state: State,
    head: Head,
    line: Vec<u8>,
}

impl Handshake {
    /// Begins one on a fresh connection. `None` when the TLS library fails.
    pub(crate) fn new(protocol: Protocol, socket: Arc<OwnedFd>, rules: &Rules) -> Option<Self> {
        let state = match &rules.tls {
            Some(context) if protocol.is_tls() => {
                let ssl = Ssl::new(context).ok()?;
                State::Tls(Box::new(ssl.setup_accept(TlsSocket::new(socket))))
            }
            _ => State::Request(Transport::Plain(socket)),
        };
        Some(Self { protocol, state, head: Head::new(rules.request), line: Vec::new() })
    }

    /// Goes on as far as the socket lets it, or until its turn is over.
    pub(crate) fn advance(&mut self, rules: &Rules) -> Progress {
        if let State::Tls(_) = self.state
            && let Err(progress) = self.advance_tls(rules)
        {
            return progress;
        }
        match &mut self.state {
            State::Request(_) => self.advance_request(rules),
            State::Lingering(..) => self.discard(),
            State::Tls(_) | State::Done => Progress::Waiting,
        }
    }

    /// Reads on behind a page: closed with something unread, TCP would take it back.
    fn discard(&mut self) -> Progress {
        let State::Lingering(transport, discarded) = &mut self.state else { return Progress::Waiting };
        let mut scratch = [0; 1024];
        transport.allow(READS);
        while *discarded < MAX_DISCARDED {
            match transport.receive(&mut scratch) {
                Ok(length @ 1..) => *discarded += length,
                Err(Refused::Later) if transport.is_starved() => return Progress::TurnOver,
                Err(Refused::Later) => return Progress::Served,
                _ => break,
            }
        }
        Progress::Failed(Failure::Gone)
    }

    fn advance_tls(&mut self, rules: &Rules) -> Result<(), Progress> {
        let State::Tls(mut stream) = std::mem::replace(&mut self.state, State::Done) else { return Ok(()) };
        stream.get_mut().allow(READS);
        match stream.handshake() {
            Ok(mut stream) => {
                stream.get_mut().drain().map_err(|_| Progress::Failed(Failure::Gone))?;
                self.state = State::Request(Transport::Tls(Box::new(stream)));
                Ok(())
            }
            Err(HandshakeError::WouldBlock(mut stream)) => {
                let wire = stream.get_mut();
                let progress = match wire.drain() {
                    Err(_) => Progress::Failed(Failure::Gone),
                    Ok(_) if wire.received() > max_wire(rules) => Progress::Failed(Failure::Size),
                    Ok(_) if wire.is_starved() => Progress::TurnOver,
                    Ok(_) => Progress::Waiting,
                };
                self.state = State::Tls(Box::new(stream));
                Err(progress)
            }
            Err(HandshakeError::Failure(mut stream)) => {
                // The alert that says why.
                let _ = stream.get_mut().drain();
                tracing::debug!("TLS handshake: {}", stream.error());
                Err(Progress::Failed(match refused(stream.error()) {
                    Refused::Gone(Reason::Protocol) | Refused::Later => Failure::Handshake,
                    Refused::Gone(_) => Failure::Gone,
                }))
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
        let State::Request(transport) = &mut self.state else { return Progress::Waiting };
        transport.allow(READS);
        loop {
            let room = if asks { MAX_LINE - self.line.len() } else { self.head.room() };
            if room == 0 {
                break;
            }
            let mut scratch = [0; 1024];
            let room = scratch.len().min(room);
            match transport.receive(&mut scratch[..room]) {
                Ok(0) | Err(Refused::Gone(Reason::Closed)) => return Progress::Failed(Failure::Gone),
                Ok(length) if asks => self.line.extend_from_slice(&scratch[..length]),
                Ok(length) => self.head.push(&scratch[..length]),
                Err(Refused::Later) => break,
                Err(Refused::Gone(Reason::Protocol)) => return Progress::Failed(Failure::Handshake),
                Err(Refused::Gone(_)) => return Progress::Failed(Failure::Gone),
            }
        }
        let is_starved = transport.is_starved();
        if transport.wire_received().is_some_and(|received| received > max_wire(rules)) {
            return Progress::Failed(Failure::Size);
        }
        match if asks { self.line() } else { self.request(rules) } {
            Progress::Waiting if is_starved => Progress::TurnOver,
            progress => progress,
        }
    }

    /// A line such as `last:10`.
    fn line(&mut self) -> Progress {
        let Some(end) = self.line.iter().position(|byte| *byte == b'\n') else {
            let full = self.line.len() >= MAX_LINE;
            return if full { Progress::Failed(Failure::Handshake) } else { Progress::Waiting };
        };
        let line = String::from_utf8_lossy(&self.line[..end]);
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
        let answer = self.head.answer(self.protocol.is_tls(), &rules.origins);
        let (response, progress) = match answer {
            Answer::Incomplete => return Progress::Waiting,
            Answer::Subscribe { start, response, length } => {
                let input = self.head.behind(length);
                return self.ready(start.unwrap_or_else(|| fixed(rules)), response, input);
            }
            Answer::Page(response) => (response, Progress::Served),
            Answer::Refuse(response) => (response, Progress::Failed(Failure::Handshake)),
            Answer::RefuseOrigin(response) => (response, Progress::Failed(Failure::Origin)),
            Answer::TooLong(response) => (response, Progress::Failed(Failure::Size)),
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
            self.state = State::Lingering(transport, 0);
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

/// Bytes that a TLS connection may take from its socket until it has subscribed.
fn max_wire(rules: &Rules) -> u64 {
    MAX_TLS + 4 * rules.request as u64
}

fn fixed(rules: &Rules) -> Start {
    match rules.start {
        StartPolicy::Fixed(start) => start,
        StartPolicy::Ask => Start::Next,
    }
}

#[cfg(all(test, not(loom)))]
#[path = "handshake_tests.rs"]
mod tests;
