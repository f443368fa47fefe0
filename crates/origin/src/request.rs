//! Turns a client's request into a request to a server.

use bytes::Bytes;
use expressway_web::{Protocol, RequestHead};
use http::header::{CONTENT_LENGTH, EXPECT, HOST, MAX_FORWARDS, TE, TRAILER, TRANSFER_ENCODING, UPGRADE};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri, Version};

use crate::upload::Upload;
use crate::upload::UploadBody;
use crate::{OriginOptions, fields, forwarded};

/// What every attempt sends.
#[derive(Debug)]
pub(crate) struct Template {
    pub(crate) method: Method,
    target: PathAndQuery,
    authority: Authority,
    headers: HeaderMap,
    takes_trailers: bool,
    trailer: Option<HeaderValue>,
}

impl Template {
    /// What `head` asks for. The error is the answer that it gets here.
    pub(crate) fn new(head: RequestHead, options: &OriginOptions) -> Result<Self, StatusCode> {
        match head.method {
            Method::CONNECT => return Err(StatusCode::NOT_IMPLEMENTED),
            // It would show what is added here to whoever asks.
            Method::TRACE => return Err(StatusCode::METHOD_NOT_ALLOWED),
            _ => {}
        }
        if asks_for_websocket(&head) {
            return Err(StatusCode::NOT_IMPLEMENTED);
        }
        let target = target(&head.target).ok_or(StatusCode::BAD_REQUEST)?;
        let authority: Authority = head.authority.parse().map_err(|_| StatusCode::BAD_REQUEST)?;
        let host = options.host.as_ref().map_or(Ok(authority), |host| host.parse());
        let host = host.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
        let mut headers = head.headers.clone();
        let takes_trailers = fields::takes_trailers(&headers);
        let trailer = fields::announced(&headers);
        fields::strip(&mut headers).map_err(|_| StatusCode::BAD_REQUEST)?;
        // The length is that of the body as it is sent.
        for name in [HOST, CONTENT_LENGTH] {
            headers.remove(name);
        }
        // Whoever reads the body here has continued.
        if headers.get(EXPECT).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue")) {
            headers.remove(EXPECT);
        }
        if head.method == Method::OPTIONS {
            pass_on(&mut headers)?;
        }
        forwarded::describe(&mut headers, &head, options).map_err(|_| StatusCode::LOOP_DETECTED)?;
        Ok(Self { method: head.method, target, authority: host, headers, takes_trailers, trailer })
    }

    /// The request for one attempt.
    pub(crate) fn request(&self, upload: &Upload, is_h2: bool, is_tls: bool) -> Request<UploadBody> {
        let body = upload.begin();
        let mut request = Request::new(body);
        *request.method_mut() = self.method.clone();
        let mut headers = self.headers.clone();
        let has_body = !upload.is_empty();
        if self.takes_trailers {
            headers.insert(TE, HeaderValue::from_static("trailers"));
        }
        if let Some(trailer) = self.trailer.as_ref().filter(|_| has_body) {
            headers.insert(TRAILER, trailer.clone());
        }
        if let Some(length) = upload.length().filter(|_| has_body) {
            headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
        }
        if is_h2 {
            *request.version_mut() = Version::HTTP_2;
            let mut parts = http::uri::Parts::default();
            parts.scheme = Some(if is_tls { Scheme::HTTPS } else { Scheme::HTTP });
            parts.authority = Some(self.authority.clone());
            parts.path_and_query = Some(self.target.clone());
            // All three are there, which is all that it checks.
            *request.uri_mut() = Uri::from_parts(parts).unwrap_or_default();
        } else {
            if self.takes_trailers {
                headers.insert(http::header::CONNECTION, HeaderValue::from_static("te"));
            }
            if has_body && upload.length().is_none() {
                headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
            }
            if let Ok(host) = HeaderValue::from_str(self.authority.as_str()) {
                headers.insert(HOST, host);
            }
            *request.uri_mut() = Uri::from(self.target.clone());
        }
        *request.headers_mut() = headers;
        request
    }

    /// A second time does no more than once (RFC 9110, section 9.2.2).
    pub(crate) fn is_idempotent(&self) -> bool {
        self.method.is_idempotent()
    }
}

/// An upgrade that is not taken up is an ordinary request, except this one, whose client can do nothing with the answer.
fn asks_for_websocket(head: &RequestHead) -> bool {
    let is_http1 = matches!(head.protocol, Protocol::Http10 | Protocol::Http11);
    let upgrades = head.headers.get_all(UPGRADE);
    let mut names = upgrades.iter().flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    is_http1 && names.any(|name| name.trim_ascii().eq_ignore_ascii_case(b"websocket"))
}

/// `Max-Forwards` of OPTIONS (RFC 9110, section 7.6.2).
fn pass_on(headers: &mut HeaderMap) -> Result<(), StatusCode> {
    let text = headers.get(MAX_FORWARDS).and_then(|value| value.to_str().ok());
    match text.and_then(|text| text.parse::<u64>().ok()) {
        Some(0) => Err(StatusCode::OK),
        Some(more) => {
            headers.insert(MAX_FORWARDS, HeaderValue::from(more - 1));
            Ok(())
        }
        None => Ok(()),
    }
}

/// The target as it is sent. Octets that no URI may have (RFC 3986, appendix A) and transports let through are
/// percent-encoded; all else stays as it is.
fn target(received: &str) -> Option<PathAndQuery> {
    if received
        .bytes()
        .any(|byte| matches!(byte, b'<' | b'>' | b'"' | b'`' | b'\\' | b'^' | b'{' | b'|' | b'}'))
    {
        const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
        let mut encoded = Vec::with_capacity(received.len() + 32);
        for byte in received.bytes() {
            match byte {
                b'<' | b'>' | b'"' | b'`' | b'\\' | b'^' | b'{' | b'|' | b'}' => {
                    encoded.extend([b'%', DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]])
                }
                _ => encoded.push(byte),
            }
        }
        return PathAndQuery::from_maybe_shared(Bytes::from(encoded)).ok();
    }
    received.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    use expressway_web::{RequestBody, Scheme, pipe};
    use http::HeaderName;
    use http_body::Body;

    use super::*;
    use crate::Endpoint;

    fn head(method: Method, target: &str, fields: &[(&'static str, &'static str)]) -> RequestHead {
        let field = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        RequestHead {
            method,
            scheme: Scheme::Https,
            authority: "a.example".into(),
            target: target.into(),
            headers: fields.iter().map(field).collect(),
            protocol: Protocol::Http11,
            remote: "192.0.2.1:1".parse().unwrap(),
            client_subject: None,
        }
    }

    fn options() -> OriginOptions {
        OriginOptions::new("app", Endpoint::parse("http://app:8080").unwrap())
    }

    fn template(
        method: Method,
        target: &str,
        fields: &[(&'static str, &'static str)],
    ) -> Result<Template, u16> {
        Template::new(head(method, target, fields), &options()).map_err(|status| status.as_u16())
    }

    #[test]
    fn framing_is_that_of_the_body_and_never_the_clients() {
        let fields = [("content-length", "5"), ("transfer-encoding", "gzip, chunked"), ("host", "evil")];
        let template = template(Method::POST, "/a?b", &fields).unwrap();
        let (_writer, reader) = pipe(10);
        let streamed = Upload::new(RequestBody::new(reader, None));
        let request = template.request(&streamed, false, false);
        assert_eq!(request.headers()["transfer-encoding"], "chunked");
        assert!(!request.headers().contains_key("content-length"));
        assert_eq!(request.headers()["host"], "a.example");
        assert_eq!(request.uri(), "/a?b");
        let (_writer, reader) = pipe(10);
        let request = template.request(&Upload::new(RequestBody::new(reader, Some(7))), false, false);
        assert_eq!(request.headers()["content-length"], "7");
        assert!(!request.headers().contains_key("transfer-encoding"));
        let request = template.request(&Upload::new(RequestBody::empty()), true, true);
        assert_eq!(request.uri(), "https://a.example/a?b");
        assert!(request.body().is_end_stream() && !request.headers().contains_key("host"));
        let polled = Pin::new(&mut request.into_body()).poll_frame(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(polled, Poll::Ready(None)));
    }

    #[test]
    fn what_is_answered_here() {
        let status = |method, target, fields: &[_]| template(method, target, fields).unwrap_err();
        assert_eq!(status(Method::CONNECT, "/", &[]), 501);
        assert_eq!(status(Method::TRACE, "/", &[]), 405);
        let upgrade = [("upgrade", "h2c, WebSocket"), ("connection", "upgrade")];
        assert_eq!(status(Method::GET, "/", &upgrade), 501);
        assert_eq!(status(Method::OPTIONS, "*", &[("max-forwards", "0")]), 200);
        assert!(template(Method::GET, "/", &[("upgrade", "h2c")]).is_ok(), "just no upgrade");
        let passed =
            template(Method::OPTIONS, "*", &[("max-forwards", "7"), ("expect", "100-Continue")]).unwrap();
        assert_eq!(passed.headers["max-forwards"], "6");
        assert!(!passed.headers.contains_key("expect"));
        let mut authority = head(Method::GET, "/", &[]);
        authority.authority = "a\"b".into();
        assert_eq!(Template::new(authority, &options()).unwrap_err(), 400);
    }

    #[test]
    fn targets_stay_as_they_are_as_far_as_uris_go() {
        for same in ["/", "/a%20b/../c//d;e?f=%ff&g=h/i?j", "*", "//a.example/b", "/[x]?[y]"] {
            assert_eq!(target(same).unwrap().as_str(), same);
        }
        assert_eq!(target("/a|b?c=\"<d>\"^`{}\\").unwrap().as_str(), "/a%7Cb?c=%22%3Cd%3E%22%5E%60%7B%7D%5C");
    }

    #[test]
    fn trailers_are_asked_for_by_who_takes_them() {
        let template =
            template(Method::GET, "/", &[("te", "trailers, gzip"), ("trailer", "digest")]).unwrap();
        let request = template.request(&Upload::new(RequestBody::empty()), false, false);
        assert_eq!(
            (&request.headers()["te"], &request.headers()["connection"]),
            (&"trailers".parse().unwrap(), &"te".parse().unwrap())
        );
        assert!(!request.headers().contains_key("trailer"), "of no body");
        let request = template.request(&Upload::new(RequestBody::empty()), true, false);
        assert!(!request.headers().contains_key("connection"));
    }
}
