//! A server, and clients of it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use boring::ssl::{SslConnector, SslMethod, SslStream, SslVerifyMode};
use bytes::Bytes;
use expressway_netio::trace::Tracer;
use expressway_tcp::{Address, Limits, Listen, Listener, Redirect, Role, Server, Setup};
use expressway_tls::{Identity, Tls};
use expressway_web::memory::Memory;
use h2::client::SendRequest;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};

use crate::stage::Stage;

/// Nothing takes that long, on any machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// How a server is to be.
pub(crate) struct Build {
    pub(crate) limits: Limits,
    pub(crate) workers: usize,
    pub(crate) proxy: Option<Vec<ipnet::IpNet>>,
    pub(crate) memory: usize,
}

impl Default for Build {
    fn default() -> Self {
        Self { limits: Limits::default(), workers: 1, proxy: None, memory: 256 << 20 }
    }
}

/// A server with listeners for each role.
pub(crate) struct World {
    pub(crate) server: Server,
    pub(crate) memory: Arc<Memory>,
    pub(crate) tls: SocketAddr,
    pub(crate) plain: SocketAddr,
    pub(crate) redirect: SocketAddr,
}

fn identity() -> Identity {
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate =
        rcgen::CertificateParams::new(vec!["edge.test".to_owned()]).unwrap().self_signed(&key).unwrap();
    let (chain, key) = (certificate.pem(), key.serialize_pem());
    Identity::from_pem(chain.as_bytes(), key.as_bytes(), Path::new("c"), Path::new("k")).unwrap()
}

/// What answers `version` at `/version`.
pub(crate) fn setup(version: &'static str, limits: Limits) -> Arc<Setup> {
    let tls = Tls::single(Arc::new(identity())).unwrap().tcp(expressway_tcp::PROTOCOLS).unwrap().build();
    Arc::new(Setup { handler: Arc::new(Stage { version }), access_log: None, tls, limits })
}

impl Build {
    /// With the limits changed.
    pub(crate) fn limited(change: impl FnOnce(&mut Limits)) -> World {
        let mut build = Self::default();
        change(&mut build.limits);
        build.world()
    }

    pub(crate) fn world(self) -> World {
        let memory = Memory::new(self.memory);
        let redirect = Redirect { status: StatusCode::PERMANENT_REDIRECT, port: 443 };
        let alt_svc = HeaderValue::from_static("h3=\":443\"; ma=60");
        let roles = [Role::Tls(Some(alt_svc)), Role::Plain, Role::Other(Arc::new(redirect))];
        let listeners: Vec<_> = roles
            .into_iter()
            .map(|role| {
                let address = Address::Tcp("127.0.0.1:0".parse().unwrap());
                let listen = Listen { address, role, proxy: self.proxy.clone() };
                Listener::bind(listen, 1, false).unwrap()
            })
            .collect();
        let addresses: Vec<_> = listeners.iter().map(|listener| listener.local_address().unwrap()).collect();
        let server =
            Server::start(self.workers, listeners, setup("one", self.limits), &memory, |_| Tracer::default())
                .unwrap();
        World { server, memory, tls: addresses[0], plain: addresses[1], redirect: addresses[2] }
    }
}

impl World {
    /// The value of a counter or level with a label, of all workers.
    pub(crate) fn count(&self, name: &str, label: &str) -> u64 {
        let stats = self.server.stats();
        let all = stats.iter().flat_map(|stats| stats.fields());
        let these = all.filter(|metric| {
            metric.name == name && metric.label.map_or(label.is_empty(), |(_, value)| value == label)
        });
        these.map(|metric| metric.value).sum()
    }

    /// Waits until the counter is at least that.
    pub(crate) fn wait_for(&self, name: &str, label: &str, value: u64) {
        self.until(&format!("{name}{{{label}}} of {value}"), || self.count(name, label) >= value);
    }

    pub(crate) fn until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let start = Instant::now();
        while !is_so() {
            let fields: Vec<_> = self.server.stats().iter().flat_map(|stats| stats.fields()).collect();
            assert!(start.elapsed() < LIMIT, "never {what}: {fields:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// A connection without TLS.
    pub(crate) fn connect(&self) -> Wire<TcpStream> {
        connect(self.plain)
    }

    /// A connection with TLS that speaks one of `protocols`.
    pub(crate) fn connect_tls(&self, protocols: &[u8]) -> Wire<SslStream<TcpStream>> {
        let mut builder = SslConnector::builder(SslMethod::tls()).unwrap();
        builder.set_verify(SslVerifyMode::NONE);
        builder.set_alpn_protos(protocols).unwrap();
        let stream = connect(self.tls).0;
        Wire(builder.build().connect("edge.test", stream).unwrap())
    }

    /// The server still serves others, over both protocols and at once.
    pub(crate) fn serves(&self) {
        let mut wire = self.connect();
        assert_eq!(wire.get("/bytes/10").1.len(), 10);
        assert_eq!(get(self, "/bytes/100000").1.len(), 100_000);
    }
}

pub(crate) fn connect(address: SocketAddr) -> Wire<TcpStream> {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.set_write_timeout(Some(LIMIT)).unwrap();
    Wire(stream)
}

/// A connection, octet by octet.
pub(crate) struct Wire<S>(pub(crate) S);

impl<S: Read + Write> Wire<S> {
    pub(crate) fn send(&mut self, octets: impl AsRef<[u8]>) {
        self.0.write_all(octets.as_ref()).unwrap();
        self.0.flush().unwrap();
    }

    /// Sends what still goes to one who may have hung up.
    pub(crate) fn try_send(&mut self, octets: &[u8]) -> bool {
        self.0.write_all(octets).and_then(|()| self.0.flush()).is_ok()
    }

    /// All until the end, however that comes; one that does not is a failure.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        match self.0.read_to_end(&mut all) {
            Err(error)
                if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) =>
            {
                panic!("it never ended")
            }
            _ => all,
        }
    }

    fn octet(&mut self) -> u8 {
        let mut octet = [0];
        self.0.read_exact(&mut octet).unwrap();
        octet[0]
    }

    /// A head, to its empty line.
    pub(crate) fn head(&mut self) -> String {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(self.octet());
        }
        String::from_utf8(head).unwrap()
    }

    /// A response with `content-length`.
    pub(crate) fn response(&mut self) -> (String, Vec<u8>) {
        let head = self.head();
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "))
            .map_or(0, |length| length.parse().unwrap());
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).unwrap();
        (head, body)
    }

    pub(crate) fn get(&mut self, target: &str) -> (String, Vec<u8>) {
        self.send(format!("GET {target} HTTP/1.1\r\nhost: edge.test\r\n\r\n"));
        self.response()
    }
}

/// Runs a client of HTTP/2.
pub(crate) fn speak<F, T>(world: &World, talk: impl FnOnce(SendRequest<Bytes>) -> F) -> T
where
    F: Future<Output = T>,
{
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut builder = SslConnector::builder(SslMethod::tls()).unwrap();
        builder.set_verify(SslVerifyMode::NONE);
        builder.set_alpn_protos(b"\x02h2").unwrap();
        let stream = tokio::net::TcpStream::connect(world.tls).await.unwrap();
        let configuration = builder.build().configure().unwrap();
        let stream = tokio_boring::connect(configuration, "edge.test", stream).await.unwrap();
        let (send, connection) = h2::client::Builder::new()
            .initial_window_size(1 << 20)
            .initial_connection_window_size(4 << 20)
            .handshake(stream)
            .await
            .unwrap();
        tokio::spawn(connection);
        tokio::time::timeout(LIMIT, talk(send)).await.unwrap()
    })
}

/// What came of one request.
pub(crate) type Answer = (Response<()>, Vec<u8>, Option<HeaderMap>);

/// One request over HTTP/2.
pub(crate) async fn ask(send: &mut SendRequest<Bytes>, request: Request<()>) -> Result<Answer, h2::Error> {
    std::future::poll_fn(|context| send.poll_ready(context)).await?;
    let (response, _) = send.send_request(request, true)?;
    take(response.await?).await
}

pub(crate) async fn take(response: Response<h2::RecvStream>) -> Result<Answer, h2::Error> {
    let (parts, mut body) = response.into_parts();
    let mut all = Vec::new();
    while let Some(chunk) = body.data().await {
        let chunk = chunk?;
        body.flow_control().release_capacity(chunk.len())?;
        all.extend_from_slice(&chunk);
    }
    let trailers = body.trailers().await?;
    Ok((Response::from_parts(parts, ()), all, trailers))
}

pub(crate) fn request(method: &str, target: &str) -> Request<()> {
    Request::builder().method(method).uri(format!("https://edge.test{target}")).body(()).unwrap()
}

/// One request over HTTP/2, on a connection of its own.
pub(crate) fn get(world: &World, target: &str) -> Answer {
    speak(world, |mut send| async move { ask(&mut send, request("GET", target)).await.unwrap() })
}
