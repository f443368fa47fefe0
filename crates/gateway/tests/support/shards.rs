//! One address served by several workers, as RSS or SO_REUSEPORT spread it: by the client's port.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use expressway_netio::sim::SimIo;
use expressway_netio::{Datagram, Ecn, Flow, IoError, IoStats, PacketIo, Sent, Via};

struct Waiting {
    payload: Vec<u8>,
    remote: SocketAddr,
    local: SocketAddr,
}

struct State {
    io: SimIo,
    queues: Vec<VecDeque<Waiting>>,
}

/// One worker's share of a [`SimIo`].
pub struct Shard {
    state: Arc<Mutex<State>>,
    index: usize,
    /// Datagrams that it has room for until it is flushed, and those in it.
    room: usize,
    staged: usize,
    /// Datagrams that it hands over at once.
    batch: usize,
}

/// Splits `io` between `count` workers, each with room for so many datagrams a turn, which get so many at once.
pub fn split(io: SimIo, count: usize, room: usize, batch: usize) -> Vec<Shard> {
    let queues = (0..count).map(|_| VecDeque::new()).collect();
    let state = Arc::new(Mutex::new(State { io, queues }));
    (0..count).map(|index| Shard { state: Arc::clone(&state), index, room, staged: 0, batch }).collect()
}

impl PacketIo for Shard {
    fn receive(&mut self, now: Instant, sink: &mut dyn FnMut(Datagram<'_>)) -> Result<usize, IoError> {
        let mut state = self.state.lock().unwrap();
        let State { io, queues } = &mut *state;
        let count = queues.len();
        while queues[self.index].len() < self.batch {
            let received = io.receive(now, &mut |datagram| {
                let queue = usize::from(datagram.remote.port()) % count;
                let payload = datagram.payload.to_vec();
                queues[queue].push_back(Waiting { payload, remote: datagram.remote, local: datagram.local });
            })?;
            if received == 0 {
                break;
            }
        }
        let queue = &mut queues[self.index];
        let mut mine: VecDeque<_> = queue.drain(..queue.len().min(self.batch)).collect();
        drop(state);
        let received = mine.len();
        for waiting in &mut mine {
            let Waiting { payload, remote, local } = waiting;
            let (remote, local) = (*remote, *local);
            sink(Datagram {
                payload,
                remote,
                local,
                ecn: Ecn::NotEct,
                via: Via::Simulated,
                hints: Default::default(),
            });
        }
        Ok(received)
    }

    fn transmit(
        &mut self,
        flow: &Flow,
        segment: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> Result<Sent, IoError> {
        let Self { state, room, staged, .. } = self;
        let sent = state.lock().unwrap().io.transmit(flow, segment, &mut |slot| {
            let length = if staged < room { fill(slot) } else { 0 };
            *staged += usize::from(length > 0);
            length
        })?;
        Ok(Sent { blocked: sent.blocked || staged == room, ..sent })
    }

    fn flush(&mut self, now: Instant) -> Result<(), IoError> {
        self.staged = 0;
        self.state.lock().unwrap().io.flush(now)
    }

    fn max_payload(&mut self, flow: &Flow) -> usize {
        self.state.lock().unwrap().io.max_payload(flow)
    }

    fn descriptors(&self, _visit: &mut dyn FnMut(BorrowedFd<'_>)) {}

    fn batch(&self) -> usize {
        self.batch
    }

    fn stats(&self) -> IoStats {
        self.state.lock().unwrap().io.stats()
    }
}
