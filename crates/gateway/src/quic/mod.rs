//! QUIC endpoints: one [`Endpoint`] per worker, which is an `expressway_netio::Service`.
//!
//! * [`Endpoint`] finds the connection of each datagram, creates and ends connections, hands over datagrams
//!   that belong to other workers, and decides which connection sends next.
//! * [`Settings`] and [`Setup`] configure it; [`Message`] changes it later.
//! * [`cid`], [`token`], [`reset`] and [`header`] are the stateless parts of RFC 9000 that a server handles
//!   before an engine knows the connection.
//! * [`Generations`] are the processes that follow each other without losing a connection: datagrams of an older one's
//!   connections are forwarded to it.
//! * [`Application`] is the protocol on connections: HTTP/3 ([`crate::Http3`]), or that of another service.
//! * `engine` is the QUIC implementation behind our own interface.
//!
//! There is no I/O, no thread and no clock here; the parts of an [`Instance`] are read once, at start.
//!
//! # Connection IDs and secrets
//!
//! A connection ID has 16 bytes: random ones, or a server ID for load balancers and random ones; then the worker
//! number, unencrypted so that the kernel's selector can read it; and two check bytes. The check bytes distinguish our
//! IDs from those that clients choose, so the owner of a packet is found without a table shared by workers.
//!
//! The secrets for IDs, resets and Retry are derived from the private key: after a crash and restart, clients of the
//! old process get a stateless reset that they can verify. The secrets for IDs and resets also depend on the server
//! ([`Instance`]). Retry tokens are accepted by every server with the private key, because a client's second packet may
//! reach another; with [`SharedRetryKeys`], by every server that has those. A [`FilterKey`] replaces the key of the
//! check bytes with one that a filter in front of the server knows, and gives tokens a form that the filter also makes
//! and accepts.

mod application;
pub mod cid;
mod endpoint;
pub(crate) mod engine;
pub mod filter_token;
pub mod header;
mod instance;
mod message;
mod older;
mod qlog;
mod quic_lb;
pub mod reset;
mod settings;
pub mod stats;
mod table;
#[cfg(test)]
pub(crate) mod testing;
mod tls;
pub mod token;

pub use application::{Application, Session, StreamLimits};
pub use endpoint::{Endpoint, Setup, Shared, TakenOver, Turn, Waker};
pub use engine::{EngineError, Received, SendError, Transport};
pub use instance::Instance;
pub use message::{ForeignDatagram, Message};
pub use older::{Forward, Forwarded, Generations, Older};
pub use qlog::{QlogError, QlogPhase, QlogReport, Recording};
pub use settings::{
    CongestionControl, JUMBO_UDP_PAYLOAD, MAX_UDP_PAYLOAD, MIN_UDP_PAYLOAD, RetryPolicy, Settings,
    SettingsError,
};
pub use stats::Stats;
pub use tls::{FilterKey, Identity, Secrets, Tls, TlsError, Validity};
pub use token::SharedRetryKeys;
