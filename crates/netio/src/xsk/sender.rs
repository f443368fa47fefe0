//! [`BindingSender`]: bindings that come and go while a worker runs.
//!
//! A worker owns its bindings and shares nothing on the packet path. Whoever opens interfaces anew (one that was
//! removed and made again, one whose channels changed) puts the bindings here from a thread of its own; the worker
//! takes them at its next turn, which an eventfd brings about.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use super::binding::XskBinding;

/// Changes that may wait for a worker: more bindings than any machine has queues, each 10 MiB.
const WAITING: usize = 1024;

/// What is to become of a worker's bindings.
pub(super) enum Change {
    /// Another one.
    Add(Box<XskBinding>),
    /// Those of an interface are to be closed.
    Remove {
        /// Index of the interface.
        ifindex: u32,
    },
}

/// Where a worker's bindings are added and removed from another thread. Clones are the same sender.
#[derive(Clone)]
pub struct BindingSender {
    shared: Arc<Shared>,
}

struct Shared {
    changes: Mutex<Vec<Change>>,
    /// What the worker looks at in each turn instead of the lock.
    pending: AtomicBool,
    wake: OwnedFd,
}

impl BindingSender {
    pub(super) fn new() -> std::io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared = Shared { changes: Mutex::default(), pending: AtomicBool::new(false), wake };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Gives the worker a binding. False, with the binding closed, if the worker has not looked for long.
    pub fn add(&self, binding: XskBinding) -> bool {
        self.push(Change::Add(Box::new(binding)))
    }

    /// Makes the worker close its bindings of an interface; their counters stay. False as [`BindingSender::add`].
    pub fn remove(&self, ifindex: u32) -> bool {
        self.push(Change::Remove { ifindex })
    }

    fn push(&self, change: Change) -> bool {
        let mut changes = self.shared.changes.lock().unwrap_or_else(PoisonError::into_inner);
        if changes.len() >= WAITING {
            return false;
        }
        changes.push(change);
        self.shared.pending.store(true, Ordering::Release);
        // Under the lock, under which the worker reads it too: else it might read before this, and the eventfd would be
        // readable for ever. One whose counter is at its limit is readable, which is all that it is for.
        let _ = rustix::io::write(&self.shared.wake, &1u64.to_ne_bytes());
        true
    }

    /// What has been asked since the last call, in order. One load when that is nothing.
    #[inline]
    pub(super) fn take(&self) -> Vec<Change> {
        if !self.shared.pending.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut changes = self.shared.changes.lock().unwrap_or_else(PoisonError::into_inner);
        self.shared.pending.store(false, Ordering::Release);
        let _ = rustix::io::read(&self.shared.wake, &mut [0u8; 8]);
        std::mem::take(&mut *changes)
    }

    /// Readable when something waits.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.shared.wake.as_fd()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn a_worker_that_has_taken_all_can_sleep() {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let sender = BindingSender::new().unwrap();
        let (asked, wanted) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut readable = 0;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=20_000 {
                    while wanted.load(Ordering::Acquire) < round {
                        std::hint::spin_loop();
                    }
                    assert!(sender.remove(7));
                    asked.store(round, Ordering::Release);
                }
            });
            for round in 1..=20_000 {
                wanted.store(round, Ordering::Release);
                while sender.take().is_empty() {}
                while asked.load(Ordering::Acquire) < round {
                    std::hint::spin_loop();
                }
                let mut fds = [PollFd::from_borrowed_fd(sender.fd(), PollFlags::IN)];
                readable += poll(&mut fds, Some(&none)).unwrap();
            }
        });
        assert_eq!(readable, 0, "nothing waits");
    }

    #[test]
    fn changes_come_in_order_once_and_are_bounded() {
        let sender = BindingSender::new().unwrap();
        assert!(sender.take().is_empty());
        for ifindex in 0..WAITING as u32 {
            assert!(sender.remove(ifindex));
        }
        assert!(!sender.remove(7), "nobody takes them");
        let indices: Vec<u32> = sender
            .take()
            .into_iter()
            .map(|change| match change {
                Change::Remove { ifindex } => ifindex,
                Change::Add(_) => panic!("none was added"),
            })
            .collect();
        assert!(indices.into_iter().eq(0..WAITING as u32));
        assert!(sender.take().is_empty());
        assert!(sender.remove(7));
    }
}
