//! The head of a request as every transport hands it over.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use http::{HeaderMap, Method};

/// The protocol that a request came in by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// HTTP/1.0 (RFC 1945).
    Http10,
    /// HTTP/1.1 (RFC 9112).
    Http11,
    /// HTTP/2 (RFC 9113).
    H2,
    /// HTTP/3 (RFC 9114).
    H3,
}

impl Protocol {
    /// The name that access logs carry, such as `HTTP/3.0` (nginx's spelling).
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http10 => "HTTP/1.0",
            Self::Http11 => "HTTP/1.1",
            Self::H2 => "HTTP/2.0",
            Self::H3 => "HTTP/3.0",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The scheme of the request's target URI.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// `http`
    Http,
    /// `https`
    Https,
}

impl Scheme {
    /// `http` or `https`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }
}

/// Everything about a request but its body.
///
/// The transport has already refused what its own framing rules forbid (for one, a missing `:path`); what
/// HTTP itself forbids in the fields below is answered with a 4xx here.
#[derive(Debug, Clone)]
pub struct RequestHead {
    /// The method, known or extension.
    pub method: Method,
    /// The scheme of the target URI.
    pub scheme: Scheme,
    /// `host[:port]` from `:authority` or `Host`; empty if the request had neither.
    pub authority: String,
    /// Path and query as received, still percent-encoded: `/a%20b?x=1`.
    pub target: String,
    /// Header fields without pseudo-headers.
    pub headers: HeaderMap,
    /// The protocol that the request came in by.
    pub protocol: Protocol,
    /// The peer's address.
    pub remote: SocketAddr,
    /// The subject of the client's certificate, which the transport has verified (RFC 4514).
    pub client_subject: Option<Arc<str>>,
}

/// Octets that a field costs beyond its name and value in a map: its place there, with room to grow, and a reference
/// count of the value.
const FIELD: usize = 160;

/// Octets that header fields take in memory, about.
pub(crate) fn footprint(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len() + FIELD).sum()
}

impl RequestHead {
    /// Octets that it takes in memory, about.
    pub fn footprint(&self) -> usize {
        size_of::<Self>() + self.authority.capacity() + self.target.capacity() + footprint(&self.headers)
    }
}
