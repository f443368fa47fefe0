//! One worker with an endpoint of Media over QUIC, and its peers, on a simulated network.

use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use expressway_gateway::quic::{Endpoint, Identity, Settings, Setup, Shared, Tls};
use expressway_netio::sim::{Clock, Link, Network, Node, SimIo, run_until};
use expressway_netio::slice::SliceLimit;
use expressway_netio::{Worker, WorkerOptions, mailbox};
use expressway_relay::moq::room::{Limits, Room};
use expressway_relay::moq::{Access, Moq, Sessions};
use expressway_web::memory::Memory;

use super::peer::Peer;

pub(super) const SERVER: &str = "192.0.2.1:4443";

/// Long enough for any test on a loaded machine; reaching it is a failure.
const LIMIT: Duration = Duration::from_secs(25);

pub(super) struct World {
    network: Network,
    worker: Worker<Endpoint, SimIo>,
    pub(super) peers: Vec<Peer>,
    pub(super) room: Arc<Room>,
    /// Where what is on its way to peers is counted.
    pub(super) memory: Arc<Memory>,
}

impl World {
    /// A relay with the room `studio`.
    pub(super) fn new(limits: Limits, sessions: Sessions, memory: usize) -> Self {
        let link = Link { delay: Duration::from_millis(1), ..Link::default() };
        Self::over(link, limits, sessions, memory)
    }

    /// The same, behind such a link.
    pub(super) fn over(link: Link, limits: Limits, sessions: Sessions, memory: usize) -> Self {
        Self::with(link, WorkerOptions::default(), limits, sessions, memory)
    }

    /// The same, whose worker does so many pieces of work in a turn.
    pub(super) fn in_pieces(pieces: u32) -> Self {
        let link = Link { delay: Duration::from_millis(1), ..Link::default() };
        let options = WorkerOptions { slice: SliceLimit::Pieces(pieces), ..WorkerOptions::default() };
        Self::with(link, options, Limits::default(), Sessions::default(), 64 << 20)
    }

    fn with(link: Link, options: WorkerOptions, limits: Limits, sessions: Sessions, memory: usize) -> Self {
        let made = rcgen::generate_simple_self_signed(["relay.example".to_owned()]).unwrap();
        let (chain, key, path) = (made.cert.pem(), made.signing_key.serialize_pem(), Path::new("test.pem"));
        let identity = Identity::from_pem(chain.as_bytes(), key.as_bytes(), path, path).unwrap();
        let settings = Settings::new(Arc::new(Tls::single(Arc::new(identity)).unwrap()));
        let room = Room::new("studio", limits);
        let application = Moq::new([Arc::clone(&room)], Access::default(), sessions);
        let setup = Arc::new(Setup { settings, application });
        let memory = Memory::new(memory);
        let shared = Shared::with_memory(&setup, 1, Arc::clone(&memory)).unwrap();
        let network = Network::real_time(1, link);
        let io = network.endpoint(&[SERVER.parse().unwrap()]).unwrap();
        let (sender, inbox) = mailbox(256).unwrap();
        let endpoint = Endpoint::new(0, shared, sender.clone()).unwrap();
        let now = Instant::now();
        let worker = Worker::new(options, now, endpoint, io, inbox, Arc::from([sender]));
        Self { network, worker, peers: Vec::new(), room, memory }
    }

    /// A relay with usual limits.
    pub(super) fn usual() -> Self {
        Self::new(Limits::default(), Sessions::default(), 64 << 20)
    }

    /// Another peer, which has entered the room; its index.
    pub(super) fn enter(&mut self) -> usize {
        let index = self.connect(b"moq-lite-05");
        self.peers[index].setup();
        index
    }

    /// Another peer, which has said nothing but what protocol it speaks; its index.
    pub(super) fn connect(&mut self, protocol: &[u8]) -> usize {
        let index = self.peers.len();
        self.peers.push(Peer::new(&self.network, index, protocol));
        self.until("a handshake", |world| world.peers[index].quic.is_established());
        index
    }

    /// One that has announced the broadcast `cam`.
    pub(super) fn publisher(&mut self) -> usize {
        let index = self.enter();
        self.until("the question for broadcasts", |world| !world.peers[index].came(1).is_empty());
        self.peers[index].announce("cam");
        index
    }

    /// One that has subscribed to the track `video` of it, and the number that the publisher is asked for it by.
    pub(super) fn subscriber(&mut self, publisher: usize) -> (usize, u64) {
        let index = self.enter();
        self.until("the broadcast", |world| world.room.find("cam").is_some());
        self.peers[index].subscribe(0, "video", 30_000);
        self.until("a subscription", |world| world.peers[publisher].asked().is_some());
        (index, self.peers[publisher].asked().unwrap())
    }

    /// Runs until `done`, or fails the test.
    #[track_caller]
    pub(super) fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let limit = Instant::now() + LIMIT;
        while !done(self) {
            assert!(
                Instant::now() < limit,
                "timed out waiting for {what}: {:?} {:?} {:?}",
                self.room.counters,
                self.room.gauges,
                self.peers.iter().map(Peer::state).collect::<Vec<_>>()
            );
            self.step();
        }
    }

    /// Runs for a while, whatever happens.
    pub(super) fn for_a_while(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.step();
        }
    }

    /// Bytes that sessions have on their way.
    pub(super) fn held(&mut self) -> usize {
        self.worker.service_mut().held_bytes()
    }

    fn step(&mut self) {
        let Self { network, worker, peers, .. } = self;
        let mut nodes: Vec<&mut dyn Node> = vec![worker];
        nodes.extend(peers.iter_mut().map(|peer| peer as &mut dyn Node));
        let first = RefCell::new(true);
        let limit = Instant::now() + Duration::from_millis(2);
        run_until(network, &mut nodes, &mut Clock::Real, limit, || !first.replace(false)).unwrap();
    }
}
