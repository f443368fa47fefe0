//! The durations of turns.

use std::time::Duration;

use super::CounterSet;

/// Upper bounds of the buckets of [`TurnTimes`]; one more has what is longer.
pub const TURN_BOUNDS: [Duration; 10] = [
    Duration::from_micros(50),
    Duration::from_micros(100),
    Duration::from_micros(250),
    Duration::from_micros(500),
    Duration::from_millis(1),
    Duration::from_micros(2500),
    Duration::from_millis(5),
    Duration::from_millis(10),
    Duration::from_millis(25),
    Duration::from_millis(100),
];

/// Turns of a worker by their length, from the look at the clock that begins one to that which ends it: whatever the kernel
/// did meanwhile on the same core, interrupts and other threads' shares of it, counts too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TurnTimes {
    /// Turns that took no longer than the bound of the same index, and longer than the bound before.
    pub buckets: [u64; TURN_BOUNDS.len() + 1],
    /// All of them together, in nanoseconds.
    pub sum: u64,
    /// The longest, in nanoseconds.
    pub longest: u64,
}

impl TurnTimes {
    /// Counts a turn.
    #[inline]
    pub fn record(&mut self, time: Duration) {
        self.buckets[Self::bucket(time)] += 1;
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.sum = self.sum.saturating_add(nanoseconds);
        self.longest = self.longest.max(nanoseconds);
    }

    /// Index of the bucket of a turn.
    #[inline]
    pub fn bucket(time: Duration) -> usize {
        TURN_BOUNDS.iter().position(|bound| time <= *bound).unwrap_or(TURN_BOUNDS.len())
    }

    /// Turns counted.
    pub fn turns(&self) -> u64 {
        self.buckets.iter().sum()
    }
}

impl CounterSet for TurnTimes {
    fn each(&mut self, visit: &mut dyn FnMut(&mut u64)) {
        self.buckets.iter_mut().chain([&mut self.sum, &mut self.longest]).for_each(visit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_in_the_bucket_of_the_first_bound_that_it_does_not_exceed() {
        let mut times = TurnTimes::default();
        for microseconds in [0, 50, 51, 1000, 1001, 100_000, 100_001] {
            times.record(Duration::from_micros(microseconds));
        }
        assert_eq!(times.buckets, [2, 1, 0, 0, 1, 1, 0, 0, 0, 1, 1]);
        assert_eq!((times.turns(), times.sum, times.longest), (7, 202_103_000, 100_001_000));
        assert!(TURN_BOUNDS.is_sorted());
    }
}
