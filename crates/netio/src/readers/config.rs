//! The configuration of readers.

use std::path::PathBuf;

use super::ReaderAccessError;
use super::table::MAX_READERS;

/// Who may read a [`crate::xsk::SharedUmem`], or the packets of a port, from another process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReaderAccess {
    /// Path of the unix socket (SOCK_SEQPACKET) that readers connect to. A socket that a dead process left
    /// there is replaced.
    pub path: PathBuf,
    /// Permissions of the socket: who may connect may read every frame.
    pub mode: u32,
    /// Readers at a time, 1 to 32.
    pub readers: u32,
    /// Frames that each reader may hold, 1 to 32768. They are set aside when it connects.
    pub quota: u32,
}

impl ReaderAccess {
    /// One reader of the same user, which may hold 1024 frames.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), mode: 0o600, readers: 1, quota: 1024 }
    }

    /// Checks the numbers.
    pub(crate) fn validate(&self) -> Result<(), ReaderAccessError> {
        let complain =
            |field, value: u32, must| Err(ReaderAccessError::Config { field, value: value.into(), must });
        if !(1..=MAX_READERS as u32).contains(&self.readers) {
            return complain("readers", self.readers, "must be 1 to 32");
        }
        if !(1..=32_768).contains(&self.quota) {
            return complain("quota", self.quota, "must be 1 to 32768");
        }
        Ok(())
    }
}
