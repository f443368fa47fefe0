//! The readers of a [`SharedUmem`]: let in, taken back from, dismissed and counted.

use std::os::fd::AsFd;

use super::engine::Engine;
use super::shared::SharedUmem;
use crate::readers::{
    ReaderAccess, ReaderAccessError, ReaderConnectionStats, ReaderReport, ReaderServer, ReaderStats, Readers,
};

impl SharedUmem {
    /// Lets readers in at a unix socket. They come and go within [`SharedUmem::wait`].
    ///
    /// # Errors
    /// [`ReaderAccessError`] says what is wrong: the UMEM was not made shareable, a number is out of range, or the
    /// path cannot be bound.
    pub fn share(&mut self, config: ReaderAccess) -> Result<(), ReaderAccessError> {
        config.validate()?;
        if config.quota as usize > self.engine.umem.unreserved() {
            return Err(ReaderAccessError::Config {
                field: "quota",
                value: config.quota.into(),
                must: "exceeds the UMEM frames left after its sockets' rings",
            });
        }
        let Some(file) = &self.file else {
            return Err(if self.shareable { ReaderAccessError::Twice } else { ReaderAccessError::Private });
        };
        let path = config.path.clone();
        let file = file.try_clone().map_err(|source| ReaderAccessError::Socket {
            path,
            step: "dup",
            source,
            advice: "",
        })?;
        self.server = Some(ReaderServer::open(config, file, self.events.as_fd())?);
        self.file = None;
        Ok(())
    }

    /// The readers that are connected.
    pub fn readers(&self) -> Readers {
        Readers(self.engine.readers.present())
    }

    /// How each of them fares.
    pub fn reader_reports(&self) -> impl Iterator<Item = ReaderReport> {
        self.readers().places().filter_map(|place| {
            let one = self.engine.readers.reader(place)?;
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
        let of = |server: &ReaderServer| server.reader_stats(&self.engine.readers);
        self.server.as_ref().map_or_else(ReaderStats::default, of)
    }

    /// Readers that came and went.
    pub fn share_stats(&self) -> ReaderConnectionStats {
        self.server.as_ref().map_or_else(ReaderConnectionStats::default, ReaderServer::stats)
    }

    /// Takes back what readers have returned, and dismisses those who cheat.
    pub(super) fn collect(&mut self) {
        if let Some(server) = &mut self.server {
            server.collect(&mut self.engine.readers, &mut self.engine.umem);
        }
    }

    /// Attends to an event that is no socket's.
    pub(super) fn handle_reader_event(&mut self, data: u64) {
        if let Some(server) = &mut self.server {
            let Engine { umem, readers, .. } = &mut self.engine;
            server.handle_event(data, self.events.as_fd(), readers, umem);
        }
    }
}
