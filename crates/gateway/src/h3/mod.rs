//! HTTP/3 on one connection: requests in, responses out, with bounded memory.
//!
//! A [`Session`] reads frames off streams, by the codec of `expressway-h3`, turns header sections into requests for
//! `expressway-web`, and moves response bodies onto streams as far as the transport's capacity and the
//! connection's send window let it. It knows nothing of packets, paths or timers.

mod incoming;
mod peer;
mod priority;
mod request;
mod response;
mod session;
mod starved;
mod stream;

pub(crate) use session::{Session, SessionContext};

pub(crate) use expressway_h3::code;

/// A wake token's low bits hold the number of a request on its connection, modulo this plus one: its stream ID
/// over 4.
pub(crate) const STREAM_MASK: u64 = (1 << 24) - 1;
