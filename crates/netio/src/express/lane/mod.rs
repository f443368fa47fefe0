//! The rings of one AF_XDP socket and the way of frames through them, without system calls.
//!
//! ```text
//!            ┌─────────────── free frames of the UMEM, shared by its sockets ◀───────────────┐
//!            ▼                                                                               │
//!   program ─┤ fill ──▶ kernel ──▶ RX ──▶ program: parse, open in place ──▶ back to fill, at once,
//!            │                                    │                         or free          │
//!            │                                    ▼ forward                                  │
//!            └ seal in place, headers ──────────▶ TX ──▶ kernel ──▶ completion ──────────────┘
//! ```
//!
//! A lane has quotas: as many frames receive as its fill ring has entries, so handing one back always finds
//! room; as many transmit as its completion ring has entries, so the kernel can always complete. A UMEM with
//! as many frames as its lanes' quotas add up to starves none of them, whatever the others hold. A frame is
//! put back by a guard: one that unwinds or returns early loses none.
//!
//! A [`Lane`] is generic over ring memory: the kernel's ([`Mapped`]) or a fake kernel's in tests. What this
//! module does not do: it owns no UMEM ([`super::queue`]).

mod receive;
mod transmit;

use super::abi::Descriptor;
use super::assembly::Assembly;
use super::frame::{LaneId, Owner};
use super::loan::Loan;
use super::mapped::MappedRing;
use super::ring::{Consumer, Producer, RingMemory};
use super::umem::Frames;

pub(super) use receive::Popped;
pub(super) use transmit::TxFrame;

/// The kind of memory that rings lie in.
pub(super) trait Memory {
    /// Memory of the fill and completion rings.
    type Addresses: RingMemory<Entry = u64>;
    /// Memory of the RX and TX rings.
    type Descriptors: RingMemory<Entry = Descriptor>;
    /// Memory of the rings that lend packets to readers; what they return comes through `Addresses`.
    type Loans: RingMemory<Entry = Loan>;
}

/// Rings mapped from the kernel.
#[derive(Debug)]
pub(super) struct Mapped;

impl Memory for Mapped {
    type Addresses = MappedRing<u64>;
    type Descriptors = MappedRing<Descriptor>;
    type Loans = MappedRing<Loan>;
}

/// Memory of the four rings of one socket.
pub(super) struct Rings<M: Memory> {
    pub(super) fill: M::Addresses,
    pub(super) rx: M::Descriptors,
    pub(super) tx: M::Descriptors,
    pub(super) completion: M::Addresses,
}

/// What a lane has counted. Every field only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LaneCounters {
    /// Descriptors or completions that named no frame the kernel had, or overran one.
    pub(super) bad_descriptor: u64,
    /// Packets larger than the assembly buffer.
    pub(super) truncated: u64,
    /// Packets put together from several frames.
    pub(super) gathered: u64,
    /// Frames that came back through the completion ring.
    pub(super) completed: u64,
}

/// The rings of one socket.
pub(super) struct Lane<M: Memory> {
    id: LaneId,
    fill: Producer<M::Addresses>,
    rx: Consumer<M::Descriptors>,
    tx: Producer<M::Descriptors>,
    completion: Consumer<M::Addresses>,
    /// Frames with the kernel to receive into.
    receiving: u32,
    /// Frames with the kernel to send from.
    sending: u32,
    assembly: Assembly,
    /// Bytes in front of a received packet that belong to it.
    prefix: usize,
    counters: LaneCounters,
}

impl<M: Memory> Lane<M> {
    /// Takes the rings and fills the fill ring, so that it is full before the socket is bound. `assembly` is
    /// the size of the buffer for packets in several frames, 0 if there are none.
    pub(super) fn new(id: LaneId, frames: &mut Frames, rings: Rings<M>, assembly: usize) -> Self {
        let mut lane = Self::over(id, rings, assembly);
        lane.refill(frames);
        lane
    }

    /// As [`Lane::new`] where somebody else has filled the fill ring with the frames that are free first.
    pub(super) fn adopt(id: LaneId, frames: &mut Frames, rings: Rings<M>, assembly: usize) -> Self {
        let mut lane = Self::over(id, rings, assembly);
        while lane.receiving < lane.fill.capacity() {
            let Some(frame) = frames.free.pop() else { break };
            frames.umem.give(frame, Owner::Receive(id));
            lane.receiving += 1;
        }
        lane
    }

    fn over(id: LaneId, rings: Rings<M>, assembly: usize) -> Self {
        Self {
            id,
            fill: Producer::new(rings.fill),
            rx: Consumer::new(rings.rx),
            tx: Producer::new(rings.tx),
            completion: Consumer::new(rings.completion),
            receiving: 0,
            sending: 0,
            assembly: Assembly::new(assembly),
            prefix: 0,
            counters: LaneCounters::default(),
        }
    }

    /// True if the kernel moved an index where it cannot be: the lane is of no use any more.
    pub(super) fn is_corrupt(&self) -> bool {
        self.fill.is_corrupt() || self.rx.is_corrupt() || self.tx.is_corrupt() || self.completion.is_corrupt()
    }

    /// Frames that this lane may have, both ways.
    pub(super) fn share(&self) -> usize {
        (self.fill.capacity() + self.tx.capacity()) as usize
    }

    /// Ends a lane whose kernel side is gone: what it had is free.
    pub(super) fn reclaim(self, frames: &mut Frames) {
        for owner in [Owner::Receive(self.id), Owner::Transmit(self.id)] {
            for index in 0..frames.umem.count() {
                if let Ok(frame) = frames.umem.take(frames.umem.address(index), owner) {
                    frames.free.push(frame);
                }
            }
        }
    }

    /// Counters since the lane was made.
    pub(super) fn counters(&self) -> LaneCounters {
        self.counters
    }

    /// Frames with the kernel, to receive into and to send from.
    #[cfg(all(test, not(loom)))]
    pub(super) fn held(&self) -> (usize, usize) {
        (self.receiving as usize, self.sending as usize)
    }
}
