//! Ring and control memory as words, over mappings.

#![allow(unsafe_code)] // Words of memory shared with other processes.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals};

use super::layout::{ASLEEP, CONTROL, INTENT, LATEST, POSITION, RECORDS, TAIL};
use super::ring::{Memory, WORD};
use crate::sys::mapping::{Mapping, memory_file};
use crate::sys::view::View;

/// A mapping that begins on a page and lives as long as the value.
pub(super) trait Region {
    /// First byte.
    fn start(&self) -> NonNull<u8>;
    /// Length in bytes.
    fn length(&self) -> usize;
}

impl Region for Mapping {
    fn start(&self) -> NonNull<u8> {
        self.start()
    }

    fn length(&self) -> usize {
        self.length()
    }
}

impl Region for View {
    fn start(&self) -> NonNull<u8> {
        self.start()
    }

    fn length(&self) -> usize {
        self.length()
    }
}

/// Words at `offset` of a region.
fn words<R: Region>(region: &R, offset: usize, count: usize) -> &[AtomicU64] {
    assert!(offset.is_multiple_of(WORD) && offset + count * WORD <= region.length(), "within the mapping");
    // SAFETY: within the mapping, as was just seen, and aligned, since a mapping begins on a page. It lives as
    // long as `region`. All processes touch these words atomically, or, as hostile ones may, in ways that make
    // no difference to atomic loads. Of a view, which is mapped read-only, only loads are made: `Memory` is
    // stored to by writers alone, whose region is a `Mapping`.
    unsafe { std::slice::from_raw_parts(region.start().as_ptr().add(offset).cast::<AtomicU64>(), count) }
}

/// A ring in a mapping.
pub(super) struct RingMemory<R> {
    region: R,
    capacity: usize,
}

impl RingMemory<Mapping> {
    /// Makes the memory of a ring with so many bytes of records, and the file that readers map. Nobody can make
    /// another writable mapping of it.
    pub(super) fn create(capacity: usize, huge: bool) -> io::Result<(Self, OwnedFd)> {
        let (region, _, file) = Mapping::shareable(RECORDS + capacity, huge)?;
        Ok((Self { region, capacity }, file))
    }
}

impl RingMemory<View> {
    /// Maps a ring to be read. Its size must be sealed.
    pub(super) fn map(file: BorrowedFd<'_>, capacity: usize) -> io::Result<Self> {
        Ok(Self { region: View::map(file, RECORDS + capacity)?, capacity })
    }
}

impl<R: Region> Memory for RingMemory<R> {
    type Word = AtomicU64;

    #[inline]
    fn intent(&self) -> &AtomicU64 {
        &words(&self.region, INTENT, 1)[0]
    }

    #[inline]
    fn tail(&self) -> &AtomicU64 {
        &words(&self.region, TAIL, 1)[0]
    }

    #[inline]
    fn latest(&self) -> &AtomicU64 {
        &words(&self.region, LATEST, 1)[0]
    }

    #[inline]
    fn words(&self) -> &[AtomicU64] {
        words(&self.region, RECORDS, self.capacity / WORD)
    }
}

/// The control memory of one reader.
pub(super) struct Control(Mapping);

impl Control {
    /// Makes it, and the file for the reader to map. Its size is sealed.
    pub(super) fn create() -> io::Result<(Self, OwnedFd)> {
        let file = memory_file(c"expressway-reader", CONTROL, MemfdFlags::empty())?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok((Self(Mapping::file(std::os::fd::AsFd::as_fd(&file), CONTROL)?), file))
    }

    /// Maps it, as its reader.
    pub(super) fn map(file: BorrowedFd<'_>) -> io::Result<Self> {
        // Sealed too, or it is none of a writer's.
        View::map(file, CONTROL)?;
        Ok(Self(Mapping::file(file, CONTROL)?))
    }

    /// How far the reader says that it is.
    #[inline]
    pub(super) fn position(&self) -> &AtomicU64 {
        &words(&self.0, POSITION, 1)[0]
    }

    /// Whether it asks for a wake-up.
    #[inline]
    pub(super) fn asleep(&self) -> &AtomicU64 {
        &words(&self.0, ASLEEP, 1)[0]
    }
}
