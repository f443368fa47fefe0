//! From an exchange's [`Wake`] to the task that polls it.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;

use expressway_web::{Notify, Wake};

/// Wakes whoever polled last.
#[derive(Debug, Default)]
pub(crate) struct Alarm(Mutex<Option<Waker>>);

impl Alarm {
    /// The same as a [`Wake`].
    pub(crate) fn wake(self: &Arc<Self>) -> Wake {
        Wake::new(Arc::clone(self) as Arc<dyn Notify>, 0)
    }

    /// Has `waker` called the next time. To be called before what may wake is polled.
    pub(crate) fn set(&self, waker: &Waker) {
        let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *slot {
            Some(set) => set.clone_from(waker),
            slot => *slot = Some(waker.clone()),
        }
    }

    /// Wakes it.
    pub(crate) fn ring(&self) {
        let waker = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Notify for Alarm {
    fn notify(&self, _token: u64) {
        self.ring();
    }
}
