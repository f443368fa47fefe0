//! Open-loop generation of UDP datagrams on a schedule.
//!
//! ```text
//! Plan: when, which flow, what (rate or capture) ─▶ Run: what is due ─▶ Output: kernel sockets, AF_XDP, live frames
//!                                                     │ lateness by datagram, HdrHistogram
//!                                                     └ echoes: round trips, from the intended time
//! ```
//!
//! *Open loop*: a datagram's time follows from the plan alone, never from how the previous one fared. One
//! that is late is sent all the same, and carries the time when it was due ([`crate::probe`]): a receiver
//! that measures from that time includes the sender's delay, so an overloaded path cannot hide its worst
//! moments by slowing the generator down. How late each datagram was is in [`Outcome::lateness`].
//!
//! Nothing here grows with the length of a run: a batch of datagrams, one payload, histograms of fixed size,
//! a capture read block by block.
//!
//! What falls due while a batch is being sent makes the next batch, so batches grow with the load and nothing
//! needs tuning. The wall clock in the datagrams is compared a hundred times a second with the monotonic
//! clock of the schedule, both read within a microsecond. Lateness is half of the report: a load that was not
//! offered makes every other figure worthless.

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
