//! When a failed operation is retried: after pauses that double up to a maximum.

use std::time::{Duration, Instant};

/// The next try, and the pause after it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Backoff {
    next: Instant,
    pause: Duration,
    longest: Duration,
}

impl Backoff {
    /// The first pause.
    pub(super) const FIRST: Duration = Duration::from_secs(1);

    /// A first try at `now`.
    pub(super) fn new(now: Instant, longest: Duration) -> Self {
        Self { next: now, pause: Self::FIRST, longest }
    }

    /// Whether it is time for a try.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.next <= now
    }

    /// A try at `now` has failed.
    pub(super) fn fail(&mut self, now: Instant) {
        self.next = now + self.pause;
        self.pause = (self.pause * 2).min(self.longest);
    }
}
