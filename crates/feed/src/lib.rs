//! Feeds: UDP streams for many receivers.
//!
//! [`receive`] hands the datagrams of a feed to a program's own code; [`fanout`] sends one feed to thousands of TCP, TLS
//! and WebSocket subscribers. Datagrams come from the packet I/O of `expressway-netio`, whichever way it moves them;
//! [`sequence`] puts sequenced feeds together from their lines; [`group`] keeps a feed's multicast membership.
//! [`generate`] makes datagrams on a schedule; [`probe`] is the header by which those are measured.

pub mod fanout;
pub mod generate;
pub mod group;
pub mod probe;
pub mod receive;
pub mod sequence;
