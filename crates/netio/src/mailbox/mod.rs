//! A bounded queue into a worker, with an eventfd that wakes it.
//!
//! Any thread sends through a [`Mailbox`]; one worker takes out through the [`Inbox`]. The queue is
//! lock-free and allocates once. A send costs a system call only when the worker sleeps: the worker
//! announces its sleep, and the first sender that sees the announcement takes it and writes the eventfd
//! (see `wake`). A full queue refuses ([`Mailbox::try_send`]) or makes the sender wait
//! ([`Mailbox::send_until`]); it never grows.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use crossbeam_queue::ArrayQueue;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use wake::SleepFlag;

mod wake;

/// Makes a queue of `capacity` messages (at least 1) with its two ends.
///
/// Fails when no eventfd can be made (file descriptor limit).
pub fn mailbox<M: Send>(capacity: usize) -> std::io::Result<(Mailbox<M>, Inbox<M>)> {
    let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let shared = Arc::new(Shared {
        queue: ArrayQueue::new(capacity.max(1)),
        sleep: SleepFlag::new(),
        closed: AtomicBool::new(false),
        waiting: AtomicUsize::new(0),
        room: Mutex::new(()),
        room_made: Condvar::new(),
        wake,
    });
    Ok((Mailbox { shared: Arc::clone(&shared) }, Inbox { shared }))
}

struct Shared<M> {
    queue: ArrayQueue<M>,
    sleep: SleepFlag,
    closed: AtomicBool,
    /// Senders that wait for room; the worker signals only when there are some.
    waiting: AtomicUsize,
    room: Mutex<()>,
    room_made: Condvar,
    wake: OwnedFd,
}

impl<M> Shared<M> {
    /// Wakes senders that wait for room, after something was taken out or the queue was closed. The fence
    /// pairs with the one in `Mailbox::send_until`: either this sees the waiting sender, or that sees the
    /// room.
    fn signal_room(&self) {
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::Relaxed) != 0 {
            // The lock orders this with a sender between its last attempt and its wait.
            drop(self.room.lock().unwrap_or_else(PoisonError::into_inner));
            self.room_made.notify_all();
        }
    }
}

/// Why a message was not accepted; it comes back to its sender.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Rejected<M> {
    /// The queue is full: the worker is behind. [`Mailbox::send_until`]: and stayed so until the deadline.
    #[error("the worker's mailbox is full")]
    Full(M),
    /// The worker has ended.
    #[error("the worker has ended")]
    Closed(M),
}

impl<M> Rejected<M> {
    /// The message that was not accepted.
    pub fn into_message(self) -> M {
        match self {
            Self::Full(message) | Self::Closed(message) => message,
        }
    }
}

impl<M> fmt::Debug for Rejected<M> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Full(_) => "Full(..)",
            Self::Closed(_) => "Closed(..)",
        })
    }
}

/// The sending side of a worker's queue; cheap to clone, usable from any thread.
pub struct Mailbox<M> {
    shared: Arc<Shared<M>>,
}

impl<M> Clone for Mailbox<M> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<M> fmt::Debug for Mailbox<M> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Mailbox")
            .field("len", &self.shared.queue.len())
            .field("capacity", &self.shared.queue.capacity())
            .finish_non_exhaustive()
    }
}

impl<M: Send> Mailbox<M> {
    /// Queues `message` without waiting, and wakes the worker if it sleeps.
    ///
    /// `Ok` means queued: a worker that ends before it takes the message out drops it.
    pub fn try_send(&self, message: M) -> Result<(), Rejected<M>> {
        if self.is_closed() {
            return Err(Rejected::Closed(message));
        }
        self.shared.queue.push(message).map_err(Rejected::Full)?;
        if self.shared.sleep.take_sleeper() {
            self.write_wake();
        }
        Ok(())
    }

    /// Queues `message`, waiting for room until `deadline`. For threads that may block (file readers,
    /// control); a worker never calls it, or two workers could wait for each other.
    pub fn send_until(&self, message: M, deadline: Instant) -> Result<(), Rejected<M>> {
        let message = match self.try_send(message) {
            Err(Rejected::Full(message)) => message,
            result => return result,
        };
        self.shared.waiting.fetch_add(1, Ordering::Relaxed);
        let result = self.wait_for_room(message, deadline);
        self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
        result
    }

    fn wait_for_room(&self, mut message: M, deadline: Instant) -> Result<(), Rejected<M>> {
        let mut guard = self.shared.room.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            fence(Ordering::SeqCst);
            message = match self.try_send(message) {
                Err(Rejected::Full(message)) => message,
                result => return result,
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Rejected::Full(message));
            }
            let waited = self.shared.room_made.wait_timeout(guard, left);
            guard = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Wakes the worker for a turn without a message, for instance after setting a flag that its service
    /// reads (a stop request).
    pub fn wake(&self) {
        self.write_wake();
    }

    /// Whether the worker has ended.
    pub fn is_closed(&self) -> bool {
        self.shared.closed.load(Ordering::Acquire)
    }

    /// How many messages wait.
    pub fn len(&self) -> usize {
        self.shared.queue.len()
    }

    /// Whether no message waits.
    pub fn is_empty(&self) -> bool {
        self.shared.queue.is_empty()
    }

    fn write_wake(&self) {
        // EAGAIN says that the counter is at its limit, thus non-zero: the worker is woken all the same. No
        // other error can come from an open eventfd and eight valid bytes.
        while rustix::io::write(&self.shared.wake, &1u64.to_ne_bytes()) == Err(Errno::INTR) {}
    }
}

/// The receiving side of a worker's queue. Dropping it closes the queue.
pub struct Inbox<M> {
    shared: Arc<Shared<M>>,
}

impl<M> fmt::Debug for Inbox<M> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Inbox").field("len", &self.shared.queue.len()).finish_non_exhaustive()
    }
}

impl<M> Inbox<M> {
    /// Hands over up to `limit` waiting messages, oldest first, and says how many there were.
    pub fn drain(&mut self, limit: usize, mut handle: impl FnMut(M)) -> usize {
        self.drain_while(limit, |message| {
            handle(message);
            true
        })
    }

    /// As [`Self::drain`], until `handle` says false.
    pub fn drain_while(&mut self, limit: usize, mut handle: impl FnMut(M) -> bool) -> usize {
        // Taking from an empty queue costs a full fence. A message that is missed here is seen before the worker sleeps.
        if self.shared.queue.is_empty() {
            return 0;
        }
        let mut taken = 0;
        while taken < limit {
            let Some(message) = self.shared.queue.pop() else { break };
            taken += 1;
            if !handle(message) {
                break;
            }
        }
        if taken != 0 {
            self.shared.signal_room();
        }
        taken
    }

    /// Whether no message waits.
    pub fn is_empty(&self) -> bool {
        self.shared.queue.is_empty()
    }

    /// Announces that the worker is about to sleep, so that the next send wakes it. True when a message
    /// has come in meanwhile: the worker must not sleep, and the announcement is withdrawn.
    pub fn prepare_sleep(&mut self) -> bool {
        self.shared.sleep.announce(|| !self.shared.queue.is_empty())
    }

    /// Withdraws the announcement after waking for whatever reason, so that sends cost no system call.
    pub fn awake(&mut self) {
        self.shared.sleep.withdraw();
    }

    /// Clears the eventfd. Needed by who watches it level-triggered; the worker watches edge-triggered.
    pub fn clear(&mut self) {
        let mut count = [0u8; 8];
        // EAGAIN: nobody has written since.
        while rustix::io::read(&self.shared.wake, &mut count) == Err(Errno::INTR) {}
    }
}

impl<M> AsFd for Inbox<M> {
    /// The eventfd that a sender writes when the worker sleeps.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.wake.as_fd()
    }
}

impl<M> Drop for Inbox<M> {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Release);
        while self.shared.queue.pop().is_some() {}
        self.shared.signal_room();
    }
}

#[cfg(test)]
mod tests;
