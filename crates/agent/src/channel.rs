//! One message per datagram over a SOCK_SEQPACKET unix socket, together with file descriptors.
//!
//! ```text
//!   0        4         6          8           12         16
//!   ├ "XWAG" ┼ version ┼ fd count ┼ sequence ─┼ length ──┼ JSON, `length` bytes ─┤     little endian
//! ```
//!
//! A datagram is an error, before any of it is parsed, if its length or its number of descriptors differs from
//! what its header says, or if it is longer than [`MAX_MESSAGE`]. Its descriptors are then closed. A reply has
//! the sequence number of its request, so a late reply is recognised.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Version of the protocol.
pub const VERSION: u16 = 2;
/// The longest message, header included: 16 KiB hold the description of an interface many times over.
pub const MAX_MESSAGE: usize = 16 << 10;
/// The maximum number of descriptors in a message.
pub const MAX_FDS: usize = 64;
/// The kernel's limit per message (`SCM_MAX_FD`).
const KERNEL_FDS: usize = 253;

const MAGIC: [u8; 4] = *b"XWAG";
const HEADER: usize = 16;
/// Maximum length of a description of a malformed message, which may quote the message.
const COMPLAINT: usize = 160;

/// Why a message could not be sent or understood.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The other side has closed the connection.
    #[error("the connection was closed")]
    Closed,
    /// Nothing was received, or nothing was accepted, in time.
    #[error("timed out")]
    Timeout,
    /// The message is malformed.
    #[error("malformed message: {0}")]
    Malformed(String),
    /// The other side speaks a different version.
    #[error("protocol version mismatch: the other side speaks {0}, this one {VERSION}")]
    Version(u16),
    /// The kernel's error.
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl ChannelError {
    /// Whether the connection is unusable. Late answers are recognised by their number, so a timeout does
    /// not end it.
    pub fn ends_the_connection(&self) -> bool {
        !matches!(self, Self::Timeout)
    }
}

/// One end of a connection.
#[derive(Debug)]
pub struct Channel {
    socket: OwnedFd,
    of_stranger: bool,
}

/// A received message.
#[derive(Debug)]
pub struct Received<T> {
    /// Its sequence number.
    pub sequence: u32,
    /// Its content.
    pub content: T,
    /// The descriptors that came with it.
    pub fds: Vec<OwnedFd>,
}

impl Channel {
    /// Wraps a connected SOCK_SEQPACKET socket. `patience` bounds each send.
    ///
    /// # Errors
    /// The kernel's, if it is not a socket.
    pub fn new(socket: OwnedFd, patience: Duration) -> io::Result<Self> {
        sockopt::set_socket_timeout(&socket, Timeout::Send, Some(patience))?;
        Ok(Self { socket, of_stranger: false })
    }

    /// The same for an untrusted peer: its useless descriptors stay open until the thread that received them
    /// ends, in its own descriptor table ([`crate::table`]).
    ///
    /// # Errors
    /// As [`Channel::new`].
    #[cfg(feature = "server")]
    pub(crate) fn of_stranger(socket: OwnedFd, patience: Duration) -> io::Result<Self> {
        Ok(Self { of_stranger: true, ..Self::new(socket, patience)? })
    }

    /// Bounds each receive; `None` waits for ever.
    ///
    /// # Errors
    /// The kernel's.
    pub fn set_receive_timeout(&self, patience: Option<Duration>) -> io::Result<()> {
        Ok(sockopt::set_socket_timeout(&self.socket, Timeout::Recv, patience)?)
    }

    /// Sends a message with up to [`MAX_FDS`] descriptors.
    ///
    /// # Errors
    /// [`ChannelError::Malformed`] for one that is too long; the others as they come.
    pub fn send<T: Serialize>(
        &self,
        sequence: u32,
        content: &T,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), ChannelError> {
        let message = encode(sequence, content, fds.len())?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(too_much("many descriptors"));
        }
        loop {
            let parts = [IoSlice::new(&message)];
            match rustix::net::sendmsg(&self.socket, &parts, &mut control, SendFlags::NOSIGNAL) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(failed(errno)),
            }
        }
    }

    /// Receives a message with at most `most` descriptors.
    ///
    /// # Errors
    /// [`ChannelError`]; after [`ChannelError::Malformed`] or [`ChannelError::Version`] the connection is of no
    /// use any more.
    pub fn receive<T: DeserializeOwned>(&self, most: usize) -> Result<Received<T>, ChannelError> {
        let mut buffer = vec![0; MAX_MESSAGE];
        let mut fds = Vec::new();
        // Room for everything that anybody can send: the kernel closes descriptors without room, which may
        // take as long as their sender likes.
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(KERNEL_FDS))];
        let mut was_reset = false;
        let (length, flags) = loop {
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut parts = [IoSliceMut::new(&mut buffer)];
            match rustix::net::recvmsg(&self.socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Ok(received) => {
                    for message in control.drain() {
                        if let RecvAncillaryMessage::ScmRights(rights) = message {
                            fds.extend(rights);
                        }
                    }
                    break (received.bytes, received.flags);
                }
                Err(Errno::INTR) => {}
                // The other side closed before it had read everything. The kernel reports that once, before
                // what that side sent last (`sock_error` in `__skb_try_recv_datagram`, net/core/datagram.c).
                Err(Errno::CONNRESET) if !was_reset => was_reset = true,
                Err(errno) => return Err(failed(errno)),
            }
        };
        match understand(&buffer[..length], flags, fds.len(), most) {
            Ok((sequence, content)) => Ok(Received { sequence, content, fds }),
            Err(error) => {
                if self.of_stranger {
                    std::mem::forget(fds);
                }
                Err(error)
            }
        }
    }

    /// Whether the other side has closed the connection. Does not consume anything.
    pub fn is_closed(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut fds = [PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::RDHUP)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(poll(&mut fds, Some(&at_once)), Ok(1..))
            && fds[0].revents().intersects(PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR)
    }
}

impl Channel {
    /// Shuts the connection down for the other side too, even if others hold descriptors of it.
    pub(crate) fn shut(&self) {
        // It may have ended already.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Parses a message that came with `fds` descriptors.
fn understand<T: DeserializeOwned>(
    message: &[u8],
    flags: ReturnFlags,
    fds: usize,
    most: usize,
) -> Result<(u32, T), ChannelError> {
    if message.is_empty() {
        return Err(ChannelError::Closed);
    }
    if flags.contains(ReturnFlags::TRUNC) {
        return Err(malformed(format!("longer than {MAX_MESSAGE} bytes")));
    }
    if flags.contains(ReturnFlags::CTRUNC) {
        return Err(malformed("more descriptors than this process can receive".to_owned()));
    }
    let (sequence, body) = header(message, fds)?;
    if fds > most {
        return Err(malformed(format!("{fds} descriptors, at most {most} allowed")));
    }
    Ok((sequence, content(body)?))
}

/// The bytes of a message that goes with `fds` descriptors.
///
/// # Errors
/// [`ChannelError::Malformed`] for one that is too long, or for too many descriptors.
pub fn encode<T: Serialize>(sequence: u32, content: &T, fds: usize) -> Result<Vec<u8>, ChannelError> {
    let body = serde_json::to_vec(content).map_err(|error| ChannelError::Malformed(error.to_string()))?;
    if HEADER + body.len() > MAX_MESSAGE {
        return Err(too_much("long"));
    }
    if fds > MAX_FDS {
        return Err(too_much("many descriptors"));
    }
    let mut message = Vec::with_capacity(HEADER + body.len());
    message.extend_from_slice(&MAGIC);
    message.extend_from_slice(&VERSION.to_le_bytes());
    message.extend_from_slice(&(fds as u16).to_le_bytes());
    message.extend_from_slice(&sequence.to_le_bytes());
    message.extend_from_slice(&(body.len() as u32).to_le_bytes());
    message.extend_from_slice(&body);
    Ok(message)
}

/// The sequence number and content of a message that came with `fds` descriptors.
///
/// # Errors
/// [`ChannelError::Malformed`] and [`ChannelError::Version`].
pub fn decode<T: DeserializeOwned>(message: &[u8], fds: usize) -> Result<(u32, T), ChannelError> {
    let (sequence, body) = header(message, fds)?;
    Ok((sequence, content(body)?))
}

fn content<T: DeserializeOwned>(body: &[u8]) -> Result<T, ChannelError> {
    serde_json::from_slice(body).map_err(|error| malformed(printable(&error.to_string(), COMPLAINT)))
}

/// Text of the other side for a log line: limited in length, with control characters escaped.
pub(crate) fn printable(text: &str, most: usize) -> String {
    let mut out = String::new();
    for (count, character) in text.chars().enumerate() {
        match character {
            _ if count == most => {
                out.push('…');
                break;
            }
            '\'' | '"' | '\\' => out.push(character),
            other => out.extend(other.escape_debug()),
        }
    }
    out
}

fn too_much(what: &str) -> ChannelError {
    ChannelError::Malformed(format!("too {what} to send"))
}

/// Checks the header; returns the sequence number and the body.
fn header(message: &[u8], fds: usize) -> Result<(u32, &[u8]), ChannelError> {
    let Some((head, body)) = message.split_first_chunk::<HEADER>() else {
        return Err(malformed(format!("{} bytes, shorter than the header", message.len())));
    };
    let half = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
    let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    if head[..4] != MAGIC {
        return Err(malformed("wrong magic".to_owned()));
    }
    if half(4) != VERSION {
        return Err(ChannelError::Version(half(4)));
    }
    if usize::from(half(6)) != fds {
        return Err(malformed(format!("{} descriptors announced, {fds} received", half(6))));
    }
    if word(12) as usize != body.len() {
        return Err(malformed(format!("{} bytes announced, {} received", word(12), body.len())));
    }
    Ok((word(8), body))
}

fn malformed(what: String) -> ChannelError {
    ChannelError::Malformed(what)
}

fn failed(errno: Errno) -> ChannelError {
    match errno {
        Errno::AGAIN => ChannelError::Timeout,
        Errno::PIPE | Errno::CONNRESET => ChannelError::Closed,
        errno => ChannelError::Io(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::super::message::{Code, Refusal, Reply, Request};
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(5);

    fn pair() -> (Channel, Channel) {
        let (one, other) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        (Channel::new(one, PATIENCE).unwrap(), Channel::new(other, PATIENCE).unwrap())
    }

    fn raw(version: u16, fds: u16, announced: u32, body: &[u8]) -> Vec<u8> {
        let mut message = MAGIC.to_vec();
        message.extend(version.to_le_bytes());
        message.extend(fds.to_le_bytes());
        message.extend(7u32.to_le_bytes());
        message.extend(announced.to_le_bytes());
        message.extend(body);
        message
    }

    fn refused(bytes: &[u8]) -> ChannelError {
        let (one, other) = pair();
        rustix::net::send(&one, bytes, SendFlags::empty()).unwrap();
        other.receive::<Request>(1).unwrap_err()
    }

    #[test]
    fn messages_and_descriptors_arrive_as_they_were() {
        let (one, other) = pair();
        let request = Request::AddPair { interface: "eth0".into(), pair: "[::1]:443".parse().unwrap() };
        one.send(3, &request, &[one.as_fd(), other.as_fd()]).unwrap();
        let received = other.receive::<Request>(2).unwrap();
        assert_eq!((received.sequence, received.content, received.fds.len()), (3, request, 2));
        let reply = Reply::Refused(Refusal::new(Code::Queue, "no"));
        other.send(3, &reply, &[]).unwrap();
        assert_eq!(one.receive::<Reply>(0).unwrap().content, reply);
    }

    #[test]
    fn malformed_messages_are_named() {
        let good = br#"{"hello":{"client":"x"}}"#;
        let length = good.len() as u32;
        for (bytes, part) in [
            (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "wrong magic"),
            (b"XWAG".to_vec(), "shorter than the header"),
            (raw(VERSION, 0, length + 1, good), "bytes announced"),
            (raw(VERSION, 0, length - 1, good), "bytes announced"),
            (raw(VERSION, 1, length, good), "1 descriptors announced, 0 received"),
            (raw(VERSION, 0, 2, b"{}"), "expected"),
            (raw(VERSION, 0, 13, b"{\"reboot\":{}}"), "unknown variant"),
            (raw(VERSION, 0, length - 1, &good[..good.len() - 1]), "EOF"),
            (raw(VERSION, 0, 37, br#"{"hello":{"client":"x","extra":true}}"#), "unknown field"),
            (raw(VERSION, 0, 4, &[0xff, 0xfe, 0, 1]), "expected value"),
        ] {
            let error = refused(&bytes).to_string();
            assert!(error.contains(part), "{error} has no `{part}`");
        }
        assert!(matches!(refused(&raw(9, 0, length, good)), ChannelError::Version(9)));
    }

    #[test]
    fn oversized_messages_are_refused_at_both_ends() {
        let error = refused(&raw(VERSION, 0, MAX_MESSAGE as u32, &vec![b' '; MAX_MESSAGE])).to_string();
        assert!(error.contains("longer than"), "{error}");
        let (one, _other) = pair();
        let request = Request::Hello { client: "x".repeat(MAX_MESSAGE) };
        assert!(one.send(1, &request, &[]).unwrap_err().to_string().contains("too long"));
    }

    #[test]
    fn more_descriptors_than_may_come_are_refused_and_closed() {
        let (one, other) = pair();
        // The far end of a pipe shows when the last copy of the near end is closed.
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let fds: Vec<_> = (0..3).map(|_| writer.as_fd()).collect();
        one.send(1, &Request::Hello { client: String::new() }, &fds).unwrap();
        drop(writer);
        let error = other.receive::<Request>(1).unwrap_err().to_string();
        assert!(error.contains("3 descriptors, at most 1 allowed"), "{error}");
        assert_eq!(rustix::io::read(&reader, &mut [0; 1]).unwrap(), 0, "all copies are closed");
        let many: Vec<_> = (0..=MAX_FDS).map(|_| one.as_fd()).collect();
        assert!(one.send(1, &Request::Hello { client: String::new() }, &many).is_err());
    }

    #[test]
    fn last_words_are_heard_though_the_connection_was_reset() {
        let (one, other) = pair();
        one.send(1, &Request::Hello { client: "x".into() }, &[]).unwrap();
        let reply = Reply::Refused(Refusal::new(Code::Clients, "no room"));
        other.send(0, &reply, &[]).unwrap();
        drop(other);
        assert_eq!(one.receive::<Reply>(0).unwrap().content, reply);
        assert!(matches!(one.receive::<Reply>(0), Err(ChannelError::Closed)));
    }

    #[test]
    fn a_closed_connection_and_silence_are_told_apart() {
        let (one, other) = pair();
        one.set_receive_timeout(Some(Duration::from_millis(1))).unwrap();
        assert!(matches!(one.receive::<Reply>(0), Err(ChannelError::Timeout)));
        assert!(!one.is_closed());
        drop(other);
        // A process that another test starts has it too, until it runs its program.
        let deadline = std::time::Instant::now() + Duration::from_secs(10);
        while !one.is_closed() {
            assert!(std::time::Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(matches!(one.receive::<Reply>(0), Err(ChannelError::Closed)));
    }
}
