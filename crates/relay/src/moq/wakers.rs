//! Wakes those who wait for news: thousands, in pieces.
//!
//! News wakes [`PIECE`] waiting sessions at once, in the turn of the session that brings it. If there are more, the result
//! says so ([`Wakers::stir`]), and one session of the room continues between other work (`Room::do_some`). News that
//! arrives meanwhile makes it start over, which costs a look at those who are already awake.

use slab::Slab;

use super::room::Wake;

/// Woken in a piece of work: each takes a lock of the worker that it is on.
pub const PIECE: usize = 64;
/// Looked at in a piece of work.
const LOOKS: usize = 1024;

/// Those who wait.
#[derive(Debug, Default)]
pub struct Wakers {
    all: Slab<Entry>,
    /// All keys are below.
    end: usize,
    /// Those below have been woken of what is new; `None`: all.
    sweep: Option<usize>,
    /// Something has come since it began.
    is_stale: bool,
}

#[derive(Debug)]
struct Entry {
    waker: Box<dyn Wake>,
    /// It was woken and has not looked since.
    is_woken: bool,
}

impl Wakers {
    /// How many wait.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Nobody waits.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Adds one; its key.
    pub fn add(&mut self, waker: impl Wake + 'static) -> usize {
        let key = self.all.insert(Entry { waker: Box::new(waker), is_woken: false });
        self.end = self.end.max(key + 1);
        key
    }

    /// Takes one away. False: there is none of that key.
    pub fn remove(&mut self, key: usize) -> bool {
        let is_known = self.all.try_remove(key).is_some();
        if self.all.is_empty() {
            self.end = 0;
        }
        is_known
    }

    /// One has been woken, or looks by itself: what comes from now on wakes it again.
    pub fn look(&mut self, key: usize) {
        if let Some(entry) = self.all.get_mut(key) {
            entry.is_woken = false;
        }
    }

    /// Something is new. True: somebody has to [go on](Self::go_on), and nobody does yet.
    #[must_use]
    pub fn stir(&mut self) -> bool {
        if self.sweep.is_some() {
            self.is_stale = true;
            return false;
        }
        self.sweep = Some(0);
        self.go_on()
    }

    /// Wakes some more. True: there are more.
    #[must_use]
    pub fn go_on(&mut self) -> bool {
        let Some(mut at) = self.sweep else { return false };
        let (end, mut woken) = (self.end.min(at + LOOKS), 0);
        while at < end && woken < PIECE {
            if let Some(entry) = self.all.get_mut(at)
                && !std::mem::replace(&mut entry.is_woken, true)
            {
                entry.waker.wake();
                woken += 1;
            }
            at += 1;
        }
        self.sweep = match at < self.end {
            true => Some(at),
            false => std::mem::take(&mut self.is_stale).then_some(0),
        };
        self.sweep.is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    #[test]
    fn many_are_woken_in_pieces_each_once() {
        let woken = Arc::new(AtomicUsize::new(0));
        let mut wakers = Wakers::default();
        let keys: Vec<_> = (0..4096).map(|_| wakers.add(Arc::clone(&woken))).collect();
        assert!(wakers.stir());
        assert_eq!(woken.load(Relaxed), PIECE, "in the turn of whoever brings the news");
        let mut pieces = 1;
        while wakers.go_on() {
            pieces += 1;
            assert_eq!(woken.load(Relaxed), pieces * PIECE);
        }
        assert_eq!(woken.load(Relaxed), keys.len());
        // Who has not looked is not woken again.
        let mut more = wakers.stir();
        while more {
            more = wakers.go_on();
        }
        assert_eq!(woken.load(Relaxed), keys.len());
    }

    #[test]
    fn news_that_come_while_some_are_woken_reach_those_who_had_looked() {
        let woken = Arc::new(AtomicUsize::new(0));
        let mut wakers = Wakers::default();
        let keys: Vec<_> = (0..PIECE + 1).map(|_| wakers.add(Arc::clone(&woken))).collect();
        assert!(wakers.stir());
        wakers.look(keys[0]);
        assert!(!wakers.stir(), "somebody goes on with it already");
        assert!(wakers.go_on(), "the first is to be woken again");
        assert_eq!(woken.load(Relaxed), PIECE + 1);
        assert!(!wakers.go_on());
        assert_eq!(woken.load(Relaxed), PIECE + 2);
    }

    #[test]
    fn few_are_woken_at_once_and_nobody_who_has_left() {
        let woken = Arc::new(AtomicUsize::new(0));
        let mut wakers = Wakers::default();
        let keys = [(); 3].map(|()| wakers.add(Arc::clone(&woken)));
        assert!(wakers.remove(keys[1]) && !wakers.remove(keys[1]));
        assert!(!wakers.stir());
        assert_eq!((woken.load(Relaxed), wakers.len()), (2, 2));
        assert!(wakers.remove(keys[0]) && wakers.remove(keys[2]) && wakers.is_empty());
        assert!(!wakers.stir());
    }
}
