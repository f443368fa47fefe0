//! Ring memory as the kernel lays it out: [`RingMemory`] over a mapping of an AF_XDP socket.

#![allow(unsafe_code)] // Pointers into memory shared with the kernel.

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

use super::{RingMemory, RingOffset};
use crate::sys::mapping::Mapping;

/// A ring of the kernel's, with entries of `T`.
pub(crate) struct MappedRing<T> {
    mapping: Mapping,
    producer: usize,
    consumer: usize,
    flags: usize,
    entries: usize,
    capacity: u32,
    entry: PhantomData<T>,
}

impl<T> fmt::Debug for MappedRing<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("MappedRing").field("capacity", &self.capacity).finish_non_exhaustive()
    }
}

impl<T: Copy> MappedRing<T> {
    /// Maps the ring that lies at `page_offset` of `socket`, made with `capacity` entries of `T`.
    pub(crate) fn map(
        socket: BorrowedFd<'_>,
        page_offset: u64,
        offsets: &RingOffset,
        capacity: u32,
    ) -> io::Result<Self> {
        Self::over(offsets, capacity, |length| Mapping::ring(socket, length, page_offset))
    }

    /// A ring at whose other end nobody is: what is put into it stays. For a socket without a ring of that kind.
    pub(crate) fn detached(offsets: &RingOffset, capacity: u32) -> io::Result<Self> {
        Self::over(offsets, capacity, Mapping::private)
    }

    /// A ring in what `map` maps for so many bytes.
    fn over(
        offsets: &RingOffset,
        capacity: u32,
        map: impl FnOnce(usize) -> io::Result<Mapping>,
    ) -> io::Result<Self> {
        let broken =
            || io::Error::new(io::ErrorKind::InvalidData, "the kernel returned invalid ring offsets");
        let offset = |value: u64| usize::try_from(value).map_err(|_| broken());
        let entries = offset(offsets.desc)?;
        let length = size_of::<T>()
            .checked_mul(capacity as usize)
            .and_then(|bytes| bytes.checked_add(entries))
            .ok_or_else(broken)?;
        let word = |value: u64| {
            let value = offset(value)?;
            let inside = value.checked_add(size_of::<AtomicU32>()).is_some_and(|end| end <= length);
            if inside && value % align_of::<AtomicU32>() == 0 { Ok(value) } else { Err(broken()) }
        };
        if !capacity.is_power_of_two() || !entries.is_multiple_of(align_of::<T>()) {
            return Err(broken());
        }
        let (producer, consumer, flags) =
            (word(offsets.producer)?, word(offsets.consumer)?, word(offsets.flags)?);
        let mapping = map(length)?;
        Ok(Self { mapping, producer, consumer, flags, entries, capacity, entry: PhantomData })
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: `map` has checked that the word lies within the mapping and is aligned (mappings start on
        // a page); the kernel touches it atomically too; it lives as long as the mapping, that is `self`.
        unsafe { self.mapping.start().add(offset).cast::<AtomicU32>().as_ref() }
    }

    fn slot(&self, slot: u32) -> NonNull<T> {
        debug_assert!(slot < self.capacity);
        // SAFETY: the caller's slot is below capacity, and `map` sized the mapping for `capacity` entries
        // behind `entries`, which is aligned for `T`.
        unsafe { self.mapping.start().add(self.entries).cast::<T>().add(slot as usize) }
    }
}

impl<T: Copy> RingMemory for MappedRing<T> {
    type Index = AtomicU32;
    type Entry = T;

    #[inline]
    fn capacity(&self) -> u32 {
        self.capacity
    }

    #[inline]
    fn producer(&self) -> &AtomicU32 {
        self.word(self.producer)
    }

    #[inline]
    fn consumer(&self) -> &AtomicU32 {
        self.word(self.consumer)
    }

    #[inline]
    fn flags(&self) -> &AtomicU32 {
        self.word(self.flags)
    }

    #[inline]
    unsafe fn read(&self, slot: u32) -> T {
        // SAFETY: valid and aligned by `slot`; filled by the kernel and not written while the caller,
        // as the trait demands, owns it. Entries are plain integers: every bit pattern is one. Volatile, as a
        // hostile reader of a UMEM may write it all the same: it is read once, and then checked.
        unsafe { self.slot(slot).read_volatile() }
    }

    #[inline]
    unsafe fn write(&self, slot: u32, entry: T) {
        // SAFETY: valid and aligned by `slot`; the kernel does not read it while the caller, as the trait
        // demands, owns it.
        unsafe { self.slot(slot).write(entry) }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::XDP_RING_NEED_WAKEUP;
    use super::*;

    #[test]
    fn offsets_and_flag_match_libc() {
        assert_eq!(XDP_RING_NEED_WAKEUP, libc::XDP_RING_NEED_WAKEUP);
        assert_eq!(size_of::<RingOffset>(), size_of::<libc::xdp_ring_offset>());
        let (ours, theirs) =
            (std::mem::offset_of!(RingOffset, flags), std::mem::offset_of!(libc::xdp_ring_offset, flags));
        assert_eq!(ours, theirs);
    }
}
