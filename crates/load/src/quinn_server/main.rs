//! `expressway-quinn`: a file server over HTTP/3 on quinn and h3, for comparison. It is a peer, not a part of the product.
//!
//! It has one thread. Files are read once, and sent as reference-counted chunks, whole or as a single range. It prints
//! `ready` when it listens, and ends on a signal.

mod files;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clap::Parser;
use h3::server::RequestStream;
use h3_quinn::BidiStream;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::task::LocalSet;

use files::Files;

/// Requests at once on a connection, as all servers of the benchmarks have.
const MAX_REQUESTS: u32 = 128;

/// Bytes of a body that are handed to QUIC at once.
const CHUNK: usize = 256 << 10;

/// HTTP/3 file server on quinn and h3.
#[derive(Parser)]
#[command(name = "expressway-quinn", version = concat!(env!("CARGO_PKG_VERSION"), " (quinn 0.11, h3 0.0.8)"))]
struct Arguments {
    /// Address and port.
    #[arg(long)]
    listen: SocketAddr,
    /// PEM file of the certificate chain.
    #[arg(long)]
    certificate: PathBuf,
    /// PEM file of the private key.
    #[arg(long)]
    key: PathBuf,
    /// Folder to serve.
    #[arg(long)]
    root: PathBuf,
}

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("expressway-quinn: {error}");
            return ExitCode::FAILURE;
        }
    };
    match LocalSet::new().block_on(&runtime, serve(arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("expressway-quinn: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(arguments: Arguments) -> Result<(), Failure> {
    let endpoint = quinn::Endpoint::server(config(&arguments)?, arguments.listen)?;
    let files = Rc::new(Files::new(arguments.root));
    println!("ready listen={}", arguments.listen);
    while let Some(incoming) = endpoint.accept().await {
        let files = files.clone();
        tokio::task::spawn_local(async move {
            // A connection that fails is its client's business: the load generator counts it.
            let _ = connection(incoming, files).await;
        });
    }
    Ok(())
}

fn config(arguments: &Arguments) -> Result<quinn::ServerConfig, Failure> {
    let chain = CertificateDer::pem_file_iter(&arguments.certificate)
        .and_then(|chain| chain.collect::<Result<Vec<_>, _>>())
        .map_err(|error| format!("{}: {error}", arguments.certificate.display()))?;
    let key = PrivateKeyDer::from_pem_file(&arguments.key)
        .map_err(|error| format!("{}: {error}", arguments.key.display()))?;
    let mut tls =
        rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
    tls.alpn_protocols = vec![b"h3".to_vec()];
    let quic = quinn::crypto::rustls::QuicServerConfig::try_from(tls)?;
    let mut transport = quinn::TransportConfig::default();
    transport.max_concurrent_bidi_streams(MAX_REQUESTS.into());
    transport.max_idle_timeout(Some(Duration::from_secs(300).try_into()?));
    let mut config = quinn::ServerConfig::with_crypto(Arc::new(quic));
    config.transport_config(Arc::new(transport));
    Ok(config)
}

async fn connection(incoming: quinn::Incoming, files: Rc<Files>) -> Result<(), Failure> {
    let quic = h3_quinn::Connection::new(incoming.await?);
    let mut http = h3::server::builder().send_grease(false).build::<_, Bytes>(quic).await?;
    while let Some(resolver) = http.accept().await? {
        let files = files.clone();
        tokio::task::spawn_local(async move {
            if let Ok((request, stream)) = resolver.resolve_request().await {
                let _ = answer(&request, stream, &files).await;
            }
        });
    }
    Ok(())
}

async fn answer(
    request: &http::Request<()>,
    mut stream: RequestStream<BidiStream<Bytes>, Bytes>,
    files: &Files,
) -> Result<(), Failure> {
    let range = request.headers().get(http::header::RANGE).and_then(|range| range.to_str().ok());
    let answer = files.answer(request.uri().path(), range);
    let mut head = http::Response::builder().status(answer.status);
    head = head.header(http::header::CONTENT_LENGTH, answer.body.len());
    if let Some(range) = answer.content_range {
        head = head.header(http::header::CONTENT_RANGE, range);
    }
    stream.send_response(head.body(())?).await?;
    let mut left = answer.body;
    while !left.is_empty() {
        let chunk = left.split_to(left.len().min(CHUNK));
        stream.send_data(chunk).await?;
    }
    stream.finish().await?;
    // A stream that is dropped before the client's end of it was read is stopped, which curl takes for an error.
    while stream.recv_data().await?.is_some() {}
    Ok(())
}
