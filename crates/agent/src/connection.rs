//! A connection to an agent: one request at a time, each with its answer.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use crate::channel::{Channel, ChannelError, MAX_FDS, Received};
use crate::message::{Reply, Request};

/// A connection to an agent.
#[derive(Debug)]
pub(crate) struct Connection {
    channel: Channel,
    sequence: u32,
}

impl Connection {
    /// Ends it, whoever has it still.
    pub(crate) fn shut(&self) {
        self.channel.shut();
    }

    /// Connects to the agent at `path`. `patience` bounds how long its backlog may be full, and each send.
    pub(crate) fn dial(path: &Path, patience: Duration) -> io::Result<Self> {
        let address = SocketAddrUnix::new(path)?;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        sockopt::set_socket_timeout(&socket, Timeout::Send, Some(patience))?;
        connect(&socket, &address)?;
        Self::over(socket, patience)
    }

    /// Wraps an already connected socket.
    pub(crate) fn over(socket: OwnedFd, patience: Duration) -> io::Result<Self> {
        Ok(Self { channel: Channel::new(socket, patience)?, sequence: 0 })
    }

    /// Whether the agent has closed it.
    pub(crate) fn is_closed(&self) -> bool {
        self.channel.is_closed()
    }

    /// Sends a request and waits for the answer with all of its descriptors.
    pub(crate) fn exchange(
        &mut self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
        patience: Duration,
    ) -> Result<(Reply, Vec<OwnedFd>), ChannelError> {
        self.sequence = self.sequence.wrapping_add(1).max(1);
        self.channel.set_receive_timeout(Some(patience))?;
        // An agent that rejects a client sends the reason and closes: the message can still be read.
        let sent = self.channel.send(self.sequence, request, fds);
        if !matches!(sent, Ok(()) | Err(ChannelError::Closed)) {
            sent?;
        }
        let mut gathered = Vec::new();
        loop {
            let Received { sequence: of, content, fds } = self.channel.receive::<Reply>(MAX_FDS)?;
            match content {
                // An answer to a request that had timed out.
                _ if of != self.sequence && of != 0 => {}
                Reply::Sockets { remaining } if remaining > 0 => gathered.extend(fds),
                content => {
                    gathered.extend(fds);
                    return Ok((content, gathered));
                }
            }
        }
    }
}
