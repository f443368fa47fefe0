//! Strategies that the property tests share.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use expressway_wire::{MacAddr, UdpHeaders, VlanTag, VlanTags};
use proptest::collection::vec;
use proptest::prelude::*;

pub(crate) fn ipv4() -> impl Strategy<Value = Ipv4Addr> {
    any::<u32>()
        .prop_map(Ipv4Addr::from_bits)
        .prop_filter("a host's address", |a| !a.is_multicast() && !a.is_broadcast() && !a.is_unspecified())
}

pub(crate) fn ipv6() -> impl Strategy<Value = Ipv6Addr> {
    any::<u128>().prop_map(Ipv6Addr::from_bits).prop_filter("a host's address", |a| {
        !a.is_multicast() && !a.is_unspecified() && a.to_ipv4_mapped().is_none()
    })
}

/// Two addresses of one family.
pub(crate) fn addresses() -> impl Strategy<Value = (IpAddr, IpAddr)> {
    prop_oneof![
        (ipv4(), ipv4()).prop_map(|(a, b)| (a.into(), b.into())),
        (ipv6(), ipv6()).prop_map(|(a, b)| (a.into(), b.into())),
    ]
}

pub(crate) fn tags() -> impl Strategy<Value = VlanTags> {
    let tag = (any::<bool>(), 0u8..8, any::<bool>(), 0u16..4095).prop_map(
        |(service, priority, drop_eligible, id)| VlanTag {
            tpid: if service { 0x88a8 } else { 0x8100 },
            priority,
            drop_eligible,
            id,
        },
    );
    vec(tag, 0..=2).prop_map(|tags| VlanTags::new(&tags).expect("valid tags"))
}

/// Headers that can be built.
pub(crate) fn headers() -> impl Strategy<Value = UdpHeaders> {
    let link = (any::<[u8; 6]>(), any::<[u8; 6]>(), tags());
    let marks = (0u8..64, 0u8..4, 1u8.., 0u32..1 << 20, any::<bool>());
    (link, addresses(), any::<u16>(), 1u16.., marks).prop_map(
        |((source_mac, destination_mac, vlan), (from, to), source_port, port, marks)| UdpHeaders {
            source_mac: MacAddr(source_mac),
            destination_mac: MacAddr(destination_mac),
            vlan,
            source: SocketAddr::new(from, source_port),
            destination: SocketAddr::new(to, port),
            dscp: marks.0,
            ecn: marks.1,
            ttl: marks.2,
            flow_label: marks.3,
            dont_fragment: marks.4,
        },
    )
}

pub(crate) fn payload() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..1500)
}

/// The payload in a frame behind room for the headers.
pub(crate) fn frame_with(headers: &UdpHeaders, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x5a; headers.header_len()];
    frame.extend_from_slice(payload);
    frame
}
