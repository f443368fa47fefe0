//! A sending thread: its subscribers, epoll instances over them, and on the first one the feed itself.
//!
//! ```text
//!   turn:  receive (first shard) ─▶ publish ─▶ new subscribers ─▶ a send to each subscriber that is due
//!          ─▶ sleep until datagrams, room in a socket, a message, or the time to check for slow subscribers
//! ```
//!
//! A turn costs what it does: a send to everybody if something is new, otherwise only work for subscribers
//! with events. Input of a subscriber is read a few KiB at a time, and new subscribers are admitted a few at
//! a time, so that none of them delays the others.
//!
//! Between the sends of a turn, the first shard checks the feed. New data makes all subscribers due again,
//! from the current position. Those whose turn is yet to come get it in the same send. The others wait for
//! at most one turn of the [`Wheel`], however busy the feed is.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use expressway_netio::mailbox::Inbox;
use expressway_netio::{IoError, PacketIo};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::sockopt;

use super::options::{Limits, SlowClient};
use super::ring::View;
use super::roster::{Roster, Token};
use super::source::{FeedInput, SnapshotSlot};
use super::stats::{Ledger, Reason, Tally};
use super::subscriber::{Newcomer, Subscriber, Turn};
use super::waits::{INTERVAL_OVER, SUBSCRIBERS, failed, interval, waits};
use super::wheel::Wheel;
use super::{sys, transport};

/// Sends after which the first shard checks the feed: some 15 µs. A check that finds nothing costs a tenth
/// of a send, and one that comes too late costs a second send to each subscriber in between.
const SENDS_BETWEEN_LOOKS: usize = 16;

/// How often subscribers whose sockets take nothing are judged.
const JUDGEMENT: Duration = Duration::from_millis(20);

/// Its time slice, the shortest that the kernel accepts, when a receive thread of the kernel wants its core
/// too. That thread then runs after the sends of a datagram, for all their ACKs at once, and not between
/// them.
const SLICE: Duration = Duration::from_micros(100);

/// The most subscribers with which it asks for that: sends to more take so many slices that changing costs more.
const FEW: usize = 512;

/// Time that subscribers have at the end to receive what has arrived.
const DRAIN: Duration = Duration::from_secs(1);

/// Newcomers let in before subscribers have their turn: each costs as much as some sends.
const NEWCOMERS: usize = 16;

/// Messages taken at a time, most of which only wake.
const MESSAGES: usize = 256;

/// Events of subscribers handled before all have their turn, and subscribers of which more is read: each costs up to some
/// 10 µs, as a send does.
const EVENTS: usize = 64;

/// What other threads send to a shard.
pub(crate) enum Message {
    /// A connection that has become a subscriber.
    Subscribe(Box<Newcomer>),
    /// There are frames to send.
    Frames,
    /// End.
    Stop,
}

/// What all shards have in common.
#[derive(Clone)]
pub(crate) struct Common {
    pub(crate) limits: Limits,
    pub(crate) slow_client: SlowClient,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) snapshot: SnapshotSlot,
    pub(crate) epoch: Instant,
}

/// A shard.
pub(crate) struct Shard {
    index: usize,
    common: Common,
    /// What it sleeps on.
    waits: OwnedFd,
    /// The generation of the descriptors of packet I/O in it.
    watched: Option<u64>,
    /// Watches the sockets of subscribers, by key and generation.
    subscribers: OwnedFd,
    /// Is readable when an interval of [`expressway_netio::udp::group::INTERVAL`] is over.
    interval: OwnedFd,
    inbox: Inbox<Message>,
    views: Vec<View>,
    roster: Roster,
    /// The keys of `roster`.
    wheel: Wheel,
    /// It has been given [`SLICE`].
    is_brief: bool,
    /// When those whose sockets take nothing were judged last.
    judged: Instant,
    /// Turns that subscribers have had.
    #[cfg(test)]
    given: u64,
    stop_at: Option<Instant>,
    tally: Tally,
    scratch: Box<[u8]>,
    gone: Vec<(usize, Reason)>,
}

impl Shard {
    /// A shard without subscribers.
    pub(crate) fn new(
        index: usize,
        common: Common,
        inbox: Inbox<Message>,
        views: Vec<View>,
    ) -> Result<Self, IoError> {
        let subscribers = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed("epoll_create"))?;
        let interval = interval()?;
        let waits = waits(&inbox, &subscribers, &interval, |_| {})?;
        Ok(Self {
            index,
            common,
            waits,
            watched: None,
            subscribers,
            interval,
            inbox,
            views,
            roster: Roster::default(),
            wheel: Wheel::default(),
            is_brief: false,
            judged: Instant::now(),
            #[cfg(test)]
            given: 0,
            stop_at: None,
            tally: Tally::default(),
            scratch: vec![0; 16 << 10].into(),
            gone: Vec::new(),
        })
    }

    /// Runs until told to stop.
    pub(crate) fn run<P: PacketIo>(mut self, mut source: Option<FeedInput<P>>) -> Result<(), IoError> {
        self.suit_slice();
        let result = self.turns(&mut source);
        self.tell();
        for key in self.roster.keys() {
            self.disconnect(key, Reason::Stopped);
        }
        if let Some(source) = &source {
            source.store_counters();
        }
        result
    }

    fn turns<P: PacketIo>(&mut self, source: &mut Option<FeedInput<P>>) -> Result<(), IoError> {
        loop {
            self.turn(source)?;
            if self.stop_at.is_some_and(|end| Instant::now() >= end || self.is_done()) {
                return Ok(());
            }
            let timeout = if self.is_busy() {
                Some(Duration::ZERO)
            } else {
                // Otherwise the interval's timer ends it.
                (self.roster.has_waiting() || self.stop_at.is_some()).then_some(JUDGEMENT)
            };
            self.sleep(source, timeout)?;
        }
    }

    /// Does what there is to do, without waiting.
    fn turn<P: PacketIo>(&mut self, source: &mut Option<FeedInput<P>>) -> Result<(), IoError> {
        let now = Instant::now();
        if let Some(source) = source {
            if self.stop_at.is_none() {
                self.follow(source)?;
            }
            source.look_after(now);
        }
        let fresh = self.look(source, now)?;
        self.handle_messages();
        self.read_on();
        if fresh || self.stop_at.is_some() {
            self.wheel.all_due();
        }
        if self.roster.has_waiting() && now.saturating_duration_since(self.judged) >= JUDGEMENT {
            self.judged = now;
            self.roster.call_waiting();
        }
        self.serve(source, now)
    }

    /// Whether there is something to do without anything new.
    fn is_busy(&self) -> bool {
        self.wheel.is_due() || self.roster.called() != 0 || self.roster.unread() != 0
    }

    /// Receives on the first shard. True if there is something new to send.
    fn look<P: PacketIo>(
        &mut self,
        source: &mut Option<FeedInput<P>>,
        now: Instant,
    ) -> Result<bool, IoError> {
        match source {
            Some(source) if self.stop_at.is_none() => source.receive(now, self.time_of(now)),
            Some(_) => Ok(false),
            None => Ok(self.views.iter_mut().any(View::is_behind)),
        }
    }

    /// Watches the descriptors of packet I/O, again when they have changed.
    fn follow<P: PacketIo>(&mut self, source: &FeedInput<P>) -> Result<(), IoError> {
        let generation = source.io.descriptors_generation();
        if self.watched == Some(generation) {
            return Ok(());
        }
        // Whatever was watched before goes with the old instance.
        self.waits =
            waits(&self.inbox, &self.subscribers, &self.interval, |visit| source.io.descriptors(visit))?;
        self.watched = Some(generation);
        Ok(())
    }

    /// Asks for the slice that suits the number of subscribers.
    fn suit_slice(&mut self) {
        let brief = self.wheel.len() <= FEW;
        if std::mem::replace(&mut self.is_brief, brief) != brief
            && let Err(error) = sys::set_slice(if brief { SLICE } else { Duration::ZERO })
        {
            tracing::debug!(%error, "sched_setattr failed: keeping the current time slice");
        }
    }

    /// The rings' time.
    fn now(&self) -> u64 {
        self.time_of(Instant::now())
    }

    fn time_of(&self, instant: Instant) -> u64 {
        let time = instant.saturating_duration_since(self.common.epoch);
        u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
    }

    fn handle_messages(&mut self) {
        let mut newcomers = Vec::new();
        let mut stop = false;
        for _ in 0..MESSAGES / NEWCOMERS {
            let taken = self.inbox.drain(NEWCOMERS, |message| match message {
                Message::Subscribe(newcomer) => newcomers.push(newcomer),
                Message::Frames => {}
                Message::Stop => stop = true,
            });
            // Many wake-up messages may precede one that matters.
            if taken < NEWCOMERS || newcomers.len() >= NEWCOMERS {
                break;
            }
        }
        if stop && self.stop_at.is_none() {
            self.stop_at = Some(Instant::now() + DRAIN);
            // Of the feed no more is taken, so that it may not wake either.
            match waits(&self.inbox, &self.subscribers, &self.interval, |_| {}) {
                Ok(waits) => self.waits = waits,
                // It only wakes too often.
                Err(error) => tracing::debug!(%error, "cannot stop watching the feed while shutting down"),
            }
        }
        for newcomer in newcomers {
            self.admit(*newcomer);
        }
    }

    fn admit(&mut self, mut newcomer: Newcomer) {
        let now = self.now();
        let socket = newcomer.transport.socket().clone();
        let (peer, protocol) = (newcomer.peer, newcomer.protocol);
        let account = self.common.ledger.open(peer, protocol, self.index, &socket);
        let view = &mut self.views[usize::from(protocol.is_websocket())];
        view.refresh();
        let snapshot = self.common.snapshot.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let input = std::mem::take(&mut newcomer.input);
        let mut subscriber =
            Subscriber::new(newcomer, account, view, snapshot.as_ref(), &self.common.limits, now);
        let read = subscriber.read(&input, now, &self.common.limits);
        let token = self.roster.insert(subscriber);
        let key = Roster::key(token);
        self.wheel.add(key);
        self.suit_slice();
        // It may have something to get before anything new comes, and of what TLS has decrypted already its socket says
        // nothing any more.
        self.roster.call(token);
        self.roster.note_unread(token);
        let data = epoll::EventData::new_u64(token);
        let mut flags = epoll::EventFlags::OUT | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        if protocol != super::Protocol::Tcp {
            flags |= epoll::EventFlags::IN;
        }
        let added = epoll::add(&self.subscribers, &*socket, data, flags);
        if let Err(error) = added {
            tracing::warn!(%peer, %error, "epoll_ctl: disconnecting the subscriber");
            self.disconnect(key, Reason::Reset);
        } else if let Err(reason) = read {
            self.disconnect(key, reason);
        }
    }

    fn disconnect(&mut self, key: usize, reason: Reason) {
        let Some(subscriber) = self.roster.remove(key) else { return };
        self.wheel.remove(key);
        self.suit_slice();
        let account = subscriber.account.clone();
        // Statistics may hold the socket a moment longer than this.
        let _ = epoll::delete(&self.subscribers, &**subscriber.transport().socket());
        let view = &self.views[usize::from(account.protocol.is_websocket())];
        subscriber.end(view, reason);
        self.common.ledger.close(&account, reason);
        tracing::debug!(subscriber = account.id, peer = %account.peer, reason = reason.name(), "disconnected");
    }

    /// A send to each subscriber that is due; to as many as there are, even if new data makes all due again
    /// meanwhile.
    fn serve<P: PacketIo>(&mut self, source: &mut Option<FeedInput<P>>, now: Instant) -> Result<(), IoError> {
        let mut sends = 0;
        let now = self.time_of(now);
        let mut grown = self.refresh();
        for _ in 0..self.wheel.len() + self.roster.called() {
            // Those that are due, then those that were called.
            let Some(key) = self.wheel.next().or_else(|| self.roster.next_called()) else { break };
            self.prefetch();
            sends += usize::from(self.give_turn(key, now));
            // With nobody left to serve the look of the next turn is soon enough.
            if sends >= SENDS_BETWEEN_LOOKS && self.wheel.is_due() {
                sends = 0;
                if self.look(source, Instant::now())? {
                    grown |= self.refresh();
                    self.wheel.all_due();
                }
            }
        }
        self.tell();
        while let Some((key, reason)) = self.gone.pop() {
            self.disconnect(key, reason);
        }
        if grown {
            self.trim();
        }
        Ok(())
    }

    /// A turn of one subscriber. True when it was sent something.
    fn give_turn(&mut self, key: usize, now: u64) -> bool {
        #[cfg(test)]
        (self.given += 1);
        let (subscriber, token) = self.roster.at_mut(key);
        let kind = usize::from(subscriber.account.protocol.is_websocket());
        let before = subscriber.oldest_place();
        let turn = subscriber.turn(
            &self.views[kind],
            now,
            &self.common.limits,
            self.common.slow_client,
            &mut self.tally,
        );
        let sent = before != subscriber.oldest_place();
        match turn {
            Turn::Idle => {}
            Turn::Blocked => self.roster.note_waiting(token),
            Turn::More => self.roster.call(token),
            Turn::Gone(reason) => self.gone.push((key, reason)),
        }
        sent
    }

    /// Continues reading from those that have sent much.
    fn read_on(&mut self) {
        for _ in 0..self.roster.unread().min(EVENTS) {
            let Some(token) = self.roster.next_unread() else { break };
            self.receive(token);
        }
    }

    fn receive(&mut self, token: Token) {
        let now = self.now();
        let Some(subscriber) = self.roster.get_mut(token) else { return };
        match subscriber.receive(now, &self.common.limits, &mut self.scratch) {
            Ok(more) => {
                if more {
                    self.roster.note_unread(token);
                }
                // There may be something to answer.
                self.roster.call(token);
            }
            Err(reason) => self.disconnect(Roster::key(token), reason),
        }
    }

    /// Has what the next sends take fetched meanwhile: what the kernel touches for a send leaves little else in the caches.
    fn prefetch(&self) {
        if let Some(next) = self.wheel.ahead(0) {
            self.roster.at(next).subscriber.prefetch();
        }
        if let Some(after) = self.wheel.ahead(1) {
            sys::prefetch(self.roster.at(after));
        }
    }

    /// Publishes the counters.
    fn tell(&mut self) {
        std::mem::take(&mut self.tally).tell(&self.common.ledger.totals);
    }

    /// Looks for new data in the rings. True if there are new blocks.
    fn refresh(&mut self) -> bool {
        self.views.iter_mut().fold(false, |grown, view| view.refresh() | grown)
    }

    /// Releases what the rings have released and no subscriber needs.
    fn trim(&mut self) {
        let mut oldest = [u64::MAX; 2];
        for subscriber in self.roster.iter() {
            let kind = usize::from(subscriber.account.protocol.is_websocket());
            oldest[kind] = oldest[kind].min(subscriber.oldest_place().block);
        }
        for (view, oldest) in self.views.iter_mut().zip(oldest) {
            view.trim(oldest);
        }
    }

    fn is_done(&mut self) -> bool {
        let views = &self.views;
        self.roster.iter_mut().all(|subscriber| {
            let kind = usize::from(subscriber.account.protocol.is_websocket());
            subscriber.is_done(&views[kind])
        })
    }

    fn sleep<P: PacketIo>(
        &mut self,
        source: &mut Option<FeedInput<P>>,
        timeout: Option<Duration>,
    ) -> Result<(), IoError> {
        let mut timeout = timeout;
        if timeout != Some(Duration::ZERO) {
            let busy = self.inbox.prepare_sleep()
                || self.stop_at.is_none() && source.as_mut().is_some_and(|source| source.io.prepare_sleep())
                || self.views.iter_mut().any(View::is_behind);
            if busy {
                timeout = Some(Duration::ZERO);
            }
        }
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut events = [MaybeUninit::<epoll::Event>::uninit(); EVENTS];
        let result = epoll::wait(&self.waits, &mut events, timeout.as_ref());
        self.inbox.awake();
        match result {
            Ok((events, _)) => {
                let has = |what| events.iter().any(|event| event.data.u64() == what);
                if has(INTERVAL_OVER) {
                    // Reading it begins the next; another thread has none of it.
                    let _ = rustix::io::read(&self.interval, &mut [0; 8]);
                    // For subscribers that have closed their side of the connection.
                    self.wheel.all_due();
                }
                if has(SUBSCRIBERS) { self.ask_subscribers() } else { Ok(()) }
            }
            Err(Errno::INTR) => Ok(()),
            Err(error) => Err(failed("epoll_wait")(error)),
        }
    }

    /// Handles events of subscribers' sockets; what exceeds a turn is left to the next.
    fn ask_subscribers(&mut self) -> Result<(), IoError> {
        let mut events = [MaybeUninit::<epoll::Event>::uninit(); EVENTS];
        match epoll::wait(&self.subscribers, &mut events, Some(&Timespec::default())) {
            Ok((events, _)) => {
                for event in events.iter() {
                    self.handle_event(event.data.u64(), event.flags);
                }
                Ok(())
            }
            Err(Errno::INTR) => Ok(()),
            Err(error) => Err(failed("epoll_wait")(error)),
        }
    }

    fn handle_event(&mut self, token: Token, flags: epoll::EventFlags) {
        let now = self.now();
        let Some(subscriber) = self.roster.get_mut(token) else { return };
        subscriber.blocked &= !flags.contains(epoll::EventFlags::OUT);
        if flags.intersects(epoll::EventFlags::ERR | epoll::EventFlags::HUP) {
            let reason = match sockopt::socket_error(&**subscriber.transport().socket()) {
                Ok(Err(error)) | Err(error) => transport::reason(error),
                Ok(Ok(())) => Reason::Closed,
            };
            return self.disconnect(Roster::key(token), reason);
        }
        if flags.contains(epoll::EventFlags::RDHUP) {
            subscriber.half_close(now);
        }
        if flags.contains(epoll::EventFlags::IN) {
            self.receive(token);
        }
        // Its turn may have been before this.
        self.roster.call(token);
    }
}

#[cfg(all(test, not(loom)))]
#[path = "shard_tests.rs"]
mod tests;
