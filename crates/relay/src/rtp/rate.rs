//! The bit rate of a stream over about the last second.

use std::time::{Duration, Instant};

/// Spans that are counted apart: the oldest goes as a new one begins.
const SPANS: usize = 4;
const SPAN: Duration = Duration::from_millis(250);

/// Octets of the last spans.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Of whole spans, the latest first.
    past: [u64; SPANS],
    /// How many there were, up to all of them.
    known: u32,
    current: u64,
    begun: Instant,
}

impl Rate {
    /// Nothing yet.
    pub fn new(now: Instant) -> Self {
        Self { past: [0; SPANS], known: 0, current: 0, begun: now }
    }

    /// Time goes on.
    fn advance(&mut self, now: Instant) {
        let spans = (now.saturating_duration_since(self.begun).as_millis() / SPAN.as_millis()) as usize;
        for _ in 0..spans.min(SPANS + 1) {
            self.past.rotate_right(1);
            self.past[0] = std::mem::take(&mut self.current);
            self.known = (self.known + 1).min(SPANS as u32);
        }
        self.begun += SPAN * spans as u32;
    }

    /// So many octets have come.
    pub fn count(&mut self, octets: usize, now: Instant) {
        self.advance(now);
        self.current += octets as u64;
    }

    /// Bits per second. Before the first span is over, what has come counts as one.
    pub fn bits_per_second(mut self, now: Instant) -> u64 {
        self.advance(now);
        let (octets, spans) = match self.known {
            0 => (self.current, 1),
            known => (self.past.iter().sum(), u64::from(known)),
        };
        octets * 8 * 1000 / (spans * SPAN.as_millis() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_stream_has_its_rate_and_then_none() {
        let start = Instant::now();
        let mut rate = Rate::new(start);
        assert_eq!(rate.bits_per_second(start), 0);
        rate.count(250, start);
        assert_eq!(rate.bits_per_second(start), 8000, "as if it were all of a span");
        for number in 1..200 {
            rate.count(250, start + Duration::from_millis(10) * number);
        }
        assert_eq!(rate.bits_per_second(start + Duration::from_secs(2)), 200_000);
        assert_eq!(
            rate.bits_per_second(start + Duration::from_millis(2500)),
            100_000,
            "half a second of silence"
        );
        assert_eq!(rate.bits_per_second(start + Duration::from_secs(20)), 0);
    }
}
