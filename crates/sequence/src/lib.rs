//! Sequenced feeds: messages that were sent twice are delivered once and in order, and gaps are reported. No I/O.
//!
//! ```text
//!   line A ─▶ ┐            ┌ messages, in order, each once
//!   line B ─▶ ├─ Arbiter ─▶┤ gaps: messages that did not arrive in time
//!   replies ─▶┘     │      └ session changes, resets, ends
//!                   │ holes: messages that it waits for
//!                   ▼
//!               Rerequester ─▶ request packets, to the re-request server
//! ```
//!
//! * [`mold`] reads and writes MoldUDP64 packets, [`seq64`] plain 64-bit sequence headers.
//! * [`Arbiter`] merges the lines of a feed: copies of one stream that arrive over different paths.
//! * [`Rerequester`] requests missing messages, with bounds on outstanding requests and on retries.
//!
//! What it does not: no sockets and no clock. The caller has both, and calls with each datagram and when
//! [`Arbiter::poll_timeout`] has passed. Memory is bounded by [`ArbiterConfig`], and no input makes it panic.
//!
//! # Decisions
//!
//! The message expected next is delivered where it is. Only messages that arrive early are copied, into a window
//! bounded in messages and in bytes. Missing messages are a list of ranges, never a flag per number, so a jump
//! of 2^60 costs as much as a jump of one. A hole is given up when it is too old or the window is full, and is
//! reported once. Messages that arrive after that are delivered as late, so nothing is discarded silently.
//!
//! In a single datagram, loss and a new numbering look the same. In a feed without sessions, a line's sender has
//! restarted if its numbers go back by more than a window, or go back after a silence: packets of one line are
//! never reordered that far. Each line is judged against itself, so the slower of two copies is not taken for
//! a restart. After a restart, the slower line is ignored until it follows. No single datagram is trusted for
//! good: the next genuine datagram undoes a stray jump forward.
//!
//! `expressway-feed` adds addresses, a clock and a socket. It distinguishes lines by the address that a datagram
//! was sent to, so both may use the same AF_XDP sockets. The receiving thread sends requests. A separate thread
//! passes the replies to it, so the receiver only waits for its packet I/O.
//!
//! This is a separate crate because it only parses untrusted input. It is fuzzed without BoringSSL and a kernel,
//! and a property test compares it with a model that keeps every number individually.

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
