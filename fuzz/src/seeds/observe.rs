//! Packets of every protocol that has a line of its own, and files with them.

use super::capture;

/// A choice of options in front of each.
pub(super) fn inputs(frame: &[u8], other: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let with = |choice: u8, bytes: &[u8]| [&[choice], bytes].concat();
    // The frame is Ethernet, a tag, IPv4 and UDP.
    let ip = |protocol: u8, payload: &[u8]| {
        let mut packet = [&frame[..38], payload].concat();
        packet[27] = protocol;
        let length = (packet.len() - 18) as u16;
        packet[20..22].copy_from_slice(&length.to_be_bytes());
        packet
    };
    let udp = |payload: &[u8]| {
        let length = (payload.len() + 8) as u16;
        ip(17, &[&[0x11, 0x51, 1, 0xbb], &length.to_be_bytes()[..], &[0, 0], payload].concat())
    };
    let syn =
        [&[0x11, 0x51, 1, 0xbb, 0, 0, 0, 9, 0, 0, 0, 0, 0xa0, 2, 0xff, 0xff, 0, 0, 0, 0][..], &SYN_OPTIONS]
            .concat();
    let arp = [&[0xff; 12][..], &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1], &[2; 20]].concat();
    let mut found = vec![
        ("arp", with(0, &arp)),
        ("tcp", with(0, &ip(6, &syn))),
        ("icmp", with(0, &ip(1, &[3, 4, 0, 0, 0, 0, 5, 0xdc, 9]))),
        ("gre", with(0x04, &ip(47, &[0; 8]))),
        ("quic", with(0x06, &udp(QUIC))),
        ("quic-short", with(0x20, &udp(&[0x40, 1, 2, 3]))),
        ("quic-versions", with(0, &udp(&[0x80, 0, 0, 0, 0, 1, 7, 0, 0, 0, 0, 1]))),
        ("rtp", with(0x40, &udp(&[0x80, 96, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 4]))),
        ("mold", with(0x60, &udp(b"MONDAY    \0\0\0\0\0\0\0\x05\0\x01\0\x02ab"))),
        ("octets", with(0x1f, frame)),
        ("ipv6", with(0x06, other)),
    ];
    let names = ["file-nanoseconds", "file-raw", "file-cut", "file-none", "file-swapped", "file-pcapng"];
    found.extend(
        names
            .into_iter()
            .zip(capture::files(frame, other))
            .map(|(name, (_, file))| (name, with(0x03, &file))),
    );
    found.push(("file-options", with(0x01, &capture::with_options(frame))));
    found
}

const SYN_OPTIONS: [u8; 20] = [2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7];

/// An Initial packet with a token, a Handshake packet and one with a short header.
const QUIC: &[u8] = &[
    0xc0, 0, 0, 0, 1, 2, 7, 8, 1, 9, 1, 5, 4, 1, 2, 3, 4, 0xe0, 0, 0, 0, 1, 2, 7, 8, 1, 9, 3, 1, 2, 3, 0x40,
    7, 8, 1,
];
