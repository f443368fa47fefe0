//! Both directions against etherparse: it reads what we build, and we read what it builds.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use etherparse::{
    EtherType, Ethernet2Header, IpNumber, Ipv4Header, Ipv6Extensions, Ipv6FlowLabel, Ipv6Header,
    Ipv6RawExtHeader, Ipv6RoutingExtensions, LinkExtHeader, LinkHeader, NetHeaders, PacketHeaders,
    SingleVlanHeader, TransportHeader, UdpHeader, VlanId, VlanPcp,
};
use expressway_wire::{ChecksumMode, ChecksumState, UdpHeaders, VlanTags, parse_udp};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::common::{frame_with, headers, ipv4, ipv6, payload, tags};

fn check_link(parsed: &PacketHeaders<'_>, headers: &UdpHeaders) {
    let Some(LinkHeader::Ethernet2(link)) = &parsed.link else { panic!("no Ethernet header") };
    assert_eq!((link.source, link.destination), (headers.source_mac.0, headers.destination_mac.0));
    assert_eq!(parsed.link_exts.len(), headers.vlan.as_slice().len());
    let mut ether_type = link.ether_type;
    for (theirs, ours) in parsed.link_exts.iter().zip(headers.vlan.as_slice()) {
        let LinkExtHeader::Vlan(theirs) = theirs else { panic!("no VLAN tag: {theirs:?}") };
        assert_eq!(ether_type.0, ours.tpid);
        assert_eq!(theirs.vlan_id.value(), ours.id);
        assert_eq!(theirs.pcp.value(), ours.priority);
        assert_eq!(theirs.drop_eligible_indicator, ours.drop_eligible);
        ether_type = theirs.ether_type;
    }
}

/// Compares the IP header and returns the UDP checksum that etherparse computes.
fn check_net(
    parsed: &PacketHeaders<'_>,
    headers: &UdpHeaders,
    id: u16,
    udp: &UdpHeader,
    payload: &[u8],
) -> u16 {
    let tos = headers.dscp << 2 | headers.ecn;
    match parsed.net.as_ref().expect("IP header") {
        NetHeaders::Ipv4(ip, _) => {
            assert_eq!(IpAddr::from(ip.source), headers.source.ip());
            assert_eq!(IpAddr::from(ip.destination), headers.destination.ip());
            assert_eq!(ip.dscp.value() << 2 | ip.ecn.value(), tos);
            assert_eq!((ip.time_to_live, ip.dont_fragment), (headers.ttl, headers.dont_fragment));
            assert_eq!((ip.identification, ip.protocol), (id, IpNumber::UDP));
            assert!(!ip.more_fragments && ip.fragment_offset.value() == 0 && ip.options.is_empty());
            assert_eq!(usize::from(ip.total_len), 28 + payload.len());
            assert_eq!(ip.header_checksum, ip.calc_header_checksum());
            udp.calc_checksum_ipv4(ip, payload).expect("checksum")
        }
        NetHeaders::Ipv6(ip, _) => {
            assert_eq!(IpAddr::from(ip.source), headers.source.ip());
            assert_eq!(IpAddr::from(ip.destination), headers.destination.ip());
            assert_eq!((ip.traffic_class, ip.hop_limit), (tos, headers.ttl));
            assert_eq!((ip.flow_label.value(), ip.next_header), (headers.flow_label, IpNumber::UDP));
            assert_eq!(usize::from(ip.payload_length), 8 + payload.len());
            udp.calc_checksum_ipv6(ip, payload).expect("checksum")
        }
        other => panic!("not IP: {other:?}"),
    }
}

/// IPv4 options that are well-formed and no source route, padded to whole words.
fn ipv4_options() -> impl Strategy<Value = Vec<u8>> {
    let option = prop_oneof![
        Just(vec![1u8]),
        (vec(any::<u8>(), 0..6), 2u8..131).prop_map(|(data, kind)| {
            let mut option = vec![kind, data.len() as u8 + 2];
            option.extend(data);
            option
        }),
    ];
    vec(option, 0..5).prop_map(|options| {
        let mut options = options.concat();
        options.resize(options.len().next_multiple_of(4), 0);
        options
    })
}

/// Hop-by-hop or destination options that a receiver skips, `units` times eight bytes in all.
fn skipped_options() -> impl Strategy<Value = Ipv6RawExtHeader> {
    (0usize..4, 2u8..64, any::<bool>()).prop_map(|(units, kind, pad1)| {
        let mut options = vec![0u8; 6 + units * 8];
        if !pad1 {
            options[0] = kind;
            options[1] = options.len() as u8 - 2;
        }
        Ipv6RawExtHeader::new_raw(IpNumber::UDP, &options).expect("extension header")
    })
}

fn extensions() -> impl Strategy<Value = Ipv6Extensions> {
    let routing = (any::<u8>(), prop::option::of(skipped_options())).prop_map(|(kind, last)| {
        let data = [kind, 0, 1, 2, 3, 4];
        let routing = Ipv6RawExtHeader::new_raw(IpNumber::UDP, &data).expect("routing header");
        Ipv6RoutingExtensions { routing, final_destination_options: last }
    });
    let options = || prop::option::of(skipped_options());
    (options(), options(), prop::option::of(routing)).prop_map(|(hop_by_hop, destination, routing)| {
        Ipv6Extensions {
            hop_by_hop_options: hop_by_hop,
            destination_options: destination,
            routing,
            fragment: None,
            auth: None,
        }
    })
}

fn write_link(frame: &mut Vec<u8>, macs: ([u8; 6], [u8; 6]), tags: &VlanTags, ether_type: EtherType) {
    let tags = tags.as_slice();
    let behind = |n: usize| tags.get(n).map_or(ether_type, |tag| EtherType(tag.tpid));
    let link = Ethernet2Header { source: macs.0, destination: macs.1, ether_type: behind(0) };
    frame.extend(link.to_bytes());
    for (n, tag) in tags.iter().enumerate() {
        let header = SingleVlanHeader {
            pcp: VlanPcp::try_new(tag.priority).expect("priority"),
            drop_eligible_indicator: tag.drop_eligible,
            vlan_id: VlanId::try_new(tag.id).expect("identifier"),
            ether_type: behind(n + 1),
        };
        frame.extend(header.to_bytes());
    }
}

proptest! {
    #[test]
    fn etherparse_reads_what_we_build(
        headers in headers(), payload in payload(), id in any::<u16>(), checksummed in any::<bool>(),
    ) {
        let mut frame = frame_with(&headers, &payload);
        let absent = !checksummed && headers.source.is_ipv4();
        let mode = if absent { ChecksumMode::None } else { ChecksumMode::Full };
        let total = headers.write(&mut frame, payload.len(), mode, id).unwrap();
        prop_assert_eq!(total, frame.len());
        let parsed = PacketHeaders::from_ethernet_slice(&frame).unwrap();
        check_link(&parsed, &headers);
        let Some(TransportHeader::Udp(udp)) = &parsed.transport else { panic!("no UDP header") };
        prop_assert_eq!(udp.source_port, headers.source.port());
        prop_assert_eq!(udp.destination_port, headers.destination.port());
        prop_assert_eq!(usize::from(udp.length), 8 + payload.len());
        let checksum = check_net(&parsed, &headers, id, udp, &payload);
        prop_assert_eq!(udp.checksum, if absent { 0 } else { checksum });
        prop_assert_eq!(parsed.payload.slice(), &payload[..]);
    }

    #[test]
    fn we_read_ipv4_that_etherparse_builds(
        macs in any::<([u8; 6], [u8; 6])>(), tags in tags(), source in ipv4(), destination in ipv4(),
        ports in any::<(u16, u16)>(), options in ipv4_options(), marks in (0u8..64, 0u8..4, any::<u8>(), any::<bool>()),
        payload in payload(), padding in 0usize..60,
    ) {
        let mut ip = Ipv4Header::new(0, marks.2, IpNumber::UDP, source.octets(), destination.octets()).unwrap();
        ip.options = (&options[..]).try_into().unwrap();
        ip.set_payload_len(8 + payload.len()).unwrap();
        ip.dscp = marks.0.try_into().unwrap();
        ip.ecn = marks.1.try_into().unwrap();
        ip.dont_fragment = marks.3;
        ip.header_checksum = ip.calc_header_checksum();
        let mut frame = Vec::new();
        write_link(&mut frame, macs, &tags, EtherType::IPV4);
        frame.extend(ip.to_bytes());
        let udp = UdpHeader::with_ipv4_checksum(ports.0, ports.1, &ip, &payload).unwrap();
        frame.extend(udp.to_bytes());
        let start = frame.len();
        frame.extend(&payload);
        frame.resize(frame.len() + padding, 0xee);

        let layout = parse_udp(&frame).unwrap();
        prop_assert_eq!(layout.payload(), start..start + payload.len());
        prop_assert_eq!(layout.source, SocketAddr::new(source.into(), ports.0));
        prop_assert_eq!(layout.destination, SocketAddr::new(destination.into(), ports.1));
        prop_assert_eq!((layout.source_mac.0, layout.destination_mac.0, layout.vlan), (macs.0, macs.1, tags));
        prop_assert_eq!((layout.dscp(), layout.ecn(), layout.ttl, layout.dont_fragment), marks);
        prop_assert_eq!(layout.udp_checksum, udp.checksum);
        prop_assert_eq!(layout.verify_checksum(&frame), Ok(ChecksumState::Valid));
    }

    #[test]
    fn we_read_ipv6_that_etherparse_builds(
        macs in any::<([u8; 6], [u8; 6])>(), tags in tags(), source in ipv6(), destination in ipv6(),
        ports in any::<(u16, u16)>(), mut extensions in extensions(), marks in (any::<u8>(), any::<u8>(), 0u32..1 << 20),
        payload in payload(), padding in 0usize..60,
    ) {
        let first = extensions.set_next_headers(IpNumber::UDP);
        let ip = Ipv6Header {
            traffic_class: marks.0,
            flow_label: Ipv6FlowLabel::try_new(marks.2).unwrap(),
            payload_length: (extensions.header_len() + 8 + payload.len()) as u16,
            next_header: first,
            hop_limit: marks.1,
            source: source.octets(),
            destination: destination.octets(),
        };
        let mut frame = Vec::new();
        write_link(&mut frame, macs, &tags, EtherType::IPV6);
        frame.extend(ip.to_bytes());
        extensions.write(&mut frame, first).unwrap();
        let udp = UdpHeader::with_ipv6_checksum(ports.0, ports.1, &ip, &payload).unwrap();
        frame.extend(udp.to_bytes());
        let start = frame.len();
        frame.extend(&payload);
        frame.resize(frame.len() + padding, 0xee);

        let layout = parse_udp(&frame).unwrap();
        prop_assert_eq!(layout.payload(), start..start + payload.len());
        prop_assert_eq!(layout.source, SocketAddr::new(source.into(), ports.0));
        prop_assert_eq!(layout.destination, SocketAddr::new(destination.into(), ports.1));
        prop_assert_eq!((layout.source_mac.0, layout.destination_mac.0, layout.vlan), (macs.0, macs.1, tags));
        prop_assert_eq!((layout.tos, layout.ttl, layout.flow_label), marks);
        prop_assert_eq!(layout.verify_checksum(&frame), Ok(ChecksumState::Valid));
    }
}

#[test]
fn the_largest_payload_round_trips() {
    for (source, destination) in [
        (IpAddr::from(Ipv4Addr::new(192, 0, 2, 1)), IpAddr::from(Ipv4Addr::new(192, 0, 2, 2))),
        (IpAddr::from(Ipv6Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST)),
    ] {
        let (source, destination) = (SocketAddr::new(source, 1), SocketAddr::new(destination, 2));
        let headers = UdpHeaders::new([2; 6].into(), [4; 6].into(), source, destination);
        // All ones carry most; a sum that overflowed its lanes would show here.
        let payload = vec![0xff; expressway_wire::udp::MAX_UDP_PAYLOAD];
        let mut frame = frame_with(&headers, &payload);
        headers.write(&mut frame, payload.len(), ChecksumMode::Full, 1).unwrap();
        let parsed = PacketHeaders::from_ethernet_slice(&frame).unwrap();
        let Some(TransportHeader::Udp(udp)) = &parsed.transport else { panic!("no UDP header") };
        assert_eq!(udp.checksum, check_net(&parsed, &headers, 1, udp, &payload));
        assert_eq!(parse_udp(&frame).unwrap().verify_checksum(&frame), Ok(ChecksumState::Valid));
    }
}
