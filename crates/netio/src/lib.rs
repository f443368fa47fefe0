//! Packet I/O for UDP services: one trait, several ways to move a datagram, one worker per core.
//!
//! [`PacketIo`] is the interface. It is implemented by AF_XDP ([`xsk`]), kernel UDP ([`udp`]), the hybrid of both and a
//! simulated network ([`sim`]). It is used by a [`Service`], which a [`Worker`] drives: receive a batch, process it,
//! fill transmit buffers, flush once, sleep until the next packet, message or timer. Nothing here knows what the
//! datagrams mean.
//!
//! For whole packets instead of datagrams there is [`xsk::SharedUmem`], which needs neither a worker nor a service;
//! [`xsk`] introduces AF_XDP. `examples/` has a program for each. Using this crate never needs `unsafe`.
//!
//! Received packets can be passed to other processes without a copy, as lent frames ([`xsk::SharedUmem`]), or with one
//! copy, through a ring that readers cannot delay ([`broadcast`]).
//!
//! # Layers
//!
//! A module only imports from the layers below its own; `tests/it/layers.rs` checks the sources against this table.
//!
//! ```text
//!   5  xsk, sim                                  AF_XDP with kernel UDP beside it; whole workers simulated
//!   4  broadcast, device, udp, worker                records for other processes; kernel UDP; the loop of a core
//!   3  netdev, packet, readers, route, service    packets for other processes; what the kernel tells; what a worker drives
//!   2  io                                            the trait and what crosses it
//!   1  ring, trace, umem, wait                       rings and frames shared with others; hops; how a worker waits
//!   0  mailbox, priority, slice, stats, sys, timer, unix   system calls and memory; time; counters; messages; socket names
//! ```
//!
//! This crate never sees libbpf: BPF maps come in as [`std::os::fd::BorrowedFd`].

pub mod broadcast;
pub mod device;
pub mod io;
pub mod mailbox;
pub mod netdev;
pub mod packet;
pub mod priority;
mod readers;
mod ring;
pub mod route;
pub mod service;
pub mod sim;
pub mod slice;
pub mod stats;
mod sys;
pub mod timer;
pub mod trace;
pub mod udp;
mod umem;
pub mod unix;
pub mod wait;
pub mod worker;
pub mod xsk;

pub use io::{Datagram, Ecn, Flow, Hints, IoError, IoStats, PacketIo, Sent, Via};
pub use mailbox::{Inbox, Mailbox, mailbox};
pub use service::{Context, Service, Transmit};
pub use slice::{Slice, SliceLimit};
pub use timer::TimerWheel;
pub use wait::Wait;
pub use worker::{Worker, WorkerOptions};
