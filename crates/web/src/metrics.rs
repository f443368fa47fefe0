//! Counters and times as plain atomics, and the uniform way to read them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Whether a value only grows or is a level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Monotonic since start.
    Counter,
    /// A current level.
    Gauge,
}

/// One value with its name (Prometheus spelling, without prefix) and its meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metric {
    /// Name, such as `block_cache_hits_total`.
    pub name: &'static str,
    /// One sentence for `# HELP`.
    pub help: &'static str,
    /// Counter or gauge.
    pub kind: Kind,
    /// The value at the time of reading.
    pub value: u64,
}

/// Declares a struct of atomic counters with `fields()`; the doc comment of each field is its help text.
#[macro_export]
macro_rules! counters {
    ($(#[$meta:meta])* $vis:vis struct $name:ident { $($help:literal $field:ident,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Default)]
        $vis struct $name { $(#[doc = $help] $vis $field: std::sync::atomic::AtomicU64,)* }

        impl $name {
            /// Every counter with its name (suffixed `_total`), help text and current value.
            $vis fn fields(&self) -> impl Iterator<Item = $crate::metrics::Metric> + use<> {
                [$($crate::metrics::Metric {
                    name: concat!(stringify!($field), "_total"),
                    help: $help,
                    kind: $crate::metrics::Kind::Counter,
                    value: self.$field.load(std::sync::atomic::Ordering::Relaxed),
                },)*].into_iter()
            }
        }
    };
}
pub use counters;

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

/// Adds one to a counter.
pub fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
