//! rtnetlink sockets: one that receives notifications, one for requests; and where they come from.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// `RTMGRP_LINK` (`linux/rtnetlink.h`).
const GROUP_LINK: u32 = 0x1;

/// Multicast groups of the events socket (`RTMGRP_*` and `RTNLGRP_*`, `linux/rtnetlink.h`): links,
/// neighbours, addresses, routes and rules of both families, next-hop objects.
const GROUPS: u32 = GROUP_LINK | 0x4 | 0x10 | 0x40 | 0x80 | 0x100 | 0x400 | 1 << 18 | 1 << 31;

/// Room for the largest message that the kernel builds: 32 KiB for a dump, with as much again to spare.
const BUFFER: usize = 65_536;

/// How long an answer may take. The kernel answers within the call; this bounds a defect.
const PATIENCE: Duration = Duration::from_millis(250);

/// How often a dump is begun anew because the table changed meanwhile.
const DUMP_ATTEMPTS: usize = 4;

/// Message types (`linux/rtnetlink.h`) that say what has changed.
pub(super) mod kind {
    pub(in crate::route) const LINKS: std::ops::RangeInclusive<u16> = 16..=17;
    pub(in crate::route) const ADDRESSES: std::ops::RangeInclusive<u16> = 20..=21;
    pub(in crate::route) const ROUTES: std::ops::RangeInclusive<u16> = 24..=25;
    pub(in crate::route) const NEIGHBOURS: std::ops::RangeInclusive<u16> = 28..=29;
    pub(in crate::route) const RULES: std::ops::RangeInclusive<u16> = 32..=33;
    pub(in crate::route) const NEXT_HOPS: std::ops::RangeInclusive<u16> = 104..=105;
}

/// Room for notifications between two turns of the mirror's thread.
const EVENT_BUFFER: usize = 4 << 20;

/// What an rtnetlink socket is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetlinkUse {
    /// To ask the kernel.
    Requests,
    /// To hear of changes of links, addresses, routes, rules, neighbours and next-hop objects.
    Changes,
    /// To hear of changes of links alone.
    Links,
}

impl NetlinkUse {
    fn groups(self) -> u32 {
        match self {
            Self::Requests => 0,
            Self::Changes => GROUPS,
            Self::Links => GROUP_LINK,
        }
    }
}

/// Where rtnetlink sockets come from, and with them the network namespace that is mirrored: a socket belongs
/// to the namespace that it was opened in, whoever holds it.
pub trait NetlinkSource: fmt::Debug + Send + Sync {
    /// A blocking socket for that use.
    ///
    /// # Errors
    /// The kernel's, or the other side's that opens it.
    fn open(&self, usage: NetlinkUse) -> io::Result<OwnedFd>;
}

/// Opens rtnetlink sockets in the network namespace of the calling thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct OwnNamespace;

impl NetlinkSource for OwnNamespace {
    fn open(&self, usage: NetlinkUse) -> io::Result<OwnedFd> {
        // NETLINK_ROUTE is protocol 0.
        let fd =
            rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        rustix::net::bind(&fd, &SocketAddrNetlink::new(0, usage.groups()))?;
        if usage == NetlinkUse::Changes
            && sockopt::set_socket_recv_buffer_size_force(&fd, EVENT_BUFFER).is_err()
        {
            // Without CAP_NET_ADMIN: up to net.core.rmem_max.
            sockopt::set_socket_recv_buffer_size(&fd, EVENT_BUFFER)?;
        }
        Ok(fd)
    }
}

/// One message as it lies in a buffer: type, flags, and all of its bytes.
struct RawMessage<'a> {
    kind: u16,
    flags: u16,
    sequence: u32,
    bytes: &'a [u8],
}

/// Walks `struct nlmsghdr`s; ends at the first that does not fit.
fn messages(mut buffer: &[u8]) -> impl Iterator<Item = RawMessage<'_>> {
    std::iter::from_fn(move || {
        let header = buffer.get(..16)?;
        let word =
            |at: usize| u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let half = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
        let length = word(0) as usize;
        let bytes = buffer.get(..length.max(16))?;
        buffer = buffer.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(RawMessage { kind: half(4), flags: half(6), sequence: word(8), bytes })
    })
}

/// Parses one message. `None` when this crate's parser does not know its content.
fn parse(bytes: &[u8]) -> Option<NetlinkPayload<RouteNetlinkMessage>> {
    match NetlinkMessage::<RouteNetlinkMessage>::deserialize(bytes) {
        Ok(message) => Some(message.payload),
        Err(error) => {
            tracing::debug!(%error, "cannot parse an rtnetlink message");
            None
        }
    }
}

/// Hears of changes.
pub(super) struct EventSocket {
    fd: OwnedFd,
    buffer: Vec<u8>,
}

/// What one receive on the events socket brought.
pub(super) enum Heard {
    /// Messages, given to the visitor.
    Messages,
    /// Nothing is waiting.
    Nothing,
    /// The socket's buffer overflowed: changes were lost.
    Overflow,
}

impl EventSocket {
    /// Opens the socket in the source's network namespace.
    pub(super) fn open(source: &dyn NetlinkSource) -> io::Result<Self> {
        Ok(Self { fd: source.open(NetlinkUse::Changes)?, buffer: vec![0; BUFFER] })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Receives once. `visit` gets the type of each message, and the message itself of neighbours.
    pub(super) fn hear(
        &mut self,
        visit: &mut dyn FnMut(u16, Option<RouteNetlinkMessage>),
    ) -> io::Result<Heard> {
        let result = retry_on_intr(|| rustix::net::recv(&self.fd, &mut self.buffer[..], RecvFlags::DONTWAIT));
        let length = match result {
            Ok((length, _)) => length.min(self.buffer.len()),
            Err(Errno::AGAIN) => return Ok(Heard::Nothing),
            Err(Errno::NOBUFS) => return Ok(Heard::Overflow),
            Err(errno) => return Err(errno.into()),
        };
        for message in messages(&self.buffer[..length]) {
            let parsed = kind::NEIGHBOURS.contains(&message.kind).then(|| parse(message.bytes)).flatten();
            let content = match parsed {
                Some(NetlinkPayload::InnerMessage(content)) => Some(content),
                _ => None,
            };
            visit(message.kind, content);
        }
        Ok(Heard::Messages)
    }
}

/// Asks the kernel and waits for its answer.
pub(super) struct RequestSocket {
    fd: OwnedFd,
    buffer: Vec<u8>,
    sequence: u32,
}

impl RequestSocket {
    /// Opens the socket in the source's network namespace.
    pub(super) fn open(source: &dyn NetlinkSource) -> io::Result<Self> {
        let fd = source.open(NetlinkUse::Requests)?;
        sockopt::set_socket_timeout(&fd, Timeout::Recv, Some(PATIENCE))?;
        Ok(Self { fd, buffer: vec![0; BUFFER], sequence: 0 })
    }

    fn send(&mut self, request: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::from(request));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        retry_on_intr(|| rustix::net::send(&self.fd, &bytes, SendFlags::empty()))?;
        Ok(())
    }

    fn receive(&mut self) -> io::Result<usize> {
        match retry_on_intr(|| rustix::net::recv(&self.fd, &mut self.buffer[..], RecvFlags::empty())) {
            Ok((length, _)) => Ok(length.min(self.buffer.len())),
            Err(Errno::AGAIN) => Err(io::ErrorKind::TimedOut.into()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Reads a whole table: every object of the answer goes to `visit`. `restart` is called before the
    /// first, and again when the table changed under the dump and everything comes anew.
    ///
    /// # Errors
    /// The kernel's, `TimedOut`, or `Interrupted` when the table changes faster than it can be read.
    pub(super) fn dump(
        &mut self,
        request: &RouteNetlinkMessage,
        collector: &mut dyn Collector,
    ) -> io::Result<()> {
        for _ in 0..DUMP_ATTEMPTS {
            collector.restart();
            self.send(request.clone(), NLM_F_DUMP)?;
            if self.collect(collector)? {
                return Ok(());
            }
        }
        Err(io::ErrorKind::Interrupted.into())
    }

    /// The answers to one dump request. False when the kernel says that they do not fit together.
    fn collect(&mut self, collector: &mut dyn Collector) -> io::Result<bool> {
        /// `NLM_F_DUMP_INTR` (`linux/netlink.h`).
        const INTERRUPTED: u16 = 0x10;
        let mut consistent = true;
        loop {
            let length = self.receive()?;
            for message in messages(&self.buffer[..length]).filter(|m| m.sequence == self.sequence) {
                consistent &= message.flags & INTERRUPTED == 0;
                match parse(message.bytes) {
                    Some(NetlinkPayload::InnerMessage(content)) => collector.collect(content),
                    Some(NetlinkPayload::Done(_)) => return Ok(consistent),
                    Some(NetlinkPayload::Error(error)) if error.code.is_some() => return Err(error.to_io()),
                    _ => {}
                }
            }
        }
    }

    /// Asks one question with one answer.
    ///
    /// # Errors
    /// The kernel's, or `TimedOut`.
    pub(super) fn ask(&mut self, request: RouteNetlinkMessage) -> io::Result<RouteNetlinkMessage> {
        self.send(request, 0)?;
        loop {
            let length = self.receive()?;
            // Late answers to questions that were given up are passed over.
            let mut answers = messages(&self.buffer[..length]).filter(|m| m.sequence == self.sequence);
            if let Some(answer) = answers.next() {
                return match parse(answer.bytes) {
                    Some(NetlinkPayload::InnerMessage(content)) => Ok(content),
                    Some(NetlinkPayload::Error(error)) if error.code.is_some() => Err(error.to_io()),
                    _ => Err(io::ErrorKind::InvalidData.into()),
                };
            }
        }
    }

    /// Has the kernel do something that has no answer but success.
    ///
    /// # Errors
    /// The kernel's, or `TimedOut`.
    pub(super) fn tell(&mut self, request: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.send(request, NLM_F_ACK | flags)?;
        loop {
            let length = self.receive()?;
            let mut answers = messages(&self.buffer[..length]).filter(|m| m.sequence == self.sequence);
            if let Some(answer) = answers.next() {
                return match parse(answer.bytes) {
                    Some(NetlinkPayload::Error(error)) if error.code.is_some() => Err(error.to_io()),
                    _ => Ok(()),
                };
            }
        }
    }
}

/// Takes in the objects of a dump.
pub(super) trait Collector {
    /// Forget what has come so far: it comes anew.
    fn restart(&mut self);
    /// One object.
    fn collect(&mut self, message: RouteNetlinkMessage);
}
