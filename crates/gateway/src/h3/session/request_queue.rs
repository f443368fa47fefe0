//! Requests that wait unread while their connection has its maximum in progress.
//!
//! They wait in QUIC, within the client's flow control. An error would cost the client a round trip and the
//! server an answer, for something that will be served in a moment.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use expressway_web::memory::Charge;

use super::Session;
use crate::quic::Turn;
use crate::quic::stats::Stats;

/// Part of what a connection may hold that its requests may take, responses aside.
const REQUESTS: usize = 4;

/// What a request takes with QUIC while it is not read, in bytes, as an allocator counts it.
const UNREAD: usize = 2000;

/// Streams of requests that wait, in the order that the client opened them, and what makes them.
#[derive(Default)]
pub(super) struct RequestQueue {
    streams: BTreeMap<u64, Charge>,
    /// Requests that may be under way.
    most: usize,
}

impl RequestQueue {
    /// Empties the queue.
    pub(super) fn clear(&mut self, stats: &mut Stats) {
        stats.requests_waiting -= self.streams.len() as u64;
        self.streams.clear();
    }
}

impl Session {
    /// Has what the connection may hold follow what the process has left.
    pub(crate) fn follow_limits(&mut self, turn: &Turn<'_>) {
        self.account.follow();
        self.queue.most = turn.link.settings().max_open_files.min(turn.worker.ledger.memory().file_share());
    }

    /// No other request can be begun now.
    fn is_full(&self) -> bool {
        let begun = || self.account.requests().saturating_sub(self.queue.streams.len() * UNREAD);
        self.streams.len() >= self.queue.most
            || !self.streams.is_empty() && begun() >= self.account.limit() / REQUESTS
    }

    /// Whether `stream` is to be left unread for now; if so, queues it.
    #[inline]
    pub(super) fn waits(&mut self, turn: &mut Turn<'_>, stream: u64) -> bool {
        if !self.is_full() || !self.is_unknown(stream) {
            return false;
        }
        if let Entry::Vacant(entry) = self.queue.streams.entry(stream) {
            entry.insert(self.account.charge_request(UNREAD));
            turn.worker.stats.requests_waiting += 1;
            turn.worker.stats.requests_deferred += 1;
        }
        true
    }

    /// Nothing has been read of `stream`, or it was refused.
    fn is_unknown(&self, stream: u64) -> bool {
        !self.streams.contains_key(&stream)
            && !self.incoming.contains(stream)
            && (stream >= self.next_stream || self.late.contains(&stream))
    }

    /// A request that waits can be begun.
    pub(crate) fn can_begin(&self) -> bool {
        !self.queue.streams.is_empty() && !self.is_full()
    }

    /// Reads requests that waited, as far as they can be begun. True: the slice was spent, and there are more.
    pub(crate) fn handle_queue(&mut self, turn: &mut Turn<'_>, scratch: &mut [u8]) -> bool {
        // What was not read to its end goes first.
        while self.unread.is_empty() && self.can_begin() && !turn.link.transport.is_ending() {
            let Some((stream, charge)) = self.queue.streams.pop_first() else { break };
            // It counts as begun instead, or else again.
            drop(charge);
            turn.worker.stats.requests_waiting -= 1;
            if let Err(error) = self.read_request(turn, stream, scratch) {
                self.fail(turn, stream, &error);
            }
            if turn.slice.is_spent() || turn.slice.spend() {
                break;
            }
        }
        self.can_begin()
    }
}
