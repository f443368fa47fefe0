//! Which readers there are, and which of a UMEM's frames they have, without system calls.
//!
//! A frame may be lent to several readers at a time. A bit for each of them beside the frame's owner says who
//! has it; the frame is free again when the last bit goes. A reader has at most its quota, which is set aside for it, so
//! that what readers hold is nobody else's.
//!
//! What this module does not do: it knows no AF_XDP sockets and no connections ([`super::server`]).

use std::ops::Range;

use super::abi::PacketDescriptor;
use super::rings::ReaderRings;
use crate::ring::RingKind;
use crate::umem::{Frame, Owner, Umem, XskId};

/// The most readers of one UMEM: bits of a frame's record.
pub(crate) const MAX_READERS: usize = 32;

/// What the receiver says of a packet that it lends.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PacketInfo {
    pub(crate) timestamp: u64,
    pub(crate) flags: u16,
}

/// The readers of a UMEM.
pub(crate) struct ReaderTable<R: RingKind> {
    readers: [Option<ReaderRings<R>>; MAX_READERS],
    /// By frame: which readers have it, a bit each.
    holders: Box<[u32]>,
    reserved: usize,
    not_lent: u64,
}

impl<R: RingKind> ReaderTable<R> {
    /// Nobody yet, of a UMEM of so many frames.
    pub(crate) fn new(frames: usize) -> Self {
        let holders = vec![0; frames].into_boxed_slice();
        Self { readers: [const { None }; MAX_READERS], holders, reserved: 0, not_lent: 0 }
    }

    /// Counts a packet that was to be lent and lies in no frame: it came in several and was put together.
    #[inline]
    pub(crate) fn count_not_lent(&mut self) {
        self.not_lent += u64::from(self.reserved > 0);
    }

    /// Packets that were to be lent, to readers who are there, and lie in no frame.
    pub(crate) fn not_lent(&self) -> u64 {
        self.not_lent
    }

    /// Frames that are set aside for readers.
    pub(crate) fn reserved(&self) -> usize {
        self.reserved
    }

    /// A place for a reader; `None` if there are [`MAX_READERS`].
    pub(crate) fn vacancy(&self) -> Option<usize> {
        self.readers.iter().position(Option::is_none)
    }

    /// Admits a reader at a vacant place. The caller has seen that its quota is promised to nobody.
    pub(crate) fn admit(&mut self, umem: &mut Umem, place: usize, reader: ReaderRings<R>) {
        debug_assert!(self.readers[place].is_none());
        umem.reserve(reader.quota() as usize);
        self.reserved += reader.quota() as usize;
        self.readers[place] = Some(reader);
    }

    /// Ends a reader: what it had is free at once, as it cannot write and its reading harms nobody.
    pub(crate) fn dismiss(&mut self, umem: &mut Umem, place: usize) -> Option<ReaderRings<R>> {
        let reader = self.readers[place].take()?;
        self.reserved -= reader.quota() as usize;
        umem.unreserve(reader.quota() as usize);
        for index in 0..self.holders.len() {
            if self.holders[index] & (1 << place) != 0 {
                self.drop_holder(umem, index, place);
            }
        }
        Some(reader)
    }

    /// Admitted readers, a bit each.
    #[inline]
    pub(crate) fn present(&self) -> u32 {
        self.readers.iter().enumerate().fold(0, |set, (place, one)| set | u32::from(one.is_some()) << place)
    }

    /// The reader at a place.
    pub(crate) fn reader(&self, place: usize) -> Option<&ReaderRings<R>> {
        self.readers.get(place)?.as_ref()
    }

    /// Takes back what readers have returned. The set of those whose rings are corrupt, a bit each: they must
    /// be dismissed.
    pub(crate) fn collect(&mut self, umem: &mut Umem) -> u32 {
        let mut corrupt = 0;
        for place in 0..MAX_READERS {
            let Some(reader) = &mut self.readers[place] else { continue };
            let waiting = reader.waiting();
            for _ in 0..waiting {
                self.take_return(umem, place);
            }
            let Some(reader) = &mut self.readers[place] else { continue };
            reader.release();
            corrupt |= u32::from(reader.is_corrupt()) << place;
        }
        corrupt
    }

    fn take_return(&mut self, umem: &mut Umem, place: usize) {
        let Some(addr) = self.readers[place].as_mut().and_then(ReaderRings::pop_return) else { return };
        let index = umem.index(addr).filter(|&index| self.holders[index] & (1 << place) != 0);
        if let Some(index) = index {
            self.drop_holder(umem, index, place);
        }
        if let Some(reader) = &mut self.readers[place] {
            reader.settle(index.is_some());
        }
    }

    fn drop_holder(&mut self, umem: &mut Umem, index: usize, place: usize) {
        self.holders[index] &= !(1 << place);
        if self.holders[index] == 0 {
            let addr = umem.address(index);
            // The record says so as long as a bit is set: `ReaderTable::lend` alone sets both.
            if let Ok(frame) = umem.take(addr, Owner::Readers) {
                umem.free(frame);
            }
        }
    }

    /// Shows all readers what they were lent. The set of those who sleep, a bit each: they want to be woken.
    pub(crate) fn publish(&mut self) -> u32 {
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
    pub(crate) fn lend(
        &mut self,
        umem: &mut Umem,
        (frame, range): (Frame, Range<usize>),
        from: XskId,
        readers: u32,
        note: PacketInfo,
    ) -> Result<u32, Frame> {
        let index = frame.index() as usize;
        let addr = umem.address(index) + range.start as u64;
        let PacketInfo { timestamp, flags } = note;
        let packet =
            PacketDescriptor { addr, len: range.len() as u32, flags, source: from.0, timestamp, sequence: 0 };
        let mut lent = 0;
        let mut left = readers;
        while left != 0 {
            let place = left.trailing_zeros() as usize;
            left &= left - 1;
            if self.readers[place].as_mut().is_some_and(|reader| reader.lend(packet)) {
                lent |= 1 << place;
            }
        }
        if lent == 0 {
            return Err(frame);
        }
        umem.give(frame, Owner::Readers);
        self.holders[index] = lent;
        Ok(lent)
    }

    /// Readers that have a frame, a bit each.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn holders(&self) -> &[u32] {
        &self.holders
    }
}
