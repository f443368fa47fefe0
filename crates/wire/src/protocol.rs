//! Protocol numbers that this crate reads or writes (IANA registries of EtherTypes and of IP protocols).

/// EtherType of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// EtherType of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86dd;
/// Tag protocol identifier of a customer tag (IEEE 802.1Q).
pub const TPID_8021Q: u16 = 0x8100;
/// Tag protocol identifier of a service tag (IEEE 802.1ad, QinQ).
pub const TPID_8021AD: u16 = 0x88a8;

/// IPv6 hop-by-hop options (RFC 8200, section 4.3).
pub const HOP_BY_HOP: u8 = 0;
/// UDP (RFC 768).
pub const UDP: u8 = 17;
/// IPv6 routing header (RFC 8200, section 4.4).
pub const ROUTING: u8 = 43;
/// IPv6 fragment header (RFC 8200, section 4.5).
pub const FRAGMENT: u8 = 44;
/// IPv6 "no next header" (RFC 8200, section 4.7).
pub const NO_NEXT_HEADER: u8 = 59;
/// IPv6 destination options (RFC 8200, section 4.6).
pub const DESTINATION_OPTIONS: u8 = 60;
