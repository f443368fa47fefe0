//! How other threads tell a worker that an exchange can make progress.

use std::fmt;
use std::sync::Arc;
use std::task::Waker;

/// A worker's mailbox as seen from reader threads.
pub trait Notify: Send + Sync {
    /// Called from any thread when polling the exchange behind `token` again makes sense.
    ///
    /// Must be cheap and must not call back into the exchange. May be called for an exchange that has been
    /// dropped, and more than once for one wait: the receiver ignores tokens that it does not know.
    fn notify(&self, token: u64);
}

/// One exchange's way to be polled again: a mailbox and the token that names the exchange in it.
#[derive(Clone)]
pub struct Wake {
    notify: Arc<dyn Notify>,
    token: u64,
}

impl Wake {
    /// A wake that calls `notify` with `token`.
    pub fn new(notify: Arc<dyn Notify>, token: u64) -> Self {
        Self { notify, token }
    }

    /// Asks for the exchange to be polled again.
    pub fn wake(&self) {
        self.notify.notify(self.token);
    }

    /// The same for what is polled with a [`Waker`], such as a pipe or a future.
    pub fn waker(&self) -> Waker {
        Waker::from(Arc::new(self.clone()))
    }
}

impl std::task::Wake for Wake {
    fn wake(self: Arc<Self>) {
        Self::wake(&self);
    }
}

impl fmt::Debug for Wake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wake").field("token", &self.token).finish_non_exhaustive()
    }
}
