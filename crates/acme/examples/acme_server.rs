//! The least server that ACME can check: TLS on one address, plain HTTP on another, and nothing behind them.
//!
//! `acme_server FOLDER URL CA tls-alpn-01|http-01 TLS-ADDRESS HTTP-ADDRESS NAME…`

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use boring::ssl::{Ssl, SslContext};
use expressway_acme::{Acme, Answers, Challenge, Plan, Store, Tokens};
use expressway_tls::{ACME_TLS_ALPN, Lasting, Tls, TlsOptions};
use expressway_web::{Exchange, Handler, Notify, Protocol, RequestBody, RequestHead, Scheme, Wake};
use http::{HeaderMap, Method, StatusCode};

/// Knows nothing.
struct Nothing;

impl Handler for Nothing {
    fn start(&self, request: &RequestHead, _body: RequestBody, _wake: Wake) -> Exchange {
        Exchange::error(&request.method, StatusCode::NOT_FOUND, HeaderMap::new())
    }
}

impl Notify for Nothing {
    fn notify(&self, _token: u64) {}
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, url, ca, challenge, tls_address, http_address, names @ ..] = arguments.as_slice() else {
        return Err(
            "usage: acme_server FOLDER URL CA tls-alpn-01|http-01 TLS-ADDRESS HTTP-ADDRESS NAME…".into()
        );
    };
    let store = Store::open(Path::new(folder))?;
    let (lasting, tokens) = (Lasting::new()?, Arc::new(Tokens::default()));
    let options = TlsOptions { stopgap: true, ..TlsOptions::default() };
    let tls = Tls::new(vec![Arc::new(store.stopgap()?)], options, lasting.clone())?;
    let context = tls.tcp(&[b"http/1.1"])?.build();
    let secure = TcpListener::bind(tls_address)?;
    let plain = TcpListener::bind(http_address)?;
    let plan = Plan {
        names: names.to_vec(),
        email: Some("test@example.org".into()),
        url: url.clone(),
        ca: Some(PathBuf::from(ca)),
        challenge: if challenge == "http-01" { Challenge::Http01 } else { Challenge::TlsAlpn01 },
    };
    let _acme = Acme::start(plan, store, lasting.issued, tokens.clone())?;
    println!("ready");
    std::thread::spawn(move || {
        let answers = Answers { tokens, next: Arc::new(Nothing) };
        plain.incoming().flatten().for_each(|stream| drop(answer(&answers, stream)));
    });
    secure.incoming().flatten().for_each(|stream| shake_hands(&context, stream));
    Ok(())
}

fn shake_hands(context: &SslContext, stream: TcpStream) {
    let Ok(ssl) = Ssl::new(context) else { return };
    match ssl.accept(stream) {
        Ok(stream) if stream.ssl().selected_alpn_protocol() == Some(ACME_TLS_ALPN) => println!("checked"),
        Ok(_) => {}
        Err(error) => println!("handshake: {error}"),
    }
}

fn answer(handler: &impl Handler, stream: TcpStream) -> Result<(), Box<dyn Error>> {
    let remote = stream.peer_addr()?;
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let first = lines.next().ok_or("nothing")??;
    let target = first.split(' ').nth(1).ok_or("no target")?.to_owned();
    lines.take_while(|line| line.as_ref().is_ok_and(|line| !line.is_empty())).for_each(drop);
    let request = RequestHead {
        method: Method::GET,
        scheme: Scheme::Http,
        authority: String::new(),
        target,
        headers: HeaderMap::new(),
        protocol: Protocol::Http11,
        remote,
        client_subject: None,
    };
    let mut exchange = handler.start(&request, RequestBody::empty(), Wake::new(Arc::new(Nothing), 0));
    let mut stream = stream;
    let std::task::Poll::Ready(head) = exchange.poll_head() else { return Err("no head".into()) };
    write!(stream, "HTTP/1.1 {}\r\nconnection: close\r\n\r\n", head.status.as_str())?;
    while let std::task::Poll::Ready(Some(Ok(body))) = exchange.poll_body(1 << 16) {
        stream.write_all(&body)?;
    }
    Ok(())
}
