//! MoldUDP64 packets (Nasdaq, MoldUDP64 Protocol Specification 1.00). All numbers are big endian.
//!
//! ```text
//!   0         10              18      20
//!   ├ session ┼ sequence      ┼ count ┼ message blocks: { length: u16, data } × count ──▶
//!
//!   count 0        heartbeat: `sequence` is the number of the next message
//!   count 0xFFFF   end of session: likewise
//!   request        the header alone, to the re-request server: `count` messages from `sequence`
//! ```

use std::fmt;

/// Bytes of a packet's header; a request is no more than that.
pub const HEADER_LEN: usize = 20;
/// The message count that ends a session.
pub const END_OF_SESSION: u16 = 0xffff;
/// Most messages of a packet.
pub const MAX_COUNT: u16 = END_OF_SESSION - 1;
/// Number of a session's first message.
pub const FIRST_SEQUENCE: u64 = 1;

/// Bytes of a message block before its data.
const BLOCK_HEADER: usize = 2;

/// Name of a session: alphanumeric, padded with spaces. Any bytes are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Session(pub [u8; 10]);

impl Session {
    /// Pads a name with spaces on its right; `None` if it is longer than ten bytes.
    pub fn new(name: &str) -> Option<Self> {
        let mut bytes = [b' '; 10];
        bytes.get_mut(..name.len())?.copy_from_slice(name.as_bytes());
        Some(Self(bytes))
    }
}

impl fmt::Display for Session {
    /// The name without its padding; what is not printable ASCII is escaped.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.0.trim_ascii().escape_ascii())
    }
}

/// Why bytes are no MoldUDP64 packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MoldError {
    /// Shorter than the header.
    #[error("shorter than the 20-byte header")]
    Header,
    /// The message blocks end before `count` of them, or within one.
    #[error("message blocks are truncated")]
    Truncated,
    /// A request is longer than its header.
    #[error("trailing bytes after the request")]
    Trailing,
    /// The last message's number does not fit 64 bits.
    #[error("sequence numbers overflow")]
    Overflow,
}

/// What a downstream packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One message or more.
    Messages,
    /// A sign of life.
    Heartbeat,
    /// The session is over.
    EndOfSession,
}

/// A packet from the feed, or from a re-request server: checked as a whole before any of it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Downstream<'a> {
    /// The session that the numbers are of.
    pub session: Session,
    /// Number of the first message; of the next one where there is none.
    pub sequence: u64,
    count: u16,
    blocks: &'a [u8],
}

impl<'a> Downstream<'a> {
    /// Reads a packet. What follows the last message block is ignored: there are senders that pad.
    ///
    /// # Errors
    /// [`MoldError`] if it is cut off, or its numbers overflow.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, MoldError> {
        let (header, blocks) = Header::parse(bytes)?;
        let packet = Self { session: header.session, sequence: header.sequence, count: header.count, blocks };
        let mut rest = blocks;
        for _ in 0..packet.len() {
            rest = split_block(rest).ok_or(MoldError::Truncated)?.1;
        }
        packet.sequence.checked_add(packet.len().into()).ok_or(MoldError::Overflow)?;
        Ok(packet)
    }

    /// What it is.
    pub fn kind(&self) -> Kind {
        match self.count {
            0 => Kind::Heartbeat,
            END_OF_SESSION => Kind::EndOfSession,
            _ => Kind::Messages,
        }
    }

    /// How many messages it has.
    pub fn len(&self) -> u16 {
        if self.count == END_OF_SESSION { 0 } else { self.count }
    }

    /// True for heartbeats and ends of session.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its messages, in the order of their numbers.
    pub fn messages(&self) -> Messages<'a> {
        Messages { left: self.len(), blocks: self.blocks }
    }
}

/// The messages of a packet.
#[derive(Clone, Debug)]
pub struct Messages<'a> {
    left: u16,
    blocks: &'a [u8],
}

impl<'a> Iterator for Messages<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        self.left = self.left.checked_sub(1)?;
        let (message, rest) = split_block(self.blocks)?;
        self.blocks = rest;
        Some(message)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left.into(), Some(self.left.into()))
    }
}

impl ExactSizeIterator for Messages<'_> {}

fn split_block(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<BLOCK_HEADER>()?;
    rest.split_at_checked(u16::from_be_bytes(*length).into())
}

/// The twenty bytes that every packet begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    session: Session,
    sequence: u64,
    count: u16,
}

impl Header {
    fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), MoldError> {
        let (session, rest) = bytes.split_first_chunk().ok_or(MoldError::Header)?;
        let (sequence, rest) = rest.split_first_chunk().ok_or(MoldError::Header)?;
        let (count, rest) = rest.split_first_chunk().ok_or(MoldError::Header)?;
        let (sequence, count) = (u64::from_be_bytes(*sequence), u16::from_be_bytes(*count));
        Ok((Self { session: Session(*session), sequence, count }, rest))
    }

    fn to_bytes(self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[..10].copy_from_slice(&self.session.0);
        bytes[10..18].copy_from_slice(&self.sequence.to_be_bytes());
        bytes[18..].copy_from_slice(&self.count.to_be_bytes());
        bytes
    }
}

/// Builds a downstream packet behind the bytes that a buffer has.
#[derive(Debug)]
pub struct Builder<'a> {
    buffer: &'a mut Vec<u8>,
    start: usize,
    count: u16,
}

impl<'a> Builder<'a> {
    /// A heartbeat, which becomes a packet of messages with the first.
    pub fn new(buffer: &'a mut Vec<u8>, session: Session, sequence: u64) -> Self {
        let start = buffer.len();
        buffer.extend_from_slice(&Header { session, sequence, count: 0 }.to_bytes());
        Self { buffer, start, count: 0 }
    }

    /// Adds a message. False, and nothing added, if it has more than 65,535 bytes or the packet has
    /// [`MAX_COUNT`] messages already.
    pub fn push(&mut self, message: &[u8]) -> bool {
        let Ok(length) = u16::try_from(message.len()) else { return false };
        if self.count == MAX_COUNT {
            return false;
        }
        self.buffer.extend_from_slice(&length.to_be_bytes());
        self.buffer.extend_from_slice(message);
        self.set_count(self.count + 1);
        true
    }

    fn set_count(&mut self, count: u16) {
        self.count = count;
        self.buffer[self.start + 18..self.start + HEADER_LEN].copy_from_slice(&count.to_be_bytes());
    }
}

/// An end of session; `next` is the number behind the last message.
pub fn end_of_session(session: Session, next: u64) -> [u8; HEADER_LEN] {
    Header { session, sequence: next, count: END_OF_SESSION }.to_bytes()
}

/// Asks a re-request server for messages again. It answers with one downstream packet, of as many of them as fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The session that the numbers are of.
    pub session: Session,
    /// Number of the first message.
    pub sequence: u64,
    /// How many from there.
    pub count: u16,
}

impl Request {
    /// The packet.
    pub fn to_bytes(self) -> [u8; HEADER_LEN] {
        let Self { session, sequence, count } = self;
        Header { session, sequence, count }.to_bytes()
    }

    /// Reads a request, as a re-request server does.
    ///
    /// # Errors
    /// [`MoldError`] if it has not the length of a request.
    pub fn parse(bytes: &[u8]) -> Result<Self, MoldError> {
        let (Header { session, sequence, count }, rest) = Header::parse(bytes)?;
        if rest.is_empty() { Ok(Self { session, sequence, count }) } else { Err(MoldError::Trailing) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session() -> Session {
        Session::new("MONDAY").unwrap()
    }

    /// Bytes by the tables of the specification.
    #[test]
    fn a_packet_is_laid_out_as_specified() {
        let mut bytes = Vec::new();
        let mut builder = Builder::new(&mut bytes, session(), 0x0102_0304_0506_0708);
        assert!(builder.push(b"ab") && builder.push(b""));
        assert_eq!(bytes, b"MONDAY    \x01\x02\x03\x04\x05\x06\x07\x08\x00\x02\x00\x02ab\x00\x00");
        let packet = Downstream::parse(&bytes).unwrap();
        assert_eq!(
            (packet.kind(), packet.len(), packet.sequence),
            (Kind::Messages, 2, 0x0102_0304_0506_0708)
        );
        assert_eq!(packet.messages().collect::<Vec<_>>(), [&b"ab"[..], b""]);
        assert_eq!(packet.session.to_string(), "MONDAY");
    }

    #[test]
    fn heartbeats_and_ends_have_no_messages() {
        let mut heartbeat = Vec::new();
        Builder::new(&mut heartbeat, session(), 9);
        let packet = Downstream::parse(&heartbeat).unwrap();
        assert_eq!((packet.kind(), packet.messages().len(), packet.sequence), (Kind::Heartbeat, 0, 9));
        let end = end_of_session(session(), u64::MAX);
        let packet = Downstream::parse(&end).unwrap();
        assert_eq!((packet.kind(), packet.messages().len()), (Kind::EndOfSession, 0));
    }

    #[test]
    fn what_is_cut_off_or_overflows_is_refused_and_padding_ignored() {
        let mut bytes = Vec::new();
        let mut builder = Builder::new(&mut bytes, session(), 1);
        assert!(builder.push(b"abc") && builder.push(b"d"));
        for length in 0..bytes.len() {
            let wanted = if length < HEADER_LEN { MoldError::Header } else { MoldError::Truncated };
            assert_eq!(Downstream::parse(&bytes[..length]), Err(wanted), "{length}");
        }
        bytes.push(0);
        let padded = Downstream::parse(&bytes).unwrap();
        assert_eq!(padded.messages().collect::<Vec<_>>(), [&b"abc"[..], b"d"]);
        let mut end = end_of_session(session(), 1).to_vec();
        end.push(0);
        assert_eq!(Downstream::parse(&end).unwrap().kind(), Kind::EndOfSession);
        let mut last = Vec::new();
        assert!(Builder::new(&mut last, session(), u64::MAX).push(b""));
        assert_eq!(Downstream::parse(&last), Err(MoldError::Overflow));
    }

    #[test]
    fn a_request_is_the_header() {
        let request = Request { session: session(), sequence: 7, count: 300 };
        assert_eq!(request.to_bytes(), *b"MONDAY    \x00\x00\x00\x00\x00\x00\x00\x07\x01\x2c");
        assert_eq!(Request::parse(&request.to_bytes()), Ok(request));
        assert_eq!(Request::parse(&[0; 19]), Err(MoldError::Header));
        assert_eq!(Request::parse(&[0; 21]), Err(MoldError::Trailing));
    }

    #[test]
    fn a_packet_takes_what_its_fields_hold() {
        let mut bytes = Vec::new();
        let mut builder = Builder::new(&mut bytes, session(), 1);
        assert!(!builder.push(&vec![0; 65_536]));
        for _ in 0..MAX_COUNT {
            assert!(builder.push(b""));
        }
        assert!(!builder.push(b""));
        assert_eq!(Downstream::parse(&bytes).unwrap().len(), MAX_COUNT);
        assert_eq!(Session::new("eleven byte"), None);
        assert_eq!(Session(*b"\xff\"  \n     ").to_string(), "\\xff\\\"");
    }
}
