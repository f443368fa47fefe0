//! Collapses requests for key frames: however many receivers ask, the publisher is asked once in a while.

use std::time::{Duration, Instant};

/// Requests for key frames of a stream.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeyframeRequests {
    wanted: bool,
    asked: Option<Instant>,
}

impl KeyframeRequests {
    /// A receiver asks.
    pub fn want(&mut self) {
        self.wanted = true;
    }

    /// When the publisher is to be asked.
    pub fn deadline(&self, interval: Duration, now: Instant) -> Option<Instant> {
        self.wanted.then(|| self.asked.map_or(now, |asked| asked + interval))
    }

    /// Whether the publisher is to be asked now; then it counts as asked.
    pub fn poll(&mut self, interval: Duration, now: Instant) -> bool {
        let due = self.deadline(interval, now).is_some_and(|deadline| deadline <= now);
        if due {
            *self = Self { wanted: false, asked: Some(now) };
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_passed_on_at_once_and_others_together() {
        let (interval, start) = (Duration::from_millis(500), Instant::now());
        let mut requests = KeyframeRequests::default();
        assert!(!requests.poll(interval, start));
        requests.want();
        assert!(requests.poll(interval, start));
        for later in [1, 10, 499] {
            requests.want();
            assert!(!requests.poll(interval, start + Duration::from_millis(later)));
        }
        assert_eq!(requests.deadline(interval, start), Some(start + interval));
        assert!(requests.poll(interval, start + interval));
        assert!(!requests.poll(interval, start + interval * 9), "nobody has asked since");
    }
}
