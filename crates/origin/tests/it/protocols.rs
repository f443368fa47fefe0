//! What is spoken with origins: Unix sockets, HTTP/2, TLS and its certificates, and the fields on the way.

use std::convert::Infallible;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use boring::ssl::{AlpnError, SslAcceptor, SslFiletype, SslMethod, SslVerifyMode, select_next_proto};
use bytes::Bytes;
use expressway_origin::{Endpoint, OriginOptions, Protocol};
use expressway_web::{RequestBody, pipe};
use http::{HeaderMap, HeaderValue, Method, Request, Response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;

use crate::common::{self, Bed, Server, ok, options, request};

type Body = BoxBody<Bytes, Infallible>;

/// Says what it got, with a trailer.
async fn describe(request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    let (head, body) = request.into_parts();
    let host = head.headers.get("host").map_or("-", |host| host.to_str().unwrap());
    let mut text = format!("{} {} {host} ", head.method, head.uri);
    if let Ok(collected) = body.collect().await {
        let trailers = collected.trailers().cloned();
        text += std::str::from_utf8(&collected.to_bytes()).unwrap();
        text += trailers.as_ref().and_then(|t| t.get("x-sum")).map_or("", |sum| sum.to_str().unwrap());
    }
    let mut trailers = HeaderMap::new();
    trailers.insert("x-end", HeaderValue::from_static("yes"));
    let frames = [Frame::data(Bytes::from(text)), Frame::trailers(trailers)];
    let frames = frames.map(Ok::<_, Infallible>);
    let body = StreamBody::new(Frames(frames.into_iter().collect()));
    Ok(Response::builder().header("trailer", "x-end").body(body.boxed()).unwrap())
}

/// A stream of what is there.
struct Frames(std::collections::VecDeque<Result<Frame<Bytes>, Infallible>>);

impl futures_core::Stream for Frames {
    type Item = Result<Frame<Bytes>, Infallible>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        _context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        std::task::Poll::Ready(self.0.pop_front())
    }
}

/// An HTTP/2 server, over TLS if there is an acceptor; counts its connections.
fn h2_server(acceptor: Option<SslAcceptor>, accepted: &Arc<AtomicUsize>) -> SocketAddr {
    let (sender, receiver) = std::sync::mpsc::channel();
    let accepted = accepted.clone();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            sender.send(listener.local_addr().unwrap()).unwrap();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                accepted.fetch_add(1, Ordering::SeqCst);
                let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let service = service_fn(describe);
                    match acceptor {
                        None => drop(builder.serve_connection(TokioIo::new(stream), service).await),
                        Some(acceptor) => {
                            if let Ok(stream) = tokio_boring::accept(&acceptor, stream).await {
                                drop(builder.serve_connection(TokioIo::new(stream), service).await);
                            }
                        }
                    }
                });
            }
        });
    });
    receiver.recv().unwrap()
}

#[test]
fn a_unix_socket_is_as_good_as_any() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.sock");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        // An answer to nothing would be an error.
        assert!(stream.read(&mut [0; 1024]).unwrap() > 0);
        stream.write_all(ok("unix").as_bytes()).unwrap();
        std::io::copy(&mut stream, &mut std::io::sink()).unwrap();
    });
    let endpoint = Endpoint::parse(&format!("unix:{}", path.display())).unwrap();
    assert_eq!(Bed::new(OriginOptions::new("app", endpoint)).get().whole(), (200, "unix".into()));
    let missing = Endpoint::parse("unix:/nowhere/app.sock").unwrap();
    assert_eq!(Bed::new(OriginOptions::new("app", missing)).get().status(), 502);
}

#[test]
fn http2_shares_a_connection_and_has_trailers_both_ways() {
    let accepted = Arc::default();
    let mut options = options(&[h2_server(None, &accepted)]);
    options.protocol = Protocol::H2;
    let bed = Bed::new(options);
    let asked: Vec<_> = (0..50)
        .map(|n| {
            let (mut writer, reader) = pipe(1000);
            writer.write(Bytes::from(format!("body {n} ")));
            writer.finish(Some(HeaderMap::from_iter([("x-sum".parse().unwrap(), HeaderValue::from(n))])));
            bed.send(&request(Method::POST, &format!("/{n}"), &[]), RequestBody::new(reader, None))
        })
        .collect();
    for (n, mut asked) in asked.into_iter().enumerate() {
        assert_eq!(asked.status(), 200);
        let (body, end) = asked.body();
        let expected = format!("POST http://edge.example/{n} - body {n} {n}");
        assert_eq!((String::from_utf8(body).unwrap(), end), (expected, Ok(())));
        assert_eq!(asked.exchange.take_trailers().unwrap()["x-end"], "yes");
    }
    assert_eq!(accepted.load(Ordering::SeqCst), 1);
}

#[test]
fn a_server_that_does_not_speak_http2_is_answered_502() {
    let server = Server::saying("HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n");
    let mut options = options(&[server.address]);
    options.protocol = Protocol::H2;
    assert_eq!(Bed::new(options).get().status(), 502);
}

/// A certificate for `localhost` in files: itself, and its key.
fn certificate(folder: &std::path::Path) -> (PathBuf, PathBuf) {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let (certificate, key) = (folder.join("cert.pem"), folder.join("key.pem"));
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    (certificate, key)
}

fn acceptor((certificate, key): &(PathBuf, PathBuf), asks: bool) -> SslAcceptor {
    let mut builder = SslAcceptor::mozilla_intermediate_v5(SslMethod::tls()).unwrap();
    builder.set_certificate_chain_file(certificate).unwrap();
    builder.set_private_key_file(key, SslFiletype::PEM).unwrap();
    builder
        .set_alpn_select_callback(|_, offered| select_next_proto(b"\x02h2", offered).ok_or(AlpnError::NOACK));
    if asks {
        builder.set_ca_file(certificate).unwrap();
        builder.set_verify(SslVerifyMode::PEER | SslVerifyMode::FAIL_IF_NO_PEER_CERT);
    }
    builder.build()
}

fn tls_options(address: SocketAddr, host: &str) -> OriginOptions {
    let endpoint = Endpoint::parse(&format!("https://{host}:{}", address.port())).unwrap();
    OriginOptions { retries: 0, ..OriginOptions::new("app", endpoint) }
}

#[test]
fn a_certificate_is_verified_unless_that_is_turned_off() {
    let folder = tempfile::tempdir().unwrap();
    let files = certificate(folder.path());
    let address = h2_server(Some(acceptor(&files, false)), &Arc::default());
    let stranger = Bed::new(tls_options(address, "localhost"));
    assert_eq!(stranger.get().whole(), (502, "502 Bad Gateway\n".into()), "nobody vouches for it");
    assert_eq!(stranger.failures("tls"), 1);

    let mut known = tls_options(address, "localhost");
    known.tls.ca = Some(files.0.clone());
    let authority = "https://edge.example/ - ";
    let bed = Bed::new(known.clone());
    assert_eq!(bed.get().whole(), (200, format!("GET {authority}")), "ALPN selects HTTP/2");

    let mut other = tls_options(address, "127.0.0.1");
    other.tls.ca = Some(files.0.clone());
    assert_eq!(Bed::new(other.clone()).get().status(), 502, "the name is another");
    other.tls.server_name = Some("localhost".into());
    assert_eq!(Bed::new(other).get().status(), 200);

    let mut blind = tls_options(address, "127.0.0.1");
    blind.tls.verify = false;
    assert_eq!(Bed::new(blind).get().status(), 200);

    known.tls.ca = Some(folder.path().join("missing.pem"));
    let control = expressway_origin::Control::start(1).unwrap();
    let error = expressway_origin::Origin::new(known, control.handle()).err().unwrap();
    assert!(error.contains("missing.pem"), "{error}");
}

#[test]
fn a_client_certificate_is_shown_where_one_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let files = certificate(folder.path());
    let address = h2_server(Some(acceptor(&files, true)), &Arc::default());
    let mut options = tls_options(address, "localhost");
    options.tls.ca = Some(files.0.clone());
    assert_eq!(Bed::new(options.clone()).get().status(), 502);
    options.tls.identity = Some(files.clone());
    assert_eq!(Bed::new(options.clone()).get().status(), 200);
    options.tls.identity = Some((files.0.clone(), files.0));
    let control = expressway_origin::Control::start(1).unwrap();
    assert!(expressway_origin::Origin::new(options, control.handle()).is_err(), "a certificate is no key");
}

#[test]
fn the_fields_on_the_way_are_those_of_a_gateway() {
    let server = Server::start(|mut connection| {
        while let Some(head) = connection.request() {
            connection.say(ok(&head.join("\n")).as_bytes());
        }
    });
    let sent = |options: OriginOptions, fields: &[(&'static str, &str)]| {
        let bed = Bed::new(options);
        let (status, text) = bed.send(&request(Method::GET, "/a?b", fields), RequestBody::empty()).whole();
        assert_eq!(status, 200);
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        lines[1..].sort();
        lines
    };
    let expected = [
        "get /a?b http/1.1",
        "accept: x",
        "forwarded: for=192.0.2.1;host=\"edge.example\";proto=https",
        "host: edge.example",
        "via: 3.0 expressway",
        "x-forwarded-for: 192.0.2.1",
        "x-forwarded-host: edge.example",
        "x-forwarded-proto: https",
    ];
    let fields =
        [("accept", "x"), ("x-forwarded-for", "10.0.0.1"), ("x-real-ip", "10.0.0.1"), ("proxy", "evil")];
    assert_eq!(sent(options(&[server.address]), &fields), expected);
    let mut named = options(&[server.address]);
    (named.host, named.forwarded, named.via) =
        (Some("app.internal".into()), expressway_origin::Forwarded::Off, None);
    assert_eq!(sent(named, &[]), ["get /a?b http/1.1", "host: app.internal"]);
}

#[test]
fn a_websocket_is_refused() {
    let server = Server::saying(ok("?"));
    let bed = Bed::of(&server);
    let mut head = request(Method::GET, "/", &[("upgrade", "websocket"), ("connection", "upgrade")]);
    head.protocol = expressway_web::Protocol::Http11;
    assert_eq!(bed.send(&head, RequestBody::empty()).whole(), (501, "501 Not Implemented\n".into()));
    assert_eq!(server.accepted(), 0);
}

#[test]
fn the_access_log_is_told_who_answered() {
    let server = Server::saying("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n");
    let bed = Bed::new(options(&[common::nobody(), server.address]));
    let mut asked = bed.get();
    // Nobody has answered yet.
    assert!(asked.exchange.upstream().is_none_or(|upstream| upstream.status == 0));
    assert_eq!(asked.status(), 404);
    let upstream = asked.exchange.upstream().unwrap();
    assert_eq!((upstream.address, upstream.status), (server.address.to_string(), 404));
    assert!(upstream.time > std::time::Duration::ZERO);
}
