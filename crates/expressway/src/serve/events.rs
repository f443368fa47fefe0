//! What the main thread waits for: signals, and workers that ended.

use std::sync::mpsc::Sender;

use expressway_netio::IoError;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::fail::Failure;

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
    let failed = |error: std::io::Error| Failure::run_time(format!("signal handlers: {error}"));
    let mut signals = Signals::new([SIGHUP, SIGTERM, SIGINT]).map_err(failed)?;
    let follow = move || {
        for signal in signals.forever() {
            let event = if signal == SIGHUP { Event::Reload } else { Event::Stop };
            if events.send(event).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("expressway-signal".into()).spawn(follow).map(|_| ()).map_err(failed)
}
