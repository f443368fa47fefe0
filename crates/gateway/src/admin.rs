//! The admin listener: metrics, health and the configuration in force, over HTTP/1.1.
//!
//! It runs on a thread of its own, never on a worker, and answers from shared counters only.

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::{Semaphore, oneshot};

use crate::metrics::{self, Registry};

/// Connections served at once; more wait in the listen queue.
const MAX_CONNECTIONS: usize = 64;

/// How long a client may take to send its request head.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

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

    /// Statistics of each subscriber, as a JSON document, for `/subscribers`; `None` where there is no such page.
    fn subscribers(&self) -> Option<String> {
        None
    }
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
    pub fn start(address: SocketAddr, registry: Registry, state: Arc<dyn State>) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new().name("expressway-admin".into()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    result = serve(listener, registry, state) => {
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

async fn serve(listener: TcpListener, registry: Registry, state: Arc<dyn State>) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(slot) = slots.clone().acquire_owned().await else { return Ok(()) };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // EMFILE and the like pass; do not spin meanwhile.
                tracing::warn!(%error, "admin: accept");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let (registry, state) = (registry.clone(), state.clone());
        tokio::spawn(async move {
            let service = service_fn(|request| {
                let response = answer(&request, &registry, state.as_ref());
                async move { Ok::<_, Infallible>(response) }
            });
            let result = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_TIMEOUT)
                .serve_connection(TokioIo::new(stream), service)
                .await;
            if let Err(error) = result {
                tracing::debug!(%error, "admin connection");
            }
            drop(slot);
        });
    }
}

fn answer(request: &Request<Incoming>, registry: &Registry, state: &dyn State) -> Response<Full<Bytes>> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut response = page(StatusCode::METHOD_NOT_ALLOWED, "text/plain", "GET or HEAD only\n".into());
        response.headers_mut().insert(header::ALLOW, header::HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    match request.uri().path() {
        "/metrics" => page(StatusCode::OK, metrics::CONTENT_TYPE, registry.page()),
        "/healthz" => match state.health() {
            Ok(()) => page(StatusCode::OK, "text/plain", "ok\n".into()),
            Err(why) => page(StatusCode::SERVICE_UNAVAILABLE, "text/plain", why + "\n"),
        },
        "/config" => page(StatusCode::OK, "text/plain; charset=utf-8", state.configuration()),
        "/io" => document(state.io()),
        "/subscribers" => document(state.subscribers()),
        "/" => page(StatusCode::OK, "text/plain", "/metrics\n/healthz\n/config\n/io\n/subscribers\n".into()),
        _ => document(None),
    }
}

fn document(document: Option<String>) -> Response<Full<Bytes>> {
    match document {
        Some(document) => page(StatusCode::OK, "application/json", document),
        None => page(StatusCode::NOT_FOUND, "text/plain", "no such page; see /\n".into()),
    }
}

fn page(status: StatusCode, content_type: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(content_type));
    response.headers_mut().insert(header::CACHE_CONTROL, header::HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    struct Fixed(AtomicBool);

    impl State for Fixed {
        fn health(&self) -> Result<(), String> {
            if self.0.load(Ordering::Relaxed) { Ok(()) } else { Err("draining".into()) }
        }
        fn configuration(&self) -> String {
            "[server]\n".into()
        }
        fn io(&self) -> Option<String> {
            Some("{}\n".into())
        }
    }

    fn ask(address: SocketAddr, head: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream
            .write_all(format!("{head} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").as_bytes())
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn pages_answer_and_health_follows_the_state() {
        let registry = Registry::default();
        registry.register(|out: &mut Vec<metrics::Sample>| out.push(metrics::Sample::counter("x", "X.", 1)));
        let state = Arc::new(Fixed(AtomicBool::new(true)));
        let admin = Admin::start("127.0.0.1:0".parse().unwrap(), registry, state.clone()).unwrap();
        let address = admin.address();
        assert!(ask(address, "GET /metrics").contains("expressway_x_total 1"));
        assert!(ask(address, "GET /healthz").starts_with("HTTP/1.1 200"));
        state.0.store(false, Ordering::Relaxed);
        let ill = ask(address, "GET /healthz");
        assert!(ill.starts_with("HTTP/1.1 503") && ill.ends_with("draining\n"), "{ill}");
        assert!(ask(address, "GET /config").ends_with("[server]\n"));
        let io = ask(address, "GET /io");
        assert!(io.contains("application/json") && io.ends_with("{}\n"), "{io}");
        assert!(ask(address, "GET /nothing").starts_with("HTTP/1.1 404"));
        let refused = ask(address, "DELETE /metrics");
        assert!(refused.starts_with("HTTP/1.1 405") && refused.contains("allow: GET, HEAD"), "{refused}");
        drop(admin);
        assert!(TcpStream::connect(address).is_err(), "the listener outlived its handle");
    }
}
