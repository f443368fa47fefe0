//! One UMEM, the lanes of its sockets and its readers: who has which frame, without system calls.
//!
//! ```text
//!                 ┌────────────────────── free ◀───────────────────────────┐
//!                 │                        ▲  ▲                            │
//!         refill  │             completion │  │ the last reader returned   │
//!                 ▼                        │  │ it, or went                │
//!   lane A: fill ──▶ RX ──▶ program ──▶ TX of any lane                     │
//!                              │  └──▶ lent to one reader or several ──────┘
//!                              └─────▶ back to A's fill ring, at once
//! ```
//!
//! One thread owns all of it: sockets of one worker, so that there is no lock and a frame received by one
//! socket leaves by another without a copy. The shares add up: a lane has at most as many frames as its rings
//! have entries, a reader at most its quota, and [`Exchange::unreserved`] says how many frames are promised to
//! nobody. As long as no more are promised than there are, no lane and no reader can starve another.
//!
//! A frame may be lent to several readers at a time. A bit for each of them beside the frame's owner says who
//! has it; the frame is free again when the last bit goes.

use std::ops::Range;

use super::frame::{Frame, LaneId, Owner};
use super::lane::{Lane, Memory, Popped, Rings, TxFrame};
use super::lender::Lender;
use super::loan::Loan;
use super::metadata::Request;
use super::umem::Frames;

/// The most readers of one UMEM: bits of a frame's record.
pub(super) const MAX_READERS: usize = 32;

/// The frames of a UMEM and all who use them.
pub(super) struct Exchange<M: Memory> {
    frames: Frames,
    lanes: Vec<Lane<M>>,
    readers: [Option<Lender<M>>; MAX_READERS],
    /// By frame: which readers have it, a bit each.
    holders: Box<[u32]>,
    reserved: usize,
}

impl<M: Memory> Exchange<M> {
    /// Takes a UMEM whose frames are free.
    pub(super) fn new(frames: Frames) -> Self {
        let holders = vec![0; frames.umem.count()].into_boxed_slice();
        Self { frames, lanes: Vec::new(), readers: [const { None }; MAX_READERS], holders, reserved: 0 }
    }

    /// The memory and the free frames.
    pub(super) fn frames(&self) -> &Frames {
        &self.frames
    }

    /// Frames that no lane and no reader has a right to.
    pub(super) fn unreserved(&self) -> usize {
        self.frames.umem.count() - self.reserved
    }

    /// Adds the rings of a socket and fills its fill ring. The caller has seen that `share` frames, the
    /// entries of fill and completion ring together, are unreserved.
    pub(super) fn add_lane(&mut self, rings: Rings<M>, share: usize) -> LaneId {
        debug_assert!(share <= self.unreserved());
        self.reserved += share;
        // Bounded: each takes 128 frames at least.
        let id = LaneId(self.lanes.len() as u16);
        self.lanes.push(Lane::new(id, &mut self.frames, rings, 0));
        id
    }

    /// Takes away the lane added last, whose socket did not come to be of use and is closed. If it was bound
    /// for a moment, its frames are lost to this UMEM: a driver in zero-copy mode may write into them until the
    /// kernel has released the queue, which it tells nobody.
    pub(super) fn remove_last_lane(&mut self, was_bound: bool) {
        if let Some(lane) = self.lanes.pop()
            && !was_bound
        {
            self.reserved -= lane.share();
            lane.reclaim(&mut self.frames);
        }
    }

    /// The lane of a socket.
    #[inline]
    pub(super) fn lane(&mut self, id: LaneId) -> &mut Lane<M> {
        &mut self.lanes[id.0 as usize]
    }

    /// A lane, to look at.
    pub(super) fn lane_ref(&self, id: LaneId) -> &Lane<M> {
        &self.lanes[id.0 as usize]
    }

    /// Hands up to `limit` received packets to `handle`, each in its frame, and refills the fill ring.
    pub(super) fn receive<F: FnMut(Taken<'_, M>)>(
        &mut self,
        from: LaneId,
        limit: usize,
        mut handle: F,
    ) -> usize {
        let mut packets = 0;
        let mut descriptors = self.lane(from).available(limit);
        while packets < limit && descriptors > 0 {
            let Some(popped) = self.lanes[from.0 as usize].pop(&mut self.frames) else { break };
            descriptors -= 1;
            // Packets in several frames are not asked for at bind; from a hostile kernel they are dropped.
            let Popped::Packet(frame, range) = popped else { continue };
            packets += 1;
            handle(Taken { exchange: self, from, frame: Some(frame), range });
        }
        self.lanes[from.0 as usize].end_batch(&mut self.frames);
        packets
    }

    /// A frame to build a packet in, to leave by that lane.
    #[inline]
    pub(super) fn acquire(&mut self, lane: LaneId) -> Option<TxFrame<'_, M>> {
        self.lanes[lane.0 as usize].acquire(&mut self.frames)
    }

    /// Takes finished frames of a lane back.
    pub(super) fn complete(&mut self, lane: LaneId) -> usize {
        self.lanes[lane.0 as usize].complete(&mut self.frames)
    }

    /// A place for a reader; `None` if there are [`MAX_READERS`].
    pub(super) fn vacancy(&self) -> Option<usize> {
        self.readers.iter().position(Option::is_none)
    }

    /// Admits a reader at a vacant place. The caller has seen that its quota is unreserved.
    pub(super) fn admit(&mut self, place: usize, reader: Lender<M>) {
        debug_assert!(self.readers[place].is_none() && reader.quota() as usize <= self.unreserved());
        self.reserved += reader.quota() as usize;
        self.readers[place] = Some(reader);
    }

    /// Ends a reader: what it had is free at once, as it cannot write and its reading harms nobody.
    pub(super) fn dismiss(&mut self, place: usize) -> Option<Lender<M>> {
        let reader = self.readers[place].take()?;
        self.reserved -= reader.quota() as usize;
        for index in 0..self.holders.len() {
            if self.holders[index] & (1 << place) != 0 {
                self.drop_holder(index, place);
            }
        }
        Some(reader)
    }

    /// Admitted readers, a bit each.
    pub(super) fn present(&self) -> u32 {
        self.readers.iter().enumerate().fold(0, |set, (place, one)| set | u32::from(one.is_some()) << place)
    }

    /// The reader at a place.
    pub(super) fn reader(&self, place: usize) -> Option<&Lender<M>> {
        self.readers.get(place)?.as_ref()
    }

    /// Takes back what readers have returned. The set of those whose rings are corrupt, a bit each: they must
    /// be dismissed.
    pub(super) fn collect(&mut self) -> u32 {
        let mut corrupt = 0;
        for place in 0..MAX_READERS {
            let Some(reader) = &mut self.readers[place] else { continue };
            let waiting = reader.waiting();
            for _ in 0..waiting {
                self.take_return(place);
            }
            let Some(reader) = &mut self.readers[place] else { continue };
            reader.release();
            corrupt |= u32::from(reader.is_corrupt()) << place;
        }
        corrupt
    }

    fn take_return(&mut self, place: usize) {
        let Some(addr) = self.readers[place].as_mut().and_then(Lender::pop_return) else { return };
        let index = self.frames.umem.index(addr).filter(|&index| self.holders[index] & (1 << place) != 0);
        if let Some(index) = index {
            self.drop_holder(index, place);
        }
        if let Some(reader) = &mut self.readers[place] {
            reader.settle(index.is_some());
        }
    }

    fn drop_holder(&mut self, index: usize, place: usize) {
        self.holders[index] &= !(1 << place);
        if self.holders[index] == 0 {
            let addr = self.frames.umem.address(index);
            // The record says so as long as a bit is set: `Taken::lend` alone sets both.
            if let Ok(frame) = self.frames.umem.take(addr, Owner::Lent) {
                self.frames.free.push(frame);
            }
        }
    }

    /// Shows all readers what they were lent. The set of those who sleep, a bit each: they want to be woken.
    pub(super) fn publish_loans(&mut self) -> u32 {
        let mut asleep = 0;
        for (place, reader) in self.readers.iter_mut().enumerate() {
            if let Some(reader) = reader {
                asleep |= u32::from(reader.publish()) << place;
            }
        }
        asleep
    }

    /// The memory, for a fake kernel to write into.
    #[cfg(all(test, not(loom)))]
    pub(super) fn frames_mut(&mut self) -> &mut Frames {
        &mut self.frames
    }

    /// Readers that have a frame, a bit each.
    #[cfg(all(test, not(loom)))]
    pub(super) fn holders(&self) -> &[u32] {
        &self.holders
    }
}

/// A received packet in its frame. Dropped, the frame goes back to the fill ring that it came from.
pub(super) struct Taken<'a, M: Memory> {
    exchange: &'a mut Exchange<M>,
    from: LaneId,
    frame: Option<Frame>,
    range: Range<usize>,
}

impl<M: Memory> Taken<'_, M> {
    /// The packet.
    #[inline]
    pub(super) fn bytes(&mut self) -> &mut [u8] {
        match &mut self.frame {
            Some(frame) => &mut self.exchange.frames.umem.bytes_mut(frame)[self.range.clone()],
            None => &mut [],
        }
    }

    /// Sends the packet by a lane. False if that has its share of frames in flight: the packet is dropped.
    #[inline]
    pub(super) fn send(mut self, to: LaneId) -> bool {
        let Some(frame) = self.frame.take() else { return false };
        let Exchange { frames, lanes, .. } = &mut *self.exchange;
        let lane = &mut lanes[to.0 as usize];
        if lane.is_exhausted() {
            lane.complete(frames);
        }
        match lane.submit(frames, frame, self.range.clone(), Request::default()) {
            Ok(()) => true,
            Err(frame) => {
                self.frame = Some(frame);
                false
            }
        }
    }

    /// Lends the packet to those of `readers` who are there and have not used up their quota. Returns the set
    /// of them; nobody else may write the frame until they all have returned it.
    #[inline]
    pub(super) fn lend(mut self, readers: u32, timestamp: u64, flags: u16) -> u32 {
        let Some(frame) = self.frame.take() else { return 0 };
        let Exchange { frames, readers: all, holders, .. } = &mut *self.exchange;
        let index = frame.index() as usize;
        let addr = frames.umem.address(index) + self.range.start as u64;
        let len = self.range.len() as u32;
        let loan = Loan { addr, len, flags, source: self.from.0, timestamp, sequence: 0 };
        let mut lent = 0;
        let mut left = readers;
        while left != 0 {
            let place = left.trailing_zeros() as usize;
            left &= left - 1;
            if all[place].as_mut().is_some_and(|reader| reader.lend(loan)) {
                lent |= 1 << place;
            }
        }
        if lent == 0 {
            self.frame = Some(frame);
        } else {
            frames.umem.give(frame, Owner::Lent);
            holders[index] = lent;
        }
        lent
    }
}

impl<M: Memory> Drop for Taken<'_, M> {
    #[inline]
    fn drop(&mut self) {
        if let Some(frame) = self.frame.take() {
            let Exchange { frames, lanes, .. } = &mut *self.exchange;
            lanes[self.from.0 as usize].recycle(frames, frame);
        }
    }
}

#[cfg(all(test, not(loom)))]
#[path = "exchange_tests.rs"]
mod tests;
