//! The readers of a [`SharedUmem`]: let in, taken back from, dismissed and counted.

use rustix::event::epoll;

use super::config::ShareConfig;
use super::exchange::MAX_READERS;
use super::gate::Gate;
use super::lender::{Lender, ReaderStats};
use super::loan;
use super::shared::{LISTENER, READER, SharedUmem};
use crate::share::{Arrival, Liveness, ShareError, liveness};
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
        let complain = |field, value: u32, must| Err(ShareError::Config { field, value: value.into(), must });
        if !(1..=MAX_READERS as u32).contains(&config.readers) {
            return complain("readers", config.readers, "must be 1 to 32");
        }
        if !(1..=32_768).contains(&config.quota) {
            return complain("quota", config.quota, "must be 1 to 32768");
        }
        if config.quota as usize > self.exchange.unreserved() {
            return complain(
                "quota",
                config.quota,
                "must be left of the UMEM's frames beside its sockets' rings",
            );
        }
        let Some(file) = &self.file else {
            return Err(if self.shareable { ShareError::Twice } else { ShareError::Private });
        };
        let path = config.path.clone();
        let failed = move |step, source| ShareError::Socket { path: path.clone(), step, source, advice: "" };
        let file = file.try_clone().map_err(|source| failed("dup", source))?;
        let gate = Gate::open(config, file)?;
        epoll::add(&self.events, &gate, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN)
            .map_err(|errno| failed("epoll_ctl", errno.into()))?;
        self.gate = Some(gate);
        self.file = None;
        Ok(())
    }

    /// The readers that are connected.
    pub fn readers(&self) -> Readers {
        Readers(self.exchange.present())
    }

    /// How each of them fares.
    pub fn reader_reports(&self) -> impl Iterator<Item = ReaderReport> {
        self.readers().places().filter_map(|place| {
            let one = self.exchange.reader(place)?;
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
        let mut stats = self.readers_past;
        self.reader_reports().for_each(|report| stats += report.stats);
        stats
    }

    /// Readers that came and went.
    pub fn share_stats(&self) -> ShareStats {
        self.share_stats
    }

    /// Takes back what readers have returned, and dismisses those who cheat.
    pub(super) fn collect(&mut self) {
        if self.gate.is_none() {
            return;
        }
        for place in Readers(self.exchange.collect()).places() {
            tracing::warn!(reader = place, "a reader of the UMEM wrote an impossible ring index: dismissed");
            self.share_stats.readers_dismissed += 1;
            self.dismiss(place);
        }
    }

    pub(super) fn admit(&mut self) {
        let Some(gate) = &mut self.gate else { return };
        // One an event: the socket stays readable while others wait.
        let connection = match gate.accept() {
            Arrival::Reader(connection) => connection,
            Arrival::Nobody => return,
            Arrival::TurnedAway => {
                tracing::warn!(
                    "a reader of the UMEM was turned away: no file descriptor is left (`ulimit -n`)"
                );
                self.share_stats.readers_refused += 1;
                return;
            }
        };
        let gate = &*gate;
        let config = gate.config();
        let full = self.exchange.present().count_ones() >= config.readers;
        let status = match self.exchange.vacancy() {
            Some(place) if !full && config.quota as usize <= self.exchange.unreserved() => {
                let umem = &self.exchange.frames().umem;
                let data = epoll::EventData::new_u64(READER + place as u64);
                let admitted = gate.admit(&connection, (umem.frame_size(), umem.mapped_length()));
                let watched = admitted.and_then(|rings| {
                    epoll::add(&self.events, &connection, data, epoll::EventFlags::IN)?;
                    Ok(rings)
                });
                match watched {
                    Ok((loans, returns)) => {
                        tracing::info!(
                            reader = place,
                            quota = config.quota,
                            "a reader of the UMEM connected"
                        );
                        self.exchange.admit(place, Lender::new(loans, returns, config.quota));
                        self.connections[place] = Some(connection);
                        self.share_stats.readers_accepted += 1;
                        return;
                    }
                    Err(error) => {
                        tracing::warn!(%error, "a reader of the UMEM could not be admitted");
                        loan::FAILED
                    }
                }
            }
            Some(_) if !full => loan::NO_FRAMES,
            _ => loan::TOO_MANY_READERS,
        };
        self.share_stats.readers_refused += 1;
        Gate::refuse(&connection, status);
    }

    pub(super) fn check_reader(&mut self, place: usize) {
        let Some(connection) = self.connections.get(place).and_then(Option::as_ref) else { return };
        match liveness(connection) {
            Liveness::Alive => return,
            Liveness::Gone => self.share_stats.readers_gone += 1,
            Liveness::Breach => {
                tracing::warn!(reader = place, "a reader of the UMEM sent a message: dismissed");
                self.share_stats.readers_dismissed += 1;
            }
        }
        // What it returned before it went is returned.
        self.exchange.collect();
        self.dismiss(place);
    }

    fn dismiss(&mut self, place: usize) {
        // Closing takes it out of the events.
        self.connections[place] = None;
        if let Some(reader) = self.exchange.dismiss(place) {
            tracing::info!(reader = place, reclaimed = reader.held(), "a reader of the UMEM is gone");
            self.share_stats.frames_reclaimed += u64::from(reader.held());
            self.readers_past += reader.stats();
        }
    }
}
