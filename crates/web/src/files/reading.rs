//! Blocks of other things than files, read by the same threads.

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
                    Outcome::Piece(_) | Outcome::Found(_) | Outcome::Lost => Err(BodyError::Stopped),
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
