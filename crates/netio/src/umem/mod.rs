//! The UMEM: one range of memory that program and kernel share, cut into frames of one size.
//!
//! The UMEM keeps, outside the shared memory, who owns each frame. [`Umem::give`] turns a [`Frame`] into the
//! address that goes into a ring; [`Umem::take`] turns an address out of a ring back into a `Frame`, but only
//! if that frame is with the kernel for that purpose. An address out of range, a frame that the program
//! holds, or one returned twice is a [`BadAddress`], in release builds too.
//!
//! Sockets and readers are entitled to frames: a socket to as many as its rings have entries, a reader to its quota. As
//! long as no more are promised than exist ([`Umem::unreserved`]), none of them can starve another.
//!
//! This module registers nothing with the kernel and knows no rings.

#![allow(unsafe_code)] // Slices of memory that the kernel writes too, at times the ownership record excludes.

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};

mod frame;

pub(crate) use frame::{Frame, Owner, XskId};

use crate::sys::mapping::{Backing, Mapping};
use frame::FramePool;

/// Source of UMEM identities. Wrapping needs four thousand million UMEMs in one process.
static NEXT_ID: AtomicU32 = AtomicU32::new(0);

/// An address from the kernel that names no frame which is the kernel's to return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadAddress;

/// Memory of frames of one size, the record of their owners, and those of them that hold nothing.
#[derive(Debug)]
pub(crate) struct Umem {
    mapping: Mapping,
    backing: Backing,
    id: u32,
    frame_size: u32,
    shift: u32,
    owners: Box<[Owner]>,
    /// Frames of the program's that hold nothing. Every socket on the UMEM takes from here and gives back.
    free: FramePool,
    /// Frames that sockets and readers have a right to.
    reserved: usize,
}

impl Umem {
    /// Maps a UMEM of `count` free frames of `frame_size` bytes, which must be a power of two (the caller has checked
    /// it against the kernel's rules).
    pub(crate) fn new(frame_size: u32, count: u32, huge: bool) -> io::Result<Self> {
        let (mapping, backing) = Mapping::anonymous(Self::length(frame_size, count)?, huge)?;
        Ok(Self::over(mapping, backing, frame_size, count))
    }

    /// The same in memory that other processes can read, with the descriptor for them.
    pub(crate) fn shareable(frame_size: u32, count: u32, huge: bool) -> io::Result<(Self, OwnedFd)> {
        let (mapping, backing, fd) = Mapping::shareable(Self::length(frame_size, count)?, huge)?;
        Ok((Self::over(mapping, backing, frame_size, count), fd))
    }

    /// The same in memory that another process can register with a socket of its own making.
    pub(crate) fn registrable(frame_size: u32, count: u32, huge: bool) -> io::Result<(Self, OwnedFd)> {
        let (mapping, fd) = Mapping::registrable(Self::length(frame_size, count)?, huge)?;
        Ok((Self::over(mapping, Backing::Shared, frame_size, count), fd))
    }

    fn length(frame_size: u32, count: u32) -> io::Result<usize> {
        (frame_size as usize)
            .checked_mul(count as usize)
            .ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))
    }

    /// A UMEM in a mapping that is large enough for `count` frames.
    pub(crate) fn over(mapping: Mapping, backing: Backing, frame_size: u32, count: u32) -> Self {
        assert!(frame_size.is_power_of_two(), "frame size {frame_size} is not a power of two");
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let owners = vec![Owner::Program; count as usize].into_boxed_slice();
        let mut free = FramePool::with_capacity(count as usize);
        // The lowest addresses are used first.
        (0..count).rev().for_each(|index| free.push(Frame::new(index, id)));
        Self {
            mapping,
            backing,
            id,
            frame_size,
            shift: frame_size.trailing_zeros(),
            owners,
            free,
            reserved: 0,
        }
    }

    /// A frame that holds nothing, the one that was put back last; `None` if there is none.
    #[inline]
    pub(crate) fn alloc(&mut self) -> Option<Frame> {
        self.free.pop()
    }

    /// Puts a frame back that holds nothing any more.
    #[inline]
    pub(crate) fn free(&mut self, frame: Frame) {
        self.free.push(frame);
    }

    /// Frames that hold nothing.
    #[inline]
    pub(crate) fn free_count(&self) -> usize {
        self.free.len()
    }

    /// Frames that no socket and no reader has a right to.
    pub(crate) fn unreserved(&self) -> usize {
        self.owners.len().saturating_sub(self.reserved)
    }

    /// Gives somebody a right to so many frames. The caller has seen that they are unreserved.
    pub(crate) fn reserve(&mut self, frames: usize) {
        self.reserved += frames;
    }

    /// Takes a right back.
    pub(crate) fn unreserve(&mut self, frames: usize) {
        self.reserved -= frames;
    }

    /// Identity of the UMEM in this process.
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// Bytes of a frame.
    #[inline]
    pub(crate) fn frame_size(&self) -> u32 {
        self.frame_size
    }

    /// How many frames there are.
    pub(crate) fn count(&self) -> usize {
        self.owners.len()
    }

    /// The pages behind it.
    pub(crate) fn backing(&self) -> Backing {
        self.backing
    }

    /// Address and length to register with the kernel: whole frames only.
    pub(crate) fn registration(&self) -> (u64, u64) {
        let length = self.owners.len() as u64 * u64::from(self.frame_size);
        (self.mapping.start().as_ptr() as u64, length)
    }

    /// Bytes of the mapping, whole pages: huge ones can be mapped and unmapped only whole.
    pub(crate) fn mapped_length(&self) -> u64 {
        self.mapping.length() as u64
    }

    /// Gives a frame to the kernel, or to readers. Returns the UMEM address of its first byte.
    #[inline]
    pub(crate) fn give(&mut self, frame: Frame, to: Owner) -> u64 {
        let index = self.index_of(&frame);
        debug_assert_ne!(to, Owner::Program);
        debug_assert_eq!(self.owners[index], Owner::Program);
        self.owners[index] = to;
        self.address(index)
    }

    /// Takes back the frame that holds `addr`, which came back out of `from`.
    #[inline]
    pub(crate) fn take(&mut self, addr: u64, from: Owner) -> Result<Frame, BadAddress> {
        debug_assert_ne!(from, Owner::Program);
        let index = u32::try_from(addr >> self.shift).map_err(|_| BadAddress)?;
        match self.owners.get_mut(index as usize) {
            Some(owner) if *owner == from => {
                *owner = Owner::Program;
                Ok(Frame::new(index, self.id))
            }
            _ => Err(BadAddress),
        }
    }

    /// Place of the frame that holds `addr`; `None` if that lies outside.
    #[inline]
    pub(crate) fn index(&self, addr: u64) -> Option<usize> {
        usize::try_from(addr >> self.shift).ok().filter(|&index| index < self.owners.len())
    }

    /// UMEM address of the first byte of the frame at a place.
    #[inline]
    pub(crate) fn address(&self, index: usize) -> u64 {
        (index as u64) << self.shift
    }

    /// Where `len` bytes at UMEM address `addr` lie within their frame; `None` if they overrun it.
    #[inline]
    pub(crate) fn range(&self, addr: u64, len: u32) -> Option<Range<usize>> {
        let start = (addr & u64::from(self.frame_size - 1)) as usize;
        let end = start + len as usize;
        (end <= self.frame_size as usize).then_some(start..end)
    }

    /// The bytes of a frame that the program owns.
    #[inline]
    pub(crate) fn bytes_mut<'a>(&'a self, frame: &'a mut Frame) -> &'a mut [u8] {
        let index = self.index_of(frame);
        let size = self.frame_size as usize;
        // SAFETY: `index_of` has checked that the frame is one of this UMEM's, so the range lies within the
        // mapping, which lives as long as `self`. A `Frame` exists only while the record says that the
        // program owns it: the kernel was not given this range, or has returned it. Only one `Frame` of
        // an index exists at a time and it is borrowed mutably, so this slice is the only one.
        unsafe { std::slice::from_raw_parts_mut(self.mapping.start().add(index * size).as_ptr(), size) }
    }

    /// Index of a frame after checking that it is of this UMEM: a foreign one would alias.
    #[inline]
    fn index_of(&self, frame: &Frame) -> usize {
        assert_eq!(frame.umem(), self.id, "a frame of another UMEM");
        let index = frame.index() as usize;
        assert!(index < self.owners.len());
        index
    }

    /// Frames by owner.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn owned_by(&self, owner: Owner) -> usize {
        self.owners.iter().filter(|one| **one == owner).count()
    }

    /// What the kernel does on receipt: writes into a frame that it owns. False if it does not own it.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn kernel_write(&mut self, addr: u64, bytes: &[u8]) -> bool {
        if !matches!(self.owners[(addr >> self.shift) as usize], Owner::Receive(_)) {
            return false;
        }
        let range = self.range(addr, bytes.len() as u32).expect("within the frame");
        let base = ((addr >> self.shift) << self.shift) as usize;
        // SAFETY: within the mapping; no `Frame` exists for a frame that the kernel owns.
        let slice = unsafe {
            std::slice::from_raw_parts_mut(self.mapping.start().add(base + range.start).as_ptr(), bytes.len())
        };
        slice.copy_from_slice(bytes);
        true
    }

    /// What the kernel does on transmission: reads a frame that it owns.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn kernel_read(&self, addr: u64, len: u32) -> Vec<u8> {
        let owner = self.owners[(addr >> self.shift) as usize];
        assert!(matches!(owner, Owner::Transmit(_)), "not the kernel's frame: {owner:?}");
        let range = self.range(addr, len).expect("within the frame");
        let base = ((addr >> self.shift) << self.shift) as usize;
        // SAFETY: within the mapping; no `Frame` exists for a frame that the kernel owns.
        unsafe {
            std::slice::from_raw_parts(self.mapping.start().add(base + range.start).as_ptr(), len as usize)
        }
        .to_vec()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const RECEIVE: Owner = Owner::Receive(XskId(0));

    fn umem() -> (Umem, Vec<Frame>) {
        let mut umem = Umem::new(2048, 4, false).unwrap();
        let frames = std::iter::from_fn(|| umem.alloc()).collect();
        (umem, frames)
    }

    #[test]
    fn a_frame_comes_back_once_and_only_from_where_it_went() {
        let (mut umem, mut frames) = umem();
        let addr = umem.give(frames.pop().unwrap(), RECEIVE);
        assert_eq!(addr, 3 * 2048);
        for other in [Owner::Transmit(XskId(0)), Owner::Receive(XskId(1))] {
            assert_eq!(umem.take(addr, other).err(), Some(BadAddress), "{other:?}");
        }
        let frame = umem.take(addr + 300, RECEIVE).unwrap();
        assert_eq!(frame.index(), 3);
        assert_eq!(umem.take(addr, RECEIVE).err(), Some(BadAddress));
        frames.push(frame);
    }

    #[test]
    fn addresses_outside_are_refused() {
        let (mut umem, frames) = umem();
        for addr in [4 * 2048, u64::MAX, 1 << 43, (1 << 32) * 2048] {
            assert_eq!(umem.take(addr, RECEIVE).err(), Some(BadAddress), "{addr:#x}");
        }
        assert_eq!(umem.take(0, RECEIVE).err(), Some(BadAddress), "the program holds it");
        assert_eq!(frames.len(), 4);
    }

    #[test]
    fn lengths_that_overrun_a_frame_are_refused() {
        let (umem, _frames) = umem();
        assert_eq!(umem.range(2048 + 256, 1792), Some(256..2048));
        assert_eq!(umem.range(2048 + 256, 1793), None);
        assert_eq!(umem.range(0, u32::MAX), None);
        assert_eq!(umem.range(u64::MAX, 1), Some(2047..2048));
    }

    #[test]
    #[should_panic(expected = "a frame of another UMEM")]
    fn a_frame_of_another_umem_is_refused() {
        let (mut one, _frames) = umem();
        let (_other, mut foreign) = umem();
        one.give(foreign.pop().unwrap(), RECEIVE);
    }

    #[test]
    fn slices_of_different_frames_do_not_overlap() {
        let (umem, mut frames) = umem();
        let (first, rest) = frames.split_at_mut(1);
        let (one, two) = (umem.bytes_mut(&mut first[0]), umem.bytes_mut(&mut rest[0]));
        one.fill(1);
        two.fill(2);
        assert!(one.iter().all(|byte| *byte == 1) && one.len() == 2048);
    }
}
