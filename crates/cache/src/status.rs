//! `cache-status` (RFC 9211): what the cache did for a request.

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

/// The field.
pub(crate) const CACHE_STATUS: HeaderName = HeaderName::from_static("cache-status");

/// Why a request was forwarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Forward {
    /// Nothing was stored for the URL.
    UriMiss,
    /// Nothing was stored for the request's variant.
    VaryMiss,
    /// Some of it is stored.
    Partial,
    /// What was stored was stale.
    Stale,
    /// The request wanted it.
    Request,
    /// A method that is not answered from caches.
    Method,
    /// The URL is known not to be cacheable, or the cache is busy.
    Bypass,
}

/// What was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Status {
    pub(crate) forward: Option<Forward>,
    /// The origin's status.
    pub(crate) forward_status: Option<StatusCode>,
    pub(crate) is_collapsed: bool,
    pub(crate) is_stored: bool,
    /// Seconds that it is fresh still; negative: stale.
    pub(crate) ttl: Option<i64>,
    pub(crate) detail: Option<&'static str>,
}

impl Status {
    pub(crate) fn hit(ttl: i64) -> Self {
        Self { ttl: Some(ttl), ..Self::forward(None) }
    }

    pub(crate) fn forward(forward: Option<Forward>) -> Self {
        Self { forward, forward_status: None, is_collapsed: false, is_stored: false, ttl: None, detail: None }
    }

    /// The same in a word, for the access log.
    pub(crate) fn word(&self) -> &'static str {
        match self.forward {
            None if self.ttl.is_some_and(|ttl| ttl < 0) || self.detail.is_some() => "stale",
            None => "hit",
            Some(Forward::Partial) => "partial",
            Some(Forward::Method | Forward::Bypass) => "bypass",
            Some(_) if self.is_collapsed => "collapsed",
            Some(_) if self.forward_status == Some(StatusCode::NOT_MODIFIED) => "revalidated",
            Some(_) => "miss",
        }
    }

    /// Appends the field, after those of caches nearer to the origin.
    pub(crate) fn append(&self, headers: &mut HeaderMap) {
        use std::fmt::Write;
        let mut text = String::with_capacity(48);
        text.push_str("expressway");
        match self.forward {
            None => text.push_str("; hit"),
            Some(forward) => {
                text.push_str("; fwd=");
                text.push_str(match forward {
                    Forward::UriMiss => "uri-miss",
                    Forward::VaryMiss => "vary-miss",
                    Forward::Partial => "partial",
                    Forward::Stale => "stale",
                    Forward::Request => "request",
                    Forward::Method => "method",
                    Forward::Bypass => "bypass",
                });
            }
        }
        // Writing into a string does not fail.
        if let Some(status) = self.forward_status {
            let _ = write!(text, "; fwd-status={}", status.as_u16());
        }
        if let Some(ttl) = self.ttl {
            let _ = write!(text, "; ttl={ttl}");
        }
        if self.is_stored {
            text.push_str("; stored");
        }
        if self.is_collapsed {
            text.push_str("; collapsed");
        }
        if let Some(detail) = self.detail {
            let _ = write!(text, "; detail={detail}");
        }
        if let Ok(value) = HeaderValue::try_from(text) {
            headers.append(CACHE_STATUS, value);
        }
    }
}
