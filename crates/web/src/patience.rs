//! How slowly a client may read a response, or send a request's body: which rate counts as progress, and for how long it may make none.
//!
//! Nothing here has a clock or a list: the caller that sweeps over responses passes the time and the bytes read so far.

use std::time::{Duration, Instant};

/// When memory is scarce, timeouts of responses shrink with what is left, but not below this.
const LEAST: Duration = Duration::from_secs(5);

/// The part of the budget that must be left for timeouts to be as configured.
const PLENTY: f64 = 0.25;

/// The rate, in octets a second, below which a client makes no progress, unless configured: a quarter of the slowest mobile
/// network (GPRS, one time slot, CS-1: 9.05 kbit/s) for each response of one, so that only who means to is slower.
pub const RESPONSE_RATE: u64 = 240;

/// The same of a request's body that its reader waits for.
pub const REQUEST_RATE: u64 = RESPONSE_RATE;

/// How long a response may make no progress where `left` of the memory's budget is left.
pub fn patience(configured: Duration, left: f64) -> Duration {
    configured.mul_f64((left / PLENTY).clamp(0.0, 1.0)).max(LEAST.min(configured))
}

/// Since when somebody has taken too little, or sent it.
#[derive(Debug, Default)]
pub struct Pace {
    mark: Option<Mark>,
}

#[derive(Debug)]
struct Mark {
    since: Instant,
    taken: u64,
    /// What there was to be taken.
    offered: u64,
}

impl Pace {
    /// By `now`, `taken` octets have been taken in all, and `offered` more could be. Since when less than `rate` a second was
    /// taken of them; `None` if that or all that was offered then has been, or this is asked for the first time.
    ///
    /// A rate of 0 is met by any octet.
    pub fn slow_since(&mut self, now: Instant, taken: u64, offered: u64, rate: u64) -> Option<Instant> {
        if let Some(mark) = &self.mark {
            let due = (now.saturating_duration_since(mark.since).as_secs_f64() * rate as f64) as u64;
            // Sums of counters wrap.
            if taken.wrapping_sub(mark.taken) < due.min(mark.offered).max(1) {
                return Some(mark.since);
            }
        }
        self.mark = Some(Mark { since: now, taken, offered });
        None
    }

    /// Begins anew if it has been too slow for longer than `limit`: that says nothing of now.
    pub fn forget_after(&mut self, now: Instant, limit: Duration) {
        if self.mark.as_ref().is_some_and(|mark| now.saturating_duration_since(mark.since) > limit) {
            self.forget();
        }
    }

    /// There is nothing to be taken, or it is not for the client to take it: its time begins anew.
    pub fn forget(&mut self) {
        self.mark = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_wears_thin_with_memory_and_not_out() {
        let seconds = |configured, left| patience(Duration::from_secs(configured), left).as_secs();
        assert_eq!([1.0, 0.25, 0.125, 0.01, 0.0].map(|left| seconds(60, left)), [60, 60, 30, 5, 5]);
        assert_eq!(seconds(2, 0.0), 2, "as configured if that is shorter");
    }

    /// Sweeps each second, in each of which so many octets were taken; for how many seconds it has been too slow by then.
    fn sweep(rate: u64, offered: u64, taken: &[u64]) -> Vec<Option<u64>> {
        let (start, mut pace, mut all) = (Instant::now(), Pace::default(), 0);
        let steps = taken.iter().enumerate().map(|(second, octets)| {
            let now = start + Duration::from_secs(second as u64);
            all += octets;
            pace.slow_since(now, all, offered, rate).map(|since| now.duration_since(since).as_secs())
        });
        steps.collect()
    }

    #[test]
    fn an_octet_now_and_then_is_no_progress() {
        let trickle = sweep(240, u64::MAX, &[0, 1, 1, 1, 1, 1]);
        assert_eq!(trickle, [None, Some(1), Some(2), Some(3), Some(4), Some(5)]);
        assert_eq!(sweep(0, u64::MAX, &[0, 1, 0, 1, 0, 0]), [None, None, Some(1), None, Some(1), Some(2)]);
    }

    #[test]
    fn what_comes_in_gusts_counts_for_the_time_before() {
        let gusts = sweep(240, u64::MAX, &[0, 0, 0, 720, 0, 0, 470, 490]);
        assert_eq!(gusts, [None, Some(1), Some(2), None, Some(1), Some(2), Some(3), None]);
    }

    #[test]
    fn nobody_has_to_take_more_than_there_is() {
        assert_eq!(sweep(240, 20, &[0, 20, 20, 20]), [None; 4], "small responses, each taken whole");
        assert_eq!(sweep(240, 20, &[0, 19, 1]), [None, Some(1), None]);
    }

    #[test]
    fn what_was_not_taken_in_an_idle_hour_is_not_owed() {
        let (start, mut pace) = (Instant::now(), Pace::default());
        let at = |second| start + Duration::from_secs(second);
        let limit = Duration::from_secs(120);
        assert_eq!(pace.slow_since(at(0), 0, u64::MAX, 240), None);
        pace.forget_after(at(120), limit);
        assert_eq!(pace.slow_since(at(120), 1, u64::MAX, 240), Some(at(0)), "a trickle is, up to the limit");
        pace.forget_after(at(3600), limit);
        assert_eq!(pace.slow_since(at(3600), 1, u64::MAX, 240), None);
        assert_eq!(pace.slow_since(at(3602), 481, u64::MAX, 240), None, "what is taken since counts");
    }

    #[test]
    fn counters_wrap() {
        let (now, mut pace) = (Instant::now(), Pace::default());
        assert_eq!(pace.slow_since(now, u64::MAX - 100, 1000, 240), None);
        assert_eq!(pace.slow_since(now + Duration::from_secs(1), 300, 1000, 240), None);
    }
}
