//! ICMP for IPv4 (RFC 792), as far as path MTU discovery needs it: "fragmentation needed and DF set" with
//! the MTU of the next hop (RFC 1191).
//!
//! [`Icmpv4Packet`] is the checked view of any message, [`FragmentationNeeded`] the parsed error, and
//! [`FragmentationNeededRepr`] the error as it is built about a packet that did not fit.

use core::net::Ipv4Addr;

use crate::checksum::Sum;
use crate::embedded::EmbeddedUdp;
use crate::ethernet::{octets, require};
use crate::ipv4::{IPV4_HEADER_LEN, Ipv4Packet, Ipv4Repr};
use crate::{BuildError, Layer, ParseError, protocol};

/// Bytes of an ICMP header.
pub const ICMP_HEADER_LEN: usize = 8;
/// Type "destination unreachable".
pub const DESTINATION_UNREACHABLE: u8 = 3;
/// Code "fragmentation needed and DF set" of [`DESTINATION_UNREACHABLE`].
pub const FRAGMENTATION_NEEDED: u8 = 4;
/// The smallest MTU that an IPv4 link may have (RFC 791).
pub const MIN_MTU: u16 = 68;
/// The longest ICMP error that a router may send (RFC 1812, section 4.3.2.3).
pub const MAX_ERROR_LEN: usize = 576;

/// DSCP CS6, "internetwork control", as RFC 1812, section 4.3.2.5, asks for ICMP errors.
const ERROR_DSCP: u8 = 48;

/// A view of an ICMP message, which is the payload of an IPv4 packet.
#[derive(Clone, Copy, Debug)]
pub struct Icmpv4Packet<T> {
    buffer: T,
}

impl<T: AsRef<[u8]>> Icmpv4Packet<T> {
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

    /// Whether the checksum over the whole message is right.
    pub fn is_checksum_valid(&self) -> bool {
        Sum::new().bytes(self.buffer.as_ref()).is_intact()
    }

    /// Everything behind the header.
    pub fn body(&self) -> &[u8] {
        &self.buffer.as_ref()[ICMP_HEADER_LEN..]
    }
}

/// "Fragmentation needed and DF set".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FragmentationNeeded<'a> {
    /// The router that says so.
    pub router: Ipv4Addr,
    /// The host that it says so to.
    pub destination: Ipv4Addr,
    /// MTU of the next hop. 0 from routers older than RFC 1191; values below [`MIN_MTU`] are forged or
    /// broken. Both are for the caller to judge.
    pub next_hop_mtu: u16,
    /// The packet that did not fit, from its IPv4 header on, cut.
    pub quoted: &'a [u8],
}

impl<'a> FragmentationNeeded<'a> {
    /// Reads the error from a packet that starts with its IPv4 header. Header checksum and ICMP checksum are
    /// verified.
    pub fn parse(packet: &'a [u8]) -> Result<Self, ParseError> {
        let ip = Ipv4Packet::new_checked(packet)?;
        if !ip.is_checksum_valid() {
            return Err(ParseError::Ipv4Checksum);
        }
        if ip.is_fragment() {
            return Err(ParseError::Fragment);
        }
        if ip.protocol() != protocol::ICMPV4 {
            return Err(ParseError::Protocol(ip.protocol()));
        }
        let message = &packet[ip.header_len()..ip.total_len()];
        let icmp = Icmpv4Packet::new_checked(message)?;
        if !icmp.is_checksum_valid() {
            return Err(ParseError::IcmpChecksum);
        }
        let (kind, code) = (icmp.kind(), icmp.code());
        if (kind, code) != (DESTINATION_UNREACHABLE, FRAGMENTATION_NEEDED) {
            return Err(ParseError::IcmpType { kind, code });
        }
        let [_, words, mtu @ ..] = icmp.rest_of_header();
        let body = &message[ICMP_HEADER_LEN..];
        // A router that appends extensions says how many words it quotes (RFC 4884, section 4.1).
        let quoted = match usize::from(words) * 4 {
            0 => body,
            length => &body[..length.min(body.len())],
        };
        Ok(Self {
            router: ip.source(),
            destination: ip.destination(),
            next_hop_mtu: u16::from_be_bytes(mtu),
            quoted,
        })
    }

    /// The UDP datagram that did not fit.
    pub fn embedded_udp(&self) -> Result<EmbeddedUdp<'a>, ParseError> {
        EmbeddedUdp::parse_ipv4(self.quoted)
    }
}

/// "Fragmentation needed and DF set" as it is built about `offending`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FragmentationNeededRepr<'a> {
    /// The address that says so.
    pub router: Ipv4Addr,
    /// MTU of the next hop, at least [`MIN_MTU`].
    pub next_hop_mtu: u16,
    /// Time to live of the error, not 0.
    pub ttl: u8,
    /// The packet that does not fit, from its IPv4 header on. The error goes to its source.
    pub offending: &'a [u8],
}

impl FragmentationNeededRepr<'_> {
    /// Bytes that `emit` writes: IPv4 header, ICMP header, and as much of the packet as fits 576 bytes.
    pub fn wire_len(&self) -> usize {
        IPV4_HEADER_LEN + ICMP_HEADER_LEN + self.quoted_len()
    }

    fn quoted_len(&self) -> usize {
        let total = Ipv4Packet::new_embedded(self.offending).map_or(0, |packet| packet.total_len());
        total.min(self.offending.len()).min(MAX_ERROR_LEN - IPV4_HEADER_LEN - ICMP_HEADER_LEN)
    }

    /// Writes the error, from its IPv4 header on, to the front of `buffer`; returns its length. Refuses
    /// packets about which no error may be sent (RFC 1122, section 3.2.2), and those without DF.
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize, BuildError> {
        if self.next_hop_mtu < MIN_MTU {
            return Err(BuildError::Mtu(self.next_hop_mtu.into()));
        }
        let offending = Ipv4Packet::new_embedded(self.offending).map_err(|_| BuildError::NotAnswerable)?;
        if !is_answerable(&offending) {
            return Err(BuildError::NotAnswerable);
        }
        crate::template::validate_addresses(self.router.into(), offending.source().into())?;
        let (needed, available) = (self.wire_len(), buffer.len());
        let packet = buffer.get_mut(..needed).ok_or(BuildError::BufferTooSmall { needed, available })?;
        let repr = Ipv4Repr {
            source: self.router,
            destination: offending.source(),
            protocol: protocol::ICMPV4,
            dscp: ERROR_DSCP,
            ecn: 0,
            ttl: self.ttl,
            identification: 0,
            dont_fragment: true,
            more_fragments: false,
            fragment_offset: 0,
            payload_len: needed - IPV4_HEADER_LEN,
        };
        let message = repr.emit(packet)?;
        let message = &mut packet[message..];
        message[..ICMP_HEADER_LEN].fill(0);
        message[0] = DESTINATION_UNREACHABLE;
        message[1] = FRAGMENTATION_NEEDED;
        message[6..8].copy_from_slice(&self.next_hop_mtu.to_be_bytes());
        message[ICMP_HEADER_LEN..].copy_from_slice(&self.offending[..self.quoted_len()]);
        let checksum = Sum::new().bytes(message).checksum();
        message[2..4].copy_from_slice(&checksum.to_be_bytes());
        Ok(needed)
    }
}

/// Whether "fragmentation needed" may be sent about a packet.
fn is_answerable(packet: &Ipv4Packet<&[u8]>) -> bool {
    let (source, destination) = (packet.source(), packet.destination());
    let to_host = !destination.is_multicast() && !destination.is_broadcast();
    let from_host = !source.is_unspecified() && !source.is_multicast() && !source.is_broadcast();
    // Errors about errors: unreachable, source quench, redirect, time exceeded, parameter problem.
    let about_error = packet.protocol() == protocol::ICMPV4
        && matches!(packet.payload().first(), None | Some(3 | 4 | 5 | 11 | 12));
    packet.dont_fragment() && packet.fragment_offset() == 0 && to_host && from_host && !about_error
}
