//! [`Gate`]: has a worker's kernel sockets stop receiving, and begin again, from another thread. What they send does not change.
//!
//! Two processes may have the same sockets for a while, of which one receives. The worker looks at the gate once per turn, so
//! whoever shuts it wakes the worker, and waits until it is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A worker's gate. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Gate(Arc<State>);

#[derive(Debug, Default)]
struct State {
    is_to_be_shut: AtomicBool,
    is_shut: AtomicBool,
}

impl Gate {
    /// Asks for no more to be received.
    pub fn shut(&self) {
        self.0.is_to_be_shut.store(true, Ordering::Release);
    }

    /// Asks for receiving to go on.
    pub fn open(&self) {
        self.0.is_to_be_shut.store(false, Ordering::Release);
    }

    /// The worker receives nothing any more.
    pub fn is_shut(&self) -> bool {
        self.0.is_shut.load(Ordering::Acquire)
    }

    /// Asked for at the moment; one load.
    pub(super) fn is_to_be_shut(&self) -> bool {
        self.0.is_to_be_shut.load(Ordering::Acquire)
    }

    /// The worker's word that it is so.
    pub(super) fn confirm(&self, is_shut: bool) {
        self.0.is_shut.store(is_shut, Ordering::Release);
    }
}
