//! The thread beside a feed that the kernel forwards: adds and removes subscribers, and keeps their accounts.
//!
//! ```text
//!   sleep until a new subscriber, an event of the programs, a datagram that is not forwarded, or the next check
//! ```
//!
//! Events report immediately who left or is slow; the check, ten times a second, feeds the statistics and
//! finds subscribers that accept nothing at all. It also makes up for lost events.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use expressway_netio::mailbox::Inbox;
use expressway_xbpf::{FanoutCounts, FanoutEvent, FanoutPrograms, FanoutRecord};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::sockopt;

use super::super::options::{Limits, Options, SlowClient};
use super::super::service::{FanoutError, thread};
use super::super::shard::Message;
use super::super::stats::{Ledger, Reason, add};
use super::super::subscriber::Newcomer;
use super::super::sys;
use super::KernelFeed;
use super::group::{Group, GroupSocket};
use super::link::{CLOSE, CLOSE_WAIT, ESTABLISHED, Link, wait_until_made};
use super::unicast::Unicast;
use expressway_netio::udp::group::{INTERVAL, Joined};

/// Between two looks at all subscribers.
const LOOK: Duration = Duration::from_millis(100);

/// Time that subscribers have at the end to receive what they were given.
const DRAIN: Duration = Duration::from_secs(1);

const EVENTS: usize = 16;
const INBOX: u64 = 0;
const PROGRAMS: u64 = 1;
const PLAIN: u64 = 2;

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
            add(unicast.plain(), PLAIN, epoll::EventFlags::IN)?;
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
                let _ = link.account(&self.programs, &self.ledger.totals);
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
        let Ok(key) = sockopt::socket_cookie(&*connection) else {
            let account = self.ledger.open(peer, protocol, 0, &connection);
            return self.ledger.close(&account, Reason::Reset);
        };
        wait_until_made(&connection);
        let programs = &self.programs;
        let socket = self
            .group
            .socket(programs, |socket, cookie| programs.forward((socket, cookie), (connection.as_fd(), key)));
        // Only now: who is listed is sent whatever comes from then on.
        let account = self.ledger.open(peer, protocol, 0, &connection);
        match socket {
            Ok(socket) => {
                let link = Link::new(transport, account, socket);
                // Events from before it was known here are made up for by the state it has now.
                let state = sys::tcp_info(connection.as_fd()).map_or(CLOSE, |info| info.state);
                self.links.insert(key, link);
                self.handle_state(key, state);
            }
            Err(error) => {
                // A connection that has ended already can't be put into the map.
                let ended = sys::tcp_info(connection.as_fd()).is_ok_and(|info| info.state != ESTABLISHED);
                if !ended {
                    tracing::warn!(%peer, %error, "disconnecting the subscriber");
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
                    tracing::debug!(subscriber = link.account.id, peer = %link.account.peer, "subscriber fell behind");
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
            CLOSE_WAIT => link.half_close(),
            CLOSE => {
                let reason = link.ended();
                self.disconnect(key, reason);
            }
            // Being closed; the end is reported as a separate event.
            _ => {}
        }
    }

    fn disconnect(&mut self, key: u64, reason: Reason) {
        if let Some(mut link) = self.links.remove(&key) {
            let _ = link.account(&self.programs, &self.ledger.totals);
            self.take_out(link, reason);
        }
    }

    fn take_out(&self, link: Link, reason: Reason) {
        let account = link.account.clone();
        link.end(&self.programs, reason);
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
            let looked = link.account(&self.programs, &self.ledger.totals)?;
            if let Some(reason) = link.judge(&looked, self.limits.stall, now) {
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
                    tracing::warn!(peer = %link.account.peer, %error, "cannot rejoin the multicast group for a subscriber");
                }
            }
        }
    }

    fn drop_unforwarded(&self) {
        if let Some(unicast) = &self.unicast {
            self.count(|totals| &totals.dropped_unforwarded, unicast.drop_unforwarded());
        }
    }

    fn is_done(&self) -> bool {
        self.links.values().all(Link::is_done)
    }
}
