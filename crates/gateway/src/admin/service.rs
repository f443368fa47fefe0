//! Answers requests: one task per connection, all of them on one thread.

use std::convert::Infallible;
use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Either, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::Semaphore;

use super::access::{Access, Verdict};
use super::dashboard;
use super::feed::{Feed, Feeding};
use super::listener::{Acceptor, Stream};
use super::page::Page;
use super::slots::{Slot, Slots};
use super::write_timeout::WriteTimeout;
use super::{Limits, Refusal, State};
use expressway_metrics::{self as metrics, Registry};

/// Header lines of a request at most.
const MAX_HEADERS: usize = 64;

/// What pages are accounted in.
const KIB: usize = 1 << 10;

/// Octets of an order at most.
pub(super) const MAX_ORDER: usize = 16 << 10;

/// With 405 (RFC 9110, section 15.5.6).
const READ_ONLY: &[(&str, &str)] = &[("allow", "GET, HEAD")];

/// With 401 (RFC 6750, section 3).
const ASK_TOKEN: &[(&str, &str)] = &[("www-authenticate", "Bearer realm=\"expressway\"")];

/// The same for who has sent one.
const ASK_ANOTHER: &[(&str, &str)] =
    &[("www-authenticate", "Bearer realm=\"expressway\", error=\"invalid_token\"")];

/// A page, or what comes piece by piece.
pub(super) type Body = Either<Full<Bytes>, Feeding>;

/// What all connections have in common.
pub(super) struct AdminService {
    limits: Limits,
    access: Arc<Access>,
    registry: Registry,
    state: Arc<dyn State>,
    slots: Slots,
    /// Room for pages, in KiB.
    room: Arc<Semaphore>,
}

impl AdminService {
    /// Registers what it counts, too.
    pub(super) fn new(
        limits: Limits,
        access: Arc<Access>,
        registry: Registry,
        state: Arc<dyn State>,
    ) -> Self {
        let slots = Slots::new(limits.connections);
        let counted = slots.clone();
        registry.register(move |out: &mut Vec<metrics::Sample>| counted.samples(out));
        let room = Arc::new(Semaphore::new(limits.pages / KIB));
        Self { limits, access, registry, state, slots, room }
    }

    /// Where its connections are.
    pub(super) fn slots(&self) -> Slots {
        self.slots.clone()
    }

    async fn serve_connection(self: Arc<Self>, stream: Box<dyn Stream>, slot: Slot) {
        let service = service_fn(|request| {
            slot.touch();
            let service = self.clone();
            async move { Ok::<_, Infallible>(service.answer(request).await) }
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
        let page = match self.precheck(&request) {
            Some(page) => {
                self.drain_body(request).await;
                page
            }
            None if *request.method() == Method::POST => match self.post(request).await {
                Ok(feed) => return feed.into_response(),
                Err(page) => page,
            },
            None => self.get(&request),
        };
        // A page of more than there may be of all is let through alone.
        let size = page.len().div_ceil(KIB).min(self.limits.pages / KIB);
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

    /// What is answered whoever asks: files that hold nothing of the process, and refusals.
    fn precheck(&self, request: &Request<Incoming>) -> Option<Page> {
        if matches!(*request.method(), Method::GET | Method::HEAD)
            && let Some(page) = dashboard::file(request.uri().path())
        {
            return Some(page);
        }
        match self.access.judge(request) {
            Verdict::Granted => None,
            Verdict::Misdirected => {
                self.slots.count_misdirected();
                let why = "Host is not an address, `localhost` or this machine's name: use an address\n";
                Some(Page::say(StatusCode::MISDIRECTED_REQUEST, why))
            }
            Verdict::NoToken => {
                self.slots.count_unauthorized();
                let why = "send a token of token_file, as `authorization: Bearer TOKEN`\n";
                Some(Page::say(StatusCode::UNAUTHORIZED, why).with(ASK_TOKEN))
            }
            Verdict::WrongToken => {
                self.slots.count_unauthorized();
                let why = "the token is not in token_file\n";
                Some(Page::say(StatusCode::UNAUTHORIZED, why).with(ASK_ANOTHER))
            }
        }
    }

    /// What is asked for by GET.
    fn get(&self, request: &Request<Incoming>) -> Page {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return Page::say(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are supported\n")
                .with(READ_ONLY);
        }
        let state = self.state.as_ref();
        match request.uri().path() {
            "/metrics" => Page::new(StatusCode::OK, metrics::CONTENT_TYPE, self.registry.page()),
            "/healthz" => match state.health() {
                Ok(()) => Page::say(StatusCode::OK, "ok\n"),
                Err(why) => Page::say(StatusCode::SERVICE_UNAVAILABLE, why + "\n"),
            },
            "/config" => Page::new(StatusCode::OK, "text/plain; charset=utf-8", state.configuration()),
            "/io" => document(state.io()),
            "/generations" => document(state.generations()),
            "/subscribers" => document(state.subscribers()),
            "/services" => document(state.services()),
            "/rooms" => document(state.rooms()),
            "/bans" => document(state.bans()),
            "/" => Page::say(
                StatusCode::OK,
                "/dashboard\n/metrics\n/healthz\n/config\n/io\n/generations\n/subscribers\n/services\n/rooms\n/bans\nPOST /purge\n\
                 POST /drain\nPOST /weight\nPOST /trace\nPOST /qlog\nPOST /upgrade\n\
                 POST /ban\nPOST /unban\nPOST /attack\nPOST /learn\nPOST /refresh\n",
            ),
            _ => document(None),
        }
    }

    /// What is ordered by POST: an answer that comes piece by piece, or a page.
    async fn post(&self, request: Request<Incoming>) -> Result<Feeding, Page> {
        Err(match request.uri().path() {
            "/purge" => self.ordered(request, |state, order| state.purge(order)).await,
            "/ban" => self.ordered(request, |state, order| state.ban(order)).await,
            "/unban" => self.ordered(request, |state, order| state.unban(order)).await,
            "/attack" => self.ordered(request, |state, order| state.attack(order)).await,
            "/learn" => self.ordered(request, |state, order| state.learn(order)).await,
            "/refresh" => self.ordered(request, |state, order| state.refresh(order)).await,
            "/drain" => self.ordered(request, |state, order| state.drain(order)).await,
            "/weight" => self.ordered(request, |state, order| state.weight(order)).await,
            "/trace" => return self.feed(request, |state, order| state.trace(order)).await,
            "/qlog" => return self.feed(request, |state, order| state.qlog(order)).await,
            "/upgrade" => return self.feed(request, |state, order| state.upgrade(order)).await,
            _ => self.get(&request),
        })
    }

    /// What a request orders. Only as JSON by name: pages of other origins may send anything else without asking first (CORS).
    async fn order(&self, request: Request<Incoming>) -> Result<Bytes, Page> {
        let content_type = request.headers().get(header::CONTENT_TYPE).map(|value| value.as_bytes());
        if !content_type.is_some_and(|value| value.starts_with(b"application/json")) {
            self.drain_body(request).await;
            return Err(Page::say(StatusCode::UNSUPPORTED_MEDIA_TYPE, "send application/json\n"));
        }
        let body = Limited::new(request.into_body(), MAX_ORDER).collect();
        match tokio::time::timeout(self.limits.header_timeout, body).await {
            Ok(Ok(order)) => Ok(order.to_bytes()),
            _ => Err(Page::say(StatusCode::BAD_REQUEST, "request body too long or incomplete\n")),
        }
    }

    /// Takes an order that is refused, as far as it may be long: closing before it has come would reset the connection, and its client
    /// might never see why.
    async fn drain_body(&self, request: Request<Incoming>) {
        let body = Limited::new(request.into_body(), MAX_ORDER).collect();
        let _ = tokio::time::timeout(self.limits.header_timeout, body).await;
    }

    /// What is told piece by piece of an order.
    async fn feed(
        &self,
        request: Request<Incoming>,
        act: impl Fn(&dyn State, &[u8]) -> Option<Result<Box<dyn Feed>, Refusal>>,
    ) -> Result<Feeding, Page> {
        let order = self.order(request).await?;
        match act(self.state.as_ref(), &order) {
            Some(Ok(feed)) => Ok(Feeding::new(feed)),
            Some(Err(Refusal::Invalid(problem))) => Err(Page::say(StatusCode::BAD_REQUEST, problem + "\n")),
            Some(Err(Refusal::Busy(problem))) => Err(Page::say(StatusCode::CONFLICT, problem + "\n")),
            None => Err(document(None)),
        }
    }

    /// What came of an order that is carried out at once.
    async fn ordered(
        &self,
        request: Request<Incoming>,
        act: impl Fn(&dyn State, &[u8]) -> Option<Result<String, String>>,
    ) -> Page {
        let order = match self.order(request).await {
            Ok(order) => order,
            Err(page) => return page,
        };
        match act(self.state.as_ref(), &order) {
            Some(Ok(done)) => Page::new(StatusCode::OK, "application/json", done + "\n"),
            Some(Err(problem)) => Page::say(StatusCode::BAD_REQUEST, problem + "\n"),
            None => document(None),
        }
    }
}

/// Accepts connections, for ever.
pub(super) async fn serve(acceptor: &Acceptor, service: Arc<AdminService>) {
    loop {
        match acceptor.accept().await {
            Ok(stream) => {
                service.slots.seat(|slot| tokio::spawn(service.clone().serve_connection(stream, slot)));
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

fn document(document: Option<String>) -> Page {
    match document {
        Some(document) => Page::new(StatusCode::OK, "application/json", document),
        None => Page::say(StatusCode::NOT_FOUND, "no such page; see /\n"),
    }
}

/// Of a head, as hyper tells it, or of a write ([`WriteTimeout`]).
fn is_timeout(error: &hyper::Error) -> bool {
    let io = error.source().and_then(|source| source.downcast_ref::<io::Error>());
    error.is_timeout() || io.is_some_and(|error| error.kind() == io::ErrorKind::TimedOut)
}
