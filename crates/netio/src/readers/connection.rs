//! The reader's end of the connection to a receiver.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{self, RecvFlags, SocketFlags};

use super::ReaderError;
use super::listener::{receive_greeting, seqpacket};

/// A connection, and the errors that name it.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: OwnedFd,
    path: PathBuf,
}

/// What the other side sent first: its message, and the descriptors that came with it.
pub(crate) type Greeting = (Vec<u8>, [Option<OwnedFd>; 2]);

impl Connection {
    /// Connects to who listens at `path`, and waits for its greeting of at most `length` bytes.
    pub(crate) fn dial(path: &Path, length: usize) -> Result<(Self, Greeting), ReaderError> {
        let path = path.to_owned();
        let failed = |step| {
            let path = path.clone();
            move |source: io::Error| ReaderError::Socket { path, step, source }
        };
        let (socket, address) = seqpacket(&path, SocketFlags::empty()).map_err(failed("socket"))?;
        net::connect(&socket, &address).map_err(|errno| failed("connect")(errno.into()))?;
        let greeting = receive_greeting(&socket, length).map_err(failed("recvmsg"))?;
        Ok((Self { socket, path }, greeting))
    }

    /// Sleeps until something comes or `timeout` is over (`None`: for ever). All wake-ups that wait are one.
    ///
    /// # Errors
    /// [`ReaderError::Gone`] when the other side closed the connection.
    pub(crate) fn sleep(&self, timeout: Option<Duration>) -> Result<(), ReaderError> {
        let timeout = timeout.and_then(|time| Timespec::try_from(time).ok());
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(()),
            Ok(_) => {}
            Err(errno) => return Err(self.failed("poll")(errno.into())),
        }
        // As many as fit a socket buffer.
        loop {
            let mut byte = [0u8; 1];
            match net::recv(&self.socket, &mut byte[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(self.gone()),
                Ok(_) => {}
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(()),
                Err(_) => return Err(self.gone()),
            }
        }
    }

    /// A step failed.
    pub(crate) fn failed(&self, step: &'static str) -> impl FnOnce(io::Error) -> ReaderError + use<> {
        let path = self.path.clone();
        move |source| ReaderError::Socket { path, step, source }
    }

    /// The greeting is none that is understood.
    pub(crate) fn foreign(&self, what: impl Into<String>) -> ReaderError {
        ReaderError::Foreign { path: self.path.clone(), what: what.into() }
    }

    /// The greeting says no.
    pub(crate) fn refused(&self, reason: &'static str) -> ReaderError {
        ReaderError::Refused { path: self.path.clone(), reason }
    }

    /// The other side is gone, or not to be trusted.
    pub(crate) fn gone(&self) -> ReaderError {
        ReaderError::Gone { path: self.path.clone() }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
