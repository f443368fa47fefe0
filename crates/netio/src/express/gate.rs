//! Where readers of a UMEM arrive and leave, and what they are handed.
//!
//! A reader that connects gets a [`Hello`] with the UMEM and its own control memory ([`super::loan`]). What this
//! module does not do: it lends nothing ([`super::lender`]) and has no frames.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals};
use rustix::param::page_size;

use super::config::ShareConfig;
use super::loan::{BLOCK, Hello, Loan};
use super::mapped::MappedRing;
use super::mapping::memory_file;
use crate::share::{Arrival, Listener, ShareError, greet};

/// The socket that listens, and what is handed to readers.
#[derive(Debug)]
pub(super) struct Gate {
    listener: Listener,
    umem: OwnedFd,
    config: ShareConfig,
}

impl Gate {
    /// Listens for readers of `umem`.
    pub(super) fn open(config: ShareConfig, umem: OwnedFd) -> Result<Self, ShareError> {
        let listener = Listener::open(&config.path, config.mode)?;
        Ok(Self { listener, umem, config })
    }

    /// What was configured.
    pub(super) fn config(&self) -> &ShareConfig {
        &self.config
    }

    /// A reader that has connected.
    pub(super) fn accept(&mut self) -> Arrival {
        self.listener.accept()
    }

    /// Tells a reader why it is not admitted.
    pub(super) fn refuse(connection: &OwnedFd, status: u32) {
        // It may be gone already; then there is nobody to tell.
        let _ = greet(connection, &Hello::refusal(status).to_bytes(), None);
    }

    /// Makes a reader's control memory and hands it over with the UMEM. Returns the two rings.
    pub(super) fn admit(
        &self,
        connection: &OwnedFd,
        (frame_size, umem_length): (u32, u64),
    ) -> io::Result<(MappedRing<Loan>, MappedRing<u64>)> {
        let hello = Hello::new(umem_length, frame_size, self.config.quota, page_size() as u64);
        let control = memory_file(c"expressway-reader", hello.control_length as usize, MemfdFlags::empty())?;
        fcntl_add_seals(&control, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let loans = MappedRing::map(control.as_fd(), hello.loans, &BLOCK, hello.entries)?;
        let returns = MappedRing::map(control.as_fd(), hello.returns, &BLOCK, hello.entries)?;
        greet(connection, &hello.to_bytes(), Some([self.umem.as_fd(), control.as_fd()]))?;
        Ok((loans, returns))
    }
}

impl AsFd for Gate {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}
