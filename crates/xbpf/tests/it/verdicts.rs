//! BPF_PROG_TEST_RUN tables: packet in, verdict and counter, packet out unchanged. Needs root.

use std::net::Ipv4Addr;

use expressway_xbpf::{Counter, Options};

use Counter::*;

use crate::support::frame::*;
use crate::support::{self, Service, load, pair4, pair6};

type Case = (&'static str, Vec<u8>, Counter);

fn check(cases: &[Case]) {
    let Some(service) = Service::new() else { return };
    for (name, frame, expected) in cases {
        assert_eq!(service.classify(frame), *expected, "{name}");
    }
}

fn v4(body: &[u8]) -> Vec<u8> {
    ipv4(UDP, "192.0.2.1".parse().unwrap(), &[], body)
}

fn v6(next: u8, body: &[u8]) -> Vec<u8> {
    ethernet(&[], IPV6, &ipv6(next, "2001:db8::1".parse().unwrap(), body))
}

/// The service's datagram behind one extension header.
fn behind(kind: u8, content: &[u8]) -> Vec<u8> {
    v6(kind, &extension(UDP, content, &udp(443, b"x")))
}

/// An options header's content: `options`, then padding up to a multiple of eight.
fn padded(options: &[u8]) -> Vec<u8> {
    let mut content = options.to_vec();
    match (8 - (content.len() + 2) % 8) % 8 {
        0 => {}
        1 => content.push(0),
        room => content.extend([1, room as u8 - 2, 0, 0, 0, 0, 0, 0].iter().take(room)),
    }
    content
}

#[test]
fn configured_pairs_are_taken() {
    let mut padded = datagram(pair4(), b"x");
    padded.resize(60, 0);
    check(&[
        ("IPv4", datagram(pair4(), b"hello"), Taken),
        ("IPv6", datagram(pair6(), b"hello"), Taken),
        ("IPv4, empty payload", datagram(pair4(), b""), Taken),
        ("IPv6, empty payload", datagram(pair6(), b""), Taken),
        ("IPv4, padded to the Ethernet minimum", padded, Taken),
        ("IPv4 beyond one page", datagram(pair4(), &[7; 8000]), Taken),
        ("IPv6 beyond one page", datagram(pair6(), &[7; 8000]), Taken),
        ("IPv4 without DF", patched(&datagram(pair4(), b"x"), ETHERNET + 6, &[0]), Taken),
        ("IPv4, reserved flag", patched(&datagram(pair4(), b"x"), ETHERNET + 6, &[0x80]), Taken),
        ("IPv4, DSCP and ECN", patched(&datagram(pair4(), b"x"), ETHERNET + 1, &[0xbb]), Taken),
        ("IPv6, flow label and class", patched(&datagram(pair6(), b"x"), ETHERNET, &[0x6b, 0xbf]), Taken),
    ]);
}

#[test]
fn everything_else_passes() {
    let other = |text: &str| datagram(text.parse().unwrap(), b"x");
    let v4_in_v6 = ipv6(UDP, Ipv4Addr::new(192, 0, 2, 1).to_ipv6_mapped(), &udp(443, b"x"));
    check(&[
        ("IPv4, other port", other("192.0.2.1:444"), PassOtherPair),
        ("IPv4, port with swapped bytes", other("192.0.2.1:47873"), PassOtherPair),
        ("IPv4, other address", other("192.0.2.2:443"), PassOtherPair),
        ("IPv6, other port", other("[2001:db8::1]:442"), PassOtherPair),
        ("IPv6, other address", other("[2001:db8::1:1]:443"), PassOtherPair),
        ("IPv6 that bears our IPv4 address", ethernet(&[], IPV6, &v4_in_v6), PassOtherPair),
        ("TCP", ethernet(&[], IPV4, &ipv4(6, [192, 0, 2, 1].into(), &[], &[0; 20])), PassNotUdp),
        ("TCP over IPv6", v6(6, &[0; 20]), PassNotUdp),
        ("ICMPv6", v6(58, &[0; 20]), PassNotUdp),
        ("IPv6, no next header", v6(59, &[]), PassNotUdp),
        ("ESP", v6(50, &[0; 20]), PassNotUdp),
        (
            "TCP behind destination options",
            v6(DESTINATION, &extension(6, &padded(&[]), &[0; 20])),
            PassNotUdp,
        ),
        ("ARP", ethernet(&[], 0x0806, &[0; 28]), PassNotIp),
        ("LLDP", ethernet(&[], 0x88cc, &[0; 28]), PassNotIp),
        ("802.3 length", ethernet(&[], 38, &[0xaa; 38]), PassNotIp),
        ("an empty frame", ethernet(&[], 0x0806, &[]), PassNotIp),
    ]);
}

#[test]
fn headers_that_contradict_themselves_pass() {
    check(&[
        ("IPv4 with version 6", patched(&datagram(pair4(), b"x"), ETHERNET, &[0x65]), PassMalformed),
        ("IPv6 with version 4", patched(&datagram(pair6(), b"x"), ETHERNET, &[0x40]), PassMalformed),
        ("IPv4 header of 16 bytes", patched(&datagram(pair4(), b"x"), ETHERNET, &[0x44]), PassMalformed),
        ("IPv4 header of no bytes", patched(&datagram(pair4(), b"x"), ETHERNET, &[0x40]), PassMalformed),
    ]);
}

#[test]
fn two_vlan_tags_are_looked_behind() {
    let four = v4(&udp(443, b"x"));
    let six = ipv6(UDP, "2001:db8::1".parse().unwrap(), &udp(443, b"x"));
    let (c, s) = ((C_TAG, 100), (S_TAG, 200));
    check(&[
        ("802.1Q, IPv4", ethernet(&[c], IPV4, &four), Taken),
        ("802.1Q, IPv6", ethernet(&[c], IPV6, &six), Taken),
        ("802.1ad", ethernet(&[s], IPV4, &four), Taken),
        ("priority tag", ethernet(&[(C_TAG, 0xe000)], IPV4, &four), Taken),
        ("802.1ad over 802.1Q, IPv4", ethernet(&[s, c], IPV4, &four), Taken),
        ("802.1ad over 802.1Q, IPv6", ethernet(&[s, c], IPV6, &six), Taken),
        ("802.1Q twice", ethernet(&[c, c], IPV6, &six), Taken),
        ("three tags", ethernet(&[s, c, c], IPV4, &four), PassVlanDepth),
        ("three tags, IPv6", ethernet(&[s, s, s], IPV6, &six), PassVlanDepth),
        ("ARP behind a tag", ethernet(&[c], 0x0806, &[0; 28]), PassNotIp),
        ("ARP behind two tags", ethernet(&[s, c], 0x0806, &[0; 28]), PassNotIp),
        ("other port behind a tag", ethernet(&[c], IPV4, &v4(&udp(80, b"x"))), PassOtherPair),
    ]);
}

#[test]
fn fragments_pass() {
    let flags = |bytes: [u8; 2]| patched(&datagram(pair4(), &[1; 16]), ETHERNET + 6, &bytes);
    let fragment = |offset_and_more: u16| {
        let content = [&offset_and_more.to_be_bytes()[..], &[0, 0, 0, 1]].concat();
        v6(FRAGMENT, &extension(UDP, &content, &udp(443, b"12345678")))
    };
    let after_options =
        extension(FRAGMENT, &padded(&[]), &extension(UDP, &[0, 0, 0, 0, 0, 1], &udp(443, b"x")));
    check(&[
        ("IPv4, first", flags([0x20, 0]), PassFragment),
        ("IPv4, first with DF", flags([0x60, 0]), PassFragment),
        ("IPv4, middle", flags([0x20, 1]), PassFragment),
        ("IPv4, last", flags([0x00, 185]), PassFragment),
        ("IPv4, last, highest offset bit", flags([0x10, 0]), PassFragment),
        ("IPv6, first", fragment(1), PassFragment),
        ("IPv6, later", fragment(8 << 3), PassFragment),
        ("IPv6, atomic", fragment(0), PassFragment),
        ("IPv6, behind destination options", v6(DESTINATION, &after_options), PassFragment),
    ]);
}

#[test]
fn ipv4_options_pass() {
    let with = |options: &[u8], protocol| {
        ethernet(&[], IPV4, &ipv4(protocol, [192, 0, 2, 1].into(), options, &udp(443, b"x")))
    };
    check(&[
        ("no-operation", with(&[1, 1, 1, 0], UDP), PassIpv4Options),
        ("router alert", with(&[0x94, 4, 0, 0], UDP), PassIpv4Options),
        ("as long as can be", with(&[1; 40], UDP), PassIpv4Options),
        ("TCP", with(&[1; 4], 6), PassNotUdp),
    ]);
}

#[test]
fn walkable_ipv6_extension_headers_are_walked() {
    let all = extension(
        DESTINATION,
        &padded(&[]),
        &extension(
            ROUTING,
            &padded(&[]),
            &extension(DESTINATION, &[4, 0, 0, 0, 0, 0], &extension(UDP, &padded(&[]), &udp(443, b"x"))),
        ),
    );
    check(&[
        ("hop-by-hop, padding", behind(HOP_BY_HOP, &padded(&[])), Taken),
        ("destination, padding", behind(DESTINATION, &padded(&[])), Taken),
        ("destination, Pad1 only", behind(DESTINATION, &[0; 6]), Taken),
        (
            "destination, unknown option that may be skipped",
            behind(DESTINATION, &padded(&[0x1e, 1, 9])),
            Taken,
        ),
        ("hop-by-hop, router alert", behind(HOP_BY_HOP, &padded(&[5, 2, 0, 0])), Taken),
        ("hop-by-hop, changeable option that may be skipped", behind(HOP_BY_HOP, &padded(&[0x3e, 0])), Taken),
        (
            "destination, 2048 bytes",
            behind(DESTINATION, &{
                let mut content = Vec::new();
                for _ in 0..7 {
                    content.extend([1, 255]);
                    content.extend([0; 255]);
                }
                content.extend([1, (2046 - content.len() - 2) as u8]);
                content.resize(2046, 0);
                content
            }),
            Taken,
        ),
        ("routing, no segments left", behind(ROUTING, &[2, 0, 0, 0, 0, 0]), Taken),
        ("all four in order", v6(HOP_BY_HOP, &all), Taken),
        (
            "four, the last UDP elsewhere",
            patched(&v6(HOP_BY_HOP, &all), ETHERNET + 40 + 32 + 2, &[0, 80]),
            PassOtherPair,
        ),
    ]);
}

#[test]
fn ipv6_extension_headers_that_are_the_kernels_pass() {
    let chain = |kinds: &[u8]| {
        let mut body = udp(443, b"x");
        let mut next = UDP;
        for kind in kinds.iter().rev() {
            body = extension(next, &[0; 6], &body);
            next = *kind;
        }
        v6(next, &body)
    };
    let jumbo = patched(&behind(HOP_BY_HOP, &[0xc2, 4, 0, 1, 0, 1]), ETHERNET + 4, &[0, 0]);
    let many = |count: usize| {
        behind(
            DESTINATION,
            &[vec![0; count], vec![1, (30 - count - 2) as u8], vec![0; 30 - count - 2]].concat(),
        )
    };
    check(&[
        ("routing, one segment left", behind(ROUTING, &[4, 1, 0, 0, 0, 0]), PassIpv6Extension),
        (
            "destination, home address",
            behind(DESTINATION, &padded(&[&[0xc9, 16][..], &[0; 16]].concat())),
            PassIpv6Extension,
        ),
        ("option: discard if unknown", behind(DESTINATION, &padded(&[0x40, 0])), PassIpv6Extension),
        ("option: discard and tell", behind(HOP_BY_HOP, &padded(&[0x80, 0])), PassIpv6Extension),
        ("such an option behind padding", behind(DESTINATION, &[0, 1, 0, 0x80, 0, 0]), PassIpv6Extension),
        ("jumbo payload: a length of 0 holds no port", jumbo, PassTruncated),
        ("jumbo payload with a length", behind(HOP_BY_HOP, &[0xc2, 4, 0, 1, 0, 1]), PassIpv6Extension),
        ("option longer than its header", behind(DESTINATION, &[1, 5, 0, 0, 0, 0]), PassIpv6Extension),
        ("option without its length", behind(DESTINATION, &[1, 3, 0, 0, 0, 1]), PassIpv6Extension),
        ("15 of Pad1 and a PadN are 16 options", many(15), Taken),
        ("17 options", many(16), PassIpv6Extension),
        ("hop-by-hop not first", chain(&[DESTINATION, HOP_BY_HOP]), PassIpv6Extension),
        ("hop-by-hop twice", chain(&[HOP_BY_HOP, HOP_BY_HOP]), PassIpv6Extension),
        ("four headers", chain(&[DESTINATION; 4]), Taken),
        ("five headers", chain(&[DESTINATION; 5]), PassIpv6Extension),
        (
            "fifth is a routing header",
            chain(&[HOP_BY_HOP, DESTINATION, DESTINATION, DESTINATION, ROUTING]),
            PassIpv6Extension,
        ),
        (
            "fifth is a fragment header",
            chain(&[HOP_BY_HOP, DESTINATION, DESTINATION, DESTINATION, FRAGMENT]),
            PassFragment,
        ),
        ("authentication", chain(&[51]), PassIpv6Extension),
        ("mobility", chain(&[135]), PassIpv6Extension),
        ("HIP", chain(&[139]), PassIpv6Extension),
        ("shim6", chain(&[140]), PassIpv6Extension),
    ]);
}

#[test]
fn with_a_local_mac_frames_to_others_pass() {
    let Some(redirect) = load(&Options { local_mac: Some(MAC), ..Options::default() }) else { return };
    redirect.add_pair(pair4()).unwrap();
    let frame = datagram(pair4(), b"x");
    let _socket = support::fill_slot(&redirect, 0);
    redirect.prog_test_run(&frame, 1).unwrap();
    assert_eq!(redirect.counters().unwrap()[Taken], 1);
    for (index, byte) in MAC.into_iter().enumerate() {
        redirect.prog_test_run(&patched(&frame, index, &[byte ^ 1]), 1).unwrap();
        assert_eq!(redirect.counters().unwrap()[PassOtherMac], index as u64 + 1);
    }
}

#[test]
fn a_queue_without_a_socket_passes() {
    let Some(redirect) = load(&Options::default()) else { return };
    redirect.add_pair(pair4()).unwrap();
    let _other_queue = support::fill_slot(&redirect, 1);
    let run = redirect.prog_test_run(&datagram(pair4(), b"x"), 1).unwrap();
    assert_eq!(run.verdict, expressway_xbpf::Verdict::Pass);
    assert_eq!(redirect.counters().unwrap()[PassNoSocket], 1);
}

#[test]
fn a_bad_length_drops_even_without_a_socket() {
    let Some(redirect) = load(&Options::default()) else { return };
    redirect.add_pair(pair4()).unwrap();
    let run = redirect.prog_test_run(&patched(&datagram(pair4(), b"x"), ETHERNET + 24, &[0, 7]), 1).unwrap();
    assert_eq!(run.verdict, expressway_xbpf::Verdict::Drop);
    assert_eq!(redirect.counters().unwrap()[DropUdpLength], 1);
}
