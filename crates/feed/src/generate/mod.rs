//! Open-loop generation of UDP datagrams on a schedule.
//!
//! ```text
//! Plan: when, which flow, what (rate or capture) ─▶ Run: what is due ─▶ Output: kernel sockets, AF_XDP, live frames
//!                                                     │ lateness by datagram, HdrHistogram
//!                                                     └ echoes: round trips, from the intended time
//! ```
//!
//! *Open loop*: a datagram's time follows from the plan alone, never from what became of the previous one. A
//! late datagram is sent all the same, and carries the time at which it was due ([`crate::probe`]). A receiver
//! that measures from that time includes the sender's delay, so an overloaded path cannot hide its worst
//! moments by slowing the generator down. [`Outcome::lateness`] has the lateness of all datagrams.
//!
//! Memory does not grow with the length of a run: there is a batch of datagrams, one payload, and histograms of
//! fixed size, and a capture is read block by block.
//!
//! Datagrams that fall due while a batch is being sent are the next batch. So batches grow with the load, and
//! nothing needs tuning. The wall clock in the datagrams is compared a hundred times a second with the monotonic
//! clock of the schedule, both read within a microsecond. Lateness is half of the report, because a load that
//! was not offered makes every other figure worthless.

mod capture;
mod echo;
mod flows;
mod output;
mod payload;
mod plan;
mod run;
mod schedule;
mod size;

pub use capture::{Capture, CaptureError, CaptureStats};
pub use echo::{EchoStats, Echoes};
pub use flows::Flows;
pub use output::{Output, OutputError, PacketOutput, Tally};
pub use payload::{Pattern, Payload};
pub use plan::{Content, Datagrams, Due, Plan};
pub use run::{Ended, Outcome, Progress, Run, RunError};
pub use schedule::{Pace, Schedule};
pub use size::Sizes;
