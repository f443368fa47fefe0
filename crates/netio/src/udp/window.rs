//! How many messages one `recvmmsg` asks for.

/// Messages asked for at least: one that comes alone, and the kernel's word that no other has come.
const LEAST: usize = 2;

/// Follows what a socket gives. Each message asked for is a header written and some lines of cache, which count where
/// datagrams come one by one to a processor that has slept; a socket that gives all that it was asked for is asked for
/// more at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    asked: usize,
    most: usize,
}

impl Window {
    /// Asks for `most` at first.
    pub(super) fn new(most: usize) -> Self {
        Self { asked: most, most }
    }

    /// Messages to ask for now.
    pub(super) fn asked(&self) -> usize {
        self.asked
    }

    /// Told what a call gave. True when it gave all that was asked for: there may be more.
    pub(super) fn note(&mut self, given: usize) -> bool {
        let full = given >= self.asked;
        if full {
            self.asked = self.asked.saturating_mul(4).min(self.most);
        } else if given * 2 < self.asked && self.asked > LEAST {
            self.asked -= 1;
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
        assert_eq!(window.asked(), 64);
        for _ in 0..100 {
            assert!(!window.note(1));
        }
        assert_eq!(window.asked(), LEAST);

        assert!(window.note(2));
        assert_eq!(window.asked(), 8);
        assert!(window.note(8));
        assert!(window.note(32));
        assert_eq!(window.asked(), 64);
        assert!(window.note(64));
        assert_eq!(window.asked(), 64);
    }

    #[test]
    fn bursts_of_one_size_are_taken_in_one_call() {
        let mut window = Window::new(16);
        for _ in 0..100 {
            assert!(!window.note(10));
        }
        assert_eq!(window.asked(), 16);
    }

    #[test]
    fn a_batch_of_one_stays_one() {
        let mut window = Window::new(1);
        assert!(!window.note(0));
        assert!(window.note(1));
        assert_eq!(window.asked(), 1);
    }
}
