//! Outputs: how datagrams are sent.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use expressway_netio::{IoError, PacketIo};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use super::plan::Datagrams;

/// How long one send waits for room in a full socket buffer before it gives its turn back.
const ROOM: Duration = Duration::from_millis(1);

/// Why an output is of no further use.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// A socket.
    #[error(transparent)]
    Io(#[from] IoError),
    /// Anything else, in one line.
    #[error("{0}")]
    Other(String),
}

/// What became of datagrams that an output took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Handed to the device or the kernel.
    pub sent: u64,
    /// Their bytes of payload.
    pub bytes: u64,
    /// Refused by the kernel or the device: ENOBUFS, EPERM, EMSGSIZE, a full ring.
    pub refused: u64,
    /// Given up because a socket buffer had no room for too long, or waiting for room still.
    pub no_room: u64,
    /// Times that a socket buffer or ring was full, so that datagrams waited (EAGAIN).
    pub full: u64,
    /// Of [`Self::sent`], what took the kernel's socket though AF_XDP was to send it.
    pub fallback: u64,
    /// System calls to send.
    pub calls: u64,
}

/// Sends datagrams.
pub trait Output {
    /// Sends as many of `datagrams` as it can, in order, and returns how many. If fewer than all, it is full
    /// and will be called again.
    ///
    /// # Errors
    /// What ends the run.
    fn send(&mut self, datagrams: &Datagrams<'_>) -> Result<usize, OutputError>;

    /// Looks after the output itself, now and then, while nothing is received.
    ///
    /// # Errors
    /// What ends the run.
    fn upkeep(&mut self) -> Result<(), OutputError> {
        Ok(())
    }

    /// Delivers datagrams received for the flows' sources, and maintains the output itself. Does not block.
    ///
    /// # Errors
    /// What ends the run.
    fn receive(&mut self, sink: &mut dyn FnMut(&[u8])) -> Result<usize, OutputError>;

    /// Sleeps for at most `pause`, less if something has come.
    ///
    /// # Errors
    /// What ends the run.
    fn wait(&mut self, pause: Duration) -> Result<(), OutputError>;

    /// What became of everything so far.
    fn tally(&self) -> Tally;
}

/// Sends by packet I/O: kernel sockets, AF_XDP, or both.
pub struct PacketOutput<P> {
    io: P,
    /// AF_XDP was to send.
    xsk: bool,
    full: u64,
    /// What wakes the output, with the generation of the descriptors in it.
    watched: Option<(u64, OwnedFd)>,
}

impl<P: PacketIo> PacketOutput<P> {
    /// Sends by `io`. `xsk`: it is to send by AF_XDP.
    pub fn new(io: P, xsk: bool) -> Self {
        Self { io, xsk, full: 0, watched: None }
    }

    /// Waits for room in a full socket. False if there is currently none.
    fn drain(&mut self) -> Result<bool, OutputError> {
        if self.io.waiting() == 0 {
            return Ok(true);
        }
        self.full += 1;
        self.sleep(ROOM)?;
        self.io.flush(Instant::now())?;
        Ok(self.io.waiting() == 0)
    }

    /// Sleeps until a descriptor of the backend has something, or the pause is over.
    fn sleep(&mut self, pause: Duration) -> Result<(), OutputError> {
        if self.io.prepare_sleep() {
            return Ok(());
        }
        let fail = |what: &str, errno: Errno| OutputError::Other(format!("{what}: {errno}"));
        let generation = self.io.descriptors_generation();
        if self.watched.as_ref().is_none_or(|(seen, _)| *seen != generation) {
            let events =
                epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|errno| fail("epoll_create", errno))?;
            let mut result = Ok(());
            self.io.descriptors(&mut |fd| {
                let added = epoll::add(&events, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN);
                result = result.and(added);
            });
            result.map_err(|errno| fail("epoll_ctl", errno))?;
            self.watched = Some((generation, events));
        }
        let Some((_, events)) = &self.watched else { return Ok(()) };
        let pause = Timespec { tv_sec: pause.as_secs() as i64, tv_nsec: pause.subsec_nanos().into() };
        let mut buffer =
            [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; 8];
        match epoll::wait(events, &mut buffer[..], Some(&pause)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(fail("epoll_wait", errno)),
        }
    }
}

impl<P: PacketIo> Output for PacketOutput<P> {
    fn send(&mut self, datagrams: &Datagrams<'_>) -> Result<usize, OutputError> {
        if !self.drain()? {
            return Ok(0);
        }
        let dues = datagrams.dues();
        let mut taken = 0;
        while let Some(first) = dues.get(taken) {
            // A burst for the backend: datagrams of one flow.
            let run = dues[taken..].iter().take_while(|due| due.flow == first.flow).count();
            let burst = &dues[taken..taken + run];
            let segment = burst.iter().map(|due| due.length).max().unwrap_or(0).max(1);
            let mut written = 0;
            let sent =
                self.io.transmit(&datagrams.flow(first), segment, &mut |slice| match burst.get(written) {
                    Some(due) => {
                        written += 1;
                        datagrams.write(due, slice)
                    }
                    None => 0,
                })?;
            taken += written;
            if sent.blocked && written < run {
                self.full += 1;
                break;
            }
            if written == 0 {
                break;
            }
        }
        self.io.flush(Instant::now())?;
        self.drain()?;
        Ok(taken)
    }

    fn upkeep(&mut self) -> Result<(), OutputError> {
        // Kernel sockets need no maintenance, and polling a thousand of them takes as long as the interval
        // between some datagrams.
        if self.xsk {
            self.io.receive(Instant::now(), &mut |_| {})?;
        }
        Ok(())
    }

    fn receive(&mut self, sink: &mut dyn FnMut(&[u8])) -> Result<usize, OutputError> {
        Ok(self.io.receive(Instant::now(), &mut |datagram| sink(datagram.payload))?)
    }

    fn wait(&mut self, pause: Duration) -> Result<(), OutputError> {
        self.sleep(pause)
    }

    fn tally(&self) -> Tally {
        let stats = self.io.stats();
        let fallback = if self.xsk { stats.tx_kernel_packets } else { 0 };
        Tally {
            sent: stats.tx_xsk_packets + stats.tx_kernel_packets,
            bytes: stats.tx_xsk_bytes + stats.tx_kernel_bytes,
            refused: stats.dropped_send_refused,
            no_room: stats.dropped_no_buffer + self.io.waiting() as u64,
            full: self.full,
            fallback,
            calls: stats.tx_syscalls,
        }
    }
}
