//! QUIC endpoints: one [`Endpoint`] per worker, which is an `expressway_netio::Service`.
//!
//! * [`Endpoint`] finds the connection of each datagram, creates and ends connections, hands over datagrams
//!   that belong to other workers, and decides which connection sends next.
//! * [`Settings`] and [`Setup`] configure it; [`Message`] changes it later.
//! * [`cid`], [`token`], [`reset`] and [`header`] are the stateless parts of RFC 9000 that a server handles
//!   before an engine knows the connection.
//! * [`Generations`] are the processes that follow each other without losing a connection: datagrams of an older one's
//!   connections are forwarded to it.
//! * [`Application`] is what connections are for: HTTP/3 ([`crate::Http3`]), or what another service brings.
//! * `engine` is the QUIC implementation behind an interface of our own.
//!
//! There is no I/O, no thread and no clock here; what an [`Instance`] consists of is read once, at start.
//!
//! # Connection IDs and secrets
//!
//! A connection ID has 16 bytes: random ones, or a server ID for load balancers and random ones; the worker number in
//! clear, so that the kernel's selector can read it; and two check bytes that tell our IDs from those that clients choose, so that the owner of a
//! packet is found without a table shared by workers. The secrets of IDs, resets and Retry are derived from
//! the private key: after a crash and restart, clients of the old process get a stateless reset that they can
//! verify. The secrets of IDs and resets are bound to one server as well ([`Instance`]). Retry tokens are
//! accepted by every server with the key, because a client's second packet may reach another; with [`SharedRetryKeys`], by every
//! server that has those. A [`FilterKey`] replaces the
//! key of the check bytes by one that a filter in front of the server knows, and gives tokens a form that it makes and takes too.

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
