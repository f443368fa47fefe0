//! HTTP/3 on one connection: requests in, responses out, with bounded memory.
//!
//! A [`Session`] reads events off the engine's HTTP/3 framing, turns header sections into requests for
//! `expressway-web`, and moves response bodies onto streams as far as the transport's capacity and the
//! connection's send window let it. It knows nothing of packets, paths or timers.

mod held;
mod priority;
mod request;
mod session;
mod stream;

pub(crate) use session::{Session, SessionContext};

/// A wake token's low bits hold the number of a request on its connection, modulo this plus one: its stream ID
/// over 4.
pub(crate) const STREAM_MASK: u64 = (1 << 24) - 1;

/// Error codes of RFC 9114, section 8.1, that this server sends.
pub(crate) mod code {
    /// Graceful end.
    pub(crate) const NO_ERROR: u64 = 0x100;
    /// A local fault.
    pub(crate) const INTERNAL_ERROR: u64 = 0x102;
    /// The peer behaves in a way that costs too much.
    pub(crate) const EXCESSIVE_LOAD: u64 = 0x107;
    /// The request was not processed.
    pub(crate) const REQUEST_REJECTED: u64 = 0x10b;
    /// The request is not wanted any more.
    pub(crate) const REQUEST_CANCELLED: u64 = 0x10c;
    /// The stream ended before the request did.
    pub(crate) const REQUEST_INCOMPLETE: u64 = 0x10d;
    /// The request is malformed.
    pub(crate) const MESSAGE_ERROR: u64 = 0x10e;
}
