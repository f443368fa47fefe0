//! Which readers there are, and which of a UMEM's frames they have, without system calls.
//!
//! A frame may be lent to several readers at a time. A bit for each of them beside the frame's owner says who
//! has it; the frame is free again when the last bit goes. A reader has at most its quota, which is set aside for it, so
//! that what readers hold is nobody else's.
//!
//! What this module does not do: it knows no lanes ([`super::exchange`], [`super::queue`]) and no sockets
//! ([`super::sharing`]).

use std::ops::Range;

use super::frame::{Frame, LaneId, Owner};
use super::lane::Memory;
use super::lender::Lender;
use super::loan::Loan;
use super::umem::Frames;

/// The most readers of one UMEM: bits of a frame's record.
pub(super) const MAX_READERS: usize = 32;

/// What the receiver says of a packet that it lends.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Note {
    pub(super) timestamp: u64,
    pub(super) flags: u16,
}

/// The readers of a UMEM.
pub(super) struct Lending<M: Memory> {
    readers: [Option<Lender<M>>; MAX_READERS],
    /// By frame: which readers have it, a bit each.
    holders: Box<[u32]>,
    reserved: usize,
}

impl<M: Memory> Lending<M> {
    /// Nobody yet, of a UMEM of so many frames.
    pub(super) fn new(frames: usize) -> Self {
        let holders = vec![0; frames].into_boxed_slice();
        Self { readers: [const { None }; MAX_READERS], holders, reserved: 0 }
    }

    /// Frames that are set aside for readers.
    pub(super) fn reserved(&self) -> usize {
        self.reserved
    }

    /// A place for a reader; `None` if there are [`MAX_READERS`].
    pub(super) fn vacancy(&self) -> Option<usize> {
        self.readers.iter().position(Option::is_none)
    }

    /// Admits a reader at a vacant place. The caller has seen that its quota is promised to nobody.
    pub(super) fn admit(&mut self, place: usize, reader: Lender<M>) {
        debug_assert!(self.readers[place].is_none());
        self.reserved += reader.quota() as usize;
        self.readers[place] = Some(reader);
    }

    /// Ends a reader: what it had is free at once, as it cannot write and its reading harms nobody.
    pub(super) fn dismiss(&mut self, frames: &mut Frames, place: usize) -> Option<Lender<M>> {
        let reader = self.readers[place].take()?;
        self.reserved -= reader.quota() as usize;
        for index in 0..self.holders.len() {
            if self.holders[index] & (1 << place) != 0 {
                self.drop_holder(frames, index, place);
            }
        }
        Some(reader)
    }

    /// Admitted readers, a bit each.
    #[inline]
    pub(super) fn present(&self) -> u32 {
        self.readers.iter().enumerate().fold(0, |set, (place, one)| set | u32::from(one.is_some()) << place)
    }

    /// The reader at a place.
    pub(super) fn reader(&self, place: usize) -> Option<&Lender<M>> {
        self.readers.get(place)?.as_ref()
    }

    /// Takes back what readers have returned. The set of those whose rings are corrupt, a bit each: they must
    /// be dismissed.
    pub(super) fn collect(&mut self, frames: &mut Frames) -> u32 {
        let mut corrupt = 0;
        for place in 0..MAX_READERS {
            let Some(reader) = &mut self.readers[place] else { continue };
            let waiting = reader.waiting();
            for _ in 0..waiting {
                self.take_return(frames, place);
            }
            let Some(reader) = &mut self.readers[place] else { continue };
            reader.release();
            corrupt |= u32::from(reader.is_corrupt()) << place;
        }
        corrupt
    }

    fn take_return(&mut self, frames: &mut Frames, place: usize) {
        let Some(addr) = self.readers[place].as_mut().and_then(Lender::pop_return) else { return };
        let index = frames.umem.index(addr).filter(|&index| self.holders[index] & (1 << place) != 0);
        if let Some(index) = index {
            self.drop_holder(frames, index, place);
        }
        if let Some(reader) = &mut self.readers[place] {
            reader.settle(index.is_some());
        }
    }

    fn drop_holder(&mut self, frames: &mut Frames, index: usize, place: usize) {
        self.holders[index] &= !(1 << place);
        if self.holders[index] == 0 {
            let addr = frames.umem.address(index);
            // The record says so as long as a bit is set: `Lending::lend` alone sets both.
            if let Ok(frame) = frames.umem.take(addr, Owner::Lent) {
                frames.free.push(frame);
            }
        }
    }

    /// Shows all readers what they were lent. The set of those who sleep, a bit each: they want to be woken.
    pub(super) fn publish(&mut self) -> u32 {
        let mut asleep = 0;
        for (place, reader) in self.readers.iter_mut().enumerate() {
            if let Some(reader) = reader {
                asleep |= u32::from(reader.publish()) << place;
            }
        }
        asleep
    }

    /// Lends a packet, which lies in `range` of a frame and came in on `from`, to those of `readers` who are there and
    /// have not used up their quota. Returns the set of them; nobody else may write the frame until they all have
    /// returned it.
    ///
    /// # Errors
    /// The frame, where there is none of them.
    #[inline]
    pub(super) fn lend(
        &mut self,
        frames: &mut Frames,
        (frame, range): (Frame, Range<usize>),
        from: LaneId,
        readers: u32,
        note: Note,
    ) -> Result<u32, Frame> {
        let index = frame.index() as usize;
        let addr = frames.umem.address(index) + range.start as u64;
        let Note { timestamp, flags } = note;
        let loan = Loan { addr, len: range.len() as u32, flags, source: from.0, timestamp, sequence: 0 };
        let mut lent = 0;
        let mut left = readers;
        while left != 0 {
            let place = left.trailing_zeros() as usize;
            left &= left - 1;
            if self.readers[place].as_mut().is_some_and(|reader| reader.lend(loan)) {
                lent |= 1 << place;
            }
        }
        if lent == 0 {
            return Err(frame);
        }
        frames.umem.give(frame, Owner::Lent);
        self.holders[index] = lent;
        Ok(lent)
    }

    /// Readers that have a frame, a bit each.
    #[cfg(all(test, not(loom)))]
    pub(super) fn holders(&self) -> &[u32] {
        &self.holders
    }
}
