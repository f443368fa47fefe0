//! Sends datagrams back to their senders.

use std::collections::VecDeque;
use std::ops::Range;

use expressway_netio::{Datagram, Flow, IoError, PacketIo};

/// Bytes that may wait to be sent: more datagrams than one turn receives, or several of the largest.
const MEMORY: usize = 1 << 20;
/// Datagrams that may wait.
const WAITING: usize = 4096;

/// What waits to be sent back. Bounded; what does not fit is refused.
pub(super) struct Echo {
    memory: Vec<u8>,
    waiting: VecDeque<(Flow, Range<usize>)>,
}

/// What one turn sent back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sent {
    pub(super) echoed: u64,
    pub(super) dropped: u64,
    /// More wait, for lack of buffers.
    pub(super) blocked: bool,
}

impl Echo {
    pub(super) fn new() -> Self {
        Self { memory: Vec::with_capacity(MEMORY), waiting: VecDeque::with_capacity(WAITING) }
    }

    /// Copies a datagram, to be sent from its destination to its source. False if there is no room.
    pub(super) fn push(&mut self, datagram: &Datagram<'_>) -> bool {
        let start = self.memory.len();
        let end = start + datagram.payload.len();
        if end > MEMORY || self.waiting.len() == WAITING || datagram.payload.is_empty() {
            return false;
        }
        self.memory.extend_from_slice(datagram.payload);
        self.waiting.push_back((Flow::new(datagram.local, datagram.remote), start..end));
        true
    }

    /// Gives what waits to packet I/O, runs of one flow and length by one call.
    pub(super) fn send(&mut self, io: &mut dyn PacketIo) -> Result<Sent, IoError> {
        let mut sent = Sent::default();
        while let Some((flow, first)) = self.waiting.front().cloned() {
            let segment = first.len();
            if segment > io.max_payload(&flow) {
                self.waiting.pop_front();
                sent.dropped += 1;
                continue;
            }
            let (memory, waiting) = (&self.memory, &mut self.waiting);
            let burst = io.transmit(&flow, segment, &mut |place| {
                let same = |next: &&(Flow, Range<usize>)| next.0 == flow && next.1.len() == segment;
                let Some((_, range)) = waiting.front().filter(same) else { return 0 };
                place.copy_from_slice(&memory[range.clone()]);
                waiting.pop_front();
                segment
            })?;
            sent.echoed += burst.packets as u64;
            if burst.blocked || burst.packets == 0 {
                sent.blocked = true;
                return Ok(sent);
            }
        }
        self.memory.clear();
        Ok(sent)
    }
}
