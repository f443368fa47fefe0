//! The thread beside a feed that the kernel forwards: puts subscribers in, takes them out, keeps their accounts.
//!
//! ```text
//!   sleep until a newcomer, an event of the programs, a datagram that nobody forwards, or the next look
//! ```
//!
//! Events tell at once who left or is slow; the look, ten times a second, is what statistics come from, and finds who
//! takes nothing at all. Events that were lost are made good by it too.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use expressway_netio::mailbox::Inbox;
use expressway_xbpf::{FanoutCounts, FanoutEvent, FanoutPrograms, FanoutRecord};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, RecvFlags, SocketFlags, SocketType, netdevice, sockopt};

use super::super::options::{Limits, Options, SlowClient};
use super::super::service::{FanoutError, thread};
use super::super::shard::Message;
use super::super::stats::{Account, Ledger, Reason, add};
use super::super::subscriber::Newcomer;
use super::super::sys;
use super::super::transport::{self, Transport};
use super::KernelFeed;
use super::group::{Group, GroupSocket};
use crate::group::{INTERVAL, Joined};

/// Between two looks at all subscribers.
const LOOK: Duration = Duration::from_millis(100);

/// What subscribers have at the end to take what they were given.
const DRAIN: Duration = Duration::from_secs(1);

/// Times, 100 µs apart, that a fresh connection is looked at for being established.
const SETTLE: usize = 100;

/// Datagrams taken from the plain socket at a time.
const UNFORWARDED: usize = 64;

const EVENTS: usize = 16;
const INBOX: u64 = 0;
const PROGRAMS: u64 = 1;
const PLAIN: u64 = 2;

/// `include/net/tcp_states.h`
const ESTABLISHED: u8 = 1;
const SYN_RECV: u8 = 3;
const CLOSE: u8 = 7;
const CLOSE_WAIT: u8 = 8;

/// A subscriber.
struct Link {
    transport: Transport,
    account: Arc<Account>,
    socket: GroupSocket,
    /// At the last look.
    record: FanoutRecord,
    taken: u64,
    /// Datagrams that its socket took, by the last look.
    frames: u64,
    /// Since when its socket has taken nothing of what it was given.
    stuck: Option<Instant>,
    /// Since when it has been quiet: when it ended its side of the connection, or since then was given something.
    half_closed: Option<Instant>,
}

/// What a look at a subscriber saw.
struct Looked {
    /// It was given something since the last look.
    given: bool,
    /// Its TCP state.
    state: u8,
}

/// How a unicast feed comes in.
struct Unicast {
    interface: String,
    index: u32,
    /// What is not turned into multicast arrives here, and keeps the address taken.
    plain: OwnedFd,
}

/// The thread.
pub(super) struct Switch {
    programs: FanoutPrograms,
    group: Group,
    /// Receives as a subscriber would, and is only counted.
    counter: GroupSocket,
    counted: FanoutRecord,
    unicast: Option<Unicast>,
    inbox: Inbox<Message>,
    ledger: Arc<Ledger>,
    limits: Limits,
    slow_client: SlowClient,
    /// By the cookie of the connection.
    links: HashMap<u64, Link>,
    counts: FanoutCounts,
    looked: Instant,
    looked_after: Instant,
    stop_at: Option<Instant>,
}

impl Switch {
    /// Takes over the feed; nobody has subscribed yet.
    pub(super) fn new(
        options: &Options,
        feed: &KernelFeed,
        mut group: Group,
        mut programs: FanoutPrograms,
        inbox: Inbox<Message>,
        ledger: Arc<Ledger>,
    ) -> Result<Self, FanoutError> {
        let counter = group.socket(&programs, |socket, cookie| programs.count(socket, cookie))?;
        let unicast = match &feed.interface {
            Some(interface) if group.is_private() => Some(Unicast::open(feed.udp, interface, &mut programs)?),
            _ => None,
        };
        // The first time takes a descriptor, which later there may be none for.
        let counts = programs.counts()?;
        let now = Instant::now();
        Ok(Self {
            programs,
            group,
            counter,
            counted: FanoutRecord::default(),
            unicast,
            inbox,
            ledger,
            limits: options.limits,
            slow_client: options.slow_client,
            links: HashMap::new(),
            counts,
            looked: now,
            looked_after: now,
            stop_at: None,
        })
    }

    /// Runs until told to stop.
    pub(super) fn run(mut self) -> Result<(), FanoutError> {
        let result = self.turns();
        for (_, link) in std::mem::take(&mut self.links) {
            self.take_out(link, Reason::Stopped);
        }
        result
    }

    fn turns(&mut self) -> Result<(), FanoutError> {
        let epoll = self.watch().map_err(|error| thread("epoll")(error.into()))?;
        loop {
            self.handle_messages();
            self.handle_events();
            self.look()?;
            if self.stop_at.is_some_and(|end| Instant::now() >= end || self.is_done()) {
                return Ok(());
            }
            let timeout = if self.inbox.prepare_sleep() {
                Duration::ZERO
            } else if self.links.is_empty() && self.stop_at.is_none() {
                INTERVAL
            } else {
                LOOK
            };
            let timeout = Timespec::try_from(timeout).ok();
            let mut events = [MaybeUninit::<epoll::Event>::uninit(); EVENTS];
            let result = epoll::wait(&epoll, &mut events, timeout.as_ref());
            self.inbox.awake();
            match result {
                Ok((events, _)) if events.iter().any(|event| event.data.u64() == PLAIN) => {
                    self.drop_unforwarded()
                }
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(thread("epoll_wait")(error.into())),
            }
        }
    }

    fn watch(&self) -> Result<OwnedFd, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let add = |fd, data, flags| epoll::add(&epoll, fd, epoll::EventData::new_u64(data), flags);
        add(self.inbox.as_fd(), INBOX, epoll::EventFlags::IN | epoll::EventFlags::ET)?;
        add(self.programs.events_descriptor(), PROGRAMS, epoll::EventFlags::IN)?;
        if let Some(unicast) = &self.unicast {
            add(unicast.plain.as_fd(), PLAIN, epoll::EventFlags::IN)?;
        }
        Ok(epoll)
    }

    fn handle_messages(&mut self) {
        let mut newcomers = Vec::new();
        let mut stop = false;
        self.inbox.drain(EVENTS * 16, |message| match message {
            Message::Subscribe(newcomer) => newcomers.push(newcomer),
            Message::Frames => {}
            Message::Stop => stop = true,
        });
        if stop && self.stop_at.is_none() {
            self.stop_at = Some(Instant::now() + DRAIN);
            let mut links = std::mem::take(&mut self.links);
            for link in links.values_mut() {
                let _ = self.account(link);
                self.programs.end(link.socket.cookie);
            }
            self.links = links;
        }
        for newcomer in newcomers {
            self.admit(*newcomer);
        }
    }

    fn admit(&mut self, newcomer: Newcomer) {
        let Newcomer { transport, protocol, peer, .. } = newcomer;
        let connection = transport.socket().clone();
        let account = self.ledger.open(peer, protocol, 0, &connection);
        let Ok(key) = sockopt::socket_cookie(&*connection) else {
            return self.ledger.close(&account, Reason::Reset);
        };
        wait_until_made(&connection);
        let programs = &self.programs;
        let socket = self
            .group
            .socket(programs, |socket, cookie| programs.forward((socket, cookie), (connection.as_fd(), key)));
        match socket {
            Ok(socket) => {
                let link = Link {
                    transport,
                    account,
                    socket,
                    record: FanoutRecord::default(),
                    taken: 0,
                    frames: 0,
                    stuck: None,
                    half_closed: None,
                };
                // Events from before it was known here are made up for by the state it has now.
                let state = sys::tcp_info(connection.as_fd()).map_or(CLOSE, |info| info.state);
                self.links.insert(key, link);
                self.handle_state(key, state);
            }
            Err(error) => {
                // A connection that has ended already can't be put into the map.
                let ended = sys::tcp_info(connection.as_fd()).is_ok_and(|info| info.state != ESTABLISHED);
                if !ended {
                    tracing::warn!(%peer, %error, "the subscriber is disconnected");
                }
                let mut transport = transport;
                transport.close();
                self.ledger.close(&account, if ended { Reason::Closed } else { Reason::Reset });
            }
        }
    }

    fn handle_events(&mut self) {
        let events: Vec<FanoutEvent> = self.programs.events().collect();
        for event in events {
            match event {
                FanoutEvent::Connected { .. } => self.count(|totals| &totals.connected, 1),
                FanoutEvent::State { connection, state } => {
                    self.handle_state(connection, u8::try_from(state).unwrap_or_default());
                }
                FanoutEvent::Slow { connection, by_age } => {
                    self.count(|totals| &totals.fell_behind, 1);
                    let Some(link) = self.links.get(&connection) else { continue };
                    tracing::debug!(subscriber = link.account.id, peer = %link.account.peer, "falls behind");
                    if self.slow_client == SlowClient::Disconnect {
                        let reason = if by_age { Reason::TooOld } else { Reason::TooManyBytes };
                        self.disconnect(connection, reason);
                    }
                }
            }
        }
    }

    fn count(
        &self,
        counter: impl Fn(&super::super::stats::KernelTotals) -> &std::sync::atomic::AtomicU64,
        value: u64,
    ) {
        if let Some(totals) = &self.ledger.kernel
            && value != 0
        {
            add(counter(totals), value);
        }
    }

    fn handle_state(&mut self, key: u64, state: u8) {
        let Some(link) = self.links.get_mut(&key) else { return };
        match state {
            ESTABLISHED => {}
            CLOSE_WAIT => {
                link.half_closed.get_or_insert_with(Instant::now);
                link.account.half_closed.store(true, Ordering::Relaxed);
            }
            CLOSE => {
                let reason = ended(&link.transport);
                self.disconnect(key, reason);
            }
            // On its way to the end, which comes as an event of its own.
            _ => {}
        }
    }

    fn disconnect(&mut self, key: u64, reason: Reason) {
        if let Some(mut link) = self.links.remove(&key) {
            let _ = self.account(&mut link);
            self.take_out(link, reason);
        }
    }

    /// Ends a subscription: in order where its socket has taken all that it was given, else by a reset, so that a
    /// part of a datagram is not taken for the whole.
    fn take_out(&self, link: Link, reason: Reason) {
        let Link { mut transport, account, socket, record, taken, .. } = link;
        socket.end(&self.programs);
        if record.bytes > taken && reason != Reason::Closed {
            transport.abort();
        } else {
            transport.close();
        }
        self.ledger.close(&account, reason);
        tracing::debug!(subscriber = account.id, peer = %account.peer, reason = reason.name(), "disconnected");
    }

    /// Looks at all subscribers and counters, if it is time.
    fn look(&mut self) -> Result<(), FanoutError> {
        if self.looked.elapsed() < LOOK && self.stop_at.is_none() {
            return Ok(());
        }
        let now = Instant::now();
        self.looked = now;
        let mut ended = Vec::new();
        let mut links = std::mem::take(&mut self.links);
        for (key, link) in &mut links {
            if let Some(reason) = self.judge(link, now)? {
                ended.push((*key, reason));
            }
        }
        self.links = links;
        for (key, reason) in ended {
            self.disconnect(key, reason);
        }
        let counted = self.programs.record(self.counter.cookie)?.unwrap_or(self.counted);
        add(&self.ledger.totals.datagrams, counted.datagrams.saturating_sub(self.counted.datagrams));
        add(&self.ledger.totals.datagram_bytes, counted.bytes.saturating_sub(self.counted.bytes));
        self.counted = counted;
        self.take_counts()?;
        if self.looked_after.elapsed() >= INTERVAL {
            self.looked_after = now;
            self.look_after();
        }
        Ok(())
    }

    fn take_counts(&mut self) -> Result<(), FanoutError> {
        let counts = self.programs.counts()?;
        let last = std::mem::replace(&mut self.counts, counts);
        add(&self.ledger.totals.dropped_source, counts.dropped_source - last.dropped_source);
        add(&self.ledger.totals.dropped_empty, counts.dropped_empty - last.dropped_empty);
        self.count(|totals| &totals.turned, counts.turned - last.turned);
        self.count(|totals| &totals.dropped_private, counts.dropped_private - last.dropped_private);
        self.count(|totals| &totals.dropped_rewrite, counts.dropped_rewrite - last.dropped_rewrite);
        self.count(|totals| &totals.dropped_unknown, counts.dropped_unknown - last.dropped_unknown);
        self.count(|totals| &totals.skipped_lag_bytes, counts.skipped_bytes - last.skipped_bytes);
        self.count(|totals| &totals.skipped_queue, counts.skipped_queue - last.skipped_queue);
        self.count(|totals| &totals.skipped_lag_age, counts.skipped_age - last.skipped_age);
        let catching_up = counts.skipped_catching_up - last.skipped_catching_up;
        self.count(|totals| &totals.skipped_catching_up, catching_up);
        self.count(|totals| &totals.skipped_state, counts.skipped_state - last.skipped_state);
        self.count(|totals| &totals.skipped_memory, counts.skipped_memory - last.skipped_memory);
        self.count(|totals| &totals.events_lost, counts.events_lost - last.events_lost);
        Ok(())
    }

    /// Brings a subscriber's account up to date.
    fn account(&self, link: &mut Link) -> Result<Looked, FanoutError> {
        // At the end there is none any more.
        let record = self.programs.record(link.socket.cookie)?.unwrap_or(link.record);
        let socket = link.transport.socket().as_fd();
        // In this order what is acknowledged meanwhile counts twice and not never.
        let unacknowledged = sys::unacknowledged_bytes(socket).unwrap_or(0);
        let info = sys::tcp_info(socket).ok();
        let acknowledged = info.as_ref().map_or(link.taken, |info| info.acknowledged_bytes);
        let taken = (acknowledged + unacknowledged).clamp(link.taken, record.bytes.max(link.taken));
        let lag = record.bytes.saturating_sub(taken);
        let waiting = if lag == 0 { 0 } else { u64::from(record.queue) };
        let frames = record.datagrams.saturating_sub(waiting).max(link.frames);
        let (account, totals) = (&link.account, &self.ledger.totals);
        let grown = |cell: &std::sync::atomic::AtomicU64, total, now: u64, before: u64| {
            cell.store(now, Ordering::Relaxed);
            add(total, now.saturating_sub(before));
        };
        grown(&account.sends, &totals.sends, record.datagrams, link.record.datagrams);
        grown(&account.bytes, &totals.sent_bytes, taken, link.taken);
        grown(&account.frames, &totals.sent_frames, frames, link.frames);
        grown(&account.gaps, &totals.gaps, record.gaps, link.record.gaps);
        grown(&account.skipped, &totals.skipped_frames, record.skipped, link.record.skipped);
        account.at_byte.store(lag, Ordering::Relaxed);
        account.at_frame.store(waiting, Ordering::Relaxed);
        let given = record.datagrams != link.record.datagrams;
        if taken != link.taken || lag == 0 {
            link.stuck = None;
        }
        (link.record, link.taken, link.frames) = (record, taken, frames);
        Ok(Looked { given, state: info.map_or(CLOSE, |info| info.state) })
    }

    /// Decides about a subscriber, by what it has taken and how long ago.
    fn judge(&self, link: &mut Link, now: Instant) -> Result<Option<Reason>, FanoutError> {
        let Looked { given, state } = self.account(link)?;
        if state == CLOSE {
            // Its event was lost, or is on its way.
            return Ok(Some(ended(&link.transport)));
        }
        if link.record.bytes > link.taken {
            let stuck = *link.stuck.get_or_insert(now);
            return Ok((now - stuck > self.limits.stall).then_some(Reason::Stalled));
        }
        if let Some(since) = &mut link.half_closed {
            if given {
                *since = now;
            }
            return Ok((now - *since > self.limits.stall).then_some(Reason::Closed));
        }
        Ok(None)
    }

    /// What is to be done now and then: memberships, and the interface of a unicast feed.
    fn look_after(&mut self) {
        if let Some(unicast) = &mut self.unicast
            && unicast.look_after(&mut self.programs)
        {
            self.count(|totals| &totals.interface_returns, 1);
        }
        if self.counter.look_after() == Joined::Anew {
            add(&self.ledger.totals.group_rejoins, 1);
            for link in self.links.values_mut() {
                if let Err(error) = link.socket.keep() {
                    tracing::warn!(peer = %link.account.peer, %error, "the group cannot be joined anew for a subscriber");
                }
            }
        }
    }

    fn drop_unforwarded(&self) {
        let Some(unicast) = &self.unicast else { return };
        let mut dropped = 0;
        while dropped < UNFORWARDED && net::recv(&unicast.plain, &mut [0u8; 1], RecvFlags::DONTWAIT).is_ok() {
            dropped += 1;
        }
        self.count(|totals| &totals.dropped_unforwarded, dropped as u64);
    }

    fn is_done(&self) -> bool {
        self.links.values().all(|link| link.record.bytes <= link.taken)
    }
}

/// The kernel lets a connection be accepted an instant before it is established (`tcp_check_req` in
/// net/ipv4/tcp_minisocks.c): only then do the programs know it, and before may it be put into no map.
fn wait_until_made(connection: &OwnedFd) {
    for _ in 0..SETTLE {
        if !sys::tcp_info(connection.as_fd()).is_ok_and(|info| info.state == SYN_RECV) {
            return;
        }
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// Why a connection has ended.
fn ended(transport: &Transport) -> Reason {
    match sockopt::socket_error(&**transport.socket()) {
        Ok(Err(error)) | Err(error) => transport::reason(error),
        Ok(Ok(())) => Reason::Closed,
    }
}

impl Unicast {
    fn open(feed: SocketAddr, interface: &str, programs: &mut FanoutPrograms) -> Result<Self, FanoutError> {
        let family = if feed.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let plain = net::socket_with(family, SocketType::DGRAM, flags, None)
            .and_then(|plain| net::bind(&plain, &feed).map(|()| plain))
            .map_err(|error| FanoutError::NotInKernel(format!("udp {feed}: {error}")))?;
        let index = netdevice::name_to_index(&plain, interface)
            .map_err(|error| FanoutError::NotInKernel(format!("interface {interface}: {error}")))?;
        programs.turn(index)?;
        Ok(Self { interface: interface.to_owned(), index, plain })
    }

    /// Takes the interface over anew when it has gone and come back. True when it did.
    fn look_after(&mut self, programs: &mut FanoutPrograms) -> bool {
        let Ok(index) = netdevice::name_to_index(&self.plain, &self.interface) else { return false };
        if programs.is_turning(index) {
            return false;
        }
        match programs.turn(index) {
            Ok(()) => {
                tracing::info!(interface = self.interface, "the feed's interface is back");
                self.index = index;
                true
            }
            Err(error) => {
                if self.index != index {
                    tracing::warn!(interface = self.interface, %error, "the feed's interface is back, but not its feed");
                    self.index = index;
                }
                false
            }
        }
    }
}
