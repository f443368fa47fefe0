//! Blocks of things other than files, read by the same threads, and other work for them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

use super::exchange::Wait;
use super::store::{FileStore, Job, Outcome};
use crate::blocks::{Block, BlockKey};
use crate::memory::Account;
use crate::{BodyError, Wake};

/// A block that is being read, or waits to be. Dropping it gives that up.
#[derive(Default)]
pub struct Reading(Wait<()>);

impl std::fmt::Debug for Reading {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reading").field("waits", &!matches!(self.0, Wait::Nothing)).finish()
    }
}

impl Reading {
    /// Has a reader thread run what `read` returns, or joins those who wait for the same block already. `read` is called if
    /// there is something to start. Pending until it is done, which calls `wake`.
    pub fn poll<R>(
        &mut self,
        store: &FileStore,
        key: BlockKey,
        account: Option<&Account>,
        wake: &Wake,
        read: impl FnOnce() -> R,
    ) -> Poll<Result<Block, BodyError>>
    where
        R: FnOnce() -> Result<Block, BodyError> + Send + 'static,
    {
        let blocked = match self.0.take() {
            Wait::Nothing => None,
            Wait::Blocked(blocked) => Some(blocked),
            Wait::Ticket(ticket, ()) => {
                let Some(outcome) = ticket.poll() else {
                    self.0 = Wait::Ticket(ticket, ());
                    return Poll::Pending;
                };
                return Poll::Ready(match outcome {
                    Outcome::Block(block) => block,
                    Outcome::Piece(_) | Outcome::Found(_) | Outcome::Task | Outcome::Lost => {
                        Err(BodyError::Stopped)
                    }
                });
            }
        };
        let (work, owner) = (read(), account.map_or(0, Account::id));
        let submitted =
            store.pool.submit(Job::Block(key), owner, wake, blocked, move || Outcome::Block(work()));
        self.0 = Wait::of(submitted, ());
        Poll::Pending
    }
}

/// Work on a reader thread of which nobody else wants the outcome. Dropping it gives it up if it has not begun.
#[derive(Default)]
pub(crate) struct Task(Wait<()>);

impl Task {
    /// It was begun and is not known to be done.
    pub(crate) fn is_under_way(&self) -> bool {
        !matches!(self.0, Wait::Nothing)
    }

    /// Has a reader thread run what `work` returns, which is called if there is something to start. Pending until it is
    /// done, which calls `wake`; false if it could not be finished.
    pub(crate) fn poll<W>(
        &mut self,
        store: &FileStore,
        account: Option<&Account>,
        wake: &Wake,
        work: impl FnOnce() -> W,
    ) -> Poll<bool>
    where
        W: FnOnce() + Send + 'static,
    {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let blocked = match self.0.take() {
            Wait::Nothing => None,
            Wait::Blocked(blocked) => Some(blocked),
            Wait::Ticket(ticket, ()) => {
                let Some(outcome) = ticket.poll() else {
                    self.0 = Wait::Ticket(ticket, ());
                    return Poll::Pending;
                };
                return Poll::Ready(matches!(outcome, Outcome::Task));
            }
        };
        let key = Job::Task(NUMBER.fetch_add(1, Ordering::Relaxed));
        let (work, owner) = (work(), account.map_or(0, Account::id));
        let run = move || {
            work();
            Outcome::Task
        };
        self.0 = Wait::of(store.pool.submit(key, owner, wake, blocked, run), ());
        Poll::Pending
    }
}
