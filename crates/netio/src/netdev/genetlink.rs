//! A generic netlink socket for one family: requests out, answers in, attributes taken apart.
//!
//! Layouts are those of `linux/netlink.h` and `linux/genetlink.h`. [`super`] interprets the messages.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use netlink_packet_core::NlasIterator;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// Bytes of `struct nlmsghdr` and of `struct genlmsghdr`.
const HEADER: usize = 16;
const GENERIC_HEADER: usize = 4;
/// `NLM_F_REQUEST`, `NLM_F_ACK`, `NLM_F_DUMP`.
const REQUEST: u16 = 0x1;
const ACK: u16 = 0x4;
const DUMP: u16 = 0x300;
/// `NLMSG_ERROR` (an acknowledgement when its number is 0) and `NLMSG_DONE`.
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// `GENL_ID_CTRL`, `CTRL_CMD_GETFAMILY`, `CTRL_ATTR_FAMILY_ID`, `CTRL_ATTR_FAMILY_NAME`.
const CONTROL: u16 = 16;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
/// The kernel answers within the call; this bounds a defect.
const PATIENCE: Duration = Duration::from_millis(500);

/// One attribute of a request.
#[derive(Clone, Debug)]
pub(super) struct Attribute {
    kind: u16,
    value: Vec<u8>,
}

impl Attribute {
    pub(super) fn u32(kind: u16, value: u32) -> Self {
        Self { kind, value: value.to_ne_bytes().to_vec() }
    }

    /// The kernel's `uint`: 4 bytes where they hold it, else 8 (`NLA_UINT`).
    pub(super) fn uint(kind: u16, value: u64) -> Self {
        match u32::try_from(value) {
            Ok(short) => Self::u32(kind, short),
            Err(_) => Self { kind, value: value.to_ne_bytes().to_vec() },
        }
    }

    fn text(kind: u16, value: &str) -> Self {
        Self { kind, value: [value.as_bytes(), &[0]].concat() }
    }
}

/// An answer: its attributes.
#[derive(Clone, Debug)]
pub(super) struct Answer(Vec<u8>);

impl Answer {
    /// The attribute's number, whichever width it came in.
    pub(super) fn number(&self, kind: u16) -> Option<u64> {
        let mut attributes = NlasIterator::new(&self.0[..]).map_while(Result::ok);
        let attribute = attributes.find(|attribute| attribute.kind() == kind)?;
        let value = attribute.value();
        match value.len() {
            2 => Some(u16::from_ne_bytes(value.try_into().ok()?).into()),
            4 => Some(u32::from_ne_bytes(value.try_into().ok()?).into()),
            8 => Some(u64::from_ne_bytes(value.try_into().ok()?)),
            _ => None,
        }
    }

    /// As [`Answer::number`] for what is a `u32` by its definition.
    pub(super) fn u32(&self, kind: u16) -> Option<u32> {
        self.number(kind).and_then(|number| u32::try_from(number).ok())
    }
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// A socket that talks to one family.
#[derive(Debug)]
pub(super) struct GenericSocket {
    fd: OwnedFd,
    family: u16,
    sequence: u32,
}

impl GenericSocket {
    /// Opens the socket in the calling thread's network namespace and looks the family up.
    ///
    /// # Errors
    /// ENOENT from a kernel that does not have the family.
    pub(super) fn open(name: &str) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let fd =
            rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(netlink::GENERIC))?;
        rustix::net::bind(&fd, &SocketAddrNetlink::new(0, 0))?;
        sockopt::set_socket_timeout(&fd, Timeout::Recv, Some(PATIENCE))?;
        let mut socket = Self { fd, family: CONTROL, sequence: 0 };
        let answer = socket.ask(GET_FAMILY, &[Attribute::text(FAMILY_NAME, name)])?;
        let family = answer.and_then(|answer| answer.number(FAMILY_ID));
        socket.family = family.and_then(|id| u16::try_from(id).ok()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(socket)
    }

    /// Asks for one object, or has one changed: the answer, if the command has any.
    pub(super) fn ask(&mut self, command: u8, attributes: &[Attribute]) -> io::Result<Option<Answer>> {
        self.send(command, attributes, REQUEST | ACK)?;
        Ok(self.receive()?.into_iter().next())
    }

    /// Asks for all objects that fit.
    pub(super) fn dump(&mut self, command: u8, attributes: &[Attribute]) -> io::Result<Vec<Answer>> {
        self.send(command, attributes, REQUEST | DUMP)?;
        self.receive()
    }

    fn send(&mut self, command: u8, attributes: &[Attribute], flags: u16) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut message = vec![0; HEADER];
        message.extend([command, 1, 0, 0]);
        for attribute in attributes {
            let length = 4 + attribute.value.len();
            message.extend((length as u16).to_ne_bytes());
            message.extend(attribute.kind.to_ne_bytes());
            message.extend(&attribute.value);
            message.resize(message.len().next_multiple_of(4), 0);
        }
        let length = message.len() as u32;
        message[..4].copy_from_slice(&length.to_ne_bytes());
        message[4..6].copy_from_slice(&self.family.to_ne_bytes());
        message[6..8].copy_from_slice(&flags.to_ne_bytes());
        message[8..12].copy_from_slice(&self.sequence.to_ne_bytes());
        rustix::net::send(&self.fd, &message, SendFlags::empty())?;
        Ok(())
    }

    /// Receives until the acknowledgement or the end of the dump.
    fn receive(&mut self) -> io::Result<Vec<Answer>> {
        let mut answers = Vec::new();
        let mut buffer = vec![0; 65_536];
        loop {
            let received = rustix::io::retry_on_intr(|| {
                rustix::net::recv(&self.fd, &mut buffer[..], RecvFlags::empty())
            });
            let length = received?.0.min(buffer.len());
            let mut rest = &buffer[..length];
            while let (Some(length), Some(kind), Some(sequence)) =
                (word(rest, 0), half(rest, 4), word(rest, 8))
            {
                let length = (length as usize).max(HEADER);
                let Some(body) = rest.get(HEADER..length) else { break };
                rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
                if sequence != self.sequence {
                    continue; // A late answer to a request that was given up.
                }
                match kind {
                    ERROR | DONE => match word(body, 0).map_or(0, |number| number as i32) {
                        0 => return Ok(answers),
                        number => return Err(io::Error::from_raw_os_error(-number)),
                    },
                    _ => answers.extend(body.get(GENERIC_HEADER..).map(|body| Answer(body.to_vec()))),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_end_at_the_first_that_does_not_fit() {
        let mut bytes = vec![8, 0, 3, 0, 7, 0, 0, 0]; // number 3: 7
        bytes.extend([12, 0, 4, 0x80, 1, 0, 0, 0, 1, 0, 0, 0]); // number 4, flagged: 2^32 + 1
        bytes.extend([40, 0, 5, 0, 1]);
        let answer = Answer(bytes);
        assert_eq!(answer.u32(3), Some(7));
        assert_eq!(answer.number(4), Some((1 << 32) + 1));
        assert_eq!(answer.u32(4), None, "more than 32 bits");
        assert_eq!(answer.number(5), None);
        for broken in [&[][..], &[0, 0, 0, 0], &[3, 0, 1, 0], &[4, 0]] {
            assert_eq!((0..8).find_map(|kind| Answer(broken.to_vec()).number(kind)), None);
        }
    }

    #[test]
    fn a_family_that_is_not_there_is_an_error() {
        let error = GenericSocket::open("no-such-family").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
    }

    #[test]
    fn uints_take_the_width_that_they_need() {
        assert_eq!(Attribute::uint(1, 7).value.len(), 4);
        assert_eq!(Attribute::uint(1, 1 << 40).value.len(), 8);
    }
}
