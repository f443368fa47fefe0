//! HTTP/3 on one connection: requests in, responses out, with bounded memory.
//!
//! A [`Session`] reads frames off streams, by the codec of `expressway-h3`, turns header sections into requests for
//! `expressway-web`, and moves response bodies onto streams as far as the transport's capacity and the
//! connection's send window let it. It knows nothing of packets, paths or timers.
//!
//! # Why our own
//!
//! With requests of 1 KiB, a third of the server's CPU was spent in quiche's HTTP/3 module (perf): copies,
//! lists of fields, calls of the engine. Here a header section is decoded where it was read, into borrowed
//! fields; only sections split across packets are kept, with a bound per stream that is checked before a byte
//! is kept, and one for the connection. A response with a body of up to 4 KiB is one buffer and one call:
//! HEADERS, DATA and the end of the stream. There is no dynamic table, so there is no state to keep for a
//! client, no stream waits for another, and our QPACK streams are never opened. Response strings are not
//! Huffman-coded.
//!
//! Larger bodies reach QUIC as reference-counted slices by the zero-copy call, as one DATA frame if their
//! length is known. A connection has at most `send_window` unacknowledged bytes. An exchange is only asked
//! for what QUIC accepts at that moment, so a player that pauses some streams does not block the window for
//! the others. Streams that wait for the window get it by urgency, incremental ones in turn (RFC 9218,
//! section 10).

mod application;
mod blocked;
mod early;
pub(crate) mod incoming;
pub(crate) mod peer;
mod priority;
pub(crate) mod request;
pub(crate) mod response;
mod session;
mod stream;
pub(crate) mod unsent;
mod upload;

pub use application::Http3;
use session::Session;

pub(crate) use expressway_h3::code;

/// A wake token's low bits hold the number of a request on its connection, modulo this plus one: its stream ID
/// over 4.
pub(crate) const STREAM_MASK: u64 = (1 << 24) - 1;
