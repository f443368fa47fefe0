//! How an exchange of the origin wakes whoever polls it: first a task that fetches, then a transport if the response is
//! handed on.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;

use expressway_web::{Notify, Wake};

/// Whom to wake.
#[derive(Debug, Default)]
enum Target {
    #[default]
    Nobody,
    Task(Waker),
    Transport(Wake),
}

/// A wake whose target can be changed.
#[derive(Debug, Default)]
pub(crate) struct Relay(Mutex<Target>);

impl Relay {
    pub(crate) fn wake(self: &Arc<Self>) -> Wake {
        Wake::new(Arc::clone(self) as Arc<dyn Notify>, 0)
    }

    /// From now on wakes a task.
    pub(crate) fn set_task(&self, waker: &Waker) {
        let mut target = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *target {
            Target::Task(old) if old.will_wake(waker) => {}
            target => *target = Target::Task(waker.clone()),
        }
    }

    /// From now on wakes a transport.
    pub(crate) fn set_transport(&self, wake: &Wake) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Target::Transport(wake.clone());
    }
}

impl Notify for Relay {
    fn notify(&self, _token: u64) {
        let target = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &*target {
            Target::Nobody => {}
            Target::Task(waker) => {
                let waker = waker.clone();
                drop(target);
                waker.wake();
            }
            Target::Transport(wake) => {
                let wake = wake.clone();
                drop(target);
                wake.wake();
            }
        }
    }
}
