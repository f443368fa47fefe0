//! A session: one QUIC connection, or a WebTransport session on one.
//!
//! * This file: its life cycle.
//! * `incoming`: reads streams; `incomplete`: messages of which a part has come.
//! * `publish`: what the peer announces and sends; `upstreams`: what is requested from the peer.
//! * `watch`: what the peer learns about broadcasts.
//! * `subscribe`: what the peer requests; `delivery`: what it is sent.
//! * `writer`: bytes on their way to streams that are read slowly.
//! * `silence`: peers that send or acknowledge nothing.
//!
//! Streams are only read when their content can be used. What a peer sends before it has named a room stays in QUIC, but for the types of
//! its streams. Everything that is kept for a peer is bounded: requests by the room's limit, incomplete messages in bytes and in time, and
//! bytes that the peer has not acknowledged by its account.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use expressway_gateway::quic::{self, Transport, Turn, Waker};
use expressway_web::memory::Account;
use slab::Slab;

use super::application::{Moq, Rights};
use super::broadcast::{Broadcast, Publisher};
use super::room::Room;
use super::wire::{self, session_code};
use delivery::{Deliveries, Sweep};
use incoming::Incoming;
use incomplete::Incomplete;
use publish::Answers;
use silence::Silence;
use subscribe::Owner;
use upstreams::Upstreams;
use watch::Watch;
use writer::Writers;

mod delivery;
mod incoming;
mod incomplete;
mod publish;
mod silence;
mod subscribe;
mod upstreams;
mod watch;
mod writer;

pub use delivery::CONCURRENT;

/// How long a peer may take to say which room it wants.
const SETUP_TIMEOUT: Duration = Duration::from_secs(10);

/// What wakes a session: tracks that are asked for, broadcasts that come and go, work of the room's that was left; from [`OWNERS`] on
/// what it is sent.
const QUEUE: u64 = 0;
const BROADCASTS: u64 = 1;
const REST: u64 = 2;
const OWNERS: u64 = 3;

/// See the module.
pub struct Session {
    moq: Arc<Moq>,
    publisher: Arc<Publisher>,
    /// Where it is, once it has said that.
    access: Option<RoomAccess>,
    begun: Instant,
    /// What is on its way to the peer, and what waits for that.
    account: Account,
    /// Since when the peer says nothing, or acknowledges nothing.
    silence: Silence,
    /// What is read of streams.
    incoming: HashMap<u64, Incoming>,
    /// What has come of messages that are not whole.
    incomplete: Incomplete,
    /// Streams with something that waits until it is known where the session is.
    held: VecDeque<u64>,
    /// Whether that is all of them.
    held_ends: HashMap<u64, bool>,
    /// Streams that were not read to their end, which the engine will not name again.
    unread: VecDeque<u64>,
    writers: Writers,
    /// Broadcasts that the peer announces, by its path for them.
    broadcasts: HashMap<Box<str>, Arc<Broadcast>>,
    /// Those of others that they have replaced, with tracks that are to be ended.
    replaced: VecDeque<Arc<Broadcast>>,
    /// The tracks that are asked of it.
    upstreams: Upstreams,
    /// Its requests that something is sent for.
    owners: Slab<Owner>,
    /// Their keys, by the streams that they came on.
    requests: HashMap<u64, usize>,
    deliveries: Deliveries,
    sweep: Sweep,
    watches: Vec<Watch>,
    /// Numbers that something is to be done for, each once.
    woken: VecDeque<u64>,
    is_woken: HashSet<u64>,
    /// The peer is going: nothing more is asked of it.
    is_leaving: bool,
    has_said_goaway: bool,
    /// It does work of the room's that was left, and wakes itself by this until there is none.
    does_rest: bool,
    waker: Waker,
}

/// The room of a session, and what it may do there.
#[derive(Clone)]
struct RoomAccess {
    room: Arc<Room>,
    /// In front of all of its paths.
    prefix: Box<str>,
    rights: Rights,
}

impl Session {
    /// Begins on a connection.
    pub(super) fn start(moq: Arc<Moq>, turn: &mut Turn<'_>) -> Self {
        let publisher = Publisher::new(moq.number(), turn.waker(QUEUE));
        let account = turn.account(moq.sessions.memory, moq.sessions.memory);
        let mut session = Self {
            moq,
            publisher,
            access: None,
            begun: turn.now(),
            silence: Silence::default(),
            incoming: HashMap::new(),
            incomplete: Incomplete::default(),
            held: VecDeque::new(),
            held_ends: HashMap::new(),
            unread: VecDeque::new(),
            writers: Writers::new(account.clone(), turn.transport()),
            account,
            broadcasts: HashMap::new(),
            replaced: VecDeque::new(),
            upstreams: Upstreams::default(),
            owners: Slab::new(),
            requests: HashMap::new(),
            deliveries: Deliveries::default(),
            sweep: Sweep::default(),
            watches: Vec::new(),
            woken: VecDeque::new(),
            is_woken: HashSet::new(),
            is_leaving: false,
            has_said_goaway: false,
            does_rest: false,
            waker: turn.waker(REST),
        };
        let stream = session.writers.open_unidirectional();
        session.writers.write(turn.transport(), stream, wire::write::setup(), true);
        session
    }

    /// The peer has broken the protocol.
    fn fail(&mut self, turn: &mut Turn<'_>, words: &'static str) {
        if let Some(access) = &self.access {
            access.room.counters.sessions_failed.fetch_add(1, Relaxed);
        }
        tracing::debug!(remote = %turn.remote(), words, "MoQ protocol error by the client");
        turn.transport().close(session_code::PROTOCOL_VIOLATION, words);
    }

    /// Requests that the session may have open.
    fn most_requests(&self) -> u64 {
        self.access
            .as_ref()
            .map_or(self.moq.sessions.requests as u64, |access| access.room.limits.subscriptions as u64)
    }

    /// The peer says which room it wants.
    fn enter(&mut self, turn: &mut Turn<'_>, path: Option<&str>) -> Result<(), &'static str> {
        if self.access.is_some() {
            return Err("a second SETUP");
        }
        let remote = turn.remote().ip();
        let target = turn.transport().target();
        if target.is_some() && path.is_some_and(|path| !path.is_empty()) {
            return Err("a path in SETUP of a session that has one");
        }
        let Some((room, prefix, rights)) = self.moq.enter(target.or(path).unwrap_or_default(), remote) else {
            self.moq.refused_session().fetch_add(1, Relaxed);
            tracing::debug!(remote = %turn.remote(), "MoQ: no such room, or no right to it");
            turn.transport().close(session_code::UNAUTHORIZED, "no such room, or no right to it");
            return Ok(());
        };
        room.counters.sessions.fetch_add(1, Relaxed);
        room.gauges.sessions.fetch_add(1, Relaxed);
        self.access = Some(RoomAccess { room, prefix, rights });
        if rights.publish {
            let stream = self.writers.open_bidirectional();
            let asked = wire::write::announce_request(self.moq.hop);
            self.writers.write(turn.transport(), stream, asked, false);
            self.incoming.insert(stream, Incoming::Answers(Answers::Broadcasts(None)));
        }
        Ok(())
    }

    /// Answers a request, or a stream, by nothing.
    fn refuse(&mut self, turn: &mut Turn<'_>, stream: u64, code: u64) {
        if stream & 2 == 0 {
            self.writers.reset(turn.transport(), stream, code);
        }
        turn.transport().stop_stream(stream, code);
    }

    /// Takes the peer's broadcasts away, each with its tracks. True: there are more, for another turn.
    fn retract_all(&mut self, turn: &mut Turn<'_>) -> bool {
        let Some(access) = self.access.clone() else { return false };
        while let Some(path) = self.broadcasts.keys().next().cloned() {
            if let Some(broadcast) = self.broadcasts.remove(&path) {
                self.replaced.extend(access.room.retract(&broadcast, self.moq.number()));
                self.replaced.push_back(broadcast);
            }
            if turn.spend() {
                return true;
            }
        }
        false
    }

    /// Does work of the room's that was left. True: there is more.
    fn do_rest(&mut self, turn: &mut Turn<'_>) -> bool {
        let Some(access) = &self.access else { return false };
        while access.room.do_some() {
            if turn.spend() {
                return true;
            }
        }
        self.does_rest = false;
        false
    }

    /// Has a number looked at in this turn or the next.
    fn again(&mut self, number: u64) {
        if self.is_woken.insert(number) {
            self.woken.push_back(number);
        }
    }

    /// Path of a broadcast within the room, from what the peer says it is.
    fn full_path(access: &RoomAccess, path: &str) -> String {
        let path = path.trim_matches('/');
        match (access.prefix.is_empty(), path.is_empty()) {
            (true, _) => path.to_owned(),
            (false, true) => access.prefix.to_string(),
            (false, false) => format!("{}/{path}", access.prefix),
        }
    }
}

impl quic::Session for Session {
    fn handle_readable(&mut self, turn: &mut Turn<'_>, scratch: &mut [u8]) -> bool {
        while !turn.transport().is_ending() {
            match self.release_held(turn) {
                Ok(false) => {}
                Ok(true) => return true,
                Err(words) => {
                    self.fail(turn, words);
                    break;
                }
            }
            let Some(stream) = self.unread.pop_front().or_else(|| turn.transport().readable()) else { break };
            if self.read(turn, stream, scratch) || turn.spend() {
                return self.has_unread() || turn.transport().is_readable();
            }
        }
        self.settle_upstreams(turn)
    }

    fn has_unread(&self) -> bool {
        !self.unread.is_empty()
            || self.access.is_some() && !self.held.is_empty()
            || self.upstreams.has_settled()
    }

    fn wake(&mut self, number: u64) -> bool {
        match number {
            BROADCASTS => self.hear_of_broadcasts(),
            QUEUE | REST => self.again(number),
            owner if self.owners.contains((owner - OWNERS) as usize) => self.again(number),
            _ => return false,
        }
        true
    }

    fn is_woken(&self) -> bool {
        !self.woken.is_empty()
    }

    fn handle_woken(&mut self, turn: &mut Turn<'_>, _scratch: &mut [u8]) -> bool {
        // Others wait for it, whatever becomes of this connection.
        if self.is_woken.contains(&REST) && self.do_rest(turn) {
            self.waker.wake();
        }
        while !turn.transport().is_ending()
            && let Some(number) = self.woken.pop_front()
        {
            self.is_woken.remove(&number);
            let is_cut = match number {
                QUEUE => self.serve_queue(turn),
                BROADCASTS => self.follow_broadcasts(turn),
                REST => false,
                _ => self.pump(turn, (number - OWNERS) as usize),
            };
            if is_cut {
                self.again(number);
            }
            if is_cut || turn.spend() {
                return !self.woken.is_empty();
            }
        }
        self.woken.clear();
        self.is_woken.clear();
        false
    }

    fn handle_writable(&mut self, turn: &mut Turn<'_>) -> bool {
        while !turn.transport().is_ending()
            && let Some(stream) = turn.transport().writable()
        {
            if self.handle_stopped(turn, stream) {
                // It takes nothing any more.
            } else if let Some(owner) = self.deliveries.owner(stream) {
                // It is looked at with the others of its request, and again if the slice ends within.
                self.again(OWNERS + owner as u64);
            } else if self.writers.flush(turn.transport(), stream) && self.is_watched(stream) {
                self.again(BROADCASTS);
            }
            if turn.spend() {
                return true;
            }
        }
        while let Some(stream) = self.writers.open_next(turn.transport()) {
            match self.deliveries.owner(stream) {
                Some(owner) => self.again(OWNERS + owner as u64),
                None => {
                    self.writers.flush(turn.transport(), stream);
                }
            }
            if turn.spend() {
                return true;
            }
        }
        if self.feed_starved(turn) {
            return true;
        }
        self.is_woken() && self.handle_woken(turn, &mut [])
    }

    fn has_room(&self, transport: &Transport) -> bool {
        transport.has_writable()
            || self.writers.can_open(transport)
            || self.deliveries.can_go_on(&self.account)
    }

    fn follow_limits(&mut self, _turn: &Turn<'_>) {
        self.account.follow();
    }

    fn watch(&mut self, turn: &Turn<'_>) {
        self.silence.watch(&self.account, turn.now());
        self.sweep.watch(!self.owners.is_empty(), turn.now());
        if !self.does_rest && self.access.as_ref().is_some_and(|access| access.room.take_rest()) {
            self.does_rest = true;
            self.waker.wake();
        }
    }

    fn deadline(&self) -> Option<Instant> {
        let setup = self.access.is_none().then(|| self.begun + SETUP_TIMEOUT);
        let others = [
            self.silence.deadline(),
            self.upstreams.deadline(),
            self.sweep.deadline(),
            self.incomplete.deadline(),
        ];
        setup.into_iter().chain(others.into_iter().flatten()).min()
    }

    fn handle_deadline(&mut self, turn: &mut Turn<'_>) -> bool {
        if self.access.is_none() && self.begun + SETUP_TIMEOUT <= turn.now() {
            turn.transport().close(session_code::TIMEOUT, "no SETUP in time");
            // The deadline is over, whatever becomes of the connection.
            self.begun = turn.now();
        }
        self.end_incomplete(turn);
        // Answers that end before they are whole end their subscriptions too.
        let is_cut = self.settle_upstreams(turn)
            || self.settle_late(turn)
            || self.sweep_stopped(turn)
            || self.handle_silence(turn);
        // What that has woken has no other turn to wait for.
        is_cut || self.is_woken() && self.handle_woken(turn, &mut [])
    }

    fn held(&self) -> usize {
        self.account.in_flight()
    }

    fn is_busy(&self) -> bool {
        !self.owners.is_empty() || !self.broadcasts.is_empty()
    }

    fn goaway(&mut self, turn: &mut Turn<'_>) {
        if !std::mem::replace(&mut self.has_said_goaway, true) {
            let stream = self.writers.open_bidirectional();
            self.writers.write(turn.transport(), stream, wire::write::goaway(), true);
            self.incoming.insert(stream, Incoming::Ignored);
        }
    }

    fn shrink_to_fit(&mut self) {
        self.incoming.shrink_to_fit();
        self.incomplete.shrink_to_fit();
        self.woken.shrink_to_fit();
        self.unread.shrink_to_fit();
        self.owners.shrink_to_fit();
        self.requests.shrink_to_fit();
        self.deliveries.shrink_to_fit();
    }

    fn abandon(&mut self, turn: &mut Turn<'_>) -> bool {
        let Some(access) = self.access.clone() else { return false };
        if self.retract_all(turn) {
            return true;
        }
        while let Some(key) = self.owners.iter().next().map(|(key, _)| key) {
            self.forget(key);
            if turn.spend() {
                return true;
            }
        }
        for watch in self.watches.drain(..) {
            access.room.unwatch(watch.key);
        }
        while let Some(former) = self.replaced.front() {
            if !former.close_one() {
                self.replaced.pop_front();
            }
            if turn.spend() {
                return true;
            }
        }
        // Tracks of broadcasts that were retracted before: who asks from now on is told at once.
        while self.publisher.close_one() {
            if turn.spend() {
                return true;
            }
        }
        while self.upstreams.abandon_one() {
            if turn.spend() {
                return true;
            }
        }
        while let Some(stream) = self.incoming.keys().next().copied() {
            if let Some(Incoming::Group(group)) = self.incoming.remove(&stream) {
                group.end(true, None);
            }
            if turn.spend() {
                return true;
            }
        }
        // What of that is left to others is done here if nobody does it: there is no other turn.
        if (self.does_rest || access.room.take_rest()) && self.do_rest(turn) {
            self.does_rest = true;
            return true;
        }
        access.room.gauges.sessions.fetch_sub(1, Relaxed);
        self.access = None;
        false
    }
}
