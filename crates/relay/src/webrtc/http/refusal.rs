//! Responses other than success, and the header fields of all responses.

use bytes::Bytes;
use expressway_web::{Exchange, ResponseHead, date_header};
use http::header::{ALLOW, CONTENT_LENGTH, CONTENT_TYPE, DATE, HeaderName, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Method, StatusCode};

use super::counters::Reason;
use super::{FRAGMENT, SDP};

/// Fields of all answers: pages of any origin may publish and play, with a token where one is needed (Fetch, section 3.3).
pub(super) fn headers() -> HeaderMap {
    let mut headers = HeaderMap::new();
    let value = HeaderValue::from_static;
    headers.insert("access-control-allow-origin", value("*"));
    headers.insert("access-control-expose-headers", value("location, etag, link, retry-after"));
    headers
}

/// The answer to OPTIONS.
pub(super) fn preflight(allowed: &'static str) -> Exchange {
    let mut headers = headers();
    let value = HeaderValue::from_static;
    headers.insert("access-control-allow-methods", value(allowed));
    headers.insert("access-control-allow-headers", value("authorization, content-type, if-match"));
    headers.insert("access-control-max-age", value("86400"));
    headers.insert("accept-post", value(SDP));
    headers.insert("accept-patch", value(FRAGMENT));
    headers.insert(ALLOW, value(allowed));
    Exchange::bodyless(StatusCode::NO_CONTENT, headers)
}

/// An answer that is complete.
pub(super) fn head(status: StatusCode, mut headers: HeaderMap, body: Bytes) -> (ResponseHead, Bytes) {
    if status != StatusCode::NO_CONTENT {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
    }
    headers.insert(DATE, date_header());
    (ResponseHead { status, headers, body_length: Some(body.len() as u64) }, body)
}

/// Why something is refused, as one line of plain text.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) reason: Reason,
    status: StatusCode,
    text: String,
    headers: Box<HeaderMap>,
}

impl Refusal {
    pub(super) fn new(reason: Reason, status: StatusCode, text: impl Into<String>) -> Self {
        Self { reason, status, text: text.into() + "\n", headers: Box::new(headers()) }
    }

    pub(super) fn with(mut self, name: HeaderName, value: &'static str) -> Self {
        self.headers.insert(name, HeaderValue::from_static(value));
        self
    }

    /// It may go well in so many seconds.
    pub(super) fn retry(self, seconds: &'static str) -> Self {
        self.with(RETRY_AFTER, seconds)
    }

    /// The room's worker is behind.
    pub(super) fn busy() -> Self {
        let text = "the room is overloaded: try again";
        Self::new(Reason::Busy, StatusCode::SERVICE_UNAVAILABLE, text).retry("1")
    }

    /// There is no such session.
    pub(super) fn gone(reason: Reason) -> Self {
        Self::new(reason, StatusCode::NOT_FOUND, "no such session")
    }

    pub(super) fn exchange(mut self, method: &Method) -> Exchange {
        self.headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        Exchange::fixed(method, self.status, *self.headers, Bytes::from(self.text))
    }

    pub(super) fn head(mut self) -> (ResponseHead, Bytes) {
        self.headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        head(self.status, *self.headers, Bytes::from(self.text))
    }
}
