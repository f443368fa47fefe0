//! Limits log lines that requests can cause in any number.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use rustix::time::{ClockId, clock_gettime};

/// A repeated problem, logged at most once a second: a line takes longer to write than a request to answer,
/// and the log may have no reader.
#[derive(Debug)]
pub struct LogLimit {
    /// The second of the last one.
    second: AtomicI64,
    unsaid: AtomicU64,
}

impl Default for LogLimit {
    fn default() -> Self {
        Self::new()
    }
}

impl LogLimit {
    /// One that was never made.
    pub const fn new() -> Self {
        Self { second: AtomicI64::new(i64::MIN), unsaid: AtomicU64::new(0) }
    }

    /// How many were left out since the last one, if there may be another now.
    pub fn is_due(&self) -> Option<u64> {
        self.is_due_at(clock_gettime(ClockId::MonotonicCoarse).tv_sec)
    }

    fn is_due_at(&self, second: i64) -> Option<u64> {
        if self.second.swap(second, Ordering::Relaxed) != second {
            return Some(self.unsaid.swap(0, Ordering::Relaxed));
        }
        self.unsaid.fetch_add(1, Ordering::Relaxed);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_a_second_tells_of_the_others() {
        let limit = LogLimit::new();
        let due: Vec<_> = [7, 7, 7, 8, 9, 9, 20].iter().map(|second| limit.is_due_at(*second)).collect();
        assert_eq!(due, [Some(0), None, None, Some(2), Some(0), None, Some(1)]);
    }
}
