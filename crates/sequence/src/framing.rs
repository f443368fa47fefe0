//! The formats of a feed's sequence numbers on the wire.

use crate::mold::{Downstream, Kind, Messages, Session};
use crate::seq64;

/// How datagrams are numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// A 64-bit number at the start of each datagram: [`seq64`].
    Seq64,
    /// MoldUDP64: [`crate::mold`].
    MoldUdp64,
}

/// A datagram taken apart.
pub(crate) struct Decoded<'a> {
    pub(crate) session: Option<Session>,
    /// Number of the first message; of the next one where there is none.
    pub(crate) first: u64,
    /// Number behind the last.
    pub(crate) end: u64,
    pub(crate) ends_session: bool,
    pub(crate) messages: Contents<'a>,
}

/// The messages of a datagram.
pub(crate) enum Contents<'a> {
    One(Option<&'a [u8]>),
    Blocks(Messages<'a>),
}

impl<'a> Iterator for Contents<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        match self {
            Self::One(message) => message.take(),
            Self::Blocks(messages) => messages.next(),
        }
    }
}

impl Framing {
    /// Takes a datagram apart; `None` if it is malformed.
    pub(crate) fn decode(self, datagram: &[u8]) -> Option<Decoded<'_>> {
        match self {
            Self::Seq64 => {
                let first = seq64::sequence(datagram)?;
                // One number is given up so that what follows it always has one.
                let end = first.checked_add(1)?;
                let messages = Contents::One(Some(datagram));
                Some(Decoded { session: None, first, end, ends_session: false, messages })
            }
            Self::MoldUdp64 => {
                let packet = Downstream::parse(datagram).ok()?;
                Some(Decoded {
                    session: Some(packet.session),
                    first: packet.sequence,
                    end: packet.sequence + u64::from(packet.len()),
                    ends_session: packet.kind() == Kind::EndOfSession,
                    messages: Contents::Blocks(packet.messages()),
                })
            }
        }
    }
}
