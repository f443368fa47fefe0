//! Entry points for fuzz targets: the handshake of a subscriber, one connection at a time. Not for programs.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::handshake::{Handshake, Progress, Rules};
use super::websocket::{Input, Parser};
use super::{Limits, Protocol, StartPolicy, TlsIdentity};

/// How far a handshake has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It waits for the peer.
    Waiting,
    /// The peer has subscribed.
    Subscribed,
    /// A page or a refusal was sent; further input is discarded.
    Served,
    /// The connection is to be closed.
    Failed,
}

/// A connection before it is a subscriber's.
pub struct Connection {
    handshake: Handshake,
    rules: Rules,
    /// What was subscribed by, so that it stays open.
    _subscribed: Option<super::transport::Transport>,
}

impl Connection {
    /// On a fresh socket. `None` when the TLS library fails.
    pub fn new(
        protocol: Protocol,
        socket: OwnedFd,
        start: StartPolicy,
        origins: Vec<String>,
        tls: Option<&TlsIdentity>,
    ) -> Option<Self> {
        let tls = tls.map(|identity| identity.context().clone());
        let rules = Rules { start, origins, tls, request: Limits::default().request };
        let handshake = Handshake::new(protocol, Arc::new(socket), &rules)?;
        Some(Self { handshake, rules, _subscribed: None })
    }

    /// Goes on as far as the socket lets it, as the acceptor does when the socket is readable.
    pub fn advance(&mut self) -> State {
        loop {
            return match self.handshake.advance(&self.rules) {
                Progress::TurnOver => continue,
                Progress::Waiting => State::Waiting,
                Progress::Served => State::Served,
                Progress::Failed(_) => State::Failed,
                Progress::Subscribe(ready) => {
                    self._subscribed = Some(ready.transport);
                    State::Subscribed
                }
            };
        }
    }
}

/// What a WebSocket subscriber sends later.
#[derive(Default)]
pub struct Frames {
    parser: Parser,
}

impl Frames {
    /// Reads on. Bytes of payload that have to be answered.
    ///
    /// # Errors
    /// What the peer did wrong.
    pub fn read(&mut self, bytes: &[u8]) -> Result<usize, &'static str> {
        let mut answered = 0;
        self.parser.read(bytes, &mut |input| match input {
            Input::Ping(payload) => answered += payload.len(),
            Input::Close(_) => answered += 2,
        })?;
        Ok(answered)
    }
}
