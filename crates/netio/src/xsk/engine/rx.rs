//! Reception: RX entries become packets, their frames go back to the fill ring.

use std::ops::Range;

use super::assembly::Added;
use super::{Kernel, Umem, Xsk};
use crate::umem::{Frame, Owner};
use crate::xsk::abi::XDP_PKT_CONTD;

/// What an RX entry came to.
pub(super) enum Popped {
    /// A packet in one frame, at this range of it. The frame is the caller's.
    Packet(Frame, Range<usize>),
    /// A packet of several frames and so many bytes, whole now: [`Xsk::assembled`].
    Assembled(usize),
    /// A part of a packet, or an entry that was dropped and counted.
    Nothing,
}

impl<K: Kernel> Xsk<K> {
    /// Gives a frame to the kernel to receive into, or to the free ones if this XSK has its share.
    #[inline]
    pub(super) fn recycle(&mut self, umem: &mut Umem, frame: Frame) {
        if self.receiving >= self.fill.capacity() || self.fill.free(1) == 0 {
            umem.free(frame);
            return;
        }
        let addr = umem.give(frame, Owner::Receive(self.id));
        self.receiving += 1;
        let pushed = self.fill.push(addr);
        debug_assert!(pushed.is_ok(), "room was found above");
    }

    /// Brings the fill ring to its share of frames and shows the kernel all new entries.
    #[inline]
    pub(super) fn refill(&mut self, umem: &mut Umem) {
        while self.receiving < self.fill.capacity() && self.fill.free(1) > 0 {
            let Some(frame) = umem.alloc() else { break };
            self.recycle(umem, frame);
        }
        self.fill.publish();
    }

    /// RX entries that wait, up to `limit` if that many are known without a look at the shared index.
    #[inline]
    pub(super) fn available(&mut self, limit: usize) -> u32 {
        self.rx.available(u32::try_from(limit).unwrap_or(u32::MAX))
    }

    /// Takes one RX entry; `None` if there is none. After a batch of them comes [`Xsk::end_batch`].
    #[inline]
    pub(super) fn pop(&mut self, umem: &mut Umem) -> Option<Popped> {
        let descriptor = self.rx.pop()?;
        let more = descriptor.options & XDP_PKT_CONTD != 0;
        let Ok(frame) = umem.take(descriptor.addr, Owner::Receive(self.id)) else {
            return Some(self.count_bad(more));
        };
        self.receiving -= 1;
        let Some(range) = umem.range(descriptor.addr, descriptor.len) else {
            self.recycle(umem, frame);
            return Some(self.count_bad(more));
        };
        if more || !self.assembly.is_idle() {
            return Some(self.assemble(umem, frame, range, more));
        }
        Some(Popped::Packet(frame, self.with_prefix(range)))
    }

    /// What describes a packet lies in front of its first part; drivers and the kernel leave 256 bytes there.
    #[inline]
    fn with_prefix(&self, range: Range<usize>) -> Range<usize> {
        range.start.saturating_sub(self.prefix)..range.end
    }

    #[cold]
    fn count_bad(&mut self, more: bool) -> Popped {
        self.counters.bad_descriptor += 1;
        self.assembly.spoil(more);
        Popped::Nothing
    }

    /// Adds a part to the packet in the making.
    #[inline(never)]
    fn assemble(&mut self, umem: &mut Umem, mut frame: Frame, range: Range<usize>, more: bool) -> Popped {
        let range = if self.assembly.is_idle() { self.with_prefix(range) } else { range };
        let added = self.assembly.add(&umem.bytes_mut(&mut frame)[range], more);
        self.recycle(umem, frame);
        match added {
            Added::Partial | Added::Skipped => Popped::Nothing,
            Added::Overflow => {
                self.counters.truncated += 1;
                Popped::Nothing
            }
            Added::Complete => {
                self.counters.gathered += 1;
                Popped::Assembled(self.assembly.packet().len())
            }
        }
    }

    /// The packet that was put together last.
    pub(super) fn assembled(&mut self) -> &mut [u8] {
        self.assembly.packet()
    }

    /// Gives the slots of the popped RX entries back and refills the fill ring.
    #[inline]
    pub(super) fn end_batch(&mut self, umem: &mut Umem) {
        self.rx.release();
        self.refill(umem);
    }

    /// True if packets wait in the RX ring.
    pub(crate) fn has_received(&mut self) -> bool {
        self.rx.available(1) > 0
    }
}
