//! One UMEM with its four rings: the life of frames, without system calls.
//!
//! ```text
//!             ┌────────────────────────────── spare ◀── only if the fill ring is full
//!             ▼                                ▲
//!   program ──┤ fill ──▶ kernel ──▶ RX ──▶ program: parse, open in place ──▶ back to fill, at once
//!             │
//!             └ idle ──▶ program: seal in place, headers ──▶ TX ──▶ kernel ──▶ completion ──▶ idle
//! ```
//!
//! A frame serves one direction for good. As many frames receive as the fill ring has entries, so handing
//! one back always finds room; as many transmit as the completion ring has entries, so the kernel can
//! always complete. A frame is put back by a guard: one that unwinds or returns early loses none.
//!
//! A [`Queue`] is generic over ring memory: the kernel's ([`Mapped`]) or a fake kernel's in tests.

use std::ops::Range;

use super::abi::{Descriptor, XDP_PKT_CONTD};
use super::assembly::{Added, Assembly};
use super::frame::{Frame, FramePool, Owner};
use super::mapped::MappedRing;
use super::ring::{Consumer, Producer, RingMemory};
use super::umem::Umem;

/// Where a part of a packet in several frames begins: room for transmit metadata, which the kernel wants in
/// front of every descriptor once a UMEM has any (`xp_aligned_validate_desc` in `net/xdp/xsk_queue.h`).
pub(super) const PART_OFFSET: usize = 64;

/// The kind of memory that rings lie in.
pub(super) trait Memory {
    /// Memory of the fill and completion rings.
    type Addresses: RingMemory<Entry = u64>;
    /// Memory of the RX and TX rings.
    type Descriptors: RingMemory<Entry = Descriptor>;
}

/// Rings mapped from the kernel.
#[derive(Debug)]
pub(super) struct Mapped;

impl Memory for Mapped {
    type Addresses = MappedRing<u64>;
    type Descriptors = MappedRing<Descriptor>;
}

/// Memory of the four rings of one socket.
pub(super) struct Rings<M: Memory> {
    pub(super) fill: M::Addresses,
    pub(super) rx: M::Descriptors,
    pub(super) tx: M::Descriptors,
    pub(super) completion: M::Addresses,
}

/// What a queue has counted. Every field only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct QueueCounters {
    /// Descriptors or completions that named no frame the kernel had, or overran one.
    pub(super) bad_descriptor: u64,
    /// Packets larger than the assembly buffer.
    pub(super) truncated: u64,
    /// Packets put together from several frames.
    pub(super) gathered: u64,
    /// Frames that came back through the completion ring.
    pub(super) completed: u64,
}

/// A UMEM, its rings and its frames.
pub(super) struct Queue<M: Memory> {
    umem: Umem,
    fill: FillRing<M>,
    rx: Consumer<M::Descriptors>,
    tx: Producer<M::Descriptors>,
    completion: Consumer<M::Addresses>,
    /// Transmit frames that wait for a packet.
    idle: FramePool,
    assembly: Assembly,
    counters: QueueCounters,
}

/// The fill ring, with the frames that found no room in it.
struct FillRing<M: Memory> {
    ring: Producer<M::Addresses>,
    spare: FramePool,
}

impl<M: Memory> FillRing<M> {
    /// Gives a frame to the kernel to receive into, or keeps it until there is room.
    #[inline]
    fn submit(&mut self, umem: &mut Umem, frame: Frame) {
        if self.ring.free(1) == 0 {
            self.spare.push(frame);
            return;
        }
        let addr = umem.give(frame, Owner::Receive);
        let pushed = self.ring.push(addr);
        debug_assert!(pushed.is_ok(), "room was found above");
    }

    /// Offers the spare frames again and shows the kernel all new entries.
    #[inline]
    fn publish(&mut self, umem: &mut Umem) {
        while self.spare.len() > 0 && self.ring.free(1) > 0 {
            if let Some(frame) = self.spare.pop() {
                self.submit(umem, frame);
            }
        }
        self.ring.publish();
    }
}

/// A received frame lent to a handler; whatever the handler does, it goes back to the fill ring.
struct Lent<'q, M: Memory> {
    umem: &'q mut Umem,
    fill: &'q mut FillRing<M>,
    frame: Option<Frame>,
}

impl<M: Memory> Lent<'_, M> {
    #[inline]
    fn bytes(&mut self, range: Range<usize>) -> &mut [u8] {
        match &mut self.frame {
            Some(frame) => &mut self.umem.bytes_mut(frame)[range],
            None => &mut [],
        }
    }
}

impl<M: Memory> Drop for Lent<'_, M> {
    #[inline]
    fn drop(&mut self) {
        if let Some(frame) = self.frame.take() {
            self.fill.submit(self.umem, frame);
        }
    }
}

impl<M: Memory> Queue<M> {
    /// Takes the rings and all frames of `umem`: as many as the fill ring holds receive, the others
    /// transmit. The fill ring is full when this returns, so that it is before the socket is bound.
    /// `assembly` is the size of the buffer for packets in several frames, 0 if there are none.
    pub(super) fn new(umem: Umem, frames: Vec<Frame>, rings: Rings<M>, assembly: usize) -> Self {
        let (count, receiving) = (frames.len(), rings.fill.capacity() as usize);
        let mut queue = Self {
            umem,
            fill: FillRing { ring: Producer::new(rings.fill), spare: FramePool::with_capacity(count) },
            rx: Consumer::new(rings.rx),
            tx: Producer::new(rings.tx),
            completion: Consumer::new(rings.completion),
            idle: FramePool::with_capacity(count),
            assembly: Assembly::new(assembly),
            counters: QueueCounters::default(),
        };
        for (place, frame) in frames.into_iter().enumerate() {
            if place < receiving {
                queue.fill.submit(&mut queue.umem, frame);
            } else {
                queue.idle.push(frame);
            }
        }
        queue.fill.publish(&mut queue.umem);
        queue
    }

    /// Hands up to `limit` received packets to `handle`, each in one piece, and refills the fill ring.
    pub(super) fn receive<F: FnMut(&mut [u8])>(&mut self, limit: usize, mut handle: F) -> usize {
        let mut packets = 0;
        // A packet may take several descriptors, and a hostile kernel could send none but bad ones: one
        // ring's worth of descriptors is the bound.
        let mut descriptors = self.rx.available(u32::try_from(limit).unwrap_or(u32::MAX));
        while packets < limit && descriptors > 0 {
            let Some(descriptor) = self.rx.pop() else { break };
            descriptors -= 1;
            packets += usize::from(self.receive_descriptor(descriptor, &mut handle));
        }
        self.rx.release();
        self.fill.publish(&mut self.umem);
        packets
    }

    /// Handles one RX entry. True if a packet was handed over.
    #[inline]
    fn receive_descriptor<F: FnMut(&mut [u8])>(&mut self, descriptor: Descriptor, handle: &mut F) -> bool {
        let more = descriptor.options & XDP_PKT_CONTD != 0;
        let Ok(frame) = self.umem.take(descriptor.addr, Owner::Receive) else {
            self.counters.bad_descriptor += 1;
            self.assembly.spoil(more);
            return false;
        };
        let mut lent = Lent { umem: &mut self.umem, fill: &mut self.fill, frame: Some(frame) };
        let Some(range) = lent.umem.range(descriptor.addr, descriptor.len) else {
            self.counters.bad_descriptor += 1;
            self.assembly.spoil(more);
            return false;
        };
        if !more && self.assembly.is_idle() {
            handle(lent.bytes(range));
            return true;
        }
        let added = self.assembly.add(lent.bytes(range), more);
        drop(lent);
        match added {
            Added::Partial | Added::Skipped => false,
            Added::Overflow => {
                self.counters.truncated += 1;
                false
            }
            Added::Complete => {
                self.counters.gathered += 1;
                handle(self.assembly.packet());
                true
            }
        }
    }

    /// True if packets wait in the RX ring.
    pub(super) fn has_received(&mut self) -> bool {
        self.rx.available(1) > 0
    }

    /// A frame to build a packet in; `None` if all are with the kernel.
    #[inline]
    pub(super) fn acquire(&mut self) -> Option<TxFrame<'_, M>> {
        let frame = match self.idle.pop() {
            Some(frame) => frame,
            None => {
                self.complete();
                self.idle.pop()?
            }
        };
        Some(TxFrame { queue: self, frame: Some(frame) })
    }

    /// Frames that a packet of `length` bytes takes when it is sent in parts.
    #[inline]
    pub(super) fn parts(&self, length: usize) -> usize {
        length.div_ceil(self.umem.frame_size() as usize - PART_OFFSET).max(1)
    }

    /// True if a packet of `parts` frames can be sent: frames are idle and the TX ring has the places.
    pub(super) fn has_room(&mut self, parts: usize) -> bool {
        if self.idle.len() < parts {
            self.complete();
        }
        let wanted = u32::try_from(parts).unwrap_or(u32::MAX);
        self.idle.len() >= parts && self.tx.free(wanted) >= wanted
    }

    /// Copies a packet into as many frames as it takes and puts them into the TX ring, all but the last
    /// marked as continued. False, with nothing changed, if it is empty or has no room.
    pub(super) fn submit_parts(&mut self, packet: &[u8]) -> bool {
        let parts = self.parts(packet.len());
        if packet.is_empty() || !self.has_room(parts) {
            return false;
        }
        let most = self.umem.frame_size() as usize - PART_OFFSET;
        for (number, part) in packet.chunks(most).enumerate() {
            let Some(mut frame) = self.idle.pop() else { return false };
            self.umem.bytes_mut(&mut frame)[PART_OFFSET..PART_OFFSET + part.len()].copy_from_slice(part);
            let addr = self.umem.give(frame, Owner::Transmit) + PART_OFFSET as u64;
            let options = if number + 1 < parts { XDP_PKT_CONTD } else { 0 };
            let pushed = self.tx.push(Descriptor { addr, len: part.len() as u32, options });
            debug_assert!(pushed.is_ok(), "room was found above");
        }
        true
    }

    /// Takes finished frames back from the completion ring. Returns how many.
    pub(super) fn complete(&mut self) -> usize {
        let mut completed = 0;
        for _ in 0..self.completion.available(u32::MAX) {
            let Some(addr) = self.completion.pop() else { break };
            match self.umem.take(addr, Owner::Transmit) {
                Ok(frame) => {
                    self.idle.push(frame);
                    completed += 1;
                }
                Err(_) => self.counters.bad_descriptor += 1,
            }
        }
        self.completion.release();
        self.counters.completed += completed as u64;
        completed
    }

    /// Shows the kernel all packets submitted so far.
    pub(super) fn publish(&mut self) {
        self.tx.publish();
    }

    /// Packets in the TX ring that the kernel has not taken out yet.
    pub(super) fn untaken(&mut self) -> u32 {
        self.tx.unconsumed()
    }

    /// Transmit frames that are with the kernel.
    pub(super) fn in_flight(&self) -> usize {
        let receiving = self.fill.ring.capacity() as usize;
        self.umem.count() - receiving.min(self.umem.count()) - self.idle.len()
    }

    /// True if all transmit frames are with the kernel.
    pub(super) fn is_exhausted(&self) -> bool {
        self.idle.len() == 0
    }

    /// True if transmission waits for a system call.
    pub(super) fn transmit_needs_wakeup(&self) -> bool {
        self.tx.needs_wakeup()
    }

    /// True if reception waits for a system call because the kernel found the fill ring empty.
    #[inline]
    pub(super) fn receive_needs_wakeup(&self) -> bool {
        self.fill.ring.needs_wakeup()
    }

    /// True if the kernel moved an index where it cannot be: the queue is of no use any more.
    pub(super) fn is_corrupt(&self) -> bool {
        self.fill.ring.is_corrupt()
            || self.rx.is_corrupt()
            || self.tx.is_corrupt()
            || self.completion.is_corrupt()
    }

    /// The memory of the frames.
    pub(super) fn umem(&self) -> &Umem {
        &self.umem
    }

    /// The memory of the frames, for a fake kernel to write into.
    #[cfg(all(test, not(loom)))]
    pub(super) fn umem_mut(&mut self) -> &mut Umem {
        &mut self.umem
    }

    /// Frames in the program's pools: spare ones of reception, idle ones of transmission.
    #[cfg(all(test, not(loom)))]
    pub(super) fn pooled(&self) -> (usize, usize) {
        (self.fill.spare.len(), self.idle.len())
    }

    /// Counters since the queue was made.
    pub(super) fn counters(&self) -> QueueCounters {
        self.counters
    }
}

/// A frame in which a packet is being built. Dropped without [`TxFrame::submit`] it is idle again.
pub(super) struct TxFrame<'q, M: Memory> {
    queue: &'q mut Queue<M>,
    frame: Option<Frame>,
}

impl<M: Memory> TxFrame<'_, M> {
    /// The whole frame.
    #[inline]
    pub(super) fn bytes(&mut self) -> &mut [u8] {
        match &mut self.frame {
            Some(frame) => self.queue.umem.bytes_mut(frame),
            None => &mut [],
        }
    }

    /// Puts the packet that lies at `range` of the frame into the TX ring. False if it does not lie within
    /// the frame or the ring has no room; the frame is idle again then.
    #[inline]
    pub(super) fn submit(mut self, range: Range<usize>) -> bool {
        let fits = range.start <= range.end && range.end <= self.queue.umem.frame_size() as usize;
        if !fits || self.queue.tx.free(1) == 0 {
            return false;
        }
        let Some(frame) = self.frame.take() else { return false };
        let addr = self.queue.umem.give(frame, Owner::Transmit) + range.start as u64;
        let descriptor = Descriptor { addr, len: (range.end - range.start) as u32, options: 0 };
        let pushed = self.queue.tx.push(descriptor);
        debug_assert!(pushed.is_ok(), "room was found above");
        true
    }
}

impl<M: Memory> Drop for TxFrame<'_, M> {
    #[inline]
    fn drop(&mut self) {
        if let Some(frame) = self.frame.take() {
            self.queue.idle.push(frame);
        }
    }
}

#[cfg(all(test, not(loom)))]
#[path = "queue_tests.rs"]
mod tests;
