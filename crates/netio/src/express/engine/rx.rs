//! Reception: RX entries become packets, their frames go back to the fill ring.

use std::ops::Range;

use super::assembly::Added;
use super::{Kernel, Umem, Xsk};
use crate::express::abi::XDP_PKT_CONTD;
use crate::umem::{Frame, Owner};

/// A packet and where it lies: in the frame, or where there is none in the buffer that it was put together in.
pub(super) type Popped = (Option<Frame>, Range<usize>);

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

    /// Takes one RX entry; `None` if there is none, `Some(None)` if it is a part of a packet or was dropped and counted.
    /// After a batch of them comes [`Xsk::end_batch`].
    #[inline]
    pub(super) fn pop(&mut self, umem: &mut Umem) -> Option<Option<Popped>> {
        let descriptor = self.rx.pop()?;
        let more = descriptor.options & XDP_PKT_CONTD != 0;
        let Ok(mut frame) = umem.take(descriptor.addr, Owner::Receive(self.id)) else {
            self.counters.bad_descriptor += 1;
            self.assembly.spoil(more);
            return Some(None);
        };
        self.receiving -= 1;
        let Some(range) = umem.range(descriptor.addr, descriptor.len) else {
            self.counters.bad_descriptor += 1;
            self.assembly.spoil(more);
            self.recycle(umem, frame);
            return Some(None);
        };
        // What describes a packet lies in front of its first part; drivers and the kernel leave 256 bytes there.
        let range = match self.assembly.is_idle() {
            true => range.start.saturating_sub(self.prefix)..range.end,
            false => range,
        };
        if !more && self.assembly.is_idle() {
            return Some(Some((Some(frame), range)));
        }
        let added = self.assembly.add(&umem.bytes_mut(&mut frame)[range], more);
        self.recycle(umem, frame);
        Some(match added {
            Added::Partial | Added::Skipped => None,
            Added::Overflow => {
                self.counters.truncated += 1;
                None
            }
            Added::Complete => {
                self.counters.gathered += 1;
                let length = self.assembly.packet().len();
                Some((None, 0..length))
            }
        })
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
