//! The counters of each server, and how they are read.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use expressway_metrics::Times;

use crate::failure::Reason;

/// Counters of one server.
#[derive(Debug)]
pub(crate) struct ServerStats {
    pub(crate) requests: AtomicU64,
    pub(crate) retries: AtomicU64,
    pub(crate) connections: AtomicU64,
    pub(crate) open: AtomicU64,
    pub(crate) active: AtomicU64,
    failures: [AtomicU64; Reason::ALL.len()],
    latency: Times,
}

impl Default for ServerStats {
    fn default() -> Self {
        Self {
            requests: AtomicU64::new(0),
            retries: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            open: AtomicU64::new(0),
            active: AtomicU64::new(0),
            failures: [const { AtomicU64::new(0) }; Reason::ALL.len()],
            latency: Times::default(),
        }
    }
}

/// Adds one.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl ServerStats {
    pub(crate) fn fail(&self, reason: Reason) {
        count(&self.failures[reason as usize]);
    }

    /// The head of a response came after `time`.
    pub(crate) fn answer(&self, time: Duration) {
        self.latency.add(time);
    }

    pub(crate) fn report(&self, name: String, idle: usize, is_available: bool) -> ServerReport {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let failures =
            Reason::ALL.iter().map(|reason| (reason.as_str(), load(&self.failures[*reason as usize])));
        ServerReport {
            name,
            requests: load(&self.requests),
            retries: load(&self.retries),
            failures: failures.collect(),
            connections: load(&self.connections),
            open: load(&self.open),
            idle: idle as u64,
            active: load(&self.active),
            is_available,
            latency: self.latency.buckets(),
            latency_sum: self.latency.sum(),
        }
    }
}

/// An origin's counters at one time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OriginReport {
    /// Its name.
    pub name: String,
    /// Requests that were refused since too many were under way.
    pub refused: u64,
    /// Its servers.
    pub servers: Vec<ServerReport>,
}

/// A server's counters at one time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerReport {
    /// Where it is.
    pub name: String,
    /// Attempts made at it.
    pub requests: u64,
    /// Of these, attempts after another had failed.
    pub retries: u64,
    /// Attempts and bodies that failed, by reason.
    pub failures: Vec<(&'static str, u64)>,
    /// Connections made.
    pub connections: u64,
    /// Of these, open now.
    pub open: u64,
    /// Of these, idle; an HTTP/2 connection is idle without a request.
    pub idle: u64,
    /// Requests under way.
    pub active: u64,
    /// It is in service.
    pub is_available: bool,
    /// Times until the head of the response, by [`TIME_BOUNDS`](expressway_metrics::TIME_BOUNDS).
    pub latency: Vec<u64>,
    /// All of them together.
    pub latency_sum: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_and_times_are_counted_where_they_belong() {
        let stats = ServerStats::default();
        for reason in Reason::ALL {
            stats.fail(reason);
        }
        for time in [0, 500, 501, 60_000_000] {
            stats.answer(Duration::from_micros(time));
        }
        let report = stats.report("a".into(), 0, true);
        assert!(report.failures.iter().all(|(_, count)| *count == 1), "{:?}", report.failures);
        assert_eq!((report.latency[0], report.latency[1], report.latency[12]), (2, 1, 1));
        assert_eq!(report.latency_sum, Duration::from_micros(60_001_001));
    }
}
