//! Rooms on a worker.
//!
//! Each room belongs to one worker. Datagrams that arrive at another worker, because the device chose its queue, are copied and handed
//! over by mailbox. All datagrams of a flow are handed over, or none.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use expressway_gateway::quic::{self, Endpoint, EngineError, Shared};
use expressway_netio::stats::Published;
use expressway_netio::{Context, Datagram, IoError, Mailbox, PacketIo, Service, Transmit};

use crate::bridge::Bridge;
use crate::config::{Config, Output};
use crate::moq;
use crate::rtp::{Progress, Room};
use crate::status::{BridgeStatus, DemuxCounters, ReceiverStatus, RoomCounters, RoomStatus};
use crate::webrtc::answer::Identity;
use crate::webrtc::table::{Join, Restart};
use crate::webrtc::{RoomMembers, Sessions};

mod sessions;

pub use sessions::News;

/// Messages that may wait for a worker.
pub const MESSAGES: usize = 4096;

/// The rooms as other threads see them, in the order of the configuration.
pub type Status = Arc<Mutex<Vec<RoomStatus>>>;

/// From another thread.
#[derive(Debug)]
pub enum Message {
    /// A datagram for a room or a session of this worker.
    Datagram(Box<Handover>),
    /// A WebRTC session for a room of this worker.
    Join(Box<Join>),
    /// The session of that number leaves that room of this worker.
    Leave(usize, u64),
    /// ICE of a session of this worker begins anew.
    Restart(Box<Restart>),
    /// The session of that number is to see no layer above the one of this RID, if any.
    Layer(u64, Option<Box<str>>),
    /// Another worker's session was heard from an address, or is no more.
    News(News),
    /// A room sends to these receivers from now on. The sender is dropped once it does.
    Outputs(usize, Vec<Output>, mpsc::Sender<()>),
    /// For the QUIC endpoint of this worker.
    Quic(quic::Message),
    /// End after this turn, or when sessions of Media over QUIC have heard of it.
    Stop,
}

impl From<quic::Message> for Message {
    fn from(message: quic::Message) -> Self {
        Self::Quic(message)
    }
}

/// A datagram that came to another worker.
#[derive(Debug)]
pub struct Handover {
    payload: Vec<u8>,
    remote: SocketAddr,
    local: SocketAddr,
}

/// How long sessions of Media over QUIC may take to go when the relay ends.
const FAREWELL: Duration = Duration::from_secs(1);

/// Timers of rooms and WebRTC sessions: those of the QUIC endpoint come behind.
fn timers(config: &Config) -> usize {
    config.rooms.len() + config.webrtc.as_ref().map_or(0, |webrtc| webrtc.limits.sessions)
}

/// The worker that a room belongs to.
pub fn owner(room: usize, workers: usize) -> usize {
    room % workers
}

/// The status of rooms that nothing has happened in yet.
pub fn status(config: &Config) -> Status {
    let room = |room: &crate::config::Room| RoomStatus {
        name: room.name.clone(),
        counters: Arc::default(),
        gauges: Arc::default(),
        webrtc: (room.whip || room.whep).then(Default::default),
        moq: config.moq.as_ref().filter(|_| room.moq).map(|moq| moq::room::Room::new(&room.name, moq.limits)),
        bridge: room.moq_broadcast.clone().map(|path| BridgeStatus {
            path,
            counters: Arc::default(),
            gauges: Arc::default(),
        }),
        receivers: room.outputs.iter().map(of_output).collect(),
    };
    Arc::new(Mutex::new(config.rooms.iter().map(room).collect()))
}

fn bridge(room: &crate::config::Room, status: &RoomStatus, now: Instant) -> Option<Box<Bridge>> {
    let (path, moq) = (room.moq_broadcast.as_ref()?, status.moq.as_ref()?);
    Some(Box::new(Bridge::new(path, Arc::clone(moq), now)))
}

fn of_output(output: &Output) -> ReceiverStatus {
    ReceiverStatus { address: output.address, counters: Arc::default(), gauges: Arc::default() }
}

/// A room of this worker.
struct Owned {
    room: Room,
    members: RoomMembers,
    /// `None`: it is not published by Media over QUIC.
    bridge: Option<Box<Bridge>>,
    /// It waits for its turn to send.
    is_ready: bool,
    /// Something has happened since it was last published.
    is_changed: bool,
    /// What its timer is set to.
    deadline: Option<Instant>,
    status: RoomStatus,
}

/// What an address of this host is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Local {
    /// A room, by index.
    Room(usize),
    /// All WebRTC sessions.
    Sessions,
    /// The QUIC endpoint.
    Quic,
}

/// Who sends in a turn. Whoever goes first may take all of the turn's slice, and leaves the other a single piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sender {
    /// The QUIC endpoint.
    Endpoint,
    /// Rooms and WebRTC sessions.
    Rooms,
}

impl Sender {
    /// The order of this turn; the other goes first in the next.
    fn take_turns(&mut self) -> [Self; 2] {
        let first = *self;
        *self = match first {
            Self::Endpoint => Self::Rooms,
            Self::Rooms => Self::Endpoint,
        };
        [first, *self]
    }
}

/// What two have left.
fn both(one: Transmit, other: Transmit) -> Transmit {
    match (one, other) {
        (Transmit::More, _) | (_, Transmit::More) => Transmit::More,
        (Transmit::Blocked, _) | (_, Transmit::Blocked) => Transmit::Blocked,
        (Transmit::Done, Transmit::Done) => Transmit::Done,
    }
}

/// The rooms of a worker.
pub struct Relay {
    worker: usize,
    /// By index in the configuration; `None`: another worker's.
    rooms: Vec<Option<Owned>>,
    by_local: HashMap<SocketAddr, Local>,
    /// `None`: there is no WebRTC.
    sessions: Option<Sessions>,
    /// `None`: there is no Media over QUIC.
    endpoint: Option<Endpoint>,
    /// The first of the endpoint's timers.
    first_timer: usize,
    sends_first: Sender,
    /// Rooms that have something to send, each once.
    ready: VecDeque<usize>,
    /// What other workers had no room for, by room.
    refused: Vec<(RoomCounters, Arc<Published<RoomCounters>>)>,
    status: Status,
    /// The time of the last turn that something happened in.
    now: Instant,
    stopped: bool,
}

impl Relay {
    /// The rooms of this worker among `workers`. `refused` is where it publishes what it could not hand over, by room.
    pub fn new(config: &Config, worker: usize, workers: usize, status: Status, now: Instant) -> Self {
        let all = status.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let own = |(index, room): (usize, &crate::config::Room)| {
            (owner(index, workers) == worker).then(|| Owned {
                room: Room::new(room.clone(), now),
                members: RoomMembers::default(),
                bridge: bridge(room, &all[index], now),
                is_ready: false,
                is_changed: true,
                deadline: None,
                status: all[index].clone(),
            })
        };
        let by_local = config.rooms.iter().enumerate().flat_map(|(index, room)| {
            room.listen().into_iter().map(move |address| (address, Local::Room(index)))
        });
        let sessions = config.webrtc.iter().flat_map(|webrtc| &webrtc.listen);
        let by_local = by_local.chain(sessions.map(|address| (*address, Local::Sessions)));
        let of_moq = config.moq.iter().flat_map(|moq| &moq.listen);
        let by_local = by_local.chain(of_moq.map(|address| (*address, Local::Quic)));
        Self {
            worker,
            rooms: config.rooms.iter().enumerate().map(own).collect(),
            by_local: by_local.collect(),
            sessions: None,
            endpoint: None,
            first_timer: timers(config),
            sends_first: Sender::Endpoint,
            ready: VecDeque::new(),
            refused: config.rooms.iter().map(|_| Default::default()).collect(),
            status,
            now,
            stopped: false,
        }
    }

    /// Has WebRTC sessions, which are all `identity`. Gives what is counted of datagrams for none of them.
    pub fn set_sessions(
        &mut self,
        config: &Config,
        identity: Arc<Identity>,
    ) -> Option<Arc<Published<DemuxCounters>>> {
        let webrtc = config.webrtc.as_ref()?;
        let sessions = Sessions::new(webrtc, identity, self.worker, config.rooms.len());
        let published = Arc::clone(&sessions.published);
        self.sessions = Some(sessions);
        Some(published)
    }

    /// Has sessions of Media over QUIC; `mailbox` is the worker's own.
    ///
    /// # Errors
    /// There can be no TLS context.
    pub fn set_endpoint(
        &mut self,
        shared: Arc<Shared>,
        mailbox: Mailbox<Message>,
    ) -> Result<(), EngineError> {
        let mut endpoint = Endpoint::new(self.worker, shared, mailbox)?;
        endpoint.set_first_timer(self.first_timer);
        self.endpoint = Some(endpoint);
        Ok(())
    }

    /// What this worker could not hand over, by room.
    pub fn refused(&self) -> Vec<Arc<Published<RoomCounters>>> {
        self.refused.iter().map(|(_, published)| Arc::clone(published)).collect()
    }

    /// After something has happened in a room.
    fn happened(&mut self, index: usize, context: &mut Context<'_, Message>) {
        self.now = context.now;
        let Some(owned) = &mut self.rooms[index] else { return };
        owned.is_changed = true;
        if let Some(bridge) = &mut owned.bridge {
            bridge.look(&mut owned.room, context.now);
        }
        if let Some(sessions) = &mut self.sessions {
            owned.members.look(&owned.room);
            sessions.request_keyframes((&mut owned.room, &mut owned.members), context.timers, context.now);
        }
        let mut deadline = owned.room.deadline(context.now);
        if deadline.is_some_and(|at| at <= context.now) {
            // A silent publisher is none any more, before its timer says so: sending does not change that.
            owned.room.handle_timeout(context.now);
            if let Some(bridge) = owned.bridge.as_mut().filter(|_| !owned.room.has_publisher()) {
                bridge.look(&mut owned.room, context.now);
            }
            deadline = owned.room.deadline(context.now);
        }
        let is_due = deadline.is_some_and(|at| at <= context.now);
        // What is due is done when the room sends, and no sooner for its timer, which would expire again and again.
        let timer = deadline.filter(|_| !is_due);
        if timer != owned.deadline {
            owned.deadline = timer;
            match timer {
                Some(at) => context.timers.arm(index, at),
                None => context.timers.cancel(index),
            }
        }
        if (is_due || owned.room.has_news() || owned.members.has_news()) && !owned.is_ready {
            owned.is_ready = true;
            self.ready.push_back(index);
        }
    }
}

impl Relay {
    /// What has come from `remote` to `local` goes to its room or session. What another worker has handed over goes no further.
    fn dispatch(
        &mut self,
        context: &mut Context<'_, Message>,
        datagram: &[u8],
        (remote, local): (SocketAddr, SocketAddr),
        is_handed_over: bool,
    ) {
        // Only these addresses are listened on.
        let index = match self.by_local.get(&local) {
            Some(Local::Room(index)) => *index,
            Some(Local::Sessions) => {
                return self.dispatch_session(context, datagram, (remote, local), is_handed_over);
            }
            Some(Local::Quic) | None => return,
        };
        if let Some(owned) = &mut self.rooms[index] {
            owned.room.handle_datagram(datagram, remote, local, context.now);
            return self.happened(index, context);
        }
        let handover = Box::new(Handover { payload: datagram.to_vec(), remote, local });
        let owner = &context.peers[owner(index, context.peers.len())];
        if is_handed_over || owner.try_send(Message::Datagram(handover)).is_err() {
            self.refused[index].0.dropped_handover += 1;
        }
    }
}

impl Service for Relay {
    type Message = Message;

    fn handle_datagram(&mut self, context: &mut Context<'_, Message>, datagram: Datagram<'_>) {
        if let Some(endpoint) = &mut self.endpoint
            && self.by_local.get(&datagram.local) == Some(&Local::Quic)
        {
            return endpoint.take_datagram(context, datagram);
        }
        let Datagram { payload, remote, local, .. } = datagram;
        self.dispatch(context, payload, (remote, local), false);
    }

    fn handle_message(&mut self, context: &mut Context<'_, Message>, message: Message) {
        match message {
            Message::Datagram(handover) => {
                let Handover { payload, remote, local } = *handover;
                self.dispatch(context, &payload, (remote, local), true);
            }
            Message::Join(join) => self.join(context, *join),
            Message::Leave(room, number) => self.leave(context, room, number),
            Message::Restart(restart) => self.restart(context, *restart),
            Message::Layer(number, rid) => self.set_layer(context, number, rid),
            Message::News(news) => self.hear(news),
            Message::Outputs(room, outputs, _taken) => {
                let Some(owned) = &mut self.rooms[room] else { return };
                let before = std::mem::take(&mut owned.status.receivers);
                let stay = owned.room.set_outputs(outputs);
                let outputs = &owned.room.config().outputs;
                let status = stay.iter().zip(outputs).map(|(stay, output)| match stay {
                    Some(index) => before[*index].clone(),
                    None => of_output(output),
                });
                owned.status.receivers = status.collect();
                let mut all = self.status.lock().unwrap_or_else(PoisonError::into_inner);
                all[room].receivers.clone_from(&owned.status.receivers);
                drop(all);
                self.happened(room, context);
            }
            Message::Quic(message) => {
                if let Some(endpoint) = &mut self.endpoint {
                    endpoint.take_message(context, message);
                }
            }
            Message::Stop => {
                self.stopped = true;
                if let Some(endpoint) = &mut self.endpoint {
                    let deadline = context.now + FAREWELL;
                    endpoint.take_message(context, quic::Message::Drain { deadline });
                }
            }
        }
    }

    fn handle_timer(&mut self, context: &mut Context<'_, Message>, token: usize) {
        if token >= self.first_timer {
            if let Some(endpoint) = &mut self.endpoint {
                endpoint.take_timer(context, token);
            }
            return;
        }
        let Some(owned) = self.rooms.get_mut(token) else { return self.session_timeout(context, token) };
        if let Some(owned) = owned {
            owned.deadline = None;
            owned.room.handle_timeout(context.now);
            self.happened(token, context);
        }
    }

    fn poll_transmit(
        &mut self,
        context: &mut Context<'_, Message>,
        io: &mut dyn PacketIo,
    ) -> Result<Transmit, IoError> {
        let mut left = Transmit::Done;
        for sender in self.sends_first.take_turns() {
            let more = match (sender, &mut self.endpoint) {
                (Sender::Endpoint, Some(endpoint)) => endpoint.fill(context, io)?,
                (Sender::Endpoint, None) => Transmit::Done,
                (Sender::Rooms, _) => self.transmit_rest(context, io)?,
            };
            left = both(left, more);
        }
        Ok(left)
    }

    fn publish(&mut self) {
        self.publish_rooms();
        if let Some(endpoint) = &mut self.endpoint {
            endpoint.publish();
        }
    }

    fn is_finished(&self) -> bool {
        self.stopped && self.endpoint.as_ref().is_none_or(Endpoint::is_finished)
    }
}

impl Relay {
    /// What there is of rooms and WebRTC sessions.
    fn transmit_rest(
        &mut self,
        context: &mut Context<'_, Message>,
        io: &mut dyn PacketIo,
    ) -> Result<Transmit, IoError> {
        // They are as many as what came in, which has its own slice.
        match self.transmit_sessions(context, io)? {
            Transmit::Done => {}
            other => return Ok(other),
        }
        while let Some(&index) = self.ready.front() {
            let Some(owned) = &mut self.rooms[index] else {
                self.ready.pop_front();
                continue;
            };
            let progress = match owned.room.transmit(io, context.slice, context.now)? {
                Progress::Done => self.play(context, io, index)?,
                other => other,
            };
            let Some(owned) = &mut self.rooms[index] else { continue };
            match progress {
                Progress::Blocked => return Ok(Transmit::Blocked),
                Progress::More => {
                    self.ready.rotate_left(1);
                    return Ok(Transmit::More);
                }
                Progress::Done => {
                    owned.is_ready = false;
                    self.ready.pop_front();
                    self.happened(index, context);
                }
            }
            if context.slice.is_spent() && !self.ready.is_empty() {
                return Ok(Transmit::More);
            }
        }
        Ok(Transmit::Done)
    }

    fn publish_rooms(&mut self) {
        for owned in self.rooms.iter_mut().flatten() {
            if !std::mem::take(&mut owned.is_changed) {
                continue;
            }
            owned.status.counters.store(&owned.room.counters);
            owned.status.gauges.store(&owned.room.gauges(self.now));
            if let Some(webrtc) = &owned.status.webrtc {
                webrtc.counters.store(&owned.members.counters);
                if let Some(sessions) = &self.sessions {
                    webrtc.gauges.store(&sessions.gauges(&owned.members));
                }
            }
            if let (Some(bridge), Some(status)) = (&owned.bridge, &owned.status.bridge) {
                status.counters.store(&bridge.counters);
                status.gauges.store(&bridge.gauges());
            }
            for (receiver, status) in owned.room.receivers().iter().zip(&owned.status.receivers) {
                status.counters.store(&receiver.counters);
                status.gauges.store(&receiver.gauges());
            }
        }
        for (counters, published) in &self.refused {
            published.store(counters);
        }
        if let Some(sessions) = &self.sessions {
            sessions.published.store(&sessions.counters);
        }
    }
}

impl std::fmt::Debug for Relay {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Relay")
            .field("worker", &self.worker)
            .field("rooms", &self.rooms.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use expressway_netio::{Slice, SliceLimit};

    use super::*;

    #[test]
    fn who_sends_first_takes_turns() {
        let (mut first, mut pieces) = (Sender::Endpoint, [0, 0]);
        for _ in 0..10 {
            // Both have more to send than a turn may take.
            let mut slice = Slice::alone(SliceLimit::Pieces(16));
            for sender in first.take_turns() {
                loop {
                    pieces[sender as usize] += 1;
                    if slice.spend() {
                        break;
                    }
                }
            }
        }
        assert_eq!(pieces, [85, 85]);
    }

    #[test]
    fn what_two_have_left_is_the_most_of_either() {
        use Transmit::{Blocked, Done, More};
        assert_eq!((both(Done, Done), both(Done, Blocked), both(Blocked, Done)), (Done, Blocked, Blocked));
        assert_eq!((both(More, Blocked), both(Blocked, More), both(Done, More)), (More, More, More));
    }
}
