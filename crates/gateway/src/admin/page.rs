//! Answers that are complete when they are sent.

use std::borrow::Cow;

use bytes::Bytes;
use http::header::{self, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use http_body_util::{Either, Full};
use tokio::sync::OwnedSemaphorePermit;

use super::service::Body;

/// An answer.
pub(super) struct Page {
    status: StatusCode,
    content_type: &'static str,
    body: Cow<'static, str>,
    fields: &'static [(&'static str, &'static str)],
}

impl Page {
    /// With that status and body.
    pub(super) fn new(
        status: StatusCode,
        content_type: &'static str,
        body: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self { status, content_type, body: body.into(), fields: &[] }
    }

    /// A sentence for people.
    pub(super) fn say(status: StatusCode, sentence: impl Into<Cow<'static, str>>) -> Self {
        Self::new(status, "text/plain", sentence)
    }

    /// With these header fields besides, whose names are in lower case.
    pub(super) fn with(self, fields: &'static [(&'static str, &'static str)]) -> Self {
        Self { fields, ..self }
    }

    /// Bytes of the body.
    pub(super) fn len(&self) -> usize {
        self.body.len()
    }

    /// The response, which keeps the permit for as long as it holds the page.
    pub(super) fn into_response(self, permit: OwnedSemaphorePermit) -> Response<Body> {
        let body = Bytes::from_owner(Held { body: self.body, _permit: permit });
        let mut response = Response::new(Either::Left(Full::new(body)));
        *response.status_mut() = self.status;
        let fields = response.headers_mut();
        fields.insert(header::CONTENT_TYPE, HeaderValue::from_static(self.content_type));
        fields.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        fields.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        for (name, value) in self.fields {
            fields.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        response
    }
}

/// A page that a client has not read yet.
struct Held {
    body: Cow<'static, str>,
    _permit: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        self.body.as_bytes()
    }
}
