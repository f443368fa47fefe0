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

use std::ops::Range;

use super::abi::{Descriptor, XDP_PKT_CONTD, XDP_TX_METADATA};
use super::assembly::{Added, Assembly};
use super::frame::{Frame, LaneId, Owner};
use super::loan::Loan;
use super::mapped::MappedRing;
use super::metadata::{METADATA_LEN, Request, Stamps};
use super::ring::{Consumer, Producer, RingMemory};
use super::umem::Frames;

/// Where a part of a packet in several frames begins: room for transmit metadata, which the kernel wants in
/// front of every descriptor once a UMEM has any (`xp_aligned_validate_desc` in `net/xdp/xsk_queue.h`).
pub(super) const PART_OFFSET: usize = 64;

const _: () = assert!(METADATA_LEN <= PART_OFFSET);

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

/// What an RX entry came to.
pub(super) enum Popped {
    /// A packet in one frame, at this range of it. The frame is the caller's.
    Packet(Frame, Range<usize>),
    /// A packet of several frames, whole now: [`Lane::gathered`].
    Gathered,
    /// A part of a packet, or an entry that was dropped and counted.
    Nothing,
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
    /// Time stamps of what was sent, where they are asked for.
    stamps: Option<Stamps>,
    /// Packets put into the TX ring.
    sequence: u64,
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
            stamps: None,
            sequence: 0,
            counters: LaneCounters::default(),
        }
    }

    /// Gives a frame to the kernel to receive into, or to the free ones if this lane has its share.
    #[inline]
    pub(super) fn recycle(&mut self, frames: &mut Frames, frame: Frame) {
        if self.receiving >= self.fill.capacity() || self.fill.free(1) == 0 {
            frames.free.push(frame);
            return;
        }
        let addr = frames.umem.give(frame, Owner::Receive(self.id));
        self.receiving += 1;
        let pushed = self.fill.push(addr);
        debug_assert!(pushed.is_ok(), "room was found above");
    }

    /// Brings the fill ring to its share of frames and shows the kernel all new entries.
    #[inline]
    pub(super) fn refill(&mut self, frames: &mut Frames) {
        while self.receiving < self.fill.capacity() && self.fill.free(1) > 0 {
            let Some(frame) = frames.free.pop() else { break };
            self.recycle(frames, frame);
        }
        self.fill.publish();
    }

    /// RX entries that wait, up to `limit` if that many are known without a look at the shared index.
    #[inline]
    pub(super) fn available(&mut self, limit: usize) -> u32 {
        self.rx.available(u32::try_from(limit).unwrap_or(u32::MAX))
    }

    /// Takes one RX entry; `None` if there is none. After a batch of them comes [`Lane::end_batch`].
    #[inline]
    pub(super) fn pop(&mut self, frames: &mut Frames) -> Option<Popped> {
        let descriptor = self.rx.pop()?;
        let more = descriptor.options & XDP_PKT_CONTD != 0;
        let Ok(mut frame) = frames.umem.take(descriptor.addr, Owner::Receive(self.id)) else {
            self.counters.bad_descriptor += 1;
            self.assembly.spoil(more);
            return Some(Popped::Nothing);
        };
        self.receiving -= 1;
        let Some(range) = frames.umem.range(descriptor.addr, descriptor.len) else {
            self.counters.bad_descriptor += 1;
            self.assembly.spoil(more);
            self.recycle(frames, frame);
            return Some(Popped::Nothing);
        };
        // What describes a packet lies in front of its first part; drivers and the kernel leave 256 bytes there.
        let range = match self.assembly.is_idle() {
            true => range.start.saturating_sub(self.prefix)..range.end,
            false => range,
        };
        if !more && self.assembly.is_idle() {
            return Some(Popped::Packet(frame, range));
        }
        let added = self.assembly.add(&frames.umem.bytes_mut(&mut frame)[range], more);
        self.recycle(frames, frame);
        Some(match added {
            Added::Partial | Added::Skipped => Popped::Nothing,
            Added::Overflow => {
                self.counters.truncated += 1;
                Popped::Nothing
            }
            Added::Complete => {
                self.counters.gathered += 1;
                Popped::Gathered
            }
        })
    }

    /// The packet after [`Popped::Gathered`].
    pub(super) fn gathered(&mut self) -> &mut [u8] {
        self.assembly.packet()
    }

    /// Gives the slots of the popped RX entries back and refills the fill ring.
    #[inline]
    pub(super) fn end_batch(&mut self, frames: &mut Frames) {
        self.rx.release();
        self.refill(frames);
    }

    /// True if packets wait in the RX ring.
    pub(super) fn has_received(&mut self) -> bool {
        self.rx.available(1) > 0
    }

    /// A frame to build a packet in; `None` if this lane has its share in flight, or none is free.
    #[inline]
    pub(super) fn acquire<'q>(&'q mut self, frames: &'q mut Frames) -> Option<TxFrame<'q, M>> {
        if self.is_exhausted() || frames.free.len() == 0 {
            self.complete(frames);
        }
        if self.is_exhausted() {
            return None;
        }
        let frame = frames.free.pop()?;
        Some(TxFrame { frames, lane: self, frame: Some(frame) })
    }

    /// Puts the packet that lies at `range` of the frame into the TX ring. Gives the frame back if it does not
    /// lie within it, or this lane has its share in flight.
    #[inline]
    pub(super) fn submit(
        &mut self,
        frames: &mut Frames,
        mut frame: Frame,
        range: Range<usize>,
        request: Request,
    ) -> Result<(), Frame> {
        let fits = range.start <= range.end && range.end <= frames.umem.frame_size() as usize;
        if !fits || self.is_exhausted() || self.tx.free(1) == 0 {
            return Err(frame);
        }
        let options = self.annotate(frames, &mut frame, range.start, request);
        self.sequence += 1;
        self.push_tx(frames, frame, range, options);
        Ok(())
    }

    /// Frames that a packet of `length` bytes takes when it is sent in parts.
    #[inline]
    pub(super) fn parts(&self, frames: &Frames, length: usize) -> usize {
        length.div_ceil(frames.umem.frame_size() as usize - PART_OFFSET).max(1)
    }

    /// True if a packet of `parts` frames can be sent: frames are free, this lane may have them in flight,
    /// and the TX ring has the places.
    pub(super) fn has_room(&mut self, frames: &mut Frames, parts: usize) -> bool {
        if self.usable(frames) < parts {
            self.complete(frames);
        }
        let wanted = u32::try_from(parts).unwrap_or(u32::MAX);
        self.usable(frames) >= parts && self.tx.free(wanted) >= wanted
    }

    /// Frames that this lane may send from now.
    fn usable(&self, frames: &Frames) -> usize {
        frames.free.len().min(self.tx.capacity().saturating_sub(self.sending) as usize)
    }

    /// Copies a packet into as many frames as it takes and puts them into the TX ring, all but the last
    /// marked as continued. False, with nothing changed, if it is empty or has no room.
    pub(super) fn submit_parts(&mut self, frames: &mut Frames, packet: &[u8], request: Request) -> bool {
        let parts = self.parts(frames, packet.len());
        if packet.is_empty() || !self.has_room(frames, parts) {
            return false;
        }
        let most = frames.umem.frame_size() as usize - PART_OFFSET;
        for (number, part) in packet.chunks(most).enumerate() {
            let Some(mut frame) = frames.free.pop() else { return false };
            let place = PART_OFFSET..PART_OFFSET + part.len();
            frames.umem.bytes_mut(&mut frame)[place.clone()].copy_from_slice(part);
            let continued = if number + 1 < parts { XDP_PKT_CONTD } else { 0 };
            let metadata = match number {
                0 => self.annotate(frames, &mut frame, PART_OFFSET, request),
                _ => self.leave_blank(frames, &mut frame),
            };
            self.push_tx(frames, frame, place, continued | metadata);
        }
        self.sequence += 1;
        true
    }

    /// Writes what is asked for the packet that begins at `start`. Returns the descriptor's option for it.
    #[inline]
    fn annotate(&self, frames: &mut Frames, frame: &mut Frame, start: usize, request: Request) -> u32 {
        let stamp = self.stamps.is_some().then_some(self.sequence);
        let request = Request { stamp, ..request };
        if request.is_empty() {
            return 0;
        }
        let area = start.checked_sub(METADATA_LEN).and_then(|at| frames.umem.bytes_mut(frame).get_mut(at..));
        match area.and_then(|area| area.first_chunk_mut()) {
            Some(area) => {
                request.write(area);
                XDP_TX_METADATA
            }
            // No room in front: nothing is asked. A checksum is asked for only in front of headers that leave room.
            None => 0,
        }
    }

    /// Keeps what lies in front of a continued part from being taken for a time stamp. No option is set.
    fn leave_blank(&self, frames: &mut Frames, frame: &mut Frame) -> u32 {
        let area = &mut frames.umem.bytes_mut(frame)[PART_OFFSET - METADATA_LEN..];
        if let (true, Some(area)) = (self.stamps.is_some(), area.first_chunk_mut()) {
            Request::default().write(area);
        }
        0
    }

    /// Hands packets over with so many bytes in front of them from now on.
    pub(super) fn include_prefix(&mut self, prefix: usize) {
        self.prefix = prefix;
    }

    /// Asks for a time stamp of every packet sent from now on, of which `capacity` are kept.
    pub(super) fn stamp_transmits(&mut self, capacity: usize) {
        self.stamps = Some(Stamps::new(capacity));
    }

    /// As [`Lane::stamps`], to be looked at.
    pub(super) fn stamps_seen(&self) -> Option<&Stamps> {
        self.stamps.as_ref()
    }

    /// The time stamps, where they are asked for.
    pub(super) fn stamps(&mut self) -> Option<&mut Stamps> {
        self.stamps.as_mut()
    }

    /// Puts a frame into the TX ring, where the caller has found room.
    #[inline]
    fn push_tx(&mut self, frames: &mut Frames, frame: Frame, range: Range<usize>, options: u32) {
        let addr = frames.umem.give(frame, Owner::Transmit(self.id)) + range.start as u64;
        self.sending += 1;
        let descriptor = Descriptor { addr, len: (range.end - range.start) as u32, options };
        let pushed = self.tx.push(descriptor);
        debug_assert!(pushed.is_ok(), "room was found before");
    }

    /// Takes finished frames back from the completion ring. Returns how many.
    pub(super) fn complete(&mut self, frames: &mut Frames) -> usize {
        let mut completed = 0;
        for _ in 0..self.completion.available(u32::MAX) {
            let Some(addr) = self.completion.pop() else { break };
            match frames.umem.take(addr, Owner::Transmit(self.id)) {
                Ok(mut frame) => {
                    if let Some(stamps) = &mut self.stamps {
                        let start = (addr & u64::from(frames.umem.frame_size() - 1)) as usize;
                        let area = &frames.umem.bytes_mut(&mut frame)[start.saturating_sub(METADATA_LEN)..];
                        if let (true, Some(area)) = (start >= METADATA_LEN, area.first_chunk()) {
                            stamps.completed(area);
                        }
                    }
                    frames.free.push(frame);
                    completed += 1;
                }
                Err(_) => self.counters.bad_descriptor += 1,
            }
        }
        self.completion.release();
        self.sending -= completed;
        self.counters.completed += u64::from(completed);
        completed as usize
    }

    /// Shows the kernel all packets submitted so far.
    pub(super) fn publish(&mut self) {
        self.tx.publish();
    }

    /// Packets in the TX ring that the kernel has not taken out yet.
    pub(super) fn untaken(&mut self) -> u32 {
        self.tx.unconsumed()
    }

    /// Frames that are with the kernel to send from.
    pub(super) fn in_flight(&self) -> usize {
        self.sending as usize
    }

    /// True if as many frames are in flight as the kernel can complete.
    #[inline]
    pub(super) fn is_exhausted(&self) -> bool {
        self.sending >= self.tx.capacity()
    }

    /// True if transmission waits for a system call.
    pub(super) fn transmit_needs_wakeup(&self) -> bool {
        self.tx.needs_wakeup()
    }

    /// True if reception waits for a system call because the kernel found the fill ring empty.
    #[inline]
    pub(super) fn receive_needs_wakeup(&self) -> bool {
        self.fill.needs_wakeup()
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

/// A frame in which a packet is being built. Dropped without [`TxFrame::submit`] it is free again.
pub(super) struct TxFrame<'q, M: Memory> {
    frames: &'q mut Frames,
    lane: &'q mut Lane<M>,
    frame: Option<Frame>,
}

impl<M: Memory> TxFrame<'_, M> {
    /// The whole frame.
    #[inline]
    pub(super) fn bytes(&mut self) -> &mut [u8] {
        match &mut self.frame {
            Some(frame) => self.frames.umem.bytes_mut(frame),
            None => &mut [],
        }
    }

    /// Puts the packet that lies at `range` of the frame into the TX ring, with what is asked for it; the stamp
    /// is the lane's to ask. False if it does not lie within the frame or the ring has no room; the frame is
    /// free again then.
    #[inline]
    pub(super) fn submit(mut self, range: Range<usize>, request: Request) -> bool {
        let Some(frame) = self.frame.take() else { return false };
        match self.lane.submit(self.frames, frame, range, request) {
            Ok(()) => true,
            Err(frame) => {
                self.frame = Some(frame);
                false
            }
        }
    }
}

impl<M: Memory> Drop for TxFrame<'_, M> {
    #[inline]
    fn drop(&mut self) {
        if let Some(frame) = self.frame.take() {
            self.frames.free.push(frame);
        }
    }
}
