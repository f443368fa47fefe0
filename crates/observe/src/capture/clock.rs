//! Converts the monotonic time of the kernel's timestamps to time since the epoch.

use rustix::time::{ClockId, clock_gettime};

/// How often the clocks are read until a reading is good.
const TRIES: usize = 4;

/// Nanoseconds that may pass while both clocks are read: more is an interruption, by which times would jump.
const GOOD: i64 = 5_000;

/// The monotonic clock now, in nanoseconds.
pub(super) fn monotonic() -> u64 {
    nanoseconds(ClockId::Monotonic).cast_unsigned()
}

fn nanoseconds(clock: ClockId) -> i64 {
    let time = clock_gettime(clock);
    time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec)
}

/// The clocks' relation, read again and again: the time of day may be set or slewed.
#[derive(Debug, Default)]
pub struct Clock {
    /// From monotonic to the epoch, in nanoseconds, and by how much it may be wrong.
    offset: Option<(i64, i64)>,
}

/// Both clocks, the monotonic one before and after the other.
#[derive(Clone, Copy, Debug)]
struct Reading {
    before: i64,
    epoch: i64,
    after: i64,
}

impl Reading {
    fn now() -> Self {
        Self {
            before: nanoseconds(ClockId::Monotonic),
            epoch: nanoseconds(ClockId::Realtime),
            after: nanoseconds(ClockId::Monotonic),
        }
    }

    /// Nanoseconds that the reading took.
    fn took(self) -> i64 {
        self.after.saturating_sub(self.before).max(0)
    }

    /// What to add to monotonic times, right to half of what the reading took.
    fn offset(self) -> i64 {
        self.epoch.saturating_sub(self.before.saturating_add(self.took() / 2))
    }
}

impl Clock {
    /// Relates the clocks, and returns the monotonic one's time in nanoseconds.
    pub fn set(&mut self) -> u64 {
        self.set_by(&mut Reading::now)
    }

    fn set_by(&mut self, read: &mut dyn FnMut() -> Reading) -> u64 {
        let mut best = read();
        let began = best.before;
        for _ in 1..TRIES {
            if best.took() <= GOOD {
                break;
            }
            let next = read();
            if next.took() < best.took() {
                best = next;
            }
        }
        let (offset, within) = (best.offset(), best.took());
        // What may be right both ways has not changed: the better reading stays.
        let stays = self.offset.is_some_and(|(known, known_within)| {
            within > known_within && offset.abs_diff(known) <= within.cast_unsigned()
        });
        if !stays {
            self.offset = Some((offset, within));
        }
        began.cast_unsigned()
    }

    /// A monotonic time as time since the epoch.
    #[must_use]
    pub fn epoch(&self, monotonic: u64) -> u64 {
        monotonic.saturating_add_signed(self.offset.map_or(0, |(offset, _)| offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 1_000_000_000_000;

    /// Readings one after another, each of which takes as long; the epoch is read at its end, after an interruption.
    fn readings(took: &[i64], day: i64) -> impl FnMut() -> Reading {
        let mut now = 1_000_000;
        let mut took = took.iter().copied();
        move || {
            let before = now;
            now += took.next().expect("no more than these");
            Reading { before, epoch: now + day, after: now }
        }
    }

    #[test]
    fn a_reader_that_is_interrupted_does_not_make_times_jump() {
        let mut clock = Clock::default();
        assert_eq!(clock.set_by(&mut readings(&[100], DAY)), 1_000_000);
        let first = clock.epoch(0);
        assert!(first.abs_diff(DAY as u64) <= 100);
        // One that is interrupted is read again.
        clock.set_by(&mut readings(&[4_000_000, 100], DAY));
        assert_eq!(clock.epoch(0), first);
        // If all are, what was known stays.
        clock.set_by(&mut readings(&[4_000_000; TRIES], DAY));
        assert_eq!(clock.epoch(0), first);
    }

    #[test]
    fn a_time_of_day_that_is_set_is_followed() {
        let mut clock = Clock::default();
        clock.set_by(&mut readings(&[100], DAY));
        clock.set_by(&mut readings(&[200], DAY + 3_600_000_000_000));
        assert!(clock.epoch(0).abs_diff((DAY + 3_600_000_000_000) as u64) <= 200);
        // Back too, and by an interrupted reader, as well as that one can tell.
        clock.set_by(&mut readings(&[4_000_000; TRIES], DAY));
        assert!(clock.epoch(0).abs_diff(DAY as u64) <= 4_000_000);
        clock.set_by(&mut readings(&[100], DAY));
        assert!(clock.epoch(0).abs_diff(DAY as u64) <= 100);
    }

    #[test]
    fn the_real_clocks_are_related() {
        let mut clock = Clock::default();
        let monotonic = clock.set();
        let now =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
        assert!(now.abs_diff(clock.epoch(monotonic)) < 60_000_000_000);
    }
}
