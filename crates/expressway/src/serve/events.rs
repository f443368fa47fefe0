//! What the main thread waits for: signals, workers that ended, and how an upgrade goes.

use std::sync::mpsc::Sender;

use expressway_netio::IoError;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR2};

use super::upgrade::Report;
use super::upgrade::handover::Step;
use super::upgrade::launcher::Told;
use crate::fail::Failure;
use crate::signals;

/// Something for the main thread to act on.
#[derive(Debug)]
pub(crate) enum Event {
    /// SIGHUP.
    Reload,
    /// SIGTERM or SIGINT.
    Stop,
    /// SIGUSR2, or an order to the admin listener, whose client is told how it goes.
    Upgrade(Option<Report>),
    /// What the next process says.
    Next {
        /// In which attempt.
        attempt: u64,
        /// `None`: it says nothing more.
        step: Option<Step>,
    },
    /// What the launcher says; `None`: it is gone.
    Launcher(Option<Told>),
    /// The processes that had datagrams for this one have ended.
    Orphaned {
        /// Which upgrade they came of.
        attempt: u64,
    },
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
    let event = |signal| match signal {
        SIGHUP => Event::Reload,
        SIGUSR2 => Event::Upgrade(None),
        _ => Event::Stop,
    };
    signals::follow(&[SIGHUP, SIGTERM, SIGINT, SIGUSR2], events, event)
}
