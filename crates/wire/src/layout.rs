//! Finds the UDP datagram in a received Ethernet frame.

use core::net::{IpAddr, SocketAddr};
use core::ops::Range;

use crate::checksum::{self, ChecksumState};
use crate::ethernet::EthernetRepr;
use crate::ipv4::Ipv4Packet;
use crate::ipv6::Ipv6Packet;
use crate::udp::{UDP_HEADER_LEN, UdpPacket};
use crate::{Layer, MacAddr, ParseError, VlanTags, protocol};

/// What [`parse_udp`] found, by value: offsets into the frame, addresses, marks. It borrows nothing, so the
/// caller can go on to open the payload in place with `&mut frame[layout.payload()]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UdpLayout {
    /// Destination hardware address.
    pub destination_mac: MacAddr,
    /// Source hardware address.
    pub source_mac: MacAddr,
    /// VLAN tags, outermost first.
    pub vlan: VlanTags,
    /// Address and port of the sender. IPv6 scope is 0: the frame does not say on which link it came.
    pub source: SocketAddr,
    /// Address and port that were asked.
    pub destination: SocketAddr,
    /// Type of service (IPv4) or traffic class (IPv6): DSCP in the upper six bits, ECN in the lower two.
    pub tos: u8,
    /// Time to live (IPv4) or hop limit (IPv6).
    pub ttl: u8,
    /// The IPv4 don't-fragment flag; true on IPv6, which routers never fragment.
    pub dont_fragment: bool,
    /// IPv6 flow label, 0 on IPv4.
    pub flow_label: u32,
    /// UDP checksum field as received.
    pub udp_checksum: u16,
    /// Offset of the IP header.
    pub ip_offset: usize,
    /// Offset of the UDP header.
    pub udp_offset: usize,
    /// Bytes of UDP payload, at most 65,527.
    pub payload_len: usize,
}

impl UdpLayout {
    /// Offset of the first byte of UDP payload.
    #[inline]
    pub const fn payload_offset(&self) -> usize {
        self.udp_offset + UDP_HEADER_LEN
    }

    /// The UDP payload within the frame, without the padding that may follow it.
    #[inline]
    pub const fn payload(&self) -> Range<usize> {
        self.payload_offset()..self.payload_offset() + self.payload_len
    }

    /// ECN bits, 0 to 3.
    #[inline]
    pub const fn ecn(&self) -> u8 {
        self.tos & 3
    }

    /// Differentiated services codepoint, 0 to 63.
    #[inline]
    pub const fn dscp(&self) -> u8 {
        self.tos >> 2
    }

    /// Whether the checksum field holds the sum of the pseudo-header alone, as a sender on the same machine
    /// leaves it for a device to finish (`CHECKSUM_PARTIAL`; a kernel peer on veth sends so).
    ///
    /// One finished checksum in 65536 looks the same, so ask [`UdpLayout::verify_checksum`] first. A host across a wire can write the same value, and then nothing protects its payload: accept it only
    /// on interfaces whose frames come from this machine.
    #[inline]
    pub fn is_checksum_partial(&self) -> bool {
        let length = (UDP_HEADER_LEN + self.payload_len) as u32;
        let (source, destination) = (self.source.ip(), self.destination.ip());
        self.udp_checksum == checksum::pseudo_header(source, destination, protocol::UDP, length).folded()
    }

    /// Verifies the UDP checksum of the frame that this layout was parsed from.
    ///
    /// 0 is "absent" on IPv4 and [`ParseError::UdpChecksumMissing`] on IPv6. Frames that a local sender
    /// handed over with the checksum left to the device carry a pseudo-header sum only and fail: see
    /// [`UdpLayout::is_checksum_partial`].
    #[inline]
    pub fn verify_checksum(&self, frame: &[u8]) -> Result<ChecksumState, ParseError> {
        let end = self.payload().end;
        let datagram = frame.get(self.udp_offset..end).ok_or(ParseError::Truncated {
            layer: Layer::Udp,
            needed: end,
            available: frame.len(),
        })?;
        UdpPacket::new_checked(datagram)?.verify_checksum(self.source.ip(), self.destination.ip())
    }
}

/// Finds the UDP datagram in an Ethernet frame with up to two VLAN tags, over IPv4 or IPv6.
///
/// Length fields rule, not the length of the frame: bytes behind the IP total length (Ethernet padding) and
/// behind the UDP length are outside of the payload, and a field that claims more than there is, or less
/// than its own header, is an error of its own. The IPv4 header checksum is verified here; the UDP checksum
/// by [`UdpLayout::verify_checksum`].
///
/// Fragments, source routes, and extension headers or options that change the meaning of the packet are
/// errors: they are for the kernel's stack.
#[inline]
pub fn parse_udp(frame: &[u8]) -> Result<UdpLayout, ParseError> {
    let link = EthernetRepr::parse(frame)?;
    match link.ether_type {
        protocol::ETHERTYPE_IPV4 => parse_ipv4(frame, &link),
        protocol::ETHERTYPE_IPV6 => parse_ipv6(frame, &link),
        other => Err(ParseError::EtherType(other)),
    }
}

#[inline]
fn parse_ipv4(frame: &[u8], link: &EthernetRepr) -> Result<UdpLayout, ParseError> {
    let ip_offset = link.wire_len();
    let ip = Ipv4Packet::new_checked(&frame[ip_offset..])?;
    if !ip.is_checksum_valid() {
        return Err(ParseError::Ipv4Checksum);
    }
    if ip.is_fragment() {
        return Err(ParseError::Fragment);
    }
    if ip.protocol() != protocol::UDP {
        return Err(ParseError::Protocol(ip.protocol()));
    }
    ip.options().check()?;
    let udp = UdpPacket::new_checked(ip.payload())?;
    Ok(UdpLayout {
        destination_mac: link.destination,
        source_mac: link.source,
        vlan: link.vlan,
        source: SocketAddr::new(IpAddr::V4(ip.source()), udp.source_port()),
        destination: SocketAddr::new(IpAddr::V4(ip.destination()), udp.destination_port()),
        tos: ip.tos(),
        ttl: ip.ttl(),
        dont_fragment: ip.dont_fragment(),
        flow_label: 0,
        udp_checksum: udp.checksum(),
        ip_offset,
        udp_offset: ip_offset + ip.header_len(),
        payload_len: udp.payload().len(),
    })
}

#[inline]
fn parse_ipv6(frame: &[u8], link: &EthernetRepr) -> Result<UdpLayout, ParseError> {
    let ip_offset = link.wire_len();
    let ip = Ipv6Packet::new_checked(&frame[ip_offset..])?;
    let upper = ip.extensions().upper_layer()?;
    if upper.protocol != protocol::UDP {
        return Err(ParseError::Protocol(upper.protocol));
    }
    let udp = UdpPacket::new_checked(&ip.payload()[upper.offset..])?;
    Ok(UdpLayout {
        destination_mac: link.destination,
        source_mac: link.source,
        vlan: link.vlan,
        source: SocketAddr::new(IpAddr::V6(ip.source()), udp.source_port()),
        destination: SocketAddr::new(IpAddr::V6(ip.destination()), udp.destination_port()),
        tos: ip.traffic_class(),
        ttl: ip.hop_limit(),
        dont_fragment: true,
        flow_label: ip.flow_label(),
        udp_checksum: udp.checksum(),
        ip_offset,
        udp_offset: ip_offset + crate::ipv6::IPV6_HEADER_LEN + upper.offset,
        payload_len: udp.payload().len(),
    })
}
