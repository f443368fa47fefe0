//! A feed's datagrams for a program's own code, within microseconds of their arrival.
//!
//! ```text
//!   PacketIo ─▶ Receiver (a netio worker: waits, pins, turns) ─▶ Handler ─▶ the program
//!   AF_XDP, kernel UDP           │                                  └ e.g. Latency, Batches, a sequencer before them
//!                                └ unwanted sources, surplus, echo: counted
//! ```
//!
//! * [`Handler`] gets the datagrams: one call per datagram, where it is (AF_XDP: in its UMEM frame), and one call after
//!   each batch. A closure is a handler. A handler that computes something may contain the next one.
//! * [`Batches`] is a handler for code that wants many datagrams at a time. It copies them into memory of fixed size.
//! * [`Latency`] measures from the timestamp of NIC, XDP program or kernel to the callback, and from the time at which a
//!   [`crate::probe::Probe`] was due to be sent.
//!
//! Nothing is allocated for a datagram, and no other thread is involved. Datagrams that arrive faster than the handler
//! takes them wait in the RX ring or the socket's buffer. When these are full, the kernel drops and counts ([`IoStats`]).
//!
//! Not here: opening the packet I/O (`expressway-dataplane` does, as in `examples/receive.rs`, or
//! [`expressway_netio::udp::UdpIo::bind`]), and multicast
//! membership ([`expressway_netio::udp::group`]), which needs a separate thread now and then.
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
//!
//! # Decisions
//!
//! The worker does the waiting and pinning, and handles interfaces that come and go, as for the gateway.
//! Batches of borrowed frames would withhold frames from the fill ring for as long as somebody keeps them, so
//! a batch is a copy into memory of fixed size.
//!
//! Only the kernel can join a group, so a kernel socket joins in every mode. The XDP program then takes the
//! group's packets like those of any address. This bypasses the kernel's source filter for a source-specific
//! membership, so the receiver filters again. Another thread maintains memberships, because joining takes the
//! kernel's rtnl lock.
//!
//! A timestamp names its source, because the three sources differ. Latency from the NIC's timestamp includes
//! everything, that from the program's excludes the interrupt, and that from the kernel's excludes the driver
//! too. GRO gives all datagrams of a message one timestamp, that of the first, so it is off when timestamps
//! are wanted. Wire-to-wire latency counts from when a datagram was due, not when it left: otherwise a sender
//! delayed by the receiver would hide the delay (coordinated omission).
//!
//! Reading the device's own time needs a program bound to the device. Where that is not possible (generic
//! mode, no driver support), a second program takes its own timestamp. Neither works in a dispatcher, because a
//! component must not change what its dispatcher assumes about the packet.

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
