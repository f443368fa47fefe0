//! Origins over sockets that do as they are told, and a client that polls as transports do.
#![allow(dead_code, unreachable_pub, missing_docs)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use expressway_origin::{Control, Endpoint, Origin, OriginOptions};
use expressway_web::{
    BodyError, Exchange, Handler, Notify, Protocol, RequestBody, RequestHead, ResponseHead, Scheme, Wake,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method};

/// Longer than anything here takes.
pub const LONG: Duration = Duration::from_secs(60);

/// A worker's mailbox.
#[derive(Default)]
pub struct Signal {
    woken: Mutex<bool>,
    bell: Condvar,
}

impl Notify for Signal {
    fn notify(&self, _token: u64) {
        *self.woken.lock().unwrap() = true;
        self.bell.notify_all();
    }
}

impl Signal {
    pub fn wait(&self) {
        let woken = self.woken.lock().unwrap();
        let (mut woken, late) = self.bell.wait_timeout_while(woken, LONG, |woken| !*woken).unwrap();
        assert!(!late.timed_out(), "nothing woke the client");
        *woken = false;
    }

    pub fn until<T>(&self, mut poll: impl FnMut() -> Poll<T>) -> T {
        loop {
            match poll() {
                Poll::Ready(done) => return done,
                Poll::Pending => self.wait(),
            }
        }
    }
}

/// A request under way.
pub struct Asked {
    pub exchange: Exchange,
    signal: Arc<Signal>,
}

impl Asked {
    pub fn head(&mut self) -> ResponseHead {
        self.signal.until(|| self.exchange.poll_head())
    }

    pub fn status(&mut self) -> u16 {
        self.head().status.as_u16()
    }

    pub fn chunk(&mut self, max: usize) -> Option<Result<Bytes, BodyError>> {
        self.signal.until(|| self.exchange.poll_body(max))
    }

    /// All of the body, and how it ended.
    pub fn body(&mut self) -> (Vec<u8>, Result<(), BodyError>) {
        let mut body = Vec::new();
        while self.exchange.remaining() != Some(0) {
            match self.chunk(usize::MAX) {
                None => break,
                Some(Ok(chunk)) => body.extend_from_slice(&chunk),
                Some(Err(error)) => return (body, Err(error)),
            }
        }
        (body, Ok(()))
    }

    /// Status and body of a response that is whole.
    pub fn whole(mut self) -> (u16, String) {
        let status = self.status();
        let (body, end) = self.body();
        end.expect("the response is whole");
        (status, String::from_utf8(body).unwrap())
    }
}

/// An origin and its runtime.
pub struct Bed {
    pub origin: Origin,
    pub control: Option<Control>,
}

pub fn request(method: Method, target: &str, fields: &[(&'static str, &str)]) -> RequestHead {
    let field = |(name, value): &(&'static str, &str)| {
        (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
    };
    RequestHead {
        method,
        scheme: Scheme::Https,
        authority: "edge.example".into(),
        target: target.into(),
        headers: fields.iter().map(field).collect::<HeaderMap>(),
        protocol: Protocol::H3,
        remote: "192.0.2.1:4433".parse().unwrap(),
        client_subject: None,
    }
}

/// Options for servers at these addresses.
pub fn options(servers: &[SocketAddr]) -> OriginOptions {
    let endpoint = |address: &SocketAddr| Endpoint::parse(&format!("http://{address}")).unwrap();
    let mut options = OriginOptions::new("app", endpoint(&servers[0]));
    let first = options.servers[0].clone();
    options.servers = servers
        .iter()
        .map(|address| expressway_origin::ServerOptions { endpoint: endpoint(address), ..first.clone() })
        .collect();
    options
}

impl Bed {
    pub fn new(options: OriginOptions) -> Self {
        let control = Control::start(2).unwrap();
        let origin = Origin::new(options, control.handle()).unwrap();
        origin.watch();
        Self { origin, control: Some(control) }
    }

    pub fn of(server: &Server) -> Self {
        Self::new(options(&[server.address]))
    }

    pub fn send(&self, head: &RequestHead, body: RequestBody) -> Asked {
        let signal = Arc::new(Signal::default());
        let exchange = self.origin.start(head, body, Wake::new(signal.clone(), 1));
        Asked { exchange, signal }
    }

    pub fn ask(&self, method: Method, target: &str) -> Asked {
        self.send(&request(method, target, &[]), RequestBody::empty())
    }

    pub fn get(&self) -> Asked {
        self.ask(Method::GET, "/")
    }

    /// Failures of all servers by reason.
    pub fn failures(&self, reason: &str) -> u64 {
        let servers = self.origin.report().servers;
        servers.iter().flat_map(|s| &s.failures).filter(|(name, _)| *name == reason).map(|(_, n)| n).sum()
    }
}

/// A server on loopback whose connections are given to a function, each on a thread of its own.
pub struct Server {
    pub address: SocketAddr,
    pub accepted: Arc<AtomicUsize>,
}

impl Server {
    pub fn start(serve: impl Fn(Connection) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let accepted = Arc::<AtomicUsize>::default();
        let (count, serve) = (accepted.clone(), Arc::new(serve));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let number = count.fetch_add(1, Ordering::SeqCst);
                let serve = serve.clone();
                std::thread::spawn(move || serve(Connection::new(stream.unwrap(), number)));
            }
        });
        Self { address, accepted }
    }

    /// One that sends these octets for each request, and keeps the connection.
    pub fn saying(response: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        Self::start(move |mut connection| {
            while connection.request().is_some() {
                connection.say(response.as_ref());
            }
        })
    }

    /// One that sends these octets for a request, and closes the connection.
    pub fn closing(response: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        Self::start(move |mut connection| {
            if connection.request().is_some() {
                connection.say(response.as_ref());
            }
        })
    }

    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

/// An address where nobody listens.
pub fn nobody() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// A connection of a server.
pub struct Connection {
    pub reader: BufReader<TcpStream>,
    pub number: usize,
}

impl Connection {
    fn new(stream: TcpStream, number: usize) -> Self {
        stream.set_nodelay(true).unwrap();
        Self { reader: BufReader::new(stream), number }
    }

    /// The head of the next request, its lines in lower case; `None` at the end of the connection.
    pub fn request(&mut self) -> Option<Vec<String>> {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            if self.reader.read_line(&mut line).ok()? == 0 {
                return None;
            }
            if line.trim_end().is_empty() {
                return Some(lines);
            }
            lines.push(line.trim_end().to_ascii_lowercase());
        }
    }

    /// Reads that many octets, or as many as come.
    pub fn read(&mut self, length: usize) -> Vec<u8> {
        let mut body = Vec::new();
        let _ = (&mut self.reader).take(length as u64).read_to_end(&mut body);
        body
    }

    /// Sends; false if the other side is gone.
    pub fn say(&mut self, octets: &[u8]) -> bool {
        self.reader.get_mut().write_all(octets).is_ok()
    }
}

/// A whole response with this body.
pub fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}
