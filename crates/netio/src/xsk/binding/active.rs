//! The open socket of a binding, on its own UMEM.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use super::readers::BindingReaders;
use crate::io::{IoError, IoStats};
use crate::ring::Mapped;
use crate::umem::{Umem, XskId};
use crate::wait::{self, Wait};
use crate::xsk::config::{Fitted, ObtainedMode};
use crate::xsk::engine::{Bind, Engine, Opened, Xsk, adopt, bring_up};
use crate::xsk::error::{OpenError, Step};
use crate::xsk::remote::{RemoteBinder, frames_of};

/// A binding has one socket on its UMEM.
pub(super) const XSK: XskId = XskId(0);

/// An open socket.
pub(super) struct Active {
    pub(super) engine: Engine<Mapped>,
    /// Frames that one sent packet may take.
    pub(super) segments: u32,
    /// Packets that one system call may send in copy mode.
    pub(super) tx_budget: u32,
    /// Since when, how often kicked, and the count of completions then, while packets are in flight and none
    /// is completed.
    pub(super) quiet: Option<(Instant, u32, u64)>,
    /// Packets were received, and their frames given back, since the kernel was last told.
    pub(super) refilled: bool,
    /// Readers in other processes, where there may be any.
    pub(super) readers: Option<BindingReaders>,
}

impl Active {
    /// Opens a socket in this process and enters it into `map`.
    pub(super) fn open(config: &Fitted, ifindex: u32, map: BorrowedFd<'_>) -> Result<Self, OpenError> {
        let multi_buffer = config.multi_buffer();
        let failed = |source| Step::Memory.failed(&config.interface, config.queue, multi_buffer, source);
        let frames = frames_of(config);
        let (mut umem, file) = match &config.lend {
            None => (Umem::new(config.frame_size, frames, config.huge_pages).map_err(failed)?, None),
            Some(lend) => {
                let frames = frames + lend.readers * lend.quota;
                let (umem, file) =
                    Umem::shareable(config.frame_size, frames, config.huge_pages).map_err(failed)?;
                (umem, Some(file))
            }
        };
        let bind = Bind {
            id: XSK,
            config,
            ifindex,
            multi_buffer,
            map: Some(map),
            shared: None,
            // The worker says later how it waits.
            wait: Wait::Interrupt,
        };
        let opened = bring_up(&mut umem, &bind)?;
        let readers = match (&config.lend, file) {
            (Some(lend), Some(file)) => Some(BindingReaders::open(config, lend, file)?),
            _ => None,
        };
        Ok(Self::new(umem, opened, readers))
    }

    /// Has a socket opened by another process.
    pub(super) fn adopt(config: &Fitted, source: &mut dyn RemoteBinder) -> Result<Self, OpenError> {
        let failed = |source| Step::Memory.failed(&config.interface, config.queue, false, source);
        let (mut umem, memory) =
            Umem::registrable(config.frame_size, frames_of(config), config.huge_pages).map_err(failed)?;
        let bound = source.bind(config, memory.as_fd())?;
        let xsk = adopt(&mut umem, config, config.multi_buffer(), (bound.socket, bound.mode))?;
        // Whoever bound it asked for what the configuration says; what it got is not told.
        let asked = config.tx_budget.unwrap_or(config.tx_ring);
        let tx_budget = if config.sends { asked } else { 0 };
        Ok(Self::new(umem, Opened { xsk, segments: bound.segments, tx_budget }, None))
    }

    fn new(umem: Umem, opened: Opened, readers: Option<BindingReaders>) -> Self {
        let Opened { xsk, segments, tx_budget } = opened;
        let engine = Engine::new(umem, vec![xsk]);
        Self { engine, segments, tx_budget, quiet: None, refilled: false, readers }
    }

    /// The socket.
    pub(super) fn xsk(&self) -> &Xsk<Mapped> {
        &self.engine.xsks[XSK.0 as usize]
    }

    /// Its descriptor.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.xsk().socket().as_fd()
    }

    /// Prepares the socket for the way that the worker waits.
    pub(super) fn prepare(&self, wait: Wait, what: &str) -> Result<(), IoError> {
        wait::prepare_socket(self.fd(), wait, self.xsk().mode() == ObtainedMode::Copy, what)
    }

    /// Adds what was counted for the socket.
    pub(super) fn count(&self, stats: &mut IoStats) {
        *stats += self.xsk().stats();
    }
}
