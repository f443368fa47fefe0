//! Every reason for which a builder refuses, and for which a parser does; and that no bytes make one panic.

use expressway_wire::checksum::Sum;
use expressway_wire::ethernet::EthernetRepr;
use expressway_wire::ipv4::Ipv4Repr;
use expressway_wire::ipv6::Ipv6Repr;
use expressway_wire::udp::UdpRepr;
use expressway_wire::{
    BuildError, ChecksumMode, Layer, MacAddr, ParseError, UdpHeaders, VlanTag, VlanTags, parse_udp,
};
use proptest::prelude::*;

use crate::common::{frame_with, headers, payload};

fn v4() -> UdpHeaders {
    let (source, destination) = ("192.0.2.1:4433".parse().unwrap(), "198.51.100.7:50000".parse().unwrap());
    UdpHeaders::new(MacAddr([2; 6]), MacAddr([4; 6]), source, destination)
}

fn v6() -> UdpHeaders {
    let (source, destination) =
        ("[2001:db8::1]:4433".parse().unwrap(), "[2001:db8::7]:50000".parse().unwrap());
    UdpHeaders { source, destination, ..v4() }
}

fn build(headers: &UdpHeaders, payload: &[u8]) -> Vec<u8> {
    let mut frame = frame_with(headers, payload);
    headers.write(&mut frame, payload.len(), ChecksumMode::Full, 1).unwrap();
    frame
}

#[test]
fn templates_refuse_what_does_not_fit() {
    let cases = [
        (UdpHeaders { destination: v6().destination, ..v4() }, BuildError::FamilyMismatch),
        (UdpHeaders { source: "224.0.0.1:1".parse().unwrap(), ..v4() }, BuildError::Address),
        (UdpHeaders { source: "255.255.255.255:1".parse().unwrap(), ..v4() }, BuildError::Address),
        (UdpHeaders { destination: "0.0.0.0:1".parse().unwrap(), ..v4() }, BuildError::Address),
        (UdpHeaders { destination: "[::]:1".parse().unwrap(), ..v6() }, BuildError::Address),
        (UdpHeaders { source: "[ff02::1]:1".parse().unwrap(), ..v6() }, BuildError::Address),
        (UdpHeaders { source: "[::ffff:1.2.3.4]:1".parse().unwrap(), ..v6() }, BuildError::MappedAddress),
        (UdpHeaders { destination: "192.0.2.1:0".parse().unwrap(), ..v4() }, BuildError::DestinationPort),
        (UdpHeaders { dscp: 64, ..v4() }, BuildError::Dscp(64)),
        (UdpHeaders { dscp: 64, ..v6() }, BuildError::Dscp(64)),
        (UdpHeaders { ecn: 4, ..v4() }, BuildError::Ecn(4)),
        (UdpHeaders { ecn: 4, ..v6() }, BuildError::Ecn(4)),
        (UdpHeaders { ttl: 0, ..v4() }, BuildError::Ttl),
        (UdpHeaders { ttl: 0, ..v6() }, BuildError::Ttl),
        (UdpHeaders { flow_label: 1 << 20, ..v6() }, BuildError::FlowLabel(1 << 20)),
    ];
    for (headers, error) in cases {
        assert_eq!(headers.template(), Err(error), "{headers:?}");
    }
}

#[test]
fn tags_refuse_what_does_not_fit() {
    let tag = VlanTag::customer;
    assert_eq!(VlanTags::new(&[tag(4095)]), Err(BuildError::VlanId(4095)));
    assert_eq!(VlanTags::new(&[VlanTag { priority: 8, ..tag(1) }]), Err(BuildError::VlanPriority(8)));
    assert_eq!(VlanTags::new(&[VlanTag { tpid: 0x9100, ..tag(1) }]), Err(BuildError::VlanTpid(0x9100)));
    assert_eq!(VlanTags::new(&[tag(1), tag(2), tag(3)]), Err(BuildError::TooManyVlanTags));
    assert_eq!(VlanTags::new(&[VlanTag::service(4094), tag(0)]).unwrap().wire_len(), 8);
}

#[test]
fn writes_refuse_payloads_beyond_the_length_fields() {
    let mut frame = vec![0; 70_000];
    let max = 65_507;
    for headers in [v4(), v6()] {
        let refused = headers.write(&mut frame, max + 1, ChecksumMode::Full, 0);
        assert_eq!(refused, Err(BuildError::PayloadTooLarge { length: max + 1, max }));
        assert!(headers.write(&mut frame, usize::MAX, ChecksumMode::Full, 0).is_err());
        assert_eq!(headers.write(&mut frame, max, ChecksumMode::Full, 0), Ok(headers.header_len() + max));
    }
}

#[test]
fn representations_refuse_what_does_not_fit() {
    let frame = build(&v4(), b"data");
    let ip = Ipv4Repr::parse(&frame[14..]).unwrap();
    let mut out = [0; 64];
    let emit = |ip: Ipv4Repr| ip.emit(&mut [0; 64]);
    assert_eq!(emit(Ipv4Repr { fragment_offset: 1 << 13, ..ip }), Err(BuildError::FragmentOffset(1 << 13)));
    let too_large = BuildError::PayloadTooLarge { length: 65_516, max: 65_515 };
    assert_eq!(emit(Ipv4Repr { payload_len: 65_516, ..ip }), Err(too_large));
    let too_small = BuildError::BufferTooSmall { needed: 20, available: 19 };
    assert_eq!(ip.emit(&mut out[..19]), Err(too_small));
    assert_eq!(ip.emit(&mut out), Ok(20));
    assert_eq!(out[..20], frame[14..34]);

    let frame = build(&v6(), b"data");
    let ip = Ipv6Repr::parse(&frame[14..]).unwrap();
    let too_large = BuildError::PayloadTooLarge { length: 65_536, max: 65_535 };
    assert_eq!(Ipv6Repr { payload_len: 65_536, ..ip }.emit(&mut out), Err(too_large));
    assert_eq!(ip.emit(&mut out), Ok(40));
    assert_eq!(out[..40], frame[14..54]);

    let udp = UdpRepr::parse(&frame[54..]).unwrap();
    let (from, to) = (v6().source.ip(), v6().destination.ip());
    out[8..12].copy_from_slice(b"data");
    let none = udp.emit(&mut out, from, to, ChecksumMode::None);
    assert_eq!(none, Err(BuildError::ChecksumRequired));
    let mixed = udp.emit(&mut out, v4().source.ip(), to, ChecksumMode::Full);
    assert_eq!(mixed, Err(BuildError::FamilyMismatch));
    let port = UdpRepr { destination_port: 0, ..udp }.emit(&mut out, from, to, ChecksumMode::Full);
    assert_eq!(port, Err(BuildError::DestinationPort));
    let large = UdpRepr { payload_len: 65_508, ..udp }.emit(&mut out, from, to, ChecksumMode::Full);
    assert_eq!(large, Err(BuildError::PayloadTooLarge { length: 65_508, max: 65_507 }));
    assert_eq!(udp.emit(&mut out, from, to, ChecksumMode::Full), Ok(12));
    assert_eq!(out[..12], frame[54..]);

    let link = EthernetRepr::parse(&frame).unwrap();
    let too_small = BuildError::BufferTooSmall { needed: 14, available: 13 };
    assert_eq!(link.emit(&mut out[..13]), Err(too_small));
}

/// A frame with one change; the IPv4 header checksum is made right again.
fn changed(headers: &UdpHeaders, change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut frame = build(headers, &[0; 64]);
    change(&mut frame);
    if headers.source.is_ipv4() {
        let end = 14 + usize::from(frame[14] & 15) * 4;
        frame[24..26].fill(0);
        let checksum = Sum::new().bytes(&frame[14..end]).checksum();
        frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    }
    frame
}

/// An IPv6 frame whose UDP header is overwritten by these extension headers.
fn extended(first: u8, chain: &[u8]) -> Vec<u8> {
    changed(&v6(), |frame| {
        frame[20] = first;
        frame[54..54 + chain.len()].copy_from_slice(chain);
    })
}

#[test]
fn parser_names_each_reason() {
    let options = |option: &'static [u8]| {
        changed(&v4(), move |frame| {
            frame[14] = 0x46;
            frame[34..38].copy_from_slice(option);
        })
    };
    let tagged = changed(&v4(), |frame| {
        frame.splice(12..12, [0x81, 0, 0, 1, 0x88, 0xa8, 0, 2, 0x81, 0, 0, 3]);
    });
    let cases = [
        (tagged, ParseError::TooManyVlanTags),
        (changed(&v4(), |f| f[12] = 9), ParseError::EtherType(0x0900)),
        (changed(&v4(), |f| f[14] = 0x65), ParseError::Version { layer: Layer::Ipv4, found: 6 }),
        (changed(&v6(), |f| f[14] = 0x40), ParseError::Version { layer: Layer::Ipv6, found: 4 }),
        (changed(&v4(), |f| f[14] = 0x44), ParseError::Ipv4HeaderLength(4)),
        (changed(&v4(), |f| f[23] = 6), ParseError::Protocol(6)),
        (changed(&v6(), |f| f[20] = 59), ParseError::Protocol(59)),
        (options(&[7, 1, 0, 0]), ParseError::Ipv4Option(7)),
        (options(&[7, 5, 0, 0]), ParseError::Ipv4Option(7)),
        (options(&[1, 1, 1, 7]), ParseError::Ipv4Option(7)),
        (options(&[131, 3, 4, 0]), ParseError::Ipv4SourceRoute),
        (options(&[137, 3, 4, 0]), ParseError::Ipv4SourceRoute),
        (extended(0, &[60, 0, 1, 4, 0, 0, 0, 0, 0]), ParseError::Ipv6ExtensionOrder),
        (extended(60, &[0, 0, 1, 4, 0, 0, 0, 0]), ParseError::Ipv6ExtensionOrder),
        (extended(0, &[17, 0, 0xc2, 4, 0, 1, 0, 0]), ParseError::Ipv6Option(0xc2)),
        (extended(60, &[17, 0, 1, 5, 0, 0, 0, 0]), ParseError::Ipv6Option(1)),
        (extended(60, &[17, 0, 0, 0, 0, 0, 0, 5]), ParseError::Ipv6Option(5)),
        (extended(43, &[17, 0, 4, 1, 0, 0, 0, 0]), ParseError::Ipv6RoutingPending(4)),
        (extended(44, &[17, 0, 0, 0, 0, 0, 0, 0]), ParseError::Fragment),
        (extended(60, &[60, 0, 1, 4, 0, 0, 0, 0].repeat(9)), ParseError::Ipv6TooManyExtensions),
        (
            extended(60, &[17, 9, 1, 4, 0, 0, 0, 0]),
            ParseError::Truncated { layer: Layer::Ipv6Extension, needed: 80, available: 72 },
        ),
    ];
    for (frame, error) in cases {
        assert_eq!(parse_udp(&frame), Err(error));
    }
    let mut frame = build(&v4(), b"data");
    frame[25] ^= 1;
    assert_eq!(parse_udp(&frame), Err(ParseError::Ipv4Checksum));
}

/// Runs every parser; the results are of no interest here.
fn parse_all(bytes: &[u8]) {
    let _ = EthernetRepr::parse(bytes);
    let _ = Ipv4Repr::parse(bytes);
    let _ = Ipv6Repr::parse(bytes);
    let _ = UdpRepr::parse(bytes);
    if let Ok(layout) = parse_udp(bytes) {
        assert!(bytes.get(layout.payload()).is_some());
        let _ = layout.verify_checksum(bytes);
    }
    for at in 0..bytes.len().min(4) {
        let _ = parse_udp(bytes).map(|layout| layout.verify_checksum(&bytes[at..]));
    }
}

proptest! {
    #[test]
    fn no_bytes_make_a_parser_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        parse_all(&bytes);
    }

    #[test]
    fn no_damaged_packet_makes_a_parser_panic(
        headers in headers(), payload in payload(), damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut frame = build(&headers, &payload);
        for (at, byte) in damage {
            let at = at.index(headers.header_len());
            frame[at] = byte;
        }
        for start in [0, 14 + headers.vlan.wire_len(), headers.header_len() - 8] {
            parse_all(&frame[start..]);
            parse_all(&frame[start..][..cut.index(frame.len() - start + 1)]);
        }
    }
}
