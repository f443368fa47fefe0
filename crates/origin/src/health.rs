//! Whether a server gets requests, by health checks (active) and by the outcome of its requests (passive).

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::{Ejection, HealthCheck};

/// The share that a server begins with when it comes back, and what counts as all of it.
const FIRST_SHARE: u64 = 10;
pub(crate) const FULL_SHARE: u64 = 100;

/// A server's health. Times are given, so that nothing here waits.
#[derive(Debug)]
pub(crate) struct Health(Mutex<State>);

#[derive(Debug)]
struct State {
    /// What checks say.
    is_up: bool,
    /// Checks in a row that say the opposite.
    against: u32,
    /// Requests in a row that failed.
    failures: u32,
    /// Ejections one after the other.
    ejections: u32,
    /// The last one's end and length.
    ejected: Option<(Instant, Duration)>,
    /// When it came back.
    back: Option<Instant>,
}

impl Default for Health {
    fn default() -> Self {
        Self(Mutex::new(State {
            is_up: true,
            against: 0,
            failures: 0,
            ejections: 0,
            ejected: None,
            back: None,
        }))
    }
}

impl Health {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It is in service.
    pub(crate) fn is_available(&self, now: Instant) -> bool {
        let state = self.lock();
        state.is_up && state.ejected.is_none_or(|(end, _)| end <= now)
    }

    /// Its share of its weight now, of [`FULL_SHARE`].
    pub(crate) fn share(&self, now: Instant, slow_start: Duration) -> u64 {
        let state = self.lock();
        let back = state.ejected.map(|(end, _)| end).max(state.back);
        let since = back.map_or(Duration::MAX, |back| now.saturating_duration_since(back));
        if since >= slow_start {
            return FULL_SHARE;
        }
        let part = since.as_secs_f64() / slow_start.as_secs_f64();
        FIRST_SHARE + (part * (FULL_SHARE - FIRST_SHARE) as f64) as u64
    }

    /// A request went well.
    pub(crate) fn succeed(&self, now: Instant) {
        let mut state = self.lock();
        state.failures = 0;
        // Once it has been well for as long as it was out, that is forgotten.
        if state.ejected.is_some_and(|(end, time)| now.saturating_duration_since(end) >= time && end <= now) {
            state.ejections = 0;
        }
    }

    /// A request failed. Tells for how long that ejects the server, if it does.
    pub(crate) fn fail(&self, now: Instant, options: &Ejection) -> Option<Duration> {
        let mut state = self.lock();
        if options.failures == 0 || state.ejected.is_some_and(|(end, _)| now < end) {
            return None;
        }
        state.failures = state.failures.saturating_add(1);
        if state.failures < options.failures {
            return None;
        }
        // One that comes back and fails again needs no second proof.
        state.failures = options.failures - 1;
        let factor = 1_u32.checked_shl(state.ejections).unwrap_or(u32::MAX);
        let time = options.time.saturating_mul(factor).min(options.most);
        state.ejections = state.ejections.saturating_add(1);
        state.ejected = Some((now + time, time));
        Some(time)
    }

    /// A check ended. Tells whether the server went into service or out of it.
    pub(crate) fn check(&self, is_well: bool, now: Instant, options: &HealthCheck) -> Option<bool> {
        let mut state = self.lock();
        if is_well == state.is_up {
            state.against = 0;
            return None;
        }
        state.against += 1;
        if state.against < if is_well { options.rise } else { options.fall } {
            return None;
        }
        (state.is_up, state.against) = (is_well, 0);
        if is_well {
            state.back = Some(now);
            // What is known to be well needs no time out.
            (state.failures, state.ejections, state.ejected) = (0, 0, None);
        }
        Some(is_well)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn ejection() -> Ejection {
        Ejection { failures: 3, time: 10 * SECOND, most: 60 * SECOND, panic: 30 }
    }

    #[test]
    fn failures_in_a_row_eject_for_a_growing_time() {
        let (health, mut now) = (Health::default(), Instant::now());
        let fail = |now| health.fail(now, &ejection());
        assert_eq!([fail(now), fail(now)], [None, None]);
        health.succeed(now);
        assert_eq!([fail(now), fail(now), fail(now)], [None, None, Some(10 * SECOND)], "in a row");
        assert!(!health.is_available(now + 9 * SECOND));
        assert_eq!(fail(now + SECOND), None, "of requests that were under way");
        for time in [20, 40, 60, 60] {
            now += 61 * SECOND;
            assert!(health.is_available(now));
            assert_eq!(fail(now), Some(time * SECOND), "at once, and for longer");
        }
        now += 121 * SECOND;
        health.succeed(now);
        assert_eq!([fail(now), fail(now), fail(now)], [None, None, Some(10 * SECOND)], "forgotten");
        let never = Ejection { failures: 0, ..ejection() };
        assert!((0..100).all(|_| Health::default().fail(now, &never).is_none()));
    }

    #[test]
    fn checks_take_out_of_service_and_back() {
        let options = HealthCheck {
            path: "/".into(),
            interval: SECOND,
            timeout: SECOND,
            status: vec![(200, 299)],
            rise: 2,
            fall: 3,
        };
        let (health, now) = (Health::default(), Instant::now());
        let check = |is_well| health.check(is_well, now, &options);
        assert_eq!([check(false), check(false), check(true)], [None, None, None]);
        assert_eq!([check(false), check(false), check(false)], [None, None, Some(false)]);
        assert!(!health.is_available(now));
        for _ in 0..3 {
            health.fail(now, &ejection());
        }
        assert_eq!([check(true), check(false), check(true), check(true)], [None, None, None, Some(true)]);
        assert!(health.is_available(now), "a check knows better than old failures");
    }

    #[test]
    fn who_comes_back_begins_slowly() {
        let (health, now) = (Health::default(), Instant::now());
        assert_eq!(health.share(now, 10 * SECOND), FULL_SHARE, "not at start");
        for _ in 0..3 {
            health.fail(now, &ejection());
        }
        let shares = [10, 15, 20].map(|second| health.share(now + second * SECOND, 10 * SECOND));
        assert_eq!(shares, [FIRST_SHARE, 55, FULL_SHARE]);
        assert_eq!(health.share(now + 10 * SECOND, Duration::ZERO), FULL_SHARE);
    }
}
