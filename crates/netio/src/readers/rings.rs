//! The receiver's side of one reader: its two rings, its quota and what it did.
//!
//! Nothing that a reader writes is trusted. Lent descriptors are never read back, an impossible index marks its ring as
//! corrupt, and a returned address only counts if the record of [`super::table`] says that the reader has that frame.

use super::abi::PacketDescriptor;
use crate::ring::{Consumer, Producer, RingKind};
use crate::stats::counters;

counters! {
    /// What readers were given and gave back. A packet lent to two counts twice.
    pub struct ReaderStats {
        /// Packets lent.
        pub lent: u64,
        /// Frames given back.
        pub returned: u64,
        /// Packets that were not lent because the reader held its whole quota.
        pub dropped_quota: u64,
        /// Returns of what the reader did not have: an address outside, another's frame, or one returned twice.
        pub bad_returns: u64,
    }
}

/// One reader as the receiver sees it.
pub(crate) struct ReaderRings<R: RingKind> {
    packets: Producer<R::Ring<PacketDescriptor>>,
    returns: Consumer<R::Ring<u64>>,
    quota: u32,
    held: u32,
    sequence: u64,
    unseen: bool,
    stats: ReaderStats,
}

impl<R: RingKind> ReaderRings<R> {
    /// A reader that may hold `quota` frames, over two rings of that many entries or more.
    pub(crate) fn new(packets: R::Ring<PacketDescriptor>, returns: R::Ring<u64>, quota: u32) -> Self {
        Self {
            packets: Producer::new(packets),
            returns: Consumer::new(returns),
            quota,
            held: 0,
            sequence: 0,
            unseen: false,
            stats: ReaderStats::default(),
        }
    }

    /// Lends a packet; its number is filled in. False if the reader has its whole quota already.
    #[inline]
    pub(crate) fn lend(&mut self, packet: PacketDescriptor) -> bool {
        let packet = PacketDescriptor { sequence: self.sequence, ..packet };
        self.sequence += 1;
        if self.held >= self.quota || self.packets.push(packet).is_err() {
            self.stats.dropped_quota += 1;
            return false;
        }
        self.held += 1;
        self.stats.lent += 1;
        self.unseen = true;
        true
    }

    /// An address that the reader returned, to be checked by the caller and then [`ReaderRings::settle`]d.
    #[inline]
    pub(crate) fn pop_return(&mut self) -> Option<u64> {
        self.returns.pop()
    }

    /// Counts a return: of a frame that the reader had, or of nothing.
    #[inline]
    pub(crate) fn settle(&mut self, good: bool) {
        if good {
            self.held -= 1;
            self.stats.returned += 1;
        } else {
            self.stats.bad_returns += 1;
        }
    }

    /// Returns that wait, a ring's worth at most.
    #[inline]
    pub(crate) fn waiting(&mut self) -> u32 {
        self.returns.available(u32::MAX)
    }

    /// Gives the slots of the returns taken so far back to the reader.
    #[inline]
    pub(crate) fn release(&mut self) {
        self.returns.release();
    }

    /// Shows the reader what it was lent. True if it sleeps and wants to be woken.
    #[inline]
    pub(crate) fn publish(&mut self) -> bool {
        if !std::mem::take(&mut self.unseen) {
            return false;
        }
        self.packets.publish();
        self.packets.needs_wakeup()
    }

    /// True if the reader moved an index where it cannot be.
    pub(crate) fn is_corrupt(&self) -> bool {
        self.packets.is_corrupt() || self.returns.is_corrupt()
    }

    /// Frames that the reader may hold.
    pub(crate) fn quota(&self) -> u32 {
        self.quota
    }

    /// Frames that the reader holds.
    pub(crate) fn held(&self) -> u32 {
        self.held
    }

    /// What it did.
    pub(crate) fn stats(&self) -> ReaderStats {
        self.stats
    }
}
