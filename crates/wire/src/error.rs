//! Why bytes were rejected ([`ParseError`]), and why a packet could not be built ([`BuildError`]).

use core::fmt;

/// The header at which parsing stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layer {
    /// Ethernet header.
    Ethernet,
    /// 802.1Q or 802.1ad tag.
    Vlan,
    /// IPv4 header.
    Ipv4,
    /// IPv6 fixed header.
    Ipv6,
    /// IPv6 extension header.
    Ipv6Extension,
    /// UDP header.
    Udp,
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ethernet => "Ethernet",
            Self::Vlan => "VLAN",
            Self::Ipv4 => "IPv4",
            Self::Ipv6 => "IPv6",
            Self::Ipv6Extension => "IPv6 extension header",
            Self::Udp => "UDP",
        })
    }
}

/// Why received bytes are not what they were asked to be. The sender's doing, or damage under way.
///
/// [`ParseError::reason`] gives each variant a short fixed name for counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum ParseError {
    /// The bytes end inside a header.
    #[error("{layer} header needs {needed} bytes, {available} available")]
    Truncated {
        /// The header that is cut.
        layer: Layer,
        /// Bytes that it needs.
        needed: usize,
        /// Bytes that there are.
        available: usize,
    },
    /// More than two VLAN tags.
    #[error("more than two VLAN tags")]
    TooManyVlanTags,
    /// The EtherType is neither IPv4 nor IPv6.
    #[error("EtherType {0:#06x} is not IP")]
    EtherType(u16),
    /// The version field does not fit the EtherType.
    #[error("{layer} header has version {found}")]
    Version {
        /// The header that was expected.
        layer: Layer,
        /// The version found.
        found: u8,
    },
    /// The IPv4 header length is below five words.
    #[error("IPv4 header length of {0} words is below the minimum of 5")]
    Ipv4HeaderLength(u8),
    /// The IPv4 total length is below the header length, or beyond the bytes that there are.
    #[error("IPv4 total length {total} does not fit header of {header} and {available} bytes")]
    Ipv4TotalLength {
        /// Total length field.
        total: usize,
        /// Header length in bytes.
        header: usize,
        /// Bytes that there are from the IPv4 header on.
        available: usize,
    },
    /// The IPv4 header checksum is wrong.
    #[error("IPv4 header checksum is wrong")]
    Ipv4Checksum,
    /// An IPv4 option is cut or has an impossible length.
    #[error("IPv4 option {0} is malformed")]
    Ipv4Option(u8),
    /// The packet carries an IPv4 source route: its destination field need not be its destination.
    #[error("IPv4 source route")]
    Ipv4SourceRoute,
    /// The IPv6 payload length is beyond the bytes that there are.
    #[error("IPv6 payload length {length} exceeds the {available} bytes available")]
    Ipv6PayloadLength {
        /// Payload length field.
        length: usize,
        /// Bytes that there are after the fixed header.
        available: usize,
    },
    /// A hop-by-hop header stands elsewhere than first (RFC 8200, section 4.1).
    #[error("IPv6 hop-by-hop header is not the first extension header")]
    Ipv6ExtensionOrder,
    /// More extension headers than [`crate::ipv6_ext::MAX_EXTENSION_HEADERS`].
    #[error("too many IPv6 extension headers")]
    Ipv6TooManyExtensions,
    /// An IPv6 option is cut, or of an unknown type that asks for the packet to be discarded.
    #[error("IPv6 option {0:#04x} is malformed or asks for discard")]
    Ipv6Option(u8),
    /// A routing header has segments left: the destination field is not the final destination.
    #[error("IPv6 routing header of type {0} has segments left")]
    Ipv6RoutingPending(u8),
    /// The packet is a fragment.
    #[error("IP fragment")]
    Fragment,
    /// The transport protocol is not the one asked for.
    #[error("IP protocol {0} is not the expected one")]
    Protocol(u8),
    /// The UDP length is below eight, or beyond the IP payload.
    #[error("UDP length {length} does not fit the {available} bytes of IP payload")]
    UdpLength {
        /// UDP length field.
        length: usize,
        /// Bytes of IP payload from the UDP header on.
        available: usize,
    },
    /// The UDP checksum is wrong.
    #[error("UDP checksum is wrong")]
    UdpChecksum,
    /// The UDP checksum is 0 on IPv6 (RFC 8200, section 8.1).
    #[error("UDP checksum is absent on IPv6")]
    UdpChecksumMissing,
}

impl ParseError {
    /// A short fixed name of the reason, for counters and labels.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Truncated { .. } => "truncated",
            Self::TooManyVlanTags => "too_many_vlan_tags",
            Self::EtherType(_) => "ether_type",
            Self::Version { .. } => "ip_version",
            Self::Ipv4HeaderLength(_) => "ipv4_header_length",
            Self::Ipv4TotalLength { .. } => "ipv4_total_length",
            Self::Ipv4Checksum => "ipv4_checksum",
            Self::Ipv4Option(_) => "ipv4_option",
            Self::Ipv4SourceRoute => "ipv4_source_route",
            Self::Ipv6PayloadLength { .. } => "ipv6_payload_length",
            Self::Ipv6ExtensionOrder => "ipv6_extension_order",
            Self::Ipv6TooManyExtensions => "ipv6_too_many_extensions",
            Self::Ipv6Option(_) => "ipv6_option",
            Self::Ipv6RoutingPending(_) => "ipv6_routing_pending",
            Self::Fragment => "fragment",
            Self::Protocol(_) => "protocol",
            Self::UdpLength { .. } => "udp_length",
            Self::UdpChecksum => "udp_checksum",
            Self::UdpChecksumMissing => "udp_checksum_missing",
        }
    }
}

/// Why a packet was not built. The caller's doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum BuildError {
    /// The buffer is smaller than what is to be written.
    #[error("buffer of {available} bytes is too small, {needed} needed")]
    BufferTooSmall {
        /// Bytes needed.
        needed: usize,
        /// Bytes given.
        available: usize,
    },
    /// The payload does not fit the length fields of its headers.
    #[error("payload of {length} bytes exceeds the maximum of {max}")]
    PayloadTooLarge {
        /// Bytes of payload.
        length: usize,
        /// The most that fit.
        max: usize,
    },
    /// One address is IPv4, the other IPv6.
    #[error("source and destination are of different address families")]
    FamilyMismatch,
    /// An IPv4-mapped IPv6 address, which must not appear on the wire: use the IPv4 address.
    #[error("IPv4-mapped IPv6 address; use its IPv4 form")]
    MappedAddress,
    /// The source is a multicast address (or the IPv4 broadcast address), or the destination is unspecified.
    #[error("source address is a group address or destination address is unspecified")]
    Address,
    /// The destination port is 0.
    #[error("destination port is 0")]
    DestinationPort,
    /// More than two VLAN tags.
    #[error("more than two VLAN tags")]
    TooManyVlanTags,
    /// A VLAN identifier above 4094 (IEEE 802.1Q reserves 4095).
    #[error("VLAN identifier {0} is above 4094")]
    VlanId(u16),
    /// A VLAN priority above 7.
    #[error("VLAN priority {0} is above 7")]
    VlanPriority(u8),
    /// A tag protocol identifier other than 802.1Q and 802.1ad.
    #[error("tag protocol identifier {0:#06x} is neither 0x8100 nor 0x88a8")]
    VlanTpid(u16),
    /// A DSCP above 63.
    #[error("DSCP {0} is above 63")]
    Dscp(u8),
    /// ECN bits above 3.
    #[error("ECN {0} is above 3")]
    Ecn(u8),
    /// A TTL or hop limit of 0.
    #[error("TTL or hop limit is 0")]
    Ttl,
    /// An IPv6 flow label above 20 bits.
    #[error("flow label {0:#x} exceeds 20 bits")]
    FlowLabel(u32),
    /// An IPv4 fragment offset that is above 13 bits.
    #[error("fragment offset of {0} units exceeds 13 bits")]
    FragmentOffset(u16),
    /// A UDP datagram over IPv6 without a checksum (RFC 8200, section 8.1).
    #[error("UDP over IPv6 needs a checksum")]
    ChecksumRequired,
    /// The UDP checksum of the frame is a pseudo-header sum that a device was to finish.
    #[error("UDP checksum of the frame is not finished")]
    ChecksumUnfinished,
    /// The layout was parsed from another frame.
    #[error("layout does not belong to this frame")]
    NotThisFrame,
}
