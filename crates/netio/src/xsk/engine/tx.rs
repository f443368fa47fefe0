//! Transmission: packets are built in frames and put into the TX ring; completions free the frames.

use std::ops::Range;

use super::{Kernel, Umem, Xsk};
use crate::umem::{Frame, Owner};
use crate::xsk::abi::{Descriptor, XDP_PKT_CONTD};

impl<K: Kernel> Xsk<K> {
    /// A frame to build a packet in; `None` if this XSK has its share in flight, or none is free.
    #[inline]
    pub(super) fn alloc(&mut self, umem: &mut Umem) -> Option<Frame> {
        if self.is_exhausted() || umem.free_count() == 0 {
            self.complete(umem);
        }
        if self.is_exhausted() { None } else { umem.alloc() }
    }

    /// Puts the packet that lies at `range` of the frame into the TX ring. Gives the frame back if it does not
    /// lie within it, or this XSK has its share in flight.
    #[inline]
    pub(crate) fn submit(&mut self, umem: &mut Umem, frame: Frame, range: Range<usize>) -> Result<(), Frame> {
        let fits = range.start <= range.end && range.end <= umem.frame_size() as usize;
        if !fits || self.is_exhausted() || self.tx.free(1) == 0 {
            return Err(frame);
        }
        self.push_tx(umem, frame, range, 0);
        Ok(())
    }

    /// Frames that a packet of `length` bytes takes when it is sent in parts.
    #[inline]
    pub(crate) fn parts(&self, umem: &Umem, length: usize) -> usize {
        length.div_ceil(umem.frame_size() as usize).max(1)
    }

    /// True if a packet of `parts` frames can be sent: frames are free, this XSK may have them in flight,
    /// and the TX ring has the places.
    pub(crate) fn has_room(&mut self, umem: &mut Umem, parts: usize) -> bool {
        if self.usable(umem) < parts {
            self.complete(umem);
        }
        let wanted = u32::try_from(parts).unwrap_or(u32::MAX);
        self.usable(umem) >= parts && self.tx.free(wanted) >= wanted
    }

    /// Frames that this XSK may send from now.
    fn usable(&self, umem: &Umem) -> usize {
        umem.free_count().min(self.tx.capacity().saturating_sub(self.sending) as usize)
    }

    /// Copies a packet into as many frames as it takes and puts them into the TX ring, all but the last
    /// marked as continued. False, with nothing changed, if it is empty or has no room.
    pub(crate) fn submit_parts(&mut self, umem: &mut Umem, packet: &[u8]) -> bool {
        let parts = self.parts(umem, packet.len());
        if packet.is_empty() || !self.has_room(umem, parts) {
            return false;
        }
        let most = umem.frame_size() as usize;
        for (number, part) in packet.chunks(most).enumerate() {
            let Some(mut frame) = umem.alloc() else { return false };
            umem.bytes_mut(&mut frame)[..part.len()].copy_from_slice(part);
            let continued = if number + 1 < parts { XDP_PKT_CONTD } else { 0 };
            self.push_tx(umem, frame, 0..part.len(), continued);
        }
        true
    }

    /// Puts a frame into the TX ring, where the caller has found room.
    #[inline]
    fn push_tx(&mut self, umem: &mut Umem, frame: Frame, range: Range<usize>, options: u32) {
        let addr = umem.give(frame, Owner::Transmit(self.id)) + range.start as u64;
        self.sending += 1;
        let descriptor = Descriptor { addr, len: (range.end - range.start) as u32, options };
        let pushed = self.tx.push(descriptor);
        debug_assert!(pushed.is_ok(), "room was found before");
    }

    /// Takes finished frames back from the completion ring. Returns how many.
    pub(crate) fn complete(&mut self, umem: &mut Umem) -> usize {
        let mut completed = 0;
        for _ in 0..self.completion.available(u32::MAX) {
            let Some(addr) = self.completion.pop() else { break };
            match umem.take(addr, Owner::Transmit(self.id)) {
                Ok(frame) => {
                    umem.free(frame);
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

    /// Packets in the TX ring that the kernel has not taken out yet.
    pub(crate) fn untaken(&mut self) -> u32 {
        self.tx.unconsumed()
    }

    /// Frames that are with the kernel to send from.
    pub(crate) fn in_flight(&self) -> usize {
        self.sending as usize
    }

    /// True if as many frames are in flight as the kernel can complete.
    #[inline]
    pub(crate) fn is_exhausted(&self) -> bool {
        self.sending >= self.tx.capacity()
    }
}
