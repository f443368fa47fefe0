//! The receiver's side of one reader: its two rings, its quota and what it did.
//!
//! Nothing that a reader writes is believed. The loans that it was given are never read back, an index that
//! cannot be makes its ring corrupt, and an address that it returns means something only where the record of
//! [`super::exchange`] says that the reader has that frame.

use super::lane::Memory;
use super::loan::Loan;
use super::ring::{Consumer, Producer};
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
pub(super) struct Lender<M: Memory> {
    loans: Producer<M::Loans>,
    returns: Consumer<M::Addresses>,
    quota: u32,
    held: u32,
    sequence: u64,
    unseen: bool,
    stats: ReaderStats,
}

impl<M: Memory> Lender<M> {
    /// A reader that may hold `quota` frames, over two rings of that many entries or more.
    pub(super) fn new(loans: M::Loans, returns: M::Addresses, quota: u32) -> Self {
        Self {
            loans: Producer::new(loans),
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
    pub(super) fn lend(&mut self, loan: Loan) -> bool {
        let loan = Loan { sequence: self.sequence, ..loan };
        self.sequence += 1;
        if self.held >= self.quota || self.loans.push(loan).is_err() {
            self.stats.dropped_quota += 1;
            return false;
        }
        self.held += 1;
        self.stats.lent += 1;
        self.unseen = true;
        true
    }

    /// An address that the reader returned, to be checked by the caller and then [`Lender::settle`]d.
    #[inline]
    pub(super) fn pop_return(&mut self) -> Option<u64> {
        self.returns.pop()
    }

    /// Counts a return: of a frame that the reader had, or of nothing.
    #[inline]
    pub(super) fn settle(&mut self, good: bool) {
        if good {
            self.held -= 1;
            self.stats.returned += 1;
        } else {
            self.stats.bad_returns += 1;
        }
    }

    /// Returns that wait, a ring's worth at most.
    #[inline]
    pub(super) fn waiting(&mut self) -> u32 {
        self.returns.available(u32::MAX)
    }

    /// Gives the slots of the returns taken so far back to the reader.
    #[inline]
    pub(super) fn release(&mut self) {
        self.returns.release();
    }

    /// Shows the reader what it was lent. True if it sleeps and wants to be woken.
    #[inline]
    pub(super) fn publish(&mut self) -> bool {
        if !std::mem::take(&mut self.unseen) {
            return false;
        }
        self.loans.publish();
        self.loans.needs_wakeup()
    }

    /// True if the reader moved an index where it cannot be.
    pub(super) fn is_corrupt(&self) -> bool {
        self.loans.is_corrupt() || self.returns.is_corrupt()
    }

    /// Frames that the reader may hold.
    pub(super) fn quota(&self) -> u32 {
        self.quota
    }

    /// Frames that the reader holds.
    pub(super) fn held(&self) -> u32 {
        self.held
    }

    /// What it did.
    pub(super) fn stats(&self) -> ReaderStats {
        self.stats
    }
}
