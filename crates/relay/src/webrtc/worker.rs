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

use super::addresses::ADDRESSES;
use super::answer::{Identity, Role};
use super::channels::Channels;
use super::demux::{Demux, Owner, PacketKind, classify};
use super::members::RoomMembers;
use super::session::{Alive, Ended, Heard, RoomContext, Session};
use super::table::{Join, Refused, Restart};
use crate::config::WebRtc;
use crate::rtp::{Progress, Room};
use crate::status::{DemuxCounters, WebRtcCounters, WebRtcGauges};

/// Sessions that have ended and have a DTLS alert to send.
const CLOSING: usize = 64;

/// A room and its sessions.
pub(crate) type RoomAndMembers<'a> = (&'a mut Room, &'a mut RoomMembers);

/// Sends, and counts it there. False: there was no room for all.
pub(crate) type Sending<'a> = dyn FnMut(&mut WebRtcCounters) -> Result<bool, IoError> + 'a;

/// Where a datagram goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// To a session of this worker.
    Session(usize),
    /// To another worker.
    Worker(usize),
    /// Nowhere: it was dropped and counted.
    Dropped,
}

/// A change of a session's remote addresses, for other workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    Learned(SocketAddr),
    Forgotten(SocketAddr),
}

/// The sessions of a worker.
pub(crate) struct Sessions {
    worker: usize,
    identity: Arc<Identity>,
    /// Announced addresses by listen address, and the reverse.
    announced: HashMap<SocketAddr, SocketAddr>,
    own: HashMap<SocketAddr, SocketAddr>,
    handshake_timeout: Duration,
    /// Limit of remote addresses.
    most: usize,
    /// A session's timer is its index plus this.
    first_timer: usize,
    slab: Slab<Session>,
    by_number: HashMap<u64, usize>,
    demux: Demux,
    /// Sessions that have something to send, each once.
    ready: VecDeque<usize>,
    closing: VecDeque<(Session, usize)>,
    /// For other workers.
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
            most: config.limits.sessions * ADDRESSES,
            first_timer,
            slab: Slab::new(),
            by_number: HashMap::new(),
            demux: Demux::default(),
            ready: VecDeque::new(),
            closing: VecDeque::new(),
            news: VecDeque::new(),
            counters: DemuxCounters::default(),
            published: Arc::default(),
        }
    }

    /// What the sessions of a room are like now.
    pub(crate) fn gauges(&self, members: &RoomMembers) -> WebRtcGauges {
        let sessions = members.sessions.iter().filter_map(|session| self.slab.get(*session));
        let estimates: Vec<u64> = sessions.filter_map(|session| session.path.estimate).collect();
        let count = estimates.len() as u64;
        WebRtcGauges {
            publishers: members.publisher.is_some().into(),
            players: members.players as u64,
            estimated: count,
            estimate_lowest: estimates.iter().min().copied().unwrap_or(0),
            estimate_mean: estimates.iter().sum::<u64>().checked_div(count).unwrap_or(0),
            estimate_highest: estimates.iter().max().copied().unwrap_or(0),
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
        let (owner, dropped) = match classify(datagram) {
            PacketKind::Unknown => (None, &mut self.counters.dropped_unknown),
            PacketKind::Request(ufrag) => {
                let session = self.demux.session(ufrag).map(Owner::Session);
                let owner = session.or_else(|| self.identity.ufrags.worker(ufrag).map(Owner::Worker));
                (owner, &mut self.counters.dropped_fragment)
            }
            PacketKind::Media => (self.demux.owner(remote), &mut self.counters.dropped_stranger),
        };
        match owner {
            Some(Owner::Session(session)) => Route::Session(session),
            Some(Owner::Worker(worker)) if worker != self.worker && !is_handed_over => Route::Worker(worker),
            _ => {
                *dropped += 1;
                Route::Dropped
            }
        }
    }

    /// Applies another worker's address change.
    pub(crate) fn handle_address(&mut self, worker: usize, address: Address) {
        match address {
            // It was this session's later.
            Address::Learned(remote) if matches!(self.demux.owner(remote), Some(Owner::Session(_))) => {}
            Address::Learned(remote) if self.demux.len().1 < self.most => {
                self.demux.learn(remote, Owner::Worker(worker));
            }
            // Its datagrams are dropped and counted where they come to.
            Address::Learned(_) => {}
            Address::Forgotten(remote) => self.demux.forget(remote, Owner::Worker(worker)),
        }
    }

    /// Adds a session to a room.
    pub(crate) fn join(
        &mut self,
        join: Join,
        (room, members): RoomAndMembers<'_>,
        timers: &mut TimerWheel,
        now: Instant,
    ) {
        let Join { room: index, role, agreed, registration, reply } = join;
        let number = registration.number;
        match role {
            Role::Publish if !room.offer_session(number, now) => return reply.send(Err(Refused::Conflict)),
            Role::Play if members.players >= room.config().players => {
                return reply.send(Err(Refused::Full));
            }
            Role::Publish => {
                if let Some(before) = members.publisher.take() {
                    self.end(before, Ended::Replaced, (room, members), timers);
                }
            }
            Role::Play => {}
        }
        let session =
            Session::new(agreed, (number, role, index), registration, now + self.handshake_timeout, now);
        let ufrag = session.ufrag.clone();
        let session = self.slab.insert(session);
        self.by_number.insert(number, session);
        self.demux.add(ufrag, session);
        members.sessions.push(session);
        match role {
            Role::Publish => {
                members.publisher = Some(session);
                members.counters.publishers += 1;
            }
            Role::Play => {
                members.players += 1;
                members.counters.players += 1;
            }
        }
        // Whoever asked hears before the first datagram of the peer can come.
        reply.send(Ok(()));
        self.handle_timeout(session, (room, members), timers, now);
    }

    /// Ends a session by request (DELETE of its URL).
    pub(crate) fn leave(
        &mut self,
        number: u64,
        (room, members): RoomAndMembers<'_>,
        timers: &mut TimerWheel,
    ) {
        if let Some(session) = self.by_number.get(&number).copied() {
            self.end(session, Ended::Left, (room, members), timers);
        }
    }

    /// ICE of a session begins anew (PATCH of its URL).
    pub(crate) fn restart(&mut self, restart: Restart, now: Instant) {
        let found = self.by_number.get(&restart.session).copied();
        let Some((index, session)) = found.and_then(|index| Some((index, self.slab.get_mut(index)?))) else {
            return restart.reply.send(Err(Refused::Gone));
        };
        self.demux.remove(&session.ufrag);
        session.restart(restart.credentials, now);
        self.demux.add(session.ufrag.clone(), index);
        restart.reply.send(Ok(()));
    }

    /// A session asks for no layer higher than that.
    pub(crate) fn set_layer(&mut self, number: u64, rid: Option<Box<str>>, now: Instant) {
        let found = self.by_number.get(&number).copied();
        if let Some(session) = found.and_then(|index| self.slab.get_mut(index)) {
            session.set_highest(rid, now);
        }
    }

    /// Handles a datagram for a session, from `remote` to `local`.
    pub(crate) fn handle_datagram(
        &mut self,
        index: usize,
        datagram: &[u8],
        (remote, local): (SocketAddr, SocketAddr),
        (room, members): RoomAndMembers<'_>,
        timers: &mut TimerWheel,
        now: Instant,
    ) {
        let Some(session) = self.slab.get_mut(index) else { return };
        let Some(announced) = self.announced.get(&local) else { return };
        let heard = session.handle_datagram(datagram, (remote, *announced), &mut members.context(room), now);
        let alive = heard.map(|heard| match heard {
            Heard::New => {
                self.news.push_back(Address::Learned(remote));
                self.demux.learn(remote, Owner::Session(index));
            }
            Heard::Stranger => self.counters.dropped_stranger += 1,
            Heard::Known | Heard::Dropped => {}
        });
        self.forget_address(index, now);
        // What it has taken makes room.
        let Some(session) = self.slab.get_mut(index) else { return };
        let was_blocked = session.channels.as_ref().is_some_and(Channels::is_blocked);
        let alive = match was_blocked {
            true => alive.and_then(|()| session.write_messages(&mut members.context(room), now)),
            false => alive,
        };
        // What it has room for besides comes in its turn.
        if was_blocked && session.channels.as_ref().is_some_and(|channels| channels.has_more(&members.log)) {
            members.idle = 0;
        }
        self.after(index, alive, (room, members), timers);
    }

    /// An address that a session has left is free for others.
    fn forget_address(&mut self, index: usize, now: Instant) {
        let Some(remote) = self.slab.get_mut(index).and_then(|session| session.addresses.give_up(now)) else {
            return;
        };
        self.news.push_back(Address::Forgotten(remote));
        self.demux.forget(remote, Owner::Session(index));
    }

    /// A session's timer is due.
    pub(crate) fn handle_timeout(
        &mut self,
        index: usize,
        (room, members): RoomAndMembers<'_>,
        timers: &mut TimerWheel,
        now: Instant,
    ) {
        let Some(session) = self.slab.get_mut(index) else { return };
        let alive = session.handle_timeout(&mut members.context(room), now);
        self.forget_address(index, now);
        self.after(index, alive, (room, members), timers);
    }

    /// Passes on what players asked of the publisher.
    pub(crate) fn request_keyframes(
        &mut self,
        (room, members): RoomAndMembers<'_>,
        timers: &mut TimerWheel,
        now: Instant,
    ) {
        while let Some(ssrc) = room.poll_session_keyframe(now) {
            let Some(index) = members.publisher else { continue };
            let Some(session) = self.slab.get_mut(index) else { continue };
            let alive = session.request_keyframe(ssrc, &mut members.context(room), now);
            self.after(index, alive, (room, members), timers);
        }
    }

    /// After something has happened in a session.
    fn after(
        &mut self,
        index: usize,
        alive: Alive,
        (room, members): RoomAndMembers<'_>,
        timers: &mut TimerWheel,
    ) {
        if let Err(why) = alive {
            return self.end(index, why, (room, members), timers);
        }
        let Some(session) = self.slab.get_mut(index) else { return };
        if std::mem::take(&mut session.is_new) {
            members.idle = 0;
        }
        timers.arm(self.first_timer + index, session.deadline());
        if session.has_waiting() && !std::mem::replace(&mut session.is_ready, true) {
            self.ready.push_back(index);
        }
    }

    fn end(
        &mut self,
        index: usize,
        why: Ended,
        (room, members): RoomAndMembers<'_>,
        timers: &mut TimerWheel,
    ) {
        let Some(mut session) = self.slab.try_remove(index) else { return };
        self.by_number.remove(&session.number);
        timers.cancel(self.first_timer + index);
        self.demux.remove(&session.ufrag);
        for remote in session.addresses.clear() {
            self.demux.forget(remote, Owner::Session(index));
            self.news.push_back(Address::Forgotten(remote));
        }
        if members.publisher == Some(index) {
            members.publisher = None;
        }
        members.remove(index);
        members.players -= usize::from(session.role == Role::Play);
        if members.sessions.is_empty() {
            members.payloads.clear();
            members.log.clear();
        }
        session.unwatch(&mut members.context(room));
        if session.role == Role::Publish {
            room.end_session(session.number);
        }
        let counters = &mut members.counters;
        let counter = match why {
            Ended::Left => &mut counters.ended_left,
            Ended::Handshake => &mut counters.ended_handshake,
            Ended::Lost => &mut counters.ended_lost,
            Ended::Failed => &mut counters.ended_failed,
            Ended::Replaced => &mut counters.ended_replaced,
        };
        *counter += 1;
        tracing::debug!(room = room.config().name, role = ?session.role, ?why, "a WebRTC session ended");
        if session.is_connected() && self.closing.len() < CLOSING {
            session.close();
            let room = session.room;
            self.closing.push_back((session, room));
        }
    }

    /// Whether a session that needs no room has something to send.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.ready.is_empty() || !self.closing.is_empty()
    }

    /// Sends what sessions have to say by themselves. `in_room` calls back with the counters of a room.
    pub(crate) fn transmit(
        &mut self,
        io: &mut dyn PacketIo,
        slice: &mut Slice,
        mut in_room: impl FnMut(usize, &mut Sending<'_>) -> Option<Result<bool, IoError>>,
    ) -> Result<Progress, IoError> {
        let Self { own, slab, ready, closing, .. } = self;
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
        while let Some((session, room)) = closing.front_mut() {
            let sent = in_room(*room, &mut |counters| session.send(io, &flow, counters));
            if !sent.transpose()?.unwrap_or(true) {
                return Ok(Progress::Blocked);
            }
            closing.pop_front();
            if slice.spend() && !closing.is_empty() {
                return Ok(Progress::More);
            }
        }
        Ok(Progress::Done)
    }

    /// Sends what the members of a room are to have, as far as time and room go.
    pub(crate) fn play(
        &mut self,
        io: &mut dyn PacketIo,
        (room, members): RoomAndMembers<'_>,
        (slice, timers): (&mut Slice, &mut TimerWheel),
        now: Instant,
    ) -> Result<Progress, IoError> {
        while members.has_news() {
            let index = members.sessions[members.turn];
            let Some(session) = self.slab.get_mut(index) else { return Ok(Progress::Done) };
            let own = &self.own;
            let flow = |transmit: &Transmit| flow(own, transmit);
            let RoomMembers { payloads, log, counters, .. } = members;
            let mut context = RoomContext { room: &mut *room, log, counters };
            let (progress, alive) = session.play(io, (&mut context, payloads), flow, now)?;
            let is_alive = alive.is_ok();
            self.after(index, alive, (room, members), timers);
            match progress {
                Progress::Blocked => return Ok(Progress::Blocked),
                Progress::Done => members.idle += 1,
                Progress::More => members.idle = 0,
            }
            if is_alive {
                members.turn = (members.turn + 1) % members.sessions.len().max(1);
            }
            if slice.spend() && members.has_news() {
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
