//! Feeds: UDP streams for many receivers.
//!
//! [`fanout`] sends one UDP feed to thousands of TCP, TLS and WebSocket subscribers. Datagrams come from the
//! packet I/O of `expressway-netio`, whichever way it moves them. [`probe`] is the header by which generated datagrams
//! are measured.

pub mod fanout;
pub mod probe;
