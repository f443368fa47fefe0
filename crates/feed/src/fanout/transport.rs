//! A subscriber's connection: bytes out and in, in the clear or over TLS. It never blocks.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use boring::ssl::{ErrorCode, ShutdownResult, SslStream};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown, sockopt};

use super::stats::Reason;

/// Plaintext that goes into one TLS record (RFC 8446, section 5.1).
const RECORD: usize = 16_384;

/// Bytes that TLS's socket is asked for at a time.
const READ_AHEAD: usize = 4096;

/// Why nothing was sent or received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Not now: no room, or nothing there.
    Later,
    /// Not any more.
    Gone(Reason),
}

/// A connection.
pub(crate) enum Transport {
    Plain(Arc<OwnedFd>),
    Tls(Box<SslStream<TlsSocket>>),
}

/// The socket under TLS: writes go to a buffer, so that a record is never given to the TLS library twice.
/// The buffer holds what one call writes: a record, or a flight of the handshake. Reads come from another,
/// so that a peer which sends one-byte records does not cause a system call for each; and it reads the
/// socket only as often as allowed.
pub(crate) struct TlsSocket {
    socket: Arc<OwnedFd>,
    out: Vec<u8>,
    sent: usize,
    /// Read and not taken; no memory while the socket has nothing.
    input: Vec<u8>,
    taken: usize,
    /// Bytes that the socket gave.
    received: u64,
    /// Reads of the socket that are left, before others have their turn.
    reads: usize,
    /// It was asked for more than that.
    starved: bool,
}

impl TlsSocket {
    pub(crate) fn new(socket: Arc<OwnedFd>) -> Self {
        Self {
            socket,
            out: Vec::new(),
            sent: 0,
            input: Vec::new(),
            taken: 0,
            received: 0,
            reads: 0,
            starved: false,
        }
    }

    /// Allows so many more reads of the socket, of up to [`READ_AHEAD`] bytes.
    pub(crate) fn allow(&mut self, reads: usize) {
        (self.reads, self.starved) = (reads, false);
    }

    /// Whether more may be there than it was allowed to read: the socket won't tell that again.
    pub(crate) fn is_starved(&self) -> bool {
        self.starved
    }

    /// Bytes that the socket gave.
    pub(crate) fn received(&self) -> u64 {
        self.received
    }

    fn read_ahead(&mut self) -> io::Result<()> {
        if self.reads == 0 {
            self.starved = true;
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.reads -= 1;
        self.taken = 0;
        self.input.resize(READ_AHEAD, 0);
        match recv(&*self.socket, &mut self.input[..], RecvFlags::DONTWAIT) {
            Ok((length, _)) => {
                self.input.truncate(length);
                self.received += length as u64;
                Ok(())
            }
            Err(error) => {
                self.input = Vec::new();
                Err(error.into())
            }
        }
    }

    /// Sends what was written. False if the socket has no room for all of it.
    pub(crate) fn drain(&mut self) -> Result<bool, Reason> {
        while self.sent < self.out.len() {
            match send_some(&self.socket, &self.out[self.sent..]) {
                Ok(sent) => self.sent += sent,
                Err(Refused::Later) => return Ok(false),
                Err(Refused::Gone(reason)) => return Err(reason),
            }
        }
        self.out.clear();
        self.sent = 0;
        Ok(true)
    }
}

impl Read for TlsSocket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.taken == self.input.len() {
            self.read_ahead()?;
        }
        let rest = &self.input[self.taken..];
        let length = rest.len().min(buffer.len());
        buffer[..length].copy_from_slice(&rest[..length]);
        self.taken += length;
        Ok(length)
    }
}

impl Write for TlsSocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Transport {
    /// Takes as much of `bytes` as there is room for. What was taken is on its way, also when [`Self::drain`]
    /// is still needed to bring the end of it into the socket.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<usize, Refused> {
        match self {
            Self::Plain(socket) => send_some(socket, bytes),
            Self::Tls(stream) => {
                if !stream.get_mut().drain().map_err(Refused::Gone)? {
                    return Err(Refused::Later);
                }
                let taken =
                    stream.ssl_write(&bytes[..bytes.len().min(RECORD)]).map_err(|error| refused(&error))?;
                stream.get_mut().drain().map_err(Refused::Gone)?;
                Ok(taken)
            }
        }
    }

    /// Writes accepted data to the socket. True when nothing is left.
    pub(crate) fn drain(&mut self) -> Result<bool, Reason> {
        match self {
            Self::Plain(_) => Ok(true),
            Self::Tls(stream) => stream.get_mut().drain(),
        }
    }

    /// Before it receives: how often TLS may read its socket, until [`Self::is_starved`] says so.
    pub(crate) fn allow(&mut self, reads: usize) {
        if let Self::Tls(stream) = self {
            stream.get_mut().allow(reads);
        }
    }

    /// Whether TLS has more to read than it was allowed to.
    pub(crate) fn is_starved(&self) -> bool {
        matches!(self, Self::Tls(stream) if stream.get_ref().is_starved())
    }

    /// Bytes that TLS got from its socket, which may be many more than it handed on.
    pub(crate) fn wire_received(&self) -> Option<u64> {
        match self {
            Self::Plain(_) => None,
            Self::Tls(stream) => Some(stream.get_ref().received()),
        }
    }

    /// Receives what is available. 0: the peer will send nothing more.
    pub(crate) fn receive(&mut self, buffer: &mut [u8]) -> Result<usize, Refused> {
        match self {
            Self::Plain(socket) => loop {
                match recv(&**socket, &mut *buffer, RecvFlags::DONTWAIT) {
                    Ok((length, _)) => return Ok(length),
                    Err(Errno::INTR) => {}
                    Err(error) => return Err(of_errno(error)),
                }
            },
            Self::Tls(stream) => match stream.ssl_read(buffer) {
                Ok(length) => Ok(length),
                Err(error) if error.code() == ErrorCode::ZERO_RETURN => Ok(0),
                Err(error) => Err(refused(&error)),
            },
        }
    }

    /// Closes the connection normally: accepted data arrives, then the end.
    pub(crate) fn close(&mut self) {
        if let Self::Tls(stream) = self {
            // A peer that is gone needs no close_notify; a full socket gets none.
            let sent = matches!(stream.shutdown(), Ok(ShutdownResult::Sent | ShutdownResult::Received));
            let _ = sent && stream.get_mut().drain().unwrap_or(false);
        }
        let socket = self.socket();
        let _ = shutdown(socket, Shutdown::Write);
        // Closing a socket with unread data resets the connection, which may cost the peer data still in
        // flight. A peer that has sent more than this has asked for it.
        let mut scratch = [0; 4096];
        for _ in 0..16 {
            if !matches!(recv(&**socket, &mut scratch, RecvFlags::DONTWAIT), Ok((1.., _))) {
                break;
            }
        }
    }

    /// Ends the connection by a reset, so that the peer cannot take a partial frame for a whole one.
    pub(crate) fn abort(&mut self) {
        let _ = sockopt::set_socket_linger(self.socket(), Some(Duration::ZERO));
    }

    pub(crate) fn socket(&self) -> &Arc<OwnedFd> {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(stream) => &stream.get_ref().socket,
        }
    }
}

/// What the TLS library's error means.
pub(crate) fn refused(error: &boring::ssl::Error) -> Refused {
    match error.code() {
        ErrorCode::WANT_READ | ErrorCode::WANT_WRITE => Refused::Later,
        ErrorCode::ZERO_RETURN => Refused::Gone(Reason::Closed),
        _ => match error.io_error().and_then(Errno::from_io_error) {
            Some(errno) => of_errno(errno),
            // The end of the stream without close_notify.
            None if error.io_error().is_some() || error.ssl_error().is_none() => {
                Refused::Gone(Reason::Closed)
            }
            None => Refused::Gone(Reason::Protocol),
        },
    }
}

fn send_some(socket: &OwnedFd, bytes: &[u8]) -> Result<usize, Refused> {
    loop {
        match send(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(sent) => return Ok(sent),
            Err(Errno::INTR) => {}
            Err(error) => return Err(of_errno(error)),
        }
    }
}

fn of_errno(error: Errno) -> Refused {
    match error {
        Errno::AGAIN | Errno::INTR | Errno::NOBUFS => Refused::Later,
        _ => Refused::Gone(reason(error)),
    }
}

/// Why a connection with this error has ended.
pub(crate) fn reason(error: Errno) -> Reason {
    match error {
        Errno::PIPE => Reason::Closed,
        Errno::TIMEDOUT | Errno::HOSTUNREACH | Errno::NETUNREACH => Reason::TimedOut,
        _ => Reason::Reset,
    }
}
