//! Sets of readers, and reports about them.

use super::rings::ReaderStats;
use super::table::MAX_READERS;
use crate::stats::counters;

/// Several readers of a [`crate::xsk::SharedUmem`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readers(pub(crate) u32);

impl Readers {
    /// How many there are.
    pub fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// True if there is none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Each of them by itself.
    pub fn iter(self) -> impl Iterator<Item = Self> {
        self.places().map(|place| Self(1 << place))
    }
}

/// How a reader fares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReaderReport {
    /// Which one.
    pub reader: Readers,
    /// Frames that it may hold.
    pub quota: u32,
    /// Frames that it holds.
    pub held: u32,
    /// What it was given and gave back.
    pub stats: ReaderStats,
}

counters! {
    /// Readers that came and went.
    pub struct ReaderConnectionStats {
        /// Readers admitted.
        pub readers_accepted: u64,
        /// Readers refused: too many, no frames for their quota, no memory for their rings, or no descriptor.
        pub readers_refused: u64,
        /// Readers that left or died.
        pub readers_gone: u64,
        /// Readers dismissed because they moved an index where it cannot be, or sent a message.
        pub readers_dismissed: u64,
        /// Frames taken back from readers that left, died or were dismissed.
        pub frames_reclaimed: u64,
    }
}

impl Readers {
    /// Their places.
    pub(crate) fn places(self) -> impl Iterator<Item = usize> {
        (0..MAX_READERS).filter(move |place| self.0 & (1 << place) != 0)
    }
}
