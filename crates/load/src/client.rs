//! HTTP/3 connections to one server.

use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes};
use h3_quinn::OpenStreams;
use rustix::net::sockopt;
use rustls::pki_types::pem::PemObject;

use crate::count::Count;
use crate::request::Requests;

/// Receive windows: more than a local link holds, so that the server always may send, and all in all less than
/// the socket's buffer holds. A client that falls behind so slows the server down and loses nothing: losses
/// would measure congestion control, and whose luck it was.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 2 << 20;

/// Bytes of socket buffer for each connection: the kernel counts the memory of packets, about twice their bytes.
const SOCKET_BUFFER: usize = 3 * CONNECTION_WINDOW as usize;

/// Handshakes that are begun for one connection at most.
const ATTEMPTS: usize = 3;

/// Connections beyond which the buffer does not grow: many connections hold little each.
const MAX_BUFFERED: usize = 16;

/// Why the load could not run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    #[error("{0}: {1}")]
    Certificate(String, String),
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
    #[error("socket: {0}")]
    Socket(#[from] std::io::Error),
    #[error("connect to {0}: {1}")]
    Connect(SocketAddr, String),
    #[error("the certificate did not change within {0} s")]
    SameCertificate(u64),
    #[error("report: {0}")]
    Report(#[from] serde_json::Error),
}

/// What all connections share.
pub(crate) struct Client {
    endpoint: quinn::Endpoint,
    server: SocketAddr,
    name: String,
    path: String,
}

impl Client {
    /// For up to `connections` of them.
    pub(crate) fn new(
        ca: &Path,
        server: SocketAddr,
        name: String,
        path: String,
        connections: usize,
    ) -> Result<Self, LoadError> {
        let bad = |error: String| LoadError::Certificate(ca.display().to_string(), error);
        let mut roots = rustls::RootCertStore::empty();
        let authorities =
            rustls::pki_types::CertificateDer::pem_file_iter(ca).map_err(|e| bad(e.to_string()))?;
        for certificate in authorities {
            roots.add(certificate.map_err(|e| bad(e.to_string()))?).map_err(|e| bad(e.to_string()))?;
        }
        let mut provider = rustls::crypto::ring::default_provider();
        // One cipher suite, so that no server looks faster by having chosen a cheaper one.
        provider.cipher_suites.retain(|suite| suite.suite() == rustls::CipherSuite::TLS13_AES_128_GCM_SHA256);
        let provider = Arc::new(provider);
        let mut tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(roots)
            .with_no_client_auth();
        tls.alpn_protocols = vec![b"h3".to_vec()];
        let quic = quinn::crypto::rustls::QuicClientConfig::try_from(tls).map_err(|e| bad(e.to_string()))?;
        let mut config = quinn::ClientConfig::new(Arc::new(quic));
        config.transport_config(Arc::new(transport()));
        let local: SocketAddr = if server.is_ipv4() {
            ([0, 0, 0, 0], 0).into()
        } else {
            (std::net::Ipv6Addr::UNSPECIFIED, 0).into()
        };
        let mut endpoint = quinn::Endpoint::new(
            quinn::EndpointConfig::default(),
            None,
            socket(local, connections)?,
            Arc::new(quinn::TokioRuntime),
        )?;
        endpoint.set_default_client_config(config);
        Ok(Self { endpoint, server, name, path })
    }

    pub(crate) async fn connect(&self) -> Result<Connection, LoadError> {
        let refused = |error: String| LoadError::Connect(self.server, error);
        let mut attempts = 1;
        let quic = loop {
            let connecting =
                self.endpoint.connect(self.server, &self.name).map_err(|e| refused(e.to_string()))?;
            match connecting.await {
                Ok(quic) => break quic,
                Err(error) if attempts < ATTEMPTS && dislikes_parameters(&error) => {
                    eprintln!("expressway-load: {}: {error}; retrying", self.server);
                    attempts += 1;
                }
                Err(error) => return Err(refused(error.to_string())),
            }
        };
        let (mut driver, requests) = h3::client::builder()
            .send_grease(false)
            .build::<_, _, Bytes>(h3_quinn::Connection::new(quic.clone()))
            .await
            .map_err(|e| refused(e.to_string()))?;
        tokio::task::spawn_local(async move { driver.wait_idle().await });
        let uri = format!("https://{}{}", self.name, self.path);
        Ok(Connection { quic, requests, uri: Rc::from(uri) })
    }
}

/// The server found our transport parameters wrong. They are in another order in each connection, with a reserved one of
/// random content among them (RFC 9000, section 18.1), and nginx 1.28 refuses one in some thousands.
fn dislikes_parameters(error: &quinn::ConnectionError) -> bool {
    matches!(error, quinn::ConnectionError::ConnectionClosed(close)
        if close.error_code == quinn::TransportErrorCode::TRANSPORT_PARAMETER_ERROR)
}

fn socket(local: SocketAddr, connections: usize) -> Result<UdpSocket, LoadError> {
    let socket = UdpSocket::bind(local)?;
    let wanted = connections.clamp(1, MAX_BUFFERED).saturating_mul(SOCKET_BUFFER);
    // Beyond net.core.rmem_max only root may go; another user gets that much.
    if sockopt::set_socket_recv_buffer_size_force(&socket, wanted).is_err() {
        sockopt::set_socket_recv_buffer_size(&socket, wanted).map_err(std::io::Error::from)?;
    }
    Ok(socket)
}

fn transport() -> quinn::TransportConfig {
    let mut transport = quinn::TransportConfig::default();
    transport
        .stream_receive_window(STREAM_WINDOW.into())
        .receive_window(CONNECTION_WINDOW.into())
        .keep_alive_interval(Some(Duration::from_secs(10)));
    transport
}

/// One connection; clones share it.
#[derive(Clone)]
pub(crate) struct Connection {
    quic: quinn::Connection,
    requests: h3::client::SendRequest<OpenStreams, Bytes>,
    uri: Rc<str>,
}

impl Connection {
    /// Ends it with H3_NO_ERROR (RFC 9114, section 8.1).
    pub(crate) fn close(&self) {
        self.quic.close(0x100u32.into(), b"");
    }

    /// The server's leaf certificate, DER; empty if it has none.
    pub(crate) fn certificate(&self) -> Vec<u8> {
        let identity = self.quic.peer_identity();
        let chain = identity
            .and_then(|identity| identity.downcast::<Vec<rustls::pki_types::CertificateDer<'static>>>().ok());
        chain.and_then(|chain| chain.first().map(|leaf| leaf.to_vec())).unwrap_or_default()
    }

    /// One request after another until the task is dropped; a failed one is counted and the next begins.
    pub(crate) async fn ask_forever(mut self, requests: Rc<Requests>, count: Rc<Count>) {
        loop {
            let due = requests.next().await;
            match self.ask(due.range.as_deref(), &count).await {
                Ok(()) => count.done(due.at.elapsed()),
                Err(error) => {
                    count.failed(error);
                    if self.quic.close_reason().is_some() {
                        return;
                    }
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
        }
    }

    async fn ask(&mut self, range: Option<&str>, count: &Count) -> Result<(), String> {
        let mut request = http::Request::get(&*self.uri);
        if let Some(range) = range {
            request = request.header(http::header::RANGE, range);
        }
        let request = request.body(()).map_err(|e| e.to_string())?;
        let mut stream = self.requests.send_request(request).await.map_err(|e| e.to_string())?;
        stream.finish().await.map_err(|e| e.to_string())?;
        let response = stream.recv_response().await.map_err(|e| e.to_string())?;
        let expected = if range.is_some() { http::StatusCode::PARTIAL_CONTENT } else { http::StatusCode::OK };
        if response.status() != expected {
            return Err(format!("status {}", response.status()));
        }
        while let Some(chunk) = stream.recv_data().await.map_err(|e| e.to_string())? {
            count.body(chunk.remaining());
        }
        Ok(())
    }
}

/// One connection after another until the task is dropped: a handshake, a request, the end.
pub(crate) async fn connect_forever(client: Rc<Client>, requests: Rc<Requests>, count: Rc<Count>) {
    loop {
        let due = requests.next().await;
        let mut connection = match client.connect().await {
            Ok(connection) => connection,
            Err(error) => {
                count.failed(error.to_string());
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            }
        };
        count.connected();
        match connection.ask(due.range.as_deref(), &count).await {
            Ok(()) => count.done(due.at.elapsed()),
            Err(error) => count.failed(error),
        }
        let received = connection.quic.stats().udp_rx;
        count.closed(received.datagrams, received.bytes);
        connection.close();
    }
}

/// Datagrams and UDP payload bytes received so far, over all connections.
pub(crate) fn udp_received(connections: &[Connection]) -> (u64, u64) {
    connections
        .iter()
        .map(|connection| connection.quic.stats().udp_rx)
        .fold((0, 0), |(datagrams, bytes), udp| (datagrams + udp.datagrams, bytes + udp.bytes))
}
