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
//! Who of the readers has which frame says [`super::lending`].

use std::ops::Range;

use super::frame::{Frame, LaneId};
use super::lane::{Lane, Memory, Popped, Rings, TxFrame};
use super::lending::{Lending, Note};
use super::umem::Frames;

/// The frames of a UMEM and all who use them.
pub(super) struct Exchange<M: Memory> {
    frames: Frames,
    lanes: Vec<Lane<M>>,
    lending: Lending<M>,
    /// Frames that lanes have a right to.
    reserved: usize,
}

impl<M: Memory> Exchange<M> {
    /// Takes a UMEM whose frames are free.
    pub(super) fn new(frames: Frames) -> Self {
        let lending = Lending::new(frames.umem.count());
        Self { frames, lanes: Vec::new(), lending, reserved: 0 }
    }

    /// The memory and the free frames.
    pub(super) fn frames(&self) -> &Frames {
        &self.frames
    }

    /// Frames that no lane and no reader has a right to.
    pub(super) fn unreserved(&self) -> usize {
        self.frames.umem.count() - self.reserved - self.lending.reserved()
    }

    /// The readers, and the frames that they are lent.
    pub(super) fn lending(&mut self) -> (&mut Lending<M>, &mut Frames) {
        (&mut self.lending, &mut self.frames)
    }

    /// The readers, to look at.
    pub(super) fn lending_ref(&self) -> &Lending<M> {
        &self.lending
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

    /// The memory, for a fake kernel to write into.
    #[cfg(all(test, not(loom)))]
    pub(super) fn frames_mut(&mut self) -> &mut Frames {
        &mut self.frames
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
        match lane.submit(frames, frame, self.range.clone()) {
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
    pub(super) fn lend(mut self, readers: u32, note: Note) -> u32 {
        let Some(frame) = self.frame.take() else { return 0 };
        let Exchange { frames, lending, .. } = &mut *self.exchange;
        match lending.lend(frames, (frame, self.range.clone()), self.from, readers, note) {
            Ok(lent) => lent,
            Err(frame) => {
                self.frame = Some(frame);
                0
            }
        }
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
