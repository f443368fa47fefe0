//! Headers of a UDP flow, written in front of a payload that is already in place.
//!
//! [`UdpHeaders`] describes the headers. [`UdpTemplate`] is its compiled form: the bytes that do not change from
//! packet to packet, and their sums. A packet then costs one copy, the lengths, and the checksum over the
//! payload. A template has one address family. The place of the payload follows from
//! [`UdpTemplate::header_len`] of the same template, and is stored nowhere else.

use core::net::{IpAddr, SocketAddr};

use crate::checksum::{self, ChecksumMode, Sum};
use crate::ethernet::{ETHERNET_HEADER_LEN, EthernetRepr, MAX_VLAN_TAGS, VLAN_TAG_LEN};
use crate::ipv4::{IPV4_HEADER_LEN, Ipv4Repr};
use crate::ipv6::{IPV6_HEADER_LEN, Ipv6Repr};
use crate::udp::{MAX_UDP_PAYLOAD, UDP_HEADER_LEN};
use crate::{BuildError, MacAddr, VlanTags, protocol};

/// The longest headers that a template writes: two VLAN tags and IPv6.
pub const MAX_HEADER_LEN: usize =
    ETHERNET_HEADER_LEN + MAX_VLAN_TAGS * VLAN_TAG_LEN + IPV6_HEADER_LEN + UDP_HEADER_LEN;

/// The headers of the datagrams of one flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UdpHeaders {
    /// Source hardware address.
    pub source_mac: MacAddr,
    /// Destination hardware address: the next hop's.
    pub destination_mac: MacAddr,
    /// VLAN tags, outermost first.
    pub vlan: VlanTags,
    /// Source address and port. The flow information and scope of a V6 address are not looked at.
    pub source: SocketAddr,
    /// Destination address and port, of the same family.
    pub destination: SocketAddr,
    /// Differentiated services codepoint, 0 to 63.
    pub dscp: u8,
    /// ECN bits, 0 to 3.
    pub ecn: u8,
    /// Time to live or hop limit, not 0.
    pub ttl: u8,
    /// IPv6 flow label, 20 bits. IPv4 has none and ignores it.
    pub flow_label: u32,
    /// The IPv4 don't-fragment flag. IPv6 has none and ignores it.
    pub dont_fragment: bool,
}

impl UdpHeaders {
    /// The TTL and hop limit that Linux sends with (`IPDEFTTL`, RFC 1700).
    pub const DEFAULT_TTL: u8 = 64;

    /// Headers without tags and marks: TTL 64, flow label 0, don't-fragment set (QUIC requires it, RFC 9000,
    /// section 14).
    pub const fn new(
        source_mac: MacAddr,
        destination_mac: MacAddr,
        source: SocketAddr,
        destination: SocketAddr,
    ) -> Self {
        Self {
            source_mac,
            destination_mac,
            vlan: VlanTags::NONE,
            source,
            destination,
            dscp: 0,
            ecn: 0,
            ttl: Self::DEFAULT_TTL,
            flow_label: 0,
            dont_fragment: true,
        }
    }

    /// Bytes of all headers: where the payload starts in the frame.
    #[inline]
    pub const fn header_len(&self) -> usize {
        let ip = if self.destination.is_ipv4() { IPV4_HEADER_LEN } else { IPV6_HEADER_LEN };
        ETHERNET_HEADER_LEN + self.vlan.wire_len() + ip + UDP_HEADER_LEN
    }

    /// Compiles the headers. Errors name the field that does not fit.
    pub fn template(&self) -> Result<UdpTemplate, BuildError> {
        UdpTemplate::new(self)
    }

    /// As [`UdpTemplate::write`], for a single packet.
    pub fn write(
        &self,
        frame: &mut [u8],
        payload_len: usize,
        mode: ChecksumMode,
        identification: u16,
    ) -> Result<usize, BuildError> {
        self.template()?.write(frame, payload_len, mode, identification)
    }
}

/// [`UdpHeaders`] compiled: the bytes of the headers and their sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpTemplate {
    /// Headers with lengths, identification and checksums 0.
    bytes: [u8; MAX_HEADER_LEN],
    header_len: usize,
    ip_offset: usize,
    is_ipv4: bool,
    /// Sum of the IPv4 header in `bytes`.
    ip_sum: Sum,
    /// Sum of addresses and protocol.
    pseudo_sum: Sum,
    /// Sum of the ports.
    ports_sum: Sum,
}

impl UdpTemplate {
    /// Compiles headers. Errors name the field that does not fit.
    pub fn new(headers: &UdpHeaders) -> Result<Self, BuildError> {
        let (source, destination) = (headers.source, headers.destination);
        validate_addresses(source.ip(), destination.ip())?;
        if destination.port() == 0 {
            return Err(BuildError::DestinationPort);
        }
        let mut bytes = [0; MAX_HEADER_LEN];
        let link = EthernetRepr {
            destination: headers.destination_mac,
            source: headers.source_mac,
            vlan: headers.vlan,
            ether_type: if destination.is_ipv4() {
                protocol::ETHERTYPE_IPV4
            } else {
                protocol::ETHERTYPE_IPV6
            },
        };
        let ip_offset = link.emit(&mut bytes)?;
        let ip_len = emit_ip(headers, &mut bytes[ip_offset..])?;
        let udp_offset = ip_offset + ip_len;
        bytes[udp_offset..udp_offset + 2].copy_from_slice(&source.port().to_be_bytes());
        bytes[udp_offset + 2..udp_offset + 4].copy_from_slice(&destination.port().to_be_bytes());
        Ok(Self {
            header_len: udp_offset + UDP_HEADER_LEN,
            ip_offset,
            is_ipv4: destination.is_ipv4(),
            ip_sum: Sum::new().bytes(&bytes[ip_offset..udp_offset]),
            pseudo_sum: checksum::pseudo_header(source.ip(), destination.ip(), protocol::UDP, 0),
            ports_sum: Sum::new().word(source.port()).word(destination.port()),
            bytes,
        })
    }

    /// Bytes of all headers: where the payload starts in the frame.
    #[inline]
    pub const fn header_len(&self) -> usize {
        self.header_len
    }

    /// Offset of the UDP header: where a device that finishes the checksum starts (`csum_start`).
    #[inline]
    pub const fn udp_offset(&self) -> usize {
        self.header_len - UDP_HEADER_LEN
    }

    /// Whether the headers are IPv4's.
    #[inline]
    pub const fn is_ipv4(&self) -> bool {
        self.is_ipv4
    }

    /// Writes the headers to the front of `frame`, whose bytes from `header_len` to `header_len` +
    /// `payload_len` are the payload. Returns the length of the packet. `identification` is the IPv4 field;
    /// IPv6 has none.
    ///
    /// Nothing is written on error. Padding to the Ethernet minimum is the device's.
    #[inline]
    pub fn write(
        &self,
        frame: &mut [u8],
        payload_len: usize,
        mode: ChecksumMode,
        identification: u16,
    ) -> Result<usize, BuildError> {
        if payload_len > MAX_UDP_PAYLOAD {
            return Err(BuildError::PayloadTooLarge { length: payload_len, max: MAX_UDP_PAYLOAD });
        }
        if mode == ChecksumMode::None && !self.is_ipv4 {
            return Err(BuildError::ChecksumRequired);
        }
        let needed = self.header_len + payload_len;
        let available = frame.len();
        let packet = frame.get_mut(..needed).ok_or(BuildError::BufferTooSmall { needed, available })?;
        let (headers, payload) = packet.split_at_mut(self.header_len);
        headers.copy_from_slice(&self.bytes[..self.header_len]);
        let (ip, udp) =
            headers[self.ip_offset..].split_at_mut(self.header_len - UDP_HEADER_LEN - self.ip_offset);
        // Both fit: payload_len is at most 65,507.
        let udp_len = (UDP_HEADER_LEN + payload_len) as u16;
        if self.is_ipv4 {
            let total = udp_len + IPV4_HEADER_LEN as u16;
            let checksum = self.ip_sum.word(total).word(identification).checksum();
            ip[2..4].copy_from_slice(&total.to_be_bytes());
            ip[4..6].copy_from_slice(&identification.to_be_bytes());
            ip[10..12].copy_from_slice(&checksum.to_be_bytes());
        } else {
            ip[4..6].copy_from_slice(&udp_len.to_be_bytes());
        }
        udp[4..6].copy_from_slice(&udp_len.to_be_bytes());
        let pseudo = self.pseudo_sum.word(udp_len);
        let checksum = match mode {
            ChecksumMode::Full => pseudo.add(self.ports_sum).word(udp_len).bytes(payload).udp_checksum(),
            ChecksumMode::PseudoOnly => pseudo.folded(),
            ChecksumMode::None => 0,
        };
        udp[6..8].copy_from_slice(&checksum.to_be_bytes());
        Ok(needed)
    }
}

/// Writes the IP header with lengths, identification and checksum 0; returns its length.
fn emit_ip(headers: &UdpHeaders, bytes: &mut [u8]) -> Result<usize, BuildError> {
    match (headers.source.ip(), headers.destination.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let repr = Ipv4Repr {
                source,
                destination,
                protocol: protocol::UDP,
                dscp: headers.dscp,
                ecn: headers.ecn,
                ttl: headers.ttl,
                identification: 0,
                dont_fragment: headers.dont_fragment,
                more_fragments: false,
                fragment_offset: 0,
                payload_len: 0,
            };
            let length = repr.emit(bytes)?;
            bytes[2..4].fill(0);
            bytes[10..12].fill(0);
            Ok(length)
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => Ipv6Repr {
            source,
            destination,
            next_header: protocol::UDP,
            dscp: headers.dscp,
            ecn: headers.ecn,
            flow_label: headers.flow_label,
            hop_limit: headers.ttl,
            payload_len: 0,
        }
        .emit(bytes),
        _ => Err(BuildError::FamilyMismatch),
    }
}

/// Refuses address pairs that must not appear on the wire.
pub(crate) fn validate_addresses(source: IpAddr, destination: IpAddr) -> Result<(), BuildError> {
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            if source.is_multicast() || source.is_broadcast() || destination.is_unspecified() {
                return Err(BuildError::Address);
            }
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            if source.to_ipv4_mapped().is_some() || destination.to_ipv4_mapped().is_some() {
                return Err(BuildError::MappedAddress);
            }
            if source.is_multicast() || destination.is_unspecified() {
                return Err(BuildError::Address);
            }
        }
        _ => return Err(BuildError::FamilyMismatch),
    }
    Ok(())
}
