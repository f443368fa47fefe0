//! A quiche client on the simulated network.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Instant;

use expressway_netio::sim::{Network, Node, SimIo};
use expressway_netio::{Flow, IoError, PacketIo};
use quiche::h3::NameValue;

use super::handler::pattern;

/// What came back on one request.
#[derive(Default, Debug)]
pub struct Response {
    pub status: Option<u16>,
    pub headers: Vec<(String, String)>,
    pub received: u64,
    pub body: Vec<u8>,
    /// Every byte was what the pattern says.
    pub intact: bool,
    pub finished: bool,
    pub reset: Option<u64>,
}

impl Response {
    pub fn is_over(&self) -> bool {
        self.finished || self.reset.is_some()
    }

    fn take_in(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.intact &= *byte == pattern(self.received);
            self.received += 1;
        }
        if self.body.len() < 4096 {
            self.body.extend_from_slice(bytes);
        }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_str())
    }
}

/// How a client behaves.
pub struct Options {
    pub max_data: u64,
    /// Of a stream, where it is less than that of the connection.
    pub max_stream_data: u64,
    pub early_data: bool,
    pub session: Option<Vec<u8>>,
    /// Response bodies are read off streams.
    pub reads: bool,
    /// HTTP/3 is spoken; else streams are the test's own.
    pub http: bool,
    /// A stream of the server's that is stopped once something has come on it, before that is acknowledged.
    pub stops: Option<u64>,
    pub idle_timeout: u64,
    pub max_payload: usize,
    pub active_ids: u64,
    /// A version that nobody speaks, to be negotiated away.
    pub version: u32,
    /// Packets that it sends before it hears of any.
    pub initial_window: usize,
    /// Files with its certificate chain and key, if it shows one.
    pub certificate: Option<(PathBuf, PathBuf)>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            max_data: 64 << 20,
            max_stream_data: u64::MAX,
            early_data: false,
            session: None,
            reads: true,
            http: true,
            stops: None,
            idle_timeout: 30_000,
            max_payload: 1472,
            active_ids: 4,
            version: quiche::PROTOCOL_VERSION,
            initial_window: 10,
            certificate: None,
        }
    }
}

type Fields = Vec<(String, String)>;

/// A client with one connection.
pub struct Client {
    pub io: SimIo,
    local: SocketAddr,
    server: SocketAddr,
    pub quic: quiche::Connection,
    pub http: Option<quiche::h3::Connection>,
    waiting: Vec<(Fields, Vec<u8>)>,
    pub responses: BTreeMap<u64, Response>,
    /// Stream IDs in the order of the requests.
    pub streams: Vec<u64>,
    pub goaway: Option<u64>,
    pub reads: bool,
    /// Nothing that comes is looked at, and so nothing is acknowledged.
    pub deaf: bool,
    /// It sends nothing by itself, and so nothing again.
    pub is_mute: bool,
    speaks_http: bool,
    stops: Option<u64>,
    pub datagrams_received: u64,
    pub largest_received: usize,
    scratch: Vec<u8>,
}

pub fn config(options: &Options) -> quiche::Config {
    let mut config = quiche::Config::new(options.version).unwrap();
    config.set_application_protos(quiche::h3::APPLICATION_PROTOCOL).unwrap();
    config.verify_peer(false);
    config.set_max_idle_timeout(options.idle_timeout);
    config.set_max_recv_udp_payload_size(options.max_payload);
    config.set_max_send_udp_payload_size(1350);
    config.set_initial_max_data(options.max_data);
    config.set_max_connection_window(options.max_data);
    let max_stream_data = options.max_stream_data.min(options.max_data);
    config.set_initial_max_stream_data_bidi_local(max_stream_data);
    config.set_max_stream_window(max_stream_data);
    config.set_initial_max_stream_data_bidi_remote(1 << 20);
    config.set_initial_max_stream_data_uni(1 << 20);
    config.set_initial_max_streams_bidi(100);
    config.set_initial_max_streams_uni(100);
    config.set_active_connection_id_limit(options.active_ids);
    config.set_initial_congestion_window_packets(options.initial_window);
    if let Some((chain, key)) = &options.certificate {
        config.load_cert_chain_from_pem_file(chain.to_str().unwrap()).unwrap();
        config.load_priv_key_from_pem_file(key.to_str().unwrap()).unwrap();
    }
    if options.early_data {
        config.enable_early_data();
    }
    config
}

impl Client {
    pub fn new(network: &Network, local: &str, server: SocketAddr, options: Options) -> Self {
        let local: SocketAddr = local.parse().unwrap();
        // A second address, one port up, to migrate to.
        let second = SocketAddr::new(local.ip(), local.port() + 20_000);
        let io = network.endpoint(&[local, second]).unwrap();
        let mut scid = [0; 16];
        boring::rand::rand_bytes(&mut scid).unwrap();
        let scid = quiche::ConnectionId::from_ref(&scid);
        let mut config = config(&options);
        let mut quic = quiche::connect(Some("edge.example"), &scid, local, server, &mut config).unwrap();
        if let Some(session) = &options.session {
            quic.set_session(session).unwrap();
        }
        Self {
            io,
            local,
            server,
            quic,
            http: None,
            waiting: Vec::new(),
            responses: BTreeMap::new(),
            streams: Vec::new(),
            goaway: None,
            reads: options.reads,
            deaf: false,
            is_mute: false,
            speaks_http: options.http,
            stops: options.stops,
            datagrams_received: 0,
            largest_received: 0,
            scratch: vec![0; 64 << 10],
        }
    }

    /// Asks for `path` as soon as that is possible.
    pub fn get(&mut self, path: &str) {
        self.request("GET", path, &[], b"");
    }

    pub fn request(&mut self, method: &str, path: &str, extra: &[(&str, &str)], body: &[u8]) {
        let mut fields =
            vec![(":method", method), (":scheme", "https"), (":authority", "edge.example"), (":path", path)];
        fields.extend(extra);
        self.raw(&fields, body);
    }

    pub fn raw(&mut self, fields: &[(&str, &str)], body: &[u8]) {
        let owned = fields.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        self.waiting.push((owned, body.to_vec()));
    }

    pub fn response(&self, index: usize) -> &Response {
        &self.responses[&self.streams[index]]
    }

    /// Sends the first flight, and nothing after it.
    pub fn send_first_flight(&mut self) {
        self.send(Instant::now()).unwrap();
    }

    /// Sends whatever there is.
    pub fn send_now(&mut self) -> Result<usize, IoError> {
        self.send(Instant::now())
    }

    /// Sends a datagram that was made elsewhere.
    pub fn send_raw(&mut self, datagram: &[u8]) {
        let mut source = Some(datagram);
        let flow = Flow::new(self.local, self.server);
        self.io
            .transmit(&flow, datagram.len(), &mut |slot| {
                source.take().map_or(0, |datagram| {
                    slot.copy_from_slice(datagram);
                    datagram.len()
                })
            })
            .unwrap();
        self.io.flush(Instant::now()).unwrap();
    }

    /// The first flight, unsent.
    pub fn first_flight(&mut self) -> Vec<u8> {
        let mut datagram = vec![0; 1350];
        let (length, _) = self.quic.send(&mut datagram).unwrap();
        datagram.truncate(length);
        datagram
    }

    /// All requests made so far are over.
    pub fn is_done(&self) -> bool {
        self.waiting.is_empty() && self.responses.values().all(Response::is_over)
    }

    pub fn received(&self) -> u64 {
        self.responses.values().map(|response| response.received).sum()
    }

    fn send_waiting(&mut self) {
        let Some(http) = &mut self.http else { return };
        while let Some((fields, body)) = self.waiting.first() {
            let list: Vec<_> = fields
                .iter()
                .map(|(name, value)| quiche::h3::Header::new(name.as_bytes(), value.as_bytes()))
                .collect();
            let Ok(stream) = http.send_request(&mut self.quic, &list, body.is_empty()) else { return };
            if !body.is_empty() {
                http.send_body(&mut self.quic, stream, body, true).unwrap();
            }
            self.streams.push(stream);
            self.responses.insert(stream, Response { intact: true, ..Response::default() });
            self.waiting.remove(0);
        }
    }

    fn poll_http(&mut self) {
        let Some(http) = &mut self.http else { return };
        while let Ok((stream, event)) = http.poll(&mut self.quic) {
            if let quiche::h3::Event::GoAway = event {
                self.goaway = Some(stream);
                continue;
            }
            let response = self.responses.entry(stream).or_default();
            match event {
                quiche::h3::Event::Headers { list, .. } => {
                    for field in list {
                        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                        if field.name() == b":status" {
                            response.status = text(field.value()).parse().ok();
                        } else {
                            response.headers.push((text(field.name()), text(field.value())));
                        }
                    }
                }
                quiche::h3::Event::Data if self.reads => {
                    while let Ok(length) = http.recv_body(&mut self.quic, stream, &mut self.scratch) {
                        response.take_in(&self.scratch[..length]);
                    }
                }
                quiche::h3::Event::Finished => response.finished = true,
                quiche::h3::Event::Reset(code) => response.reset = Some(code),
                _ => {}
            }
        }
    }

    /// Reads from now on, and what has come already.
    pub fn read_on(&mut self) {
        self.reads = true;
        let Some(http) = &mut self.http else { return };
        for (stream, response) in &mut self.responses {
            while let Ok(length) = http.recv_body(&mut self.quic, *stream, &mut self.scratch) {
                response.take_in(&self.scratch[..length]);
            }
        }
    }

    /// Reads so many octets of each response at most; how many there were.
    pub fn sip(&mut self, most: usize) -> usize {
        let (Some(http), mut all) = (&mut self.http, 0) else { return 0 };
        for (stream, response) in &mut self.responses {
            if let Ok(length) = http.recv_body(&mut self.quic, *stream, &mut self.scratch[..most]) {
                response.take_in(&self.scratch[..length]);
                all += length;
            }
        }
        all
    }

    fn receive(&mut self, now: Instant) -> Result<usize, IoError> {
        let Self { io, quic, datagrams_received, largest_received, deaf, .. } = self;
        io.receive(now, &mut |datagram| {
            if *deaf {
                return;
            }
            *datagrams_received += 1;
            *largest_received = (*largest_received).max(datagram.payload.len());
            let info = quiche::RecvInfo { from: datagram.remote, to: datagram.local };
            let _ = quic.recv(datagram.payload, info);
        })
    }

    /// Sends what there is, each datagram on the path that the engine chose for it.
    fn send(&mut self, now: Instant) -> Result<usize, IoError> {
        let Self { io, quic, .. } = self;
        let (mut packet, mut sent) = ([0; 1350], 0);
        while let Ok((length, info)) = quic.send(&mut packet) {
            let mut source = Some(&packet[..length]);
            io.transmit(&Flow::new(info.from, info.to), length, &mut |slot| {
                source.take().map_or(0, |packet| {
                    slot.copy_from_slice(packet);
                    packet.len()
                })
            })?;
            io.flush(now)?;
            sent += 1;
        }
        Ok(sent)
    }

    /// Sends single bytes of streams, and none of the `gap` bytes before each: the first of a stream is missing, and each packet has
    /// bytes of many. What is left out would be sent again if the client heard anything or had timers. Says how many datagrams it were.
    pub fn send_with_gaps(&mut self, streams: &[u64], count: usize, gap: usize) -> usize {
        (self.deaf, self.is_mute) = (true, true);
        let (filler, mut lost, mut sent) = (vec![0; gap], [0; 1350], 0);
        for _ in 0..count {
            for stream in streams {
                assert_eq!(self.quic.stream_send(*stream, &filler, false), Ok(gap));
            }
            while self.quic.send(&mut lost).is_ok() {}
            for stream in streams {
                assert_eq!(self.quic.stream_send(*stream, b"x", false), Ok(1));
            }
            sent += self.send_now().unwrap();
        }
        sent
    }

    /// Moves to another local address of the same client, with a connection ID of its own.
    pub fn migrate(&mut self, local: &str) {
        self.quic.migrate_source(local.parse().unwrap()).unwrap();
    }

    /// Gives the server a spare connection ID, which it needs to answer on another path.
    pub fn offer_spare_id(&mut self) {
        let mut scid = [0; 16];
        boring::rand::rand_bytes(&mut scid).unwrap();
        self.quic.new_scid(&quiche::ConnectionId::from_ref(&scid), 7, false).unwrap();
    }
}

impl Node for Client {
    fn turn(&mut self, now: Instant) -> Result<bool, IoError> {
        let received = self.receive(now)?;
        if self.is_mute {
            return Ok(received > 0);
        }
        if let Some(stream) = self.stops.filter(|stream| self.quic.stream_readable(*stream)) {
            self.quic.stream_shutdown(stream, quiche::Shutdown::Read, 1).unwrap();
            self.stops = None;
        }
        if self.quic.timeout_instant().is_some_and(|timeout| timeout <= now) {
            self.quic.on_timeout();
        }
        if self.speaks_http
            && self.http.is_none()
            && (self.quic.is_established() || self.quic.is_in_early_data())
        {
            let config = quiche::h3::Config::new().unwrap();
            self.http = quiche::h3::Connection::with_transport(&mut self.quic, &config).ok();
        }
        self.send_waiting();
        self.poll_http();
        let sent = self.send(now)?;
        Ok(received + sent > 0)
    }

    fn next_deadline(&mut self) -> Option<Instant> {
        self.quic.timeout_instant().filter(|_| !self.is_mute)
    }
}
