//! Feeds: UDP streams for many receivers.
//!
//! * [`receive`] passes the datagrams of a feed to a program's own code.
//! * [`fanout`] sends one feed to thousands of TCP, TLS and WebSocket subscribers.
//! * [`sequence`] merges the lines of sequenced feeds.
//! * [`generate`] sends datagrams on a schedule; [`probe`] is the header used to measure them.
//!
//! Datagrams come from the packet I/O of `expressway-netio`, through any of its backends.

#[cfg(not(loom))]
pub mod fanout;
#[cfg(not(loom))]
pub mod generate;
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
