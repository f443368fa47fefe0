//! URLs whose responses cannot be shared: for a while no request waits for another's fetch, and those that have waited
//! go to the origin a few at a time.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};

/// Permits of one URL.
#[derive(Debug)]
pub(crate) struct Throttle {
    /// Until when requests pass without waiting, in milliseconds since the epoch.
    until: AtomicU64,
    most: usize,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    active: usize,
    next: u64,
    waiting: VecDeque<(u64, Waker)>,
}

impl Throttle {
    pub(crate) fn new(most: usize, until: u64) -> Arc<Self> {
        Arc::new(Self { until: AtomicU64::new(until), most: most.max(1), inner: Mutex::default() })
    }

    pub(crate) fn is_open(&self, now: u64) -> bool {
        now < self.until.load(Ordering::Relaxed)
    }

    /// Queues for a permit.
    pub(crate) fn enter(self: &Arc<Self>) -> Permit {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.next += 1;
        Permit { throttle: Arc::clone(self), id: inner.next, is_active: false }
    }

    fn next(inner: &mut Inner) -> Option<Waker> {
        inner.waiting.pop_front().map(|(_, waker)| waker)
    }
}

/// A permit, or a place in the queue for one. Dropping it lets the next one in.
#[derive(Debug)]
pub(crate) struct Permit {
    throttle: Arc<Throttle>,
    id: u64,
    is_active: bool,
}

impl Permit {
    /// Ready when it is a permit.
    pub(crate) fn poll(&mut self, waker: &Waker) -> Poll<()> {
        if self.is_active {
            return Poll::Ready(());
        }
        let mut inner = self.throttle.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if inner.active < self.throttle.most {
            inner.active += 1;
            inner.waiting.retain(|(id, _)| *id != self.id);
            self.is_active = true;
            return Poll::Ready(());
        }
        match inner.waiting.iter_mut().find(|(id, _)| *id == self.id) {
            Some((_, old)) => old.clone_from(waker),
            None => inner.waiting.push_back((self.id, waker.clone())),
        }
        Poll::Pending
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut inner = self.throttle.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_active {
            inner.active -= 1;
        } else {
            inner.waiting.retain(|(id, _)| *id != self.id);
        }
        // Also if it was only woken: the one behind it takes its turn.
        let next = if inner.active < self.throttle.most { Throttle::next(&mut inner) } else { None };
        drop(inner);
        if let Some(waker) = next {
            waker.wake();
        }
    }
}
