//! The readers of a [`SharedUmem`]: let in, taken back from, dismissed and counted.

use std::os::fd::AsFd;

use super::config::ShareConfig;
use super::exchange::Exchange;
use super::lane::Mapped;
use super::lender::ReaderStats;
use super::lending::MAX_READERS;
use super::shared::SharedUmem;
use super::sharing::{Room, Sharing};
use crate::share::ShareError;
use crate::stats::counters;

/// Several readers of a [`SharedUmem`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readers(pub(super) u32);

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
    pub struct ShareStats {
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
    pub(super) fn places(self) -> impl Iterator<Item = usize> {
        (0..MAX_READERS).filter(move |place| self.0 & (1 << place) != 0)
    }
}

impl SharedUmem {
    /// Lets readers in at a unix socket. They come and go within [`SharedUmem::wait`].
    ///
    /// # Errors
    /// [`ShareError`] says what is wrong: the UMEM was not made shareable, a number is out of range, or the
    /// path cannot be bound.
    pub fn share(&mut self, config: ShareConfig) -> Result<(), ShareError> {
        config.validate()?;
        if config.quota as usize > self.exchange.unreserved() {
            return Err(ShareError::Config {
                field: "quota",
                value: config.quota.into(),
                must: "must be left of the UMEM's frames beside its sockets' rings",
            });
        }
        let Some(file) = &self.file else {
            return Err(if self.shareable { ShareError::Twice } else { ShareError::Private });
        };
        let path = config.path.clone();
        let file = file.try_clone().map_err(|source| ShareError::Socket {
            path,
            step: "dup",
            source,
            advice: "",
        })?;
        self.sharing = Some(Sharing::open(config, file, self.events.as_fd())?);
        self.file = None;
        Ok(())
    }

    /// The readers that are connected.
    pub fn readers(&self) -> Readers {
        Readers(self.exchange.lending_ref().present())
    }

    /// How each of them fares.
    pub fn reader_reports(&self) -> impl Iterator<Item = ReaderReport> {
        self.readers().places().filter_map(|place| {
            let one = self.exchange.lending_ref().reader(place)?;
            Some(ReaderReport {
                reader: Readers(1 << place),
                quota: one.quota(),
                held: one.held(),
                stats: one.stats(),
            })
        })
    }

    /// What all readers, those that are gone included, were given and gave back.
    pub fn reader_stats(&self) -> ReaderStats {
        let of = |sharing: &Sharing| sharing.reader_stats(self.exchange.lending_ref());
        self.sharing.as_ref().map_or_else(ReaderStats::default, of)
    }

    /// Readers that came and went.
    pub fn share_stats(&self) -> ShareStats {
        self.sharing.as_ref().map_or_else(ShareStats::default, Sharing::stats)
    }

    /// Takes back what readers have returned, and dismisses those who cheat.
    pub(super) fn collect(&mut self) {
        if let Some(sharing) = &mut self.sharing {
            sharing.collect(&mut room(&mut self.exchange));
        }
    }

    /// Attends to an event that is no socket's.
    pub(super) fn handle_reader_event(&mut self, data: u64) {
        if let Some(sharing) = &mut self.sharing {
            sharing.handle_event(data, self.events.as_fd(), &mut room(&mut self.exchange));
        }
    }
}

fn room(exchange: &mut Exchange<Mapped>) -> Room<'_> {
    let unreserved = exchange.unreserved();
    let (lending, frames) = exchange.lending();
    Room { lending, frames, unreserved }
}
