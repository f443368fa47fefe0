//! A feed's datagrams for a program's own code, within microseconds of their arrival.
//!
//! ```text
//!   PacketIo ─▶ Receiver (a netio worker: waits, pins, turns) ─▶ Handler ─▶ the program
//!   AF_XDP, kernel UDP           │                                  └ e.g. Latency, Batches, a sequencer before them
//!                                └ sources that are not wanted, surplus, echo: counted
//! ```
//!
//! * [`Handler`] is where datagrams go: one call a datagram, where it lies (AF_XDP: in its UMEM frame), and one at the
//!   end of what came together. A closure is a handler; a handler that works things out may hold the next one.
//! * [`Batches`] is the handler for code that wants many at a time: it copies them into a memory of fixed size.
//! * [`Latency`] measures from the stamp of NIC, XDP program or kernel to the callback, and from the time that a
//!   [`crate::probe::Probe`] was due to be sent.
//!
//! Nothing is allocated for a datagram, and no other thread is in the way. What comes faster than the handler takes it
//! waits in the RX ring or the socket's buffer; what these do not hold the kernel drops and counts ([`IoStats`]).
//!
//! Not here: opening the packet I/O (the binary does, or [`expressway_netio::udp::UdpIo::bind`]), and multicast
//! membership ([`crate::group`]), which wants a thread of its own now and then.
//!
//! # A first program
//!
//! ```no_run
//! use expressway_feed::receive::{Options, Receiver};
//! use expressway_netio::Datagram;
//! use expressway_netio::udp::{UdpConfig, UdpIo};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let io = UdpIo::bind(&UdpConfig::new(vec!["192.0.2.1:5000".parse()?]))?;
//! let mut bytes = 0;
//! let count = |datagram: Datagram<'_>| bytes += datagram.payload.len();
//! let mut receiver = Receiver::new(io, Options::default(), count)?;
//! receiver.run()?; // until `receiver.stopper()` says so from another thread
//! # Ok(())
//! # }
//! ```
//!
//! [`IoStats`]: expressway_netio::IoStats

mod batch;
mod clock;
mod counters;
mod echo;
mod handler;
mod latency;
mod receiver;
mod service;

pub use batch::{Arrival, Batch, Batches};
pub use clock::Clock;
pub use counters::Counters;
pub use handler::Handler;
pub use latency::{Latency, Track};
pub use receiver::{Options, Poster, Receiver, Stopper, Watch};
