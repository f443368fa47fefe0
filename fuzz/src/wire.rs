//! Bodies of the targets of `expressway-wire`. Where a checksum would keep random bytes out, the target also
//! runs on a copy whose checksum is made right.

use std::net::{IpAddr, SocketAddr};

use expressway_wire::checksum::{self, Sum};
use expressway_wire::ethernet::EthernetRepr;
use expressway_wire::ipv4::{IPV4_HEADER_LEN, Ipv4Packet, Ipv4Repr};
use expressway_wire::ipv6::{IPV6_HEADER_LEN, Ipv6Packet, Ipv6Repr};
use expressway_wire::udp::{UdpPacket, UdpRepr};
use expressway_wire::{
    ChecksumMode, ChecksumState, MacAddr, UdpHeaders, UdpLayout, VlanTag, VlanTags, parse_udp, protocol,
};

use crate::cost::Bound;

/// For every target here: each looks at a packet a few times, copies it, and reads it back.
pub const BOUND: Bound =
    Bound { steps: (20, 6000), allocations: (0, 40), bytes: (16, 1024), peak: (12, 1024) };

/// Link layer: what is read is written back to the same bytes.
pub fn ethernet(data: &[u8]) {
    let Ok(link) = EthernetRepr::parse(data) else { return };
    assert!(link.wire_len() <= data.len() && link.vlan.as_slice().len() <= 2);
    let mut out = vec![0; link.wire_len()];
    match link.emit(&mut out) {
        Ok(length) => assert_eq!(out[..length], data[..length]),
        // The reserved identifier is read, and never written.
        Err(_) => assert!(link.vlan.as_slice().iter().any(|tag| tag.id == 4095)),
    }
}

/// IPv4: lengths within the bytes, options that end, edits that keep the checksum, a header that round-trips.
pub fn ipv4(data: &[u8]) {
    ipv4_packet(data);
    let mut fixed = data.to_vec();
    fix_ipv4_checksum(&mut fixed);
    ipv4_packet(&fixed);
}

fn ipv4_packet(data: &[u8]) {
    let Ok(packet) = Ipv4Packet::new_checked(data) else { return };
    assert_eq!(packet.header_len() + packet.payload().len(), packet.total_len());
    assert!(packet.total_len() <= data.len());
    let walked: usize = packet.options().map(|option| option.map_or(1, |option| option.data.len() + 1)).sum();
    assert!(walked <= packet.header_len() - IPV4_HEADER_LEN);
    let valid = packet.is_checksum_valid();

    let mut copy = data.to_vec();
    let mut edited = Ipv4Packet::new_checked(&mut copy[..]).expect("the same bytes");
    let (ttl, tos, flag) = (!packet.ttl(), !packet.tos(), !packet.dont_fragment());
    edited.set_ttl(ttl);
    edited.set_tos(tos);
    edited.set_dont_fragment(flag);
    edited.set_source(packet.destination());
    edited.set_destination(packet.source());
    assert_eq!(edited.is_checksum_valid(), valid);
    assert_eq!((edited.ttl(), edited.tos(), edited.dont_fragment()), (ttl, tos, flag));
    assert_eq!((edited.protocol(), edited.payload()), (packet.protocol(), packet.payload()));

    let Ok(repr) = Ipv4Repr::parse(data) else { return };
    let mut out = vec![0; IPV4_HEADER_LEN];
    if repr.emit(&mut out).is_ok() {
        out.extend_from_slice(packet.payload());
        assert_eq!(Ipv4Repr::parse(&out), Ok(repr));
    } else {
        assert!(repr.ttl == 0 || repr.payload_len > 65_515);
    }
}

fn fix_ipv4_checksum(packet: &mut [u8]) {
    let header = packet.first().map_or(0, |first| usize::from(first & 0x0f) * 4);
    if header < IPV4_HEADER_LEN || packet.len() < header {
        return;
    }
    packet[10..12].fill(0);
    let checksum = Sum::new().bytes(&packet[..header]).checksum();
    packet[10..12].copy_from_slice(&checksum.to_be_bytes());
}

/// IPv6: lengths within the bytes, extension headers that follow one another, a header that round-trips.
pub fn ipv6(data: &[u8]) {
    let Ok(packet) = Ipv6Packet::new_checked(data) else { return };
    assert_eq!(IPV6_HEADER_LEN + packet.payload().len(), IPV6_HEADER_LEN + packet.payload_len());
    let mut at = 0;
    for extension in packet.extensions().map_while(Result::ok) {
        assert_eq!(extension.offset, at);
        at += extension.bytes.len();
        assert_eq!(packet.payload()[extension.offset..at], *extension.bytes);
    }
    assert!(at <= packet.payload_len());
    if let Ok(upper) = packet.upper_layer() {
        assert_eq!(upper.offset, IPV6_HEADER_LEN + at);
        assert!(upper.offset <= data.len());
    }

    let mut copy = data.to_vec();
    let mut edited = Ipv6Packet::new_checked(&mut copy[..]).expect("the same bytes");
    let (class, label) = (!packet.traffic_class(), packet.flow_label() ^ 0xf_ffff);
    edited.set_traffic_class(class);
    edited.set_flow_label(label);
    edited.set_hop_limit(7);
    assert_eq!((edited.traffic_class(), edited.flow_label(), edited.hop_limit()), (class, label, 7));
    assert_eq!(edited.payload(), packet.payload());

    let repr = Ipv6Repr::parse(data).expect("checked");
    let mut out = [0; IPV6_HEADER_LEN];
    match repr.emit(&mut out) {
        Ok(length) => assert_eq!(out, data[..length]),
        Err(_) => assert_eq!(repr.hop_limit, 0),
    }
}

/// UDP: lengths within the bytes; port edits keep a valid checksum valid.
pub fn udp(data: &[u8]) {
    let hosts: [(IpAddr, IpAddr); 2] =
        [([192, 0, 2, 1].into(), [192, 0, 2, 2].into()), ([1u16; 8].into(), [2u16; 8].into())];
    let Ok(packet) = UdpPacket::new_checked(data) else { return };
    assert_eq!(packet.payload().len() + 8, packet.len());
    for (source, destination) in hosts {
        let _ = packet.verify_checksum(source, destination);
        let repr = UdpRepr::parse(data).expect("checked");
        let mut copy = data.to_vec();
        if repr.emit(&mut copy, source, destination, ChecksumMode::Full).is_err() {
            assert!(repr.destination_port == 0 || repr.payload_len > 65_507);
            return;
        }
        let mut edited = UdpPacket::new_checked(&mut copy[..]).expect("the same lengths");
        assert_eq!(edited.verify_checksum(source, destination), Ok(ChecksumState::Valid));
        edited.set_source_port(!packet.source_port());
        edited.set_destination_port(!packet.destination_port());
        assert_eq!(edited.verify_checksum(source, destination), Ok(ChecksumState::Valid));
        assert_eq!(edited.payload(), packet.payload());
    }
}

/// A whole frame: the layout lies inside, an equal frame can be built from it, edits keep its checksum.
pub fn frame(data: &[u8]) {
    check_frame(data);
    let Ok(link) = EthernetRepr::parse(data) else { return };
    let mut fixed = data.to_vec();
    fix_ipv4_checksum(&mut fixed[link.wire_len()..]);
    check_frame(&fixed);
}

fn check_frame(data: &[u8]) {
    let Ok(layout) = parse_udp(data) else { return };
    let payload = data.get(layout.payload()).expect("the payload lies inside of the frame");
    assert!(layout.ip_offset >= 14 && layout.udp_offset >= layout.ip_offset + 20);
    assert_eq!(layout.source.is_ipv4(), layout.destination.is_ipv4());
    let udp = &data[layout.udp_offset..];
    assert_eq!(
        udp[..4],
        [layout.source.port().to_be_bytes(), layout.destination.port().to_be_bytes()].concat()
    );
    edit_frame(data, layout);

    let headers = UdpHeaders {
        source_mac: layout.source_mac,
        destination_mac: layout.destination_mac,
        vlan: layout.vlan,
        source: layout.source,
        destination: layout.destination,
        dscp: layout.dscp(),
        ecn: layout.ecn(),
        ttl: layout.ttl,
        flow_label: layout.flow_label,
        dont_fragment: layout.dont_fragment,
    };
    let mut rebuilt = vec![0; headers.header_len()];
    rebuilt.extend_from_slice(payload);
    if headers.write(&mut rebuilt, payload.len(), ChecksumMode::Full, 1).is_ok() {
        check_built(&headers, &rebuilt, payload, ChecksumMode::Full);
    }
}

fn edit_frame(data: &[u8], mut layout: UdpLayout) {
    let state = layout.verify_checksum(data);
    let mut copy = data.to_vec();
    layout.set_ttl(&mut copy, 33).expect("a TTL that fits");
    layout.set_tos(&mut copy, 0xb9).expect("any TOS");
    let (source, destination) = (layout.source, layout.destination);
    let new_source: SocketAddr = match source {
        SocketAddr::V4(_) => ([198, 51, 100, 9], 7).into(),
        SocketAddr::V6(_) => ([0x2001u16, 0xdb8, 9, 9, 9, 9, 9, 9], 7).into(),
    };
    if layout.set_source(&mut copy, new_source).is_ok() {
        let _ = layout.set_destination(&mut copy, destination);
    }
    assert_eq!(parse_udp(&copy), Ok(layout));
    assert_eq!(layout.verify_checksum(&copy), state);
}

/// Headers from the bytes: a refused write changes nothing, a done one parses to what was asked.
pub fn build(data: &[u8]) {
    let Some((header, payload)) = data.split_first_chunk::<64>() else { return };
    let (headers, mode) = headers_from(header);
    let mut frame = vec![0x5a; headers.header_len()];
    frame.extend_from_slice(payload);
    let before = frame.clone();
    let id = u16::from_be_bytes([header[62], header[63]]);
    match headers.write(&mut frame, payload.len(), mode, id) {
        Ok(total) => {
            assert_eq!(total, frame.len());
            check_built(&headers, &frame, payload, mode);
        }
        Err(_) => assert_eq!(frame, before),
    }
}

fn headers_from(bytes: &[u8; 64]) -> (UdpHeaders, ChecksumMode) {
    let octets = |at: usize| -> [u8; 16] { bytes[at..at + 16].try_into().expect("16 bytes") };
    let quad = |at: usize| -> [u8; 4] { bytes[at..at + 4].try_into().expect("4 bytes") };
    let word = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let host =
        |is_ipv4: bool, at: usize| -> IpAddr { if is_ipv4 { quad(at).into() } else { octets(at).into() } };
    let tag = |at: usize| {
        VlanTag::from_parts(
            if bytes[at] & 1 == 0 { protocol::TPID_8021Q } else { protocol::TPID_8021AD },
            word(at),
        )
    };
    let tags = [tag(44), tag(46)];
    let [flags, mode, ..] = *bytes;
    let headers = UdpHeaders {
        source_mac: MacAddr([2, 0, 0, 0, 0, flags]),
        destination_mac: MacAddr([4, 0, 0, 0, 0, mode]),
        vlan: VlanTags::new(&tags[..usize::from(flags >> 2 & 3).min(2)]).unwrap_or_default(),
        source: SocketAddr::new(host(flags & 1 == 0, 4), word(36)),
        destination: SocketAddr::new(host(flags & 2 == 0, 20), word(38)),
        dscp: bytes[40],
        ecn: bytes[41],
        ttl: bytes[42],
        flow_label: u32::from_be_bytes(quad(48)) >> 11,
        dont_fragment: bytes[43] & 1 == 0,
    };
    let mode = match mode % 3 {
        0 => ChecksumMode::Full,
        1 => ChecksumMode::PseudoOnly,
        _ => ChecksumMode::None,
    };
    (headers, mode)
}

fn check_built(headers: &UdpHeaders, frame: &[u8], payload: &[u8], mode: ChecksumMode) {
    let layout = parse_udp(frame).expect("what is built parses");
    assert_eq!(&frame[layout.payload()], payload);
    assert_eq!((layout.source_mac, layout.destination_mac), (headers.source_mac, headers.destination_mac));
    assert_eq!((layout.source, layout.destination), (headers.source, headers.destination));
    assert_eq!((layout.vlan, layout.ttl), (headers.vlan, headers.ttl));
    assert_eq!((layout.dscp(), layout.ecn()), (headers.dscp, headers.ecn));
    if headers.source.is_ipv4() {
        assert_eq!(layout.dont_fragment, headers.dont_fragment);
    } else {
        assert_eq!(layout.flow_label, headers.flow_label);
    }
    match mode {
        ChecksumMode::Full => assert_eq!(layout.verify_checksum(frame), Ok(ChecksumState::Valid)),
        ChecksumMode::PseudoOnly => assert!(layout.is_checksum_partial()),
        ChecksumMode::None => assert_eq!(layout.verify_checksum(frame), Ok(ChecksumState::Absent)),
    }
}

/// The wide sum against the definition, and an incremental update against computing anew.
pub fn checksum(data: &[u8]) {
    let reference = data.chunks(2).fold(0u32, |total, pair| {
        let total = total + u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
        (total & 0xffff) + (total >> 16)
    });
    assert_eq!(u32::from(checksum::sum(data)), reference);
    let Some((new, covered)) = data.split_first_chunk::<4>() else { return };
    if covered.len() < 6 {
        return;
    }
    // A first byte that is not 0 keeps away from the sum's second zero.
    let mut covered = covered.to_vec();
    covered[0] |= 1;
    let before = Sum::new().bytes(&covered).checksum();
    let old = covered[2..6].to_vec();
    covered[2..6].copy_from_slice(new);
    assert_eq!(checksum::update_bytes(before, &old, new), Sum::new().bytes(&covered).checksum());
}
