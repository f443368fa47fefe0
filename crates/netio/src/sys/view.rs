//! A read-only mapping of memory that another process writes: a reader's side of a UMEM.

#![allow(unsafe_code)] // mmap and munmap, and slices of what was mapped.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Another process's memory, mapped to be read.
#[derive(Debug)]
pub(crate) struct View {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping is a plain range of the process's memory, tied to no thread.
unsafe impl Send for View {}
// SAFETY: a shared `View` gives out only slices that are read.
unsafe impl Sync for View {}

impl View {
    /// Maps `length` bytes of a file of memory whose size must be sealed: one that could shrink would end its
    /// reader by SIGBUS.
    pub(crate) fn map(file: BorrowedFd<'_>, length: usize) -> io::Result<Self> {
        let sealed = fcntl_get_seals(file)?.contains(SealFlags::SHRINK);
        if !sealed || length == 0 || fstat(file)?.st_size < i64::try_from(length).unwrap_or(i64::MAX) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the memory is not of the announced size or not sealed",
            ));
        }
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: the kernel chooses an address that is free.
        let start = unsafe { mmap(std::ptr::null_mut(), length, ProtFlags::READ, flags, file, 0) }?;
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mmap returned address 0"))?;
        Ok(Self { start, length })
    }

    /// Bytes of it; `None` if they do not lie within. Whoever writes the memory must leave them alone while
    /// the slice lives: of a UMEM, a frame that the receiver has lent and that was not given back.
    #[inline]
    pub(crate) fn slice(&self, start: u64, len: u32) -> Option<&[u8]> {
        let end = start.checked_add(len.into())?;
        if end > self.length as u64 {
            return None;
        }
        // SAFETY: within the mapping, which lives as long as `self` and cannot shrink. The writer is another
        // process, whose part of the protocol it is to leave lent frames alone; a reader that connects to a
        // receiver trusts it in that, as it trusts what the packets say.
        Some(unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(start as usize), len as usize) })
    }
}

impl View {
    /// First byte.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Length in bytes.
    pub(crate) fn length(&self) -> usize {
        self.length
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: mapped by this value, unmapped once; slices of it have ended with its borrow.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
    }
}
