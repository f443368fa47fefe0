//! Connections to a server: TCP or a Unix socket, with TLS or without, HTTP/1.1 or HTTP/2.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use boring::ssl::SslConnector;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::failure::{Failed, Reason, chain};
use crate::server::Server;
use crate::stats::count;
use crate::upload::UploadBody;
use crate::{OriginOptions, Protocol, Site, tls};

/// When the next address is tried while the one before has not answered (RFC 8305, section 5).
const HEAD_START: Duration = Duration::from_millis(250);

/// Header fields of a response.
const MAX_FIELDS: usize = 128;

/// Octets that an HTTP/2 origin may send of one response, and of all of a connection's, before they are taken.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 2 << 20;

/// What a connection runs over.
trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// A connection on which requests can be sent.
pub(crate) enum Sender {
    Http1(http1::SendRequest<UploadBody>),
    H2(http2::SendRequest<UploadBody>),
}

/// How connections to an origin's servers are made.
pub(crate) struct Connector {
    tls: Option<SslConnector>,
}

impl Connector {
    /// Reads certificates.
    pub(crate) fn new(options: &OriginOptions) -> Result<Self, String> {
        Ok(Self { tls: tls::connector(options)? })
    }

    /// A new connection. Nothing here ends by itself: the caller bounds the time.
    /// With it, whom it leads to unless that is a Unix socket.
    pub(crate) async fn open(
        &self,
        server: &Arc<Server>,
        options: &OriginOptions,
    ) -> Result<(Sender, Option<SocketAddr>), Failed> {
        let refused = |error: io::Error| Failed::unsent(Reason::Connect, error);
        let mut peer = None;
        let stream: Box<dyn Io> = match &server.endpoint.site {
            Site::Unix(path) => Box::new(UnixStream::connect(path).await.map_err(refused)?),
            Site::Tcp { .. } => {
                let addresses = match &server.addresses {
                    Some(addresses) => addresses.current().await?,
                    None => Arc::default(),
                };
                let stream = dial(&addresses).await.map_err(refused)?;
                stream.set_nodelay(true).map_err(refused)?;
                peer = Some(stream.peer_addr().map_err(refused)?);
                Box::new(stream)
            }
        };
        let (stream, is_h2) = match &self.tls {
            Some(connector) if server.endpoint.tls => {
                let name = tls::server_name(options, &server.endpoint);
                let broken = |error: &dyn std::error::Error| Failed::unsent(Reason::Tls, chain(error));
                let configuration = connector.configure().map_err(|error| broken(&error))?;
                let stream = tokio_boring::connect(configuration, name, stream)
                    .await
                    .map_err(|error| Failed::unsent(Reason::Tls, format!("{name}: {error}")))?;
                let alpn = stream.ssl().selected_alpn_protocol();
                let is_h2 = alpn == Some(b"h2") || alpn.is_none() && options.protocol == Protocol::H2;
                (Box::new(stream) as Box<dyn Io>, is_h2)
            }
            _ => (stream, options.protocol == Protocol::H2),
        };
        Ok((handshake(stream, is_h2, server, options).await?, peer))
    }
}

async fn handshake(
    stream: Box<dyn Io>,
    is_h2: bool,
    server: &Arc<Server>,
    options: &OriginOptions,
) -> Result<Sender, Failed> {
    let broken = |error: hyper::Error| Failed::unsent(Reason::Connect, chain(&error));
    let open = Open::new(server);
    let sender = if is_h2 {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(u32::try_from(options.limits.head).unwrap_or(u32::MAX))
            .max_send_buf_size(STREAM_WINDOW as usize)
            .keep_alive_interval(Duration::from_secs(20))
            .keep_alive_timeout(Duration::from_secs(10));
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(broken)?;
        tokio::spawn(async move {
            ended(connection.await, &open.0.name);
            drop(open);
        });
        Sender::H2(sender)
    } else {
        let mut builder = http1::Builder::new();
        builder
            .max_buf_size(options.limits.head)
            .max_header_size(options.limits.head)
            .max_headers(MAX_FIELDS);
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(broken)?;
        tokio::spawn(async move {
            ended(connection.await, &open.0.name);
            drop(open);
        });
        Sender::Http1(sender)
    };
    Ok(sender)
}

/// Requests on it have been told; what is idle and closed is a matter of course.
fn ended(result: hyper::Result<()>, server: &str) {
    if let Err(error) = result {
        tracing::debug!(server, error = chain(&error), "a connection to an origin failed");
    }
}

/// A connection that is open, for the metrics.
struct Open(Arc<Server>);

impl Open {
    fn new(server: &Arc<Server>) -> Self {
        count(&server.stats.open);
        count(&server.stats.connections);
        Self(Arc::clone(server))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.stats.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The first of the addresses that accepts; the next is tried when one has failed, or has not answered for a while.
async fn dial(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let mut left = addresses.iter().copied();
    let mut attempts = JoinSet::new();
    let mut last = io::Error::new(io::ErrorKind::NotFound, "no address");
    if let Some(address) = left.next() {
        attempts.spawn(TcpStream::connect(address));
    }
    while !attempts.is_empty() {
        let next = tokio::select! {
            joined = attempts.join_next() => match joined {
                Some(Ok(Ok(stream))) => return Ok(stream),
                Some(Ok(Err(error))) => { last = error; left.next() }
                Some(Err(error)) => { last = io::Error::other(error); left.next() }
                None => left.next(),
            },
            () = sleep(HEAD_START), if left.len() > 0 => left.next(),
        };
        if let Some(address) = next {
            attempts.spawn(TcpStream::connect(address));
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_address_that_refuses_or_is_silent_is_passed_over() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let good = listener.local_addr().unwrap();
        let refusing = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        // One that has as many connections as it takes answers no more.
        let full = tokio::net::TcpSocket::new_v4().unwrap();
        full.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let full = full.listen(0).unwrap();
        let silent = full.local_addr().unwrap();
        let _first = TcpStream::connect(silent).await.unwrap();
        let stream = dial(&[refusing, silent, good]).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), good);
        assert_eq!(dial(&[refusing]).await.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        assert!(dial(&[]).await.is_err());
    }
}
