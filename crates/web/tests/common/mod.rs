//! A stand-in for a transport: drives exchanges to their end on the test's thread.
#![allow(dead_code)] // Each test binary uses its own part.

use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use expressway_web::files::FilesConfig;
use expressway_web::{
    BodyError, Exchange, Handler, Notify, Protocol, RequestBody, RequestHead, ResponseHead, Scheme,
    SiteConfig, Wake,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method};

/// A mailbox that a test can wait on. Gives up loudly: a lost wake-up must not hang the suite.
#[derive(Default)]
pub(crate) struct Mailbox {
    wakes: Mutex<u64>,
    changed: Condvar,
}

impl Notify for Mailbox {
    fn notify(&self, _token: u64) {
        *self.wakes.lock().unwrap() += 1;
        self.changed.notify_all();
    }
}

impl Mailbox {
    pub(crate) fn wake(self: &Arc<Self>) -> Wake {
        let notify: Arc<dyn Notify> = self.clone();
        Wake::new(notify, 0)
    }

    pub(crate) fn seen(&self) -> u64 {
        *self.wakes.lock().unwrap()
    }

    /// Waits until there were more than `seen` wake-ups.
    pub(crate) fn wait_beyond(&self, seen: u64) {
        let wakes = self.wakes.lock().unwrap();
        let (wakes, result) =
            self.changed.wait_timeout_while(wakes, Duration::from_secs(60), |wakes| *wakes <= seen).unwrap();
        assert!(!result.timed_out(), "no wake-up beyond {seen} came, {} were seen", *wakes);
    }
}

/// One exchange with the mailbox that it wakes.
pub(crate) struct Client {
    pub(crate) exchange: Exchange,
    mailbox: Arc<Mailbox>,
}

impl Client {
    pub(crate) fn start(handler: &dyn Handler, request: &RequestHead) -> Self {
        let mailbox = Arc::new(Mailbox::default());
        Self { exchange: handler.start(request, RequestBody::empty(), mailbox.wake()), mailbox }
    }

    pub(crate) fn head(&mut self) -> ResponseHead {
        loop {
            let seen = self.mailbox.seen();
            if let Poll::Ready(head) = self.exchange.poll_head() {
                return head;
            }
            self.mailbox.wait_beyond(seen);
        }
    }

    pub(crate) fn chunk(&mut self, max: usize) -> Option<Result<Bytes, BodyError>> {
        loop {
            let seen = self.mailbox.seen();
            if let Poll::Ready(chunk) = self.exchange.poll_body(max) {
                return chunk;
            }
            self.mailbox.wait_beyond(seen);
        }
    }

    /// The rest of the body, in chunks of up to `max`.
    pub(crate) fn body(&mut self, max: usize) -> Result<Vec<u8>, BodyError> {
        let mut body = Vec::new();
        while let Some(chunk) = self.chunk(max) {
            let chunk = chunk?;
            assert!(!chunk.is_empty() && chunk.len() <= max);
            body.extend_from_slice(&chunk);
        }
        assert_eq!(self.exchange.remaining(), Some(0));
        Ok(body)
    }
}

pub(crate) fn request(method: &str, authority: &str, target: &str, headers: &[(&str, &str)]) -> RequestHead {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.append(name.parse::<HeaderName>().unwrap(), HeaderValue::from_bytes(value.as_bytes()).unwrap());
    }
    RequestHead {
        method: method.parse::<Method>().unwrap(),
        scheme: Scheme::Https,
        authority: authority.to_owned(),
        target: target.to_owned(),
        headers: map,
        protocol: Protocol::H3,
        remote: SocketAddr::from(([192, 0, 2, 1], 4433)),
        client_subject: None,
    }
}

pub(crate) fn get(target: &str) -> RequestHead {
    request("GET", "plain.test", target, &[])
}

pub(crate) fn site(files: FilesConfig) -> SiteConfig {
    SiteConfig::new(Vec::new(), files)
}

/// Lets what was written become so old that what is read of it is kept, and its validators are strong.
pub(crate) fn settle() {
    std::thread::sleep(Duration::from_millis(2050));
}

/// Octets that tell their position.
pub(crate) fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect()
}

/// Asks and expects the whole answer.
pub(crate) fn fetch(handler: &dyn Handler, request: &RequestHead) -> (ResponseHead, Vec<u8>) {
    let mut client = Client::start(handler, request);
    let head = client.head();
    assert!(head.status.as_u16() >= 200);
    let body = client.body(1 << 16).expect("the body ends well");
    assert_eq!(head.body_length, Some(body.len() as u64));
    (head, body)
}

/// Whether a test that needs `what` may be skipped for want of it; says so when it may.
pub(crate) fn skip(what: &str) {
    assert!(
        std::env::var_os("EXPRESSWAY_REQUIRE_ROOT_TESTS").is_none_or(|value| value != "1"),
        "{what} is required (EXPRESSWAY_REQUIRE_ROOT_TESTS=1)"
    );
    eprintln!("skipped: needs {what}");
}

/// Makes file permissions count for this thread and those it starts, even for root.
pub(crate) fn drop_file_capabilities() {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    let mut sets = capabilities(None).unwrap();
    sets.effective.remove(CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH);
    set_capabilities(None, sets).unwrap();
}
