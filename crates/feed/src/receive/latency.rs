//! The latency of datagrams: from their timestamp to the callback, and from the time at which they were due to be
//! sent.

use expressway_netio::Datagram;
use expressway_netio::io::TimeSource;
use hdrhistogram::Histogram;

use super::clock::Clock;
use crate::probe::Probe;

/// The longest latency that is one: beyond it the clocks do not agree, or the datagram is a recording.
const LONGEST: u64 = 60_000_000_000;
/// Significant digits of a latency: 0.1 %.
const DIGITS: u8 = 3;

/// Latencies of one kind, in nanoseconds.
#[derive(Clone, Debug)]
pub struct Track {
    histogram: Histogram<u64>,
    /// Latencies below 0 or above a minute: the clocks of the two ends do not agree.
    pub implausible: u64,
}

impl Track {
    /// An empty one.
    pub fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, LONGEST, DIGITS);
        // The bounds are constants, which a test has tried.
        let histogram = histogram.unwrap_or_else(|error| unreachable!("bounds of a histogram: {error}"));
        Self { histogram, implausible: 0 }
    }

    /// Records what took from `start` to `end`, nanoseconds of one clock.
    #[inline]
    pub fn record(&mut self, start: u64, end: u64) {
        match end.checked_sub(start) {
            Some(latency) if latency <= LONGEST => self.histogram.saturating_record(latency),
            _ => self.implausible += 1,
        }
    }

    /// The latencies.
    pub fn histogram(&self) -> &Histogram<u64> {
        &self.histogram
    }

    /// Whether nothing was recorded, nor found implausible.
    pub fn is_empty(&self) -> bool {
        self.histogram.is_empty() && self.implausible == 0
    }
}

impl Default for Track {
    fn default() -> Self {
        Self::new()
    }
}

/// Measures datagrams as they are handed over.
#[derive(Clone, Debug)]
pub struct Latency {
    nic_clock: Clock,
    nic: Track,
    xdp: Track,
    kernel: Track,
    wire: Track,
}

impl Latency {
    /// With the clock that NICs are kept to here.
    pub fn new(nic_clock: Clock) -> Self {
        let track = Track::new;
        Self { nic_clock, nic: track(), xdp: track(), kernel: track(), wire: track() }
    }

    /// Measures one datagram, up to now.
    #[inline]
    pub fn record(&mut self, datagram: &Datagram<'_>) {
        if let Some(stamp) = datagram.hints.timestamp {
            let now = Clock::of(stamp.source, self.nic_clock).now();
            let track = match stamp.source {
                TimeSource::Device => &mut self.nic,
                TimeSource::Program => &mut self.xdp,
                TimeSource::Kernel => &mut self.kernel,
            };
            track.record(stamp.nanoseconds, now);
        }
        if let Some(probe) = Probe::parse(datagram.payload) {
            self.wire.record(probe.time, Probe::now());
        }
    }

    /// From timestamp to callback, by timestamp source: `nic`, `xdp`, `kernel`.
    pub fn callback(&self) -> [(&'static str, &Track); 3] {
        [("nic", &self.nic), ("xdp", &self.xdp), ("kernel", &self.kernel)]
    }

    /// From the time that a [`Probe`] was due to be sent to the callback; other datagrams are not measured so.
    pub fn wire(&self) -> &Track {
        &self.wire
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_that_disagree_are_counted_and_not_measured() {
        let mut track = Track::new();
        assert!(track.is_empty());
        track.record(100, 99);
        track.record(0, LONGEST + 1);
        assert_eq!((track.implausible, track.histogram().len()), (2, 0));
        track.record(0, LONGEST);
        track.record(5, 5);
        track.record(1_000, 3_000);
        assert_eq!((track.implausible, track.histogram().len()), (2, 3));
        assert_eq!(track.histogram().value_at_quantile(0.5), 2_000);
        let longest = track.histogram().max() as f64 / LONGEST as f64;
        assert!((0.999..1.001).contains(&longest));
    }
}
