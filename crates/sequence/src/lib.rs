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
//!
//! # Decisions
//!
//! The message expected next is delivered where it is; only messages that arrive early are copied, into a
//! window bounded in messages and in bytes. Missing messages are a list of ranges, never a flag per number,
//! so a jump of 2^60 costs as much as a jump of one. A hole is given up by age or because the window is full,
//! and reported once; messages that arrive later are delivered as late, so nothing that arrived is discarded
//! silently.
//!
//! Loss and a new numbering look the same in a single datagram. Without sessions, a line that goes back by
//! more than a window, or goes back after a silence, has a restarted sender: order within one line is never
//! lost that far. Each line is judged against itself, so the slower of two copies is not taken for a restart,
//! and after one it is ignored until it follows. No datagram is trusted for good: a stray jump forward is
//! undone by the next genuine datagram.
//!
//! `expressway-feed` adds addresses, a clock and a socket: lines are distinguished by the address that a
//! datagram was sent to, so both may use the same AF_XDP sockets; a request is sent by the receiving thread,
//! and a separate thread passes the replies to it, so that the receiver waits for its packet I/O only.
//!
//! This is a separate crate because it only parses untrusted input: it is fuzzed without BoringSSL and a
//! kernel, and a property test compares it with a model that keeps every number individually.

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
