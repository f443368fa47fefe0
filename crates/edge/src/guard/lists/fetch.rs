//! Fetches a list over HTTP/1.1: one connection per request, conditional, bounded in time and bytes.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use boring::ssl::{SslConnector, SslMethod, SslVersion};
use boring::x509::X509;
use boring::x509::store::X509StoreBuilder;
use bytes::Bytes;
use http::header::{
    ACCEPT_ENCODING, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, ETAG, HOST, IF_MODIFIED_SINCE,
    IF_NONE_MATCH, LAST_MODIFIED, LOCATION, TRANSFER_ENCODING, USER_AGENT,
};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// Redirections that are followed.
const REDIRECTIONS: usize = 5;

/// Octets of a validator that are kept; a longer one is left out, and the list fetched whole each time.
const VALIDATOR: usize = 512;

/// Octets of a URL.
const URL: usize = 900;

/// Where a list is fetched from: `https`, or `http` where whoever is in between is trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url(Uri);

impl Url {
    fn is_secure(&self) -> bool {
        self.0.scheme_str() == Some("https")
    }

    fn host(&self) -> &str {
        self.0.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']')
    }

    fn port(&self) -> u16 {
        self.0.port_u16().unwrap_or(if self.is_secure() { 443 } else { 80 })
    }

    /// What a `Location` of this one means. Never from https to http.
    fn redirected(&self, location: &str) -> Result<Self, String> {
        let absolute = match location {
            path if path.starts_with('/') && !path.starts_with("//") => {
                let authority = self.0.authority().map_or("", |authority| authority.as_str());
                format!("{}://{authority}{path}", self.0.scheme_str().unwrap_or_default())
            }
            url => url.to_owned(),
        };
        let next: Self = absolute.parse().map_err(|problem| format!("redirection: {problem}"))?;
        if self.is_secure() && !next.is_secure() {
            return Err(format!("redirects to {next}: from https to http is not followed"));
        }
        Ok(next)
    }
}

impl FromStr for Url {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not a URL, such as \"https://lists.example/blocked.txt\"");
        if text.len() > URL {
            return Err(format!("is longer than {URL} bytes"));
        }
        let uri: Uri = text.parse().map_err(|_| wrong())?;
        if !matches!(uri.scheme_str(), Some("http" | "https")) || uri.host().is_none_or(str::is_empty) {
            return Err(wrong());
        }
        if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            return Err(format!("`{text}`: a user in a URL is not supported"));
        }
        Ok(Self(uri))
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl PartialOrd for Url {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Url {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.to_string().cmp(&other.to_string())
    }
}

/// By which a server says whether a list has changed (RFC 9110, section 8.8).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Validators {
    pub(super) etag: Option<String>,
    pub(super) last_modified: Option<String>,
}

impl Validators {
    fn of(fields: &HeaderMap) -> Self {
        let text = |name: HeaderName| {
            let text = fields.get(name)?.to_str().ok()?;
            (text.len() <= VALIDATOR).then(|| text.to_owned())
        };
        Self { etag: text(ETAG), last_modified: text(LAST_MODIFIED) }
    }
}

/// What came of a request.
#[derive(Debug)]
pub(super) enum Fetched {
    /// It is the one with these validators.
    Same,
    /// Another.
    New(Vec<u8>, Validators),
}

/// Whom fetches trust.
#[derive(Clone)]
pub struct Connector(SslConnector);

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connector")
    }
}

impl Connector {
    /// Trusts the system's authorities, or those of a file instead.
    ///
    /// # Errors
    /// The file cannot be read or has no certificate.
    pub fn new(ca: Option<&Path>) -> Result<Self, String> {
        let failed = |error: boring::error::ErrorStack| format!("TLS: {error}");
        let mut builder = SslConnector::builder(SslMethod::tls()).map_err(failed)?;
        builder.set_min_proto_version(Some(SslVersion::TLS1_2)).map_err(failed)?;
        if let Some(ca) = ca {
            let wrong = |problem: String| format!("{}: {problem}", ca.display());
            let pem = std::fs::read(ca).map_err(|error| wrong(error.to_string()))?;
            let authorities = X509::stack_from_pem(&pem).map_err(|error| wrong(error.to_string()))?;
            if authorities.is_empty() {
                return Err(wrong("no certificate in it".to_owned()));
            }
            let mut store = X509StoreBuilder::new().map_err(failed)?;
            for authority in authorities {
                store.add_cert(&authority).map_err(failed)?;
            }
            builder.set_cert_store_builder(store);
        }
        Ok(Self(builder.build()))
    }

    /// Asks for a list, of `most` octets, within `timeout`.
    pub(super) async fn fetch(
        &self,
        url: &Url,
        known: &Validators,
        most: u64,
        timeout: Duration,
    ) -> Result<Fetched, String> {
        let fetched = tokio::time::timeout(timeout, self.follow(url, known, most)).await;
        fetched.unwrap_or_else(|_| Err(format!("no complete response within {timeout:?}")))
    }

    async fn follow(&self, url: &Url, known: &Validators, most: u64) -> Result<Fetched, String> {
        let mut url = url.clone();
        for _ in 0..=REDIRECTIONS {
            match self.ask(&url, known, most).await? {
                Answer::Fetched(fetched) => return Ok(fetched),
                Answer::Elsewhere(location) => url = url.redirected(&location)?,
            }
        }
        Err(format!("more than {REDIRECTIONS} redirections"))
    }

    async fn ask(&self, url: &Url, known: &Validators, most: u64) -> Result<Answer, String> {
        let host = url.host();
        let stream = TcpStream::connect((host, url.port()));
        let stream = stream.await.map_err(|error| format!("{host} port {}: {error}", url.port()))?;
        if !url.is_secure() {
            return exchange(stream, url, known, most).await;
        }
        let configuration = self.0.configure().map_err(|error| format!("TLS: {error}"))?;
        let stream = tokio_boring::connect(configuration, host, stream).await;
        exchange(stream.map_err(|error| format!("{host}: TLS: {error}"))?, url, known, most).await
    }
}

enum Answer {
    Fetched(Fetched),
    Elsewhere(String),
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    url: &Url,
    known: &Validators,
    most: u64,
) -> Result<Answer, String> {
    let failed = |error: hyper::Error| format!("{}: {}", url.host(), causes(&error));
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(failed)?;
    let request = request(url, known)?;
    let exchange = async {
        let response = sender.send_request(request).await.map_err(failed)?;
        let answer = read(response, most).await;
        // Lets the connection end.
        drop(sender);
        answer
    };
    let (answer, _) = tokio::join!(exchange, connection);
    answer
}

fn request(url: &Url, known: &Validators) -> Result<Request<Empty<Bytes>>, String> {
    let authority = url.0.authority().map_or("", |authority| authority.as_str());
    let target = url.0.path_and_query().map_or("/", |target| target.as_str());
    let mut request = Request::get(target)
        .header(HOST, authority)
        .header(USER_AGENT, concat!("expressway/", env!("CARGO_PKG_VERSION")))
        .header(ACCEPT_ENCODING, "identity")
        .header(CONNECTION, "close")
        .body(Empty::new())
        .map_err(|error| error.to_string())?;
    let validators = [(IF_NONE_MATCH, &known.etag), (IF_MODIFIED_SINCE, &known.last_modified)];
    for (name, value) in validators {
        if let Some(value) = value.as_deref().and_then(|value| HeaderValue::from_str(value).ok()) {
            request.headers_mut().insert(name, value);
        }
    }
    Ok(request)
}

async fn read(response: Response<Incoming>, most: u64) -> Result<Answer, String> {
    let fields = response.headers();
    match response.status() {
        StatusCode::OK => {}
        StatusCode::NOT_MODIFIED => return Ok(Answer::Fetched(Fetched::Same)),
        StatusCode::MOVED_PERMANENTLY
        | StatusCode::FOUND
        | StatusCode::SEE_OTHER
        | StatusCode::TEMPORARY_REDIRECT
        | StatusCode::PERMANENT_REDIRECT => {
            let location = fields.get(LOCATION).and_then(|location| location.to_str().ok());
            return location
                .map(|location| Answer::Elsewhere(location.to_owned()))
                .ok_or_else(|| "a redirection without Location".to_owned());
        }
        status => return Err(format!("status {status}")),
    }
    if fields.get(CONTENT_ENCODING).is_some_and(|coding| coding != "identity") {
        return Err("is compressed, although that was not requested".to_owned());
    }
    let too_long = || format!("longer than {most} bytes; raise lists.size");
    let length = fields.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > most) {
        return Err(too_long());
    }
    // Else its end is that of the connection, and only a line that ends says that it is whole.
    let is_delimited = length.is_some() || fields.contains_key(TRANSFER_ENCODING);
    let validators = Validators::of(fields);
    let body = Limited::new(response.into_body(), usize::try_from(most).unwrap_or(usize::MAX));
    let body = body.collect().await.map_err(|error| match error.downcast::<hyper::Error>() {
        Ok(error) => causes(&*error),
        Err(_) => too_long(),
    })?;
    let mut body: Vec<u8> = body.to_bytes().into();
    if is_delimited && body.last().is_some_and(|last| *last != b'\n') {
        body.push(b'\n');
    }
    Ok(Answer::Fetched(Fetched::New(body, validators)))
}

/// An error with what it comes from: hyper's own words say little.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_of_http() {
        let url: Url = "https://[2001:db8::1]:8443/a?b".parse().unwrap();
        assert_eq!((url.host(), url.port(), url.is_secure()), ("2001:db8::1", 8443, true));
        assert_eq!("http://lists.example".parse::<Url>().unwrap().port(), 80);
        for wrong in
            ["", "lists.example/a", "ftp://a/b", "/a", "https://", "https://me@a/b", &"x".repeat(1000)]
        {
            assert!(wrong.parse::<Url>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn redirections_keep_what_tls_gives() {
        let url: Url = "https://a.example/lists/x?y".parse().unwrap();
        assert_eq!(url.redirected("/b").unwrap().to_string(), "https://a.example/b");
        assert_eq!(url.redirected("https://b.example/").unwrap().to_string(), "https://b.example/");
        assert!(url.redirected("http://a.example/b").unwrap_err().contains("https to http"));
        assert!(url.redirected("//b.example/").is_err() && url.redirected("x").is_err());
        let plain: Url = "http://a.example/".parse().unwrap();
        assert!(plain.redirected("https://a.example/b").is_ok());
    }
}
