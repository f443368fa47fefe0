//! The admin listener: metrics, health and the current configuration, over HTTP/1.1.
//!
//! It runs on its own thread, never on a worker, with a lower priority than theirs, and answers from shared
//! counters only. A client can cost it what [`Limits`] allow and no more; it takes nothing from workers.

use std::convert::Infallible;
use std::error::Error;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use expressway_netio::priority;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Either, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::metrics::{self, Registry};
use feed::Feeding;
use host::Names;
use slots::{Slot, Slots};
use write_timeout::WriteTimeout;

mod feed;
mod host;
mod slots;
mod write_timeout;

pub use feed::{Feed, Piece};

/// Header lines of a request at most.
const MAX_HEADERS: usize = 64;

/// What the thread is set back by: on a core that is short, workers have nine parts in ten.
const NICE: i32 = 10;

/// What pages are accounted in.
const KIB: usize = 1 << 10;

/// What clients of the admin listener may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Concurrent connections. A new one displaces the connection that has been idle longest without a
    /// request.
    pub connections: usize,
    /// How long the head of a request may take to come, whole; also how long a connection may be idle.
    pub header_timeout: Duration,
    /// How long a client may take to take a response, whole.
    pub write_timeout: Duration,
    /// Bytes of the head of a request, at least 8 KiB.
    pub header: usize,
    /// Bytes of pages that clients have been answered with and not taken. A page that would be beyond that is refused.
    pub pages: usize,
}

impl Default for Limits {
    /// 64 connections, 10 s for a head, 10 s for a response, heads of 16 KiB, 64 MiB of pages.
    fn default() -> Self {
        Self {
            connections: 64,
            header_timeout: Duration::from_secs(10),
            write_timeout: Duration::from_secs(10),
            header: 16 << 10,
            pages: 64 << 20,
        }
    }
}

/// What the admin pages show.
pub trait State: Send + Sync + 'static {
    /// `Ok` while the process serves; else why it does not, for `/healthz`.
    fn health(&self) -> Result<(), String>;

    /// The configuration file in force, for `/config`.
    fn configuration(&self) -> String;

    /// How packets move, as a JSON document, for `/io`; `None` where there is no such page.
    fn io(&self) -> Option<String> {
        None
    }

    /// Purges what `order`, a JSON document, names, for `POST /purge`: a JSON document of what that did, or why it is refused;
    /// `None` where there is nothing to purge. Called on the listener's thread.
    fn purge(&self, _order: &[u8]) -> Option<Result<String, String>> {
        None
    }

    /// Starts what `order`, a JSON document, asks to be traced, for `POST /trace`; `None` where nothing can be. Called on the
    /// listener's thread.
    fn trace(&self, _order: &[u8]) -> Option<Result<Box<dyn Feed>, Refusal>> {
        None
    }

    /// Drains a node, or ends that, as `order`, a JSON document, says, for `POST /drain`; as [`State::purge`].
    fn drain(&self, _order: &[u8]) -> Option<Result<String, String>> {
        None
    }

    /// Bans the sources that `order` names, for `POST /ban`; as [`State::purge`].
    fn ban(&self, _order: &[u8]) -> Option<Result<String, String>> {
        None
    }

    /// Ends bans, as `order` says, for `POST /unban`; as [`State::purge`].
    fn unban(&self, _order: &[u8]) -> Option<Result<String, String>> {
        None
    }

    /// Sources that are banned, as a JSON document, for `/bans`; `None` where there is no such page.
    fn bans(&self) -> Option<String> {
        None
    }

    /// Says that there is an attack, or none, for `POST /attack`; as [`State::purge`].
    fn attack(&self, _order: &[u8]) -> Option<Result<String, String>> {
        None
    }

    /// Takes proofs that sources have their addresses, for `POST /learn`; as [`State::purge`].
    fn learn(&self, _order: &[u8]) -> Option<Result<String, String>> {
        None
    }

    /// Fetches lists at once, for `POST /refresh`; as [`State::purge`].
    fn refresh(&self, _order: &[u8]) -> Option<Result<String, String>> {
        None
    }

    /// Gives a node another weight, as `order`, a JSON document, says, for `POST /weight`; as [`State::purge`].
    fn weight(&self, _order: &[u8]) -> Option<Result<String, String>> {
        None
    }

    /// Services with their nodes and statistics, as a JSON document, for `/services`; `None` where there is no such page.
    fn services(&self) -> Option<String> {
        None
    }

    /// Rooms of a relay with their receivers, as a JSON document, for `/rooms`; `None` where there is no such page.
    fn rooms(&self) -> Option<String> {
        None
    }

    /// Statistics of each subscriber, as a JSON document, for `/subscribers`; `None` where there is no such page.
    fn subscribers(&self) -> Option<String> {
        None
    }
}

/// Why an order is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It is wrong.
    Invalid(String),
    /// It has to wait for another.
    Busy(String),
}

/// A running admin listener; dropping it stops the listener and waits for its thread.
pub struct Admin {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Admin {
    /// Binds the address and serves on a new thread.
    ///
    /// # Errors
    /// When the address cannot be bound or the thread cannot be started.
    pub fn start(
        address: SocketAddr,
        limits: Limits,
        registry: Registry,
        state: Arc<dyn State>,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let (stop, stopped) = oneshot::channel();
        let desk = Arc::new(Desk::new(limits, registry, state));
        let thread = std::thread::Builder::new().name("expressway-admin".into()).spawn(move || {
            if let Err(error) = priority::stand_back(NICE) {
                tracing::debug!(%error, "setpriority failed: the admin listener runs at the workers' priority");
            }
            runtime.block_on(async {
                tokio::select! {
                    result = serve(listener, desk) => {
                        if let Err(error) = result {
                            tracing::error!(%address, %error, "admin listener stopped");
                        }
                    }
                    _ = stopped => {}
                }
            });
        })?;
        Ok(Self { address, stop: Some(stop), thread: Some(thread) })
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A page, or what comes piece by piece.
type Body = Either<Full<Bytes>, Feeding>;

/// What all connections have in common.
struct Desk {
    limits: Limits,
    registry: Registry,
    state: Arc<dyn State>,
    slots: Slots,
    /// Room for pages, in KiB.
    room: Arc<Semaphore>,
    names: Names,
}

impl Desk {
    fn new(limits: Limits, registry: Registry, state: Arc<dyn State>) -> Self {
        let slots = Slots::new(limits.connections);
        let counted = slots.clone();
        registry.register(move |out: &mut Vec<metrics::Sample>| counted.samples(out));
        let room = Arc::new(Semaphore::new(limits.pages / KIB));
        Self { limits, registry, state, slots, room, names: Names::of_system() }
    }

    async fn converse(self: Arc<Self>, stream: TcpStream, slot: Slot) {
        let service = service_fn(|request| {
            slot.touch();
            let desk = self.clone();
            async move { Ok::<_, Infallible>(desk.answer(request).await) }
        });
        let result = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.limits.header_timeout)
            .max_buf_size(self.limits.header)
            .max_headers(MAX_HEADERS)
            .serve_connection(TokioIo::new(WriteTimeout::new(stream, self.limits.write_timeout)), service)
            .await;
        if let Err(error) = result {
            if is_timeout(&error) {
                slot.count_timeout();
            }
            tracing::debug!(%error, "admin connection");
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let page = match (request.method(), request.uri().path()) {
            // What scrapers and health checks ask for, by whatever name, tells nothing of clients and changes nothing.
            (_, path) if !matches!(path, "/metrics" | "/healthz") && !self.names.allow(&request) => {
                Page::new(
                    StatusCode::MISDIRECTED_REQUEST,
                    "text/plain",
                    "Host is not an address, `localhost` or this machine's name: ask by address\n",
                )
            }
            (&Method::POST, "/purge") => self.ordered(request, |state, order| state.purge(order)).await,
            (&Method::POST, "/ban") => self.ordered(request, |state, order| state.ban(order)).await,
            (&Method::POST, "/unban") => self.ordered(request, |state, order| state.unban(order)).await,
            (&Method::POST, "/attack") => self.ordered(request, |state, order| state.attack(order)).await,
            (&Method::POST, "/learn") => self.ordered(request, |state, order| state.learn(order)).await,
            (&Method::POST, "/refresh") => self.ordered(request, |state, order| state.refresh(order)).await,
            (&Method::POST, "/drain") => self.ordered(request, |state, order| state.drain(order)).await,
            (&Method::POST, "/weight") => self.ordered(request, |state, order| state.weight(order)).await,
            (&Method::POST, "/trace") => match self.trace(request).await {
                Ok(feed) => return feed.into_response(),
                Err(page) => page,
            },
            _ => answer(&request, &self.registry, self.state.as_ref()),
        };
        // A page of more than there may be of all is let through alone.
        let size = page.body.len().div_ceil(KIB).min(self.limits.pages / KIB);
        match self.room.clone().try_acquire_many_owned(u32::try_from(size).unwrap_or(u32::MAX)) {
            Ok(permit) => page.into_response(permit),
            Err(_) => {
                self.slots.count_refused_page();
                let refused = Full::new(Bytes::from_static(b"too many unread responses\n"));
                let mut response = Response::new(Either::Left(refused));
                *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
                response
            }
        }
    }
}

/// Octets of an order at most.
const MAX_ORDER: usize = 16 << 10;

impl Desk {
    /// What a request orders. Only as JSON by name: pages of other origins may send anything else without asking first (CORS).
    async fn order(&self, request: Request<Incoming>) -> Result<Bytes, Page> {
        let content_type = request.headers().get(header::CONTENT_TYPE).map(|value| value.as_bytes());
        if !content_type.is_some_and(|value| value.starts_with(b"application/json")) {
            let problem = "send application/json\n";
            return Err(Page::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "text/plain", problem));
        }
        let body = Limited::new(request.into_body(), MAX_ORDER).collect();
        match tokio::time::timeout(self.limits.header_timeout, body).await {
            Ok(Ok(order)) => Ok(order.to_bytes()),
            _ => {
                let problem = "the order is too long, or incomplete\n";
                Err(Page::new(StatusCode::BAD_REQUEST, "text/plain", problem))
            }
        }
    }

    async fn trace(&self, request: Request<Incoming>) -> Result<Feeding, Page> {
        let order = self.order(request).await?;
        match self.state.trace(&order) {
            Some(Ok(feed)) => Ok(Feeding::new(feed)),
            Some(Err(Refusal::Invalid(problem))) => {
                Err(Page::new(StatusCode::BAD_REQUEST, "text/plain", problem + "\n"))
            }
            Some(Err(Refusal::Busy(problem))) => {
                Err(Page::new(StatusCode::CONFLICT, "text/plain", problem + "\n"))
            }
            None => Err(document(None)),
        }
    }

    /// What came of an order that is carried out at once.
    async fn ordered(
        &self,
        request: Request<Incoming>,
        obey: impl Fn(&dyn State, &[u8]) -> Option<Result<String, String>>,
    ) -> Page {
        let order = match self.order(request).await {
            Ok(order) => order,
            Err(page) => return page,
        };
        match obey(self.state.as_ref(), &order) {
            Some(Ok(done)) => Page::new(StatusCode::OK, "application/json", done + "\n"),
            Some(Err(problem)) => Page::new(StatusCode::BAD_REQUEST, "text/plain", problem + "\n"),
            None => document(None),
        }
    }
}

async fn serve(listener: TcpListener, desk: Arc<Desk>) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                desk.slots.seat(|slot| tokio::spawn(desk.clone().converse(stream, slot)));
                // Let it be heard before others come and take its place.
                tokio::task::yield_now().await;
            }
            Err(error) => {
                // EMFILE and the like pass; do not spin meanwhile.
                tracing::warn!(%error, "admin: accept");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

fn answer(request: &Request<Incoming>, registry: &Registry, state: &dyn State) -> Page {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return Page::new(StatusCode::METHOD_NOT_ALLOWED, "text/plain", "only GET and HEAD are supported\n");
    }
    match request.uri().path() {
        "/metrics" => Page::new(StatusCode::OK, metrics::CONTENT_TYPE, registry.page()),
        "/healthz" => match state.health() {
            Ok(()) => Page::new(StatusCode::OK, "text/plain", "ok\n"),
            Err(why) => Page::new(StatusCode::SERVICE_UNAVAILABLE, "text/plain", why + "\n"),
        },
        "/config" => Page::new(StatusCode::OK, "text/plain; charset=utf-8", state.configuration()),
        "/io" => document(state.io()),
        "/subscribers" => document(state.subscribers()),
        "/services" => document(state.services()),
        "/rooms" => document(state.rooms()),
        "/bans" => document(state.bans()),
        "/" => Page::new(
            StatusCode::OK,
            "text/plain",
            "/metrics\n/healthz\n/config\n/io\n/subscribers\n/services\n/rooms\n/bans\nPOST /purge\nPOST /drain\nPOST /trace\n\
             POST /ban\nPOST /unban\nPOST /attack\nPOST /learn\nPOST /refresh\nPOST /weight\n",
        ),
        _ => document(None),
    }
}

fn document(document: Option<String>) -> Page {
    match document {
        Some(document) => Page::new(StatusCode::OK, "application/json", document),
        None => Page::new(StatusCode::NOT_FOUND, "text/plain", "no such page; see /\n"),
    }
}

/// Of a head, as hyper tells it, or of a write ([`WriteTimeout`]).
fn is_timeout(error: &hyper::Error) -> bool {
    let io = error.source().and_then(|source| source.downcast_ref::<io::Error>());
    error.is_timeout() || io.is_some_and(|error| error.kind() == io::ErrorKind::TimedOut)
}

/// An answer.
struct Page {
    status: StatusCode,
    content_type: &'static str,
    body: String,
}

impl Page {
    fn new(status: StatusCode, content_type: &'static str, body: impl Into<String>) -> Self {
        Self { status, content_type, body: body.into() }
    }

    /// The response, which keeps the permit for as long as it holds the page.
    fn into_response(self, permit: OwnedSemaphorePermit) -> Response<Body> {
        let body = Bytes::from_owner(Held { body: self.body, _permit: permit });
        let mut response = Response::new(Either::Left(Full::new(body)));
        *response.status_mut() = self.status;
        let value = header::HeaderValue::from_static;
        response.headers_mut().insert(header::CONTENT_TYPE, value(self.content_type));
        response.headers_mut().insert(header::CACHE_CONTROL, value("no-store"));
        if self.status == StatusCode::METHOD_NOT_ALLOWED {
            response.headers_mut().insert(header::ALLOW, value("GET, HEAD"));
        }
        response
    }
}

/// A page that a client has not read yet.
struct Held {
    body: String,
    _permit: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        self.body.as_bytes()
    }
}

#[cfg(test)]
mod tests;
