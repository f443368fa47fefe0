//! BPF_PROG_TEST_RUN tables of the router: packet in, verdict and counter, packet out. Needs root.

mod feeds;

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use expressway_xbpf::forward::{Forward, ForwardCounter, ForwardInterface, SourceCheck};
use expressway_xbpf::{XdpDrop, last_drops};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use ForwardCounter::*;

use crate::support::frame::*;
use crate::support::router::*;

/// A frame to the router's `a` from its neighbour there.
fn frame(tags: &[(u16, u16)], ethertype: u16, packet: &[u8]) -> Vec<u8> {
    let mut frame = ethernet(tags, ethertype, packet);
    frame[..6].copy_from_slice(&MAC_A);
    frame
}

fn v4_packet(to: &str, protocol: u8, body: &[u8]) -> Vec<u8> {
    let to: Ipv4Addr = to.parse().unwrap();
    let mut packet = ipv4(protocol, to, &[], body);
    packet[12..16].copy_from_slice(&[10, 1, 0, 2]);
    checksummed(packet)
}

fn v4(to: &str) -> Vec<u8> {
    frame(&[], IPV4, &v4_packet(to, UDP, &udp(443, b"some payload that is long enough")))
}

fn v6_packet(to: &str, next: u8, body: &[u8]) -> Vec<u8> {
    let mut packet = ipv6(next, to.parse().unwrap(), body);
    packet[8..24].copy_from_slice(&"2001:db8:1::2".parse::<Ipv6Addr>().unwrap().octets());
    packet
}

fn v6(to: &str) -> Vec<u8> {
    frame(&[], IPV6, &v6_packet(to, UDP, &udp(443, b"some payload that is long enough")))
}

/// `packet` with the checksum of its IPv4 header set right.
fn checksummed(packet: Vec<u8>) -> Vec<u8> {
    with_ipv4_checksum(&ethernet(&[], IPV4, &packet))[ETHERNET..].to_vec()
}

/// `frame` with bytes of its IPv4 header replaced, and the checksum right again.
fn with(frame: &[u8], offset: usize, bytes: &[u8]) -> Vec<u8> {
    with_ipv4_checksum(&patched(&patched(frame, ETHERNET + 10, &[0, 0]), ETHERNET + offset, bytes))
}

/// Runs `frame` on `a`: the one counter that grew, and the frame afterwards.
fn run(router: &Router, frame: &[u8]) -> (ForwardCounter, Vec<u8>) {
    run_split(router, frame, None)
}

fn run_split(router: &Router, frame: &[u8], linear: Option<u32>) -> (ForwardCounter, Vec<u8>) {
    let sum = |forward: &Forward| {
        (0..6).map(|slot| forward.counts(slot).unwrap()).reduce(|sum, counts| sum + counts).unwrap()
    };
    let before = sum(&router.forward);
    let run = router.inside(|| router.forward.prog_test_run(frame, router.a, linear, 1).unwrap());
    let grown = sum(&router.forward).since(&before);
    assert_eq!(grown.total(), 1, "one counter a packet: {grown:?}");
    let (counter, _) = grown.iter().find(|(_, packets)| *packets == 1).unwrap();
    let action = match counter.verdict() {
        expressway_xbpf::Verdict::Redirect => 4,
        expressway_xbpf::Verdict::Pass => 2,
        expressway_xbpf::Verdict::Drop => 1,
    };
    assert_eq!(run.action, action, "{counter}");
    if counter.verdict() != expressway_xbpf::Verdict::Redirect {
        assert_eq!(run.frame, frame, "{counter}: a packet that is not forwarded is not changed");
    }
    (counter, run.frame)
}

fn check(router: &Router, cases: &[(&str, Vec<u8>, ForwardCounter)]) {
    for (name, frame, expected) in cases {
        assert_eq!(run(router, frame).0, *expected, "{name}");
    }
}

/// What the router should have made of a forwarded packet.
fn expected(packet: &[u8], ethertype: u16, tags: &[(u16, u16)], from: [u8; 6], to: [u8; 6]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    if ethertype == IPV4 {
        packet[8] -= 1;
        packet[10..12].fill(0);
        packet = checksummed(packet);
    } else {
        packet[7] -= 1;
    }
    let mut frame = ethernet(tags, ethertype, &packet);
    frame[..6].copy_from_slice(&to);
    frame[6..12].copy_from_slice(&from);
    frame
}

/// By an implementation that is not ours.
fn assert_checksum(frame: &[u8]) {
    if frame[12..14] == [8, 0] {
        let sum = etherparse::checksum::Sum16BitWords::new().add_slice(&frame[ETHERNET..ETHERNET + 20]);
        assert_eq!(sum.ones_complement(), 0);
    }
}

#[test]
fn routed_packets_leave_with_the_addresses_of_the_next_hop() {
    let Some(router) = Router::new() else { return };
    let datagram = udp(443, b"some payload that is long enough");
    let cases = [
        ("a neighbour", v4_packet("10.2.0.2", UDP, &datagram), IPV4),
        ("behind a gateway", v4_packet("198.51.100.9", UDP, &datagram), IPV4),
        ("TCP", v4_packet("198.51.100.9", 6, &[7; 40]), IPV4),
        ("GRE", v4_packet("198.51.100.9", 47, &[7; 40]), IPV4),
        ("an echo request", v4_packet("198.51.100.9", 1, &[8, 0, 0, 0, 0, 0, 0, 0]), IPV4),
        ("ESP", v4_packet("198.51.100.9", 50, &[7; 40]), IPV4),
        ("AH", v4_packet("198.51.100.9", 51, &[7; 40]), IPV4),
        ("no payload", v4_packet("198.51.100.9", 253, &[]), IPV4),
        ("a full frame", v4_packet("198.51.100.9", UDP, &udp(443, &[9; 1472])), IPV4),
        ("an IPv6 neighbour", v6_packet("2001:db8:2::2", UDP, &datagram), IPV6),
        ("behind an IPv6 gateway", v6_packet("2001:db8:9::9", UDP, &datagram), IPV6),
        ("IPv6, TCP", v6_packet("2001:db8:9::9", 6, &[7; 40]), IPV6),
        ("IPv6, an echo request", v6_packet("2001:db8:9::9", 58, &[128, 0, 0, 0, 0, 0, 0, 0]), IPV6),
        ("IPv6, no next header", v6_packet("2001:db8:9::9", 59, &[]), IPV6),
        (
            "IPv6, a fragment",
            v6_packet("2001:db8:9::9", FRAGMENT, &extension(UDP, &[0, 1, 0, 0, 0, 1], &datagram)),
            IPV6,
        ),
    ];
    for (name, packet, ethertype) in cases {
        let (counter, out) = run(&router, &frame(&[], ethertype, &packet));
        assert_eq!(counter, Forwarded, "{name}");
        assert_eq!(out, expected(&packet, ethertype, &[], MAC_B, NEXT_HOP), "{name}");
        assert_checksum(&out);
    }
}

#[test]
fn fragments_and_odd_headers_are_forwarded() {
    let Some(router) = Router::new() else { return };
    let plain = v4("198.51.100.9");
    for (name, frame) in [
        ("first fragment", with(&plain, 6, &[0x20, 0])),
        ("middle fragment", with(&plain, 6, &[0x20, 9])),
        ("last fragment", with(&plain, 6, &[0, 185])),
        ("DF", with(&plain, 6, &[0x40, 0])),
        ("reserved flag", with(&plain, 6, &[0x80, 0])),
        ("DSCP and ECN", with(&plain, 1, &[0xbb])),
        ("TTL 2", with(&plain, 8, &[2])),
        ("TTL 255", with(&plain, 8, &[255])),
    ] {
        let (counter, out) = run(&router, &frame);
        assert_eq!(counter, Forwarded, "{name}");
        assert_eq!(out, expected(&frame[ETHERNET..], IPV4, &[], MAC_B, NEXT_HOP), "{name}");
        assert_checksum(&out);
    }
}

/// Every value of the checksum that a decrement can meet, wrap-around included.
#[test]
fn the_checksum_is_right_for_every_identification() {
    let Some(router) = Router::new() else { return };
    let plain = v4("198.51.100.9");
    for id in (0u16..=u16::MAX).step_by(97).chain([0, 0xfeff, 0xff00, 0xffff]) {
        let frame = with(&plain, 4, &id.to_be_bytes());
        let (counter, out) = run(&router, &frame);
        assert_eq!(counter, Forwarded, "{id}");
        assert_checksum(&out);
    }
}

#[test]
fn what_a_router_does_not_forward_passes() {
    let Some(router) = Router::new() else { return };
    let plain = v4("198.51.100.9");
    let six = v6("2001:db8:9::9");
    let source4 = |text: &str| with(&plain, 12, &text.parse::<Ipv4Addr>().unwrap().octets());
    let source6 = |text: &str| patched(&six, ETHERNET + 8, &text.parse::<Ipv6Addr>().unwrap().octets());
    let icmp = |kind: u8| frame(&[], IPV4, &v4_packet("198.51.100.9", 1, &[kind, 0, 0, 0, 0, 0, 0, 0]));
    let icmp6 = |kind: u8| frame(&[], IPV6, &v6_packet("2001:db8:9::9", 58, &[kind, 0, 0, 0, 0, 0, 0, 0]));
    let mut options = ipv4(UDP, Ipv4Addr::new(198, 51, 100, 9), &[1, 1, 1, 0], &udp(443, b"x"));
    options[12..16].copy_from_slice(&[10, 1, 0, 2]);
    check(
        &router,
        &[
            ("another station", patched(&plain, 0, &[2, 9, 9, 9, 9, 9]), PassOtherMac),
            ("broadcast frame", patched(&plain, 0, &[0xff; 6]), PassOtherMac),
            ("ARP", frame(&[], 0x0806, &[0; 46]), PassNotIp),
            ("LLDP", frame(&[], 0x88cc, &[0; 46]), PassNotIp),
            ("TTL 1", with(&plain, 8, &[1]), PassTtl),
            ("TTL 0", with(&plain, 8, &[0]), PassTtl),
            ("hop limit 1", patched(&six, ETHERNET + 7, &[1]), PassTtl),
            ("hop limit 0", patched(&six, ETHERNET + 7, &[0]), PassTtl),
            ("options", frame(&[], IPV4, &options), PassIpv4Options),
            (
                "hop-by-hop",
                frame(&[], IPV6, &v6_packet("2001:db8:9::9", HOP_BY_HOP, &[UDP; 24])),
                PassIpv6Extension,
            ),
            (
                "routing",
                frame(&[], IPV6, &v6_packet("2001:db8:9::9", ROUTING, &[UDP; 24])),
                PassIpv6Extension,
            ),
            ("multicast", v4("239.1.1.1"), PassDestination),
            ("broadcast", v4("255.255.255.255"), PassDestination),
            ("class E", v4("240.0.0.1"), PassDestination),
            ("to loopback", v4("127.0.0.1"), PassDestination),
            ("to this network", v4("0.0.0.1"), PassDestination),
            ("to link-local", v4("169.254.1.1"), PassDestination),
            ("to IPv6 multicast", v6("ff0e::1"), PassDestination),
            ("to IPv6 link-local", v6("fe80::1"), PassDestination),
            ("to IPv6 loopback", v6("::1"), PassDestination),
            ("to the unspecified", v6("::"), PassDestination),
            ("to a mapped address", v6("::ffff:198.51.100.9"), PassDestination),
            ("subnet broadcast", v4("10.2.0.255"), PassNotForwarded),
            ("from loopback", source4("127.0.0.1"), PassSource),
            ("from multicast", source4("224.0.0.1"), PassSource),
            ("from broadcast", source4("255.255.255.255"), PassSource),
            ("from this network", source4("0.1.2.3"), PassSource),
            ("from link-local", source4("169.254.1.1"), PassSource),
            ("from an address of ours", source4("10.2.0.1"), PassSource),
            ("from IPv6 link-local", source6("fe80::2"), PassSource),
            ("from IPv6 multicast", source6("ff02::1"), PassSource),
            ("from IPv6 loopback", source6("::1"), PassSource),
            ("from the unspecified", source6("::"), PassSource),
            ("unreachable", icmp(3), PassIcmpError),
            ("source quench", icmp(4), PassIcmpError),
            ("redirect", icmp(5), PassIcmpError),
            ("time exceeded", icmp(11), PassIcmpError),
            ("parameter problem", icmp(12), PassIcmpError),
            ("IPv6, unreachable", icmp6(1), PassIcmpError),
            ("packet too big", icmp6(2), PassIcmpError),
            ("IPv6, time exceeded", icmp6(3), PassIcmpError),
            ("to this host", v4("10.2.0.1"), PassNotForwarded),
            ("to this host, IPv6", v6("2001:db8:2::1"), PassNotForwarded),
            ("no route", v4("192.88.99.1"), PassNotForwarded),
            ("no IPv6 route", v6("2001:db8:ffff::1"), PassNotForwarded),
            ("route of type unreachable", v4("203.0.112.1"), PassRefused),
            ("route of type prohibit", v4("203.0.114.1"), PassRefused),
            ("IPv6 route of type unreachable", v6("2001:db8:bad::1"), PassRefused),
            ("neighbour unknown", v4("10.2.0.77"), PassNeighbour),
            ("IPv6 neighbour unknown", v6("2001:db8:2::77"), PassNeighbour),
            ("an interface that is not configured", v4("10.3.0.2"), PassOtherEgress),
        ],
    );
}

#[test]
fn blackholes_end_here() {
    let Some(router) = Router::new() else { return };
    check(
        &router,
        &[("IPv4", v4("203.0.113.1"), DropBlackhole), ("IPv6", v6("2001:db8:dead::1"), DropBlackhole)],
    );
    let told = last_drops(router.forward.program()).unwrap();
    assert!(told.contains(&XdpDrop::Forward(DropBlackhole)), "{told:?}");
}

#[test]
fn malformed_packets_pass() {
    let Some(router) = Router::new() else { return };
    let plain = v4("198.51.100.9");
    let six = v6("2001:db8:9::9");
    let cut = |frame: &[u8], length: usize| frame[..length].to_vec();
    let padded = |frame: &[u8], by: usize| [frame, &vec![0; by]].concat();
    check(
        &router,
        &[
            ("IPv4 with version 6", patched(&plain, ETHERNET, &[0x65]), PassMalformed),
            ("header of 16 bytes", patched(&plain, ETHERNET, &[0x44]), PassMalformed),
            ("wrong checksum", patched(&plain, ETHERNET + 10, &[1, 2]), PassMalformed),
            ("total length below the header", with(&plain, 2, &[0, 19]), PassMalformed),
            ("total length beyond the frame", with(&plain, 2, &[1, 0]), PassTruncated),
            ("IPv6 with version 4", patched(&six, ETHERNET, &[0x40]), PassMalformed),
            ("payload beyond the frame", patched(&six, ETHERNET + 4, &[1, 0]), PassTruncated),
            ("cut in the IPv4 header", cut(&plain, ETHERNET + 19), PassTruncated),
            ("cut in the IPv6 header", cut(&six, ETHERNET + 39), PassTruncated),
            ("nothing behind Ethernet", cut(&plain, ETHERNET), PassTruncated),
            (
                "no room for ports",
                frame(&[], IPV4, &v4_packet("198.51.100.9", UDP, &[1, 2, 3])),
                PassTruncated,
            ),
            (
                "no room for TCP ports, IPv6",
                frame(&[], IPV6, &v6_packet("2001:db8:9::9", 6, &[1])),
                PassTruncated,
            ),
            ("a trailer", padded(&plain, 4), PassTrailer),
            ("an IPv6 trailer", padded(&six, 4), PassTrailer),
        ],
    );
    let short = frame(&[], IPV4, &v4_packet("198.51.100.9", UDP, &udp(443, b"x")));
    let (counter, out) = run(&router, &padded(&short, 60 - short.len()));
    assert_eq!(counter, Forwarded, "Ethernet padding is none");
    assert_eq!(out.len(), 60);
}

#[test]
fn what_exceeds_the_mtu_passes_whole() {
    let Some(router) = Router::new() else { return };
    let sized = |to: &str, size: usize| frame(&[], IPV4, &v4_packet(to, UDP, &udp(443, &vec![1; size - 28])));
    let sized6 =
        |to: &str, size: usize| frame(&[], IPV6, &v6_packet(to, UDP, &udp(443, &vec![1; size - 48])));
    check(
        &router,
        &[
            ("as large as the device's", sized("198.51.100.9", 1500), Forwarded),
            ("a byte more", sized("198.51.100.9", 1501), PassTooLarge),
            ("as large as the route's", sized("198.51.101.9", 600), Forwarded),
            ("a byte more than the route's", sized("198.51.101.9", 601), PassTooLarge),
            ("IPv6", sized6("2001:db8:9::9", 1500), Forwarded),
            ("IPv6, a byte more", sized6("2001:db8:9::9", 1501), PassTooLarge),
        ],
    );
}

#[test]
fn vlans_are_interfaces() {
    let Some(router) = Router::new() else { return };
    let datagram = udp(443, b"some payload that is long enough");
    let four = |to| v4_packet(to, UDP, &datagram);
    let (c, s) = ((C_TAG, 100), (S_TAG, 200));
    // From untagged to VLAN 100, which has a link of its own.
    let (counter, out) = run(&router, &frame(&[], IPV4, &four("10.5.0.2")));
    assert_eq!((counter, out), (Forwarded, expected(&four("10.5.0.2"), IPV4, &[c], MAC_V, NEXT_HOP)));
    let (counter, out) = run(&router, &frame(&[], IPV4, &four("10.6.0.2")));
    assert_eq!((counter, out), (Forwarded, expected(&four("10.6.0.2"), IPV4, &[s, c], MAC_Q, NEXT_HOP)));
    // From VLAN 100.
    let tagged =
        |tags: &[(u16, u16)], packet: &[u8], mac: [u8; 6]| patched(&frame(tags, IPV4, packet), 0, &mac);
    for (name, tags, mac, to, out_tags, from) in [
        ("tag to none", &[c][..], MAC_V, "10.2.0.2", &[][..], MAC_B),
        ("tag to the same", &[c], MAC_V, "10.5.0.2", &[c], MAC_V),
        ("tag to two", &[c], MAC_V, "10.6.0.2", &[s, c], MAC_Q),
        ("two to none", &[s, c], MAC_Q, "10.2.0.2", &[], MAC_B),
        ("two to one", &[s, c], MAC_Q, "10.5.0.2", &[c], MAC_V),
        ("two to two", &[s, c], MAC_Q, "10.6.0.2", &[s, c], MAC_Q),
    ] {
        let (counter, out) = run(&router, &tagged(tags, &four(to), mac));
        assert_eq!(counter, Forwarded, "{name}");
        assert_eq!(out, expected(&four(to), IPV4, out_tags, from, NEXT_HOP), "{name}");
    }
    let priority = run(&router, &tagged(&[(C_TAG, 0xe064)], &four("10.2.0.2"), MAC_V)).0;
    assert_eq!(priority, Forwarded, "the priority is not part of the VLAN");
    check(
        &router,
        &[
            ("another VLAN", tagged(&[(C_TAG, 101)], &four("10.2.0.2"), MAC_V), PassOtherPort),
            ("VLAN 0", tagged(&[(C_TAG, 0)], &four("10.2.0.2"), MAC_A), PassOtherPort),
            ("802.1ad of that number", tagged(&[(S_TAG, 100)], &four("10.2.0.2"), MAC_V), PassOtherPort),
            ("three tags", tagged(&[s, c, c], &four("10.2.0.2"), MAC_Q), PassVlanDepth),
            ("the parent's MAC in the VLAN", tagged(&[c], &four("10.2.0.2"), MAC_A), PassOtherMac),
        ],
    );
}

#[test]
fn multi_buffer_frames_go_where_they_can_be_sent() {
    let Some(mut router) = Router::new() else { return };
    let large = frame(&[], IPV4, &v4_packet("10.7.0.2", UDP, &udp(443, &[5; 4000])));
    let out = router.inside(|| router.forward.prog_test_run(&large, router.a, Some(1000), 1));
    if out.is_err() {
        eprintln!("skipped: this kernel takes no split test frames (Linux 6.18 does)");
        return;
    }
    let (counter, out) = run_split(&router, &large, Some(1000));
    assert_eq!(counter, Forwarded);
    assert_eq!(out, expected(&large[ETHERNET..], IPV4, &[], MAC_J, NEXT_HOP));
    assert_eq!(run_split(&router, &large, Some(30)).0, PassTruncated, "headers in fragments");
    let mut ports = router.ports();
    ports.iter_mut().for_each(|port| port.sends_fragments = false);
    router.set_interfaces(&ports);
    assert_eq!(run_split(&router, &large, Some(1000)).0, PassMultiBuffer);
}

#[test]
fn sources_are_checked_as_rp_filter_says() {
    let Some(mut router) = Router::new() else { return };
    let from = |text: &str| with(&v4("198.51.100.9"), 12, &text.parse::<Ipv4Addr>().unwrap().octets());
    let cases = [
        ("its own network", "10.1.0.2", [Forwarded, Forwarded, Forwarded]),
        ("another interface's", "10.2.0.9", [Forwarded, PassReversePath, Forwarded]),
        ("nobody's", "192.88.99.7", [Forwarded, PassReversePath, PassReversePath]),
        ("ours", "10.1.0.1", [PassSource, PassReversePath, PassReversePath]),
        ("a blackhole's", "203.0.113.7", [Forwarded, PassReversePath, PassReversePath]),
    ];
    for (column, source_check) in
        [SourceCheck::Local, SourceCheck::Strict, SourceCheck::Loose].into_iter().enumerate()
    {
        let mut ports = router.ports();
        ports.iter_mut().for_each(|port| port.source_check = source_check);
        router.set_interfaces(&ports);
        for (name, source, verdicts) in &cases {
            assert_eq!(run(&router, &from(source)).0, verdicts[column], "{name}, {source_check:?}");
        }
    }
}

#[test]
fn changes_take_effect_with_the_next_packet() {
    let Some(mut router) = Router::new() else { return };
    let frame = v4("198.51.100.9");
    assert_eq!(run(&router, &frame).0, Forwarded);
    let ports = router.ports();
    let without = |interface: u32| -> Vec<ForwardInterface> {
        ports.iter().filter(|port| port.interface != interface).cloned().collect()
    };
    router.set_interfaces(&without(router.b));
    assert_eq!(run(&router, &frame).0, PassOtherEgress);
    router.set_interfaces(&without(router.a));
    assert_eq!(run(&router, &frame).0, PassOtherPort);
    let mut deaf = ports.clone();
    deaf.iter_mut().find(|port| port.interface == router.b).unwrap().sends = false;
    router.set_interfaces(&deaf);
    assert_eq!(run(&router, &frame).0, PassOtherEgress);
    router.set_interfaces(&ports);
    assert_eq!(run(&router, &frame).0, Forwarded);
    router.forward.set_locals(&HashSet::from([Ipv4Addr::new(10, 1, 0, 2)])).unwrap();
    assert_eq!(run(&router, &frame).0, PassSource);
    router.forward.set_locals(&HashSet::new()).unwrap();
    assert_eq!(run(&router, &frame).0, Forwarded);
    router.sysctl("net/ipv4/conf/a/forwarding", "0");
    assert_eq!(run(&router, &frame).0, PassDisabled);
    router.ip("link set dev b down");
    router.sysctl("net/ipv4/conf/a/forwarding", "1");
    assert_eq!(run(&router, &frame).0, PassNotForwarded);
}

/// What only an odd route, interface or driver brings about. `DropRewrite` has no row: the program reads the header that it changes
/// before and after it moves the frame's beginning, and what had it before has it then; the verifier asks for the second look.
#[test]
fn what_the_kernel_cannot_tell_passes() {
    let Some(router) = Router::new() else { return };
    let datagram = udp(443, b"some payload that is long enough");
    // By lightweight tunnels, for which the lookup has no answer. Not every kernel has segment routing.
    let tunnels = ["-6 route add 2001:db8:5e6::/48", "route add 203.0.115.0/24"]
        .map(|route| router.try_ip(&format!("{route} encap seg6 mode encap segs 2001:db8:2::2 dev b")));
    for (made, packet) in tunnels.into_iter().zip([v6("2001:db8:5e6::9"), v4("203.0.115.9")]) {
        match made {
            true => check(&router, &[("a tunnel", packet, PassTunnel)]),
            false => eprintln!("skipped: this kernel has no route with segment routing"),
        }
    }
    // No room for the tag of the VLAN that the packet goes to; one that goes on untagged needs none.
    let before = router.forward.counts(1).unwrap();
    let tagged = frame(&[], IPV4, &v4_packet("10.5.0.2", UDP, &datagram));
    let narrow = |frame: &[u8]| router.inside(|| router.forward.prog_test_run_without_room(frame, router.a));
    let out = narrow(&tagged).unwrap();
    assert_eq!((out.action, &out.frame), (2, &tagged));
    let grown = router.forward.counts(1).unwrap().since(&before);
    assert_eq!(grown.iter().find(|(_, packets)| *packets > 0).unwrap(), (PassNoRoom, 1));
    assert_eq!(narrow(&v4("198.51.100.9")).unwrap().action, 4);
    // The interface is gone since it was configured.
    router.ip("link delete dev v");
    let arrived = patched(&frame(&[(C_TAG, 100)], IPV4, &v4_packet("10.2.0.2", UDP, &datagram)), 0, &MAC_V);
    check(&router, &[("an interface that is gone", arrived, PassLookup)]);
}

/// The route that the kernel names for a flow, over two next hops: the program must choose the same.
#[test]
fn flows_are_spread_as_the_kernel_spreads_them() {
    let Some(router) = Router::new() else { return };
    for policy in ["0", "1"] {
        router.sysctl("net/ipv4/fib_multipath_hash_policy", policy);
        router.sysctl("net/ipv6/fib_multipath_hash_policy", policy);
        for family in [4, 6] {
            let mut seen = HashSet::new();
            for number in 0..64u16 {
                let (frame, to) = multipath(family, number);
                let (counter, out) = run(&router, &frame);
                assert_eq!(counter, Forwarded);
                let device = match out[6..12].try_into().unwrap() {
                    MAC_B => "b",
                    MAC_J => "j",
                    other => panic!("{other:?}"),
                };
                let from = if family == 4 { "10.1.0.2" } else { "2001:db8:1::2" };
                // The answer for the ports needs Linux 4.18 and iproute2 with `ipproto`.
                let asked =
                    format!("route get {to} from {from} iif a ipproto udp sport {} dport 443", 1000 + number);
                let answer = router.ip(&asked);
                assert!(answer.contains(&format!("dev {device} ")), "{asked}: {answer}, not {device}");
                seen.insert(device);
            }
            assert_eq!(seen.len(), 2, "IPv{family}, policy {policy}: flows take both ways");
        }
    }
}

fn multipath(family: u8, number: u16) -> (Vec<u8>, IpAddr) {
    let mut datagram = udp(443, b"some payload that is long enough");
    datagram[..2].copy_from_slice(&(1000 + number).to_be_bytes());
    // With layer 3 alone, addresses have to differ.
    if family == 4 {
        let to = Ipv4Addr::new(198, 18, (number >> 8) as u8, number as u8);
        (frame(&[], IPV4, &v4_packet(&to.to_string(), UDP, &datagram)), to.into())
    } else {
        let to = Ipv6Addr::new(0x2001, 0xdb8, 0xec, 0, 0, 0, 0, number + 1);
        (frame(&[], IPV6, &v6_packet(&to.to_string(), UDP, &datagram)), to.into())
    }
}

/// Whatever comes: nothing but MACs, TTL and checksum changes, and only in what is forwarded.
#[test]
fn arbitrary_packets_keep_what_is_theirs() {
    let Some(router) = Router::new() else { return };
    let targets = ["198.51.100.9", "10.2.0.2", "10.5.0.2", "203.0.113.1", "10.2.0.77", "239.1.1.1"];
    let strategy = (
        0..targets.len(),
        any::<bool>(),
        prop::collection::vec((0usize..80, any::<u8>()), 0..6),
        prop::collection::vec(any::<u8>(), 8..90),
        0usize..12,
        any::<bool>(),
    );
    let mut runner = TestRunner::new(Config { cases: 4000, failure_persistence: None, ..Config::default() });
    runner
        .run(&strategy, |(target, six, changes, body, cut, valid)| {
            let mut input = if six {
                frame(&[], IPV6, &v6_packet("2001:db8:9::9", UDP, &body))
            } else {
                frame(&[], IPV4, &v4_packet(targets[target], UDP, &body))
            };
            for (offset, value) in changes {
                if let Some(byte) = input.get_mut(offset) {
                    *byte = value;
                }
            }
            input.truncate((input.len() - cut).max(14));
            if valid && input.len() >= 34 && input[12..14] == [8, 0] {
                input[24..26].fill(0);
                input = with_ipv4_checksum(&input);
            }
            let (counter, out) = run(&router, &input);
            if counter == Forwarded {
                let tagged = out[12..14] == [0x81, 0];
                let packet = &out[if tagged { 18 } else { 14 }..];
                let (from, to): ([u8; 6], [u8; 6]) =
                    (out[6..12].try_into().unwrap(), out[..6].try_into().unwrap());
                let tags = if tagged { &[(C_TAG, 100)][..] } else { &[] };
                let ethertype = if packet[0] >> 4 == 4 { IPV4 } else { IPV6 };
                prop_assert_eq!(to, NEXT_HOP);
                prop_assert_eq!(&out, &expected(&input[14..], ethertype, tags, from, to));
            }
            Ok(())
        })
        .unwrap();
}
