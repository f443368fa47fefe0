//! Who comes in: a thread that accepts, checks, shakes hands, and gives subscribers to shards.
//!
//! Handshakes cost far more than a send; here they delay nobody. Everything is bounded: connections by the
//! limit of subscribers, each handshake in bytes and in time.

use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use expressway_netio::mailbox::{Inbox, Mailbox};
use rustix::event::{Timespec, epoll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{self, SocketFlags, sockopt};
use slab::Slab;

use super::handshake::{Failure, Handshake, Progress, Ready, Rules};
use super::options::{Cidr, Limits, Listen, Protocol};
use super::shard::Message;
use super::stats::{Ledger, add};
use super::subscriber::Newcomer;

/// Connections accepted at a time before handshakes have their turn.
const ACCEPTS: usize = 64;

/// How often handshakes are looked at for having taken too long.
const CHECK: Duration = Duration::from_millis(100);

/// How long a connection that got a page may take to close.
const LINGER: Duration = Duration::from_secs(2);

/// How long accepting rests when the kernel has no memory or descriptors for it.
const REST: Duration = Duration::from_millis(50);

/// How long a shard may take to accept a subscriber from the queue.
const HANDOVER: Duration = Duration::from_secs(5);

/// Keepalive: a subscriber that has gone without a word is noticed within half a minute, also while the feed
/// pauses.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(15), Duration::from_secs(5), 3);

const EVENTS: usize = 128;
const INBOX: u64 = u64::MAX;
/// Listeners have the numbers from here on; handshakes those below.
const LISTENERS: u64 = 1 << 32;

/// A bound listener.
pub(crate) struct Listener {
    pub(crate) fd: OwnedFd,
    pub(crate) listen: Listen,
}

/// What the door needs to know.
pub(crate) struct House {
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
    deadline: Instant,
    served: bool,
}

/// The door's thread.
pub(crate) struct Door {
    house: House,
    epoll: OwnedFd,
    inbox: Inbox<()>,
    pending: Slab<Pending>,
    /// Given up for a moment when descriptors run out, so that a connection can be accepted and closed.
    reserve: Option<OwnedFd>,
    next_shard: usize,
    rest_until: Option<Instant>,
}

impl Door {
    /// Watches the listeners. Anything sent to `inbox` ends the door.
    pub(crate) fn new(house: House, inbox: Inbox<()>) -> Result<Self, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (index, listener) in house.listeners.iter().enumerate() {
            let data = epoll::EventData::new_u64(LISTENERS + index as u64);
            epoll::add(&epoll, &listener.fd, data, epoll::EventFlags::IN)?;
        }
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, inbox.as_fd(), epoll::EventData::new_u64(INBOX), flags)?;
        let reserve = reserve();
        Ok(Self { house, epoll, inbox, pending: Slab::new(), reserve, next_shard: 0, rest_until: None })
    }

    /// Runs until told to end.
    pub(crate) fn run(mut self) -> Result<(), Errno> {
        loop {
            let mut stop = false;
            self.inbox.drain(1, |()| stop = true);
            if stop {
                return Ok(());
            }
            let timeout = if self.inbox.prepare_sleep() {
                Some(Duration::ZERO)
            } else if self.rest_until.is_some() {
                Some(REST)
            } else {
                (!self.pending.is_empty()).then_some(CHECK)
            };
            let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
            let mut events = [MaybeUninit::<epoll::Event>::uninit(); EVENTS];
            let result = epoll::wait(&self.epoll, &mut events, timeout.as_ref());
            self.inbox.awake();
            match result {
                Ok((events, _)) => {
                    for event in events.iter() {
                        match event.data.u64() {
                            INBOX => {}
                            listener @ LISTENERS.. => self.accept((listener - LISTENERS) as usize),
                            key => self.advance(key as usize),
                        }
                    }
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
            self.expire();
        }
    }

    fn accept(&mut self, index: usize) {
        for _ in 0..ACCEPTS {
            let fd = &self.house.listeners[index].fd;
            match net::accept_with(fd, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => self.welcome(index, socket),
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
            if net::accept_with(&self.house.listeners[index].fd, SocketFlags::CLOEXEC).is_ok() {
                add(&self.house.ledger.totals.refused_descriptors, 1);
            }
            self.reserve = reserve();
        }
        if self.rest_until.is_none() {
            tracing::warn!(%error, "accept: new subscribers are turned away; raise the limit of open files (RLIMIT_NOFILE)");
            self.listen_for(epoll::EventFlags::empty());
        }
        self.rest_until = Some(Instant::now() + REST);
    }

    fn listen_for(&mut self, flags: epoll::EventFlags) {
        for (index, listener) in self.house.listeners.iter().enumerate() {
            let data = epoll::EventData::new_u64(LISTENERS + index as u64);
            if let Err(error) = epoll::modify(&self.epoll, &listener.fd, data, flags) {
                tracing::warn!(%error, "epoll_ctl");
            }
        }
    }

    fn welcome(&mut self, index: usize, socket: OwnedFd) {
        let ledger = self.house.ledger.clone();
        let totals = &ledger.totals;
        add(&totals.accepted, 1);
        let peer = net::getpeername(&socket).ok().flatten().and_then(|name| SocketAddr::try_from(name).ok());
        // It has gone already.
        let Some(peer) = peer else { return };
        if !self.house.allow.is_empty() && !self.house.allow.iter().any(|cidr| cidr.contains(peer.ip())) {
            add(&totals.refused_address, 1);
            return;
        }
        if ledger.present.fetch_add(1, Ordering::AcqRel) >= self.house.limits.subscribers {
            ledger.present.fetch_sub(1, Ordering::AcqRel);
            add(&totals.refused_limit, 1);
            return;
        }
        if let Err(error) = prepare(&socket, &self.house.limits) {
            tracing::debug!(%peer, %error, "socket options");
        }
        let protocol = self.house.listeners[index].listen.protocol;
        let socket = Arc::new(socket);
        let Some(mut handshake) = Handshake::new(protocol, socket.clone(), &self.house.rules) else {
            ledger.present.fetch_sub(1, Ordering::AcqRel);
            add(&totals.refused_handshake, 1);
            return;
        };
        // Most have nothing to wait for.
        match handshake.advance(&self.house.rules) {
            Progress::Subscribe(ready) => self.hand_over(ready, protocol, peer),
            Progress::Failed(failure) => self.failed(failure),
            progress @ (Progress::Waiting | Progress::Served) => {
                let served = matches!(progress, Progress::Served);
                let limit = if served { LINGER } else { self.house.limits.handshake };
                let deadline = Instant::now() + limit;
                let key = self.pending.insert(Pending {
                    handshake,
                    protocol,
                    peer,
                    socket: socket.clone(),
                    deadline,
                    served,
                });
                if served {
                    add(&totals.pages, 1);
                }
                let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
                let data = epoll::EventData::new_u64(key as u64);
                if let Err(error) = epoll::add(&self.epoll, &*socket, data, flags) {
                    tracing::warn!(%peer, %error, "epoll_ctl");
                    self.forget(key);
                    self.failed(Failure::Gone);
                }
            }
        }
    }

    fn advance(&mut self, key: usize) {
        let Some(pending) = self.pending.get_mut(key) else { return };
        let (protocol, peer) = (pending.protocol, pending.peer);
        match pending.handshake.advance(&self.house.rules) {
            Progress::Waiting => {}
            Progress::Served => {
                if !std::mem::replace(&mut pending.served, true) {
                    pending.deadline = Instant::now() + LINGER;
                    add(&self.house.ledger.totals.pages, 1);
                }
            }
            Progress::Subscribe(ready) => {
                self.forget(key);
                self.hand_over(ready, protocol, peer);
            }
            Progress::Failed(failure) => {
                let served = pending.served;
                self.forget(key);
                self.failed(if served { Failure::Gone } else { failure });
            }
        }
    }

    fn forget(&mut self, key: usize) {
        let pending = self.pending.remove(key);
        let _ = epoll::delete(&self.epoll, &*pending.socket);
    }

    fn failed(&self, failure: Failure) {
        let totals = &self.house.ledger.totals;
        match failure {
            Failure::Handshake => add(&totals.refused_handshake, 1),
            Failure::Origin => add(&totals.refused_origin, 1),
            Failure::Gone => {}
        }
        self.house.ledger.present.fetch_sub(1, Ordering::AcqRel);
    }

    fn hand_over(&mut self, ready: Ready, protocol: Protocol, peer: SocketAddr) {
        let Ready { transport, start, greeting, input } = ready;
        let newcomer = Newcomer { transport, protocol, peer, start, greeting, input };
        self.next_shard = (self.next_shard + 1) % self.house.shards.len();
        let message = Message::Subscribe(Box::new(newcomer));
        let sent = self.house.shards[self.next_shard].send_until(message, Instant::now() + HANDOVER);
        if sent.is_err() {
            tracing::warn!(%peer, "the sending thread takes no subscribers: turned away");
            self.failed(Failure::Gone);
        }
    }

    fn expire(&mut self) {
        let now = Instant::now();
        if self.rest_until.is_some_and(|until| until <= now) {
            self.rest_until = None;
            self.listen_for(epoll::EventFlags::IN);
        }
        let late: Vec<usize> =
            self.pending.iter().filter(|(_, pending)| pending.deadline <= now).map(|(key, _)| key).collect();
        for key in late {
            if !self.pending[key].served {
                add(&self.house.ledger.totals.refused_handshake_timeout, 1);
            }
            self.forget(key);
            self.failed(Failure::Gone);
        }
    }
}

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
