//! The context of a turn of a worker's connections.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use expressway_netio::Slice;
use expressway_netio::trace::Tracer;
use expressway_web::Notify;
use expressway_web::memory::{Account, Ledger};

use super::link::Link;
use crate::h3::STREAM_MASK;
use crate::quic::cid::CidIssuer;
use crate::quic::engine::Transport;
use crate::quic::reset::Resets;
use crate::quic::stats::Stats;
use crate::quic::table::Key;

/// What the connections of a worker share.
pub(crate) struct Worker {
    pub(crate) number: u8,
    pub(crate) stats: Stats,
    /// The first timer token of its connections: those below are the service's that contains the endpoint.
    pub(super) first_timer: usize,
    /// Told when exchanges can make progress.
    pub(crate) notify: Arc<dyn Notify>,
    /// The worker's account of memory.
    pub(crate) ledger: Arc<Ledger>,
    pub(super) cids: CidIssuer,
    pub(super) resets: Resets,
    /// Scratch for strings of header sections; it grows to 8/5 of the largest that is read.
    pub(crate) strings: Vec<u8>,
    /// When open connections are closed, while the endpoint drains.
    pub(super) drain: Option<Instant>,
    /// It drains because a newer process accepts new connections: clients get time to go there.
    pub(super) retiring: bool,
    /// So connections of clients that had begun with it may still arrive.
    pub(super) awaits_crossing: bool,
    /// The drain is over.
    pub(super) expired: bool,
    pub(crate) tracer: Tracer,
}

impl Worker {
    /// New connections are refused.
    pub(super) fn refuses_new(&self) -> bool {
        self.drain.is_some() && (!self.retiring || self.expired)
    }
}

/// A connection's turn, handed down from the endpoint to the application.
pub struct Turn<'a> {
    pub(crate) worker: &'a mut Worker,
    pub(crate) link: &'a mut Link,
    pub(super) key: Key,
    pub(crate) now: Instant,
    /// What this turn may take. Each kind of work does a piece in any case.
    pub(crate) slice: &'a mut Slice,
}

/// Has a connection's session go on in a turn of its worker; see [`Session::wake`](crate::quic::Session::wake).
#[derive(Clone)]
pub struct Waker {
    notify: Arc<dyn Notify>,
    token: u64,
}

impl Waker {
    /// Wakes it, from any thread. Does nothing if the session has ended meanwhile.
    pub fn wake(&self) {
        self.notify.notify(self.token);
    }
}

impl std::fmt::Debug for Waker {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Waker").field("token", &self.token).finish_non_exhaustive()
    }
}

impl Turn<'_> {
    /// The streams of the connection.
    pub fn transport(&mut self) -> &mut Transport {
        &mut self.link.transport
    }

    /// Where the client is.
    pub fn remote(&self) -> SocketAddr {
        self.link.remote()
    }

    /// The time of the turn.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// When the client's last packet arrived.
    pub fn heard(&self) -> Instant {
        self.link.heard
    }

    /// An account of what the connection holds: `window` bytes on their way to its client, `most` in all, within what the worker's
    /// connections may hold together.
    pub fn account(&self, window: usize, most: usize) -> Account {
        Account::new(&self.worker.ledger, window, most)
    }

    /// Ends a piece of work. True: what this turn may take is used up, and the rest is for the next one.
    pub fn spend(&mut self) -> bool {
        self.slice.is_spent() || self.slice.spend()
    }

    /// What wakes the session with `number`, modulo 2^24.
    pub fn waker(&self, number: u64) -> Waker {
        Waker { notify: Arc::clone(&self.worker.notify), token: self.numbered(number) }
    }

    /// Closes the connection because nothing is left to say.
    pub(super) fn close(&mut self, reason: &str) {
        let code = self.link.setup.application.closing_code(self.link.transport.protocol());
        self.link.transport.close_connection(code, reason);
    }

    fn numbered(&self, number: u64) -> u64 {
        u64::from(self.link.generation) << 48 | (self.key as u64) << 24 | number & STREAM_MASK
    }

    /// The wake token of a request's stream.
    pub(crate) fn token(&self, stream: u64) -> u64 {
        self.numbered(stream >> 2)
    }
}
