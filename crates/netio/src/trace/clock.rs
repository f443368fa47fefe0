//! One clock for all hops.

use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};

/// Relates the clocks that hops are stamped by.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// [`Instant`] is CLOCK_MONOTONIC, which it does not show.
    origin: Instant,
    monotonic: u64,
    /// What CLOCK_REALTIME and CLOCK_TAI are ahead.
    realtime: u64,
    tai: u64,
}

impl Clock {
    pub(super) fn new() -> Self {
        let nanoseconds = |clock| {
            let time = clock_gettime(clock);
            time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
        };
        let (origin, monotonic) = (Instant::now(), nanoseconds(ClockId::Monotonic));
        let ahead = |clock| nanoseconds(clock).wrapping_sub(monotonic);
        Self { origin, monotonic, realtime: ahead(ClockId::Realtime), tai: ahead(ClockId::Tai) }
    }

    /// An instant in nanoseconds of CLOCK_MONOTONIC.
    pub fn nanoseconds(&self, instant: Instant) -> u64 {
        match instant.checked_duration_since(self.origin) {
            Some(since) => self.monotonic + since.as_nanos() as u64,
            None => self.monotonic.saturating_sub((self.origin - instant).as_nanos() as u64),
        }
    }

    /// A time of CLOCK_REALTIME between this clock's beginning and `taken`, in nanoseconds of CLOCK_MONOTONIC. `None`: it was not,
    /// or the clock was set meanwhile.
    pub fn of_realtime(&self, time: u64, taken: u64) -> Option<u64> {
        self.earlier(time.wrapping_sub(self.realtime), taken)
    }

    /// The same of CLOCK_TAI.
    pub fn of_tai(&self, time: u64, taken: u64) -> Option<u64> {
        self.earlier(time.wrapping_sub(self.tai), taken)
    }

    fn earlier(&self, time: u64, taken: u64) -> Option<u64> {
        let is_plausible = time <= taken + APART && time + APART >= self.monotonic;
        is_plausible.then_some(time.min(taken))
    }

    /// What CLOCK_TAI is ahead of CLOCK_MONOTONIC, in nanoseconds.
    pub(super) fn tai_ahead(&self) -> u64 {
        self.tai
    }

    /// What CLOCK_REALTIME is ahead of CLOCK_MONOTONIC, in nanoseconds.
    pub fn realtime_ahead(&self) -> u64 {
        self.realtime
    }
}

/// What two readings of two clocks may be apart.
const APART: u64 = 20_000;
