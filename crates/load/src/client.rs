//! HTTP/3 connections to one server.

use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use h3_quinn::OpenStreams;
use rustls::pki_types::pem::PemObject;

use crate::count::Count;

/// Receive windows large enough that flow control never limits a benchmark on a local link.
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 64 << 20;

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
    pub(crate) fn new(ca: &Path, server: SocketAddr, name: String, path: String) -> Result<Self, LoadError> {
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
        let mut endpoint = quinn::Endpoint::client(local)?;
        endpoint.set_default_client_config(config);
        Ok(Self { endpoint, server, name, path })
    }

    pub(crate) async fn connect(&self) -> Result<Connection, LoadError> {
        let refused = |error: String| LoadError::Connect(self.server, error);
        let connecting =
            self.endpoint.connect(self.server, &self.name).map_err(|e| refused(e.to_string()))?;
        let quic = connecting.await.map_err(|e| refused(e.to_string()))?;
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
    /// One request after another until the task is dropped; a failed one is counted and the next begins.
    pub(crate) async fn ask_forever(mut self, count: Rc<Count>) {
        loop {
            let started = Instant::now();
            match self.ask(&count).await {
                Ok(()) => count.done(started.elapsed()),
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

    async fn ask(&mut self, count: &Count) -> Result<(), String> {
        let request = http::Request::get(&*self.uri).body(()).map_err(|e| e.to_string())?;
        let mut stream = self.requests.send_request(request).await.map_err(|e| e.to_string())?;
        stream.finish().await.map_err(|e| e.to_string())?;
        let response = stream.recv_response().await.map_err(|e| e.to_string())?;
        if !response.status().is_success() {
            return Err(format!("status {}", response.status()));
        }
        while let Some(chunk) = stream.recv_data().await.map_err(|e| e.to_string())? {
            count.body(chunk.remaining());
        }
        Ok(())
    }
}

/// Datagrams and UDP payload bytes received so far, over all connections.
pub(crate) fn udp_received(connections: &[Connection]) -> (u64, u64) {
    connections
        .iter()
        .map(|connection| connection.quic.stats().udp_rx)
        .fold((0, 0), |(datagrams, bytes), udp| (datagrams + udp.datagrams, bytes + udp.bytes))
}
