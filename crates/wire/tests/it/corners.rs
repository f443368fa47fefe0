//! Corner cases that random inputs meet once in 65536, or never.

use expressway_wire::checksum::Sum;
use expressway_wire::ipv6_ext::MAX_EXTENSION_HEADERS;
use expressway_wire::{ChecksumMode, ChecksumState, MacAddr, ParseError, UdpHeaders, UdpLayout, parse_udp};

fn v4() -> UdpHeaders {
    let (source, destination) = ("192.0.2.1:4433".parse().unwrap(), "198.51.100.7:50000".parse().unwrap());
    UdpHeaders::new(MacAddr([2; 6]), MacAddr([4; 6]), source, destination)
}

fn v6() -> UdpHeaders {
    let (source, destination) =
        ("[2001:db8::1]:4433".parse().unwrap(), "[2001:db8::7]:50000".parse().unwrap());
    UdpHeaders { source, destination, ..v4() }
}

fn build(headers: &UdpHeaders, payload: &[u8], mode: ChecksumMode) -> (Vec<u8>, UdpLayout) {
    let mut frame = vec![0; headers.header_len()];
    frame.extend_from_slice(payload);
    headers.write(&mut frame, payload.len(), mode, 1).unwrap();
    let layout = parse_udp(&frame).unwrap();
    (frame, layout)
}

/// One's complement addition.
fn add(a: u16, b: u16) -> u16 {
    Sum::new().word(a).word(b).folded()
}

#[test]
fn an_edit_that_makes_the_checksum_zero_stores_ones() {
    for headers in [v4(), v6()] {
        let (mut frame, mut layout) = build(&headers, b"data", ChecksumMode::Full);
        let mut source = headers.source;
        // The complement of the sum is what the sum lacks to all ones.
        source.set_port(add(source.port(), layout.udp_checksum));
        layout.set_source(&mut frame, source).unwrap();
        assert_eq!(parse_udp(&frame).unwrap().udp_checksum, 0xffff);
        assert_eq!(layout.verify_checksum(&frame), Ok(ChecksumState::Valid));
    }
}

#[test]
fn a_finished_checksum_that_looks_unfinished_is_edited_all_the_same() {
    for headers in [v4(), v6()] {
        let (_, zero) = build(&headers, &[0, 0], ChecksumMode::Full);
        let (_, pseudo) = build(&headers, &[0, 0], ChecksumMode::PseudoOnly);
        let word = add(!pseudo.udp_checksum, zero.udp_checksum);
        let (mut frame, mut layout) = build(&headers, &word.to_be_bytes(), ChecksumMode::Full);
        assert!(layout.is_checksum_partial(), "the coincidence");
        let mut other = headers.source;
        other.set_port(9);
        layout.set_source(&mut frame, other).unwrap();
        assert_eq!(layout.verify_checksum(&frame), Ok(ChecksumState::Valid));
    }
}

#[test]
fn the_chain_of_extension_headers_has_a_limit() {
    for (count, accepted) in [(MAX_EXTENSION_HEADERS, true), (MAX_EXTENSION_HEADERS + 1, false)] {
        let (mut frame, _) = build(&v6(), b"data", ChecksumMode::Full);
        let mut chain = [60, 0, 1, 4, 0, 0, 0, 0].repeat(count);
        chain[(count - 1) * 8] = 17;
        frame[18..20].copy_from_slice(&((chain.len() + 12) as u16).to_be_bytes());
        frame[20] = 60;
        frame.splice(54..54, chain.iter().copied());
        match parse_udp(&frame) {
            Ok(layout) => assert!(accepted && &frame[layout.payload()] == b"data"),
            Err(error) => assert!(!accepted && error == ParseError::Ipv6TooManyExtensions, "{error}"),
        }
    }
}
