//! From a found path and the request's header fields to a response head and the parts of its body.

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
use crate::parts::{BodyParts, Multipart, content_range};
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

/// A response: its head, and where the body comes from.
#[derive(Debug)]
pub(crate) enum Answer {
    /// A body in memory, possibly empty.
    Fixed(ResponseHead, Bytes),
    /// BodyParts of a file, of which at least one is not empty.
    File(ResponseHead, Arc<OpenFile>, BodyParts),
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
    // `range` is defined for GET only (RFC 9110, 14.2).
    if representation.ranges
        && *question.method == Method::GET
        && let Some(range) = question.headers.get(RANGE)
        && validators.allows_range(question.headers)
    {
        match Ranges::parse(range.as_bytes(), size, config.max_ranges) {
            Ranges::Whole => {}
            Ranges::Unsatisfiable => return unsatisfiable(config, question.method, size),
            Ranges::Parts(parts) => return partial(representation, parts),
        }
    }
    let mut headers = representation.headers.clone();
    headers.insert(DATE, date_header());
    if *question.method == Method::HEAD || size == 0 {
        let head = ResponseHead { status: StatusCode::OK, headers, body_length: Some(0) };
        return Answer::Fixed(head, Bytes::new());
    }
    let head = ResponseHead { status: StatusCode::OK, headers, body_length: Some(size) };
    Answer::File(head, Arc::clone(&representation.file), BodyParts::single(0..size))
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

fn partial(representation: &Representation, ranges: Vec<Range<u64>>) -> Answer {
    let size = representation.file.identity.size;
    let mut headers = representation.headers.clone();
    headers.remove(ACCEPT_RANGES);
    headers.insert(DATE, date_header());
    let parts = if let [range] = &ranges[..] {
        headers.insert(CONTENT_RANGE, text(content_range(range, size)));
        BodyParts::single(range.clone())
    } else {
        let multipart = Multipart::new(headers.get(CONTENT_TYPE).cloned(), ranges, size);
        headers.insert(CONTENT_TYPE, text(multipart.content_type()));
        BodyParts::Multipart(Box::new(multipart))
    };
    let length = parts.length();
    headers.insert(CONTENT_LENGTH, length.into());
    let head = ResponseHead { status: StatusCode::PARTIAL_CONTENT, headers, body_length: Some(length) };
    Answer::File(head, Arc::clone(&representation.file), parts)
}

/// A header value from text that is visible ASCII by construction.
fn text(text: String) -> HeaderValue {
    HeaderValue::from_maybe_shared(Bytes::from(text)).unwrap_or_else(|_| HeaderValue::from_static(""))
}
