//! ICMP for IPv6 (RFC 4443), as far as path MTU discovery needs it: "packet too big" (RFC 8201).
//!
//! [`Icmpv6Packet`] is the checked view of any message, [`PacketTooBig`] the parsed error, and
//! [`PacketTooBigRepr`] the error as it is built about a packet that did not fit.

use core::net::Ipv6Addr;

use crate::checksum::{self, Sum};
use crate::embedded::EmbeddedUdp;
use crate::ethernet::{octets, require};
use crate::icmpv4::ICMP_HEADER_LEN;
use crate::ipv6::{IPV6_HEADER_LEN, Ipv6Packet, Ipv6Repr, MIN_MTU};
use crate::{BuildError, Layer, ParseError, protocol};

/// Type "packet too big".
pub const PACKET_TOO_BIG: u8 = 2;
/// The longest ICMPv6 error: the minimum MTU (RFC 4443, section 2.4(c)).
pub const MAX_ERROR_LEN: usize = MIN_MTU as usize;

/// Types below are errors.
const FIRST_INFORMATIONAL: u8 = 128;
/// Type "redirect", about which no error may be sent either.
const REDIRECT: u8 = 137;

/// A view of an ICMPv6 message, which is the transport of an IPv6 packet.
#[derive(Clone, Copy, Debug)]
pub struct Icmpv6Packet<T> {
    buffer: T,
}

impl<T: AsRef<[u8]>> Icmpv6Packet<T> {
    /// Checks that the header is whole. Not the checksum.
    pub fn new_checked(buffer: T) -> Result<Self, ParseError> {
        require(buffer.as_ref(), ICMP_HEADER_LEN, Layer::Icmp)?;
        Ok(Self { buffer })
    }

    /// Type of the message.
    pub fn kind(&self) -> u8 {
        self.buffer.as_ref()[0]
    }

    /// Code of the message.
    pub fn code(&self) -> u8 {
        self.buffer.as_ref()[1]
    }

    /// Checksum field.
    pub fn checksum(&self) -> u16 {
        u16::from_be_bytes(octets(self.buffer.as_ref(), 2))
    }

    /// The four bytes behind the checksum, whose meaning is the type's.
    pub fn rest_of_header(&self) -> [u8; 4] {
        octets(self.buffer.as_ref(), 4)
    }

    /// Whether the checksum over pseudo-header and message is right.
    pub fn is_checksum_valid(&self, source: Ipv6Addr, destination: Ipv6Addr) -> bool {
        message_sum(self.buffer.as_ref(), source, destination).is_intact()
    }

    /// Everything behind the header.
    pub fn body(&self) -> &[u8] {
        &self.buffer.as_ref()[ICMP_HEADER_LEN..]
    }
}

fn message_sum(message: &[u8], source: Ipv6Addr, destination: Ipv6Addr) -> Sum {
    // A message is never longer than an IPv6 payload.
    let length = message.len() as u32;
    checksum::pseudo_header(source.into(), destination.into(), protocol::ICMPV6, length).bytes(message)
}

/// "Packet too big".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketTooBig<'a> {
    /// The router that says so.
    pub router: Ipv6Addr,
    /// The host that it says so to.
    pub destination: Ipv6Addr,
    /// MTU of the next hop, at least 1280.
    pub mtu: u32,
    /// The packet that did not fit, from its IPv6 header on, cut.
    pub quoted: &'a [u8],
}

impl<'a> PacketTooBig<'a> {
    /// Reads the error from a packet that starts with its IPv6 header. The checksum is verified. The code is
    /// not looked at (RFC 4443, section 3.2). An MTU below 1280 is an error (RFC 8201, section 4).
    pub fn parse(packet: &'a [u8]) -> Result<Self, ParseError> {
        let ip = Ipv6Packet::new_checked(packet)?;
        let upper = ip.upper_layer()?;
        if upper.protocol != protocol::ICMPV6 {
            return Err(ParseError::Protocol(upper.protocol));
        }
        let message = &packet[upper.offset..IPV6_HEADER_LEN + ip.payload_len()];
        let icmp = Icmpv6Packet::new_checked(message)?;
        if !icmp.is_checksum_valid(ip.source(), ip.destination()) {
            return Err(ParseError::IcmpChecksum);
        }
        if icmp.kind() != PACKET_TOO_BIG {
            return Err(ParseError::IcmpType { kind: icmp.kind(), code: icmp.code() });
        }
        let mtu = u32::from_be_bytes(icmp.rest_of_header());
        if mtu < MIN_MTU {
            return Err(ParseError::IcmpMtu(mtu));
        }
        let quoted = &message[ICMP_HEADER_LEN..];
        Ok(Self { router: ip.source(), destination: ip.destination(), mtu, quoted })
    }

    /// The UDP datagram that did not fit.
    pub fn embedded_udp(&self) -> Result<EmbeddedUdp<'a>, ParseError> {
        EmbeddedUdp::parse_ipv6(self.quoted)
    }
}

/// "Packet too big" as it is built about `offending`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketTooBigRepr<'a> {
    /// The address that says so.
    pub router: Ipv6Addr,
    /// MTU of the next hop, at least 1280.
    pub mtu: u32,
    /// Hop limit of the error, not 0.
    pub hop_limit: u8,
    /// The packet that does not fit, from its IPv6 header on. The error goes to its source.
    pub offending: &'a [u8],
}

impl PacketTooBigRepr<'_> {
    /// Bytes that `emit` writes: IPv6 header, ICMP header, and as much of the packet as fits 1280 bytes.
    pub fn wire_len(&self) -> usize {
        IPV6_HEADER_LEN + ICMP_HEADER_LEN + self.quoted_len()
    }

    fn quoted_len(&self) -> usize {
        let payload = Ipv6Packet::new_embedded(self.offending).map_or(0, |packet| packet.payload_len());
        let whole = (IPV6_HEADER_LEN + payload).min(self.offending.len());
        whole.min(MAX_ERROR_LEN - IPV6_HEADER_LEN - ICMP_HEADER_LEN)
    }

    /// Writes the error, from its IPv6 header on, to the front of `buffer`; returns its length. Refuses
    /// packets about which no error may be sent (RFC 4443, section 2.4(e); a multicast destination is no
    /// reason here).
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize, BuildError> {
        if self.mtu < MIN_MTU {
            return Err(BuildError::Mtu(self.mtu));
        }
        let offending = Ipv6Packet::new_embedded(self.offending).map_err(|_| BuildError::NotAnswerable)?;
        if !is_answerable(&offending) {
            return Err(BuildError::NotAnswerable);
        }
        let destination = offending.source();
        crate::template::validate_addresses(self.router.into(), destination.into())?;
        let (needed, available) = (self.wire_len(), buffer.len());
        let packet = buffer.get_mut(..needed).ok_or(BuildError::BufferTooSmall { needed, available })?;
        let repr = Ipv6Repr {
            source: self.router,
            destination,
            next_header: protocol::ICMPV6,
            dscp: 0,
            ecn: 0,
            flow_label: 0,
            hop_limit: self.hop_limit,
            payload_len: needed - IPV6_HEADER_LEN,
        };
        let message = repr.emit(packet)?;
        let message = &mut packet[message..];
        message[..4].fill(0);
        message[0] = PACKET_TOO_BIG;
        message[4..8].copy_from_slice(&self.mtu.to_be_bytes());
        message[ICMP_HEADER_LEN..].copy_from_slice(&self.offending[..self.quoted_len()]);
        let checksum = message_sum(message, self.router, destination).checksum();
        message[2..4].copy_from_slice(&checksum.to_be_bytes());
        Ok(needed)
    }
}

/// Whether "packet too big" may be sent about a packet: from one host, and no ICMPv6 error or redirect as
/// far as its headers can be walked. A fragment but the first shows no transport and is answered.
fn is_answerable(packet: &Ipv6Packet<&[u8]>) -> bool {
    let source = packet.source();
    if source.is_unspecified() || source.is_multicast() {
        return false;
    }
    let (mut protocol, mut offset) = (packet.next_header(), 0);
    for extension in packet.extensions() {
        let Ok(extension) = extension else { return false };
        let later_fragment = extension.kind == protocol::FRAGMENT
            && u16::from_be_bytes([extension.bytes[2], extension.bytes[3]]) >> 3 != 0;
        if later_fragment {
            return true;
        }
        (protocol, offset) = (extension.next_header, extension.offset + extension.bytes.len());
    }
    if protocol != protocol::ICMPV6 {
        return true;
    }
    packet.payload().get(offset).is_some_and(|kind| *kind >= FIRST_INFORMATIONAL && *kind != REDIRECT)
}
