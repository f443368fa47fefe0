//! When requests are due, and what each asks for.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// Tokio's timer has a resolution of a millisecond: what is due sooner is waited for by yielding to the other tasks.
const TIMER: Duration = Duration::from_millis(2);

/// The sequence of requests of all tasks.
pub(crate) struct Requests {
    /// Requests a second; 0 for a closed loop.
    rate: f64,
    range: u64,
    length: u64,
    began: Cell<Instant>,
    next: Cell<u64>,
}

/// One request.
pub(crate) struct Due {
    /// When it was due: its time counts from then, so that waiting for a slow answer to another counts too.
    pub(crate) at: Instant,
    /// The value of its Range field.
    pub(crate) range: Option<String>,
}

impl Requests {
    pub(crate) fn new(rate: f64, range: u64, length: u64) -> Self {
        Self { rate, range, length: length.max(range), began: Cell::new(Instant::now()), next: Cell::new(0) }
    }

    /// The open loop begins now.
    pub(crate) fn start(&self, now: Instant) {
        self.began.set(now);
    }

    /// The next request, when it is due.
    pub(crate) async fn next(&self) -> Due {
        let number = self.next.get();
        self.next.set(number + 1);
        let range = self.range_of(number);
        if self.rate <= 0.0 {
            return Due { at: Instant::now(), range };
        }
        let at = self.began.get() + Duration::from_secs_f64(number as f64 / self.rate);
        loop {
            let left = at.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Due { at, range };
            }
            if left > TIMER {
                tokio::time::sleep(left - TIMER).await;
            } else {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Ranges lie one after the other; the last one of the file may be short and is left out.
    fn range_of(&self, number: u64) -> Option<String> {
        let count = self.length.checked_div(self.range)?.max(1);
        let first = number % count * self.range;
        Some(format!("bytes={first}-{}", first + self.range - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_go_through_the_file_and_begin_again() {
        let requests = Requests::new(0.0, 100, 250);
        let ranges: Vec<_> = (0..3).map(|number| requests.range_of(number).unwrap()).collect();
        assert_eq!(ranges, ["bytes=0-99", "bytes=100-199", "bytes=0-99"]);
        assert_eq!(Requests::new(0.0, 0, 250).range_of(0), None);
    }

    #[tokio::test]
    async fn an_open_loop_counts_from_when_a_request_was_due() {
        let requests = Requests::new(1000.0, 0, 0);
        let began = Instant::now().checked_sub(Duration::from_secs(1)).unwrap();
        requests.start(began);
        // A second behind: what is due is given at once, at its own time.
        for number in 0..3 {
            assert_eq!(requests.next().await.at, began + Duration::from_millis(number));
        }
    }
}
