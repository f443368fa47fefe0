//! The protocol that ensures that a sleeping worker misses no message, and that an awake one costs no system call.
//!
//! ```text
//! worker: sleeping = true ; fence ; queue empty? sleep : go on
//! sender: queue.push      ; fence ; sleeping? swap to false, and wake if it was true
//! ```
//!
//! One of the two fences comes first in their total order. If it is the worker's, the sender sees `sleeping`; if it is
//! the sender's, the worker sees the message. Both may happen, which costs one needless wake-up, but at least one does.
//! Of several senders, only one swap finds `true`: one system call.

#[cfg(all(test, loom))]
use loom::sync::atomic::{AtomicBool, Ordering, fence};
#[cfg(not(all(test, loom)))]
use std::sync::atomic::{AtomicBool, Ordering, fence};

/// Whether the worker sleeps, or is about to.
pub(super) struct SleepFlag {
    sleeping: AtomicBool,
}

impl SleepFlag {
    pub(super) fn new() -> Self {
        Self { sleeping: AtomicBool::new(false) }
    }

    /// Worker: announces the sleep, then asks `has_work`. True: there is work, the announcement is
    /// withdrawn.
    pub(super) fn announce(&self, has_work: impl FnOnce() -> bool) -> bool {
        self.sleeping.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let work = has_work();
        if work {
            self.withdraw();
        }
        work
    }

    /// Worker: is awake.
    pub(super) fn withdraw(&self) {
        self.sleeping.store(false, Ordering::Relaxed);
    }

    /// Sender, after its push: true when this sender is the one to wake the worker.
    pub(super) fn take_sleeper(&self) -> bool {
        fence(Ordering::SeqCst);
        self.sleeping.load(Ordering::Relaxed) && self.sleeping.swap(false, Ordering::Relaxed)
    }
}
