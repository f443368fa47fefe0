//! A scripted origin, and a client that polls exchanges on its own thread.
#![allow(dead_code, reason = "not every test uses all of it")]

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use expressway_cache::{Cache, CacheOptions, CachedSite, SiteOptions};
use expressway_web::files::{FileOptions, FileStore};
use expressway_web::{
    BodyError, Exchange, Handler, Notify, Protocol, RequestBody, RequestHead, ResponseHead, ResponseSource,
    Scheme, Wake,
};
use http::header::{CONTENT_LENGTH, CONTENT_RANGE, HeaderMap, HeaderName, HeaderValue};
use http::{Method, StatusCode};
use tokio::sync::oneshot;

/// Octets a block in tests.
pub const BLOCK: usize = 4096;

/// What an origin has at a path.
#[derive(Debug, Clone, Default)]
pub struct Resource {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: Vec<u8>,
    /// `range` is understood.
    pub ranges: bool,
    /// Without `content-length`.
    pub chunked: bool,
    /// The body breaks off after so many octets.
    pub breaks_at: Option<usize>,
    /// The body stops coming after so many octets.
    pub stalls_at: Option<usize>,
}

pub fn body(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..length)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
}

impl Resource {
    pub fn new(body: impl Into<Vec<u8>>, cache_control: &str) -> Self {
        let mut resource = Self { status: 200, body: body.into(), ..Self::default() };
        if !cache_control.is_empty() {
            resource.headers.push(("cache-control", cache_control.to_owned()));
        }
        resource
    }

    pub fn with(mut self, name: &'static str, value: &str) -> Self {
        self.headers.push((name, value.to_owned()));
        self
    }

    pub fn etag(self, etag: &str) -> Self {
        let etag = format!("\"{etag}\"");
        self.with("etag", &etag)
    }

    pub fn ranged(mut self) -> Self {
        self.ranges = true;
        self
    }

    pub fn status(mut self, status: u16) -> Self {
        self.status = status;
        self
    }

    fn header(&self, wanted: &str) -> Option<&str> {
        self.headers.iter().find(|(name, _)| *name == wanted).map(|(_, value)| value.as_str())
    }
}

#[derive(Debug, Clone)]
pub struct Asked {
    pub method: Method,
    pub target: String,
    pub headers: HeaderMap,
}

/// An origin.
#[derive(Default)]
pub struct Origin {
    pub resources: Mutex<HashMap<String, Resource>>,
    pub asked: Mutex<Vec<Asked>>,
    held: AtomicBool,
    waiting: Mutex<Vec<Wake>>,
    pub active: AtomicUsize,
    pub most_active: AtomicUsize,
}

impl Origin {
    pub fn set(&self, target: &str, resource: Resource) {
        self.resources.lock().unwrap().insert(target.to_owned(), resource);
    }

    /// Answers nothing until released.
    pub fn hold(&self) {
        self.held.store(true, Ordering::SeqCst);
    }

    pub fn release(&self) {
        self.held.store(false, Ordering::SeqCst);
        self.waiting.lock().unwrap().drain(..).for_each(|wake| wake.wake());
    }

    pub fn count(&self) -> usize {
        self.asked.lock().unwrap().len()
    }

    pub fn last(&self) -> Asked {
        self.asked.lock().unwrap().last().unwrap().clone()
    }

    pub fn wait_for(&self, count: usize) {
        let until = Instant::now() + Duration::from_secs(20);
        while self.count() < count {
            assert!(Instant::now() < until, "{} requests of {count}", self.count());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

pub struct SharedOrigin(pub Arc<Origin>);

impl Handler for SharedOrigin {
    fn start(&self, request: &RequestHead, _body: RequestBody, wake: Wake) -> Exchange {
        let origin = Arc::clone(&self.0);
        origin.asked.lock().unwrap().push(Asked {
            method: request.method.clone(),
            target: request.target.clone(),
            headers: request.headers.clone(),
        });
        let active = origin.active.fetch_add(1, Ordering::SeqCst) + 1;
        origin.most_active.fetch_max(active, Ordering::SeqCst);
        Exchange::new(Box::new(OriginExchange { origin, request: request.clone(), wake, answer: None }))
    }
}

struct OriginExchange {
    origin: Arc<Origin>,
    request: RequestHead,
    wake: Wake,
    answer: Option<(Bytes, u64, Resource)>,
}

impl Drop for OriginExchange {
    fn drop(&mut self) {
        self.origin.active.fetch_sub(1, Ordering::SeqCst);
    }
}

impl OriginExchange {
    fn answer(&mut self) -> ResponseHead {
        let target = &self.request.target;
        let resource = self.origin.resources.lock().unwrap().get(target).cloned();
        let resource =
            resource.unwrap_or_else(|| Resource { status: 404, body: b"no".to_vec(), ..Resource::default() });
        let asked =
            |name: &str| self.request.headers.get(name).map(|value| value.to_str().unwrap().to_owned());
        let mut status = resource.status;
        let mut headers = HeaderMap::new();
        for (name, value) in &resource.headers {
            headers.append(HeaderName::from_static(name), HeaderValue::try_from(value).unwrap());
        }
        let mut body = Bytes::from(resource.body.clone());
        let etag = resource.header("etag");
        let is_same = match asked("if-none-match") {
            Some(tags) => etag.is_some_and(|etag| tags.split(',').any(|tag| tag.trim() == etag)),
            None => {
                asked("if-modified-since").is_some_and(|date| resource.header("last-modified") == Some(&date))
            }
        };
        if is_same && status == 200 {
            status = 304;
            body.clear();
        } else if let (Some(range), true, 200) = (asked("range"), resource.ranges, status)
            && asked("if-range").is_none_or(|tag| {
                Some(tag.as_str()) == etag || Some(tag.as_str()) == resource.header("last-modified")
            })
        {
            let (first, last) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
            let total = body.len();
            let first: usize = first.parse().unwrap();
            let end = last.parse::<usize>().map_or(total, |last| (last + 1).min(total));
            if first >= total {
                status = 416;
                headers.insert(CONTENT_RANGE, format!("bytes */{total}").parse().unwrap());
                body.clear();
            } else {
                status = 206;
                headers.insert(CONTENT_RANGE, format!("bytes {first}-{}/{total}", end - 1).parse().unwrap());
                body = body.slice(first..end);
            }
        }
        let length = body.len() as u64;
        if self.request.method == Method::HEAD {
            body.clear();
        }
        if !resource.chunked && status != 304 {
            headers.insert(CONTENT_LENGTH, length.into());
        }
        let body_length = if resource.chunked { None } else { Some(body.len() as u64) };
        self.answer = Some((body, 0, resource));
        ResponseHead { status: StatusCode::from_u16(status).unwrap(), headers, body_length }
    }
}

impl ResponseSource for OriginExchange {
    fn poll_head(&mut self) -> Poll<ResponseHead> {
        if self.answer.is_some() {
            return Poll::Pending;
        }
        let mut waiting = self.origin.waiting.lock().unwrap();
        if self.origin.held.load(Ordering::SeqCst) {
            waiting.push(self.wake.clone());
            return Poll::Pending;
        }
        drop(waiting);
        Poll::Ready(self.answer())
    }

    fn poll_body(&mut self, max: usize) -> Poll<Option<Result<Bytes, BodyError>>> {
        let (body, done, resource) = self.answer.as_mut().unwrap();
        if resource.breaks_at.is_some_and(|at| *done >= at as u64) {
            return Poll::Ready(Some(Err(BodyError::Stopped)));
        }
        if resource.stalls_at.is_some_and(|at| *done >= at as u64) {
            return Poll::Pending;
        }
        if body.is_empty() {
            return Poll::Ready(None);
        }
        let most = body.len().min(max).min(3000);
        let chunk = body.split_to(most);
        *done += chunk.len() as u64;
        Poll::Ready(Some(Ok(chunk)))
    }

    fn remaining(&self) -> Option<u64> {
        self.answer.as_ref().map(|(body, ..)| body.len() as u64)
    }
}

/// Wakes a thread.
#[derive(Default)]
pub struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Notify for Bell {
    fn notify(&self, _token: u64) {
        *self.rung.lock().unwrap() = true;
        self.changed.notify_all();
    }
}

impl Bell {
    pub fn wait(&self) {
        let rung = self.rung.lock().unwrap();
        let (mut rung, timeout) =
            self.changed.wait_timeout_while(rung, Duration::from_secs(20), |rung| !*rung).unwrap();
        assert!(!timeout.timed_out(), "an exchange was never woken");
        *rung = false;
    }
}

#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
    pub error: Option<BodyError>,
}

impl Answer {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    pub fn cache(&self) -> &str {
        self.header("cache-status").trim_start_matches("expressway; ")
    }

    pub fn is_hit(&self) -> bool {
        self.cache().starts_with("hit")
    }
}

/// An exchange that is under way.
pub struct Client {
    pub exchange: Exchange,
    pub bell: Arc<Bell>,
}

impl Client {
    pub fn finish(self) -> Answer {
        self.finish_with(|_| {})
    }

    /// `each` sees the octets of each chunk.
    pub fn finish_with(mut self, mut each: impl FnMut(&[u8])) -> Answer {
        let head = loop {
            match self.exchange.poll_head() {
                Poll::Ready(head) => break head,
                Poll::Pending => self.bell.wait(),
            }
        };
        let (mut body, mut error) = (Vec::new(), None);
        loop {
            match self.exchange.poll_body(5000) {
                Poll::Pending => self.bell.wait(),
                Poll::Ready(None) => break,
                Poll::Ready(Some(Ok(chunk))) => {
                    each(&chunk);
                    body.extend_from_slice(&chunk);
                }
                Poll::Ready(Some(Err(failed))) => {
                    error = Some(failed);
                    break;
                }
            }
        }
        if error.is_none()
            && let Some(length) = head.body_length
        {
            assert_eq!(body.len() as u64, length, "a body is as long as announced: {head:?}");
        }
        Answer { status: head.status.as_u16(), headers: head.headers, body, error }
    }
}

/// A cache in front of an origin.
pub struct Bed {
    pub origin: Arc<Origin>,
    pub cache: Cache,
    pub site: CachedSite,
    pub store: Arc<FileStore>,
    runtime: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl Drop for Bed {
    fn drop(&mut self) {
        let (stop, thread) = self.runtime.take().unwrap();
        let _ = stop.send(());
        let _ = thread.join();
    }
}

pub fn options() -> CacheOptions {
    CacheOptions { slice: 4 * BLOCK as u64, fill_timeout: Duration::from_secs(20), ..CacheOptions::default() }
}

pub fn request(method: &str, target: &str, headers: &[(&str, &str)]) -> RequestHead {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.append(HeaderName::try_from(*name).unwrap(), HeaderValue::try_from(*value).unwrap());
    }
    RequestHead {
        method: method.parse().unwrap(),
        scheme: Scheme::Https,
        authority: "edge.example".to_owned(),
        target: target.to_owned(),
        headers: map,
        protocol: Protocol::H3,
        remote: "192.0.2.1:1".parse().unwrap(),
        client_subject: None,
    }
}

impl Bed {
    pub fn new() -> Self {
        Self::with(options(), SiteOptions::default(), 64 << 20)
    }

    pub fn with(options: CacheOptions, site: SiteOptions, cache_bytes: u64) -> Self {
        let files =
            FileOptions { block_bytes: BLOCK, cache_bytes, reader_threads: 2, ..FileOptions::default() };
        let store = FileStore::new(files).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        // Readers of a cache that has just been dropped hold its folder until they are done.
        let mut opened = Cache::open(options.clone(), &store, runtime.handle().clone());
        for _ in 0..1000 {
            if !opened.as_ref().is_err_and(|error| error.to_string().contains("in use")) {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
            opened = Cache::open(options.clone(), &store, runtime.handle().clone());
        }
        let cache = opened.unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            let _ = runtime.block_on(stopped);
        });
        let origin = Arc::<Origin>::default();
        let site = cache.site(site, Arc::new(SharedOrigin(Arc::clone(&origin))));
        Self { origin, cache, site, store, runtime: Some((stop, thread)) }
    }

    pub fn start(&self, request: &RequestHead) -> Client {
        let bell = Arc::<Bell>::default();
        let exchange = self.site.start(
            request,
            RequestBody::empty(),
            Wake::new(Arc::clone(&bell) as Arc<dyn Notify>, 0),
        );
        Client { exchange, bell }
    }

    pub fn get(&self, target: &str) -> Answer {
        self.ask("GET", target, &[])
    }

    pub fn ask(&self, method: &str, target: &str, headers: &[(&str, &str)]) -> Answer {
        self.start(&request(method, target, headers)).finish()
    }

    pub fn metric(&self, name: &str) -> u64 {
        let metrics = self.cache.metrics();
        metrics.iter().find(|metric| metric.name == name).unwrap_or_else(|| panic!("no {name}")).value
    }
}
