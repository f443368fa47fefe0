//! What a worker's connections are driven with.

use std::sync::Arc;
use std::time::Instant;

use expressway_netio::Slice;
use expressway_netio::trace::Tracer;
use expressway_web::Notify;
use expressway_web::memory::Ledger;

use super::link::Link;
use crate::h3::STREAM_MASK;
use crate::quic::cid::CidIssuer;
use crate::quic::reset::Resets;
use crate::quic::stats::Stats;
use crate::quic::table::Key;

/// What the connections of a worker share.
pub(crate) struct Worker {
    pub(crate) number: u8,
    pub(crate) stats: Stats,
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
    /// It drains because another process has new connections: clients are to have time to go there.
    pub(super) retiring: bool,
    /// So that others may come, of clients that began with it.
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

/// A connection's turn, handed down from the endpoint to the requests.
pub(crate) struct Turn<'a> {
    pub(crate) worker: &'a mut Worker,
    pub(crate) link: &'a mut Link,
    pub(super) key: Key,
    pub(crate) now: Instant,
    /// What this turn may take. Each kind of work does a piece in any case.
    pub(crate) slice: &'a mut Slice,
}

impl Turn<'_> {
    /// The wake token of a request's stream.
    pub(crate) fn token(&self, stream: u64) -> u64 {
        u64::from(self.link.generation) << 48 | (self.key as u64) << 24 | (stream >> 2) & STREAM_MASK
    }
}
