//! [`ReceivePause`]: stops and resumes receiving on a worker's kernel sockets, from another thread. Sending is not
//! affected.
//!
//! Two processes may have the same sockets for a while, and only one of them receives. The worker checks once per turn
//! whether it should pause, so the caller wakes the worker and waits until it is paused.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A worker's pause. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct ReceivePause(Arc<State>);

#[derive(Debug, Default)]
struct State {
    is_asked: AtomicBool,
    is_paused: AtomicBool,
}

impl ReceivePause {
    /// Asks for no more to be received.
    pub fn pause(&self) {
        self.0.is_asked.store(true, Ordering::Release);
    }

    /// Asks for receiving to go on.
    pub fn resume(&self) {
        self.0.is_asked.store(false, Ordering::Release);
    }

    /// The worker receives nothing any more.
    pub fn is_paused(&self) -> bool {
        self.0.is_paused.load(Ordering::Acquire)
    }

    /// Asked for at the moment; one load.
    pub(super) fn is_asked(&self) -> bool {
        self.0.is_asked.load(Ordering::Acquire)
    }

    /// The worker's word that it is so.
    pub(super) fn confirm(&self, is_paused: bool) {
        self.0.is_paused.store(is_paused, Ordering::Release);
    }
}
