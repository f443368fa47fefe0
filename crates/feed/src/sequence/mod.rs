//! Sequenced feeds: merges the lines of a feed, over the I/O of [`crate::receive`].
//!
//! ```text
//!   datagrams to the address of line A ┐
//!   datagrams to the address of line B ├─▶ Sequencer ─▶ events: messages in order, gaps, sessions
//!   replies, posted by a thread ───────┘       │
//!                      ▲                       ▼ requests
//!                      └────── re-request server
//! ```
//!
//! `expressway-sequence` handles the numbers, without I/O. This module adds the addresses that distinguish lines, the
//! time, and the socket to a re-request server.
//!
//! ```no_run
//! use expressway_feed::receive::{Options, Receiver};
//! use expressway_feed::sequence::{Arbiter, ArbiterConfig, Event, Framing, Sequenced, Sequencer};
//! use expressway_netio::udp::{UdpConfig, UdpIo};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let lines = vec!["192.0.2.1:5000".parse()?, "192.0.2.1:5001".parse()?];
//! let io = UdpIo::bind(&UdpConfig::new(lines.clone()))?;
//! let config = ArbiterConfig { lines: 2, ..ArbiterConfig::new(Framing::MoldUdp64) };
//! let sequencer = Sequencer::new(Arbiter::new(config)?, lines);
//! let handler = Sequenced::new(sequencer, |event: Event<'_>| match event {
//!     Event::Message(message) => println!("{} {} bytes", message.sequence, message.data.len()),
//!     Event::Gap { first, count } => println!("{count} messages are missing from {first} on"),
//!     other => println!("{other:?}"),
//! });
//! Receiver::new(io, Options::default(), handler)?.run()?;
//! # Ok(())
//! # }
//! ```

mod client;
mod sequencer;

pub use client::{Replies, RerequestClient};
use expressway_netio::io::Timestamp;
pub use expressway_sequence::{
    ArbiterConfig, ArbiterStats, ConfigError, Framing, Hole, Line, LineStats, RerequestConfig,
    RerequestStats, Rerequester, mold, seq64,
};
pub use sequencer::{Sequenced, Sequencer};

/// An arbiter that hands messages on with the time stamps of their datagrams.
pub type Arbiter = expressway_sequence::Arbiter<Option<Timestamp>>;
/// What comes of a feed.
pub type Event<'a> = expressway_sequence::Event<'a, Option<Timestamp>>;
/// A message, with the time its datagram was received and who timestamped it, if anybody did.
pub type Message<'a> = expressway_sequence::Message<'a, Option<Timestamp>>;
