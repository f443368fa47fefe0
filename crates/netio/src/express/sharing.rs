//! The readers of one UMEM as processes: who let them in, their connections, and what became of them.
//!
//! [`super::SharedUmem`] and [`super::Port`] have one each. What this module does not do: which frames readers have is
//! the business of [`super::lending`].

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::event::epoll;

use super::config::ShareConfig;
use super::gate::Gate;
use super::lane::Mapped;
use super::lender::{Lender, ReaderStats};
use super::lending::{Lending, MAX_READERS};
use super::loan;
use super::readers::{Readers, ShareStats};
use super::umem::Frames;
use crate::share::{Arrival, Liveness, ShareError, liveness, wake};

/// Marks the listening socket among the events; readers are beyond it, sockets below.
const LISTENER: u64 = 1 << 32;
/// Marks the connection of the reader at place 0.
const READER: u64 = 1 << 33;

/// The readers of a UMEM: where they arrive, and their connections.
pub(super) struct Sharing {
    gate: Gate,
    connections: [Option<OwnedFd>; MAX_READERS],
    /// Of readers that are gone.
    past: ReaderStats,
    stats: ShareStats,
}

/// What readers have to do with: the frames, who has them, and how many frames are promised to nobody.
pub(super) struct Room<'a> {
    pub(super) lending: &'a mut Lending<Mapped>,
    pub(super) frames: &'a mut Frames,
    pub(super) unreserved: usize,
}

impl Sharing {
    /// Lets readers of the memory `umem` in, and watches for them by `events`.
    pub(super) fn open(
        config: ShareConfig,
        umem: OwnedFd,
        events: BorrowedFd<'_>,
    ) -> Result<Self, ShareError> {
        let path = config.path.clone();
        let gate = Gate::open(config, umem)?;
        let arrivals = epoll::EventData::new_u64(LISTENER);
        epoll::add(events, &gate, arrivals, epoll::EventFlags::IN).map_err(|errno| ShareError::Socket {
            path,
            step: "epoll_ctl",
            source: errno.into(),
            advice: "",
        })?;
        let (past, stats) = (ReaderStats::default(), ShareStats::default());
        Ok(Self { gate, connections: [const { None }; MAX_READERS], past, stats })
    }

    /// Readers that came and went.
    pub(super) fn stats(&self) -> ShareStats {
        self.stats
    }

    /// What all readers, those that are gone included, were given and gave back.
    pub(super) fn reader_stats(&self, lending: &Lending<Mapped>) -> ReaderStats {
        let mut stats = self.past;
        let present = Readers(lending.present());
        present.places().filter_map(|place| lending.reader(place)).for_each(|reader| stats += reader.stats());
        stats
    }

    /// Attends to an event of `events`, if it is one of readers.
    pub(super) fn handle_event(&mut self, data: u64, events: BorrowedFd<'_>, room: &mut Room<'_>) {
        match data {
            LISTENER => self.admit(events, room),
            data if data >= READER => self.check_reader((data - READER) as usize, room),
            _ => {}
        }
    }

    /// Takes back what readers have returned, and dismisses those who cheat.
    #[inline]
    pub(super) fn collect(&mut self, room: &mut Room<'_>) {
        if room.lending.reserved() == 0 {
            return;
        }
        for place in Readers(room.lending.collect(room.frames)).places() {
            tracing::warn!(reader = place, "a reader of the UMEM wrote an impossible ring index: dismissed");
            self.stats.readers_dismissed += 1;
            self.dismiss(place, room);
        }
    }

    /// Shows readers what they were lent, and wakes those who sleep.
    #[inline]
    pub(super) fn publish(&self, lending: &mut Lending<Mapped>) {
        for place in Readers(lending.publish()).places() {
            if let Some(connection) = &self.connections[place] {
                wake(connection);
            }
        }
    }

    fn admit(&mut self, events: BorrowedFd<'_>, room: &mut Room<'_>) {
        // One an event: the socket stays readable while others wait.
        let connection = match self.gate.accept() {
            Arrival::Reader(connection) => connection,
            Arrival::Nobody => return,
            Arrival::TurnedAway => {
                tracing::warn!(
                    "a reader of the UMEM was turned away: no file descriptor is left (`ulimit -n`)"
                );
                self.stats.readers_refused += 1;
                return;
            }
        };
        let config = self.gate.config();
        let full = room.lending.present().count_ones() >= config.readers;
        let status = match room.lending.vacancy() {
            Some(place) if !full && config.quota as usize <= room.unreserved => {
                let umem = &room.frames.umem;
                let data = epoll::EventData::new_u64(READER + place as u64);
                let admitted = self.gate.admit(&connection, (umem.frame_size(), umem.mapped_length()));
                let watched = admitted.and_then(|rings| {
                    epoll::add(events, &connection, data, epoll::EventFlags::IN)?;
                    Ok(rings)
                });
                match watched {
                    Ok((loans, returns)) => {
                        tracing::info!(
                            reader = place,
                            quota = config.quota,
                            "a reader of the UMEM connected"
                        );
                        room.lending.admit(place, Lender::new(loans, returns, config.quota));
                        room.unreserved -= config.quota as usize;
                        self.connections[place] = Some(connection);
                        self.stats.readers_accepted += 1;
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
        self.stats.readers_refused += 1;
        Gate::refuse(&connection, status);
    }

    fn check_reader(&mut self, place: usize, room: &mut Room<'_>) {
        let Some(connection) = self.connections.get(place).and_then(Option::as_ref) else { return };
        match liveness(connection) {
            Liveness::Alive => return,
            Liveness::Gone => self.stats.readers_gone += 1,
            Liveness::Breach => {
                tracing::warn!(reader = place, "a reader of the UMEM sent a message: dismissed");
                self.stats.readers_dismissed += 1;
            }
        }
        // What it returned before it went is returned.
        room.lending.collect(room.frames);
        self.dismiss(place, room);
    }

    fn dismiss(&mut self, place: usize, room: &mut Room<'_>) {
        // Closing takes it out of the events.
        self.connections[place] = None;
        if let Some(reader) = room.lending.dismiss(room.frames, place) {
            tracing::info!(reader = place, reclaimed = reader.held(), "a reader of the UMEM is gone");
            self.stats.frames_reclaimed += u64::from(reader.held());
            self.past += reader.stats();
            room.unreserved += reader.quota() as usize;
        }
    }
}
