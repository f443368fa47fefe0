//! What an access log knows about one request.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use crate::{Protocol, Scheme};

/// One finished request. Borrowed from the transport's state for the time of one call; empty strings and
/// `None` mean "not there".
#[derive(Debug, Clone, Copy)]
pub struct Record<'a> {
    /// When the request's head was complete.
    pub time: SystemTime,
    /// From then to the last octet handed to the transport, or to the reset.
    pub duration: Duration,
    /// The peer's address.
    pub remote: SocketAddr,
    /// The method.
    pub method: &'a str,
    /// The scheme.
    pub scheme: Scheme,
    /// `host[:port]` as asked for.
    pub host: &'a str,
    /// Path and query as received.
    pub target: &'a str,
    /// The protocol.
    pub protocol: Protocol,
    /// The status sent; 0 if the request ended before there was one.
    pub status: u16,
    /// Body octets handed to the transport.
    pub body_bytes: u64,
    /// Whether the response was sent to its end, as opposed to reset or abandoned by the client.
    pub complete: bool,
    /// The `range` header.
    pub range: &'a str,
    /// The `referer` header.
    pub referer: &'a str,
    /// The `user-agent` header.
    pub user_agent: &'a str,
    /// TLS version, such as `TLSv1.3`.
    pub tls_version: &'a str,
    /// Cipher suite.
    pub tls_cipher: &'a str,
    /// The subject of the client's certificate (RFC 4514).
    pub client_subject: &'a str,
    /// The I/O mode that carried the connection, such as `zerocopy` or `udp`.
    pub io_mode: &'a str,
    /// The `cmcd-object`, `-request`, `-session` and `-status` headers; `None` if such data is not logged. See
    /// [`AccessLog::cmcd`](super::AccessLog::cmcd).
    pub cmcd: Option<[&'a str; 4]>,
    /// The worker that served the request.
    pub worker: u16,
    /// What the cache did, such as `hit`.
    pub cache: &'static str,
    /// The server behind this one that was asked, such as `192.0.2.1:8080`.
    pub upstream: &'a str,
    /// The status that it sent; 0 if it sent none.
    pub upstream_status: u16,
    /// From the request's arrival to the head of its response, or to its failure.
    pub upstream_time: Duration,
}
