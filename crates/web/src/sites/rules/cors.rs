//! Cross-origin requests (Fetch standard, 3.2): which pages of other origins may read responses.

use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE,
    ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
};
use http::{HeaderMap, HeaderValue, Method};

use crate::RequestHead;

/// Who may read responses.
#[derive(Clone, Debug)]
pub struct Cors {
    /// Origins such as `https://player.example`; empty: any.
    pub origins: Vec<HeaderValue>,
    /// What preflight requests are answered with as methods.
    pub methods: HeaderValue,
    /// And as request header fields; empty: none beyond those that need no permission.
    pub headers: HeaderValue,
    /// Response header fields that scripts may read; empty: none beyond those that need no permission.
    pub expose: HeaderValue,
    /// Seconds for which a preflight's answer holds.
    pub max_age: u32,
    /// Requests may carry cookies. Needs `origins`.
    pub credentials: bool,
}

impl Default for Cors {
    /// Any origin may GET with ranges and read lengths, as players do.
    fn default() -> Self {
        Self {
            origins: Vec::new(),
            methods: HeaderValue::from_static("GET, HEAD, OPTIONS"),
            headers: HeaderValue::from_static("range"),
            expose: HeaderValue::from_static("accept-ranges, content-length, content-range, date, etag"),
            max_age: 86_400,
            credentials: false,
        }
    }
}

impl Cors {
    /// What is wrong with it.
    pub(crate) fn validate(&self) -> Result<(), &'static str> {
        match self.credentials && self.origins.is_empty() {
            true => Err("cors: credentials need a list of origins"),
            false => Ok(()),
        }
    }

    /// The value for `access-control-allow-origin` in the response to `request`; `None` if it gets none.
    fn allowed(&self, request: &HeaderMap) -> Option<HeaderValue> {
        if self.origins.is_empty() {
            return Some(HeaderValue::from_static("*"));
        }
        let origin = request.get(ORIGIN)?;
        self.origins.iter().find(|allowed| *allowed == origin).cloned()
    }

    /// The fields for a response to `request`.
    pub(crate) fn fields(&self, request: &HeaderMap) -> HeaderMap {
        let mut fields = HeaderMap::new();
        if !self.origins.is_empty() {
            fields.insert(VARY, HeaderValue::from_static("origin"));
        }
        if let Some(origin) = self.allowed(request) {
            fields.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
            if self.credentials {
                fields.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
            }
            if !self.expose.is_empty() {
                fields.insert(ACCESS_CONTROL_EXPOSE_HEADERS, self.expose.clone());
            }
        }
        fields
    }

    /// The answer to a preflight request, beyond [`Self::fields`]; `None` if it is none.
    pub(crate) fn preflight(&self, request: &RequestHead) -> Option<HeaderMap> {
        let headers = &request.headers;
        if request.method != Method::OPTIONS
            || !headers.contains_key(ORIGIN)
            || !headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
        {
            return None;
        }
        let mut fields = HeaderMap::new();
        if self.allowed(headers).is_some() {
            fields.insert(ACCESS_CONTROL_ALLOW_METHODS, self.methods.clone());
            if !self.headers.is_empty() {
                fields.insert(ACCESS_CONTROL_ALLOW_HEADERS, self.headers.clone());
            }
            fields.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from(self.max_age));
        }
        Some(fields)
    }
}
