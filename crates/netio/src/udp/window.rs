//! How many messages one `recvmmsg` asks for.

use std::time::{Duration, Instant};

/// Messages asked for where they follow each other: one, and the kernel's word that no other has come.
const LEAST: usize = 2;

/// After such a pause a message that follows others which came alone is likely to come alone too.
const PAUSE: Duration = Duration::from_micros(100);

/// Follows what a socket gives.
///
/// Each message asked for is a header written and some lines of cache, and a look at a queue that is empty; that counts
/// where datagrams come one by one to a processor that has slept. There one is asked for, and the wait tells of another.
/// A socket that gives all that it was asked for is asked for more at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    size: usize,
    most: usize,
    last: Option<Instant>,
}

impl Window {
    /// Asks for `most` at first.
    pub(super) fn new(most: usize) -> Self {
        Self { size: most, most, last: None }
    }

    /// Messages to ask for now.
    pub(super) fn asks(&self, now: Instant) -> usize {
        let pause = self.last.is_some_and(|last| now.saturating_duration_since(last) >= PAUSE);
        if pause && self.size <= LEAST { 1 } else { self.size }
    }

    /// Told what a call gave that asked for `asked`. True when it is to be asked again at once, as there may be more.
    pub(super) fn note(&mut self, now: Instant, asked: usize, given: usize) -> bool {
        if given > 0 {
            self.last = Some(now);
        }
        if asked < self.size {
            return false;
        }
        let full = given >= asked;
        if full {
            self.size = self.size.saturating_mul(4).min(self.most);
        } else if given * 2 < asked && self.size > LEAST {
            self.size -= 1;
        }
        full
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_alone_is_asked_for_alone_and_a_burst_is_soon_taken_whole() {
        let mut window = Window::new(64);
        let mut now = Instant::now();
        assert_eq!(window.asks(now), 64);
        for _ in 0..100 {
            let asked = window.asks(now);
            assert!(!window.note(now, asked, 1));
            now += PAUSE;
        }
        assert_eq!(window.asks(now), 1);
        // Another came with it: it is there at once.
        assert!(!window.note(now, 1, 1));
        assert_eq!(window.asks(now), LEAST);

        assert!(window.note(now, 2, 2));
        assert_eq!(window.asks(now), 8);
        assert!(window.note(now, 8, 8));
        assert!(window.note(now, 32, 32));
        assert_eq!(window.asks(now), 64);
        assert!(window.note(now, 64, 64));
        assert_eq!(window.asks(now), 64);
        assert_eq!(window.asks(now + PAUSE), 64, "a burst may follow a pause");
    }

    #[test]
    fn bursts_of_one_size_are_taken_in_one_call() {
        let mut window = Window::new(16);
        let mut now = Instant::now();
        for _ in 0..100 {
            assert!(!window.note(now, window.asks(now), 10));
            now += PAUSE;
        }
        assert_eq!(window.asks(now), 16);
    }

    #[test]
    fn a_batch_of_one_stays_one() {
        let mut window = Window::new(1);
        let now = Instant::now();
        assert!(!window.note(now, 1, 0));
        assert!(window.note(now, 1, 1));
        assert_eq!(window.asks(now), 1);
    }
}
