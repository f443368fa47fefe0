//! Rate limits: a rate, after a burst.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A rate with an initial burst.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate {
    /// Size of the burst.
    pub(crate) burst: u32,
    /// Interval between events after the burst.
    pub(crate) interval: Duration,
}

/// Recent events (the generic cell rate algorithm, ITU-T I.371).
#[derive(Debug, Default)]
pub(crate) struct Bucket {
    /// When all of them will be forgotten.
    empty: Option<Instant>,
}

impl Bucket {
    /// Records an event; returns how long it has to wait.
    pub(crate) fn take(&mut self, rate: Rate, now: Instant) -> Duration {
        let empty = self.empty.map_or(now, |empty| empty.max(now)) + rate.interval;
        self.empty = Some(empty);
        (empty - now).saturating_sub(rate.interval * rate.burst)
    }

    /// The same, unless it would have to wait.
    fn try_take(&mut self, rate: Rate, now: Instant) -> bool {
        let before = self.empty;
        let may = self.take(rate, now).is_zero();
        if !may {
            self.empty = before;
        }
        may
    }
}

/// Log lines that others can cause: a limited number, with a count of those suppressed.
#[derive(Debug)]
pub(crate) struct LogLimit {
    rate: Rate,
    state: Mutex<(Bucket, u64)>,
}

impl LogLimit {
    /// The first 50, then one per second.
    pub(crate) fn new() -> Self {
        let rate = Rate { burst: 50, interval: Duration::from_secs(1) };
        Self { rate, state: Mutex::default() }
    }

    /// Whether a line may be logged now; if so, how many were suppressed since the last.
    pub(crate) fn next(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (bucket, unsaid) = &mut *state;
        if bucket.try_take(self.rate, now) {
            return Some(std::mem::take(unsaid));
        }
        *unsaid += 1;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_burst_is_free_and_what_follows_waits_its_turn() {
        let rate = Rate { burst: 3, interval: SECOND };
        let (mut bucket, start) = (Bucket::default(), Instant::now());
        let waits: Vec<Duration> = (0..5).map(|_| bucket.take(rate, start)).collect();
        assert_eq!(waits, [Duration::ZERO, Duration::ZERO, Duration::ZERO, SECOND, SECOND * 2]);
        // Waiting pays off the debt: after 5 seconds none is left.
        assert_eq!(bucket.take(rate, start + SECOND * 2), SECOND);
        let rested = start + SECOND * 100;
        assert!((0..3).all(|_| bucket.take(rate, rested).is_zero()));
        assert_eq!(bucket.take(rate, rested), SECOND, "rest is not saved up");
    }

    #[test]
    fn a_flood_of_lines_is_counted() {
        let (limit, start) = (LogLimit::new(), Instant::now());
        let said = (0..1000).filter_map(|_| limit.next(start)).collect::<Vec<_>>();
        assert_eq!(said, [0; 50]);
        assert_eq!(limit.next(start + SECOND), Some(950));
        assert_eq!(limit.next(start + SECOND), None);
        assert_eq!(limit.next(start + SECOND * 2), Some(1));
    }
}
