//! Reception: RX entries become packets, their frames go back to the fill ring.

use std::ops::Range;

use super::{Lane, Memory};
use crate::express::abi::XDP_PKT_CONTD;
use crate::express::assembly::Added;
use crate::express::frame::{Frame, Owner};
use crate::express::umem::Frames;

/// What an RX entry came to.
pub(in crate::express) enum Popped {
    /// A packet in one frame, at this range of it. The frame is the caller's.
    Packet(Frame, Range<usize>),
    /// A packet of several frames, whole now: [`Lane::gathered`].
    Gathered,
    /// A part of a packet, or an entry that was dropped and counted.
    Nothing,
}

impl<M: Memory> Lane<M> {
    /// Gives a frame to the kernel to receive into, or to the free ones if this lane has its share.
    #[inline]
    pub(in crate::express) fn recycle(&mut self, frames: &mut Frames, frame: Frame) {
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
    pub(in crate::express) fn refill(&mut self, frames: &mut Frames) {
        while self.receiving < self.fill.capacity() && self.fill.free(1) > 0 {
            let Some(frame) = frames.free.pop() else { break };
            self.recycle(frames, frame);
        }
        self.fill.publish();
    }

    /// RX entries that wait, up to `limit` if that many are known without a look at the shared index.
    #[inline]
    pub(in crate::express) fn available(&mut self, limit: usize) -> u32 {
        self.rx.available(u32::try_from(limit).unwrap_or(u32::MAX))
    }

    /// Takes one RX entry; `None` if there is none. After a batch of them comes [`Lane::end_batch`].
    #[inline]
    pub(in crate::express) fn pop(&mut self, frames: &mut Frames) -> Option<Popped> {
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
    pub(in crate::express) fn gathered(&mut self) -> &mut [u8] {
        self.assembly.packet()
    }

    /// Gives the slots of the popped RX entries back and refills the fill ring.
    #[inline]
    pub(in crate::express) fn end_batch(&mut self, frames: &mut Frames) {
        self.rx.release();
        self.refill(frames);
    }

    /// True if packets wait in the RX ring.
    pub(in crate::express) fn has_received(&mut self) -> bool {
        self.rx.available(1) > 0
    }

    /// Hands packets over with so many bytes in front of them from now on.
    pub(in crate::express) fn include_prefix(&mut self, prefix: usize) {
        self.prefix = prefix;
    }

    /// True if reception waits for a system call because the kernel found the fill ring empty.
    #[inline]
    pub(in crate::express) fn receive_needs_wakeup(&self) -> bool {
        self.fill.needs_wakeup()
    }
}
