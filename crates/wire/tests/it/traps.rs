//! One test for each mistake that gateways have shipped in their packet code. The names are the mistakes.

use expressway_wire::ipv4::Ipv4Packet;
use expressway_wire::ipv6::Ipv6Packet;
use expressway_wire::{
    BuildError, ChecksumMode, ChecksumState, MacAddr, ParseError, UdpHeaders, UdpLayout, parse_udp,
};

fn headers_v4() -> UdpHeaders {
    let (source, destination) = ("192.0.2.1:4433".parse().unwrap(), "198.51.100.7:50000".parse().unwrap());
    UdpHeaders::new(MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]), source, destination)
}

fn headers_v6() -> UdpHeaders {
    let (source, destination) =
        ("[2001:db8::1]:4433".parse().unwrap(), "[2001:db8::7]:50000".parse().unwrap());
    UdpHeaders { source, destination, ..headers_v4() }
}

/// A finished frame with this payload.
fn build(headers: &UdpHeaders, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0xaa; headers.header_len()];
    frame.extend_from_slice(payload);
    headers.write(&mut frame, payload.len(), ChecksumMode::Full, 0x1234).unwrap();
    frame
}

fn payload<'a>(layout: &UdpLayout, frame: &'a [u8]) -> &'a [u8] {
    &frame[layout.payload()]
}

#[test]
fn ipv4_then_ipv6_header_into_one_cached_position() {
    // One frame, reused: each family's payload starts behind that family's headers.
    let mut frame = [0u8; 256];
    let (v4, v6) = (headers_v4().template().unwrap(), headers_v6().template().unwrap());
    assert_eq!((v4.header_len(), v6.header_len()), (14 + 20 + 8, 14 + 40 + 8));
    for (template, text) in [(&v4, b"first"), (&v6, b"other"), (&v4, b"third"), (&v6, b"again")] {
        let at = template.header_len();
        frame[at..at + 5].copy_from_slice(text);
        let total = template.write(&mut frame, 5, ChecksumMode::Full, 1).unwrap();
        let layout = parse_udp(&frame[..total]).unwrap();
        assert_eq!(layout.source.is_ipv4(), template.is_ipv4());
        assert_eq!(payload(&layout, &frame), text);
        assert_eq!(layout.verify_checksum(&frame[..total]), Ok(ChecksumState::Valid));
    }
}

/// A payload word that makes the checksum come out as 0.
fn payload_that_sums_to_zero(headers: &UdpHeaders) -> [u8; 2] {
    let frame = build(headers, &[0, 0]);
    let checksum = parse_udp(&frame).unwrap().udp_checksum;
    checksum.to_be_bytes()
}

#[test]
fn checksum_of_zero_is_sent_as_ones_on_ipv6_and_ipv4() {
    for headers in [headers_v6(), headers_v4()] {
        let frame = build(&headers, &payload_that_sums_to_zero(&headers));
        let layout = parse_udp(&frame).unwrap();
        assert_eq!(layout.udp_checksum, 0xffff);
        assert_eq!(layout.verify_checksum(&frame), Ok(ChecksumState::Valid));
    }
}

#[test]
fn checksum_of_zero_on_ipv6_is_refused_when_sent_and_when_received() {
    let headers = headers_v6();
    let mut frame = build(&headers, b"data");
    let before = frame.clone();
    let refused = headers.write(&mut frame, 4, ChecksumMode::None, 0);
    assert_eq!(refused, Err(BuildError::ChecksumRequired));
    assert_eq!(frame, before, "a refused write leaves the frame alone");
    let at = parse_udp(&frame).unwrap().udp_offset + 6;
    frame[at..at + 2].fill(0);
    let layout = parse_udp(&frame).unwrap();
    assert_eq!(layout.verify_checksum(&frame), Err(ParseError::UdpChecksumMissing));
}

#[test]
fn checksum_of_zero_on_ipv4_is_absent_and_accepted() {
    let headers = headers_v4();
    let mut frame = build(&headers, b"data");
    headers.write(&mut frame, 4, ChecksumMode::None, 0).unwrap();
    let layout = parse_udp(&frame).unwrap();
    assert_eq!(layout.udp_checksum, 0);
    assert_eq!(layout.verify_checksum(&frame), Ok(ChecksumState::Absent));
}

#[test]
fn dont_fragment_forgotten() {
    assert!(headers_v4().dont_fragment, "set unless told otherwise");
    for dont_fragment in [true, false] {
        let frame = build(&UdpHeaders { dont_fragment, ..headers_v4() }, b"data");
        let ip = Ipv4Packet::new_checked(&frame[14..]).unwrap();
        assert_eq!(ip.dont_fragment(), dont_fragment);
        assert!(!ip.is_fragment() && ip.is_checksum_valid());
        assert_eq!(parse_udp(&frame).unwrap().dont_fragment, dont_fragment);
    }
}

#[test]
fn tos_forgotten() {
    for (dscp, ecn) in [(0, 1), (46, 2), (63, 3), (8, 0)] {
        let frame = build(&UdpHeaders { dscp, ecn, ..headers_v4() }, b"data");
        let ip = Ipv4Packet::new_checked(&frame[14..]).unwrap();
        assert_eq!((ip.dscp(), ip.ecn(), ip.is_checksum_valid()), (dscp, ecn, true));
        // On IPv6 the traffic class straddles two bytes and shares them with version and flow label.
        let frame = build(&UdpHeaders { dscp, ecn, flow_label: 0xf_00ff, ..headers_v6() }, b"data");
        let ip = Ipv6Packet::new_checked(&frame[14..]).unwrap();
        assert_eq!((ip.dscp(), ip.ecn(), ip.flow_label()), (dscp, ecn, 0xf_00ff));
        assert_eq!((parse_udp(&frame).unwrap().dscp(), parse_udp(&frame).unwrap().ecn()), (dscp, ecn));
    }
}

#[test]
fn ethernet_padding_taken_for_payload() {
    for headers in [headers_v4(), headers_v6()] {
        let mut frame = build(&headers, b"x");
        frame.resize(frame.len().max(60) + 4, 0xee);
        let layout = parse_udp(&frame).unwrap();
        assert_eq!(payload(&layout, &frame), b"x");
        assert_eq!(layout.verify_checksum(&frame), Ok(ChecksumState::Valid));
    }
}

#[test]
fn ip_length_beyond_the_descriptor_length() {
    for (headers, reason) in [(headers_v4(), "ipv4_total_length"), (headers_v6(), "ipv6_payload_length")] {
        let frame = build(&headers, b"0123456789");
        for cut in headers.header_len()..frame.len() {
            assert_eq!(parse_udp(&frame[..cut]).unwrap_err().reason(), reason, "{cut} bytes");
        }
        // Every shorter frame is an error too, whatever the layer.
        for cut in 0..headers.header_len() {
            assert!(parse_udp(&frame[..cut]).is_err(), "{cut} bytes");
        }
    }
}

#[test]
fn udp_length_beyond_the_ip_length() {
    for headers in [headers_v4(), headers_v6()] {
        let mut frame = build(&headers, b"0123");
        // The padding would satisfy the UDP length, but it is not part of the packet.
        frame.resize(frame.len() + 40, 0);
        let at = headers.header_len() - 4;
        frame[at..at + 2].copy_from_slice(&13u16.to_be_bytes());
        assert_eq!(parse_udp(&frame), Err(ParseError::UdpLength { length: 13, available: 12 }));
        for short in 0..8u16 {
            frame[at..at + 2].copy_from_slice(&short.to_be_bytes());
            assert_eq!(parse_udp(&frame), Err(ParseError::UdpLength { length: short.into(), available: 12 }));
        }
    }
}

#[test]
fn udp_length_short_of_the_ip_length() {
    // RFC 9868: what lies between is not payload.
    let headers = headers_v6();
    let mut frame = build(&headers, b"0123++++");
    let at = headers.header_len() - 4;
    frame[at..at + 2].copy_from_slice(&12u16.to_be_bytes());
    assert_eq!(payload(&parse_udp(&frame).unwrap(), &frame), b"0123");
}

#[test]
fn ipv4_total_length_short_of_its_header() {
    let mut frame = build(&headers_v4(), b"data");
    frame[16..18].copy_from_slice(&19u16.to_be_bytes());
    let error = ParseError::Ipv4TotalLength { total: 19, header: 20, available: frame.len() - 14 };
    assert_eq!(parse_udp(&frame), Err(error));
}

#[test]
fn fragment_taken_for_a_datagram() {
    // More fragments, and a last fragment, whose first bytes look like any port.
    for word in [0x2000u16, 0x0001, 0x2001] {
        let mut frame = build(&headers_v4(), b"data");
        frame[20..22].copy_from_slice(&word.to_be_bytes());
        frame[24..26].fill(0);
        let checksum = expressway_wire::checksum::Sum::new().bytes(&frame[14..34]).checksum();
        frame[24..26].copy_from_slice(&checksum.to_be_bytes());
        assert_eq!(parse_udp(&frame), Err(ParseError::Fragment));
    }
    // An IPv6 fragment header in front of UDP, even an atomic one (RFC 6946).
    let mut frame = build(&headers_v6(), b"\x11\0\0\0\0\0\0\0--------data");
    frame[20] = 44;
    frame[54] = 17;
    assert_eq!(parse_udp(&frame), Err(ParseError::Fragment));
}

#[test]
fn unfinished_checksum_of_a_local_sender_taken_for_damage() {
    for headers in [headers_v4(), headers_v6()] {
        let mut frame = build(&headers, b"from a kernel peer on veth");
        headers.write(&mut frame, 26, ChecksumMode::PseudoOnly, 1).unwrap();
        let layout = parse_udp(&frame).unwrap();
        assert_eq!(layout.verify_checksum(&frame), Err(ParseError::UdpChecksum));
        assert!(layout.is_checksum_partial());
        // What the device does with it (csum_start, csum_offset) gives the finished checksum.
        let sum = expressway_wire::checksum::Sum::new().bytes(&frame[layout.udp_offset..]).udp_checksum();
        let finished = parse_udp(&build(&headers, b"from a kernel peer on veth")).unwrap();
        assert_eq!(sum, finished.udp_checksum);
        assert!(!finished.is_checksum_partial());
    }
}

#[test]
fn ipv4_mapped_address_sent_over_ipv6() {
    let headers = UdpHeaders { destination: "[::ffff:198.51.100.7]:50000".parse().unwrap(), ..headers_v6() };
    assert_eq!(headers.template(), Err(BuildError::MappedAddress));
}

#[test]
fn aborted_write_leaves_half_a_header() {
    for headers in [headers_v4(), headers_v6()] {
        for length in 0..headers.header_len() + 10 {
            let mut frame = vec![0x77; length];
            let refused = headers.write(&mut frame, 10, ChecksumMode::Full, 1);
            let needed = headers.header_len() + 10;
            assert_eq!(refused, Err(BuildError::BufferTooSmall { needed, available: length }));
            assert!(frame.iter().all(|byte| *byte == 0x77), "{length} bytes");
        }
    }
}
