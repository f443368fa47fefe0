//! BPF_PROG_TEST_RUN tables of the balancing program: packet in, verdict, counter and packet out. Headers are made and
//! checked by etherparse. Needs root.

mod bed;
mod cost;
mod flows;
mod fuzz;
mod quic;

use std::net::IpAddr;

use etherparse::{Ipv4Header, Ipv6Header, PacketBuilder};
use expressway_xbpf::{BalanceCounter, BalanceNode, BalanceProtocol, BalanceState};

use BalanceCounter::*;
use bed::*;
use expressway_xbpf::BalanceMethod::*;

use crate::support;

#[test]
fn a_packet_goes_to_its_nodes_mac_and_stays_what_it_is() {
    let Some(bed) = Bed::new(L2, false) else { return };
    for frame in all_packets() {
        let (counter, run) = bed.run(&frame);
        assert_eq!((counter, run.verdict), (TxNew, TX));
        assert!([node_mac(1), node_mac(2)].contains(&run.frame[..6].try_into().unwrap()));
        assert_eq!(run.frame[6..12], OWN_MAC);
        assert_eq!(run.frame[12..], aged(&frame)[12..]);
        check_sums(&run.frame);
    }
}

#[test]
fn a_node_behind_another_interface_is_reached_by_redirect() {
    let Some(bed) = Bed::new(L2, false) else { return };
    for slot in 1..=2 {
        bed.balance.set_node(slot, &BalanceNode { ifindex: ELSEWHERE, ..node(slot, L2, false) }).unwrap();
    }
    assert_eq!(bed.run(&udp(vip4(), 1, b"x")).1.verdict, REDIRECT);
    for slot in 1..=2 {
        bed.balance.set_node(slot, &BalanceNode { ifindex: 0, ..node(slot, L2, false) }).unwrap();
    }
    assert_eq!(bed.run(&udp(vip4(), 1, b"x")).0, DropUnresolved);
}

/// A driver that leaves no room in front of frames: layer 2 needs none.
#[test]
fn no_room_for_an_outer_header_is_a_drop() {
    for (method, ipv6) in [(L2, false), (Ipip, false), (Ipip, true), (Gue, false), (Gue, true)] {
        let Some(bed) = Bed::new(method, ipv6) else { return };
        for frame in [udp(vip4(), 1, b"x"), udp(vip6(), 1, b"x")] {
            let before = bed.balance.counters().unwrap();
            let run = bed.balance.prog_test_run_without_room(&frame).unwrap();
            let grown = bed.balance.counters().unwrap().since(&before);
            let (counter, _) = grown.iter().find(|(_, packets)| *packets > 0).unwrap();
            let expected = if method == L2 { (TxNew, TX) } else { (DropNoRoom, DROP) };
            assert_eq!((counter, run.verdict), expected, "{method:?} {ipv6}");
        }
    }
}

#[test]
fn tunnels_carry_the_packet_whole() {
    for (method, ipv6) in [(Ipip, false), (Ipip, true), (Gue, false), (Gue, true)] {
        let Some(bed) = Bed::new(method, ipv6) else { return };
        for frame in all_packets() {
            let (counter, run) = bed.run(&frame);
            assert_eq!((counter, run.verdict), (TxNew, TX));
            check_sums(&run.frame);
            let inner = packet(&aged(&frame)).to_vec();
            let outer = packet(&run.frame);
            let header = if ipv6 { 40 } else { 20 } + if method == Gue { 8 } else { 0 };
            assert_eq!(outer[header..], inner, "{method:?} {ipv6}");
            let inner_v6 = inner[0] >> 4 == 6;
            let class = if inner_v6 { 0xb9 } else { 0x29 };
            let protocol = match method {
                Gue => 17,
                _ if inner_v6 => 41,
                _ => 4,
            };
            if ipv6 {
                let parsed = Ipv6Header::from_slice(outer).unwrap().0;
                assert_eq!((parsed.next_header.0, parsed.hop_limit), (protocol, 64));
                assert_eq!(usize::from(parsed.payload_length), inner.len() + header - 40);
                assert_eq!(parsed.traffic_class, class);
                assert_eq!(IpAddr::from(parsed.source), node(1, method, true).source);
                assert_eq!(parsed.destination[15], run.frame[5]);
            } else {
                let parsed = Ipv4Header::from_slice(outer).unwrap().0;
                assert_eq!((parsed.protocol.0, parsed.time_to_live), (protocol, 64));
                assert_eq!(usize::from(parsed.total_len), inner.len() + header);
                assert_eq!(outer[1], class);
                assert!(parsed.dont_fragment);
                assert_eq!(IpAddr::from(parsed.source), node(1, method, false).source);
                assert_eq!(parsed.destination[3], run.frame[5]);
            }
            if method == Gue {
                let udp = &outer[header - 8..];
                assert!(u16::from_be_bytes([udp[0], udp[1]]) >= 0xc000);
                assert_eq!(u16::from_be_bytes([udp[2], udp[3]]), 6080);
                assert_eq!(usize::from(u16::from_be_bytes([udp[4], udp[5]])), inner.len() + 8);
            }
        }
    }
}

#[test]
fn ethernet_padding_is_no_part_of_lengths() {
    let Some(bed) = Bed::new(Gue, true) else { return };
    let short = udp(vip4(), 5, b"x");
    let mut padded = short.clone();
    padded.resize(60, 0);
    let (_, run) = bed.run(&padded);
    let parsed = Ipv6Header::from_slice(packet(&run.frame)).unwrap().0;
    assert_eq!(usize::from(parsed.payload_length), 8 + short.len() - 14);
}

#[test]
fn what_is_no_service_passes_unchanged() {
    let Some(bed) = Bed::new(L2, false) else { return };
    let base = udp(vip4(), 1, b"payload");
    let with = |at: usize, bytes: &[u8]| support::frame::patched(&base, at, bytes);
    let other = |address: &str| udp(address.parse().unwrap(), 1, b"x");
    let six = udp(vip6(), 1, b"x");
    let mut tagged = base.clone();
    tagged.splice(12..12, [0x81, 0, 0, 5]);
    let mut echo = Vec::new();
    ip(vip4(), 1).icmpv4_echo_request(1, 1).write(&mut echo, b"hello").unwrap();
    let mut echo6 = Vec::new();
    ip(vip6(), 1).icmpv6_echo_request(1, 1).write(&mut echo6, b"hello").unwrap();
    let cases: &[(&str, Vec<u8>, BalanceCounter)] = &[
        ("another address", other("192.0.2.11:443"), PassNoService),
        ("another port", other("192.0.2.10:444"), PassNoService),
        ("another IPv6 address", other("[2001:db8::11]:443"), PassNoService),
        ("ARP", with(12, &[8, 6]), PassNotIp),
        ("a VLAN", tagged, PassNotIp),
        ("version 5", with(14, &[0x55]), PassMalformed),
        ("a header of 16 bytes", with(14, &[0x44]), PassMalformed),
        ("a header beyond the packet", with(14, &[0x4f]), PassMalformed),
        ("longer than the frame", with(16, &[0, 200]), PassMalformed),
        ("shorter than its header", with(16, &[0, 10]), PassMalformed),
        ("cut in the UDP header", base[..40].to_vec(), PassMalformed),
        ("IPv6 longer than the frame", support::frame::patched(&six, 18, &[4, 0]), PassMalformed),
        ("IPv6 as version 4", support::frame::patched(&six, 14, &[0x40]), PassMalformed),
        ("hop-by-hop options", support::frame::patched(&six, 20, &[0]), PassExtension),
        ("a routing header", support::frame::patched(&six, 20, &[43]), PassExtension),
        ("authentication", support::frame::patched(&six, 20, &[51]), PassExtension),
        ("GRE", with(23, &[47]), PassProtocol),
        ("ping", echo, PassProtocol),
        ("ping over IPv6", echo6, PassProtocol),
        ("a hop limit of 1", with(22, &[1]), PassHopLimit),
        ("a hop limit of 0", with(22, &[0]), PassHopLimit),
        ("IPv6, a hop limit of 1", support::frame::patched(&six, 21, &[1]), PassHopLimit),
        ("a later fragment", with(20, &[0, 100]), PassFragment),
    ];
    for (name, frame, expected) in cases {
        assert_eq!(bed.run(frame).0, *expected, "{name}");
    }
    bed.balance.remove_listener(vip4(), BalanceProtocol::Udp).unwrap();
    assert_eq!(bed.run(&base).0, PassNoService);
    assert_eq!(bed.run(&tcp(vip4(), 1, Tcp::Syn)).0, TxNew, "TCP's is another");
}

/// The fragments of a UDP datagram of 2000 bytes; the second has no ports.
fn fragments(id: u16) -> [Vec<u8>; 2] {
    let whole = udp(vip4(), 77, &[5; 2000]);
    [(&whole[34..34 + 1480], 0x2000u16), (&whole[34 + 1480..], 185)].map(|(part, flags)| {
        let mut frame = whole[..34].to_vec();
        frame[16..18].copy_from_slice(&(20 + part.len() as u16).to_be_bytes());
        frame[18..20].copy_from_slice(&id.to_be_bytes());
        frame[20..22].copy_from_slice(&flags.to_be_bytes());
        frame.extend(part);
        aged(&{
            frame[22] += 1;
            frame
        })
    })
}

#[test]
fn fragments_go_where_the_first_went() {
    let Some(bed) = Bed::new(L2, false) else { return };
    let [first, second] = fragments(1);
    assert_eq!(bed.run(&second).0, PassFragment);
    let (counter, slot) = bed.to(&first);
    assert_eq!(counter, TxNew);
    assert_eq!(bed.to(&second), (TxFragment, slot));
    assert_eq!(bed.run(&fragments(2)[1]).0, PassFragment, "of another packet");
    bed.state(slot, BalanceState::Absent);
    assert_eq!(bed.run(&second).0, PassFragment);
}

#[test]
fn fragments_of_ipv6_too() {
    let Some(bed) = Bed::new(L2, false) else { return };
    let whole = udp(vip6(), 5, &[5; 100]);
    let fragment = |offset: u16, body: &[u8]| {
        let mut frame = whole[..54].to_vec();
        frame[20] = 44;
        frame[18..20].copy_from_slice(&(8 + body.len() as u16).to_be_bytes());
        frame.extend([17, 0]);
        frame.extend(offset.to_be_bytes());
        frame.extend([0, 0, 0, 9]);
        frame.extend(body);
        frame
    };
    let (first, second) = (fragment(1, &whole[54..110]), fragment(56, &whole[110..]));
    assert_eq!(bed.run(&second).0, PassFragment);
    let (counter, slot) = bed.to(&first);
    assert_eq!(counter, TxNew);
    assert_eq!(bed.to(&second), (TxFragment, slot));
    assert_eq!(bed.to(&fragment(0, &whole[54..])).0, TxProbation, "an atomic fragment is the packet");
}

#[test]
fn an_icmp_error_goes_to_the_node_of_its_flow() {
    let Some(bed) = Bed::new(L2, false) else { return };
    let slot = bed.establish(9);
    bed.ring(0, &[3]);
    // What the node sent to the client, and what a router between them answers.
    let mut sent = Vec::new();
    let (from, to) = ([192, 0, 2, 10], [198, 51, 100, 7]);
    PacketBuilder::ethernet2(OWN_MAC, CLIENT_MAC)
        .ipv4(from, to, 64)
        .udp(443, 9)
        .write(&mut sent, &[0; 64])
        .unwrap();
    let answer = |kind: u8, code: u8| {
        let mut frame = Vec::new();
        let step = PacketBuilder::ethernet2(CLIENT_MAC, OWN_MAC).ipv4([203, 0, 113, 1], from, 64);
        step.icmpv4_raw(kind, code, [0, 0, 5, 0]).write(&mut frame, packet(&sent)).unwrap();
        frame
    };
    for (kind, code) in [(3, 4), (3, 3), (11, 0), (12, 0)] {
        let frame = answer(kind, code);
        let (counter, run) = bed.run(&frame);
        assert_eq!((counter, run.frame[..6].to_vec()), (TxIcmp, node_mac(slot).to_vec()));
        assert_eq!(run.frame[12..], aged(&frame)[12..]);
    }
    assert_eq!(bed.run(&answer(5, 1)).0, PassProtocol, "a redirect");
    assert_eq!(bed.run(&answer(3, 4)[..60]).0, PassMalformed, "cut");
    let (_, probation) = bed.balance.flow_counts();
    assert_eq!(probation, 0, "errors make no flows");

    let mut sent = Vec::new();
    let addresses = [vip6().ip(), client(vip6(), 9).ip()].map(|ip| match ip {
        IpAddr::V6(ip) => ip.octets(),
        IpAddr::V4(_) => unreachable!(),
    });
    let step = PacketBuilder::ethernet2(OWN_MAC, CLIENT_MAC).ipv6(addresses[0], addresses[1], 64);
    step.tcp(443, 9, 1, 1).write(&mut sent, b"").unwrap();
    let mut frame = Vec::new();
    let step = PacketBuilder::ethernet2(CLIENT_MAC, OWN_MAC).ipv6([0x20; 16], addresses[0], 64);
    step.icmpv6_raw(2, 0, [0, 0, 5, 0]).write(&mut frame, packet(&sent)).unwrap();
    assert_eq!(bed.run(&frame).0, TxIcmp);
}

#[test]
fn what_does_not_fit_into_its_tunnel_is_answered() {
    for (method, ipv6, overhead) in [(Ipip, false, 20), (Gue, false, 28), (Ipip, true, 40), (Gue, true, 48)] {
        let Some(bed) = Bed::new(method, ipv6) else { return };
        for vip in [vip4(), vip6()] {
            let headers = if vip.is_ipv4() { 28 } else { 48 };
            let fits = udp(vip, 6, &vec![1; 1500 - overhead - headers]);
            assert_eq!(bed.run(&fits).0, TxNew);
            let long = udp(vip, 7, &vec![1; 1501 - overhead - headers]);
            let (counter, run) = bed.run(&long);
            assert_eq!((counter, run.verdict), (TxTooBig, TX));
            check_sums(&run.frame);
            assert_eq!(run.frame[..6], CLIENT_MAC);
            assert_eq!(run.frame[6..12], OWN_MAC);
            let answer = packet(&run.frame);
            let mtu = (1500 - overhead) as u16;
            if vip.is_ipv4() {
                assert_eq!(answer.len(), 28 + 64);
                assert_eq!((answer[20], answer[21]), (3, 4));
                assert_eq!(answer[26..28], mtu.to_be_bytes());
                assert_eq!(answer[28..], packet(&long)[..64]);
                assert_eq!(answer[12..16], long[30..34]);
                assert_eq!(answer[16..20], long[26..30]);
            } else {
                assert_eq!(answer.len(), 48 + 64);
                assert_eq!((answer[40], answer[41]), (2, 0));
                assert_eq!(answer[46..48], mtu.to_be_bytes());
                assert_eq!(answer[48..], packet(&long)[..64]);
            }
        }
    }
    let Some(bed) = Bed::new(Ipip, false) else { return };
    let mut splittable = udp(vip4(), 7, &[1; 1472]);
    splittable[20] = 0;
    assert_eq!(bed.run(&splittable).0, DropTooBig, "its sender did not ask to be told");
}

#[test]
fn only_headers_have_to_be_linear() {
    let Some(bed) = Bed::new(Gue, false) else { return };
    let short = udp(vip4(), 1, &[7; 100]);
    if let Err(error) = bed.balance.prog_test_run_split(&short, 60) {
        eprintln!("skipped: split test frames need Linux 6.18: {error}");
        return;
    }
    for frame in [udp(vip4(), 1, &[7; 1400]), udp(vip6(), 1, &[7; 1400])] {
        let expected = bed.run(&frame).1;
        let split = bed.balance.prog_test_run_split(&frame, 128).unwrap();
        assert_eq!((split.verdict, split.frame), (expected.verdict, expected.frame));
    }
    for vip in [vip4(), vip6()] {
        let long = udp(vip, 2, &[7; 1480]);
        let split = bed.balance.prog_test_run_split(&long, 128).unwrap();
        let answer = bed.run(&long).1;
        assert_eq!((split.verdict, split.frame), (TX, answer.frame), "too big");
    }
    let counts = bed.balance.counters().unwrap();
    assert!(counts.iter().any(|count| count == (TxTooBig, 4)), "{counts:?}");
    let cut = bed.balance.prog_test_run_split(&short[..short.len() - 1], 60).unwrap();
    assert_eq!(cut.verdict, PASS, "shorter than its IP packet says");
}
