//! What answers in these tests.

use std::task::{Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use expressway_web::{
    BodyError, Exchange, Handler, RequestBody, RequestHead, ResponseHead, ResponseSource, Wake,
};
use http::{HeaderMap, HeaderValue, Method, StatusCode};

/// `/bytes/N` has N octets, of known length; `/stream/N` the same without one; `/echo` is the request's body and its
/// trailers; `/remote` says who asks, `/head` how; `/never` never answers; `/held` neither reads its body nor answers; `/slow` holds its worker for a millisecond.
pub(crate) struct Stage {
    /// What `/version` says.
    pub(crate) version: &'static str,
}

/// The octet at a place of every body.
pub(crate) fn octet(at: u64) -> u8 {
    (at % 251) as u8
}

pub(crate) fn octets(length: usize) -> Vec<u8> {
    (0..length as u64).map(octet).collect()
}

impl Handler for Stage {
    fn start(&self, request: &RequestHead, body: RequestBody, wake: Wake) -> Exchange {
        let fixed = |octets: Vec<u8>| {
            Exchange::fixed(&request.method, StatusCode::OK, HeaderMap::new(), Bytes::from(octets))
        };
        let path = request.target.as_str();
        let number = || path.rsplit('/').next().and_then(|number| number.parse().ok()).unwrap_or(0);
        match path.split('/').nth(1) {
            Some("bytes") if request.method == Method::POST => {
                Exchange::error(&request.method, StatusCode::METHOD_NOT_ALLOWED, HeaderMap::new())
            }
            Some("bytes") => fixed(octets(number())),
            Some("stream") => Exchange::new(Box::new(Stream { left: number() as u64, at: 0, head: true })),
            Some("echo") => Exchange::new(Box::new(Echo { body, wake, head: true })),
            Some("remote") => fixed(request.remote.to_string().into_bytes()),
            Some("version") => fixed(self.version.as_bytes().to_vec()),
            Some("head") => {
                let said = format!(
                    "{} {} {} {} {}",
                    request.method,
                    request.scheme.as_str(),
                    request.authority,
                    request.target,
                    request.protocol
                );
                fixed(said.into_bytes())
            }
            Some("slow") => {
                std::thread::sleep(Duration::from_millis(1));
                fixed(Vec::new())
            }
            Some("never") => Exchange::new(Box::new(Never { _body: None })),
            Some("held") => Exchange::new(Box::new(Never { _body: Some(body) })),
            _ => Exchange::error(&request.method, StatusCode::NOT_FOUND, HeaderMap::new()),
        }
    }
}

fn head(length: Option<u64>) -> ResponseHead {
    let mut headers = HeaderMap::new();
    headers.insert("x-stage", HeaderValue::from_static("yes"));
    ResponseHead { status: StatusCode::OK, headers, body_length: length }
}

struct Stream {
    left: u64,
    at: u64,
    head: bool,
}

impl ResponseSource for Stream {
    fn poll_head(&mut self) -> Poll<ResponseHead> {
        if std::mem::take(&mut self.head) { Poll::Ready(head(None)) } else { Poll::Pending }
    }

    fn poll_body(&mut self, max: usize) -> Poll<Option<Result<Bytes, BodyError>>> {
        let length = self.left.min(max as u64);
        if length == 0 {
            return Poll::Ready(None);
        }
        let chunk: Vec<u8> = (self.at..self.at + length).map(octet).collect();
        self.at += length;
        self.left -= length;
        Poll::Ready(Some(Ok(chunk.into())))
    }

    fn remaining(&self) -> Option<u64> {
        None
    }
}

struct Echo {
    body: RequestBody,
    wake: Wake,
    head: bool,
}

impl ResponseSource for Echo {
    fn poll_head(&mut self) -> Poll<ResponseHead> {
        if !std::mem::take(&mut self.head) {
            return Poll::Pending;
        }
        let mut head = head(None);
        head.headers.insert("trailer", HeaderValue::from_static("x-end"));
        Poll::Ready(head)
    }

    fn poll_body(&mut self, max: usize) -> Poll<Option<Result<Bytes, BodyError>>> {
        let chunk = ready!(self.body.poll_chunk(max, &self.wake.waker()));
        Poll::Ready(chunk)
    }

    fn remaining(&self) -> Option<u64> {
        None
    }

    fn take_trailers(&mut self) -> Option<HeaderMap> {
        self.body.take_trailers()
    }
}

struct Never {
    _body: Option<RequestBody>,
}

impl ResponseSource for Never {
    fn poll_head(&mut self) -> Poll<ResponseHead> {
        Poll::Pending
    }

    fn poll_body(&mut self, _max: usize) -> Poll<Option<Result<Bytes, BodyError>>> {
        Poll::Pending
    }

    fn remaining(&self) -> Option<u64> {
        None
    }
}
