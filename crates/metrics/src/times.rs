//! A histogram of durations that several threads measure.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::count;

/// Upper bounds of the buckets of [`Times`] but the last.
pub const TIME_BOUNDS: [Duration; 12] = [
    Duration::from_micros(500),
    Duration::from_millis(1),
    Duration::from_micros(2500),
    Duration::from_millis(5),
    Duration::from_millis(10),
    Duration::from_millis(25),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(250),
    Duration::from_secs(1),
    Duration::from_secs(5),
    Duration::from_secs(30),
];

/// Times by their length, as they are measured.
#[derive(Debug)]
pub struct Times {
    buckets: [AtomicU64; TIME_BOUNDS.len() + 1],
    /// In nanoseconds.
    sum: AtomicU64,
}

impl Default for Times {
    fn default() -> Self {
        Self { buckets: [const { AtomicU64::new(0) }; TIME_BOUNDS.len() + 1], sum: AtomicU64::new(0) }
    }
}

impl Times {
    /// Adds one.
    pub fn add(&self, time: Duration) {
        count(&self.buckets[TIME_BOUNDS.partition_point(|bound| *bound < time)]);
        self.sum.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// How many there were in each bucket by itself; one more than there are bounds.
    pub fn buckets(&self) -> Vec<u64> {
        self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).collect()
    }

    /// All of them together.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum.load(Ordering::Relaxed))
    }
}
