//! The QUIC endpoint of one worker.
//!
//! A datagram is decrypted when it arrives; its contents are handled when its connection's turn to send
//! comes, so that a train of datagrams costs one round of HTTP/3, one refill of streams and one burst.
//!
//! # Scheduling
//!
//! Connections wait in one queue, and each has a share of the turn. A connection that has used its share goes to the
//! end with its remaining work: requests, streams to read, responses to move. Everything that can be deferred goes
//! through this queue: wake-ups only name requests, and a drain only queues connections. A handshake costs a hundred
//! times as much as a packet and cannot be interrupted. The packets that begin one therefore have their own queue,
//! after those of connections, with at most half of the time while connections have work. A long queue counts as
//! load and is answered by Retry. A reload's engines, one for each worker, are made by the thread that reloads.
//!
//! # Rebinding
//!
//! quiche declares losses by path, so data in flight to a NAT's old port would never be declared lost after a
//! rebinding. A known connection ID from a new port is therefore treated as an alias of its old path: the
//! endpoint validates the address itself by PATH_CHALLENGE, and observes the amplification limit until it is
//! answered.

mod accept;
mod address;
mod connection;
mod drain;
mod follow;
mod handshake_queue;
mod link;
mod probe;
mod receive;
mod received;
mod replies;
mod transmit;
mod turn;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use expressway_metrics::Published;
use expressway_netio::mailbox::Mailbox;
use expressway_netio::trace::{Arrival, Filter, Tracer};
use expressway_netio::{Context, Datagram, IoError, PacketIo, Service, Transmit};
use expressway_web::Notify;
use expressway_web::memory::Memory;

use super::application::Application;
use super::cid::Cid;
use super::cid::{CheckKeys, CidIssuer, Routable};
use super::engine::{Engine, EngineError};
use super::header::{self, Header};
use super::instance::Instance;
use super::message::{BufferPool, ForeignDatagram, Message, WakeList};
use super::older::Generations;
use super::qlog::{QlogError, Qlogs, Recording};
use super::reset::Resets;
use super::settings::Settings;
use super::stats::Stats;
use super::table::{Key, Table};
use super::tls::Secrets;
use super::token::{RetryTokens, SharedRetry, SharedRetryKeys};
use connection::Connection;
use handshake_queue::HandshakeQueue;
use replies::Replies;
use turn::Worker;

pub use turn::{Turn, Waker};

/// What new connections of an endpoint are created with. Replaced as a whole by [`Shared::reload`]; a
/// connection keeps the one it was created with.
pub struct Setup {
    /// Limits, timers and TLS.
    pub settings: Settings,
    /// The protocol above QUIC.
    pub application: Arc<dyn Application>,
}

/// Hand-over buffers of all workers together: enough for a batch from each queue to be in transit.
const HANDOVER_BUFFERS: usize = 1024;

/// The endpoint's own timer; that of a connection is its key plus 1.
const DRAIN_TIMER: usize = 0;

/// Default limit in bytes for all connections together.
const MEMORY: usize = 256 << 20;

/// What the endpoints of a server have in common.
pub struct Shared {
    secrets: Secrets,
    /// Keys of Retry tokens that are shared with other servers.
    retry: SharedRetry,
    /// Kept for as long as its secrets are in use, so that no other process takes them for its own.
    _instance: Instance,
    generations: Generations,
    memory: Arc<Memory>,
    /// The qlog that the admin listener asked for.
    qlogs: Arc<Qlogs>,
    pool: BufferPool,
    published: Box<[Published<Stats>]>,
    /// How connection IDs are encoded for load balancers: as in the setup, or as replaced since.
    routable: Mutex<Option<Routable>>,
    /// What new connections are created with. `revision` counts how often this or `routable` was replaced.
    setup: Mutex<Arc<Setup>>,
    revision: AtomicU64,
    /// What each endpoint takes up next. Made by the thread that reloads, as reading a certificate chain would delay a worker.
    next: Box<[Mutex<Option<Next>>]>,
    /// Former setups, which connections may still use. They are dropped here and never by a worker: a setup owns files, and
    /// a log with a thread.
    retired: Mutex<Vec<Arc<Setup>>>,
}

/// What was done with a datagram that a newer process forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakenOver {
    /// Queued to its worker.
    Given,
    /// Dropped: its worker's mailbox is full, or no buffer was free.
    Full,
    /// Dropped: this process has no worker of the number in its connection ID.
    UnknownWorker,
}

/// A setup with the engine made for it.
struct Next {
    setup: Arc<Setup>,
    engine: Engine,
}

impl Shared {
    /// For `workers` endpoints (1 to 256, as a connection ID names its worker by a byte), with secrets
    /// derived from the private key in `setup`; fails only when the TLS library does.
    pub fn new(setup: &Arc<Setup>, workers: usize) -> Result<Arc<Self>, EngineError> {
        Self::with_memory(setup, workers, Memory::new(MEMORY))
    }

    /// The same, with the memory of connections counted in `memory`, as their handler's is.
    pub fn with_memory(
        setup: &Arc<Setup>,
        workers: usize,
        memory: Arc<Memory>,
    ) -> Result<Arc<Self>, EngineError> {
        Self::of_generation(setup, workers, memory, Generations::default())
    }

    /// The same, for a process that succeeded others.
    pub fn of_generation(
        setup: &Arc<Setup>,
        workers: usize,
        memory: Arc<Memory>,
        generations: Generations,
    ) -> Result<Arc<Self>, EngineError> {
        let settings = &setup.settings;
        Ok(Arc::new(Self {
            generations,
            secrets: Secrets::derive(settings.tls.identity(), &settings.instance)?
                .with_filter_keys(&settings.filter_keys),
            retry: Arc::new(settings.retry_keys.clone().map(Arc::new).into()),
            routable: Mutex::new(settings.routable),
            _instance: settings.instance.clone(),
            memory,
            qlogs: Arc::default(),
            pool: BufferPool::new(HANDOVER_BUFFERS, settings.max_receive_payload()),
            published: (0..workers.clamp(1, 256)).map(|_| Published::default()).collect(),
            setup: Mutex::new(Arc::clone(setup)),
            revision: AtomicU64::new(0),
            next: (0..workers.clamp(1, 256)).map(|_| Mutex::default()).collect(),
            retired: Mutex::default(),
        }))
    }

    /// Records the qlog of the first connection that `filter` selects and that receives a datagram, up to `limit` bytes.
    ///
    /// # Errors
    /// One is being recorded already, or all are, or the build lacks the feature.
    pub fn record_qlog(&self, filter: Filter, limit: usize) -> Result<Recording, QlogError> {
        if !cfg!(feature = "qlog") {
            return Err(QlogError::Unsupported);
        }
        if self.lock_setup().settings.qlog.is_some() {
            return Err(QlogError::All);
        }
        self.qlogs.start(filter, limit)
    }

    /// The keys of this process's connection IDs, for the one that succeeds it.
    pub fn check_keys(&self) -> CheckKeys {
        self.secrets.cid
    }

    /// Gives a datagram from `remote` to `local`, forwarded by a newer process, to the one of `workers` that has its connection.
    pub fn take_over(
        &self,
        workers: &[Mailbox<Message>],
        (local, remote): (SocketAddr, SocketAddr),
        payload: &[u8],
    ) -> TakenOver {
        let cid = match header::parse(payload) {
            Ok(Header::Short { dcid }) => Some(dcid),
            Ok(Header::Long { dcid, .. }) => Cid::from_slice(dcid),
            _ => None,
        };
        let Some(worker) = cid.and_then(|cid| workers.get(cid.worker())) else {
            return TakenOver::UnknownWorker;
        };
        let Some(buffer) = self.pool.take(payload) else { return TakenOver::Full };
        match worker.try_send(Message::Datagram(ForeignDatagram { buffer, remote, local })) {
            Ok(()) => TakenOver::Given,
            Err(_) => TakenOver::Full,
        }
    }

    fn tokens(&self, settings: &Settings) -> RetryTokens {
        RetryTokens::new(self.secrets.retry, settings.retry_lifetime, self.secrets.filter.clone())
            .with_shared(Arc::clone(&self.retry))
    }

    /// Has all endpoints create and accept Retry tokens with other shared keys, at once.
    pub fn set_retry_keys(&self, keys: SharedRetryKeys) {
        self.retry.store(Some(Arc::new(keys)));
    }

    /// Has all endpoints encode new connection IDs for load balancers in another way, from their next turn until the next
    /// reload. Existing IDs stay as they are.
    pub fn set_routable(&self, routable: Option<Routable>) {
        *self.routable.lock().unwrap_or_else(PoisonError::into_inner) = routable;
        self.revision.fetch_add(1, Ordering::Release);
    }

    fn routable(&self) -> Option<Routable> {
        *self.routable.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The numbers of one worker, or of all.
    pub fn stats(&self, worker: Option<usize>) -> Stats {
        let mut sum = Stats::default();
        for (index, published) in self.published.iter().enumerate() {
            if worker.is_none_or(|worker| worker == index) {
                sum += published.load();
            }
        }
        sum
    }

    /// Has all endpoints create new connections with `setup` from their next turn on ([`Message::Wake`] causes
    /// one). Changes nothing if its TLS context or log files can't be created. All endpoints or none: it does not
    /// depend on room in a mailbox.
    pub fn reload(&self, setup: Arc<Setup>) -> Result<(), EngineError> {
        let made = self.next.iter().map(|_| Engine::new(&setup));
        let engines = made.collect::<Result<Vec<_>, _>>()?;
        let former = std::mem::replace(&mut *self.lock_setup(), Arc::clone(&setup));
        self.retired.lock().unwrap_or_else(PoisonError::into_inner).push(former);
        for (slot, engine) in self.next.iter().zip(engines) {
            let next = Some(Next { setup: Arc::clone(&setup), engine });
            // One that was not taken up is dropped here, after the lock.
            let _unused = std::mem::replace(&mut *slot.lock().unwrap_or_else(PoisonError::into_inner), next);
        }
        *self.routable.lock().unwrap_or_else(PoisonError::into_inner) = setup.settings.routable;
        self.revision.fetch_add(1, Ordering::Release);
        self.collect();
        Ok(())
    }

    /// Drops the setups that no connection uses any more. To be called now and then, by a thread that may block.
    pub fn collect(&self) {
        let mut retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        // Once only this list refers to a setup, nothing can refer to it again.
        let unused: Vec<_> = retired.extract_if(.., |setup| Arc::strong_count(setup) == 1).collect();
        drop(retired);
        drop(unused);
    }

    fn lock_setup(&self) -> MutexGuard<'_, Arc<Setup>> {
        self.setup.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The QUIC endpoint of one worker; see the module.
pub struct Endpoint {
    worker: Worker,
    shared: Arc<Shared>,
    setup: Arc<Setup>,
    revision: u64,
    engine: Engine,
    tokens: RetryTokens,
    table: Table<Connection>,
    /// Connections that may have something to send, each once.
    ready: VecDeque<Key>,
    /// First packets of new connections.
    handshakes: HandshakeQueue,
    /// Where the walk over connections goes on that tells them of the drain or its end.
    sweep: Option<Key>,
    replies: Replies,
    wakes: Arc<WakeList>,
    /// Wake tokens, of which the first `heard` were handled.
    woken: Vec<u64>,
    heard: usize,
    /// Scratch for data read from streams.
    scratch: Box<[u8]>,
    generation: u16,
    /// What packet I/O last said about the largest payload, for IPv4 and IPv6.
    max_payload: [usize; 2],
    /// Arrival of the datagram that is being handled, while a trace is on.
    arrival: Option<Arrival>,
}

impl Endpoint {
    /// The endpoint of worker number `worker`, whose own mailbox is `mailbox`.
    pub fn new<M: From<Message> + Send + 'static>(
        worker: usize,
        shared: Arc<Shared>,
        mailbox: Mailbox<M>,
    ) -> Result<Self, EngineError> {
        let number = u8::try_from(worker).map_err(|_| EngineError::TooManyWorkers { worker })?;
        let revision = shared.revision.load(Ordering::Acquire);
        let setup = Arc::clone(&shared.lock_setup());
        let settings = &setup.settings;
        let wakes = WakeList::new(mailbox);
        let mut cids = CidIssuer::new(number, shared.secrets.cid).of_generation(shared.generations.own);
        cids.set_routable(shared.routable());
        Ok(Self {
            worker: Worker {
                number,
                stats: Stats::default(),
                first_timer: 0,
                notify: Arc::clone(&wakes) as Arc<dyn Notify>,
                ledger: shared.memory.ledger(),
                cids,
                resets: Resets::new(shared.secrets.reset, settings.resets_per_second),
                strings: Vec::new(),
                drain: None,
                retiring: false,
                awaits_crossing: false,
                expired: false,
                tracer: Tracer::default(),
            },
            engine: Engine::new(&setup)?,
            tokens: shared.tokens(settings),
            table: Table::with_room(settings.max_connections, settings.connection_ids as usize),
            ready: VecDeque::new(),
            handshakes: HandshakeQueue::default(),
            sweep: None,
            replies: Replies::default(),
            wakes,
            woken: Vec::new(),
            heard: 0,
            scratch: vec![0; 16 << 10].into_boxed_slice(),
            generation: 0,
            max_payload: [1472, 1452],
            arrival: None,
            shared,
            setup,
            revision,
        })
    }

    /// Sets the worker's tracer, by which it records what is traced.
    pub fn set_tracer(&mut self, tracer: Tracer) {
        self.worker.tracer = tracer;
    }

    /// Current statistics, for callers that run the endpoint on their own thread.
    pub fn stats(&self) -> Stats {
        self.worker.stats
    }

    /// Bytes of responses in memory that clients have not acknowledged.
    pub fn held_bytes(&mut self) -> usize {
        let keys = self.table.keys();
        keys.into_iter().filter_map(|key| self.table.get_mut(key).map(|connection| connection.held())).sum()
    }

    /// Queues a connection to send, unless it is queued.
    fn enqueue(&mut self, key: Key) {
        if let Some(connection) = self.table.get_mut(key)
            && !connection.queued
        {
            connection.queued = true;
            self.ready.push_back(key);
        }
    }

    /// Takes up what [`Shared::reload`] left, if anything.
    fn follow_setup(&mut self) {
        let revision = self.shared.revision.load(Ordering::Acquire);
        if revision == self.revision {
            return;
        }
        self.revision = revision;
        self.worker.cids.set_routable(self.shared.routable());
        let slot = &self.shared.next[usize::from(self.worker.number)];
        let next = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Next { setup, engine }) = next {
            self.engine = engine;
            self.worker.resets.set_rate(setup.settings.resets_per_second);
            self.tokens = self.shared.tokens(&setup.settings);
            self.setup = setup;
        }
    }
}

/// What a worker calls. A service that contains an endpoint calls the same, with a message type of its own that wraps the
/// endpoint's.
impl Endpoint {
    /// Sets the first timer token that it may use: those below are the caller's.
    pub fn set_first_timer(&mut self, first: usize) {
        self.worker.first_timer = first;
    }

    /// As [`Service::handle_datagram`].
    pub fn take_datagram<M: From<Message> + Send>(
        &mut self,
        context: &mut Context<'_, M>,
        datagram: Datagram<'_>,
    ) {
        let (path, length) = ((datagram.local, datagram.remote), datagram.payload.len());
        let is_traced = self.worker.tracer.is_on();
        if is_traced {
            self.note_arrival(&datagram);
        }
        self.receive(context.now, context.peers, datagram.payload, path);
        if is_traced {
            self.settle_arrival(length, path);
        }
    }

    /// As [`Service::handle_message`].
    pub fn take_message<M: From<Message> + Send>(&mut self, context: &mut Context<'_, M>, message: Message) {
        match message {
            Message::Datagram(mut datagram) => {
                self.worker.stats.taken_over += 1;
                let path = (datagram.local, datagram.remote);
                if self.worker.tracer.is_on() {
                    self.note_handed_over();
                }
                self.receive::<M>(context.now, &[], datagram.buffer.payload_mut(), path);
            }
            // Wake-ups and the setup are checked in every turn anyway.
            Message::Wake => {}
            Message::Drain { deadline } => self.begin_drain(context, deadline, false),
            Message::Retire { deadline } => self.begin_drain(context, deadline, true),
        }
    }

    /// As [`Service::handle_timer`], for tokens from its first on.
    pub fn take_timer<M>(&mut self, context: &mut Context<'_, M>, token: usize) {
        let Some(token) = token.checked_sub(self.worker.first_timer) else { return };
        if token == DRAIN_TIMER {
            self.follow_drain(context);
            return;
        }
        let key = token - 1;
        if let Some(connection) = self.table.get_mut(key) {
            connection.handle_timer(context.now, &mut self.worker.stats);
            self.enqueue(key);
        }
    }

    /// As [`Service::poll_transmit`].
    pub fn fill<M>(
        &mut self,
        context: &mut Context<'_, M>,
        io: &mut dyn PacketIo,
    ) -> Result<Transmit, IoError> {
        self.follow_setup();
        let left = self.transmit(context, io)?;
        self.worker.stats.connections = self.table.len() as u64;
        let levels = self.worker.ledger.levels();
        self.worker.stats.response_bytes = levels.responses as u64;
        self.worker.stats.request_bytes = levels.requests as u64;
        Ok(left)
    }
}

impl Service for Endpoint {
    type Message = Message;

    fn handle_datagram(&mut self, context: &mut Context<'_, Message>, datagram: Datagram<'_>) {
        self.take_datagram(context, datagram);
    }

    fn handle_message(&mut self, context: &mut Context<'_, Message>, message: Message) {
        self.take_message(context, message);
    }

    fn handle_timer(&mut self, context: &mut Context<'_, Message>, token: usize) {
        self.take_timer(context, token);
    }

    fn poll_transmit(
        &mut self,
        context: &mut Context<'_, Message>,
        io: &mut dyn PacketIo,
    ) -> Result<Transmit, IoError> {
        self.fill(context, io)
    }

    fn publish(&mut self) {
        if let Some(published) = self.shared.published.get(usize::from(self.worker.number)) {
            published.store(&self.worker.stats);
        }
    }

    fn is_finished(&self) -> bool {
        let is_idle = || self.ready.is_empty() && self.sweep.is_none();
        // What waits for its handshake arrived before the newer process took over new connections, and more may be in transit.
        let awaits = self.worker.retiring && (self.worker.awaits_crossing || !self.handshakes.is_empty());
        let is_empty = self.table.len() == 0 && !awaits;
        self.worker.drain.is_some() && (is_empty || self.worker.expired && is_idle())
    }
}
