//! The head of a response, and why a body can end early.

use std::time::Duration;

use http::{HeaderMap, StatusCode};

/// Everything about a response but its body.
#[derive(Debug, Clone)]
pub struct ResponseHead {
    /// The status code; always final (200 or above).
    pub status: StatusCode,
    /// Header fields in the order to send them, `content-length` and `date` included where they apply.
    pub headers: HeaderMap,
    /// Octets that the body chunks of a complete response add up to. For HEAD and 304 this is 0 although
    /// `content-length` may say what GET would have sent. `None`: the length is not known beforehand.
    pub body_length: Option<u64>,
}

impl ResponseHead {
    /// Whether the response ends with its head, so that a transport can end the stream at once.
    pub fn is_bodyless(&self) -> bool {
        self.body_length == Some(0)
    }
}

/// The server behind this one that a response came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upstream {
    /// Where it was asked, such as `192.0.2.1:8080`.
    pub address: String,
    /// The status that it sent; 0 if it sent none.
    pub status: u16,
    /// From the request's arrival here to the head of its response, or to its failure.
    pub time: Duration,
}

/// Why a body ended before its announced length. The transport resets the stream: a clean end would pass
/// a part for the whole.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// The file was truncated, extended or rewritten in place while it was being served.
    #[error("the file changed while it was being served")]
    Changed,
    /// Reading failed; the operating system's error number.
    #[error("reading the file failed: {}", std::io::Error::from_raw_os_error(*.0))]
    Read(i32),
    /// The origin closed the connection, broke its framing, or sent nothing for too long.
    #[error("the origin's response is incomplete: {0}")]
    Origin(&'static str),
    /// The part of the program that was producing the body stopped, as at shutdown.
    #[error("the body's source was stopped")]
    Stopped,
}
