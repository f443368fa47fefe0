//! When to obtain a certificate.

use std::time::{Duration, SystemTime};

/// After the first failure, and at most.
const FIRST_PAUSE: Duration = Duration::from_secs(60);
const LONGEST_PAUSE: Duration = Duration::from_secs(6 * 3600);

/// When to renew a certificate: at two thirds of its life, and up to a twentieth of it earlier, by `random`, so that many
/// servers that started together do not come together.
pub(crate) fn renewal(not_before: SystemTime, not_after: SystemTime, random: u32) -> SystemTime {
    let life = not_after.duration_since(not_before).unwrap_or_default();
    not_before + life * 2 / 3 - jitter(life / 20, random)
}

/// How long to wait after so many failures in a row: twice as long each time, less up to a quarter by `random`.
/// Authorities limit failed attempts to a few an hour and name.
pub(crate) fn pause(failures: u32, random: u32) -> Duration {
    let doubled = FIRST_PAUSE.saturating_mul(1 << failures.saturating_sub(1).min(16));
    let pause = doubled.min(LONGEST_PAUSE);
    pause - jitter(pause / 4, random)
}

fn jitter(most: Duration, random: u32) -> Duration {
    most.mul_f64(f64::from(random) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    #[test]
    fn renewal_is_at_two_thirds_and_never_later() {
        let start = UNIX_EPOCH + Duration::from_secs(1_000_000);
        let end = start + Duration::from_secs(90 * 86_400);
        assert_eq!(renewal(start, end, 0), start + Duration::from_secs(60 * 86_400));
        let earliest = renewal(start, end, u32::MAX);
        assert_eq!(earliest, start + Duration::from_secs(60 * 86_400 - 90 * 86_400 / 20));
        assert_eq!(renewal(end, start, 7), end, "one that never was in force");
    }

    #[test]
    fn pauses_double_up_to_six_hours() {
        let seconds: Vec<u64> = (1..12).map(|failures| pause(failures, 0).as_secs()).collect();
        assert_eq!(seconds, [60, 120, 240, 480, 960, 1920, 3840, 7680, 15_360, 21_600, 21_600]);
        assert_eq!(pause(1, u32::MAX), Duration::from_secs(45));
        assert_eq!(pause(u32::MAX, 0), LONGEST_PAUSE);
    }
}
