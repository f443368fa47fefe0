//! Times of frames: the RTP timestamps of a stream in microseconds since its broadcast began.
//!
//! Sound and pictures share that beginning. Where a stream stands is known by its publisher's reports, and before the first of them by when
//! its first frame came.

use expressway_h3::varint;

/// A difference from this on is corrected, in microseconds: one that is seen or heard.
const APART: i64 = 10_000;
/// Without a report, one from this on: the publisher's clock was set.
const FAR: i64 = 10_000_000;
/// The latest time that a frame says: as a difference it still fits an integer of QUIC.
const LATEST: i64 = (varint::MAX / 4) as i64;

/// The clock of a stream.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// In Hz.
    rate: u32,
    /// The last timestamp, and units since the first.
    last: u32,
    units: i64,
    /// Microseconds at unit 0.
    offset: i64,
    /// The number of the report that it was set by; 0: by none.
    report: u32,
}

impl Clock {
    /// Begins at a timestamp that stands for that time.
    pub fn new(rate: u32, timestamp: u32, time: i64, report: u32) -> Self {
        Self { rate: rate.max(1), last: timestamp, units: 0, offset: time, report }
    }

    /// The time of a timestamp, less than half of their range from the last one.
    pub fn time(&mut self, timestamp: u32) -> u64 {
        let difference = timestamp.wrapping_sub(self.last) as i32;
        self.last = timestamp;
        self.units = self.units.saturating_add(difference.into());
        self.now()
    }

    fn raw(&self) -> i64 {
        let microseconds = i128::from(self.units) * 1_000_000 / i128::from(self.rate);
        (microseconds + i128::from(self.offset)).clamp(0, LATEST.into()) as i64
    }

    fn now(&self) -> u64 {
        self.raw().unsigned_abs()
    }

    /// A group is to begin at the last timestamp, which by the report of that number is `time`: from here on it is, if it was far from it.
    pub fn correct(&mut self, time: i64, report: u32) -> u64 {
        let difference = time.saturating_sub(self.raw());
        let is_new = report != 0 && report != self.report;
        if difference.saturating_abs() >= FAR || is_new && difference.saturating_abs() >= APART {
            self.offset = self.offset.saturating_add(difference);
        }
        if is_new {
            self.report = report;
        }
        self.now()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn timestamps_wrap_and_go_back() {
        let mut clock = Clock::new(90_000, u32::MAX - 2999, 1_000_000, 0);
        assert_eq!(clock.time(u32::MAX - 2999), 1_000_000);
        assert_eq!(clock.time(0), 1_033_333, "3000 units later");
        assert_eq!(clock.time(6000), 1_100_000);
        assert_eq!(clock.time(3000), 1_066_666, "pictures are sent in the order in which they are decoded");
        let mut clock = Clock::new(48_000, 5, 0, 0);
        assert_eq!(clock.time(0), 0, "nothing is before the beginning");
        // 27 hours of sound, and the timestamps have wrapped.
        let last = (0..5_000_000u32).map(|frame| clock.time(frame.wrapping_mul(960))).last();
        assert_eq!(last, Some(4_999_999 * 20_000 - 105));
    }

    #[test]
    fn a_report_sets_the_clock_and_small_differences_stay() {
        let mut clock = Clock::new(90_000, 0, 500_000, 0);
        clock.time(90_000);
        assert_eq!(clock.correct(1_600_000, 0), 1_500_000, "when it came is no better");
        assert_eq!(clock.correct(1_580_000, 1), 1_580_000, "a report is");
        assert_eq!(clock.correct(1_600_000, 1), 1_580_000, "once");
        assert_eq!(clock.correct(1_588_000, 2), 1_580_000, "nobody notices");
        assert_eq!(clock.correct(20_000_000, 2), 20_000_000, "the clock was set");
    }

    proptest! {
        #[test]
        fn whatever_timestamps_come_times_are_in_range(
            rate in any::<u32>(),
            steps in prop::collection::vec((any::<u32>(), any::<i64>(), any::<u32>()), 0..100),
        ) {
            let mut clock = Clock::new(rate, 7, 0, 0);
            for (timestamp, time, report) in steps {
                prop_assert!(clock.time(timestamp) <= LATEST as u64);
                prop_assert!(clock.correct(time, report) <= LATEST as u64);
            }
        }
    }
}
