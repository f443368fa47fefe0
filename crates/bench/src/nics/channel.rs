//! The control connection: length and JSON in TLS, with bounds on size and time.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use boring::ssl::{ErrorCode, HandshakeError, Ssl, SslStream};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::token::Token;

/// The longest message; reports of load programs are a few kilobytes.
pub(super) const MESSAGE_MAX: usize = 256 * 1024;

/// How long a handshake, and sending one message, may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// Keep-alive packets detect a vanished peer within about this time.
const VANISHED: Duration = Duration::from_secs(12);

/// Why a connection failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ChannelError {
    #[error("no answer within {} s", .0.as_secs())]
    Slow(Duration),
    #[error("connection closed")]
    Closed,
    #[error("connection failed: {0}")]
    Io(#[from] std::io::Error),
    #[error("TLS: {0}; both ends need the same token")]
    Handshake(String),
    #[error("message of {0} bytes exceeds the maximum of {MESSAGE_MAX}")]
    TooLong(usize),
    #[error("malformed message: {0}")]
    Garbage(String),
}

/// A connection whose two ends have the same token.
pub(super) struct Channel {
    stream: SslStream<TcpStream>,
    input: Vec<u8>,
}

impl Channel {
    /// To the far end.
    pub(super) fn connect(to: SocketAddr, token: &Token) -> Result<Self, ChannelError> {
        let stream = TcpStream::connect_timeout(&to, PATIENCE)?;
        let context = token.client().map_err(handshake)?;
        let tls = Ssl::new(&context).map_err(handshake)?;
        prepare(&stream)?;
        Self::shake(tls.connect(stream))
    }

    /// From a near end.
    pub(super) fn accept(stream: TcpStream, token: &Token) -> Result<Self, ChannelError> {
        let context = token.server().map_err(handshake)?;
        let tls = Ssl::new(&context).map_err(handshake)?;
        prepare(&stream)?;
        Self::shake(tls.accept(stream))
    }

    fn shake(
        mut result: Result<SslStream<TcpStream>, HandshakeError<TcpStream>>,
    ) -> Result<Self, ChannelError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match result {
                Ok(stream) => return Ok(Self { stream, input: Vec::new() }),
                Err(HandshakeError::WouldBlock(middle)) => {
                    let wanted = match middle.error().code() {
                        ErrorCode::WANT_WRITE => PollFlags::OUT,
                        _ => PollFlags::IN,
                    };
                    if !wait(middle.get_ref(), wanted, deadline)? {
                        return Err(ChannelError::Slow(PATIENCE));
                    }
                    result = middle.handshake();
                }
                Err(HandshakeError::SetupFailure(error)) => return Err(handshake(error)),
                Err(HandshakeError::Failure(middle)) => return Err(handshake(middle.error())),
            }
        }
    }

    /// The socket, to wait for.
    pub(super) fn socket(&self) -> &TcpStream {
        self.stream.get_ref()
    }

    /// Sends a message.
    pub(super) fn send(&mut self, message: &impl Serialize) -> Result<(), ChannelError> {
        let text = serde_json::to_vec(message).map_err(|error| ChannelError::Garbage(error.to_string()))?;
        if text.len() > MESSAGE_MAX {
            return Err(ChannelError::TooLong(text.len()));
        }
        let bytes = [&(text.len() as u32).to_be_bytes()[..], &text].concat();
        let deadline = Instant::now() + PATIENCE;
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            match self.stream.write(rest) {
                Ok(written) => rest = &rest[written..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if !wait(self.stream.get_ref(), PollFlags::OUT, deadline)? {
                        return Err(ChannelError::Slow(PATIENCE));
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// The next message; waits for it until the deadline.
    pub(super) fn receive<T: DeserializeOwned>(&mut self, within: Duration) -> Result<T, ChannelError> {
        let deadline = Instant::now() + within;
        loop {
            if let Some(message) = self.take()? {
                return Ok(message);
            }
            if !wait(self.stream.get_ref(), PollFlags::IN, deadline)? {
                return Err(ChannelError::Slow(within));
            }
        }
    }

    /// The next message, if it is complete; does not wait.
    pub(super) fn take<T: DeserializeOwned>(&mut self) -> Result<Option<T>, ChannelError> {
        let mut chunk = [0; 4096];
        loop {
            if let Some(length) = self.input.first_chunk::<4>() {
                let length = u32::from_be_bytes(*length) as usize;
                if length > MESSAGE_MAX {
                    return Err(ChannelError::TooLong(length));
                }
                if let Some(text) = self.input.get(4..4 + length) {
                    let message = serde_json::from_slice(text)
                        .map_err(|error| ChannelError::Garbage(error.to_string()))?;
                    self.input.drain(..4 + length);
                    return Ok(Some(message));
                }
            }
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(ChannelError::Closed),
                Ok(read) => self.input.extend_from_slice(&chunk[..read]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Err(ChannelError::Closed),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn handshake(error: impl std::fmt::Display) -> ChannelError {
    ChannelError::Handshake(error.to_string())
}

/// Makes the socket non-blocking, with keep-alive.
fn prepare(stream: &TcpStream) -> Result<(), ChannelError> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    let probe = Duration::from_secs(2);
    let set = || -> rustix::io::Result<()> {
        sockopt::set_socket_keepalive(stream, true)?;
        sockopt::set_tcp_keepidle(stream, probe)?;
        sockopt::set_tcp_keepintvl(stream, probe)?;
        sockopt::set_tcp_keepcnt(stream, 5)?;
        sockopt::set_tcp_user_timeout(stream, VANISHED.as_millis() as u32)
    };
    set().map_err(std::io::Error::from)?;
    Ok(())
}

/// Waits until a socket is ready, or false at the deadline.
fn wait(stream: &TcpStream, wanted: PollFlags, deadline: Instant) -> Result<bool, ChannelError> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        match ready(&mut [PollFd::new(stream, wanted)], left) {
            Ok(0) => {}
            Ok(_) => return Ok(true),
            Err(error) => return Err(error.into()),
        }
    }
}

/// poll(2) for at most so long; how many are ready.
pub(super) fn ready(descriptors: &mut [PollFd<'_>], within: Duration) -> std::io::Result<usize> {
    let within = Timespec { tv_sec: within.as_secs() as i64, tv_nsec: i64::from(within.subsec_nanos()) };
    match poll(descriptors, Some(&within)) {
        Ok(count) => Ok(count),
        Err(rustix::io::Errno::INTR) => Ok(0),
        Err(error) => Err(error.into()),
    }
}
