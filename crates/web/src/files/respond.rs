//! From a found path and the request's header fields to a response head and the parts of its body.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{
    ACCEPT_RANGES, ALLOW, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, DATE, HeaderMap,
    HeaderValue, LOCATION, RANGE,
};
use http::{Method, StatusCode};

use super::FilesConfig;
use super::lookup::{Found, Representation, Resource};
use super::open::OpenFile;
use crate::coding::Accepted;
use crate::condition::Verdict;
use crate::exchange::error_response;
use crate::range::Ranges;
use crate::target::encode_path;
use crate::{ResponseHead, date_header};

/// What of a request decides the response once the path is found.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Question<'a> {
    pub(crate) method: &'a Method,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) query: Option<&'a str>,
}

/// A piece of a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Part {
    /// Octets as they are.
    Octets(Bytes),
    /// Octets of the file, first to past the last.
    Span(Range<u64>),
}

/// A response: its head, and where the body comes from.
#[derive(Debug)]
pub(crate) enum Answer {
    /// A body in memory, possibly empty.
    Fixed(ResponseHead, Bytes),
    /// Parts of a file, of which at least one is not empty.
    File(ResponseHead, Arc<OpenFile>, Vec<Part>),
}

/// Answers `question` with what its path led to.
pub(crate) fn respond(config: &FilesConfig, question: Question<'_>, found: &Found) -> Answer {
    match found {
        Found::Redirect(path) => redirect(config, question, path),
        Found::Resource(_) if *question.method == Method::POST => not_allowed(question.method),
        Found::Resource(resource) => match choose(question.headers, resource) {
            Some(representation) => represent(config, question, representation),
            None => error(question.method, StatusCode::NOT_FOUND, HeaderMap::new()),
        },
    }
}

/// An error response.
pub(crate) fn error(method: &Method, status: StatusCode, headers: HeaderMap) -> Answer {
    let (head, body) = error_response(method, status, headers);
    Answer::Fixed(head, body)
}

/// 405 with the methods that files have.
pub(crate) fn not_allowed(method: &Method) -> Answer {
    let mut headers = HeaderMap::new();
    headers.insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    error(method, StatusCode::METHOD_NOT_ALLOWED, headers)
}

/// 301 to the path with its slash. The location has no authority, so it holds behind any proxy; its path
/// never begins with two slashes, which a client would take for an authority.
fn redirect(config: &FilesConfig, question: Question<'_>, path: &[u8]) -> Answer {
    let mut location = encode_path(path);
    if let Some(query) = question.query {
        location.push('?');
        location.push_str(query);
    }
    let Ok(location) = HeaderValue::try_from(location) else {
        return error(question.method, StatusCode::BAD_REQUEST, HeaderMap::new());
    };
    let mut headers = HeaderMap::new();
    headers.insert(LOCATION, location);
    for (name, value) in &config.headers {
        headers.append(name, value.clone());
    }
    error(question.method, StatusCode::MOVED_PERMANENTLY, headers)
}

fn choose<'a>(headers: &HeaderMap, resource: &'a Resource) -> Option<&'a Representation> {
    if !resource.coded.is_empty() {
        let available = resource.coded.iter().map(|(encoding, _)| *encoding);
        if let Some(encoding) = Accepted::parse(headers).choose(available) {
            return resource.coded(encoding);
        }
    }
    resource.plain.as_ref()
}

/// The response to GET or HEAD of a file that is there.
fn represent(config: &FilesConfig, question: Question<'_>, representation: &Representation) -> Answer {
    let validators = representation.file.validators();
    match validators.evaluate(question.headers) {
        Verdict::Failed => {
            return error(question.method, StatusCode::PRECONDITION_FAILED, HeaderMap::new());
        }
        Verdict::NotModified => return not_modified(representation),
        Verdict::Proceed => {}
    }
    let size = representation.file.identity.size;
    if representation.ranges
        && let Some(range) = question.headers.get(RANGE)
        && validators.allows_range(question.headers)
    {
        match Ranges::parse(range.as_bytes(), size, config.max_ranges) {
            Ranges::Whole => {}
            Ranges::Unsatisfiable => return unsatisfiable(config, question.method, size),
            Ranges::Parts(parts) => return partial(question.method, representation, &parts),
        }
    }
    let mut headers = representation.headers.clone();
    headers.insert(DATE, date_header());
    finish(question.method, representation, StatusCode::OK, headers, size, || vec![Part::Span(0..size)])
}

/// The client's copy is good: validators and what a cache needs, nothing about a body.
fn not_modified(representation: &Representation) -> Answer {
    let mut headers = representation.headers.clone();
    for name in [CONTENT_TYPE, CONTENT_LENGTH, CONTENT_ENCODING, ACCEPT_RANGES] {
        headers.remove(name);
    }
    headers.insert(DATE, date_header());
    let head = ResponseHead { status: StatusCode::NOT_MODIFIED, headers, body_length: Some(0) };
    Answer::Fixed(head, Bytes::new())
}

/// 416 with the size. Alone among errors it carries the site's added fields, as nginx's does: a script that
/// plays media needs its CORS fields to read `content-range`.
fn unsatisfiable(config: &FilesConfig, method: &Method, size: u64) -> Answer {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_RANGE, text(format!("bytes */{size}")));
    for (name, value) in &config.headers {
        headers.append(name, value.clone());
    }
    error(method, StatusCode::RANGE_NOT_SATISFIABLE, headers)
}

fn partial(method: &Method, representation: &Representation, ranges: &[Range<u64>]) -> Answer {
    let size = representation.file.identity.size;
    let mut headers = representation.headers.clone();
    headers.remove(ACCEPT_RANGES);
    headers.insert(DATE, date_header());
    let status = StatusCode::PARTIAL_CONTENT;
    if let [range] = ranges {
        let length = range.end - range.start;
        headers.insert(CONTENT_LENGTH, length.into());
        headers.insert(CONTENT_RANGE, text(content_range(range, size)));
        return finish(method, representation, status, headers, length, || vec![Part::Span(range.clone())]);
    }
    let boundary = boundary();
    let content_type = headers.get(CONTENT_TYPE).cloned();
    let parts = multipart(&boundary, content_type.as_ref(), ranges, size);
    let length = parts.iter().map(Part::length).sum::<u64>();
    headers.insert(CONTENT_TYPE, text(format!("multipart/byteranges; boundary={boundary}")));
    headers.insert(CONTENT_LENGTH, length.into());
    finish(method, representation, status, headers, length, || parts)
}

/// The parts of a multipart/byteranges body (RFC 9110, 14.6), laid out as nginx lays them out.
fn multipart(
    boundary: &str,
    content_type: Option<&HeaderValue>,
    ranges: &[Range<u64>],
    size: u64,
) -> Vec<Part> {
    let mut parts = Vec::with_capacity(ranges.len() * 2 + 1);
    for range in ranges {
        let mut header = format!("\r\n--{boundary}\r\n").into_bytes();
        if let Some(content_type) = content_type {
            header.extend_from_slice(b"Content-Type: ");
            header.extend_from_slice(content_type.as_bytes());
            header.extend_from_slice(b"\r\n");
        }
        header.extend_from_slice(format!("Content-Range: {}\r\n\r\n", content_range(range, size)).as_bytes());
        parts.push(Part::Octets(header.into()));
        parts.push(Part::Span(range.clone()));
    }
    parts.push(Part::Octets(format!("\r\n--{boundary}--\r\n").into()));
    parts
}

fn content_range(range: &Range<u64>, size: u64) -> String {
    format!("bytes {}-{}/{size}", range.start, range.end - 1)
}

/// 20 digits that content cannot foresee: std's hash keys are random.
fn boundary() -> String {
    format!("{:020}", RandomState::new().build_hasher().finish())
}

fn finish(
    method: &Method,
    representation: &Representation,
    status: StatusCode,
    headers: HeaderMap,
    length: u64,
    parts: impl FnOnce() -> Vec<Part>,
) -> Answer {
    if *method == Method::HEAD || length == 0 {
        return Answer::Fixed(ResponseHead { status, headers, body_length: Some(0) }, Bytes::new());
    }
    let head = ResponseHead { status, headers, body_length: Some(length) };
    Answer::File(head, Arc::clone(&representation.file), parts())
}

/// A header value from text that is visible ASCII by construction.
fn text(text: String) -> HeaderValue {
    HeaderValue::from_maybe_shared(Bytes::from(text)).unwrap_or_else(|_| HeaderValue::from_static(""))
}

impl Part {
    /// Octets that it adds to the body.
    pub(crate) fn length(&self) -> u64 {
        match self {
            Self::Octets(octets) => octets.len() as u64,
            Self::Span(span) => span.end - span.start,
        }
    }
}
