//! Admission: a thread that accepts connections, checks them, performs handshakes, and hands subscribers to
//! shards.
//!
//! Handshakes cost far more than a send. Here they delay nobody, and the thread gives way to sending
//! threads. Everything is bounded: connections by the limits on subscribers and handshakes, each handshake
//! in bytes and in time, and a wake-up by what has become ready ([`PendingSet`]).
//!
//! Beyond the limit of handshakes, the oldest is ended if it has had enough time for any honest peer.
//! Otherwise the new one is refused. So silent connections cannot lock others out for longer than that, and
//! in a crowd the first are not displaced by later ones.

use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use expressway_netio::mailbox::{Inbox, Mailbox};
use expressway_netio::priority;
use rustix::event::{Timespec, epoll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{self, SocketFlags, sockopt};

use super::handshake::{Failure, Handshake, Progress, Ready, Rules};
use super::options::{Cidr, Limits, Listen, Protocol};
use super::pending::{PendingSet, Token};
use super::presence::{Full, Host};
use super::shard::Message;
use super::stats::{Ledger, Totals, add};
use super::subscriber::Newcomer;

/// Connections accepted at a time before handshakes have their turn.
const ACCEPTS: usize = 64;

/// How long a connection that got a page may take to close.
const LINGER: Duration = Duration::from_secs(2);

/// How long a handshake may take before it may have to make room for others: many round trips.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long accepting rests when the kernel has no memory or descriptors for it.
const REST: Duration = Duration::from_millis(50);

/// How long a shard may take to accept a subscriber from the queue.
const HANDOVER: Duration = Duration::from_secs(5);

/// Niceness of this thread: on an overloaded core, sending threads get nine tenths.
const NICE: i32 = 10;

/// Keepalive: a subscriber that vanished is detected within half a minute, even while the feed pauses.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(15), Duration::from_secs(5), 3);

const EVENTS: usize = 128;
const INBOX: u64 = u64::MAX;
/// Handshakes have the numbers from here on ([`Token`]); listeners those below.
const HANDSHAKES: u64 = 1 << 32;

/// A bound listener.
pub(crate) struct Listener {
    pub(crate) fd: OwnedFd,
    pub(crate) listen: Listen,
}

/// What the acceptor needs to know.
pub(crate) struct AcceptorConfig {
    pub(crate) listeners: Vec<Listener>,
    pub(crate) rules: Rules,
    pub(crate) allow: Vec<Cidr>,
    pub(crate) limits: Limits,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) shards: Vec<Mailbox<Message>>,
}

struct Pending {
    handshake: Handshake,
    protocol: Protocol,
    peer: SocketAddr,
    socket: Arc<OwnedFd>,
    served: bool,
    /// It is in the queue of handshakes to continue.
    queued: bool,
}

/// The acceptor's thread.
pub(crate) struct Acceptor {
    config: AcceptorConfig,
    epoll: OwnedFd,
    inbox: Inbox<()>,
    pending: PendingSet<Pending>,
    /// Those that had more to say than a turn takes.
    again: VecDeque<Token>,
    /// Given up for a moment when descriptors run out, so that a connection can be accepted and closed.
    reserve: Option<OwnedFd>,
    next_shard: usize,
    rest_until: Option<Instant>,
    /// [`PATIENCE`].
    patience: Duration,
}

impl Acceptor {
    /// Watches the listeners. Anything sent to `inbox` ends the acceptor.
    pub(crate) fn new(config: AcceptorConfig, inbox: Inbox<()>) -> Result<Self, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (index, listener) in config.listeners.iter().enumerate() {
            let data = epoll::EventData::new_u64(index as u64);
            epoll::add(&epoll, &listener.fd, data, epoll::EventFlags::IN)?;
        }
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, inbox.as_fd(), epoll::EventData::new_u64(INBOX), flags)?;
        let reserve = reserve();
        Ok(Self {
            config,
            epoll,
            inbox,
            pending: PendingSet::new(),
            again: VecDeque::new(),
            reserve,
            next_shard: 0,
            rest_until: None,
            patience: PATIENCE,
        })
    }

    /// Runs until told to end.
    pub(crate) fn run(mut self) -> Result<(), Errno> {
        if let Err(error) = priority::stand_back(NICE) {
            tracing::debug!(%error, "setpriority failed: handshakes run at the same priority as sending");
        }
        let mut stop = false;
        while !stop {
            self.turn()?;
            self.inbox.drain(1, |()| stop = true);
        }
        Ok(())
    }

    /// Waits for the next event and handles it.
    fn turn(&mut self) -> Result<(), Errno> {
        let timeout = self.timeout().and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut events = [MaybeUninit::<epoll::Event>::uninit(); EVENTS];
        let result = epoll::wait(&self.epoll, &mut events, timeout.as_ref());
        self.inbox.awake();
        match result {
            Ok((events, _)) => {
                for event in events.iter() {
                    match event.data.u64() {
                        INBOX => {}
                        token @ HANDSHAKES.. => self.advance(token),
                        listener => self.accept(listener as usize),
                    }
                }
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        for _ in 0..self.again.len() {
            let Some(token) = self.again.pop_front() else { break };
            if let Some(pending) = self.pending.get_mut(token) {
                pending.queued = false;
                self.advance(token);
            }
        }
        self.expire();
        self.config.ledger.handshakes.store(self.pending.len(), Ordering::Relaxed);
        Ok(())
    }

    /// Time until something must be done without an event; `None`: no limit.
    fn timeout(&mut self) -> Option<Duration> {
        if self.inbox.prepare_sleep() || !self.again.is_empty() {
            return Some(Duration::ZERO);
        }
        let next = self.pending.next_deadline().into_iter().chain(self.rest_until).min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    fn accept(&mut self, index: usize) {
        for _ in 0..ACCEPTS {
            let fd = &self.config.listeners[index].fd;
            match net::acceptfrom_with(fd, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok((socket, peer)) => {
                    // Every TCP connection has one.
                    if let Some(peer) = peer.and_then(|peer| SocketAddr::try_from(peer).ok()) {
                        self.welcome(index, socket, peer);
                    }
                }
                Err(Errno::AGAIN) => return,
                // Errors of the connection, not of the listener (accept(2)).
                Err(
                    Errno::INTR
                    | Errno::CONNABORTED
                    | Errno::PROTO
                    | Errno::NETDOWN
                    | Errno::NETUNREACH
                    | Errno::HOSTDOWN
                    | Errno::HOSTUNREACH
                    | Errno::NOPROTOOPT
                    | Errno::OPNOTSUPP
                    | Errno::PERM,
                ) => {}
                Err(error) => return self.out_of_descriptors(index, error),
            }
        }
    }

    /// Closes a connection that there is no descriptor for, rather than to leave it waiting; then rests.
    fn out_of_descriptors(&mut self, index: usize, error: Errno) {
        if matches!(error, Errno::MFILE | Errno::NFILE) && self.reserve.take().is_some() {
            if net::accept_with(&self.config.listeners[index].fd, SocketFlags::CLOEXEC).is_ok() {
                add(&self.config.ledger.totals.refused_descriptors, 1);
            }
            self.reserve = reserve();
        }
        if self.rest_until.is_none() {
            tracing::warn!(%error, "accept failed: new subscribers are rejected; raise the open file limit (RLIMIT_NOFILE)");
            self.listen_for(epoll::EventFlags::empty());
        }
        self.rest_until = Some(Instant::now() + REST);
    }

    fn listen_for(&mut self, flags: epoll::EventFlags) {
        for (index, listener) in self.config.listeners.iter().enumerate() {
            let data = epoll::EventData::new_u64(index as u64);
            if let Err(error) = epoll::modify(&self.epoll, &listener.fd, data, flags) {
                tracing::warn!(%error, "epoll_ctl");
            }
        }
    }

    fn welcome(&mut self, index: usize, socket: OwnedFd, peer: SocketAddr) {
        let ledger = self.config.ledger.clone();
        let totals = &ledger.totals;
        add(&totals.accepted, 1);
        if !self.config.allow.is_empty() && !self.config.allow.iter().any(|cidr| cidr.contains(peer.ip())) {
            return add(&totals.refused_address, 1);
        }
        let host = Host::of(peer.ip());
        let protocol = self.config.listeners[index].listen.protocol;
        if let Err(counter) = self.make_room(host, protocol) {
            return add(counter(totals), 1);
        }
        if let Err(error) = prepare(&socket, &self.config.limits) {
            tracing::debug!(%peer, %error, "socket options");
        }
        let socket = Arc::new(socket);
        let Some(mut handshake) = Handshake::new(protocol, socket.clone(), &self.config.rules) else {
            return self.failed(Failure::Handshake, host);
        };
        // Most have nothing to wait for.
        match handshake.advance(&self.config.rules) {
            Progress::Subscribe(ready) => self.hand_over(ready, protocol, peer),
            Progress::Failed(failure) => self.failed(failure, host),
            progress @ (Progress::Waiting | Progress::TurnOver | Progress::Served) => {
                let pending = Pending {
                    handshake,
                    protocol,
                    peer,
                    socket: socket.clone(),
                    served: false,
                    queued: false,
                };
                let now = Instant::now();
                let token = self.pending.insert(pending, host, now, now + self.config.limits.handshake);
                let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
                if let Err(error) = epoll::add(&self.epoll, &*socket, epoll::EventData::new_u64(token), flags)
                {
                    tracing::warn!(%peer, %error, "epoll_ctl");
                    return self.end(token, Failure::Gone);
                }
                self.note(token, progress);
            }
        }
    }

    /// Counts a newcomer in, if need be instead of another; else says by which counter it is refused.
    fn make_room(&mut self, host: Host, protocol: Protocol) -> Result<(), Counted> {
        let (limits, ledger) = (self.config.limits, self.config.ledger.clone());
        let mut room = ledger.presence.enter(host);
        if let Err(full) = room
            && self.displace((full == Full::Host).then_some(host))
        {
            room = ledger.presence.enter(host);
        }
        room.map_err(|full| -> Counted {
            match full {
                Full::All => |totals| &totals.refused_limit,
                Full::Host => |totals| &totals.refused_limit_address,
            }
        })?;
        if self.config.rules.have_handshake(protocol) {
            let of_host = (self.pending.len_of(host) >= limits.handshakes_per_address).then_some(host);
            let is_full = of_host.is_some() || self.pending.len() >= limits.handshakes;
            if is_full && !self.displace(of_host) {
                ledger.presence.leave(host);
                return Err(|totals| &totals.refused_busy);
            }
        }
        Ok(())
    }

    /// Ends the handshake that has been under way for longest, if that is long enough; of a host, if one is named.
    fn displace(&mut self, host: Option<Host>) -> bool {
        let Some((token, since)) = self.pending.first(host) else { return false };
        let served = self.pending.get_mut(token).is_some_and(|pending| pending.served);
        if !served && since.elapsed() < self.patience {
            return false;
        }
        self.end(token, Failure::Displaced);
        true
    }

    fn advance(&mut self, token: Token) {
        if let Some(pending) = self.pending.get_mut(token) {
            let progress = pending.handshake.advance(&self.config.rules);
            self.note(token, progress);
        }
    }

    fn note(&mut self, token: Token, progress: Progress) {
        let Some(pending) = self.pending.get_mut(token) else { return };
        match progress {
            Progress::Waiting => {}
            Progress::TurnOver => {
                if !std::mem::replace(&mut pending.queued, true) {
                    self.again.push_back(token);
                }
            }
            Progress::Served => {
                if !std::mem::replace(&mut pending.served, true) {
                    self.pending.set_deadline(token, Instant::now() + LINGER);
                    add(&self.config.ledger.totals.pages, 1);
                }
            }
            Progress::Subscribe(ready) => {
                let (protocol, peer) = (pending.protocol, pending.peer);
                self.forget(token);
                self.hand_over(ready, protocol, peer);
            }
            Progress::Failed(failure) => self.end(token, failure),
        }
    }

    /// Ends a handshake that produced no subscriber.
    fn end(&mut self, token: Token, failure: Failure) {
        if let Some((pending, host)) = self.forget(token) {
            // A peer that got a page is done.
            self.failed(if pending.served { Failure::Served } else { failure }, host);
        }
    }

    fn forget(&mut self, token: Token) -> Option<(Pending, Host)> {
        let (pending, host) = self.pending.remove(token)?;
        let _ = epoll::delete(&self.epoll, &*pending.socket);
        Some((pending, host))
    }

    fn failed(&self, failure: Failure, host: Host) {
        let totals = &self.config.ledger.totals;
        match failure {
            Failure::Handshake => add(&totals.refused_handshake, 1),
            Failure::Origin => add(&totals.refused_origin, 1),
            Failure::Size => add(&totals.refused_size, 1),
            Failure::Timeout => add(&totals.refused_handshake_timeout, 1),
            Failure::Displaced => add(&totals.refused_displaced, 1),
            Failure::Busy => add(&totals.refused_busy, 1),
            Failure::Gone => add(&totals.abandoned, 1),
            Failure::Served => {}
        }
        self.config.ledger.presence.leave(host);
    }

    fn hand_over(&mut self, ready: Ready, protocol: Protocol, peer: SocketAddr) {
        let Ready { transport, start, greeting, input } = ready;
        let newcomer = Newcomer { transport, protocol, peer, start, greeting, input };
        self.next_shard = (self.next_shard + 1) % self.config.shards.len();
        let message = Message::Subscribe(Box::new(newcomer));
        let sent = self.config.shards[self.next_shard].send_until(message, Instant::now() + HANDOVER);
        if sent.is_err() {
            tracing::warn!(%peer, "the sending thread accepts no subscribers: rejected");
            self.failed(Failure::Busy, Host::of(peer.ip()));
        }
    }

    fn expire(&mut self) {
        let now = Instant::now();
        if self.rest_until.is_some_and(|until| until <= now) {
            self.rest_until = None;
            self.listen_for(epoll::EventFlags::IN);
        }
        while let Some(token) = self.pending.expired(now) {
            self.end(token, Failure::Timeout);
        }
    }
}

/// Names a counter.
type Counted = fn(&Totals) -> &AtomicU64;

fn reserve() -> Option<OwnedFd> {
    rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()
}

/// What every subscriber's socket is set to. An error leaves a socket that works, less well.
fn prepare(socket: &OwnedFd, limits: &Limits) -> Result<(), Errno> {
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_socket_send_buffer_size(socket, limits.send_buffer)?;
    sockopt::set_tcp_user_timeout(socket, u32::try_from(limits.stall.as_millis()).unwrap_or(u32::MAX))?;
    let (idle, interval, count) = KEEPALIVE;
    sockopt::set_tcp_keepidle(socket, idle)?;
    sockopt::set_tcp_keepintvl(socket, interval)?;
    sockopt::set_tcp_keepcnt(socket, count)?;
    sockopt::set_socket_keepalive(socket, true)
}

#[cfg(all(test, not(loom)))]
#[path = "acceptor_tests.rs"]
mod tests;
