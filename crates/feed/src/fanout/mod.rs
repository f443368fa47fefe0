//! One UDP feed to many TCP subscribers.
//!
//! ```text
//!   PacketIo ─▶ Source ─▶ Ring (framed once) ─┬▶ shard 0 ─▶ its subscribers, one cursor each
//!   (on shard 0's thread)                     └▶ shard n ─▶ …
//!   listeners ─▶ Door (a thread: accept, allow list, limit, TLS and WebSocket handshakes) ─▶ shards
//! ```
//!
//! Everything that has been received is framed once into a ring; each subscriber is a cursor in it, and
//! gets everything that it has not seen by one send. Few large segments instead of many small ones are what
//! saves: per delivery a send and the ACKs that it causes cost the same whatever they carry.
//!
//! The first shard receives and sends on one thread, so that nothing is handed over on the way of the first
//! subscribers. Nothing there waits for a subscriber: what a socket does not take stays in the ring, and a
//! subscriber that falls behind [`Limits`] finishes the frame that it is in the midst of and then jumps to the
//! newest with a gap marker, or is disconnected. Handshakes are done on a thread of their own.
//!
//! Not here: metrics pages and signals (the binary), and how datagrams are received (`expressway-netio`).

mod block;
mod door;
mod framing;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod handshake;
mod kernel;
mod options;
mod pending;
mod presence;
mod request;
mod ring;
mod roster;
mod service;
mod shard;
mod source;
mod stats;
mod subscriber;
mod sys;
mod tls;
mod transport;
mod waits;
mod websocket;
mod wheel;

pub use crate::group::Membership;
pub use framing::{Framing, MAX_HEADER};
pub use kernel::KernelFeed;
pub use options::{Cidr, Limits, Listen, Options, Protocol, SlowClient, Start, StartPolicy};
pub use ring::BLOCK_BYTES;
pub use service::{Fanout, FanoutError};
pub use stats::{Counter, Reason, Statistics, SubscriberStatistics};
pub use tls::{TlsError, TlsIdentity};
