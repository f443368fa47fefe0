//! Lets the XDP program timestamp packets during recordings: sets `struct redirect_switch`
//! (`bpf/include/redirect_shared.h`) in its memory, which this process maps.

#![allow(unsafe_code)] // Words of mapped memory.

use std::hash::{BuildHasher, Hasher};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::param::page_size;

use super::Clock;
use crate::sys::mapping::Mapping;

/// Turns the stamps of one XDP program on and off. Clones are of the same program; with the last one they end.
#[derive(Clone, Debug)]
pub struct StampSwitch {
    page: Arc<Page>,
}

#[derive(Debug)]
struct Page {
    mapping: Mapping,
    cookie: u32,
}

/// Where the cookie lies.
const COOKIE: usize = 8;

impl StampSwitch {
    /// Over the map of a program, which holds a `struct redirect_switch` and nothing else.
    ///
    /// # Errors
    /// The map cannot be mapped.
    pub fn map(map: BorrowedFd<'_>) -> io::Result<Self> {
        let mapping = Mapping::file(map, page_size())?;
        // Unguessable by who sends packets: each `RandomState` has keys of its own.
        let cookie = std::hash::RandomState::new().build_hasher().finish() as u32;
        let page = Page { mapping, cookie };
        page.set(0);
        // SAFETY: as in `Page::word`.
        let word = unsafe { AtomicU32::from_ptr(page.mapping.start().as_ptr().add(COOKIE).cast()) };
        word.store(cookie, Ordering::Relaxed);
        Ok(Self { page: Arc::new(page) })
    }

    /// [`StampSwitch::map`], or a warning: traces then lack the times at which packets arrived.
    pub fn map_or_warn(map: BorrowedFd<'_>) -> Option<Self> {
        Self::map(map)
            .inspect_err(|error| tracing::warn!(%error, "no map of the XDP program's switch: traces lack its time stamps"))
            .ok()
    }

    /// By which the program's stamps are known ([`crate::xsk::XskConfig::description`] is for programs that always stamp).
    pub(crate) fn cookie(&self) -> u32 {
        self.page.cookie
    }

    pub(super) fn on(&self, clock: &Clock) {
        self.page.set(clock.tai_ahead());
    }

    pub(super) fn off(&self) {
        self.page.set(0);
    }

    /// What the program sees.
    pub fn is_on(&self) -> bool {
        self.page.word().load(Ordering::Relaxed) != 0
    }
}

/// The same program's.
impl PartialEq for StampSwitch {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.page, &other.page)
    }
}

impl Eq for StampSwitch {}

impl Page {
    fn word(&self) -> &AtomicU64 {
        // SAFETY: the mapping is a page, aligned to more than a word, and there as long as `self` is. Whoever else writes it
        // does so as a whole word: the program reads it only, and other processes that map it are this one's agent.
        unsafe { AtomicU64::from_ptr(self.mapping.start().as_ptr().cast()) }
    }

    fn set(&self, ahead: u64) {
        self.word().store(ahead, Ordering::Relaxed);
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        self.set(0);
    }
}
