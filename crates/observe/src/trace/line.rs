//! A trace as text: one JSON document per line.

use expressway_netio::trace::Event;
use serde::{Deserialize, Serialize};

/// A line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Line {
    /// Of the trace itself.
    Control(Control),
    /// An event.
    Recorded(Recorded),
}

/// What happened on a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recorded {
    /// The worker's number.
    pub worker: usize,
    /// What happened.
    #[serde(flatten)]
    pub event: Event,
}

/// About the trace itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "trace", rename_all = "snake_case")]
pub enum Control {
    /// The first line.
    Begin {
        /// When, in nanoseconds of CLOCK_MONOTONIC.
        time: u64,
        /// What CLOCK_REALTIME is ahead of that.
        realtime_ahead: u64,
        /// Workers of the process.
        workers: usize,
        /// How long it lasts.
        seconds: u32,
        /// One request in so many, on each worker.
        sample: u32,
    },
    /// Which AF_XDP socket the events of a worker mean by a number. Comes before the first that does.
    Place {
        /// The worker.
        worker: usize,
        /// The number.
        xsk: u16,
        /// Name of the interface.
        interface: String,
        /// Queue of the interface.
        queue: u32,
    },
    /// Comes every second.
    Progress {
        /// When, in nanoseconds of CLOCK_MONOTONIC.
        time: u64,
        /// Events lost since the beginning, because the reader was slow.
        lost: u64,
    },
    /// The last line: the time limit was reached.
    End {
        /// When, in nanoseconds of CLOCK_MONOTONIC.
        time: u64,
        /// Events told.
        events: u64,
        /// Events lost.
        lost: u64,
    },
}
