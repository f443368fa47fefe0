//! A minimal HTTPS client for ACME: one connection per request, HTTP/1.1, bounded in time and size.

use std::error::Error as StdError;
use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::time::Duration;

use boring::ssl::{SslConnector, SslMethod};
use boring::x509::X509;
use boring::x509::store::X509StoreBuilder;
use bytes::Bytes;
use http::header::HOST;
use http::{HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use tokio::net::TcpStream;

use crate::store::StoreError;

/// For a request, from the lookup of the name to the last octet.
const TIME: Duration = Duration::from_secs(30);

/// Octets of a response at most.
const MAX_RESPONSE: usize = 1 << 20;

type Failure = Box<dyn StdError + Send + Sync>;

/// Trusts the system's authorities, or those of a file instead.
#[derive(Clone)]
pub(crate) struct Client {
    connector: SslConnector,
}

impl Client {
    pub(crate) fn new(authorities: Option<&Path>) -> Result<Self, StoreError> {
        let mut connector = SslConnector::builder(SslMethod::tls())?;
        if let Some(path) = authorities {
            let pem = crate::store::read(path)?;
            let mut store = X509StoreBuilder::new()?;
            for authority in X509::stack_from_pem(&pem)? {
                store.add_cert(&authority)?;
            }
            connector.set_cert_store_builder(store);
        }
        Ok(Self { connector: connector.build() })
    }

    async fn send(self, request: Request<BodyWrapper<Bytes>>) -> Result<BytesResponse, Failure> {
        let (mut parts, body) = request.into_parts();
        let uri = parts.uri.clone();
        let host = uri.host().ok_or("a URL without a host")?;
        if uri.scheme_str() != Some("https") {
            return Err(format!("{uri}: not https").into());
        }
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let stream = TcpStream::connect((bare, uri.port_u16().unwrap_or(443)))
            .await
            .map_err(|error| format!("{host}: {error}"))?;
        let configuration = self.connector.configure()?;
        let stream = tokio_boring::connect(configuration, bare, stream)
            .await
            .map_err(|error| format!("{host}: TLS: {error}"))?;
        let authority = uri.authority().ok_or("a URL without a host")?;
        parts.headers.insert(HOST, HeaderValue::try_from(authority.as_str())?);
        parts.uri = uri.path_and_query().map_or("/", |target| target.as_str()).parse()?;
        let body = body.collect().await.map_err(|never| match never {})?.to_bytes();
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let exchange = async {
            let response = sender.send_request(Request::from_parts(parts, Full::new(body))).await?;
            let (parts, body) = response.into_parts();
            let body = Limited::new(body, MAX_RESPONSE).collect().await?.to_bytes();
            // Lets the connection end.
            drop(sender);
            Ok::<_, Failure>(Response::from_parts(parts, Full::new(body)))
        };
        let (response, _) = tokio::join!(exchange, connection);
        Ok(BytesResponse::from(response?))
    }
}

impl HttpClient for Client {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let client = self.clone();
        Box::pin(async move {
            match tokio::time::timeout(TIME, client.send(request)).await {
                Ok(result) => result.map_err(Error::Other),
                Err(_) => Err(Error::Other("the authority does not answer within 30 s".into())),
            }
        })
    }
}
