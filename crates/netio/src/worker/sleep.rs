//! Where a worker sleeps: epoll over the backend's descriptors and the mailbox's eventfd.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use super::busy_poll;
use crate::io::{IoError, PacketIo};
use crate::mailbox::Inbox;
use crate::wait::Wait;

/// Which descriptors woke the worker does not matter, as each turn asks them all; one event is enough to
/// end the sleep, and a few are taken so that edge-triggered ones do not wake it again.
const EVENTS: usize = 8;

pub(super) struct Poller {
    epoll: OwnedFd,
    generation: u64,
    worker: usize,
    wait: Wait,
    /// The last wait was ended by a descriptor.
    woken: bool,
    /// Wake-ups by a descriptor in a row that nothing came of.
    fruitless: u32,
}

impl Poller {
    pub(super) fn new<M>(
        io: &impl PacketIo,
        inbox: &Inbox<M>,
        worker: usize,
        wait: Wait,
    ) -> Result<Self, IoError> {
        let generation = io.descriptors_generation();
        let epoll = watch(io, inbox, wait).map_err(|error| failed(worker, "watch descriptors", error))?;
        let poller = Self { epoll, generation, worker, wait, woken: false, fruitless: 0 };
        poller.prefer_busy_poll()?;
        Ok(poller)
    }

    /// Makes `epoll_wait` poll the device, if that is the strategy.
    fn prefer_busy_poll(&self) -> Result<(), IoError> {
        let Wait::BusyPoll(poll) = self.wait else { return Ok(()) };
        match busy_poll::set(self.epoll.as_fd(), poll) {
            Ok(()) => Ok(()),
            Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => {
                tracing::warn!(
                    worker = self.worker,
                    "epoll busy-poll parameters are not supported (needs Linux 6.9): net.core.busy_poll applies"
                );
                Ok(())
            }
            Err(source) => {
                let what = format!("worker {}: EPIOCSPARAMS (needs CAP_NET_ADMIN)", self.worker);
                Err(IoError::Socket { what, source })
            }
        }
    }

    /// Watches the backend's descriptors anew if they have changed; true when they had.
    ///
    /// The descriptors watched before may be closed and their numbers taken by others: a new epoll
    /// instance makes no assumption.
    pub(super) fn follow<M>(&mut self, io: &impl PacketIo, inbox: &Inbox<M>) -> Result<bool, IoError> {
        let generation = io.descriptors_generation();
        if generation == self.generation {
            return Ok(false);
        }
        self.epoll =
            watch(io, inbox, self.wait).map_err(|error| failed(self.worker, "watch descriptors", error))?;
        self.generation = generation;
        self.prefer_busy_poll()?;
        Ok(true)
    }

    /// Told whether the turn after the last wait was idle; true when a descriptor keeps waking the worker
    /// for nothing.
    pub(super) fn is_stuck(&mut self, idle: bool) -> bool {
        if !(self.woken && idle) {
            self.fruitless = 0;
            return false;
        }
        self.fruitless = self.fruitless.saturating_add(1);
        self.fruitless > super::STUCK_WAKES
    }

    /// Sleeps from `now` on until a descriptor is readable or `until` has come.
    pub(super) fn wait(&mut self, now: Instant, until: Option<Instant>) -> Result<(), IoError> {
        self.woken = false;
        let timeout = match until.map(|until| until.saturating_duration_since(now)) {
            None => None,
            Some(left) if left.is_zero() => return Ok(()),
            Some(left) => Timespec::try_from(left).ok(),
        };
        let mut events = [MaybeUninit::<epoll::Event>::uninit(); EVENTS];
        match epoll::wait(&self.epoll, &mut events, timeout.as_ref()) {
            Ok((woken, _)) => {
                self.woken = !woken.is_empty();
                Ok(())
            }
            // A signal: the service may want to see what it set.
            Err(Errno::INTR) => Ok(()),
            Err(error) => Err(failed(self.worker, "epoll_pwait2", error)),
        }
    }
}

/// An epoll instance over what ends the sleep of a worker that waits so. One that spins never sleeps, and watches
/// nothing: whoever delivers a packet to a socket that is watched has to take the locks of the instance
/// (`ep_poll_callback` in `fs/eventpoll.c`).
fn watch<M>(io: &impl PacketIo, inbox: &Inbox<M>, wait: Wait) -> Result<OwnedFd, Errno> {
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    if matches!(wait, Wait::Spin(_)) {
        return Ok(poll);
    }
    let data = epoll::EventData::new_u64(0);
    // Edge-triggered: each write wakes once, and nobody has to read the eventfd.
    epoll::add(&poll, inbox.as_fd(), data, epoll::EventFlags::IN | epoll::EventFlags::ET)?;
    let mut result = Ok(());
    io.descriptors(&mut |descriptor| {
        if result.is_ok() {
            result = epoll::add(&poll, descriptor, data, epoll::EventFlags::IN);
        }
    });
    result.map(|()| poll)
}

fn failed(worker: usize, what: &str, error: Errno) -> IoError {
    IoError::Socket { what: format!("worker {worker}: {what}"), source: error.into() }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::os::fd::BorrowedFd;

    use super::*;
    use crate::io::{Datagram, Flow, IoStats, Sent};
    use crate::mailbox::mailbox;

    /// Counts how often its descriptors are asked for, of which there are none.
    #[derive(Default)]
    struct Asked(Cell<u32>);

    impl PacketIo for Asked {
        fn receive(&mut self, _: Instant, _: &mut dyn FnMut(Datagram<'_>)) -> Result<usize, IoError> {
            Ok(0)
        }

        fn transmit(
            &mut self,
            _: &Flow,
            _: usize,
            _: &mut dyn FnMut(&mut [u8]) -> usize,
        ) -> Result<Sent, IoError> {
            Ok(Sent::default())
        }

        fn flush(&mut self, _: Instant) -> Result<(), IoError> {
            Ok(())
        }

        fn max_payload(&mut self, _: &Flow) -> usize {
            0
        }

        fn descriptors(&self, _: &mut dyn FnMut(BorrowedFd<'_>)) {
            self.0.set(self.0.get() + 1);
        }

        fn batch(&self) -> usize {
            1
        }

        fn stats(&self) -> IoStats {
            IoStats::default()
        }
    }

    #[test]
    fn who_spins_watches_nothing() {
        let (_sender, inbox) = mailbox::<u32>(1).unwrap();
        for (wait, times) in [(Wait::Interrupt, 1), (Wait::Spin(Default::default()), 0)] {
            let io = Asked::default();
            Poller::new(&io, &inbox, 0, wait).unwrap();
            assert_eq!(io.0.get(), times, "{wait:?}");
        }
    }
}
