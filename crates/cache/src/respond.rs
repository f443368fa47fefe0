//! From a stored object and a request to a response head and the parts of its body.

use bytes::Bytes;
use expressway_web::condition::Verdict;
use expressway_web::parts::{BodyParts, Multipart, content_range};
use expressway_web::range::Ranges;
use expressway_web::{ResponseHead, date_header};
use http::header::{
    ACCEPT_RANGES, AGE, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, DATE, HeaderValue,
    IF_RANGE, RANGE,
};
use http::{HeaderMap, Method, StatusCode};

use crate::object::Object;

/// What is sent.
#[derive(Debug)]
pub(crate) enum Content {
    /// Octets that are there.
    Fixed(Bytes),
    /// Parts of the object.
    Parts(BodyParts),
    /// All of an object whose length is not known yet.
    Unknown,
}

/// Octets of a length that is not known yet.
pub(crate) const UNKNOWN: u64 = u64::MAX;

/// Answers a request with `object`.
pub(crate) fn respond(
    method: &Method,
    request: &HeaderMap,
    object: &Object,
    max_ranges: usize,
    now: u64,
) -> (ResponseHead, Content) {
    if object.status == StatusCode::OK {
        match object.validators().evaluate_stored(request) {
            Verdict::Proceed => {}
            Verdict::NotModified => return not_modified(object, now),
            Verdict::Failed => return failed(object, now),
        }
        if *method == Method::GET
            && object.length != UNKNOWN
            && let Some(range) = request.get(RANGE)
            && may_have_range(request, object)
        {
            match Ranges::parse(range.as_bytes(), object.length, max_ranges) {
                Ranges::Whole => {}
                Ranges::Unsatisfiable => return unsatisfiable(object, now),
                Ranges::Parts(parts) => return partial(object, parts, now),
            }
        }
    }
    let mut headers = headers(object, now);
    let is_bodyless = matches!(object.status, StatusCode::NO_CONTENT);
    if object.length != UNKNOWN && !is_bodyless {
        headers.insert(CONTENT_LENGTH, object.length.into());
    }
    if object.is_sliced {
        headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    }
    let (body_length, content) = if *method == Method::HEAD || is_bodyless || object.length == 0 {
        (Some(0), Content::Fixed(Bytes::new()))
    } else if object.length == UNKNOWN {
        (None, Content::Unknown)
    } else {
        (Some(object.length), Content::Parts(BodyParts::single(0..object.length)))
    };
    (ResponseHead { status: object.status, headers, body_length }, content)
}

/// Without a strong validator in common, `if-range` lets the whole be sent.
fn may_have_range(request: &HeaderMap, object: &Object) -> bool {
    !request.contains_key(IF_RANGE)
        || (object.strong_validator().is_some() && object.validators().allows_range(request))
}

/// The stored fields, with the current age.
fn headers(object: &Object, now: u64) -> HeaderMap {
    let mut headers = object.headers.clone();
    headers.insert(AGE, (object.freshness.age(now) / 1000).into());
    if !headers.contains_key(DATE) {
        headers.insert(DATE, date_header());
    }
    headers
}

fn not_modified(object: &Object, now: u64) -> (ResponseHead, Content) {
    let mut headers = headers(object, now);
    for name in [CONTENT_TYPE, CONTENT_ENCODING, ACCEPT_RANGES] {
        headers.remove(name);
    }
    let head = ResponseHead { status: StatusCode::NOT_MODIFIED, headers, body_length: Some(0) };
    (head, Content::Fixed(Bytes::new()))
}

fn failed(object: &Object, now: u64) -> (ResponseHead, Content) {
    let mut headers = headers(object, now);
    for name in [CONTENT_TYPE, CONTENT_ENCODING, CONTENT_RANGE, ACCEPT_RANGES] {
        headers.remove(name);
    }
    headers.insert(CONTENT_LENGTH, 0.into());
    let head = ResponseHead { status: StatusCode::PRECONDITION_FAILED, headers, body_length: Some(0) };
    (head, Content::Fixed(Bytes::new()))
}

fn unsatisfiable(object: &Object, now: u64) -> (ResponseHead, Content) {
    let (mut head, content) = failed(object, now);
    head.status = StatusCode::RANGE_NOT_SATISFIABLE;
    head.headers.insert(CONTENT_RANGE, text(format!("bytes */{}", object.length)));
    (head, content)
}

fn partial(object: &Object, ranges: Vec<std::ops::Range<u64>>, now: u64) -> (ResponseHead, Content) {
    let mut headers = headers(object, now);
    let parts = if let [range] = &ranges[..] {
        headers.insert(CONTENT_RANGE, text(content_range(range, object.length)));
        BodyParts::single(range.clone())
    } else {
        let multipart = Multipart::new(headers.get(CONTENT_TYPE).cloned(), ranges, object.length);
        headers.insert(CONTENT_TYPE, text(multipart.content_type()));
        headers.remove(CONTENT_RANGE);
        BodyParts::Multipart(Box::new(multipart))
    };
    let length = parts.length();
    headers.insert(CONTENT_LENGTH, length.into());
    let head = ResponseHead { status: StatusCode::PARTIAL_CONTENT, headers, body_length: Some(length) };
    (head, Content::Parts(parts))
}

/// A header value from text that is visible ASCII by construction.
fn text(text: String) -> HeaderValue {
    HeaderValue::from_maybe_shared(Bytes::from(text)).unwrap_or_else(|_| HeaderValue::from_static(""))
}
