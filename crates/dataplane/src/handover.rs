//! Lets one process follow another on the same addresses without a gap.
//!
//! Both processes use the same kernel sockets, whose descriptors are passed on. Queued datagrams are therefore not
//! lost, and the order of a SO_REUSEPORT group stays the same. Only one process receives: the older one is paused
//! before the newer one's workers start. XDP programs and AF_XDP sockets are not shared: the older process closes them
//! before the newer one opens its own, and kernel sockets serve meanwhile, as they do whenever AF_XDP is unavailable.
//! If the handover fails, the older process reopens everything.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use expressway_netio::IoError;
use expressway_netio::udp::{ReceivePause, UdpSockets};

use crate::data_path::DataPath;
use crate::error::Error;
use crate::open::napi;
use crate::provider::Provider;
use crate::upkeep::Cause;

/// What packets on their way through a program that was taken off have, to be in the rings and taken from there: more than a turn of a
/// worker and an interrupt's delay take.
const AFTERMATH: Duration = Duration::from_millis(20);

/// What a data path has to do with the processes before and after.
#[derive(Debug, Default)]
pub struct Handover {
    /// Kernel sockets of the process before: by worker, in the order of the listen addresses.
    pub sockets: Option<Vec<Vec<OwnedFd>>>,
    /// Another process may come after: the kernel sockets are kept for it.
    pub hands_on: bool,
}

impl Handover {
    /// The sockets for so many workers, once more.
    pub(crate) fn inherited(&self, workers: usize) -> Result<Option<Vec<Vec<OwnedFd>>>, Error> {
        let Some(sockets) = &self.sockets else { return Ok(None) };
        if sockets.len() != workers {
            let what = format!("inherited sockets of {} workers for {workers}", sockets.len());
            return Err(IoError::Socket { what, source: std::io::ErrorKind::InvalidInput.into() }.into());
        }
        let again = |fds: &Vec<OwnedFd>| fds.iter().map(OwnedFd::try_clone).collect();
        let all: std::io::Result<Vec<Vec<OwnedFd>>> = sockets.iter().map(again).collect();
        Ok(Some(all.map_err(duplicating)?))
    }
}

fn duplicating(source: std::io::Error) -> IoError {
    IoError::Socket { what: "duplicating kernel sockets".into(), source }
}

/// What a data path keeps for the next process.
#[derive(Debug, Default)]
pub(crate) struct HandedOn {
    sockets: Vec<Vec<OwnedFd>>,
    /// Of each worker's kernel sockets.
    pub(crate) pauses: Vec<ReceivePause>,
    /// Interfaces have been given up, and stay so.
    pub(crate) is_down: bool,
}

impl HandedOn {
    pub(crate) fn keep(&mut self, workers: &[UdpSockets]) -> Result<(), Error> {
        let all: std::io::Result<_> = workers.iter().map(UdpSockets::duplicate).collect();
        self.sockets = all.map_err(duplicating)?;
        Ok(())
    }
}

impl DataPath {
    /// The kernel sockets, by worker and in the order of the listen addresses; none unless they were to be kept.
    pub fn sockets(&self) -> Vec<Vec<BorrowedFd<'_>>> {
        self.handed_on.sockets.iter().map(|fds| fds.iter().map(AsFd::as_fd).collect()).collect()
    }

    /// Gives up AF_XDP, in favour of a process that wants it: programs first, and when the workers have taken from the rings
    /// what had come, the sockets. Kernel sockets serve from then on.
    pub fn step_down(&mut self) {
        self.handed_on.is_down = true;
        self.napi = None;
        let indices: Vec<u32> = self.interfaces.iter().map(|interface| interface.index).collect();
        if indices.is_empty() {
            return;
        }
        for index in &indices {
            self.close_program(*index, Cause::Upgrade, Instant::now());
        }
        std::thread::sleep(AFTERMATH);
        indices.into_iter().for_each(|index| self.take_back(index));
    }

    /// Takes AF_XDP up again.
    pub fn step_up(&mut self) {
        self.handed_on.is_down = false;
        self.upkeep.retry_all(Instant::now());
        self.maintain();
        match napi::defer(&self.config.io, &self.interfaces) {
            Ok(guard) => self.napi = guard,
            Err(error) => tracing::warn!("[io.napi] not applied again: {error}"),
        }
    }

    /// Has the kernel sockets receive nothing more, or receive again. Workers see it in their next turn.
    pub fn set_receiving(&self, receives: bool) {
        let tell = if receives { ReceivePause::resume } else { ReceivePause::pause };
        self.handed_on.pauses.iter().for_each(tell);
    }

    /// No worker receives any more by kernel sockets.
    pub fn is_paused(&self) -> bool {
        self.handed_on.pauses.iter().all(ReceivePause::is_paused)
    }

    /// Closes what was kept for the next process, which has it, and disconnects from an agent: what is left to do needs none.
    pub fn hand_on(&mut self) {
        self.handed_on.sockets.clear();
        if let Provider::Agent(client) = &self.provider {
            client.leave();
        }
    }
}
