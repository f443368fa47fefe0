//! Bodies made of a pattern, and the ways in which bodies go wrong.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use expressway_web::{
    BodyError, Exchange, Handler, RequestBody, RequestHead, ResponseHead, ResponseSource, Wake,
};
use http::{HeaderMap, HeaderValue, Method, StatusCode};

/// The byte at `offset` of every body; its period is prime, so shifted data shows.
pub fn pattern(offset: u64) -> u8 {
    (offset % 251) as u8
}

/// `length` bytes of the pattern from `offset`.
pub fn pattern_bytes(offset: u64, length: usize) -> Bytes {
    (0..length as u64).map(|index| pattern(offset + index)).collect()
}

/// Answers `/bytes/N` with N bytes of the pattern; `/unsized/N` the same without saying how many;
/// `/slow/N` the same in chunks that another thread wakes for; `/late/N` so and without saying how many, so that the end comes
/// alone; `/fail/N` with N bytes and then an error, of
/// 2 N announced; all of them with urgency U if `/uU` follows; `/name` with its own name; `/echo` with the request's body and trailers; `/hold/NAME` never, and keeps
/// the request's body for [`held`].
pub struct PatternHandler {
    pub name: &'static str,
    pub started: Arc<AtomicU64>,
}

impl PatternHandler {
    pub fn new(name: &'static str) -> Arc<Self> {
        Arc::new(Self { name, started: Arc::default() })
    }
}

impl Handler for PatternHandler {
    fn start(&self, request: &RequestHead, body: RequestBody, wake: Wake) -> Exchange {
        self.started.fetch_add(1, Ordering::Relaxed);
        let method = &request.method;
        if request.target == "/echo" {
            return Exchange::new(Box::new(Echo { body, wake, head: false }));
        }
        if request.target.starts_with("/hold/") {
            HELD.lock().unwrap().insert(request.target.clone(), body);
            return Exchange::new(Box::new(Never));
        }
        if *method != Method::GET && *method != Method::HEAD {
            return Exchange::error(method, StatusCode::METHOD_NOT_ALLOWED, HeaderMap::new());
        }
        if request.target == "/name" {
            return Exchange::fixed(
                method,
                StatusCode::OK,
                HeaderMap::new(),
                Bytes::from_static(self.name.as_bytes()),
            );
        }
        let mut parts = request.target.trim_start_matches('/').split('/');
        let (kind, length) = (parts.next().unwrap_or(""), parts.next().and_then(|text| text.parse().ok()));
        let Some(length) = length else {
            return Exchange::error(method, StatusCode::NOT_FOUND, HeaderMap::new());
        };
        let mut source = PatternSource {
            length,
            offset: 0,
            end: length,
            announced: Some(length),
            head: false,
            slow: None,
            ready: true,
            fails: false,
        };
        match kind {
            "bytes" => {}
            "unsized" => source.announced = None,
            "slow" => source.slow = Some(wake),
            "late" => (source.slow, source.announced) = (Some(wake), None),
            "fail" => {
                source.fails = true;
                source.announced = Some(length * 2);
            }
            _ => return Exchange::error(method, StatusCode::NOT_FOUND, HeaderMap::new()),
        }
        if *method == Method::HEAD {
            source.end = 0;
            source.announced = Some(0);
        }
        let mut exchange = Exchange::new(Box::new(source));
        if let Some(urgency) = parts.next().and_then(|part| part.strip_prefix('u')?.parse().ok()) {
            exchange.set_urgency(urgency);
        }
        exchange
    }
}

static HELD: LazyLock<Mutex<HashMap<String, RequestBody>>> = LazyLock::new(Mutex::default);

/// The body of a request to `/hold/NAME` that has come.
pub fn held(name: &str) -> Option<RequestBody> {
    HELD.lock().unwrap().remove(&format!("/hold/{name}"))
}

struct Never;

impl ResponseSource for Never {
    fn poll_head(&mut self) -> Poll<ResponseHead> {
        Poll::Pending
    }

    fn poll_body(&mut self, _: usize) -> Poll<Option<Result<Bytes, BodyError>>> {
        Poll::Pending
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
        if std::mem::replace(&mut self.head, true) {
            return Poll::Pending;
        }
        Poll::Ready(ResponseHead { status: StatusCode::OK, headers: HeaderMap::new(), body_length: None })
    }

    fn poll_body(&mut self, max: usize) -> Poll<Option<Result<Bytes, BodyError>>> {
        self.body.poll_chunk(max, &self.wake.waker())
    }

    fn remaining(&self) -> Option<u64> {
        None
    }

    fn take_trailers(&mut self) -> Option<HeaderMap> {
        self.body.take_trailers()
    }
}

struct PatternSource {
    length: u64,
    offset: u64,
    end: u64,
    announced: Option<u64>,
    head: bool,
    slow: Option<Wake>,
    ready: bool,
    fails: bool,
}

impl ResponseSource for PatternSource {
    fn poll_head(&mut self) -> Poll<ResponseHead> {
        if std::mem::replace(&mut self.head, true) {
            return Poll::Pending;
        }
        let mut headers = HeaderMap::new();
        if self.announced.is_some() {
            headers.insert("content-length", HeaderValue::from(self.length));
        }
        Poll::Ready(ResponseHead { status: StatusCode::OK, headers, body_length: self.announced })
    }

    fn poll_body(&mut self, max: usize) -> Poll<Option<Result<Bytes, BodyError>>> {
        if let Some(wake) = &self.slow {
            self.ready = !self.ready;
            if !self.ready {
                let wake = wake.clone();
                std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_millis(1));
                    wake.wake();
                });
                return Poll::Pending;
            }
        }
        if self.offset == self.end {
            return Poll::Ready(self.fails.then_some(Err(BodyError::Changed)));
        }
        let length = (self.end - self.offset).min(max as u64);
        let chunk = pattern_bytes(self.offset, length as usize);
        self.offset += length;
        Poll::Ready(Some(Ok(chunk)))
    }

    fn remaining(&self) -> Option<u64> {
        let announced = self.announced?;
        self.head.then(|| announced - self.offset)
    }
}
