//! What the main thread waits for: signals, and workers that ended.

use std::sync::mpsc::Sender;

use expressway_netio::IoError;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::fail::Failure;
use crate::signals;

/// Something for the main thread to act on.
#[derive(Debug)]
pub(crate) enum Event {
    /// SIGHUP.
    Reload,
    /// SIGTERM or SIGINT.
    Stop,
    /// A worker's thread has ended: `Err` when its backend failed, `None` when it panicked.
    WorkerEnded {
        /// Its index.
        worker: usize,
        /// How.
        result: Option<Result<(), IoError>>,
    },
}

/// Turns signals into events on a thread of its own.
pub(crate) fn follow_signals(events: Sender<Event>) -> Result<(), Failure> {
    let event = |signal| if signal == SIGHUP { Event::Reload } else { Event::Stop };
    signals::follow(&[SIGHUP, SIGTERM, SIGINT], events, event)
}
