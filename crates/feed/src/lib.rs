//! Feeds: UDP streams for many receivers.
//!
//! [`receive`] hands the datagrams of a feed to a program's own code; [`fanout`] sends one feed to thousands of TCP, TLS
//! and WebSocket subscribers. Datagrams come from the packet I/O of `expressway-netio`, whichever way it moves them;
//! [`sequence`] puts sequenced feeds together from their lines; [`group`] keeps a feed's multicast membership.
//! [`generate`] makes datagrams on a schedule; [`probe`] is the header by which those are measured.

#[cfg(not(loom))]
pub mod fanout;
#[cfg(not(loom))]
pub mod generate;
#[cfg(not(loom))]
pub mod group;
#[cfg(not(loom))]
pub mod probe;
#[cfg(not(loom))]
pub mod receive;
#[cfg(not(loom))]
pub mod sequence;

// Model tests need this file alone, and none of what the rest depends on (BoringSSL, libbpf).
#[cfg(loom)]
#[allow(dead_code)]
#[path = "fanout/block.rs"]
mod block;
