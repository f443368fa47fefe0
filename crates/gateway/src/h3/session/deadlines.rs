//! Timeouts for clients that do not read, or do not complete their requests.
//!
//! Connections with something in flight are swept periodically; these timeouts cost nothing in between. A client that
//! reads more slowly than `response_rate` counts as not reading, and one that sends a body more slowly than `request_rate` as
//! not sending, so that a byte now and then keeps neither alive. A response whose client was too slow between two sweeps releases the block that it reads from.

use std::time::{Duration, Instant};

use expressway_web::patience::{Pace, patience};

use super::Session;
use crate::h3::code;
use crate::h3::stream::Progress;
use crate::quic::Turn;

/// Sweeps within the shorter of the deadlines, which so may be late by this part.
const SWEEPS: u32 = 8;

/// The longest time between sweeps.
const LONGEST: Duration = Duration::from_secs(2);

/// What has timed out of a stream.
#[derive(Clone, Copy)]
enum Late {
    /// The header section of its request.
    Head,
    /// The body of its request.
    Body,
    Response,
}

/// The last sweep and the next.
#[derive(Default)]
pub(super) struct Sweep {
    next: Option<Instant>,
    /// Of what the client acknowledges.
    acknowledged: Pace,
    /// Octets that QUIC has taken of responses, and their pace.
    pub(super) taken: u64,
    moves: Pace,
}

impl Session {
    /// When [`Self::handle_deadline`] must be called next.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.sweep.next.filter(|_| self.is_busy())
    }

    /// Something is under way that the client has to take, acknowledge or finish.
    fn is_busy(&self) -> bool {
        !self.streams.is_empty() || !self.incoming.is_empty() || self.account.in_flight() > 0
    }

    /// Has the next sweep come in time.
    #[inline]
    pub(crate) fn watch(&mut self, turn: &Turn<'_>) {
        if self.sweep.next.is_none() && self.is_busy() {
            let shorter = turn.link.settings().response_timeout.min(turn.link.settings().request_timeout);
            self.sweep.next = Some(turn.now + (shorter / SWEEPS).min(LONGEST));
        }
    }

    /// Sweeps: ends what has timed out. True: the slice was used up, and there is more.
    pub(crate) fn handle_deadline(&mut self, turn: &mut Turn<'_>) -> bool {
        self.sweep.next = None;
        let patience = patience(turn.link.settings().response_timeout, turn.worker.ledger.memory().left());
        let start = turn.now.checked_sub(turn.link.settings().request_timeout);
        let mut overdue = self.late_heads(start);
        overdue.extend(self.late_bodies(turn));
        if self.acknowledges_nothing(turn, patience) {
            tracing::debug!(remote = %turn.link.remote(), "client acknowledges nothing");
            turn.worker.stats.connections_stalled += 1;
            turn.link.transport.close(code::EXCESSIVE_LOAD, "no acknowledgements received");
            return false;
        }
        overdue.extend(self.late_responses(turn, patience));
        for (index, (stream, late)) in overdue.into_iter().enumerate() {
            if index > 0 && turn.slice.spend() {
                // The rest is as late in the next turn.
                self.sweep.next = Some(turn.now);
                return true;
            }
            self.end_late(turn, stream, late);
        }
        false
    }

    fn end_late(&mut self, turn: &mut Turn<'_>, stream: u64, late: Late) {
        let remote = turn.link.remote();
        match late {
            Late::Head => {
                // Nothing was done with it, so that the client may send it again.
                tracing::debug!(%remote, stream, "timed out receiving a header section");
                turn.worker.stats.refused_request_timeout += 1;
                self.is_new(stream);
                self.abort(turn, stream, code::REQUEST_REJECTED);
                self.count_abandoned(turn);
            }
            // It may have ended with its body.
            Late::Body | Late::Response if !self.streams.contains_key(&stream) => {}
            Late::Body => {
                tracing::debug!(%remote, stream, "timed out receiving a body");
                turn.worker.stats.refused_request_timeout += 1;
                self.abort(turn, stream, code::REQUEST_CANCELLED);
                self.give_up(turn, stream);
            }
            Late::Response => {
                // It was begun, so that it counts as cancelled and not as rejected (RFC 9114, section 4.1.1).
                tracing::debug!(%remote, stream, "client is not reading a response");
                self.end(turn, stream, Progress::TimedOut);
            }
        }
    }

    /// Requests whose header sections are incomplete and began before `start`.
    fn late_heads(&self, start: Option<Instant>) -> Vec<(u64, Late)> {
        let Some(start) = start else { return Vec::new() };
        let streams = self.incoming.older_than(start).filter(|stream| !self.streams.contains_key(stream));
        streams.map(|stream| (stream, Late::Head)).collect()
    }

    /// Requests of whose bodies too little has come for too long.
    fn late_bodies(&mut self, turn: &Turn<'_>) -> Vec<(u64, Late)> {
        let (now, settings) = (turn.now, turn.link.settings());
        let late = self.streams.values_mut().filter_map(|request| {
            let since = request.owes_body_since(now, settings.request_rate)?;
            (now.duration_since(since) >= settings.request_timeout).then_some((request.id, Late::Body))
        });
        late.collect()
    }

    /// The client has acknowledged too little of what QUIC holds for too long.
    fn acknowledges_nothing(&mut self, turn: &Turn<'_>, patience: Duration) -> bool {
        let fetched: usize = self.streams.values().map(|request| request.fetched()).sum();
        let reads = self.streams.values().any(|request| request.waits_for_exchange());
        let owed = self.account.in_flight().saturating_sub(fetched) as u64;
        if reads || owed == 0 {
            self.sweep.acknowledged.forget();
            return false;
        }
        let rate = turn.link.settings().response_rate;
        let since = self.sweep.acknowledged.slow_since(turn.now, self.account.arrived(), owed, rate);
        since.is_some_and(|since| turn.now.duration_since(since) >= patience)
    }

    /// Responses of which the client has taken too little for too long.
    fn late_responses(&mut self, turn: &mut Turn<'_>, patience: Duration) -> Vec<(u64, Late)> {
        let (now, rate) = (turn.now, turn.link.settings().response_rate);
        // Of a connection that was idle nothing was owed. Twice, so that each response that is judged by this ends before.
        self.sweep.moves.forget_after(now, 2 * patience);
        let moves = self.sweep.moves.slow_since(now, self.sweep.taken, u64::MAX, rate).is_none();
        // If others make progress and the connection has no room for more, the room is theirs.
        let excused = moves && !self.peer.takes(&mut turn.link.transport);
        let late = self.streams.values_mut().filter_map(|request| {
            let since = request.stalled_since(now, excused, rate)?;
            (now.duration_since(since) >= patience).then_some((request.id, Late::Response))
        });
        late.collect()
    }
}
