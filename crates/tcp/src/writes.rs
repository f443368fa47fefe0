//! Whether a connection takes what is written to it, and as fast as it must. Nothing here writes.

use std::time::{Duration, Instant};

use expressway_web::patience::Pace;

/// A connection that was blocked and has taken something is no faster for it if it is blocked again within this time: a kernel
/// that has taken half of its buffer takes as much at once, however long that was in the making.
const PAUSE: Duration = Duration::from_secs(1);

/// Writes of a connection.
#[derive(Debug, Default)]
pub(crate) struct Writes {
    /// Octets, in all.
    written: u64,
    is_blocked: bool,
    /// When it last took something after it was blocked.
    freed: Option<Instant>,
    pace: Pace,
}

impl Writes {
    /// So many octets went.
    pub(crate) fn took(&mut self, octets: usize) {
        self.written += octets as u64;
        if std::mem::take(&mut self.is_blocked) {
            self.freed = Some(Instant::now());
        }
    }

    /// It takes no more for now.
    pub(crate) fn refused(&mut self, now: Instant, rate: u64) {
        if self.freed.take().is_some_and(|freed| now.duration_since(freed) > PAUSE) {
            self.pace.forget();
        }
        self.is_blocked = true;
        self.pace.slow_since(now, self.written, u64::MAX, rate);
    }

    /// Since when it has been blocked, and has taken less than `rate` octets a second.
    pub(crate) fn blocked_since(&mut self, now: Instant, rate: u64) -> Option<Instant> {
        self.is_blocked.then(|| self.pace.slow_since(now, self.written, u64::MAX, rate).unwrap_or(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_little_now_and_then_frees_nobody_and_much_does() {
        let (start, mut writes) = (Instant::now(), Writes::default());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(writes.blocked_since(at(0), 240), None);
        writes.took(100_000);
        writes.refused(at(0), 240);
        for second in 1..50 {
            writes.took(100);
            assert_eq!(writes.blocked_since(at(second), 240), None, "it takes something");
            // As if it had been freed only now.
            writes.freed = Some(at(second));
            writes.refused(at(second), 240);
            assert_eq!(writes.blocked_since(at(second), 240), Some(at(0)));
        }
        writes.took(20_000);
        writes.freed = Some(at(50));
        writes.refused(at(50), 240);
        assert_eq!(writes.blocked_since(at(51), 240), Some(at(50)));
    }

    #[test]
    fn who_had_nothing_to_take_for_a_while_begins_anew() {
        let (start, mut writes) = (Instant::now(), Writes::default());
        writes.refused(start, 240);
        writes.took(1);
        writes.freed = Some(start);
        let later = start + Duration::from_secs(30);
        writes.refused(later, 240);
        assert_eq!(writes.blocked_since(later, 240), Some(later));
    }
}
