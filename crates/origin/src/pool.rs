//! Idle connections to one server, kept for the next request.
//!
//! hyper-util's pool only limits idle connections, does not say whether a connection was used before, and retries on
//! the same server by itself. This one knows every connection, and lets the request decide what to do when a connection
//! dies.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hyper::client::conn::{http1, http2};

use crate::upload::UploadBody;

/// Requests at once on an HTTP/2 connection: what RFC 9113, section 6.5.2, has every server allow.
const MAX_STREAMS: usize = 100;

/// HTTP/1.1 connections that are idle, and all HTTP/2 connections.
#[derive(Default)]
pub(crate) struct Pool {
    /// The last is the one used last, and the next to be used: the others time out.
    idle: Vec<Idle>,
    shared: Vec<Shared>,
}

/// An HTTP/1.1 connection, and whom it leads to unless that is a Unix socket.
pub(crate) struct Http1 {
    pub(crate) sender: http1::SendRequest<UploadBody>,
    pub(crate) peer: Option<SocketAddr>,
}

struct Idle {
    link: Http1,
    since: Instant,
}

struct Shared {
    sender: http2::SendRequest<UploadBody>,
    peer: Option<SocketAddr>,
    streams: Arc<AtomicUsize>,
    /// When it was last used.
    used: Instant,
}

/// A request's place on an HTTP/2 connection.
pub(crate) struct Stream {
    pub(crate) sender: http2::SendRequest<UploadBody>,
    streams: Arc<AtomicUsize>,
}

impl Stream {
    fn of(shared: &mut Shared) -> Self {
        shared.streams.fetch_add(1, Ordering::Relaxed);
        shared.used = Instant::now();
        Self { sender: shared.sender.clone(), streams: Arc::clone(&shared.streams) }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Pool {
    /// An idle HTTP/1.1 connection.
    pub(crate) fn take(&mut self, idle_timeout: Duration) -> Option<Http1> {
        while let Some(idle) = self.idle.pop() {
            if idle.link.sender.is_ready() && idle.since.elapsed() < idle_timeout {
                return Some(idle.link);
            }
        }
        None
    }

    /// Lets go of connections that lead to others than those that `is_current` knows; requests on them are finished.
    pub(crate) fn leave(&mut self, is_current: impl Fn(SocketAddr) -> bool) {
        self.idle.retain(|idle| idle.link.peer.is_none_or(&is_current));
        self.shared.retain(|shared| shared.peer.is_none_or(&is_current));
    }

    /// Lets go of HTTP/2 connections that take no further requests.
    pub(crate) fn forget_closed(&mut self) {
        self.shared.retain(|shared| !shared.sender.is_closed());
    }

    /// A place on an HTTP/2 connection.
    pub(crate) fn stream(&mut self) -> Option<Stream> {
        self.forget_closed();
        let free = |shared: &&mut Shared| shared.streams.load(Ordering::Relaxed) < MAX_STREAMS;
        self.shared.iter_mut().find(free).map(Stream::of)
    }

    /// Keeps an HTTP/1.1 connection, `most` of them at most.
    pub(crate) fn put(&mut self, link: Http1, most: usize) {
        if self.idle.len() >= most && !self.idle.is_empty() {
            self.idle.remove(0);
        }
        if self.idle.len() < most {
            self.idle.push(Idle { link, since: Instant::now() });
        }
    }

    /// Shares an HTTP/2 connection, and takes the first place on it.
    pub(crate) fn share(
        &mut self,
        sender: http2::SendRequest<UploadBody>,
        peer: Option<SocketAddr>,
    ) -> Stream {
        let mut shared = Shared { sender, peer, streams: Arc::default(), used: Instant::now() };
        let stream = Stream::of(&mut shared);
        self.shared.push(shared);
        stream
    }

    /// Closes what has been idle for too long, and forgets what is closed.
    pub(crate) fn sweep(&mut self, idle_timeout: Duration) {
        self.idle.retain(|idle| !idle.link.sender.is_closed() && idle.since.elapsed() < idle_timeout);
        self.shared.retain_mut(|shared| {
            if shared.streams.load(Ordering::Relaxed) > 0 {
                shared.used = Instant::now();
            }
            !shared.sender.is_closed() && shared.used.elapsed() < idle_timeout
        });
    }

    /// How many are idle.
    pub(crate) fn idle(&self) -> usize {
        let unused = |shared: &&Shared| shared.streams.load(Ordering::Relaxed) == 0;
        self.idle.len() + self.shared.iter().filter(unused).count()
    }
}
