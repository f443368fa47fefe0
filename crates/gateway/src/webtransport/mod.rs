//! WebTransport over HTTP/3: a session with streams of its own, on a connection of HTTP/3 (draft-ietf-webtrans-http3, drafts 2 to 14, and
//! 15 without RESET_STREAM_AT).
//!
//! ```text
//!  client ─▶ QUIC endpoint ─▶ Connection ─┬ control and QPACK streams ─▶ SETTINGS, GOAWAY
//!                                         ├ requests: CONNECT ─▶ Service::admit ─▶ 200, capsules; others ─▶ 404
//!                                         └ streams of the session ─▶ quic::Session of the service, by the same Transport
//! ```
//!
//! A [`Service`] whose sessions have a QUIC connection each ([`crate::quic::Application`]) gets those of WebTransport in the same form. Its
//! `quic::Session` has the connection's [`Transport`](crate::quic::Transport), which shows it the streams of the session only: heads are
//! read before a stream is named, and sent before the first bytes of one; error codes are translated; closing it sends a capsule. What the
//! service has to do is to open streams by `first_own` and `begin`.
//!
//! # Decisions
//!
//! * One session on a connection, at a time and in all, which the settings say: browsers and libraries open a connection for each session
//!   that needs its own congestion control, and media does. When the session is over, so is the connection, a second later at most.
//! * All dialects at once ([`expressway_h3::webtransport::SETTINGS`]): a client looks for the setting that it knows. They differ in
//!   settings, in the name of the protocol (`webtransport`, since draft 15 `webtransport-h3`) and in limits of a session, which are kept to
//!   where the client sets some. Ours are those of QUIC.
//! * Nothing is read of a stream whose session is not there yet: its bytes stay within QUIC's windows. 32 streams
//!   may wait; more are refused.
//! * HTTP datagrams are not passed on. They are said to be taken, because no client speaks WebTransport otherwise, and counted.
//! * Streams are reset as QUIC does it. A client that insists on RESET_STREAM_AT (draft 15, webtransport-go since 0.10) does not connect. And
//!   what was queued on a stream that is cut counts towards limits of the session that a client sets (drafts 13 and 14), though it was not
//!   sent: with many cuts such a session stalls.

mod connection;
mod heads;
mod opening;
mod protocols;
mod session;
mod streams;

use std::net::SocketAddr;
use std::sync::Arc;

use http::StatusCode;

use crate::quic::{self, Application, Turn};

/// The protocol of connections (RFC 9114, section 3.1).
pub const ALPN: &[u8] = b"h3";

/// Streams in both directions that a client may have beside those of its session: CONNECT, and other requests.
pub const REQUESTS: u64 = 4;
/// Streams in one direction: control, two for QPACK, and reserved types.
pub const UNIDIRECTIONAL: u64 = 8;
/// DATAGRAM frames that are kept until they are counted.
pub const DATAGRAMS: usize = 16;

/// Who has sessions.
pub trait Service: Application {
    /// What is spoken in sessions, by the names that clients ask for it by (`WT-Available-Protocols`).
    fn session_protocols(&self) -> &[&str];

    /// Whether a session may begin.
    ///
    /// # Errors
    /// The status that says why not.
    fn admit(&self, request: &Request<'_>) -> Result<(), StatusCode>;

    /// Begins one that was admitted; [`Transport::target`](crate::quic::Transport::target) says what it is for.
    fn begin(self: Arc<Self>, turn: &mut Turn<'_>) -> Box<dyn quic::Session>;
}

/// What a client asks for.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Path and query of the URL.
    pub target: &'a str,
    /// Of the page, where there is one: browsers say so.
    pub origin: Option<&'a str>,
    /// Where the client is.
    pub remote: SocketAddr,
}

/// Begins on a connection whose protocol is [`ALPN`].
pub fn start(service: Arc<dyn Service>, turn: &mut Turn<'_>) -> Box<dyn quic::Session> {
    Box::new(connection::Connection::start(service, turn))
}
