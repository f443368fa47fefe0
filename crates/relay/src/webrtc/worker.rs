//! The sessions of a worker, between its rooms and packet I/O.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use expressway_netio::slice::Slice;
use expressway_netio::stats::Published;
use expressway_netio::timer::TimerWheel;
use expressway_netio::{Flow, IoError, PacketIo};
use slab::Slab;
use str0m::net::Transmit;

use super::answer::{Identity, Role};
use super::board::Board;
use super::channels::Channels;
use super::demux::{ADDRESSES, Demux, Place, Seeming, seeming};
use super::desk::{Join, Refused};
use super::payloads::Payloads;
use super::session::{Alive, Ended, Hall, Session};
use crate::config::WebRtc;
use crate::rtp::history::Position;
use crate::rtp::{Progress, Room};
use crate::status::{DemuxCounters, WebRtcCounters, WebRtcGauges};

/// Sessions that are over and have yet to say goodbye.
const FAREWELLS: usize = 64;

/// What a room has for sessions.
#[derive(Debug, Default)]
pub(crate) struct Seats {
    publisher: Option<usize>,
    /// All sessions in the room.
    members: Vec<usize>,
    /// How many of them receive.
    players: usize,
    /// The member whose turn is next.
    turn: usize,
    /// Members in a row that had everything since there was something new.
    idle: usize,
    /// Where history and board were at then.
    seen: (Position, u64),
    payloads: Payloads,
    board: Board,
    /// What is counted.
    pub(crate) counters: WebRtcCounters,
}

impl Seats {
    /// Looks whether there is something new for members.
    pub(crate) fn look(&mut self, room: &Room) {
        let now = (room.history().head(), self.board.head() + self.board.channels().len() as u64);
        if std::mem::replace(&mut self.seen, now) != now {
            self.idle = 0;
        }
    }

    /// Whether there may be something for a member.
    pub(crate) fn has_news(&self) -> bool {
        self.idle < self.members.len()
    }

    fn hall<'a>(&'a mut self, room: &'a mut Room) -> Hall<'a> {
        Hall { room, board: &mut self.board, counters: &mut self.counters }
    }

    /// What it is like now.
    pub(crate) fn gauges(&self) -> WebRtcGauges {
        WebRtcGauges { publishers: self.publisher.is_some().into(), players: self.players as u64 }
    }
}

/// A room as its sessions see it.
pub(crate) type Seated<'a> = (&'a mut Room, &'a mut Seats);

/// Sends, and counts it there. False: there was no room for all.
pub(crate) type Sending<'a> = dyn FnMut(&mut WebRtcCounters) -> Result<bool, IoError> + 'a;

/// What is to become of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// It is for a session of this worker.
    Session(usize),
    /// It is for one of that worker.
    Worker(usize),
    /// It was dropped.
    Dropped,
}

/// An address that a session was heard from, which other workers are to know or to forget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    Learned(SocketAddr),
    Forgotten(SocketAddr),
}

/// The sessions of a worker.
pub(crate) struct Sessions {
    worker: usize,
    identity: Arc<Identity>,
    /// What peers were told, by what is listened on, and the other way round.
    announced: HashMap<SocketAddr, SocketAddr>,
    own: HashMap<SocketAddr, SocketAddr>,
    handshake_timeout: Duration,
    /// Addresses that are known at most.
    most: usize,
    /// Timers of sessions have their index and this much.
    first_timer: usize,
    slab: Slab<Session>,
    demux: Demux,
    /// Sessions that have something to send, each once.
    ready: VecDeque<usize>,
    farewells: VecDeque<(Session, usize)>,
    /// What other workers are to hear.
    pub(crate) news: VecDeque<Address>,
    pub(crate) counters: DemuxCounters,
    pub(crate) published: Arc<Published<DemuxCounters>>,
}

impl Sessions {
    pub(crate) fn new(config: &WebRtc, identity: Arc<Identity>, worker: usize, first_timer: usize) -> Self {
        let pairs = || config.listen.iter().copied().zip(config.announce.iter().copied());
        Self {
            worker,
            identity,
            announced: pairs().collect(),
            own: pairs().map(|(own, announced)| (announced, own)).collect(),
            handshake_timeout: config.handshake_timeout,
            most: config.sessions * ADDRESSES,
            first_timer,
            slab: Slab::new(),
            demux: Demux::default(),
            ready: VecDeque::new(),
            farewells: VecDeque::new(),
            news: VecDeque::new(),
            counters: DemuxCounters::default(),
            published: Arc::default(),
        }
    }

    /// The room that a session is in.
    pub(crate) fn room(&self, session: usize) -> Option<usize> {
        self.slab.get(session).map(|session| session.room)
    }

    /// The session whose timer that is.
    pub(crate) fn of_timer(&self, token: usize) -> Option<usize> {
        token.checked_sub(self.first_timer)
    }

    /// Where a datagram goes. What another worker has handed over goes no further.
    pub(crate) fn route(&mut self, datagram: &[u8], remote: SocketAddr, is_handed_over: bool) -> Route {
        let (place, dropped) = match seeming(datagram) {
            Seeming::Unknown => (None, &mut self.counters.dropped_unknown),
            Seeming::Request(fragment) => {
                let session = self.demux.session(fragment).map(Place::Session);
                let place = session.or_else(|| self.identity.fragments.worker(fragment).map(Place::Worker));
                (place, &mut self.counters.dropped_fragment)
            }
            Seeming::Media => (self.demux.place(remote), &mut self.counters.dropped_stranger),
        };
        match place {
            Some(Place::Session(session)) => Route::Session(session),
            Some(Place::Worker(worker)) if worker != self.worker && !is_handed_over => Route::Worker(worker),
            _ => {
                *dropped += 1;
                Route::Dropped
            }
        }
    }

    /// Another worker's session was heard from there, or is no more.
    pub(crate) fn handle_address(&mut self, worker: usize, address: Address) {
        match address {
            // See `is_anothers`.
            Address::Learned(remote) if matches!(self.demux.place(remote), Some(Place::Session(_))) => {}
            Address::Learned(remote) if self.demux.len().1 < self.most => {
                self.demux.learn(remote, Place::Worker(worker));
            }
            // Its datagrams are dropped and counted where they come to.
            Address::Learned(_) => {}
            Address::Forgotten(remote) => self.demux.forget(remote, Place::Worker(worker)),
        }
    }

    /// A session wants to be in a room.
    pub(crate) fn join(
        &mut self,
        join: Join,
        (room, seats): Seated<'_>,
        timers: &mut TimerWheel,
        now: Instant,
    ) {
        let Join { room: index, role, agreed, ticket, reply } = join;
        let number = ticket.number;
        match role {
            Role::Publish if !room.offer_session(number, now) => return reply.say(Err(Refused::Conflict)),
            Role::Play if seats.players >= room.config().players => {
                return reply.say(Err(Refused::Full));
            }
            Role::Publish => {
                if let Some(before) = seats.publisher.take() {
                    self.end(before, Ended::Replaced, (room, seats), timers);
                }
            }
            Role::Play => {}
        }
        let session = Session::new(agreed, (number, role, index), ticket, now + self.handshake_timeout, now);
        let fragment = session.fragment.clone();
        let session = self.slab.insert(session);
        self.demux.add(fragment, session);
        seats.members.push(session);
        match role {
            Role::Publish => {
                seats.publisher = Some(session);
                seats.counters.publishers += 1;
            }
            Role::Play => {
                seats.players += 1;
                seats.counters.players += 1;
            }
        }
        // Whoever asked hears before the first datagram of the peer can come.
        reply.say(Ok(()));
        self.handle_timeout(session, (room, seats), timers, now);
    }

    /// Whoever has its URL ends a session.
    pub(crate) fn leave(&mut self, number: u64, (room, seats): Seated<'_>, timers: &mut TimerWheel) {
        let mut all = seats.members.iter();
        let found = all.find(|session| self.slab.get(**session).is_some_and(|one| one.number == number));
        if let Some(session) = found.copied() {
            self.end(session, Ended::Left, (room, seats), timers);
        }
    }

    /// A datagram for a session has come, from `remote` to `local`.
    pub(crate) fn handle_datagram(
        &mut self,
        index: usize,
        datagram: &[u8],
        (remote, local): (SocketAddr, SocketAddr),
        (room, seats): Seated<'_>,
        timers: &mut TimerWheel,
        now: Instant,
    ) {
        if self.is_anothers(index, remote) {
            self.counters.dropped_stranger += 1;
            return;
        }
        let Some(session) = self.slab.get_mut(index) else { return };
        let Some(announced) = self.announced.get(&local) else { return };
        let heard = session.handle_datagram(datagram, (remote, *announced), &mut seats.hall(room), now);
        let alive = heard.map(|new| {
            if let Some(new) = new {
                self.news.push_back(Address::Learned(new));
                self.demux.learn(new, Place::Session(index));
            }
            if let Some(oldest) = session.oldest_address() {
                self.news.push_back(Address::Forgotten(oldest));
                self.demux.forget(oldest, Place::Session(index));
            }
        });
        // What it has taken makes room.
        let alive = match session.channels.as_ref().is_some_and(Channels::is_blocked) {
            true => alive.and_then(|()| session.write_messages(&mut seats.hall(room), now)),
            false => alive,
        };
        self.after(index, alive, (room, seats), timers);
    }

    /// Whether an address is that of another session that is there. Who has a session could else take the datagrams of others, by requests
    /// in their name: nothing shows that a peer has the address that its requests come from.
    fn is_anothers(&self, index: usize, remote: SocketAddr) -> bool {
        match self.demux.place(remote) {
            Some(Place::Session(other)) => other != index && self.slab.contains(other),
            Some(Place::Worker(_)) | None => false,
        }
    }

    /// A session's timer is due.
    pub(crate) fn handle_timeout(
        &mut self,
        index: usize,
        (room, seats): Seated<'_>,
        timers: &mut TimerWheel,
        now: Instant,
    ) {
        let Some(session) = self.slab.get_mut(index) else { return };
        let alive = session.handle_timeout(&mut seats.hall(room), now);
        self.after(index, alive, (room, seats), timers);
    }

    /// Passes on what players asked of the publisher.
    pub(crate) fn request_keyframes(
        &mut self,
        (room, seats): Seated<'_>,
        timers: &mut TimerWheel,
        now: Instant,
    ) {
        while let Some(ssrc) = room.poll_session_keyframe(now) {
            let Some(index) = seats.publisher else { continue };
            let Some(session) = self.slab.get_mut(index) else { continue };
            let alive = session.request_keyframe(ssrc, &mut seats.hall(room), now);
            self.after(index, alive, (room, seats), timers);
        }
    }

    /// After something has happened in a session.
    fn after(&mut self, index: usize, alive: Alive, seated: Seated<'_>, timers: &mut TimerWheel) {
        if let Err(why) = alive {
            return self.end(index, why, seated, timers);
        }
        let Some(session) = self.slab.get_mut(index) else { return };
        timers.arm(self.first_timer + index, session.deadline());
        if session.has_waiting() && !std::mem::replace(&mut session.is_ready, true) {
            self.ready.push_back(index);
        }
    }

    fn end(&mut self, index: usize, why: Ended, (room, seats): Seated<'_>, timers: &mut TimerWheel) {
        let Some(mut session) = self.slab.try_remove(index) else { return };
        timers.cancel(self.first_timer + index);
        self.demux.remove(&session.fragment);
        for remote in &session.addresses {
            self.demux.forget(*remote, Place::Session(index));
            self.news.push_back(Address::Forgotten(*remote));
        }
        if seats.publisher == Some(index) {
            seats.publisher = None;
        }
        seats.members.retain(|member| *member != index);
        seats.players -= usize::from(session.role == Role::Play);
        (seats.turn, seats.idle) = (0, 0);
        if seats.members.is_empty() {
            seats.payloads.clear();
            seats.board.clear();
        }
        if session.role == Role::Publish {
            room.end_session(session.number);
        }
        let counters = &mut seats.counters;
        let counter = match why {
            Ended::Left => &mut counters.ended_left,
            Ended::Handshake => &mut counters.ended_handshake,
            Ended::Lost => &mut counters.ended_lost,
            Ended::Failed => &mut counters.ended_failed,
            Ended::Replaced => &mut counters.ended_replaced,
        };
        *counter += 1;
        tracing::debug!(room = room.config().name, role = ?session.role, ?why, "a WebRTC session ended");
        if session.is_connected() && self.farewells.len() < FAREWELLS {
            session.close();
            let room = session.room;
            self.farewells.push_back((session, room));
        }
    }

    /// Whether a session that needs no room has something to send.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.ready.is_empty() || !self.farewells.is_empty()
    }

    /// Sends what sessions have to say by themselves. `in_room` calls back with the counters of a room.
    pub(crate) fn transmit(
        &mut self,
        io: &mut dyn PacketIo,
        slice: &mut Slice,
        mut in_room: impl FnMut(usize, &mut Sending<'_>) -> Option<Result<bool, IoError>>,
    ) -> Result<Progress, IoError> {
        let Self { own, slab, ready, farewells, .. } = self;
        let flow = |transmit: &Transmit| flow(own, transmit);
        while let Some(index) = ready.front().copied() {
            if let Some(session) = slab.get_mut(index) {
                let room = session.room;
                let sent = in_room(room, &mut |counters| session.send(io, &flow, counters));
                if !sent.transpose()?.unwrap_or(true) {
                    return Ok(Progress::Blocked);
                }
                session.is_ready = false;
            }
            ready.pop_front();
            if slice.spend() && !ready.is_empty() {
                return Ok(Progress::More);
            }
        }
        while let Some((session, room)) = farewells.front_mut() {
            let sent = in_room(*room, &mut |counters| session.send(io, &flow, counters));
            if !sent.transpose()?.unwrap_or(true) {
                return Ok(Progress::Blocked);
            }
            farewells.pop_front();
            if slice.spend() && !farewells.is_empty() {
                return Ok(Progress::More);
            }
        }
        Ok(Progress::Done)
    }

    /// Sends what the members of a room are to have, as far as time and room go.
    pub(crate) fn play(
        &mut self,
        io: &mut dyn PacketIo,
        (room, seats): Seated<'_>,
        (slice, timers): (&mut Slice, &mut TimerWheel),
        now: Instant,
    ) -> Result<Progress, IoError> {
        while seats.has_news() {
            let index = seats.members[seats.turn];
            let Some(session) = self.slab.get_mut(index) else { return Ok(Progress::Done) };
            let own = &self.own;
            let flow = |transmit: &Transmit| flow(own, transmit);
            let Seats { payloads, board, counters, .. } = seats;
            let mut hall = Hall { room: &mut *room, board, counters };
            let (progress, alive) = session.play(io, (&mut hall, payloads), flow, now)?;
            let is_alive = alive.is_ok();
            self.after(index, alive, (room, seats), timers);
            match progress {
                Progress::Blocked => return Ok(Progress::Blocked),
                Progress::Done => seats.idle += 1,
                Progress::More => seats.idle = 0,
            }
            if is_alive {
                seats.turn = (seats.turn + 1) % seats.members.len().max(1);
            }
            if slice.spend() && seats.has_news() {
                return Ok(Progress::More);
            }
        }
        Ok(Progress::Done)
    }
}

/// Where a datagram leaves from and goes to.
fn flow(own: &HashMap<SocketAddr, SocketAddr>, transmit: &Transmit) -> Flow {
    Flow::new(own.get(&transmit.source).copied().unwrap_or(transmit.source), transmit.destination)
}
