//! The readers of a binding's packets in other processes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll;

use super::XskBinding;
use super::active::Active;
use crate::readers::{ReaderAccess, ReaderAccessError, ReaderConnectionStats, ReaderServer, ReaderStats};
use crate::ring::Mapped;
use crate::stats::counters;
use crate::xsk::config::XskConfig;
use crate::xsk::engine::Engine;
use crate::xsk::error::OpenError;

counters! {
    /// Datagrams that no reader was lent though there were readers.
    pub struct NotLentStats {
        /// Packets that lie in several frames.
        pub not_lent_multi_frame: u64,
        /// Datagrams that came by kernel sockets.
        pub not_lent_kernel: u64,
    }
}

/// Readers of bindings and what they were lent, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LendReport {
    /// What readers were given and gave back.
    pub given: ReaderStats,
    /// Readers that came and went.
    pub arrivals: ReaderConnectionStats,
    /// What they were not given.
    pub not_lent: NotLentStats,
}

impl std::ops::AddAssign for LendReport {
    fn add_assign(&mut self, other: Self) {
        self.given += other.given;
        self.arrivals += other.arrivals;
        self.not_lent += other.not_lent;
    }
}

/// The readers of a socket's packets, and what tells of them.
pub(super) struct BindingReaders {
    server: ReaderServer,
    events: OwnedFd,
}

impl BindingReaders {
    pub(super) fn open(config: &XskConfig, lend: &ReaderAccess, file: OwnedFd) -> Result<Self, OpenError> {
        let failed =
            |source| OpenError::Lend { interface: config.interface.clone(), queue: config.queue, source };
        let events = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|errno| {
            failed(ReaderAccessError::Socket {
                path: lend.path.clone(),
                step: "epoll_create",
                source: errno.into(),
                advice: "",
            })
        })?;
        let server = ReaderServer::open(lend.clone(), file, events.as_fd()).map_err(failed)?;
        let (interface, queue) = (&config.interface, config.queue);
        tracing::info!(interface, queue, path = %lend.path.display(), "readers of received packets connect here");
        Ok(Self { server, events })
    }

    /// Takes back what readers have returned.
    #[inline]
    pub(super) fn collect(&mut self, engine: &mut Engine<Mapped>) {
        self.server.collect(&mut engine.readers, &mut engine.umem);
    }

    /// Shows readers what they were lent.
    #[inline]
    pub(super) fn publish(&self, engine: &mut Engine<Mapped>) {
        self.server.publish(&mut engine.readers);
    }

    fn attend(&mut self, engine: &mut Engine<Mapped>) {
        let mut events =
            [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; 16];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        // What it fails to tell now, it tells the next time.
        let count = epoll::wait(&self.events, &mut events, Some(&now)).unwrap_or(0);
        for event in &events[..count] {
            let Engine { umem, readers, .. } = &mut *engine;
            self.server.handle_event(event.data.u64(), self.events.as_fd(), readers, umem);
        }
    }

    fn report(&self, engine: &Engine<Mapped>) -> LendReport {
        LendReport {
            given: self.server.reader_stats(&engine.readers),
            arrivals: self.server.stats(),
            not_lent: NotLentStats { not_lent_multi_frame: engine.readers.not_lent(), not_lent_kernel: 0 },
        }
    }
}

impl XskBinding {
    /// Lets readers in, and takes leave of those that went.
    pub(crate) fn attend(&mut self) {
        if let Some(Active { engine, readers: Some(readers), .. }) = &mut self.active {
            readers.attend(engine);
        }
    }

    /// What tells of readers that come and go, where there may be any.
    pub(crate) fn reader_events(&self) -> Option<BorrowedFd<'_>> {
        Some(self.active.as_ref()?.readers.as_ref()?.events.as_fd())
    }

    /// True if readers are connected.
    pub(crate) fn has_readers(&self) -> bool {
        self.active.as_ref().is_some_and(|active| active.engine.readers.reserved() > 0)
    }

    /// Readers of this binding and of the sockets that it once had.
    pub(crate) fn lend_report(&self) -> LendReport {
        let mut report = self.lent;
        if let Some(Active { engine, readers: Some(readers), .. }) = &self.active {
            report += readers.report(engine);
        }
        report
    }
}
