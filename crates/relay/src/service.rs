//! Rooms on a worker.
//!
//! Each room belongs to one worker. What arrives at another, because the device put it on that one's queue, is copied and handed
//! over by mailbox; of one flow, all or nothing is.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use expressway_netio::stats::Published;
use expressway_netio::{Context, Datagram, IoError, PacketIo, Service, Transmit};

use crate::config::{Config, Output};
use crate::rtp::{Progress, Room};
use crate::status::{ReceiverStatus, RoomCounters, RoomStatus};

/// Messages that may wait for a worker.
pub const MESSAGES: usize = 4096;

/// The rooms as other threads see them, in the order of the configuration.
pub type Status = Arc<Mutex<Vec<RoomStatus>>>;

/// From another thread.
#[derive(Debug)]
pub enum Message {
    /// A datagram for a room of this worker.
    Datagram(Box<Handover>),
    /// A room sends to these receivers from now on.
    Outputs(usize, Vec<Output>),
    /// End after this turn.
    Stop,
}

/// A datagram that came to another worker.
#[derive(Debug)]
pub struct Handover {
    room: usize,
    payload: Vec<u8>,
    remote: SocketAddr,
    local: SocketAddr,
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
        receivers: room.outputs.iter().map(of_output).collect(),
    };
    Arc::new(Mutex::new(config.rooms.iter().map(room).collect()))
}

fn of_output(output: &Output) -> ReceiverStatus {
    ReceiverStatus { address: output.address, counters: Arc::default(), gauges: Arc::default() }
}

/// A room of this worker.
struct Owned {
    room: Room,
    /// It waits for its turn to send.
    is_ready: bool,
    /// Something has happened since it was last published.
    is_changed: bool,
    /// What its timer is set to.
    deadline: Option<Instant>,
    status: RoomStatus,
}

/// The rooms of a worker.
pub struct Relay {
    worker: usize,
    /// By index in the configuration; `None`: another worker's.
    rooms: Vec<Option<Owned>>,
    by_local: HashMap<SocketAddr, usize>,
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
                is_ready: false,
                is_changed: true,
                deadline: None,
                status: all[index].clone(),
            })
        };
        let by_local = config
            .rooms
            .iter()
            .enumerate()
            .flat_map(|(index, room)| room.listen().into_iter().map(move |address| (address, index)));
        Self {
            worker,
            rooms: config.rooms.iter().enumerate().map(own).collect(),
            by_local: by_local.collect(),
            ready: VecDeque::new(),
            refused: config.rooms.iter().map(|_| Default::default()).collect(),
            status,
            now,
            stopped: false,
        }
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
        let deadline = owned.room.deadline(context.now);
        if deadline != owned.deadline {
            owned.deadline = deadline;
            match deadline {
                Some(at) => context.timers.arm(index, at),
                None => context.timers.cancel(index),
            }
        }
        let is_due = deadline.is_some_and(|at| at <= context.now);
        if (is_due || owned.room.has_news()) && !owned.is_ready {
            owned.is_ready = true;
            self.ready.push_back(index);
        }
    }
}

impl Service for Relay {
    type Message = Message;

    fn handle_datagram(&mut self, context: &mut Context<'_, Message>, datagram: Datagram<'_>) {
        // Only addresses of rooms are listened on.
        let Some(&index) = self.by_local.get(&datagram.local) else { return };
        let Datagram { payload, remote, local, .. } = datagram;
        if let Some(owned) = &mut self.rooms[index] {
            owned.room.handle_datagram(payload, remote, local, context.now);
            return self.happened(index, context);
        }
        let handover = Box::new(Handover { room: index, payload: payload.to_vec(), remote, local });
        let owner = &context.peers[owner(index, context.peers.len())];
        if owner.try_send(Message::Datagram(handover)).is_err() {
            self.refused[index].0.dropped_handover += 1;
        }
    }

    fn handle_message(&mut self, context: &mut Context<'_, Message>, message: Message) {
        match message {
            Message::Datagram(handover) => {
                let Handover { room, payload, remote, local } = *handover;
                if let Some(owned) = &mut self.rooms[room] {
                    owned.room.handle_datagram(&payload, remote, local, context.now);
                    self.happened(room, context);
                }
            }
            Message::Outputs(room, outputs) => {
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
            Message::Stop => self.stopped = true,
        }
    }

    fn handle_timer(&mut self, context: &mut Context<'_, Message>, token: usize) {
        if let Some(owned) = &mut self.rooms[token] {
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
        while let Some(&index) = self.ready.front() {
            let Some(owned) = &mut self.rooms[index] else {
                self.ready.pop_front();
                continue;
            };
            match owned.room.transmit(io, context.slice, context.now)? {
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

    fn publish(&mut self) {
        for owned in self.rooms.iter_mut().flatten() {
            if !std::mem::take(&mut owned.is_changed) {
                continue;
            }
            owned.status.counters.store(&owned.room.counters);
            owned.status.gauges.store(&owned.room.gauges(self.now));
            for (receiver, status) in owned.room.receivers().iter().zip(&owned.status.receivers) {
                status.counters.store(&receiver.counters);
                status.gauges.store(&receiver.gauges());
            }
        }
        for (counters, published) in &self.refused {
            published.store(counters);
        }
    }

    fn is_finished(&self) -> bool {
        self.stopped
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
