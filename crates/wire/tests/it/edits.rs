//! Edits in place give the very bytes that building anew would give.

use std::net::SocketAddr;

use expressway_wire::ethernet::EthernetFrame;
use expressway_wire::ipv4::Ipv4Packet;
use expressway_wire::ipv6::Ipv6Packet;
use expressway_wire::udp::UdpPacket;
use expressway_wire::{BuildError, ChecksumMode, ChecksumState, MacAddr, UdpHeaders, parse_udp};
use proptest::prelude::*;

use crate::common::{frame_with, headers, ipv4, ipv6, payload};

fn build(headers: &UdpHeaders, payload: &[u8], mode: ChecksumMode) -> Vec<u8> {
    let mut frame = frame_with(headers, payload);
    headers.write(&mut frame, payload.len(), mode, 77).unwrap();
    frame
}

fn mode(absent: bool, headers: &UdpHeaders) -> ChecksumMode {
    if absent && headers.source.is_ipv4() { ChecksumMode::None } else { ChecksumMode::Full }
}

proptest! {
    #[test]
    fn every_field_of_a_datagram(
        before in headers(), marks in (0u8..64, 0u8..4, 1u8..), hosts in (ipv4(), ipv6(), ipv4(), ipv6()),
        ports in (any::<u16>(), 1u16..), payload in payload(), absent in any::<bool>(),
    ) {
        let (source, destination) = match before.source {
            SocketAddr::V4(_) => (hosts.0.into(), hosts.2.into()),
            SocketAddr::V6(_) => (hosts.1.into(), hosts.3.into()),
        };
        let after = UdpHeaders {
            source: SocketAddr::new(source, ports.0),
            destination: SocketAddr::new(destination, ports.1),
            dscp: marks.0,
            ecn: marks.1,
            ttl: marks.2,
            ..before
        };
        let mode = mode(absent, &before);
        let mut frame = build(&before, &payload, mode);
        let mut layout = parse_udp(&frame).unwrap();
        layout.set_ttl(&mut frame, after.ttl).unwrap();
        layout.set_tos(&mut frame, after.dscp << 2 | after.ecn).unwrap();
        layout.set_source(&mut frame, after.source).unwrap();
        layout.set_destination(&mut frame, after.destination).unwrap();
        prop_assert_eq!(&frame, &build(&after, &payload, mode));
        prop_assert_eq!(parse_udp(&frame).unwrap(), layout);
    }

    #[test]
    fn ipv4_flag_identification_and_ecn(headers in headers(), on in any::<bool>(), id in any::<u16>(), ecn in 0u8..4) {
        prop_assume!(headers.source.is_ipv4());
        let mut frame = build(&headers, b"data", ChecksumMode::Full);
        let at = 14 + headers.vlan.wire_len();
        let mut ip = Ipv4Packet::new_checked(&mut frame[at..]).unwrap();
        ip.set_dont_fragment(on);
        ip.set_identification(id);
        ip.set_ecn(ecn);
        prop_assert!(ip.is_checksum_valid());
        let after = UdpHeaders { dont_fragment: on, ecn, ..headers };
        let mut expected = frame_with(&after, b"data");
        after.write(&mut expected, 4, ChecksumMode::Full, id).unwrap();
        prop_assert_eq!(frame, expected);
    }

    #[test]
    fn ipv6_flow_label_and_ecn(headers in headers(), label in 0u32..1 << 20, ecn in 0u8..4) {
        prop_assume!(headers.source.is_ipv6());
        let mut frame = build(&headers, b"data", ChecksumMode::Full);
        let at = 14 + headers.vlan.wire_len();
        let mut ip = Ipv6Packet::new_checked(&mut frame[at..]).unwrap();
        ip.set_flow_label(label);
        ip.set_ecn(ecn);
        prop_assert_eq!(frame, build(&UdpHeaders { flow_label: label, ecn, ..headers }, b"data", ChecksumMode::Full));
    }

    #[test]
    fn hardware_addresses(headers in headers(), from in any::<[u8; 6]>(), to in any::<[u8; 6]>()) {
        let mut frame = build(&headers, b"data", ChecksumMode::Full);
        let mut link = EthernetFrame::new_checked(&mut frame).unwrap();
        link.set_source(MacAddr(from));
        link.set_destination(MacAddr(to));
        let after = UdpHeaders { source_mac: MacAddr(from), destination_mac: MacAddr(to), ..headers };
        prop_assert_eq!(frame, build(&after, b"data", ChecksumMode::Full));
    }
}

fn sample() -> UdpHeaders {
    let (source, destination) = ("192.0.2.1:4433".parse().unwrap(), "198.51.100.7:50000".parse().unwrap());
    UdpHeaders::new(MacAddr([2; 6]), MacAddr([4; 6]), source, destination)
}

#[test]
fn a_wrong_header_checksum_stays_wrong() {
    let mut frame = build(&sample(), b"data", ChecksumMode::Full);
    frame[24] ^= 1;
    let mut ip = Ipv4Packet::new_checked(&mut frame[14..]).unwrap();
    ip.set_ttl(9);
    assert!(!ip.is_checksum_valid());
}

#[test]
fn a_payload_edit_with_adjusted_checksum_is_valid() {
    let mut frame = build(&sample(), b"0123456789", ChecksumMode::Full);
    let layout = parse_udp(&frame).unwrap();
    let mut udp = UdpPacket::new_checked(&mut frame[layout.udp_offset..]).unwrap();
    udp.payload_mut()[2..6].copy_from_slice(b"ABCD");
    udp.adjust_checksum(b"2345", b"ABCD");
    assert_eq!(layout.verify_checksum(&frame), Ok(ChecksumState::Valid));
}

#[test]
fn an_unfinished_checksum_is_not_adjusted() {
    let mut frame = build(&sample(), b"data", ChecksumMode::PseudoOnly);
    let before = frame.clone();
    let mut layout = parse_udp(&frame).unwrap();
    let other = "203.0.113.9:1".parse().unwrap();
    assert_eq!(layout.set_source(&mut frame, other), Err(BuildError::ChecksumUnfinished));
    assert_eq!(layout.set_destination(&mut frame, other), Err(BuildError::ChecksumUnfinished));
    assert_eq!(frame, before);
}

#[test]
fn edits_that_do_not_fit_are_refused_and_change_nothing() {
    let mut frame = build(&sample(), b"data", ChecksumMode::Full);
    let before = frame.clone();
    let mut layout = parse_udp(&frame).unwrap();
    let same = layout;
    assert_eq!(layout.set_ttl(&mut frame, 0), Err(BuildError::Ttl));
    let v6 = "[2001:db8::1]:1".parse().unwrap();
    assert_eq!(layout.set_source(&mut frame, v6), Err(BuildError::FamilyMismatch));
    assert_eq!(layout.set_destination(&mut frame, v6), Err(BuildError::FamilyMismatch));
    let group = "224.0.0.1:1".parse().unwrap();
    assert_eq!(layout.set_source(&mut frame, group), Err(BuildError::Address));
    let port = "192.0.2.9:0".parse().unwrap();
    assert_eq!(layout.set_destination(&mut frame, port), Err(BuildError::DestinationPort));
    let needed = frame.len();
    let short = Err(BuildError::BufferTooSmall { needed, available: needed - 1 });
    assert_eq!(layout.set_tos(&mut frame[..needed - 1], 1), short);
    assert_eq!(layout.set_source(&mut frame[..needed - 1], "192.0.2.9:1".parse().unwrap()), short);
    assert_eq!(layout.set_ttl(&mut vec![0; needed], 9), Err(BuildError::NotThisFrame));
    assert_eq!((frame, layout), (before, same));
}
