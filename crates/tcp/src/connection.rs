//! A connection from its first byte to its last.

use std::error::Error;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use boring::ssl::Ssl;
use expressway_tls::ACME_TLS_ALPN;
use expressway_web::Scheme;
use expressway_web::memory::Memory;
use hyper::rt::Executor;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::TokioIo;
use tokio::time::{Instant, Sleep, sleep_until, timeout_at};
use tokio_boring::SslStreamBuilder;

use crate::connections::{ConnectionPermit, Told};
use crate::listener::{Listen, Role};
use crate::proxy;
use crate::request::MAX_FIELDS;
use crate::service::Service;
use crate::setup::Limits;
use crate::stats::{Refusal, add};
use crate::transaction::Tls;
use crate::turn::in_turns;
use crate::watch::{Verdict, Watch};
use crate::wire::{Records, Stream, Transport, Wire};
use crate::worker::Shared;

/// Octets of a body that HTTP/2 lets a client send before they are read.
pub(crate) const STREAM_WINDOW: u32 = 128 << 10;

/// The same of all bodies of a connection.
const CONNECTION_WINDOW: u32 = 256 << 10;

/// The window that every connection begins with (RFC 9113, section 6.9.2): the least that it can have.
pub(crate) const FIRST_WINDOW: u32 = 65_535;

/// Octets of a stream that hyper takes beyond what the client takes.
const SEND_BUFFER: usize = 64 << 10;

/// Octets of a connection that hyper keeps for reading, and for writing, over HTTP/1.
const BUFFER: usize = 128 << 10;

/// Streams that were reset and of which the client may still speak, and those that it reset before they were looked at.
/// More end the connection (CVE-2023-44487).
const LOCAL_RESETS: usize = 128;
const REMOTE_RESETS: usize = 32;

/// Octets beyond `max_header` that a request's lines may have over HTTP/1, so that those that are too large are mostly
/// answered and logged like over other protocols.
const LINES: usize = 16 << 10;

/// A connection with everything that comes before HTTP.
struct Opened {
    transport: Transport,
    remote: SocketAddr,
    tls: Tls,
    is_h2: bool,
}

/// Serves a connection until it is over.
pub(crate) async fn run(
    worker: Arc<Shared>,
    permit: ConnectionPermit,
    stream: Stream,
    remote: SocketAddr,
    listen: Arc<Listen>,
) {
    let setup = worker.setup.load_full();
    let limits = setup.limits;
    let signal = Arc::clone(&permit.signal);
    let told = poll_fn(|context| {
        signal.alarm().set(context.waker());
        if signal.told() < Told::Finish { Poll::Pending } else { Poll::Ready(()) }
    });
    let opening = timeout_at(
        Instant::now() + limits.handshake_timeout,
        open(&worker, stream, remote, &listen, &setup.tls),
    );
    let opened = tokio::select! {
        () = told => return,
        opened = opening => match opened {
            Ok(Ok(Some(opened))) => opened,
            Ok(Ok(None)) => return,
            Ok(Err(refusal)) => return worker.stats.refuse(refusal),
            Err(_) => return worker.stats.refuse(Refusal::HandshakeTimeout),
        },
    };
    drop(setup);
    let Opened { transport, remote, tls, is_h2 } = opened;
    let _guest = match limits.max_connections_per_address {
        0 => None,
        most => match worker.addresses.enter(remote, most) {
            Some(guest) => Some(guest),
            None => return worker.stats.refuse(Refusal::Address),
        },
    };
    let watch = Watch::new(&worker, remote, limits, is_h2, permit);
    let (handler, alt_svc, scheme) = match &listen.role {
        Role::Tls(alt_svc) => (None, alt_svc.clone(), Scheme::Https),
        Role::Plain => (None, None, Scheme::Http),
        Role::Other(handler) => (Some(Arc::clone(handler)), None, Scheme::Http),
    };
    let service = Service { watch: Arc::clone(&watch), scheme, tls, handler, alt_svc };
    let io = TokioIo::new(Wire::new(transport, Arc::clone(&watch)));
    let end = if is_h2 {
        let connection = h2(&limits, &watch).serve_connection(io, service);
        drive(pin!(connection), &watch, |connection| connection.graceful_shutdown()).await
    } else {
        let connection = h1(&limits).serve_connection(io, service);
        drive(pin!(connection), &watch, |connection| connection.graceful_shutdown()).await
    };
    watch.abandon();
    match end {
        Ok(()) => {}
        Err(End::Limit(refusal)) => {
            tracing::debug!(%remote, reason = refusal.as_str(), "connection ended");
            worker.stats.refuse(refusal);
        }
        Err(End::Http(error)) => {
            tracing::debug!(%remote, %error, "connection");
            if let Some(refusal) = refusal(&error) {
                worker.stats.refuse(refusal);
            }
        }
    }
}

/// Reads the PROXY header and shakes hands. Nothing: it was for the handshake alone.
async fn open(
    worker: &Shared,
    mut stream: Stream,
    mut remote: SocketAddr,
    listen: &Listen,
    context: &boring::ssl::SslContext,
) -> Result<Option<Opened>, Refusal> {
    if let Some(trusted) = &listen.proxy
        && (matches!(stream, Stream::Unix(_))
            || trusted.iter().any(|network| network.contains(&remote.ip().to_canonical())))
    {
        match proxy::read(&mut stream).await {
            Ok(client) => remote = client.unwrap_or(remote),
            Err(error) => {
                tracing::debug!(%remote, %error, "PROXY header");
                return Err(Refusal::Proxy);
            }
        }
    }
    if !matches!(listen.role, Role::Tls(_)) {
        let transport = Transport::Plain(stream);
        return Ok(Some(Opened { transport, remote, tls: Tls::default(), is_h2: false }));
    }
    let ssl = Ssl::new(context).map_err(|_| Refusal::Handshake)?;
    let stream = SslStreamBuilder::new(ssl, Records::new(stream)).accept().await.map_err(|error| {
        tracing::debug!(%remote, %error, "TLS handshake");
        Refusal::Handshake
    })?;
    let ssl = stream.ssl();
    let version = ssl.version_str();
    let cipher = ssl.current_cipher().and_then(|cipher| cipher.standard_name()).unwrap_or("");
    let protocol = ssl.selected_alpn_protocol();
    if protocol == Some(ACME_TLS_ALPN) {
        // The authority's server has what it wanted to see (RFC 8737, section 3).
        return Ok(None);
    }
    let is_h2 = protocol == Some(b"h2");
    let subject = expressway_tls::peer_subject(ssl).map(Arc::from);
    add(&worker.stats.handshakes[usize::from(version == "TLSv1.3")], 1);
    let tls = Tls { version, cipher, subject };
    Ok(Some(Opened { transport: Transport::Tls(Box::new(stream)), remote, tls, is_h2 }))
}

fn h1(limits: &Limits) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .header_read_timeout(None)
        .max_headers(2 * MAX_FIELDS)
        .max_header_size(limits.max_header + LINES)
        .max_buf_size(BUFFER.max(limits.max_header + LINES))
        .writev(true)
        .auto_date_header(false);
    builder
}

/// Octets of all bodies of an HTTP/2 connection that a client may send before they are read: the least where memory is scarce.
pub(crate) fn window(memory: &Memory) -> u32 {
    if memory.share() < CONNECTION_WINDOW as usize { FIRST_WINDOW } else { CONNECTION_WINDOW }
}

fn h2(limits: &Limits, watch: &Arc<Watch>) -> http2::Builder<Tasks> {
    let window = watch.window;
    let mut builder = http2::Builder::new(Tasks(Arc::clone(watch)));
    builder
        .initial_stream_window_size(STREAM_WINDOW.min(window))
        .initial_connection_window_size(window)
        .max_concurrent_streams(limits.max_requests)
        .max_header_list_size(u32::try_from(2 * limits.max_header).unwrap_or(u32::MAX))
        .max_send_buf_size(SEND_BUFFER)
        .max_pending_accept_reset_streams(REMOTE_RESETS)
        .max_local_error_reset_streams(LOCAL_RESETS)
        .auto_date_header(false);
    builder
}

/// Starts the tasks of an HTTP/2 connection's streams, each known to the watch, which may have to end one.
#[derive(Clone)]
struct Tasks(Arc<Watch>);

impl<F> Executor<F> for Tasks
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn execute(&self, task: F) {
        let task = in_turns(Arc::clone(&self.0.worker.stats), task);
        self.0.adopt(tokio::spawn(task).abort_handle());
    }
}

/// Why a connection is over before its client ended it.
enum End {
    Limit(Refusal),
    Http(hyper::Error),
}

/// Polls a connection of hyper's until it is over, or its client has had enough of it.
async fn drive<C>(mut connection: Pin<&mut C>, watch: &Watch, finish: fn(Pin<&mut C>)) -> Result<(), End>
where
    C: Future<Output = hyper::Result<()>>,
{
    let mut sleep = pin!(sleep_until(Instant::now()));
    let mut is_finishing = false;
    poll_fn(|context| {
        watch.permit().signal.alarm().set(context.waker());
        let told = watch.permit().signal.told();
        // Over HTTP/1.1 the next response says it: a client whose idle connection is closed may be asking at the moment.
        let least = if watch.is_h2 { Told::Retire } else { Told::Finish };
        if told >= least && !is_finishing {
            is_finishing = true;
            watch.close();
            finish(connection.as_mut());
        }
        loop {
            if let Poll::Ready(result) = connection.as_mut().poll(context) {
                // What came of being refused is not why.
                let end = |error| watch.doomed().map_or(End::Http(error), End::Limit);
                return Poll::Ready(result.map_err(end));
            }
            match watch.check(Instant::now()) {
                Verdict::End(None) => return Poll::Ready(Ok(())),
                Verdict::End(Some(refusal)) => return Poll::Ready(Err(End::Limit(refusal))),
                Verdict::Finish => {
                    is_finishing = true;
                    finish(connection.as_mut());
                }
                Verdict::Until(next) => return poll_sleep(sleep.as_mut(), next, context).map(Ok),
            }
        }
    })
    .await
}

/// Has the task polled by `next` at the latest. A timer that rings earlier is left alone.
fn poll_sleep(mut sleep: Pin<&mut Sleep>, next: Instant, context: &mut Context<'_>) -> Poll<()> {
    if sleep.is_elapsed() || sleep.deadline() > next {
        sleep.as_mut().reset(next);
    }
    if sleep.poll(context).is_ready() {
        context.waker().wake_by_ref();
    }
    Poll::Pending
}

/// What an error of hyper's is counted as; those of a client that went away are none.
fn refusal(error: &hyper::Error) -> Option<Refusal> {
    if error.is_parse_too_large() {
        return Some(Refusal::HeaderSize);
    }
    if error.is_parse() {
        return Some(Refusal::Malformed);
    }
    // HTTP/2: connections that we ended, and why.
    let error = error.source()?.downcast_ref::<h2::Error>().filter(|error| error.is_library())?;
    match error.reason()? {
        h2::Reason::NO_ERROR => None,
        h2::Reason::ENHANCE_YOUR_CALM => Some(Refusal::Flood),
        _ => Some(Refusal::Malformed),
    }
}
