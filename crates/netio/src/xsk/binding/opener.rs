//! Who opens a binding's sockets: this process, or another one with the privileges.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use super::active::Active;
use crate::xsk::config::Fitted;
use crate::xsk::error::OpenError;
use crate::xsk::remote::RemoteBinder;

/// A socket that was opened in place of another, and of what.
pub(super) struct Reopened {
    pub(super) fitted: Fitted,
    pub(super) active: Active,
}

/// Who opens the binding's sockets.
pub(super) enum Opener {
    /// This process, which enters them into this XSKMAP.
    Local(OwnedFd),
    /// Another process.
    Remote(RemoteOpener),
}

/// Another process, which opens sockets for this one.
pub(super) struct RemoteOpener {
    source: Arc<Mutex<Box<dyn RemoteBinder>>>,
    /// It is being asked.
    asked: Option<JoinHandle<Result<Reopened, OpenError>>>,
}

impl RemoteOpener {
    pub(super) fn new(source: Box<dyn RemoteBinder>) -> Self {
        Self { source: Arc::new(Mutex::new(source)), asked: None }
    }
}

impl Opener {
    /// Another bound socket, in place of one that failed. `None` while another process is asked for it, which may take
    /// long: that is for a thread of its own, as a worker has others to serve.
    pub(super) fn open(&mut self, fitted: Fitted, ifindex: u32) -> Option<Result<Reopened, OpenError>> {
        match self {
            Self::Local(map) => {
                Some(Active::open(&fitted, ifindex, map.as_fd()).map(|active| Reopened { fitted, active }))
            }
            Self::Remote(remote) => remote.open(fitted),
        }
    }
}

impl RemoteOpener {
    fn open(&mut self, fitted: Fitted) -> Option<Result<Reopened, OpenError>> {
        let failed = |reason: String, fitted: &Fitted| OpenError::Refused {
            interface: fitted.interface.clone(),
            queue: fitted.queue,
            reason,
            transient: true,
        };
        match self.asked.take() {
            Some(asked) if asked.is_finished() => Some(
                asked
                    .join()
                    .unwrap_or_else(|_| Err(failed("the requesting thread panicked".into(), &fitted))),
            ),
            Some(asked) => {
                self.asked = Some(asked);
                None
            }
            None => {
                let (source, wanted) = (Arc::clone(&self.source), fitted.clone());
                let ask = move || {
                    let mut source = source.lock().unwrap_or_else(PoisonError::into_inner);
                    Active::adopt(&wanted, &mut **source).map(|active| Reopened { fitted: wanted, active })
                };
                match std::thread::Builder::new().name("expressway-bind".into()).spawn(ask) {
                    Ok(asked) => {
                        self.asked = Some(asked);
                        None
                    }
                    Err(error) => {
                        Some(Err(failed(format!("starting the requesting thread: {error}"), &fitted)))
                    }
                }
            }
        }
    }
}
