//! Memory mapped into the process: anonymous memory for a UMEM, and the kernel's pages of a ring.
//!
//! A [`Mapping`] owns its pages and unmaps them when dropped. It only gives out its address and length; [`crate::umem`]
//! and [`crate::ring`] are responsible for what may be accessed when.

#![allow(unsafe_code)] // mmap, madvise and munmap.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use rustix::param::page_size;

/// Size of the huge pages asked for: the default huge page of x86-64 and of arm64 with 4 KiB pages.
const HUGE_PAGE: usize = 2 << 20;

/// What kind of pages hold a UMEM. Fewer translations miss the TLB when pages are large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Huge pages reserved in advance (`vm.nr_hugepages`).
    HugeTlb,
    /// Ordinary memory, aligned so that transparent huge pages can serve it, and advised so.
    TransparentHuge,
    /// Ordinary pages, as configured or because the kernel refused the advice.
    Normal,
    /// A memfd that the privileged side registered; transparent huge pages if `shmem_enabled` lets it have them.
    Shared,
}

impl std::fmt::Display for Backing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::HugeTlb => "hugetlb",
            Self::TransparentHuge => "transparent",
            Self::Normal => "normal",
            Self::Shared => "shared",
        })
    }
}

/// A range of mapped memory, unmapped on drop.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping is a plain range of the process's memory, tied to no thread.
unsafe impl Send for Mapping {}
// SAFETY: a shared `Mapping` gives out only its address and length.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps zeroed memory of at least `length` bytes, from huge pages when `huge` and where available.
    pub(crate) fn anonymous(length: usize, huge: bool) -> io::Result<(Self, Backing)> {
        let private = MapFlags::PRIVATE;
        if !huge {
            return Ok((Self::map(round_up(length, 4096)?, private | MapFlags::POPULATE)?, Backing::Normal));
        }
        let rounded = round_up(length, HUGE_PAGE)?;
        if let Ok(mapping) = Self::map(rounded, private | MapFlags::HUGETLB | MapFlags::POPULATE) {
            return Ok((mapping, Backing::HugeTlb));
        }
        // Mapped larger than needed and trimmed, so that it starts where a huge page can.
        let mut mapping = Self::map(rounded.checked_add(HUGE_PAGE).ok_or_else(too_large)?, private)?;
        mapping.trim(rounded);
        // SAFETY: the range is a mapping of this process that nothing else refers to yet.
        let advised =
            unsafe { madvise(mapping.start.as_ptr().cast(), mapping.length, Advice::LinuxHugepage) };
        mapping.touch();
        Ok((mapping, if advised.is_ok() { Backing::TransparentHuge } else { Backing::Normal }))
    }

    /// Makes a memfd of `length` bytes that cannot change its size, and maps it. Every page is there when this
    /// returns, and charged to this process. Further seals are for who registers it ([`crate::xsk::bind_for`]).
    pub(crate) fn registrable(length: usize, huge: bool) -> io::Result<(Self, OwnedFd)> {
        let memory = memory_file(c"expressway-umem", length, MemfdFlags::empty())?;
        fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW)?;
        let mut mapping = Self::file(memory.as_fd(), length)?;
        if huge {
            // SAFETY: the range is a mapping of this process that nothing else refers to yet. Refused, the
            // pages are ordinary ones.
            let _ = unsafe { madvise(mapping.start.as_ptr().cast(), mapping.length, Advice::LinuxHugepage) };
        }
        mapping.touch();
        Ok((mapping, memory))
    }

    /// Maps the first `length` bytes of a file, shared with whoever else has it.
    pub(crate) fn file(file: BorrowedFd<'_>, length: usize) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses an address that is free.
        let start = unsafe { mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, file, 0) }?;
        Self::new(start.cast(), length)
    }

    /// Maps zeroed memory of at least `length` bytes of which other processes can have a read-only view: a
    /// memfd, from reserved huge pages when `huge` and where there are any.
    ///
    /// Once this mapping is there, the file is sealed: nobody, this process included, can change its size or
    /// make another writable mapping of it, by whatever descriptor (`F_SEAL_FUTURE_WRITE`, Linux 5.1). The
    /// kernel goes on writing into the pages that it pinned through this mapping.
    pub(crate) fn shareable(length: usize, huge: bool) -> io::Result<(Self, Backing, OwnedFd)> {
        if huge
            && let Ok((mapping, fd)) = Self::memory_file(round_up(length, HUGE_PAGE)?, MemfdFlags::HUGETLB)
        {
            return Ok((mapping, Backing::HugeTlb, fd));
        }
        let (mapping, fd) = Self::memory_file(round_up(length, page_size())?, MemfdFlags::empty())?;
        Ok((mapping, Backing::Normal, fd))
    }

    fn memory_file(length: usize, flags: MemfdFlags) -> io::Result<(Self, OwnedFd)> {
        let fd = memory_file(c"expressway-umem", length, flags)?;
        let mapping = Self::ring(fd.as_fd(), length, 0)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
        fcntl_add_seals(&fd, seals)?;
        Ok((mapping, fd))
    }

    /// Maps `length` bytes of an AF_XDP socket, or of a file of memory, at a ring's page offset.
    pub(crate) fn ring(socket: BorrowedFd<'_>, length: usize, offset: u64) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: the kernel chooses an address that is free.
        let start = unsafe { mmap(std::ptr::null_mut(), length, protection, flags, socket, offset) }?;
        Self::new(start.cast(), length)
    }

    /// Maps `length` zeroed bytes of this process alone, in the place of a ring that the kernel has not.
    pub(crate) fn private(length: usize) -> io::Result<Self> {
        Self::map(round_up(length, page_size())?, MapFlags::PRIVATE)
    }

    fn map(length: usize, flags: MapFlags) -> io::Result<Self> {
        // SAFETY: the kernel chooses an address that is free.
        let start = unsafe {
            mmap_anonymous(std::ptr::null_mut(), length, ProtFlags::READ | ProtFlags::WRITE, flags)
        }?;
        Self::new(start.cast(), length)
    }

    fn new(start: *mut u8, length: usize) -> io::Result<Self> {
        let start = NonNull::new(start).ok_or_else(|| io::Error::other("mmap returned address 0"))?;
        Ok(Self { start, length })
    }

    /// Unmaps what lies before the first huge-page boundary and what is beyond `length` after it.
    fn trim(&mut self, length: usize) {
        let skip = self.start.as_ptr().align_offset(HUGE_PAGE);
        if skip > self.length - length {
            return;
        }
        let tail = self.length - length - skip;
        // SAFETY: all three ranges lie within the one mapping, which nothing refers to yet; both ends are
        // page-aligned because the mapping, huge pages and `length` are. An unmapping that fails leaves
        // untouched address space behind, which is harmless.
        unsafe {
            let start = self.start.as_ptr();
            if skip > 0 {
                let _ = munmap(start.cast(), skip);
            }
            if tail > 0 {
                let _ = munmap(start.add(skip + length).cast(), tail);
            }
            self.start = NonNull::new_unchecked(start.add(skip));
        }
        self.length = length;
    }

    /// Writes one byte a page, so that no page fault meets the packet path.
    fn touch(&mut self) {
        for offset in (0..self.length).step_by(4096) {
            // SAFETY: within the mapping, which nothing else refers to yet. Volatile, as the value is
            // the zero that is there already.
            unsafe { self.start.as_ptr().add(offset).write_volatile(0) };
        }
    }

    /// First byte.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Length in bytes, at least what was asked for: whole pages, of the kind that it is made of.
    pub(crate) fn length(&self) -> usize {
        self.length
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by this value and is unmapped once; whoever keeps pointers into it
        // keeps the mapping too. Failure would mean a range that is not mapped: nothing to release then.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
    }
}

/// A file of `length` zeroed bytes that are memory. Its size is not sealed yet.
pub(crate) fn memory_file(name: &CStr, length: usize, flags: MemfdFlags) -> io::Result<OwnedFd> {
    let fd = memfd_create(name, flags | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&fd, length as u64)?;
    Ok(fd)
}

fn round_up(length: usize, unit: usize) -> io::Result<usize> {
    length.checked_next_multiple_of(unit).ok_or_else(too_large)
}

fn too_large() -> io::Error {
    io::Error::from(io::ErrorKind::OutOfMemory)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::view::View;
    use super::*;

    #[test]
    fn anonymous_memory_is_large_enough_and_aligned() {
        for huge in [false, true] {
            let (mapping, backing) = Mapping::anonymous(3 * 4096 + 1, huge).unwrap();
            assert!(mapping.length() > 3 * 4096);
            assert_eq!(mapping.start().as_ptr().align_offset(4096), 0);
            if backing == Backing::TransparentHuge {
                assert_eq!(mapping.start().as_ptr().align_offset(HUGE_PAGE), 0);
                assert_eq!(mapping.length(), HUGE_PAGE);
            }
        }
    }

    /// What a reader could try with the descriptor that it is given.
    #[test]
    fn nobody_can_map_a_shared_umem_writable_and_its_owner_goes_on_writing() {
        for huge in [false, true] {
            let (mapping, backing, fd) = Mapping::shareable(8192, huge).unwrap();
            assert_ne!(backing, Backing::TransparentHuge);
            let length = mapping.length();
            let view = View::map(fd.as_fd(), length).unwrap();
            let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd));
            let reopened = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
            for file in [fd.as_fd(), reopened.as_fd()] {
                assert_eq!(Mapping::ring(file, length, 0).unwrap_err().raw_os_error(), Some(libc::EPERM));
                assert!(rustix::io::pwrite(file, b"x", 0).is_err());
                assert_eq!(ftruncate(file, 0).unwrap_err(), rustix::io::Errno::PERM);
                assert!(
                    fcntl_add_seals(file, SealFlags::WRITE).is_err(),
                    "the owner's mapping is in its way"
                );
            }
            let writable = rustix::mm::MprotectFlags::WRITE;
            // SAFETY: a read-only mapping of this test's; the change of protection is refused.
            let changed = unsafe { rustix::mm::mprotect(view.start().as_ptr().cast(), length, writable) };
            assert_eq!(changed.unwrap_err(), rustix::io::Errno::ACCESS);
            // SAFETY: within the mapping; the slice below is made after the write.
            unsafe { mapping.start().as_ptr().add(5).write(7) };
            assert_eq!(view.slice(4, 3), Some(&[0, 7, 0][..]));
            assert_eq!((view.slice(length as u64 - 2, 3), view.slice(u64::MAX, 1)), (None, None));
        }
    }

    #[test]
    fn a_view_of_what_could_shrink_is_refused() {
        let fd = memory_file(c"test", 4096, MemfdFlags::empty()).unwrap();
        assert!(View::map(fd.as_fd(), 4096).is_err());
        fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
        assert!(View::map(fd.as_fd(), 4097).is_err());
        assert!(View::map(fd.as_fd(), 4096).is_ok());
    }

    #[test]
    fn absurd_lengths_are_refused() {
        assert!(Mapping::anonymous(usize::MAX, false).is_err());
        assert!(Mapping::anonymous(usize::MAX - HUGE_PAGE, true).is_err());
    }
}
