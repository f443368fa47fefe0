//! The whole fan-out: binds listeners, starts threads, reports statistics, shuts down.

use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use expressway_netio::mailbox::{Mailbox, mailbox};
use expressway_netio::stats::StatsCell;
use expressway_netio::{IoError, IoStats, PacketIo};
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, ipproto, sockopt};

use super::acceptor::{Acceptor, AcceptorConfig, Listener};
use super::framing::Framing;
use super::handshake::Rules;
use super::options::{Listen, Options};
use super::ring::Ring;
use super::shard::{Common, Message, Shard};
use super::source::FeedInput;
use super::stats::{Ledger, Statistics};
use expressway_netio::udp::group::{Keeper, Membership};

/// Connections that the kernel holds for us; it cuts this to `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// Messages that may wait for a shard.
pub(super) const MAILBOX: usize = 1024;

/// How long a thread may take to notice that it is to stop.
const STOP: Duration = Duration::from_secs(5);

/// Why a fan-out could not begin, or ended.
#[derive(Debug, thiserror::Error)]
pub enum FanoutError {
    /// Options that cannot be.
    #[error("{0}")]
    Options(String),
    /// A listen address cannot be bound.
    #[error("{protocol} {address}: {call}: {source}", protocol = listen.protocol.name(), address = listen.address)]
    Listen {
        /// The address.
        listen: Listen,
        /// The call that failed.
        call: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The multicast group cannot be joined.
    #[error("group {group}{on}: {source}; give an interface with multicast enabled, or add a route to the group", group = .membership.group, on = on(.membership))]
    Join {
        /// What was wanted.
        membership: Membership,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A thread or its means cannot be had.
    #[error("{what}: {source}")]
    Thread {
        /// What failed.
        what: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// Packet I/O failed.
    #[error(transparent)]
    Io(#[from] IoError),
    /// The kernel cannot or may not forward.
    #[error(transparent)]
    Kernel(#[from] expressway_xbpf::Error),
    /// Something else that forwarding in the kernel needs is not there.
    #[error("forwarding in the kernel: {0}; use --mode user")]
    NotInKernel(String),
    /// A thread ended by a panic.
    #[error("a fan-out thread panicked; see the log")]
    Panicked,
}

fn on(membership: &Membership) -> String {
    membership.interface.as_ref().map_or_else(String::new, |name| format!(" on {name}"))
}

/// A running fan-out. Dropping it stops it.
pub struct Fanout {
    ledger: Arc<Ledger>,
    cell: Arc<StatsCell>,
    listen: Vec<Listen>,
    shards: Vec<Mailbox<Message>>,
    stop_acceptor: Mailbox<()>,
    threads: Vec<JoinHandle<Result<(), FanoutError>>>,
    /// Each thread tells its end.
    ended: Mutex<Receiver<()>>,
}

impl Fanout {
    /// Binds the listeners and starts the threads. Datagrams come from `io`; `membership` is joined on its kernel socket
    /// that is bound to the group.
    ///
    /// # Errors
    /// [`FanoutError`] says which option, address or group.
    pub fn start<P: PacketIo + Send + 'static>(
        options: Options,
        io: P,
        membership: Option<Membership>,
    ) -> Result<Self, FanoutError> {
        options.check().map_err(FanoutError::Options)?;
        let listeners = options.listen.iter().map(|listen| bind(*listen)).collect::<Result<Vec<_>, _>>()?;
        let keeper = membership.map(|membership| join(membership, &io)).transpose()?;
        let mut rings = vec![Ring::new(options.framing, options.ring)];
        if options.listen.iter().any(|listen| listen.protocol.is_websocket()) {
            rings.push(Ring::new(Framing::WebSocket, options.ring));
        }
        let ledger =
            Arc::new(Ledger::new(&options.limits, rings.iter().map(|ring| ring.shared().clone()).collect()));
        let snapshot = Arc::default();
        let common = Common {
            limits: options.limits,
            slow_client: options.slow_client,
            ledger: ledger.clone(),
            snapshot: Arc::clone(&snapshot),
            epoch: Instant::now(),
        };
        let (mut mailboxes, mut shards) = (Vec::new(), Vec::new());
        for index in 0..options.threads {
            let (sender, inbox) = mailbox(MAILBOX).map_err(thread("eventfd"))?;
            let views = rings.iter().map(Ring::view).collect();
            shards.push(Shard::new(index, common.clone(), inbox, views)?);
            mailboxes.push(sender);
        }
        let cell = Arc::<StatsCell>::default();
        let source = FeedInput {
            io,
            rings,
            keeper,
            sources: options.sources.clone(),
            snapshot_prefix: options.snapshot.clone(),
            snapshot,
            ledger: ledger.clone(),
            cell: cell.clone(),
            others: mailboxes[1..].to_vec(),
            looked_after: Instant::now(),
        };
        let mut parts = UnstartedFanout::new(&options, listeners, ledger, cell, mailboxes)?;
        let mut source = Some(source);
        for (index, shard) in shards.into_iter().enumerate() {
            let source = source.take();
            let work = move || shard.run(source).map_err(FanoutError::from);
            parts.spawn(format!("expressway-fan{index}"), work)?;
        }
        parts.open()
    }

    fn spawn(
        &mut self,
        name: String,
        end: End,
        work: impl FnOnce() -> Result<(), FanoutError> + Send + 'static,
    ) -> Result<(), FanoutError> {
        let run = move || {
            let _end = end;
            work()
        };
        let spawned = std::thread::Builder::new().name(name).spawn(run);
        self.threads.push(spawned.map_err(thread("thread"))?);
        Ok(())
    }

    /// The listen addresses with their actual ports, in the order of the options.
    pub fn listen(&self) -> &[Listen] {
        &self.listen
    }

    /// Everything counted, as it is now. Asks the kernel for each subscriber's round-trip time.
    pub fn statistics(&self) -> Statistics {
        self.ledger.statistics()
    }

    /// A handle that gives statistics for as long as it lives, for a metrics page.
    pub fn statistics_source(&self) -> impl Fn() -> (Statistics, IoStats) + Send + Sync + 'static {
        let (ledger, cell) = (self.ledger.clone(), self.cell.clone());
        move || (ledger.statistics(), cell.io())
    }

    /// Counters of packet I/O, at most about a second old.
    pub fn io_stats(&self) -> IoStats {
        self.cell.io()
    }

    /// Waits until a thread has ended, which none does by itself unless something failed, or until `timeout`.
    /// True when one has.
    pub fn wait(&self, timeout: Duration) -> bool {
        let ended = self.ended.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        ended.recv_timeout(timeout).is_ok()
    }

    /// Admits nobody any more, gives subscribers a second to receive what has arrived, and ends.
    ///
    /// # Errors
    /// What made a thread end earlier.
    pub fn stop(mut self) -> Result<Statistics, FanoutError> {
        let result = self.end();
        result.map(|()| self.ledger.statistics())
    }

    fn end(&mut self) -> Result<(), FanoutError> {
        let deadline = Instant::now() + STOP;
        // One that has ended takes no message, and needs none.
        let _ = self.stop_acceptor.send_until((), deadline);
        for shard in &self.shards {
            let _ = shard.send_until(Message::Stop, deadline);
        }
        let mut result = Ok(());
        for thread in self.threads.drain(..) {
            let ended = thread.join().unwrap_or(Err(FanoutError::Panicked));
            result = result.and(ended);
        }
        result
    }
}

impl Drop for Fanout {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::error!(%error, "fan-out");
        }
    }
}

/// A fan-out that accepts nobody yet.
pub(super) struct UnstartedFanout {
    fanout: Fanout,
    acceptor: Acceptor,
    ended: Sender<()>,
}

impl UnstartedFanout {
    /// Subscribers of `listeners` go to `shards` in turn.
    pub(super) fn new(
        options: &Options,
        listeners: Vec<Listener>,
        ledger: Arc<Ledger>,
        cell: Arc<StatsCell>,
        shards: Vec<Mailbox<Message>>,
    ) -> Result<Self, FanoutError> {
        let listen = listeners.iter().map(|listener| listener.listen).collect();
        let config = AcceptorConfig {
            listeners,
            rules: Rules {
                start: options.start,
                origins: options.origins.clone(),
                tls: options.tls.as_ref().map(|identity| identity.context().clone()),
                request: options.limits.request,
            },
            allow: options.allow.clone(),
            limits: options.limits,
            ledger: ledger.clone(),
            shards: shards.clone(),
        };
        let (stop_acceptor, inbox) = mailbox(1).map_err(thread("eventfd"))?;
        let acceptor = Acceptor::new(config, inbox).map_err(|error| thread("epoll")(error.into()))?;
        let (ended, ends) = channel();
        let fanout = Fanout {
            ledger,
            cell,
            listen,
            shards,
            stop_acceptor,
            threads: Vec::new(),
            ended: Mutex::new(ends),
        };
        Ok(Self { fanout, acceptor, ended })
    }

    /// Starts a thread.
    pub(super) fn spawn(
        &mut self,
        name: String,
        work: impl FnOnce() -> Result<(), FanoutError> + Send + 'static,
    ) -> Result<(), FanoutError> {
        self.fanout.spawn(name, End(self.ended.clone()), work)
    }

    /// Lets subscribers in.
    pub(super) fn open(self) -> Result<Fanout, FanoutError> {
        let Self { mut fanout, acceptor, ended } = self;
        let work = move || acceptor.run().map_err(|error| thread("epoll_wait")(error.into()));
        fanout.spawn("fanout-acceptor".into(), End(ended), work)?;
        Ok(fanout)
    }
}

/// Tells the end of a thread, also when it unwinds.
struct End(Sender<()>);

impl Drop for End {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

pub(super) fn thread(what: &'static str) -> impl Fn(io::Error) -> FanoutError {
    move |source| FanoutError::Thread { what, source }
}

fn join(membership: Membership, io: &impl PacketIo) -> Result<Keeper, FanoutError> {
    let joined = match io.kernel_socket(membership.group) {
        Some(fd) => Keeper::join(membership.clone(), fd),
        None => Err(io::Error::new(io::ErrorKind::NotFound, "no kernel socket is bound to it")),
    };
    joined.map_err(|source| FanoutError::Join { membership, source })
}

pub(super) fn bind(listen: Listen) -> Result<Listener, FanoutError> {
    let fault = |call: &'static str| {
        move |errno: rustix::io::Errno| FanoutError::Listen { listen, call, source: errno.into() }
    };
    let family = if listen.address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd =
        net::socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP)).map_err(fault("socket"))?;
    sockopt::set_socket_reuseaddr(&fd, true).map_err(fault("SO_REUSEADDR"))?;
    if listen.address.is_ipv6() {
        sockopt::set_ipv6_v6only(&fd, true).map_err(fault("IPV6_V6ONLY"))?;
    }
    net::bind(&fd, &listen.address).map_err(fault("bind"))?;
    net::listen(&fd, BACKLOG).map_err(fault("listen"))?;
    let bound = net::getsockname(&fd).and_then(SocketAddr::try_from).map_err(fault("getsockname"))?;
    Ok(Listener { fd, listen: Listen { address: bound, ..listen } })
}
