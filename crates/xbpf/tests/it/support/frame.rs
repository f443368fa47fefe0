//! Frames put together by hand, so that each field can be wrong on purpose.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

pub(crate) const MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 1];
pub(crate) const IPV4: u16 = 0x0800;
pub(crate) const IPV6: u16 = 0x86dd;
pub(crate) const C_TAG: u16 = 0x8100;
pub(crate) const S_TAG: u16 = 0x88a8;
pub(crate) const UDP: u8 = 17;
pub(crate) const ETHERNET: usize = 14;

pub(crate) const HOP_BY_HOP: u8 = 0;
pub(crate) const ROUTING: u8 = 43;
pub(crate) const FRAGMENT: u8 = 44;
pub(crate) const DESTINATION: u8 = 60;

/// An Ethernet frame to [`MAC`] with `tags` as (tag protocol, VLAN number).
pub(crate) fn ethernet(tags: &[(u16, u16)], ethertype: u16, body: &[u8]) -> Vec<u8> {
    let mut frame = MAC.to_vec();
    frame.extend([0x02, 0, 0, 0, 0, 2]);
    for (protocol, vlan) in tags {
        frame.extend(protocol.to_be_bytes());
        frame.extend(vlan.to_be_bytes());
    }
    frame.extend(ethertype.to_be_bytes());
    frame.extend(body);
    frame
}

/// A UDP datagram from port 9 with its checksum left 0.
pub(crate) fn udp(port: u16, payload: &[u8]) -> Vec<u8> {
    let mut datagram = 9u16.to_be_bytes().to_vec();
    datagram.extend(port.to_be_bytes());
    datagram.extend((8 + payload.len() as u16).to_be_bytes());
    datagram.extend([0, 0]);
    datagram.extend(payload);
    datagram
}

/// An IPv4 packet with `options` (a multiple of four bytes) and the DF bit.
pub(crate) fn ipv4(protocol: u8, to: Ipv4Addr, options: &[u8], body: &[u8]) -> Vec<u8> {
    let header = 20 + options.len();
    let mut packet = vec![0x40 | (header / 4) as u8, 0];
    packet.extend(((header + body.len()) as u16).to_be_bytes());
    packet.extend([0, 1, 0x40, 0, 64, protocol, 0, 0]);
    packet.extend(Ipv4Addr::new(192, 0, 2, 99).octets());
    packet.extend(to.octets());
    packet.extend(options);
    packet.extend(body);
    packet
}

/// An IPv6 packet.
pub(crate) fn ipv6(next: u8, to: Ipv6Addr, body: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend((body.len() as u16).to_be_bytes());
    packet.extend([next, 64]);
    packet.extend("2001:db8::99".parse::<Ipv6Addr>().unwrap().octets());
    packet.extend(to.octets());
    packet.extend(body);
    packet
}

/// An extension header of `content` (which fills it to a multiple of eight bytes) ahead of `body`.
pub(crate) fn extension(next: u8, content: &[u8], body: &[u8]) -> Vec<u8> {
    assert_eq!((content.len() + 2) % 8, 0, "extension headers come in 8-byte units");
    let mut header = vec![next, ((content.len() + 2) / 8 - 1) as u8];
    header.extend(content);
    header.extend(body);
    header
}

/// A UDP datagram to `to`, framed without tags.
pub(crate) fn datagram(to: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let udp = udp(to.port(), payload);
    match to.ip() {
        IpAddr::V4(ip) => ethernet(&[], IPV4, &ipv4(UDP, ip, &[], &udp)),
        IpAddr::V6(ip) => ethernet(&[], IPV6, &ipv6(UDP, ip, &udp)),
    }
}

/// `frame` with the bytes at `offset` replaced.
pub(crate) fn patched(frame: &[u8], offset: usize, bytes: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[offset..offset + bytes.len()].copy_from_slice(bytes);
    frame
}

/// `frame` with the checksum of an IPv4 header without options set right, which the program leaves to user
/// space.
pub(crate) fn with_ipv4_checksum(frame: &[u8]) -> Vec<u8> {
    let word = |bytes: &[u8], offset: usize| u16::from_be_bytes([bytes[offset], bytes[offset + 1]]);
    let mut ethertype = 12;
    while [C_TAG, S_TAG].contains(&word(frame, ethertype)) {
        ethertype += 4;
    }
    if word(frame, ethertype) != IPV4 {
        return frame.to_vec();
    }
    let header = ethertype + 2;
    let sum: u32 =
        (0..20).step_by(2).filter(|at| *at != 10).map(|at| u32::from(word(frame, header + at))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    patched(frame, header + 10, &(!(folded as u16)).to_be_bytes())
}
