//! Transmission: packets are built in frames and put into the TX ring; completions free the frames.

use std::ops::Range;

use super::{Lane, Memory};
use crate::express::abi::{Descriptor, XDP_PKT_CONTD};
use crate::express::frame::{Frame, Owner};
use crate::express::umem::Frames;

impl<M: Memory> Lane<M> {
    /// A frame to build a packet in; `None` if this lane has its share in flight, or none is free.
    #[inline]
    pub(in crate::express) fn acquire<'q>(&'q mut self, frames: &'q mut Frames) -> Option<TxFrame<'q, M>> {
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
    pub(in crate::express) fn submit(
        &mut self,
        frames: &mut Frames,
        frame: Frame,
        range: Range<usize>,
    ) -> Result<(), Frame> {
        let fits = range.start <= range.end && range.end <= frames.umem.frame_size() as usize;
        if !fits || self.is_exhausted() || self.tx.free(1) == 0 {
            return Err(frame);
        }
        self.push_tx(frames, frame, range, 0);
        Ok(())
    }

    /// Frames that a packet of `length` bytes takes when it is sent in parts.
    #[inline]
    pub(in crate::express) fn parts(&self, frames: &Frames, length: usize) -> usize {
        length.div_ceil(frames.umem.frame_size() as usize).max(1)
    }

    /// True if a packet of `parts` frames can be sent: frames are free, this lane may have them in flight,
    /// and the TX ring has the places.
    pub(in crate::express) fn has_room(&mut self, frames: &mut Frames, parts: usize) -> bool {
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
    pub(in crate::express) fn submit_parts(&mut self, frames: &mut Frames, packet: &[u8]) -> bool {
        let parts = self.parts(frames, packet.len());
        if packet.is_empty() || !self.has_room(frames, parts) {
            return false;
        }
        let most = frames.umem.frame_size() as usize;
        for (number, part) in packet.chunks(most).enumerate() {
            let Some(mut frame) = frames.free.pop() else { return false };
            frames.umem.bytes_mut(&mut frame)[..part.len()].copy_from_slice(part);
            let continued = if number + 1 < parts { XDP_PKT_CONTD } else { 0 };
            self.push_tx(frames, frame, 0..part.len(), continued);
        }
        true
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
    pub(in crate::express) fn complete(&mut self, frames: &mut Frames) -> usize {
        let mut completed = 0;
        for _ in 0..self.completion.available(u32::MAX) {
            let Some(addr) = self.completion.pop() else { break };
            match frames.umem.take(addr, Owner::Transmit(self.id)) {
                Ok(frame) => {
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
    pub(in crate::express) fn publish(&mut self) {
        self.tx.publish();
    }

    /// Packets in the TX ring that the kernel has not taken out yet.
    pub(in crate::express) fn untaken(&mut self) -> u32 {
        self.tx.unconsumed()
    }

    /// Frames that are with the kernel to send from.
    pub(in crate::express) fn in_flight(&self) -> usize {
        self.sending as usize
    }

    /// True if as many frames are in flight as the kernel can complete.
    #[inline]
    pub(in crate::express) fn is_exhausted(&self) -> bool {
        self.sending >= self.tx.capacity()
    }

    /// True if transmission waits for a system call.
    pub(in crate::express) fn transmit_needs_wakeup(&self) -> bool {
        self.tx.needs_wakeup()
    }
}

/// A frame in which a packet is being built. Dropped without [`TxFrame::submit`] it is free again.
pub(in crate::express) struct TxFrame<'q, M: Memory> {
    frames: &'q mut Frames,
    lane: &'q mut Lane<M>,
    frame: Option<Frame>,
}

impl<M: Memory> TxFrame<'_, M> {
    /// The whole frame.
    #[inline]
    pub(in crate::express) fn bytes(&mut self) -> &mut [u8] {
        match &mut self.frame {
            Some(frame) => self.frames.umem.bytes_mut(frame),
            None => &mut [],
        }
    }

    /// Puts the packet that lies at `range` of the frame into the TX ring. False if it does not lie within the frame or the ring has no room; the frame is
    /// free again then.
    #[inline]
    pub(in crate::express) fn submit(mut self, range: Range<usize>) -> bool {
        let Some(frame) = self.frame.take() else { return false };
        match self.lane.submit(self.frames, frame, range) {
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
