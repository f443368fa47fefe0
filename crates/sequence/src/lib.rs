//! Sequenced feeds: what was sent twice arrives once, in order, and what is missing is said. No I/O.
//!
//! ```text
//!   line A ─▶ ┐            ┌ messages, in order, each once
//!   line B ─▶ ├─ Arbiter ─▶┤ gaps: what did not come in time
//!   replies ─▶┘     │      └ session changes, resets, ends
//!                   │ holes: what is waited for
//!                   ▼
//!               Rerequester ─▶ request packets, to the re-request server
//! ```
//!
//! * [`mold`] reads and writes MoldUDP64 packets, [`seq64`] plain 64-bit sequence headers.
//! * [`Arbiter`] merges the lines of a feed: copies of one stream that come by different ways.
//! * [`Rerequester`] asks for what is missing, with bounds on requests under way and on retries.
//!
//! What it does not: no sockets and no clock. Whoever has those calls in with each datagram and when
//! [`Arbiter::poll_timeout`] has passed. Memory is bounded by [`ArbiterConfig`], and no input makes it panic.

#![forbid(unsafe_code)]

mod arbiter;
mod framing;
mod line;
pub mod mold;
mod ranges;
mod reorder;
mod rerequest;
pub mod seq64;
mod stats;

pub use arbiter::{Arbiter, ArbiterConfig, ConfigError, Event, Hole, Message};
pub use framing::Framing;
pub use line::Line;
pub use rerequest::{RerequestConfig, RerequestStats, Rerequester};
pub use stats::{ArbiterStats, LineStats};
