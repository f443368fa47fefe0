//! Packets from the kernel's hooks: attaching, following programs, buffers, merging by time, losses.

mod error;
mod options;

use std::time::Duration;

pub use error::{CaptureError, Note};
pub use options::{CaptureOptions, Points, XdpPoints};

use crate::packet::Packet;

/// What became of an interface's packets since the capture was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// The interface's index.
    pub interface: u32,
    /// Packets that the hooks saw.
    pub seen: u64,
    /// Those of them that the filter matched.
    pub matched: u64,
    /// Those of these that the buffers had no room for.
    pub lost: u64,
}

/// A running capture. Dropping it, or the end of the process, detaches everything.
#[derive(Debug)]
pub struct Capture {
    notes: Vec<Note>,
    losses: Vec<Losses>,
}

impl Capture {
    /// Attaches to the hooks. What cannot be attached is a note, not an error, as long as something can.
    ///
    /// # Errors
    /// No privilege, no such interface, or nothing that could be attached.
    pub fn open(options: CaptureOptions) -> Result<Self, CaptureError> {
        let _ = options;
        Err(CaptureError::Nothing("not there yet".to_owned()))
    }

    /// Waits up to `timeout` for packets and hands those that have come to `each`, in the order of their time. Attaches to
    /// programs that have come. Packets are held back for some milliseconds, until their order is known.
    ///
    /// # Errors
    /// The buffers cannot be waited for.
    pub fn poll(&mut self, timeout: Duration, each: &mut dyn FnMut(&Packet<'_>)) -> Result<(), CaptureError> {
        let _ = (timeout, each);
        Ok(())
    }

    /// Hands over everything that has come, without waiting.
    pub fn flush(&mut self, each: &mut dyn FnMut(&Packet<'_>)) {
        let _ = each;
    }

    /// What became of each interface's packets.
    #[must_use]
    pub fn losses(&self) -> Vec<Losses> {
        self.losses.clone()
    }

    /// What could not be attached and why, at the start and since; at most some hundred.
    #[must_use]
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }
}
