//! Workers and clients on one network.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use expressway_gateway::Http3;
use expressway_gateway::quic::{
    Endpoint, Generations, Identity, Instance, Message, Settings, Setup, Shared, Stats, Tls,
};
use expressway_netio::sim::{Clock, Link, Network, Node, run_until};
use expressway_netio::trace::Tracers;
use expressway_netio::{IoError, Mailbox, PacketIo, SliceLimit, Worker, WorkerOptions, mailbox};
use expressway_web::Handler;
use expressway_web::memory::Memory;
use rustix::time::{ClockId, clock_gettime};

use super::client::Client;
use super::handler::PatternHandler;
use super::shards::{Shard, split};

pub const SERVER: &str = "192.0.2.1:443";

/// Long enough for any test on a loaded machine; reaching it is a failure.
const LIMIT: Duration = Duration::from_secs(30);

/// Datagrams that a worker gets at once, as the kernel's sockets give them.
const BATCH: usize = 64;

/// A self-signed certificate and its key in PEM.
pub fn certificate(name: &str) -> (String, String) {
    let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
    (made.cert.pem(), made.signing_key.serialize_pem())
}

pub fn identity((chain, key): &(String, String)) -> Arc<Identity> {
    let path = Path::new("test.pem");
    Arc::new(Identity::from_pem(chain.as_bytes(), key.as_bytes(), path, path).unwrap())
}

/// TLS with that identity alone.
pub fn tls(certificate: &(String, String)) -> Arc<Tls> {
    Arc::new(Tls::single(identity(certificate)).unwrap())
}

/// The server of that name among those that have the certificate.
pub fn instance(certificate: &(String, String), node: &str) -> Instance {
    Instance::of(&identity(certificate), Some(node), &[]).unwrap()
}

pub fn setup(name: &'static str, settings: Settings) -> Arc<Setup> {
    of_handler(settings, PatternHandler::new(name))
}

fn of_handler(settings: Settings, handler: Arc<dyn Handler>) -> Arc<Setup> {
    let io_mode = Arc::from("simulated");
    Arc::new(Setup { settings, application: Arc::new(Http3 { handler, access_log: None, io_mode }) })
}

/// Told when a server's code begins to run and when it ends, where a test counts what that takes.
pub static SERVES: OnceLock<fn(bool)> = OnceLock::new();

fn serves(serves: bool) {
    if let Some(told) = SERVES.get() {
        told(serves);
    }
}

/// A worker as a node: the endpoint says when it is finished.
struct Server {
    worker: Worker<Endpoint, Shard>,
    /// Turns that only a timer asked for, and that came to nothing.
    vain: usize,
    /// The last turn left something to the next.
    has_more: bool,
    /// The most that one turn did.
    most: Most,
}

/// The most of each that a worker has done in one turn.
#[derive(Clone, Copy, Debug, Default)]
pub struct Most {
    pub received: usize,
    pub messages: usize,
    pub transmitted: usize,
    pub accepted: u64,
    pub requests: u64,
    pub cancelled: u64,
    pub held: usize,
    /// Of this thread's time on a processor, where a test counts what that takes.
    pub time: Duration,
}

/// How long this thread has been on a processor; zero where nobody asks.
fn processor_time() -> Duration {
    if SERVES.get().is_none() {
        return Duration::ZERO;
    }
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

impl Node for Server {
    fn turn(&mut self, now: Instant) -> Result<bool, IoError> {
        let before = self.worker.service().stats();
        let held = self.worker.service_mut().held_bytes();
        let begun = processor_time();
        serves(true);
        let turn = self.worker.turn(now);
        serves(false);
        let turn = turn?;
        let time = processor_time() - begun;
        let stats = self.worker.service().stats();
        self.most = Most {
            time: self.most.time.max(time),
            received: self.most.received.max(turn.received),
            messages: self.most.messages.max(turn.messages),
            transmitted: self.most.transmitted.max(turn.transmitted),
            accepted: self.most.accepted.max(stats.connections_accepted - before.connections_accepted),
            requests: self.most.requests.max(stats.requests - before.requests),
            cancelled: self.most.cancelled.max(stats.responses_cancelled - before.responses_cancelled),
            held: self.most.held.max(self.worker.service_mut().held_bytes().saturating_sub(held)),
        };
        self.vain += usize::from(turn.timers > 0 && turn.received + turn.messages + turn.transmitted == 0);
        self.has_more = turn.has_more();
        Ok(!turn.is_idle() || turn.has_more() || turn.blocked || self.worker.has_messages())
    }

    fn next_deadline(&mut self) -> Option<Instant> {
        if self.has_more {
            return Some(Instant::now());
        }
        // Wake-ups from other threads and datagrams for other shards have no deadline: look often.
        let soon = Instant::now() + Duration::from_millis(1);
        Some(self.worker.next_deadline().map_or(soon, |deadline| deadline.min(soon)))
    }
}

/// Everything of a test.
pub struct World {
    pub network: Network,
    pub clients: Vec<Client>,
    servers: Vec<Server>,
    pub peers: Arc<[Mailbox<Message>]>,
    pub shared: Arc<Shared>,
    pub certificate: (String, String),
    /// Which server it is that runs.
    pub instance: Instance,
    memory: Option<Arc<Memory>>,
    /// Of the workers that run.
    pub tracers: Tracers,
    /// What the workers that are started next are among.
    pub generations: Generations,
}

pub struct Build {
    pub link: Link,
    pub seed: u64,
    pub workers: usize,
    /// Datagrams that packet I/O takes in a worker's turn.
    pub room: usize,
    /// What a worker's turn may take.
    pub slice: SliceLimit,
    pub certificate: Option<(String, String)>,
    pub tune: fn(&mut Settings),
    /// What answers instead of a pattern, and where what it holds is counted.
    pub handler: Option<(Arc<dyn Handler>, Arc<Memory>)>,
}

impl Default for Build {
    fn default() -> Self {
        let link = Link { delay: Duration::from_millis(2), ..Link::default() };
        let slice = WorkerOptions::default().slice;
        Self {
            link,
            seed: 1,
            workers: 1,
            room: usize::MAX,
            slice,
            certificate: None,
            tune: |_| {},
            handler: None,
        }
    }
}

impl Build {
    pub fn world(self) -> World {
        let certificate = self.certificate.unwrap_or_else(|| certificate("edge.example"));
        let mut settings = Settings::new(tls(&certificate));
        settings.instance = instance(&certificate, "first");
        (self.tune)(&mut settings);
        settings.check().unwrap();
        let network = Network::real_time(self.seed, self.link);
        let instance = settings.instance.clone();
        let (handler, memory) = self.handler.unzip();
        let setup = match handler {
            Some(handler) => of_handler(settings, handler),
            None => setup("first", settings),
        };
        let shared = Shared::new(&setup, self.workers).unwrap();
        let mut world = World {
            network,
            clients: Vec::new(),
            servers: Vec::new(),
            peers: Arc::from([]),
            shared,
            certificate,
            instance,
            memory,
            tracers: Tracers::new(0),
            generations: Generations::default(),
        };
        world.start_with(&setup, self.workers, (self.room, BATCH), self.slice);
        world
    }
}

impl World {
    /// Starts workers, in place of those there are: what a killed and restarted server looks like.
    pub fn start(&mut self, setup: &Arc<Setup>, workers: usize) {
        self.start_with(setup, workers, (usize::MAX, BATCH), WorkerOptions::default().slice);
    }

    /// Likewise, with workers that get all that has come at once.
    pub fn start_greedy(&mut self, setup: &Arc<Setup>, workers: usize, slice: SliceLimit) {
        self.start_with(setup, workers, (usize::MAX, usize::MAX), slice);
    }

    fn start_with(
        &mut self,
        setup: &Arc<Setup>,
        workers: usize,
        (room, batch): (usize, usize),
        slice: SliceLimit,
    ) {
        self.servers.clear();
        serves(true);
        let memory = self.memory.clone().unwrap_or_else(|| Memory::new(256 << 20));
        let generations = std::mem::take(&mut self.generations);
        self.shared = Shared::of_generation(setup, workers, memory, generations).unwrap();
        serves(false);
        let (senders, inboxes): (Vec<_>, Vec<_>) = (0..workers).map(|_| mailbox(256).unwrap()).unzip();
        self.peers = Arc::from(senders);
        let io = self.network.endpoint(&[SERVER.parse().unwrap()]).unwrap();
        let shards = split(io, workers, room, batch);
        self.tracers = Tracers::new(workers);
        for (index, (io, inbox)) in shards.into_iter().zip(inboxes).enumerate() {
            let mailbox = self.peers[index].clone();
            let mut endpoint = Endpoint::new(index, self.shared.clone(), mailbox).unwrap();
            endpoint.set_tracer(self.tracers.tracer(index));
            let options = WorkerOptions { index, slice, ..WorkerOptions::default() };
            let mut worker =
                Worker::new(options, Instant::now(), endpoint, io, inbox, Arc::clone(&self.peers));
            worker.set_tracer(self.tracers.tracer(index));
            self.servers.push(Server { worker, vain: 0, has_more: false, most: Most::default() });
        }
    }

    pub fn server(&self) -> SocketAddr {
        SERVER.parse().unwrap()
    }

    pub fn add(&mut self, client: Client) -> usize {
        self.clients.push(client);
        self.clients.len() - 1
    }

    pub fn stats(&self, worker: usize) -> Stats {
        self.servers[worker].worker.service().stats()
    }

    pub fn held_bytes(&mut self) -> usize {
        self.servers.iter_mut().map(|server| server.worker.service_mut().held_bytes()).sum()
    }

    pub fn is_finished(&self) -> bool {
        use expressway_netio::Service;
        self.servers.iter().all(|server| server.worker.service().is_finished())
    }

    /// Turns of a worker that only a timer asked for, and that came to nothing.
    pub fn vain_turns(&self, worker: usize) -> usize {
        self.servers[worker].vain
    }

    /// The most that one turn of a worker did since this was asked last.
    pub fn most(&mut self, worker: usize) -> Most {
        std::mem::take(&mut self.servers[worker].most)
    }

    /// Turns of a worker that left something to the next.
    pub fn unfinished_turns(&self, worker: usize) -> u64 {
        self.servers[worker].worker.stats().unfinished
    }

    pub fn io_stats(&self) -> expressway_netio::IoStats {
        self.servers[0].worker.io().stats()
    }

    /// Runs until `done`, or fails the test.
    #[track_caller]
    pub fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let limit = Instant::now() + LIMIT;
        while !done(self) {
            assert!(Instant::now() < limit, "timed out waiting for: {what}\n{}", self.describe());
            self.step();
        }
    }

    /// How things stand, for a failed test.
    fn describe(&mut self) -> String {
        let mut text = String::new();
        for server in &self.servers {
            for field in server.worker.service().stats().fields().iter().filter(|field| field.value != 0) {
                text += &format!("  {} {}\n", field.name, field.value);
            }
        }
        text += &format!("  held {} of network {:?}\n", self.held_bytes(), self.network.stats());
        for client in &self.clients {
            text += &format!("  client {:?} closed {}\n", client.quic.stats(), client.quic.is_closed());
            for (stream, response) in client.responses.iter().filter(|(_, response)| !response.is_over()) {
                text +=
                    &format!("  stream {stream}: {} bytes of {:?}\n", response.received, response.headers);
            }
        }
        text
    }

    /// Runs for a while, whatever happens.
    pub fn for_a_while(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.step();
        }
    }

    fn step(&mut self) {
        let Self { network, clients, servers, .. } = self;
        let mut nodes: Vec<&mut dyn Node> = Vec::new();
        nodes.extend(servers.iter_mut().map(|server| server as &mut dyn Node));
        nodes.extend(clients.iter_mut().map(|client| client as &mut dyn Node));
        let first = RefCell::new(true);
        let limit = Instant::now() + Duration::from_millis(5);
        run_until(network, &mut nodes, &mut Clock::Real, limit, || !first.replace(false)).unwrap();
    }
}
