//! A rate-limited response: a token bucket in front of its body.
//!
//! Once its credit is used up, a body waits until there is credit for an eighth of a second, or for a packet, so it
//! wakes its worker at most eight times a second.

use std::fmt;
use std::time::{Duration, Instant};

use crate::Wake;
use crate::timer::{Alarm, Alarms};

/// Parts of a second that a body waits for at a time.
const WAITS: u64 = 8;

/// Octets that are worth waking up for.
const LEAST: u64 = 1200;

/// The credit of one response.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Bucket {
    /// Octets a second, not 0.
    rate: u64,
    credit: u64,
    /// When it was credited last.
    at: Instant,
    /// It was used up, and is not used again before there is enough to be worth it.
    is_empty: bool,
}

impl Bucket {
    /// `after` octets go at once.
    fn new(rate: u64, after: u64, now: Instant) -> Self {
        let rate = rate.max(1);
        let first = after.saturating_add(quantum(rate));
        Self { rate, credit: first, at: now, is_empty: false }
    }

    /// What may go now; otherwise when to ask again.
    fn grant(&mut self, now: Instant) -> Result<u64, Instant> {
        let elapsed = now.saturating_duration_since(self.at);
        let earned = elapsed.as_nanos() * u128::from(self.rate) / 1_000_000_000;
        if elapsed >= Duration::from_secs(1) {
            // A client that takes nothing does not save up for more than a second's worth.
            self.credit = self.credit.max(self.rate.max(LEAST));
            self.at = now;
        } else if let Ok(earned @ 1..) = u64::try_from(earned) {
            let most = self.credit.max(self.rate.max(LEAST));
            self.credit = self.credit.saturating_add(earned).min(most);
            self.at += time(earned, self.rate);
        }
        let least = if self.is_empty { quantum(self.rate) } else { 1 };
        if self.credit < least {
            self.is_empty = true;
            return Err(self.at + time(quantum(self.rate) - self.credit, self.rate));
        }
        self.is_empty = false;
        Ok(self.credit)
    }
}

/// Octets that a body waits for.
fn quantum(rate: u64) -> u64 {
    (rate / WAITS).max(LEAST)
}

/// How long so many octets take, rounded up.
fn time(octets: u64, rate: u64) -> Duration {
    let nanoseconds = (u128::from(octets) * 1_000_000_000).div_ceil(u128::from(rate));
    Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
}

/// What holds a body up.
pub(crate) struct Pace {
    bucket: Bucket,
    alarms: Alarms,
    wake: Wake,
    alarm: Option<Alarm>,
}

impl Pace {
    /// `rate` octets a second once `after` have gone.
    pub(crate) fn new(rate: u64, after: u64, alarms: Alarms, wake: Wake) -> Self {
        Self { bucket: Bucket::new(rate, after, Instant::now()), alarms, wake, alarm: None }
    }

    /// Octets of `max` that may go now. `None`: none; the exchange is woken when some may.
    pub(crate) fn room(&mut self, max: usize) -> Option<usize> {
        match self.bucket.grant(Instant::now()) {
            Ok(credit) => {
                self.alarm = None;
                Some(max.min(usize::try_from(credit).unwrap_or(usize::MAX)))
            }
            Err(when) => {
                if self.alarm.is_none() {
                    self.alarm = Some(self.alarms.set(when, self.wake.clone()));
                }
                None
            }
        }
    }

    /// So many have gone.
    pub(crate) fn spend(&mut self, octets: usize) {
        self.bucket.credit = self.bucket.credit.saturating_sub(octets as u64);
    }
}

impl fmt::Debug for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pace").field("bucket", &self.bucket).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Octets that go within `time` if all that may go does, and the waits that takes.
    fn sent(rate: u64, after: u64, time: Duration) -> (u64, u32) {
        let start = Instant::now();
        let (mut now, mut sent, mut waits) = (start, 0, 0);
        let mut bucket = Bucket::new(rate, after, now);
        while now.duration_since(start) < time {
            match bucket.grant(now) {
                Ok(credit) => {
                    let some = credit.min(16 << 10);
                    bucket.credit -= some;
                    sent += some;
                }
                Err(when) => {
                    assert!(when > now, "a wait that is over");
                    now = when;
                    waits += 1;
                }
            }
        }
        (sent, waits)
    }

    #[test]
    fn what_goes_is_the_burst_and_then_the_rate() {
        let ten = Duration::from_secs(10);
        for (rate, after) in [(1_000_000, 0), (1_000_000, 3_000_000), (125_000, 1000), (1000, 0)] {
            let (sent, waits) = sent(rate, after, ten);
            let (least, most) = (after + rate * 9, after + rate * 10 + 2 * quantum(rate));
            assert!((least..=most).contains(&sent), "{rate}, {after}: {sent}");
            assert!(waits <= 81, "{rate}: {waits} waits");
        }
    }

    #[test]
    fn a_client_that_takes_nothing_saves_up_for_a_second() {
        let start = Instant::now();
        let mut bucket = Bucket::new(100_000, 0, start);
        assert_eq!(bucket.grant(start), Ok(12_500));
        bucket.credit = 0;
        assert_eq!(bucket.grant(start), Err(start + Duration::from_millis(125)));
        assert!(bucket.grant(start + Duration::from_millis(60)).is_err(), "not for half of it");
        assert_eq!(bucket.grant(start + Duration::from_millis(125)), Ok(12_500));
        assert_eq!(bucket.grant(start + Duration::from_secs(3600)), Ok(100_000));
        assert_eq!(bucket.grant(start + Duration::from_secs(3600)), Ok(100_000));
        let mut bucket = Bucket::new(100_000, 5_000_000, start);
        assert_eq!(bucket.grant(start + Duration::from_secs(60)), Ok(5_012_500), "a burst is not lost");
    }
}
