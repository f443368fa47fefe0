//! Counters of requests by outcome.

use std::sync::atomic::{AtomicU64, Ordering};

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// It has no token that is good for what it asks.
    Token,
    /// Its offer cannot be read, or has nothing for its room.
    Offer,
    /// Somebody publishes in the room.
    Conflict,
    /// The process has as many sessions, or publishers, as it may.
    Full,
    /// The room has as many players as it may.
    Room,
    /// Its address has as many sessions, or publishers, as one may.
    Address,
    /// The room's worker is behind.
    Busy,
    /// Its session has moved on, or is gone.
    Stale,
    /// It is none of WHIP and WHEP.
    Request,
}

impl Reason {
    /// All, each with its name and help, in their order.
    const ALL: [(&'static str, &'static str); 9] = [
        ("refused_token", "Requests without a token that is good for what they ask."),
        ("refused_offer", "Offers that cannot be parsed, or have nothing for their room."),
        ("refused_conflict", "Offers to publish to a room that has a publisher."),
        ("refused_full", "Offers beyond the number of sessions or publishers."),
        ("refused_room", "Offers beyond the number of players of their room."),
        ("refused_address", "Offers beyond the number of sessions or publishers of an address."),
        ("refused_busy", "Requests for a worker that is behind."),
        ("refused_stale", "Requests about an ICE session that has ended."),
        ("refused_request", "Requests that are neither WHIP nor WHEP."),
    ];
}

/// What came of requests.
#[derive(Debug, Default)]
pub struct HttpCounters {
    answered: AtomicU64,
    restarted: AtomicU64,
    refused: [AtomicU64; Reason::ALL.len()],
}

impl HttpCounters {
    /// An offer was answered.
    pub(super) fn answer(&self) {
        self.answered.fetch_add(1, Ordering::Relaxed);
    }

    /// ICE of a session began anew.
    pub(super) fn restart(&self) {
        self.restarted.fetch_add(1, Ordering::Relaxed);
    }

    /// A request was refused.
    pub(super) fn refuse(&self, reason: Reason) {
        self.refused[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Names, help and values.
    pub fn fields(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> + '_ {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let done = [
            ("answered", "Offers that were answered.", load(&self.answered)),
            ("restarted", "Restarts of ICE.", load(&self.restarted)),
        ];
        let refused = Reason::ALL.iter().zip(&self.refused);
        done.into_iter().chain(refused.map(move |((name, help), counter)| (*name, *help, load(counter))))
    }
}
