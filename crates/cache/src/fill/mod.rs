//! Fetches, each shared by all requests that wait for it.
//!
//! ```text
//!   first request ──▶ Fill ◀── others, until its head is there
//!                      │ task: asks the origin
//!                      ▼
//!      Answer: an object whose blocks arrive │ the old one, confirmed │ nothing that can be shared │ a failure
//! ```
//!
//! A fill holds its blocks until its last reader has gone, so that readers do not depend on the block cache. The total
//! that all fills hold is bounded.

mod readers;
mod table;
mod task;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use expressway_web::blocks::Block;
use expressway_web::{Exchange, ResponseHead};
use http::StatusCode;

use crate::key::Key;
use crate::object::Object;
use crate::relay::Relay;
use crate::throttle::Throttle;
use readers::Readers;
pub(crate) use table::{Joined, Table, authorized};
pub(crate) use task::{Kind, Plan};

/// What a fetch came to.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    /// An object, whose blocks arrive now, with the origin's status.
    Object(Arc<Object>, StatusCode),
    /// The object that was to be revalidated is good.
    Confirmed(Arc<Object>),
    /// It cannot be shared: everybody asks for themselves, through this throttle.
    Alone(Arc<Throttle>),
    /// The origin failed or cannot be reached.
    Failed(Arc<Throttle>),
    /// Of a slice: its version is to be had no more.
    Gone,
}

/// An origin's answer that goes to the first who asks for it.
#[derive(Debug)]
pub(crate) struct Handover {
    pub(crate) head: ResponseHead,
    pub(crate) exchange: Exchange,
    pub(crate) relay: Arc<Relay>,
}

#[derive(Debug, Default)]
struct State {
    answer: Option<Answer>,
    handover: Option<Handover>,
    /// Blocks in order, and the index of the first.
    blocks: VecDeque<Block>,
    first: u32,
    /// The end of the body: its octets, or none if it broke off.
    end: Option<Option<u64>>,
    readers: Readers,
    /// The task, where it waits for readers.
    task: Option<Waker>,
}

/// A fetch.
#[derive(Debug)]
pub(crate) struct Fill {
    pub(crate) key: Key,
    /// By what requests find it.
    pub(crate) lane: u128,
    state: Mutex<State>,
    /// The last purge when it began: who asks after another one does not take part.
    purges: u64,
    /// What it brings is not to be kept: it was purged meanwhile.
    is_void: AtomicBool,
    /// Octets of blocks that all fills hold.
    held: Arc<AtomicUsize>,
}

/// Where a block is.
#[derive(Debug)]
pub(crate) enum Progress {
    Block(Block),
    /// The body is complete and ends before it.
    End,
    /// It is not of this fill, or was let go.
    Elsewhere,
    /// It will not come.
    Broken,
}

impl Fill {
    fn new(key: Key, lane: u128, purges: u64, held: Arc<AtomicUsize>) -> Self {
        Self { key, lane, purges, state: Mutex::default(), is_void: AtomicBool::new(false), held }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A reader of it, unless there are `most` already.
    pub(crate) fn join(self: &Arc<Self>, most: usize) -> Option<Ticket> {
        (self.readers() < most).then(|| self.ticket())
    }

    fn ticket(self: &Arc<Self>) -> Ticket {
        let mut state = self.lock();
        let first = state.first;
        let key = state.readers.join(first);
        drop(state);
        Ticket { fill: Arc::clone(self), key }
    }

    /// What it came to, if that is known.
    pub(crate) fn answer(&self) -> Option<Answer> {
        self.lock().answer.clone()
    }

    pub(crate) fn void(&self) {
        self.is_void.store(true, Ordering::Release);
    }

    fn is_void(&self) -> bool {
        self.is_void.load(Ordering::Acquire)
    }

    fn readers(&self) -> usize {
        self.lock().readers.len()
    }

    fn settle(&self, answer: Answer, handover: Option<Handover>) {
        self.change(|state| {
            state.answer = Some(answer);
            state.handover = handover;
        });
    }

    /// Changes the state, and wakes all readers.
    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        change(&mut state);
        let wakers = state.readers.take_wakers();
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Begins the blocks at this index.
    fn begin(&self, first: u32) {
        let mut state = self.lock();
        state.first = first;
        state.readers.begin(first);
    }

    fn push(&self, block: Block) {
        self.held.fetch_add(block.memory(), Ordering::Relaxed);
        self.change(|state| state.blocks.push_back(block));
    }

    /// Lets go of blocks that every reader has passed, until it holds no more than `most` octets. Pending, with the task's
    /// waker kept, while it has to wait for readers.
    fn poll_shrink(&self, most: usize, waker: &Waker) -> Poll<()> {
        let mut state = self.lock();
        let slowest = state.readers.slowest().unwrap_or(u32::MAX);
        let mut held: usize = state.blocks.iter().map(Block::memory).sum();
        while held > most && state.first < slowest {
            let Some(block) = state.blocks.pop_front() else { break };
            state.first += 1;
            held -= block.memory();
            self.held.fetch_sub(block.memory(), Ordering::Relaxed);
        }
        if held > most {
            state.task = Some(waker.clone());
            return Poll::Pending;
        }
        Poll::Ready(())
    }

    fn end(&self, end: Option<u64>) {
        self.change(|state| state.end = Some(end));
    }
}

impl Drop for Fill {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let held = state.blocks.iter().map(Block::memory).sum();
        self.held.fetch_sub(held, Ordering::Relaxed);
    }
}

/// A reader of a fill. Dropping it gives the place up.
#[derive(Debug)]
pub(crate) struct Ticket {
    fill: Arc<Fill>,
    key: usize,
}

impl Ticket {
    fn wait<T>(
        &self,
        waker: &Waker,
        position: Option<u32>,
        look: impl FnOnce(&mut State) -> Option<T>,
    ) -> Poll<T> {
        let mut state = self.fill.lock();
        let task = position.and_then(|position| {
            state.readers.advance(self.key, position);
            state.task.take()
        });
        let found = look(&mut state);
        if found.is_none() {
            state.readers.wait(self.key, waker);
        }
        drop(state);
        if let Some(task) = task {
            task.wake();
        }
        found.map_or(Poll::Pending, Poll::Ready)
    }

    /// What the fetch came to.
    pub(crate) fn poll_answer(&self, waker: &Waker) -> Poll<Answer> {
        self.wait(waker, None, |state| state.answer.clone())
    }

    /// The origin's own answer, for the first who asks.
    pub(crate) fn take_handover(&self) -> Option<Handover> {
        self.fill.lock().handover.take()
    }

    /// The block of that index.
    pub(crate) fn poll_block(&self, index: u32, block_bytes: u64, waker: &Waker) -> Poll<Progress> {
        self.wait(waker, Some(index), |state| {
            let Some(at) = index.checked_sub(state.first) else { return Some(Progress::Elsewhere) };
            if let Some(block) = state.blocks.get(at as usize) {
                return Some(Progress::Block(block.clone()));
            }
            match (state.end, &state.answer) {
                (Some(Some(end)), _) if u64::from(index) * block_bytes >= end => Some(Progress::End),
                (Some(Some(_)), _) => Some(Progress::Elsewhere),
                (Some(None), _) | (None, Some(Answer::Gone | Answer::Failed(_) | Answer::Alone(_))) => {
                    Some(Progress::Broken)
                }
                (None, _) => None,
            }
        })
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut state = self.fill.lock();
        state.readers.leave(self.key);
        // A handed-over answer that its last reader did not want is not kept.
        let handover = if state.readers.is_empty() { state.handover.take() } else { None };
        let task = state.task.take();
        drop(state);
        drop(handover);
        if let Some(task) = task {
            task.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SiteOptions;

    /// What a fetch costs its readers is in proportion to their number: each is looked at when it comes, asks and goes, and when all
    /// are woken.
    #[test]
    fn thousands_of_readers_do_not_look_at_each_other() {
        const READERS: usize = 8192;
        const BLOCKS: u32 = 4;
        let key = Key::of("https", "a", "/", &SiteOptions::default(), 0);
        let fill = Arc::new(Fill::new(key, 0, 0, Arc::default()));
        let tickets: Vec<Ticket> = (0..READERS).map(|_| fill.join(READERS).unwrap()).collect();
        assert!(fill.join(READERS).is_none());
        for ticket in &tickets {
            assert!(ticket.poll_answer(Waker::noop()).is_pending());
        }
        fill.change(|_| {});
        fill.begin(1);
        for block in 1..=BLOCKS {
            for ticket in &tickets {
                assert!(ticket.poll_block(block, 1 << 10, Waker::noop()).is_pending());
                assert!(fill.poll_shrink(0, Waker::noop()).is_ready());
            }
            fill.change(|_| {});
        }
        assert_eq!(fill.lock().readers.slowest(), Some(BLOCKS));
        drop(tickets);
        assert_eq!((fill.readers(), fill.lock().readers.slowest()), (0, None));
        let visits = fill.lock().readers.visits;
        let each = 1 + 1 + 1 + 1 + 3 * BLOCKS as usize + 1;
        assert!(visits <= each * READERS, "{visits} readers were looked at");
    }
}
