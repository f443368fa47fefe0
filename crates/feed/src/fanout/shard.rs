//! A thread that sends: its subscribers, an epoll instance over them, and on the first one the feed itself.
//!
//! ```text
//!   turn:  receive (first shard) ─▶ publish ─▶ newcomers ─▶ a send to each subscriber that is behind
//!          ─▶ sleep until datagrams, room in a socket, a message, or the time to judge who is slow
//! ```
//!
//! During a long round of sends the first shard looks after the feed now and then, so that subscribers later in
//! the round get what has come meanwhile with the same send, and the receive buffer does not run over.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use expressway_netio::mailbox::Inbox;
use expressway_netio::{IoError, PacketIo};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::sockopt;
use slab::Slab;

use super::options::{Limits, SlowClient};
use super::ring::View;
use super::source::{SnapshotSlot, Source};
use super::stats::{Ledger, Reason};
use super::subscriber::{Newcomer, Subscriber, Turn};
use super::transport;

/// Sends after which the first shard looks after the feed: some 100 µs.
const SENDS_BETWEEN_RECEIVES: usize = 64;

/// How often subscribers whose sockets take nothing are judged.
const JUDGEMENT: Duration = Duration::from_millis(20);

/// What subscribers have at the end to take what has been received.
const DRAIN: Duration = Duration::from_secs(1);

const EVENTS: usize = 256;
const INBOX: u64 = u64::MAX;
const SOURCE: u64 = u64::MAX - 1;

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

struct Entry {
    subscriber: Subscriber,
    /// Tells events of this subscriber from those of one that had its slot before.
    generation: u32,
}

/// What a round came to.
#[derive(Default)]
struct Round {
    /// There is more to send at once.
    more: bool,
    /// Somebody has to be judged soon.
    waiting: bool,
    /// Somebody has ended its side of the connection, and has to be judged at some time.
    half_closed: bool,
}

/// A shard.
pub(crate) struct Shard {
    index: usize,
    common: Common,
    epoll: OwnedFd,
    inbox: Inbox<Message>,
    views: Vec<View>,
    entries: Slab<Entry>,
    /// The keys of `entries`, in the order of sending.
    order: Vec<usize>,
    generation: u32,
    stop_at: Option<Instant>,
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
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed("epoll_create"))?;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, inbox.as_fd(), epoll::EventData::new_u64(INBOX), flags)
            .map_err(failed("epoll_ctl"))?;
        Ok(Self {
            index,
            common,
            epoll,
            inbox,
            views,
            entries: Slab::new(),
            order: Vec::new(),
            generation: 0,
            stop_at: None,
            scratch: vec![0; 16 << 10].into(),
            gone: Vec::new(),
        })
    }

    /// Runs until told to stop.
    pub(crate) fn run<P: PacketIo>(mut self, mut source: Option<Source<P>>) -> Result<(), IoError> {
        let result = self.turns(&mut source);
        let reason = Reason::Stopped;
        for key in std::mem::take(&mut self.order) {
            self.disconnect(key, reason);
        }
        if let Some(source) = &source {
            source.store_counters();
        }
        result
    }

    fn turns<P: PacketIo>(&mut self, source: &mut Option<Source<P>>) -> Result<(), IoError> {
        let mut generation = None;
        loop {
            if let Some(source) = source {
                self.follow(source, &mut generation)?;
                if self.stop_at.is_none() {
                    source.receive(self.now())?;
                    source.look_after();
                }
            }
            self.handle_messages();
            let Round { more, waiting, half_closed } = self.round(source)?;
            if self.stop_at.is_some_and(|end| Instant::now() >= end || self.is_done()) {
                return Ok(());
            }
            let timeout = match (more, waiting || self.stop_at.is_some(), &source) {
                (true, ..) => Some(Duration::ZERO),
                (false, true, _) => Some(JUDGEMENT),
                (false, false, Some(_)) => Some(crate::group::INTERVAL),
                (false, false, None) => half_closed.then_some(crate::group::INTERVAL),
            };
            self.sleep(source, timeout)?;
        }
    }

    /// Watches the descriptors of packet I/O, anew when they have changed.
    fn follow<P: PacketIo>(
        &mut self,
        source: &Source<P>,
        known: &mut Option<(u64, OwnedFd)>,
    ) -> Result<(), IoError> {
        let generation = source.io.descriptors_generation();
        if known.as_ref().is_some_and(|(known, _)| *known == generation) {
            return Ok(());
        }
        // An epoll instance of its own: whatever was watched before goes with it.
        let inner = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed("epoll_create"))?;
        let mut result = Ok(());
        source.io.descriptors(&mut |fd| {
            if result.is_ok() {
                result = epoll::add(&inner, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN);
            }
        });
        let data = epoll::EventData::new_u64(SOURCE);
        result
            .and_then(|()| epoll::add(&self.epoll, &inner, data, epoll::EventFlags::IN))
            .map_err(failed("epoll_ctl"))?;
        *known = Some((generation, inner));
        Ok(())
    }

    fn now(&self) -> u64 {
        u64::try_from(self.common.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn handle_messages(&mut self) {
        let mut newcomers = Vec::new();
        let mut stop = false;
        self.inbox.drain(EVENTS, |message| match message {
            Message::Subscribe(newcomer) => newcomers.push(newcomer),
            Message::Frames => {}
            Message::Stop => stop = true,
        });
        if stop && self.stop_at.is_none() {
            self.stop_at = Some(Instant::now() + DRAIN);
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
        let read = subscriber.read(&input, now);
        self.generation = self.generation.wrapping_add(1);
        let key = self.entries.insert(Entry { subscriber, generation: self.generation });
        self.order.push(key);
        let data = epoll::EventData::new_u64(u64::from(self.generation) << 32 | key as u64);
        let mut flags = epoll::EventFlags::OUT | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        if protocol != super::Protocol::Tcp {
            flags |= epoll::EventFlags::IN;
        }
        let added = epoll::add(&self.epoll, &*socket, data, flags);
        if let Err(error) = added {
            tracing::warn!(%peer, %error, "epoll_ctl: the subscriber is disconnected");
            self.disconnect(key, Reason::Reset);
        } else if let Err(reason) = read {
            self.disconnect(key, reason);
        }
    }

    fn disconnect(&mut self, key: usize, reason: Reason) {
        let Some(entry) = self.entries.try_remove(key) else { return };
        self.order.retain(|other| *other != key);
        let subscriber = entry.subscriber;
        let account = subscriber.account.clone();
        // Statistics may hold the socket a moment longer than this.
        let _ = epoll::delete(&self.epoll, &**subscriber.transport().socket());
        let view = &self.views[usize::from(account.protocol.is_websocket())];
        subscriber.end(view, reason);
        self.common.ledger.close(&account, reason);
        tracing::debug!(subscriber = account.id, peer = %account.peer, reason = reason.name(), "disconnected");
    }

    /// A send to each subscriber that is behind.
    fn round<P: PacketIo>(&mut self, source: &mut Option<Source<P>>) -> Result<Round, IoError> {
        let Round { mut more, mut waiting, mut half_closed } = Round::default();
        let mut sends = 0;
        let now = self.now();
        self.views.iter_mut().for_each(View::refresh);
        let mut oldest = [u64::MAX; 2];
        for at in 0..self.order.len() {
            let key = self.order[at];
            let subscriber = &mut self.entries[key].subscriber;
            let kind = usize::from(subscriber.account.protocol.is_websocket());
            let before = subscriber.oldest_place();
            let turn = subscriber.turn(
                &self.views[kind],
                now,
                &self.common.limits,
                self.common.slow_client,
                &self.common.ledger,
            );
            oldest[kind] = oldest[kind].min(subscriber.oldest_place().block);
            sends += usize::from(before != subscriber.oldest_place());
            match turn {
                Turn::Idle => {}
                Turn::HalfClosed => half_closed = true,
                Turn::Blocked => waiting = true,
                Turn::More => more = true,
                Turn::Gone(reason) => self.gone.push((key, reason)),
            }
            if sends == SENDS_BETWEEN_RECEIVES {
                sends = 0;
                if let (Some(source), None) = (&mut *source, self.stop_at)
                    && source.receive(self.now())?
                {
                    self.views.iter_mut().for_each(View::refresh);
                    // Those before have not seen it.
                    more = true;
                }
            }
        }
        while let Some((key, reason)) = self.gone.pop() {
            self.disconnect(key, reason);
        }
        for (view, oldest) in self.views.iter_mut().zip(oldest) {
            view.trim(oldest);
        }
        // Who comes first does so in turn.
        if self.order.len() > 1 {
            self.order.rotate_left(1);
        }
        Ok(Round { more, waiting, half_closed })
    }

    fn is_done(&mut self) -> bool {
        let views = &self.views;
        self.order.iter().all(|key| {
            let subscriber = &mut self.entries[*key].subscriber;
            let kind = usize::from(subscriber.account.protocol.is_websocket());
            subscriber.is_done(&views[kind])
        })
    }

    fn sleep<P: PacketIo>(
        &mut self,
        source: &mut Option<Source<P>>,
        timeout: Option<Duration>,
    ) -> Result<(), IoError> {
        let mut timeout = timeout;
        if timeout != Some(Duration::ZERO) {
            let busy = self.inbox.prepare_sleep()
                || source.as_mut().is_some_and(|source| source.io.prepare_sleep())
                || self.views.iter_mut().any(View::is_behind);
            if busy {
                timeout = Some(Duration::ZERO);
            }
        }
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut events = [MaybeUninit::<epoll::Event>::uninit(); EVENTS];
        let result = epoll::wait(&self.epoll, &mut events, timeout.as_ref());
        self.inbox.awake();
        match result {
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

    fn handle_event(&mut self, data: u64, flags: epoll::EventFlags) {
        if data == INBOX || data == SOURCE {
            return;
        }
        let key = (data & u64::from(u32::MAX)) as usize;
        let now = self.now();
        let Some(entry) = self.entries.get_mut(key) else { return };
        if u64::from(entry.generation) != data >> 32 {
            return;
        }
        let subscriber = &mut entry.subscriber;
        subscriber.blocked &= !flags.contains(epoll::EventFlags::OUT);
        if flags.intersects(epoll::EventFlags::ERR | epoll::EventFlags::HUP) {
            let reason = match sockopt::socket_error(&**subscriber.transport().socket()) {
                Ok(Err(error)) | Err(error) => transport::reason(error),
                Ok(Ok(())) => Reason::Closed,
            };
            return self.disconnect(key, reason);
        }
        if flags.contains(epoll::EventFlags::RDHUP) {
            subscriber.half_close(now);
        }
        if flags.contains(epoll::EventFlags::IN)
            && let Err(reason) = subscriber.receive(now, &mut self.scratch)
        {
            self.disconnect(key, reason);
        }
    }
}

fn failed(what: &'static str) -> impl Fn(Errno) -> IoError {
    move |error| IoError::Socket { what: format!("fan-out: {what}"), source: error.into() }
}
