//! The readers of one UMEM as processes: the socket at which they arrive, their connections, and what became of them.
//!
//! A reader that connects gets a [`Hello`] with the UMEM and its own control memory ([`super::abi`]). What this module
//! does not do: which frames readers have is the business of [`super::table`].

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals};
use rustix::param::page_size;

use super::abi::{self, BLOCK, Hello};
use super::listener::{Arrival, Listener, Liveness, greet, liveness, wake};
use super::rings::{ReaderRings, ReaderStats};
use super::set::{ReaderConnectionStats, Readers};
use super::table::{MAX_READERS, ReaderTable};
use super::{ReaderAccess, ReaderAccessError};
use crate::ring::{Mapped, MappedRing};
use crate::sys::mapping::memory_file;
use crate::umem::Umem;

/// Marks the listening socket among the events; readers are beyond it, AF_XDP sockets below.
const LISTENER: u64 = 1 << 32;
/// Marks the connection of the reader at place 0.
const READER: u64 = 1 << 33;

/// Where readers of a UMEM arrive, and their connections.
pub(crate) struct ReaderServer {
    listener: Listener,
    /// The UMEM as a file, handed to readers.
    memory: OwnedFd,
    config: ReaderAccess,
    connections: [Option<OwnedFd>; MAX_READERS],
    /// Of readers that are gone.
    past: ReaderStats,
    stats: ReaderConnectionStats,
}

impl ReaderServer {
    /// Lets readers of `memory`, a UMEM's, in, and watches for them by `events`.
    pub(crate) fn open(
        config: ReaderAccess,
        memory: OwnedFd,
        events: BorrowedFd<'_>,
    ) -> Result<Self, ReaderAccessError> {
        let listener = Listener::open(&config.path, config.mode)?;
        let arrivals = epoll::EventData::new_u64(LISTENER);
        epoll::add(events, &listener, arrivals, epoll::EventFlags::IN).map_err(|errno| {
            ReaderAccessError::Socket {
                path: config.path.clone(),
                step: "epoll_ctl",
                source: errno.into(),
                advice: "",
            }
        })?;
        Ok(Self {
            listener,
            memory,
            config,
            connections: [const { None }; MAX_READERS],
            past: ReaderStats::default(),
            stats: ReaderConnectionStats::default(),
        })
    }

    /// Readers that came and went.
    pub(crate) fn stats(&self) -> ReaderConnectionStats {
        self.stats
    }

    /// What all readers, those that are gone included, were given and gave back.
    pub(crate) fn reader_stats(&self, table: &ReaderTable<Mapped>) -> ReaderStats {
        let mut stats = self.past;
        let present = Readers(table.present());
        present.places().filter_map(|place| table.reader(place)).for_each(|reader| stats += reader.stats());
        stats
    }

    /// Attends to an event of `events`, if it is one of readers.
    pub(crate) fn handle_event(
        &mut self,
        data: u64,
        events: BorrowedFd<'_>,
        table: &mut ReaderTable<Mapped>,
        umem: &mut Umem,
    ) {
        match data {
            LISTENER => self.admit(events, table, umem),
            data if data >= READER => self.check_reader((data - READER) as usize, table, umem),
            _ => {}
        }
    }

    /// Takes back what readers have returned, and dismisses those who cheat.
    #[inline]
    pub(crate) fn collect(&mut self, table: &mut ReaderTable<Mapped>, umem: &mut Umem) {
        if table.reserved() == 0 {
            return;
        }
        for place in Readers(table.collect(umem)).places() {
            tracing::warn!(reader = place, "UMEM reader wrote an invalid ring index: disconnected");
            self.stats.readers_dismissed += 1;
            self.dismiss(place, table, umem);
        }
    }

    /// Shows readers what they were lent, and wakes those who sleep.
    #[inline]
    pub(crate) fn publish(&self, table: &mut ReaderTable<Mapped>) {
        for place in Readers(table.publish()).places() {
            if let Some(connection) = &self.connections[place] {
                wake(connection);
            }
        }
    }

    fn admit(&mut self, events: BorrowedFd<'_>, table: &mut ReaderTable<Mapped>, umem: &mut Umem) {
        // One an event: the socket stays readable while others wait.
        let connection = match self.listener.accept() {
            Arrival::Reader(connection) => connection,
            Arrival::Nobody => return,
            Arrival::TurnedAway => {
                tracing::warn!("UMEM reader rejected: out of file descriptors (`ulimit -n`)");
                self.stats.readers_refused += 1;
                return;
            }
        };
        let quota = self.config.quota;
        let full = table.present().count_ones() >= self.config.readers;
        let status = match table.vacancy() {
            Some(place) if !full && quota as usize <= umem.unreserved() => {
                let data = epoll::EventData::new_u64(READER + place as u64);
                let watched = self.hand_over(&connection, umem).and_then(|rings| {
                    epoll::add(events, &connection, data, epoll::EventFlags::IN)?;
                    Ok(rings)
                });
                match watched {
                    Ok(rings) => {
                        tracing::info!(reader = place, quota, "UMEM reader connected");
                        table.admit(umem, place, rings);
                        self.connections[place] = Some(connection);
                        self.stats.readers_accepted += 1;
                        return;
                    }
                    Err(error) => {
                        tracing::warn!(%error, "cannot admit a UMEM reader");
                        abi::FAILED
                    }
                }
            }
            Some(_) if !full => abi::NO_FRAMES,
            _ => abi::TOO_MANY_READERS,
        };
        self.stats.readers_refused += 1;
        // It may be gone already; then there is nobody to tell.
        let _ = greet(&connection, &Hello::refusal(status).to_bytes(), None);
    }

    /// Makes a reader's control memory and hands it over with the UMEM.
    fn hand_over(&self, connection: &OwnedFd, umem: &Umem) -> io::Result<ReaderRings<Mapped>> {
        let quota = self.config.quota;
        let hello = Hello::new(umem.mapped_length(), umem.frame_size(), quota, page_size() as u64);
        let control = memory_file(c"expressway-reader", hello.control_length as usize, MemfdFlags::empty())?;
        fcntl_add_seals(&control, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let packets = MappedRing::map(control.as_fd(), hello.packets, &BLOCK, hello.entries)?;
        let returns = MappedRing::map(control.as_fd(), hello.returns, &BLOCK, hello.entries)?;
        greet(connection, &hello.to_bytes(), Some([self.memory.as_fd(), control.as_fd()]))?;
        Ok(ReaderRings::new(packets, returns, quota))
    }

    fn check_reader(&mut self, place: usize, table: &mut ReaderTable<Mapped>, umem: &mut Umem) {
        let Some(connection) = self.connections.get(place).and_then(Option::as_ref) else { return };
        match liveness(connection) {
            Liveness::Alive => return,
            Liveness::Gone => self.stats.readers_gone += 1,
            Liveness::Breach => {
                tracing::warn!(reader = place, "UMEM reader sent a message: disconnected");
                self.stats.readers_dismissed += 1;
            }
        }
        // What it returned before it went is returned.
        table.collect(umem);
        self.dismiss(place, table, umem);
    }

    fn dismiss(&mut self, place: usize, table: &mut ReaderTable<Mapped>, umem: &mut Umem) {
        // Closing takes it out of the events.
        self.connections[place] = None;
        if let Some(reader) = table.dismiss(umem, place) {
            tracing::info!(reader = place, reclaimed = reader.held(), "UMEM reader disconnected");
            self.stats.frames_reclaimed += u64::from(reader.held());
            self.past += reader.stats();
        }
    }
}
