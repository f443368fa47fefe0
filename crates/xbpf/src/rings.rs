//! The buffers of a perf event array: one a CPU, written by BPF programs, read in place.
//!
//! libbpf makes and maps them; records are read here, so that those of several CPUs can be merged without a copy.
#![allow(unsafe_code, reason = "memory that is shared with the kernel")]

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use libbpf_rs::libbpf_sys as ffi;
use rustix::event::{Timespec, epoll};

use crate::capture_changes::ProgramChanges;
use crate::error::Error;

/// Offsets of `data_head` and `data_tail` in `struct perf_event_mmap_page` (include/uapi/linux/perf_event.h).
const DATA_HEAD: usize = 1024;
const DATA_TAIL: usize = 1032;

/// `PERF_RECORD_SAMPLE`.
const SAMPLE: u32 = 9;

/// `struct perf_event_header`, and the length of the raw sample behind it.
const HEADER: usize = 8;
const LENGTH: usize = 4;

/// The buffers of every CPU.
pub struct PerfRings {
    buffer: NonNull<ffi::perf_buffer>,
    rings: Vec<Ring>,
}

struct Ring {
    /// The page with head and tail.
    page: NonNull<u8>,
    /// The data behind it.
    data: NonNull<u8>,
    size: usize,
}

// SAFETY: the mappings belong to this value alone, and nothing of them is bound to a thread.
unsafe impl Send for PerfRings {}

impl fmt::Debug for PerfRings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerfRings").field("rings", &self.rings.len()).finish_non_exhaustive()
    }
}

/// Nothing is read by libbpf.
unsafe extern "C" fn unread(
    _: *mut std::ffi::c_void,
    _: i32,
    _: *mut ffi::perf_event_header,
) -> ffi::bpf_perf_event_ret {
    ffi::LIBBPF_PERF_EVENT_CONT
}

impl PerfRings {
    /// Buffers of at least `octets` a CPU for `map`. Whoever waits is woken when one is a quarter full.
    pub(crate) fn open(map: BorrowedFd<'_>, octets: usize) -> Result<Self, Error> {
        use std::os::fd::AsRawFd;
        // SAFETY: a question about a constant.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
        let pages = octets.div_ceil(page).max(1).checked_next_power_of_two();
        let failed = |source| Error::Buffers { source };
        let pages = pages.ok_or_else(|| failed(io::ErrorKind::InvalidInput.into()))?;
        let mut attributes = ffi::perf_event_attr {
            type_: ffi::PERF_TYPE_SOFTWARE,
            size: size_of::<ffi::perf_event_attr>() as u32,
            config: u64::from(ffi::PERF_COUNT_SW_BPF_OUTPUT),
            sample_type: u64::from(ffi::PERF_SAMPLE_RAW),
            ..Default::default()
        };
        attributes.__bindgen_anon_1.sample_period = 1;
        attributes.set_watermark(1);
        attributes.__bindgen_anon_2.wakeup_watermark =
            u32::try_from(pages.saturating_mul(page) / 4).unwrap_or(u32::MAX);
        // SAFETY: the map is open for the call, `attributes` is a whole struct that names its size, and neither it nor the
        // options (none) are kept by libbpf.
        let buffer = unsafe {
            ffi::perf_buffer__new_raw(
                map.as_raw_fd(),
                pages as ffi::size_t,
                &mut attributes,
                Some(unread),
                std::ptr::null_mut(),
                std::ptr::null(),
            )
        };
        let buffer = NonNull::new(buffer).ok_or_else(|| failed(io::Error::last_os_error()))?;
        let mut rings = Self { buffer, rings: Vec::new() };
        // SAFETY: `buffer` lives until it is freed by `drop`.
        let count = unsafe { ffi::perf_buffer__buffer_cnt(buffer.as_ptr()) };
        for index in 0..count {
            let (mut base, mut size) = (std::ptr::null_mut(), 0);
            // SAFETY: as above; both pointers are to live locals.
            let code = unsafe {
                ffi::perf_buffer__buffer(buffer.as_ptr(), index as i32, &raw mut base, &raw mut size)
            };
            if code != 0 {
                return Err(failed(io::Error::from_raw_os_error(-code)));
            }
            let base = NonNull::new(base.cast::<u8>()).ok_or_else(|| failed(io::ErrorKind::Other.into()))?;
            // SAFETY: the mapping is one page and `size` octets long (`perf_buffer__open_cpu_buf` in libbpf.c).
            let data = unsafe { base.add(page) };
            rings.rings.push(Ring { page: base, data, size: size as usize });
        }
        Ok(rings)
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.rings.len()
    }

    /// The descriptor that is waited on.
    fn epoll(&self) -> io::Result<BorrowedFd<'_>> {
        // SAFETY: `buffer` lives until it is freed by `drop`.
        let fd = unsafe { ffi::perf_buffer__epoll_fd(self.buffer.as_ptr()) };
        if fd < 0 {
            return Err(io::Error::from_raw_os_error(-fd));
        }
        // SAFETY: libbpf keeps the descriptor open as long as the buffer.
        Ok(unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// Has [`PerfRings::wait`] return when there are changes, too.
    ///
    /// # Errors
    /// The kernel's.
    pub fn wake_by(&self, changes: &ProgramChanges) -> io::Result<()> {
        // SAFETY: libbpf keeps the descriptor open as long as `changes`, which outlives the call.
        let fd = unsafe { BorrowedFd::borrow_raw(changes.descriptor()) };
        Ok(epoll::add(self.epoll()?, fd, epoll::EventData::new_u64(u64::MAX), epoll::EventFlags::IN)?)
    }

    /// Waits until one is a quarter full, or for `timeout`.
    ///
    /// # Errors
    /// The kernel's, other than a signal.
    pub fn wait(&self, timeout: Duration) -> io::Result<()> {
        let fd = self.epoll()?;
        let timeout =
            Timespec::try_from(timeout).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        let mut events =
            [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; 16];
        match epoll::wait(fd, &mut events[..], Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Octets of each.
    #[must_use]
    pub fn size(&self) -> usize {
        self.rings.first().map_or(0, |ring| ring.size)
    }

    /// The position behind the last record of a buffer.
    #[must_use]
    pub fn head(&self, ring: usize) -> u64 {
        // What lies before the head was written before it: pairs with the kernel's `perf_output_put_handle`.
        self.rings.get(ring).map_or(0, |ring| ring.position(DATA_HEAD).load(Ordering::Acquire))
    }

    /// The position of the first record that was not released.
    #[must_use]
    pub fn tail(&self, ring: usize) -> u64 {
        self.rings.get(ring).map_or(0, |ring| ring.position(DATA_TAIL).load(Ordering::Relaxed))
    }

    /// The record at `position`, which lies before `head`, and the position behind it. `None` if what is there is no
    /// record; the slice is empty if it is one of the kernel's own. What wraps around the end is put together in `room`.
    #[must_use]
    pub fn record<'a>(
        &'a self,
        ring: usize,
        position: u64,
        head: u64,
        room: &'a mut Vec<u8>,
    ) -> Option<(&'a [u8], u64)> {
        let ring = self.rings.get(ring)?;
        let filled =
            usize::try_from(head.checked_sub(position)?).ok().filter(|filled| *filled <= ring.size)?;
        if filled < HEADER {
            return None;
        }
        let mut header = [0; HEADER + LENGTH];
        ring.copy(position, &mut header);
        let [a, b, c, d, _, _, low, high, ..] = header;
        let (kind, size) = (u32::from_ne_bytes([a, b, c, d]), usize::from(u16::from_ne_bytes([low, high])));
        if size < HEADER || size > filled {
            return None;
        }
        let next = position + size as u64;
        if kind != SAMPLE || size < HEADER + LENGTH {
            return Some((&[], next));
        }
        let [.., e, f, g, h] = header;
        let length = u32::from_ne_bytes([e, f, g, h]) as usize;
        let length = length.min(size - HEADER - LENGTH);
        let start = position + (HEADER + LENGTH) as u64;
        let at = ring.offset(start);
        if at + length <= ring.size {
            // SAFETY: within the mapping; the kernel does not write between tail and head, the tail moves by
            // `release` alone, which nobody can call while this borrows.
            return Some((unsafe { std::slice::from_raw_parts(ring.data.as_ptr().add(at), length) }, next));
        }
        room.resize(length, 0);
        ring.copy(start, room);
        Some((room, next))
    }

    /// Gives the kernel back what lies before `position`.
    pub fn release(&mut self, ring: usize, position: u64) {
        if let Some(ring) = self.rings.get(ring) {
            // After the last read.
            ring.position(DATA_TAIL).store(position, Ordering::Release);
        }
    }
}

impl Ring {
    fn position(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: in the first page of the mapping, aligned to 8, and only accessed atomically by both sides.
        unsafe { self.page.add(offset).cast::<AtomicU64>().as_ref() }
    }

    fn offset(&self, position: u64) -> usize {
        (position % self.size as u64) as usize
    }

    /// Copies from `position` on, around the end.
    fn copy(&self, position: u64, into: &mut [u8]) {
        let at = self.offset(position);
        let first = into.len().min(self.size - at);
        // SAFETY: both parts lie within the mapping, because `into` is shorter than it; the kernel does not write there.
        unsafe {
            std::ptr::copy_nonoverlapping(self.data.as_ptr().add(at), into.as_mut_ptr(), first);
            let rest = into.len() - first;
            std::ptr::copy_nonoverlapping(self.data.as_ptr(), into.as_mut_ptr().add(first), rest);
        }
    }
}

impl Drop for PerfRings {
    fn drop(&mut self) {
        // SAFETY: made by `perf_buffer__new_raw`, freed once; no reference into the mappings is left.
        unsafe { ffi::perf_buffer__free(self.buffer.as_ptr()) };
    }
}
