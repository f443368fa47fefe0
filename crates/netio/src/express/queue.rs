//! One UMEM with the rings of one socket: what a [`super::Port`] has.
//!
//! The frames are as many as the fill and the completion ring have entries, so a lane's two quotas are all
//! there is, and neither direction can take frames that the other needs. Where packets are lent to readers in other
//! processes, there are as many more as those may hold.

use std::ops::Range;

use super::frame::{Frame, LaneId};
use super::lane::{Lane, LaneCounters, Memory, Popped, Rings, TxFrame};
use super::lending::{Lending, Note};
use super::umem::{Frames, Umem};

/// A UMEM, the rings of its one socket and its frames.
pub(super) struct Queue<M: Memory> {
    frames: Frames,
    lane: Lane<M>,
    lending: Lending<M>,
    /// Packets that were to be lent and lie in several frames.
    unlent: u64,
}

/// What of a received packet is to be lent to readers: where it lies in the bytes that were handed over.
pub(super) struct Keep {
    pub(super) packet: Range<usize>,
    pub(super) note: Note,
}

/// A received frame lent to a handler; whatever the handler does, it goes back to the fill ring.
struct Lent<'q, M: Memory> {
    frames: &'q mut Frames,
    lane: &'q mut Lane<M>,
    frame: Option<Frame>,
}

impl<M: Memory> Lent<'_, M> {
    #[inline]
    fn bytes(&mut self, range: Range<usize>) -> &mut [u8] {
        match &mut self.frame {
            Some(frame) => &mut self.frames.umem.bytes_mut(frame)[range],
            None => &mut [],
        }
    }

    /// Lends it to `readers`, as far as they take it.
    #[inline]
    fn lend(mut self, lending: &mut Lending<M>, range: Range<usize>, readers: u32, note: Note) {
        if let Some(frame) = self.frame.take() {
            self.frame = lending.lend(self.frames, (frame, range), LaneId(0), readers, note).err();
        }
    }
}

impl<M: Memory> Drop for Lent<'_, M> {
    #[inline]
    fn drop(&mut self) {
        if let Some(frame) = self.frame.take() {
            self.lane.recycle(self.frames, frame);
        }
    }
}

impl<M: Memory> Queue<M> {
    /// Takes the rings and a UMEM whose frames are free. The fill ring is full when this returns, so that it is
    /// before the socket is bound. `assembly` is the size of the buffer for packets in several frames, 0 if
    /// there are none.
    pub(super) fn new(mut frames: Frames, rings: Rings<M>, assembly: usize) -> Self {
        let lane = Lane::new(LaneId(0), &mut frames, rings, assembly);
        Self::of(frames, lane)
    }

    /// As [`Queue::new`] where the fill ring was filled already, with the first frames ([`super::source`]).
    pub(super) fn adopt(mut frames: Frames, rings: Rings<M>, assembly: usize) -> Self {
        let lane = Lane::adopt(LaneId(0), &mut frames, rings, assembly);
        Self::of(frames, lane)
    }

    fn of(frames: Frames, lane: Lane<M>) -> Self {
        let lending = Lending::new(frames.umem.count());
        Self { frames, lane, lending, unlent: 0 }
    }

    /// Hands up to `limit` received packets to `handle`, each in one piece, and refills the fill ring. What `handle` says
    /// to keep is lent to the readers there are.
    pub(super) fn receive<F: FnMut(&mut [u8]) -> Option<Keep>>(
        &mut self,
        limit: usize,
        mut handle: F,
    ) -> usize {
        let Self { frames, lane, lending, unlent } = self;
        let readers = if lending.reserved() > 0 { lending.present() } else { 0 };
        let mut packets = 0;
        // A packet may take several descriptors, and a hostile kernel could send none but bad ones: one
        // ring's worth of descriptors is the bound.
        let mut descriptors = lane.available(limit);
        while packets < limit && descriptors > 0 {
            let Some(popped) = lane.pop(frames) else { break };
            descriptors -= 1;
            match popped {
                Popped::Packet(frame, range) => {
                    let start = range.start;
                    let mut lent = Lent { frames, lane, frame: Some(frame) };
                    let keep = handle(lent.bytes(range));
                    if readers != 0
                        && let Some(Keep { packet, note }) = keep
                    {
                        lent.lend(lending, start + packet.start..start + packet.end, readers, note);
                    }
                    packets += 1;
                }
                Popped::Gathered => {
                    let keep = handle(lane.gathered());
                    *unlent += u64::from(keep.is_some() && readers != 0);
                    packets += 1;
                }
                Popped::Nothing => {}
            }
        }
        lane.end_batch(frames);
        packets
    }

    /// The readers with what they have to do with.
    pub(super) fn readers(&mut self) -> (&mut Lending<M>, &mut Frames, usize) {
        let promised = self.lane.share() + self.lending.reserved();
        let unreserved = self.frames.umem.count().saturating_sub(promised);
        (&mut self.lending, &mut self.frames, unreserved)
    }

    /// The readers, to look at.
    pub(super) fn readers_ref(&self) -> &Lending<M> {
        &self.lending
    }

    /// Packets that were to be lent and were not, as they lie in several frames.
    pub(super) fn unlent(&self) -> u64 {
        self.unlent
    }

    /// True if packets wait in the RX ring.
    pub(super) fn has_received(&mut self) -> bool {
        self.lane.has_received()
    }

    /// A frame to build a packet in; `None` if all are with the kernel.
    #[inline]
    pub(super) fn acquire(&mut self) -> Option<TxFrame<'_, M>> {
        self.lane.acquire(&mut self.frames)
    }

    /// Frames that a packet of `length` bytes takes when it is sent in parts.
    #[inline]
    pub(super) fn parts(&self, length: usize) -> usize {
        self.lane.parts(&self.frames, length)
    }

    /// True if a packet of `parts` frames can be sent: frames are idle and the TX ring has the places.
    pub(super) fn has_room(&mut self, parts: usize) -> bool {
        self.lane.has_room(&mut self.frames, parts)
    }

    /// Copies a packet into as many frames as it takes and puts them into the TX ring, all but the last
    /// marked as continued. False, with nothing changed, if it is empty or has no room.
    pub(super) fn submit_parts(&mut self, packet: &[u8]) -> bool {
        self.lane.submit_parts(&mut self.frames, packet)
    }

    /// Hands packets over with so many bytes in front of them from now on.
    pub(super) fn include_prefix(&mut self, prefix: usize) {
        self.lane.include_prefix(prefix);
    }

    /// Takes finished frames back from the completion ring. Returns how many.
    pub(super) fn complete(&mut self) -> usize {
        self.lane.complete(&mut self.frames)
    }

    /// Shows the kernel all packets submitted so far.
    pub(super) fn publish(&mut self) {
        self.lane.publish();
    }

    /// Packets in the TX ring that the kernel has not taken out yet.
    pub(super) fn untaken(&mut self) -> u32 {
        self.lane.untaken()
    }

    /// Transmit frames that are with the kernel.
    pub(super) fn in_flight(&self) -> usize {
        self.lane.in_flight()
    }

    /// True if all transmit frames are with the kernel.
    pub(super) fn is_exhausted(&self) -> bool {
        self.lane.is_exhausted()
    }

    /// True if transmission waits for a system call.
    pub(super) fn transmit_needs_wakeup(&self) -> bool {
        self.lane.transmit_needs_wakeup()
    }

    /// True if reception waits for a system call because the kernel found the fill ring empty.
    #[inline]
    pub(super) fn receive_needs_wakeup(&self) -> bool {
        self.lane.receive_needs_wakeup()
    }

    /// True if the kernel moved an index where it cannot be: the queue is of no use any more.
    pub(super) fn is_corrupt(&self) -> bool {
        self.lane.is_corrupt()
    }

    /// The memory of the frames.
    pub(super) fn umem(&self) -> &Umem {
        &self.frames.umem
    }

    /// The memory of the frames, for a fake kernel to write into.
    #[cfg(all(test, not(loom)))]
    pub(super) fn umem_mut(&mut self) -> &mut Umem {
        &mut self.frames.umem
    }

    /// Frames in the program's pool, and with the kernel to receive into and to send from.
    #[cfg(all(test, not(loom)))]
    pub(super) fn held(&self) -> (usize, usize, usize) {
        let (receiving, sending) = self.lane.held();
        (self.frames.free.len(), receiving, sending)
    }

    /// Counters since the queue was made.
    pub(super) fn counters(&self) -> LaneCounters {
        self.lane.counters()
    }
}

#[cfg(all(test, not(loom)))]
#[path = "queue_tests.rs"]
mod tests;
