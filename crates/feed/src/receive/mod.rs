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
//! membership ([`expressway_netio::udp::group`]), which wants a thread of its own now and then.
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
//! Waiting, pinning and the handling of interfaces that come and go are the worker's, as for the gateway.
//! Batches of borrowed frames would withhold frames from the fill ring for as long as somebody keeps them, so
//! a batch is a copy into memory of fixed size.
//!
//! Only the kernel can join a group, so a kernel socket joins in every mode; the XDP program then takes the
//! group's packets like those of any address. The source filter of a source-specific membership is the
//! kernel's and is bypassed, so the receiver filters again. Membership is maintained by another thread,
//! because joining takes the kernel's rtnl lock.
//!
//! A timestamp names its source, since the three differ in what they include: the NIC's includes everything,
//! the program's not the interrupt, the kernel's not the driver either. GRO gives all datagrams of a message
//! one timestamp, that of the first, so it is off when timestamps are wanted. Wire-to-wire latency counts
//! from when a datagram was due, not when it left: otherwise a sender delayed by the receiver would hide the
//! delay (coordinated omission).
//!
//! Reading the device's own time needs a program bound to the device. Where that is not possible (generic
//! mode, no driver support) a second program takes its own timestamp. In a dispatcher neither works, because
//! a component may not change what its dispatcher assumes about the packet.

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
