//! IPv4 headers (RFC 791) with options; DSCP and ECN (RFC 2474, RFC 3168).
//!
//! [`Ipv4Packet`] is the checked view, [`Ipv4Repr`] builds a header without options. Fragments are recognised,
//! but not reassembled: that is left to the kernel.

use core::net::Ipv4Addr;

use crate::checksum::{self, Sum};
use crate::ethernet::{octets, require};
use crate::{BuildError, Layer, ParseError};

/// Bytes of a header without options.
pub const IPV4_HEADER_LEN: usize = 20;
/// The most that the total length field can say.
pub const MAX_TOTAL_LEN: usize = 65_535;

const FLAG_DF: u16 = 0x4000;
const FLAG_MF: u16 = 0x2000;
const OFFSET_MASK: u16 = 0x1fff;

/// A view of an IPv4 packet whose length fields agree with the bytes that there are.
///
/// Bytes behind the total length (Ethernet pads short frames to 60 bytes) belong to no accessor.
#[derive(Clone, Copy, Debug)]
pub struct Ipv4Packet<T> {
    buffer: T,
}

impl<T: AsRef<[u8]>> Ipv4Packet<T> {
    /// Checks version, header length and total length against the buffer. Not the checksum.
    #[inline]
    pub fn new_checked(buffer: T) -> Result<Self, ParseError> {
        let bytes = buffer.as_ref();
        require(bytes, IPV4_HEADER_LEN, Layer::Ipv4)?;
        if bytes[0] >> 4 != 4 {
            return Err(ParseError::Version { layer: Layer::Ipv4, found: bytes[0] >> 4 });
        }
        let words = bytes[0] & 0x0f;
        let header = usize::from(words) * 4;
        if header < IPV4_HEADER_LEN {
            return Err(ParseError::Ipv4HeaderLength(words));
        }
        require(bytes, header, Layer::Ipv4)?;
        let packet = Self { buffer };
        let (total, available) = (packet.total_len(), packet.buffer.as_ref().len());
        if total < header || total > available {
            return Err(ParseError::Ipv4TotalLength { total, header, available });
        }
        Ok(packet)
    }

    #[inline]
    fn word(&self, at: usize) -> u16 {
        u16::from_be_bytes(octets(self.buffer.as_ref(), at))
    }

    /// Header length in bytes, options included: 20 to 60.
    #[inline]
    pub fn header_len(&self) -> usize {
        usize::from(self.buffer.as_ref()[0] & 0x0f) * 4
    }

    /// Type of service: DSCP in the upper six bits, ECN in the lower two.
    #[inline]
    pub fn tos(&self) -> u8 {
        self.buffer.as_ref()[1]
    }

    /// Differentiated services codepoint, 0 to 63.
    #[inline]
    pub fn dscp(&self) -> u8 {
        self.tos() >> 2
    }

    /// ECN bits, 0 to 3.
    #[inline]
    pub fn ecn(&self) -> u8 {
        self.tos() & 3
    }

    /// Total length field: header and payload in bytes.
    #[inline]
    pub fn total_len(&self) -> usize {
        usize::from(self.word(2))
    }

    /// Identification field.
    #[inline]
    pub fn identification(&self) -> u16 {
        self.word(4)
    }

    /// The don't-fragment flag.
    #[inline]
    pub fn dont_fragment(&self) -> bool {
        self.word(6) & FLAG_DF != 0
    }

    /// The more-fragments flag.
    #[inline]
    pub fn more_fragments(&self) -> bool {
        self.word(6) & FLAG_MF != 0
    }

    /// Fragment offset in units of eight bytes.
    #[inline]
    pub fn fragment_offset(&self) -> u16 {
        self.word(6) & OFFSET_MASK
    }

    /// Whether the packet is a part of a larger one: more fragments follow, or its offset is not 0.
    #[inline]
    pub fn is_fragment(&self) -> bool {
        self.word(6) & (FLAG_MF | OFFSET_MASK) != 0
    }

    /// Time to live.
    #[inline]
    pub fn ttl(&self) -> u8 {
        self.buffer.as_ref()[8]
    }

    /// Protocol of the payload.
    #[inline]
    pub fn protocol(&self) -> u8 {
        self.buffer.as_ref()[9]
    }

    /// Header checksum field.
    #[inline]
    pub fn checksum(&self) -> u16 {
        self.word(10)
    }

    /// Whether the header checksum is right.
    #[inline]
    pub fn is_checksum_valid(&self) -> bool {
        let header = &self.buffer.as_ref()[..self.header_len()];
        // A length known to the compiler unrolls the sum: nearly every header is one of 20 bytes.
        match <&[u8; IPV4_HEADER_LEN]>::try_from(header) {
            Ok(header) => Sum::new().bytes(header).is_intact(),
            Err(_) => Sum::new().bytes(header).is_intact(),
        }
    }

    /// Source address.
    #[inline]
    pub fn source(&self) -> Ipv4Addr {
        Ipv4Addr::from(octets::<4>(self.buffer.as_ref(), 12))
    }

    /// Destination address.
    #[inline]
    pub fn destination(&self) -> Ipv4Addr {
        Ipv4Addr::from(octets::<4>(self.buffer.as_ref(), 16))
    }

    /// The options, walked.
    #[inline]
    pub fn options(&self) -> Ipv4Options<'_> {
        Ipv4Options { rest: &self.buffer.as_ref()[IPV4_HEADER_LEN..self.header_len()] }
    }

    /// The payload: from behind the options to the total length (or to where an embedded packet is cut).
    #[inline]
    pub fn payload(&self) -> &[u8] {
        let bytes = self.buffer.as_ref();
        &bytes[self.header_len()..self.total_len().min(bytes.len())]
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Ipv4Packet<T> {
    #[inline]
    fn set_word(&mut self, at: usize, value: u16) {
        self.buffer.as_mut()[at..at + 2].copy_from_slice(&value.to_be_bytes());
    }

    /// Changes one header word and the checksum with it (RFC 1624). A checksum that was wrong stays wrong
    /// by as much, so damage is not laundered.
    #[inline]
    fn edit_word(&mut self, at: usize, value: u16) {
        let checksum = checksum::update(self.checksum(), self.word(at), value);
        self.set_word(at, value);
        self.set_word(10, checksum);
    }

    /// Sets the time to live; the checksum follows.
    pub fn set_ttl(&mut self, ttl: u8) {
        self.edit_word(8, u16::from_be_bytes([ttl, self.protocol()]));
    }

    /// Sets DSCP and ECN at once; the checksum follows.
    pub fn set_tos(&mut self, tos: u8) {
        self.edit_word(0, u16::from_be_bytes([self.buffer.as_ref()[0], tos]));
    }

    /// Sets the two ECN bits (values above 3 are cut) and keeps DSCP; the checksum follows.
    pub fn set_ecn(&mut self, ecn: u8) {
        self.set_tos(self.tos() & !3 | ecn & 3);
    }

    /// Sets or clears the don't-fragment flag; the checksum follows.
    pub fn set_dont_fragment(&mut self, on: bool) {
        let rest = self.word(6) & !FLAG_DF;
        self.edit_word(6, if on { rest | FLAG_DF } else { rest });
    }

    /// Sets the identification field; the checksum follows.
    pub fn set_identification(&mut self, identification: u16) {
        self.edit_word(4, identification);
    }

    /// Sets the source address; the header checksum follows. The transport checksum is the caller's.
    pub fn set_source(&mut self, address: Ipv4Addr) {
        self.set_address(12, address);
    }

    /// Sets the destination address; the header checksum follows. The transport checksum is the caller's.
    pub fn set_destination(&mut self, address: Ipv4Addr) {
        self.set_address(16, address);
    }

    fn set_address(&mut self, at: usize, address: Ipv4Addr) {
        let [a, b, c, d] = address.octets();
        self.edit_word(at, u16::from_be_bytes([a, b]));
        self.edit_word(at + 2, u16::from_be_bytes([c, d]));
    }

    /// The payload, writable.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        let (from, to) = (self.header_len(), self.total_len());
        let bytes = self.buffer.as_mut();
        let to = to.min(bytes.len());
        &mut bytes[from..to]
    }
}

/// One IPv4 option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4Option<'a> {
    /// Option type: copied flag, class and number.
    pub kind: u8,
    /// Data behind type and length; empty for one-byte options.
    pub data: &'a [u8],
}

impl Ipv4Option<'_> {
    const END: u8 = 0;
    const NOP: u8 = 1;
    /// Loose source route.
    pub const LSRR: u8 = 131;
    /// Strict source route.
    pub const SSRR: u8 = 137;

    /// Whether this is a source route.
    pub const fn is_source_route(&self) -> bool {
        matches!(self.kind, Self::LSRR | Self::SSRR)
    }
}

/// Walks the options of a header; ends at the end-of-list option, the end of the header, or an error.
#[derive(Clone, Debug)]
pub struct Ipv4Options<'a> {
    rest: &'a [u8],
}

impl Ipv4Options<'_> {
    /// Walks to the end: errors if an option is malformed or a source route.
    #[inline]
    pub fn check(self) -> Result<(), ParseError> {
        for option in self {
            if option?.is_source_route() {
                return Err(ParseError::Ipv4SourceRoute);
            }
        }
        Ok(())
    }
}

impl<'a> Iterator for Ipv4Options<'a> {
    type Item = Result<Ipv4Option<'a>, ParseError>;

    fn next(&mut self) -> Option<Self::Item> {
        let (&kind, rest) = self.rest.split_first()?;
        match kind {
            Ipv4Option::END => {
                self.rest = &[];
                None
            }
            Ipv4Option::NOP => {
                self.rest = rest;
                Some(Ok(Ipv4Option { kind, data: &[] }))
            }
            _ => {
                // The length counts the type and itself.
                let length = rest.first().map_or(0, |length| usize::from(*length));
                let whole = if length < 2 { None } else { self.rest.split_at_checked(length) };
                let Some((option, rest)) = whole else {
                    self.rest = &[];
                    return Some(Err(ParseError::Ipv4Option(kind)));
                };
                self.rest = rest;
                Some(Ok(Ipv4Option { kind, data: &option[2..] }))
            }
        }
    }
}

/// An IPv4 header without options, as it is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ipv4Repr {
    /// Source address.
    pub source: Ipv4Addr,
    /// Destination address.
    pub destination: Ipv4Addr,
    /// Protocol of the payload.
    pub protocol: u8,
    /// Differentiated services codepoint, 0 to 63.
    pub dscp: u8,
    /// ECN bits, 0 to 3.
    pub ecn: u8,
    /// Time to live, not 0.
    pub ttl: u8,
    /// Identification field.
    pub identification: u16,
    /// Don't-fragment flag.
    pub dont_fragment: bool,
    /// More-fragments flag.
    pub more_fragments: bool,
    /// Fragment offset in units of eight bytes, 13 bits.
    pub fragment_offset: u16,
    /// Bytes of payload.
    pub payload_len: usize,
}

impl Ipv4Repr {
    /// Reads a header. Errors as [`Ipv4Packet::new_checked`], and if the checksum is wrong or an option
    /// malformed. Options themselves are not kept.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let packet = Ipv4Packet::new_checked(bytes)?;
        if !packet.is_checksum_valid() {
            return Err(ParseError::Ipv4Checksum);
        }
        for option in packet.options() {
            option?;
        }
        Ok(Self {
            source: packet.source(),
            destination: packet.destination(),
            protocol: packet.protocol(),
            dscp: packet.dscp(),
            ecn: packet.ecn(),
            ttl: packet.ttl(),
            identification: packet.identification(),
            dont_fragment: packet.dont_fragment(),
            more_fragments: packet.more_fragments(),
            fragment_offset: packet.fragment_offset(),
            payload_len: packet.payload().len(),
        })
    }

    /// Checks that each field fits.
    pub fn validate(&self) -> Result<(), BuildError> {
        crate::udp::validate_marks(self.dscp, self.ecn, self.ttl)?;
        if self.fragment_offset > OFFSET_MASK {
            return Err(BuildError::FragmentOffset(self.fragment_offset));
        }
        let max = MAX_TOTAL_LEN - IPV4_HEADER_LEN;
        if self.payload_len > max {
            return Err(BuildError::PayloadTooLarge { length: self.payload_len, max });
        }
        Ok(())
    }

    /// Writes the header with its checksum to the front of `buffer`; returns its length, 20.
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize, BuildError> {
        self.validate()?;
        let error = BuildError::BufferTooSmall { needed: IPV4_HEADER_LEN, available: buffer.len() };
        let header: &mut [u8; IPV4_HEADER_LEN] = buffer.first_chunk_mut().ok_or(error)?;
        let total = (IPV4_HEADER_LEN + self.payload_len) as u16;
        let flags = (u16::from(self.dont_fragment) * FLAG_DF)
            | (u16::from(self.more_fragments) * FLAG_MF)
            | self.fragment_offset;
        header[0] = 0x45;
        header[1] = self.dscp << 2 | self.ecn;
        header[2..4].copy_from_slice(&total.to_be_bytes());
        header[4..6].copy_from_slice(&self.identification.to_be_bytes());
        header[6..8].copy_from_slice(&flags.to_be_bytes());
        header[8] = self.ttl;
        header[9] = self.protocol;
        header[10..12].fill(0);
        header[12..16].copy_from_slice(&self.source.octets());
        header[16..20].copy_from_slice(&self.destination.octets());
        let checksum = Sum::new().bytes(header).checksum();
        header[10..12].copy_from_slice(&checksum.to_be_bytes());
        Ok(IPV4_HEADER_LEN)
    }
}
