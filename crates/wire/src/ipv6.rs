//! IPv6 fixed headers (RFC 8200, section 3), traffic class and flow label (RFC 6437).
//!
//! [`Ipv6Packet`] is the checked view, [`Ipv6Repr`] builds a header. Extension headers are in
//! [`crate::ipv6_ext`]; [`Ipv6Packet::upper_layer`] walks them to the transport.

use core::net::Ipv6Addr;

use crate::ethernet::{octets, require};
use crate::ipv6_ext::{Extensions, UpperLayer};
use crate::{BuildError, Layer, ParseError};

/// Bytes of the fixed header.
pub const IPV6_HEADER_LEN: usize = 40;
/// The smallest MTU that an IPv6 link may have (RFC 8200, section 5).
pub const MIN_MTU: u32 = 1280;
/// The most that the payload length field can say. Jumbograms (RFC 2675) are not built and not read.
pub const MAX_PAYLOAD_LEN: usize = 65_535;
/// The highest flow label: 20 bits.
pub const MAX_FLOW_LABEL: u32 = 0x000f_ffff;

/// A view of an IPv6 packet whose payload length agrees with the bytes that there are.
///
/// Bytes behind the payload length belong to no accessor.
#[derive(Clone, Copy, Debug)]
pub struct Ipv6Packet<T> {
    buffer: T,
}

impl<T: AsRef<[u8]>> Ipv6Packet<T> {
    /// Checks version and payload length against the buffer.
    #[inline]
    pub fn new_checked(buffer: T) -> Result<Self, ParseError> {
        let bytes = buffer.as_ref();
        require(bytes, IPV6_HEADER_LEN, Layer::Ipv6)?;
        if bytes[0] >> 4 != 6 {
            return Err(ParseError::Version { layer: Layer::Ipv6, found: bytes[0] >> 4 });
        }
        let packet = Self { buffer };
        let length = packet.payload_len();
        let available = packet.buffer.as_ref().len() - IPV6_HEADER_LEN;
        if length > available {
            return Err(ParseError::Ipv6PayloadLength { length, available });
        }
        Ok(packet)
    }

    #[inline]
    fn first_word(&self) -> u32 {
        u32::from_be_bytes(octets(self.buffer.as_ref(), 0))
    }

    /// Traffic class: DSCP in the upper six bits, ECN in the lower two.
    #[inline]
    pub fn traffic_class(&self) -> u8 {
        (self.first_word() >> 20) as u8
    }

    /// Differentiated services codepoint, 0 to 63.
    #[inline]
    pub fn dscp(&self) -> u8 {
        self.traffic_class() >> 2
    }

    /// ECN bits, 0 to 3.
    #[inline]
    pub fn ecn(&self) -> u8 {
        self.traffic_class() & 3
    }

    /// Flow label, 20 bits.
    #[inline]
    pub fn flow_label(&self) -> u32 {
        self.first_word() & MAX_FLOW_LABEL
    }

    /// Payload length field: bytes behind the fixed header, extension headers included.
    #[inline]
    pub fn payload_len(&self) -> usize {
        usize::from(u16::from_be_bytes(octets(self.buffer.as_ref(), 4)))
    }

    /// Protocol of what follows the fixed header: an extension header or the transport.
    #[inline]
    pub fn next_header(&self) -> u8 {
        self.buffer.as_ref()[6]
    }

    /// Hop limit.
    #[inline]
    pub fn hop_limit(&self) -> u8 {
        self.buffer.as_ref()[7]
    }

    /// Source address.
    #[inline]
    pub fn source(&self) -> Ipv6Addr {
        Ipv6Addr::from(octets::<16>(self.buffer.as_ref(), 8))
    }

    /// Destination address.
    #[inline]
    pub fn destination(&self) -> Ipv6Addr {
        Ipv6Addr::from(octets::<16>(self.buffer.as_ref(), 24))
    }

    /// Everything behind the fixed header to the payload length (or to where an embedded packet is cut).
    #[inline]
    pub fn payload(&self) -> &[u8] {
        let bytes = self.buffer.as_ref();
        &bytes[IPV6_HEADER_LEN..(IPV6_HEADER_LEN + self.payload_len()).min(bytes.len())]
    }

    /// The extension headers, one by one.
    #[inline]
    pub fn extensions(&self) -> Extensions<'_> {
        Extensions::new(self.next_header(), self.payload())
    }

    /// Walks the extension headers to the transport. Offsets in the result count from the fixed header.
    #[inline]
    pub fn upper_layer(&self) -> Result<UpperLayer, ParseError> {
        let upper = self.extensions().upper_layer()?;
        Ok(UpperLayer { offset: upper.offset + IPV6_HEADER_LEN, ..upper })
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Ipv6Packet<T> {
    /// Sets the hop limit. No checksum covers it.
    pub fn set_hop_limit(&mut self, hop_limit: u8) {
        self.buffer.as_mut()[7] = hop_limit;
    }

    /// Sets DSCP and ECN at once and keeps the flow label. No checksum covers them.
    pub fn set_traffic_class(&mut self, class: u8) {
        let bytes = self.buffer.as_mut();
        bytes[0] = 0x60 | class >> 4;
        bytes[1] = class << 4 | bytes[1] & 0x0f;
    }

    /// Sets the two ECN bits (values above 3 are cut) and keeps DSCP and flow label.
    pub fn set_ecn(&mut self, ecn: u8) {
        self.set_traffic_class(self.traffic_class() & !3 | ecn & 3);
    }

    /// Sets the flow label (cut to 20 bits) and keeps the traffic class.
    pub fn set_flow_label(&mut self, label: u32) {
        let word = self.first_word() & !MAX_FLOW_LABEL | label & MAX_FLOW_LABEL;
        self.buffer.as_mut()[0..4].copy_from_slice(&word.to_be_bytes());
    }

    /// Sets the source address. The transport checksum is the caller's.
    pub fn set_source(&mut self, address: Ipv6Addr) {
        self.buffer.as_mut()[8..24].copy_from_slice(&address.octets());
    }

    /// Sets the destination address. The transport checksum is the caller's.
    pub fn set_destination(&mut self, address: Ipv6Addr) {
        self.buffer.as_mut()[24..40].copy_from_slice(&address.octets());
    }

    /// The payload with its extension headers, writable.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        let to = IPV6_HEADER_LEN + self.payload_len();
        let bytes = self.buffer.as_mut();
        let to = to.min(bytes.len());
        &mut bytes[IPV6_HEADER_LEN..to]
    }
}

/// An IPv6 fixed header as it is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ipv6Repr {
    /// Source address.
    pub source: Ipv6Addr,
    /// Destination address.
    pub destination: Ipv6Addr,
    /// Protocol of what follows.
    pub next_header: u8,
    /// Differentiated services codepoint, 0 to 63.
    pub dscp: u8,
    /// ECN bits, 0 to 3.
    pub ecn: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Hop limit, not 0.
    pub hop_limit: u8,
    /// Bytes behind the fixed header.
    pub payload_len: usize,
}

impl Ipv6Repr {
    /// Reads a header. Errors as [`Ipv6Packet::new_checked`].
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let packet = Ipv6Packet::new_checked(bytes)?;
        Ok(Self {
            source: packet.source(),
            destination: packet.destination(),
            next_header: packet.next_header(),
            dscp: packet.dscp(),
            ecn: packet.ecn(),
            flow_label: packet.flow_label(),
            hop_limit: packet.hop_limit(),
            payload_len: packet.payload_len(),
        })
    }

    /// Checks that each field fits.
    pub fn validate(&self) -> Result<(), BuildError> {
        crate::udp::validate_marks(self.dscp, self.ecn, self.hop_limit)?;
        if self.flow_label > MAX_FLOW_LABEL {
            return Err(BuildError::FlowLabel(self.flow_label));
        }
        if self.payload_len > MAX_PAYLOAD_LEN {
            return Err(BuildError::PayloadTooLarge { length: self.payload_len, max: MAX_PAYLOAD_LEN });
        }
        Ok(())
    }

    /// Writes the header to the front of `buffer`; returns its length, 40.
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize, BuildError> {
        self.validate()?;
        let error = BuildError::BufferTooSmall { needed: IPV6_HEADER_LEN, available: buffer.len() };
        let header: &mut [u8; IPV6_HEADER_LEN] = buffer.first_chunk_mut().ok_or(error)?;
        let class = u32::from(self.dscp << 2 | self.ecn);
        header[0..4].copy_from_slice(&(6 << 28 | class << 20 | self.flow_label).to_be_bytes());
        header[4..6].copy_from_slice(&(self.payload_len as u16).to_be_bytes());
        header[6] = self.next_header;
        header[7] = self.hop_limit;
        header[8..24].copy_from_slice(&self.source.octets());
        header[24..40].copy_from_slice(&self.destination.octets());
        Ok(IPV6_HEADER_LEN)
    }
}
