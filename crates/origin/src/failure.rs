//! Why an origin did not answer, or not completely.

use std::fmt;

use http::StatusCode;

/// The kinds, as metrics and logs name them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The name has no address.
    Resolve,
    /// No connection: refused, unreachable, no such socket.
    Connect,
    /// No connection in time.
    ConnectTimeout,
    /// The TLS handshake failed, for one because of the certificate.
    Tls,
    /// As many requests at the server as may be, for too long.
    Busy,
    /// The connection ended before the response began.
    Closed,
    /// No response in time.
    ResponseTimeout,
    /// What came is no valid response.
    InvalidResponse,
    /// The head of the response is beyond its limit.
    HeadTooLarge,
    /// The body ended before its end.
    Incomplete,
    /// The body stood still.
    ReadTimeout,
    /// All of it took too long.
    TotalTimeout,
    /// The request's body failed: the client's doing.
    Client,
}

impl Reason {
    pub(crate) const ALL: [Self; 13] = [
        Self::Resolve,
        Self::Connect,
        Self::ConnectTimeout,
        Self::Tls,
        Self::Busy,
        Self::Closed,
        Self::ResponseTimeout,
        Self::InvalidResponse,
        Self::HeadTooLarge,
        Self::Incomplete,
        Self::ReadTimeout,
        Self::TotalTimeout,
        Self::Client,
    ];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Resolve => "resolve",
            Self::Connect => "connect",
            Self::ConnectTimeout => "connect-timeout",
            Self::Tls => "tls",
            Self::Busy => "busy",
            Self::Closed => "closed",
            Self::ResponseTimeout => "response-timeout",
            Self::InvalidResponse => "invalid-response",
            Self::HeadTooLarge => "head-too-large",
            Self::Incomplete => "incomplete",
            Self::ReadTimeout => "read-timeout",
            Self::TotalTimeout => "total-timeout",
            Self::Client => "client",
        }
    }

    /// What the client is answered.
    pub(crate) fn status(self) -> StatusCode {
        match self {
            Self::Busy => StatusCode::SERVICE_UNAVAILABLE,
            Self::ConnectTimeout | Self::ResponseTimeout | Self::ReadTimeout | Self::TotalTimeout => {
                StatusCode::GATEWAY_TIMEOUT
            }
            Self::Client => StatusCode::BAD_REQUEST,
            _ => StatusCode::BAD_GATEWAY,
        }
    }

    /// It counts against the server.
    pub(crate) fn is_servers(self) -> bool {
        !matches!(self, Self::Busy | Self::Client | Self::TotalTimeout)
    }
}

/// An attempt that failed.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) reason: Reason,
    pub(crate) detail: String,
    /// The server may have begun to act on the request.
    pub(crate) was_sent: bool,
    /// It failed on a connection that had been idle, which tells nothing of the server.
    pub(crate) was_pooled: bool,
}

impl Failed {
    /// Before anything was sent.
    pub(crate) fn unsent(reason: Reason, detail: impl fmt::Display) -> Self {
        Self { reason, detail: detail.to_string(), was_sent: false, was_pooled: false }
    }

    /// With the request on its way.
    pub(crate) fn sent(reason: Reason, detail: impl fmt::Display) -> Self {
        Self { reason, detail: detail.to_string(), was_sent: true, was_pooled: false }
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.reason.as_str(), self.detail)
    }
}

/// An error with what caused it.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
