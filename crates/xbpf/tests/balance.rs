//! BPF_PROG_TEST_RUN tables of the balancing program: packet in, verdict, counter and packet out. Headers are made and
//! checked by etherparse. Needs root.

mod support;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::thread::sleep;
use std::time::Duration;

use etherparse::{
    IpNumber, Ipv4Header, Ipv6FlowLabel, Ipv6Header, NetSlice, PacketBuilder, SlicedPacket, TransportSlice,
};
use expressway_xbpf::{
    Balance, BalanceCounter, BalanceListener, BalanceMethod, BalanceNode, BalanceOptions, BalanceProtocol,
    BalanceRun, BalanceState, Error,
};

use BalanceCounter::*;
use BalanceMethod::*;

const DROP: u32 = 1;
const PASS: u32 = 2;
const TX: u32 = 3;
const REDIRECT: u32 = 4;
/// The interface that test runs arrive on.
const LOOPBACK: u32 = 1;
const ELSEWHERE: u32 = 77;

const CLIENT_MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
const OWN_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

fn node_mac(slot: u32) -> [u8; 6] {
    [2, 0, 0, 1, 0, slot as u8]
}

fn vip4() -> SocketAddr {
    "192.0.2.10:443".parse().unwrap()
}

fn vip6() -> SocketAddr {
    "[2001:db8::10]:443".parse().unwrap()
}

fn client(address: SocketAddr, port: u16) -> SocketAddr {
    let ip: IpAddr = if address.is_ipv4() { "198.51.100.7" } else { "2001:db8:9::7" }.parse().unwrap();
    SocketAddr::new(ip, port)
}

fn listener(service: u32) -> BalanceListener {
    let idle = Duration::from_secs(60);
    BalanceListener { service, quic_lb: false, affinity: false, least_connections: false, idle }
}

fn node(slot: u32, method: BalanceMethod, ipv6: bool) -> BalanceNode {
    let address = if ipv6 { format!("2001:db8:1::{slot}") } else { format!("10.0.0.{slot}") };
    let source = if ipv6 { "2001:db8:1::ff" } else { "10.0.0.254" };
    BalanceNode {
        address: address.parse().unwrap(),
        source: source.parse().unwrap(),
        ifindex: LOOPBACK,
        destination_mac: node_mac(slot),
        source_mac: OWN_MAC,
        generation: 1,
        mtu: 1500,
        load: 0,
        step: 1,
        method,
        state: BalanceState::Up,
    }
}

/// A service for UDP (0) and one for TCP (1), at an IPv4 and an IPv6 address each, with two nodes that share the ring.
struct Bed {
    balance: Balance,
}

impl Bed {
    fn new(method: BalanceMethod, ipv6: bool) -> Option<Self> {
        Self::with(&BalanceOptions { flows: 4096, probation: 1024, seed: 7 }, method, ipv6)
    }

    fn with(options: &BalanceOptions, method: BalanceMethod, ipv6: bool) -> Option<Self> {
        let balance = match Balance::load(options) {
            Ok(balance) => balance,
            Err(Error::NotPermitted { .. }) if !support::privileges_required() => {
                eprintln!("skipped: needs root (CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON)");
                return None;
            }
            Err(error) => panic!("{error}"),
        };
        for slot in 1..=3 {
            balance.set_node(slot, &node(slot, method, ipv6)).unwrap();
        }
        let bed = Self { balance };
        for (service, protocol) in [(0, BalanceProtocol::Udp), (1, BalanceProtocol::Tcp)] {
            for vip in [vip4(), vip6()] {
                bed.balance.set_listener(vip, protocol, &listener(service)).unwrap();
            }
            bed.ring(service, &[1, 2]);
        }
        Some(bed)
    }

    fn ring(&self, service: u32, slots: &[u32]) {
        let ring: Vec<u32> = slots.iter().copied().cycle().take(Balance::RING as usize).collect();
        self.balance.set_ring(service, if slots.is_empty() { &[] } else { &ring }).unwrap();
    }

    fn state(&self, slot: u32, state: BalanceState) {
        self.balance.set_node(slot, &BalanceNode { state, ..node(slot, L2, false) }).unwrap();
    }

    /// Runs `frame` and returns the one counter that grew.
    fn run(&self, frame: &[u8]) -> (BalanceCounter, BalanceRun) {
        let before = self.balance.counters().unwrap();
        let run = self.balance.prog_test_run(frame, 1).unwrap();
        let grown = self.balance.counters().unwrap().since(&before);
        assert_eq!(grown.total(), 1, "one counter a packet: {grown:?}");
        let (counter, _) = grown.iter().find(|(_, packets)| *packets == 1).unwrap();
        match counter.verdict() {
            "pass" => assert_eq!((run.verdict, run.frame.as_slice()), (PASS, frame), "{counter}"),
            "drop" => assert_eq!(run.verdict, DROP, "{counter}"),
            _ => assert!([TX, REDIRECT].contains(&run.verdict), "{counter}: {}", run.verdict),
        }
        (counter, run)
    }

    /// The counter, and the slot of the node that the frame goes to by layer 2.
    fn to(&self, frame: &[u8]) -> (BalanceCounter, u32) {
        let (counter, run) = self.run(frame);
        (counter, u32::from(run.frame[5]))
    }

    /// Makes the UDP flow of `port` established and returns its node.
    fn establish(&self, port: u16) -> u32 {
        let frame = udp(vip4(), port, b"x");
        let (counter, slot) = self.to(&frame);
        assert_eq!(counter, TxNew);
        for _ in 0..2 {
            assert_eq!(self.to(&frame), (TxProbation, slot));
        }
        assert_eq!(self.to(&frame), (TxFlow, slot));
        slot
    }
}

fn ip(to: SocketAddr, port: u16) -> etherparse::PacketBuilderStep<etherparse::IpHeaders> {
    let step = PacketBuilder::ethernet2(CLIENT_MAC, OWN_MAC);
    match (client(to, port).ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let mut header = Ipv4Header::new(0, 64, IpNumber::UDP, from.octets(), to.octets()).unwrap();
            header.dont_fragment = true;
            header.dscp = 10.try_into().unwrap();
            header.ecn = 1.try_into().unwrap();
            step.ip(etherparse::IpHeaders::Ipv4(header, Default::default()))
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let header = Ipv6Header {
                traffic_class: 0xb9,
                flow_label: Ipv6FlowLabel::ZERO,
                payload_length: 0,
                next_header: IpNumber::UDP,
                hop_limit: 64,
                source: from.octets(),
                destination: to.octets(),
            };
            step.ip(etherparse::IpHeaders::Ipv6(header, Default::default()))
        }
        _ => unreachable!("a client has its service's family"),
    }
}

fn udp(to: SocketAddr, port: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    ip(to, port).udp(port, to.port()).write(&mut frame, payload).unwrap();
    frame
}

#[derive(Clone, Copy)]
enum Tcp {
    Syn,
    Ack,
    Fin,
    Rst,
}

fn tcp(to: SocketAddr, port: u16, kind: Tcp) -> Vec<u8> {
    let mut frame = Vec::new();
    let step = ip(to, port).tcp(port, to.port(), 1000, 1000);
    let step = match kind {
        Tcp::Syn => step.syn(),
        Tcp::Ack => step.ack(1),
        Tcp::Fin => step.fin().ack(1),
        Tcp::Rst => step.rst(),
    };
    step.write(&mut frame, b"").unwrap();
    frame
}

/// The IP packet of a frame.
fn packet(frame: &[u8]) -> &[u8] {
    &frame[14..]
}

/// Panics unless all checksums of the frame's packet are right.
fn check_sums(frame: &[u8]) {
    let sliced = SlicedPacket::from_ethernet(frame).unwrap();
    let transport = sliced.transport.as_ref();
    match (sliced.net.as_ref().unwrap(), transport) {
        (NetSlice::Ipv4(ip), transport) => {
            let header = ip.header().to_header();
            assert_eq!(header.calc_header_checksum(), header.header_checksum, "IPv4 header");
            match transport {
                Some(TransportSlice::Udp(udp)) if udp.checksum() != 0 => {
                    let sum = udp.to_header().calc_checksum_ipv4(&header, udp.payload()).unwrap();
                    assert_eq!(sum, udp.checksum(), "UDP");
                }
                Some(TransportSlice::Tcp(tcp)) => {
                    assert_eq!(
                        tcp.calc_checksum_ipv4(ip.header().source(), ip.header().destination()).unwrap(),
                        tcp.checksum()
                    );
                }
                Some(TransportSlice::Icmpv4(icmp)) => {
                    assert_eq!(icmp.icmp_type().calc_checksum(icmp.payload()), icmp.checksum(), "ICMP");
                }
                _ => {}
            }
        }
        (NetSlice::Ipv6(ip), transport) => {
            let header = ip.header().to_header();
            match transport {
                Some(TransportSlice::Udp(udp)) => {
                    let sum = udp.to_header().calc_checksum_ipv6(&header, udp.payload()).unwrap();
                    assert_eq!(sum, udp.checksum(), "UDP over IPv6");
                }
                Some(TransportSlice::Tcp(tcp)) => {
                    assert_eq!(
                        tcp.calc_checksum_ipv6(header.source, header.destination).unwrap(),
                        tcp.checksum()
                    );
                }
                Some(TransportSlice::Icmpv6(icmp)) => {
                    assert!(icmp.is_checksum_valid(header.source, header.destination), "ICMPv6");
                }
                _ => {}
            }
        }
        other => panic!("{other:?}"),
    }
}

/// The frame with its hop limit one lower and its IPv4 checksum right, as every packet leaves.
fn aged(frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    if frame[12..14] == [0x86, 0xdd] {
        frame[14 + 7] -= 1;
    } else {
        frame[14 + 8] -= 1;
        let header = Ipv4Header::from_slice(&frame[14..]).unwrap().0;
        frame[24..26].copy_from_slice(&header.calc_header_checksum().to_be_bytes());
    }
    frame
}

fn all_packets() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for vip in [vip4(), vip6()] {
        for size in [0, 1, 7, 600, 1201] {
            all.push(udp(vip, 1000 + size as u16, &vec![0xa5; size]));
        }
        all.extend([tcp(vip, 7, Tcp::Syn), tcp(vip, 8, Tcp::Ack), tcp(vip, 9, Tcp::Fin)]);
    }
    all
}

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

#[test]
fn udp_is_established_by_its_packets_and_keeps_its_node() {
    let Some(bed) = Bed::new(L2, false) else { return };
    let slots: Vec<u32> = (1..200).map(|port| bed.establish(port)).collect();
    assert!(slots.contains(&1) && slots.contains(&2));
    bed.ring(0, &[3]);
    for (port, slot) in (1..200).zip(&slots) {
        assert_eq!(bed.to(&udp(vip4(), port, b"x")), (TxFlow, *slot));
    }
    assert_eq!(bed.to(&udp(vip4(), 900, b"x")), (TxNew, 3), "a new one goes by the new ring");
    let traffic = bed.balance.service_traffic(0).unwrap();
    assert_eq!((traffic.flows, traffic.established), (200, 199));
    let nodes: u64 = (1..=3).map(|slot| bed.balance.node_traffic(slot).unwrap().packets).sum();
    assert_eq!(nodes, traffic.packets);
}

#[test]
fn tcp_is_established_behind_its_syn() {
    let Some(bed) = Bed::new(L2, false) else { return };
    let (counter, slot) = bed.to(&tcp(vip4(), 5, Tcp::Syn));
    assert_eq!(counter, TxNew);
    bed.ring(1, &[3 - slot]);
    assert_eq!(bed.to(&tcp(vip4(), 5, Tcp::Syn)), (TxProbation, slot), "a repeated SYN stays");
    for _ in 0..2 {
        assert_eq!(bed.to(&tcp(vip4(), 5, Tcp::Ack)), (TxProbation, slot));
    }
    assert_eq!(bed.to(&tcp(vip4(), 5, Tcp::Ack)), (TxFlow, slot));
    assert_eq!(bed.to(&tcp(vip4(), 5, Tcp::Fin)), (TxFlow, slot));
    assert_eq!(bed.to(&tcp(vip4(), 5, Tcp::Ack)), (TxFlow, slot), "its last ACK");
    sleep(QUIET);
    assert_eq!(bed.to(&tcp(vip4(), 5, Tcp::Syn)), (TxNew, 3 - slot), "the same ports again");
}

/// Longer than a closed flow has to be quiet before a SYN takes its ports.
const QUIET: Duration = Duration::from_secs(3);

/// Nobody has to know a sequence number for these.
#[test]
fn resets_and_syns_of_others_move_no_connection_that_goes_on() {
    let Some(bed) = Bed::new(L2, false) else { return };
    bed.ring(1, &[1]);
    for kind in [Tcp::Syn, Tcp::Ack, Tcp::Ack, Tcp::Ack] {
        bed.to(&tcp(vip4(), 5, kind));
    }
    bed.ring(1, &[2]);
    for state in [BalanceState::Up, BalanceState::Draining] {
        bed.state(1, state);
        for kind in [Tcp::Rst, Tcp::Fin] {
            for kind in [kind, Tcp::Syn, Tcp::Ack] {
                assert_eq!(bed.to(&tcp(vip4(), 5, kind)), (TxFlow, 1));
            }
        }
    }
    assert_eq!(bed.to(&tcp(vip4(), 5, Tcp::Rst)), (TxFlow, 1));
    sleep(QUIET);
    assert_eq!(bed.to(&tcp(vip4(), 5, Tcp::Ack)), (TxFlow, 1), "it was not its client's");
    sleep(QUIET);
    assert_eq!(bed.to(&tcp(vip4(), 5, Tcp::Syn)), (TxFlow, 1), "nothing has closed it since");
}

#[test]
fn flows_leave_dead_nodes_only() {
    let Some(bed) = Bed::new(L2, false) else { return };
    let slots: Vec<u32> = (1..100).map(|port| bed.establish(port)).collect();
    bed.state(1, BalanceState::Down);
    bed.ring(0, &[2, 3]);
    for (port, slot) in (1..100).zip(&slots) {
        let (counter, now) = bed.to(&udp(vip4(), port, b"x"));
        match slot {
            1 => assert!(counter == TxNew && now != 1),
            _ => assert_eq!((counter, now), (TxFlow, 2)),
        }
        assert_eq!(bed.to(&udp(vip4(), port, b"x")), (TxFlow, now), "a moved flow stays where it is");
    }
    bed.state(1, BalanceState::Up);
    bed.ring(0, &[1, 2, 3]);
    for port in 1..100 {
        assert_eq!(bed.to(&udp(vip4(), port, b"x")).0, TxFlow, "one that comes back takes none");
    }
}

#[test]
fn a_draining_node_keeps_what_it_has() {
    let Some(bed) = Bed::new(L2, false) else { return };
    bed.ring(0, &[1]);
    bed.ring(1, &[1]);
    assert_eq!(bed.establish(1), 1);
    bed.to(&tcp(vip4(), 1, Tcp::Syn));
    bed.state(1, BalanceState::Draining);
    bed.ring(0, &[2]);
    bed.ring(1, &[2]);
    assert_eq!(bed.to(&udp(vip4(), 1, b"x")), (TxFlow, 1));
    assert_eq!(bed.to(&tcp(vip4(), 1, Tcp::Ack)), (TxProbation, 1));
    assert_eq!(bed.to(&udp(vip4(), 2, b"x")), (TxNew, 2));
    assert_eq!(bed.to(&tcp(vip4(), 1, Tcp::Syn)), (TxProbation, 1), "a repeated SYN");
    assert_eq!(bed.to(&tcp(vip4(), 2, Tcp::Syn)), (TxNew, 2), "a new connection");
    bed.to(&tcp(vip4(), 1, Tcp::Fin));
    sleep(QUIET);
    assert_eq!(bed.to(&tcp(vip4(), 1, Tcp::Syn)), (TxNew, 2), "another one with these ports");
}

#[test]
fn a_slot_that_gets_another_node_inherits_no_flow() {
    let Some(bed) = Bed::new(L2, false) else { return };
    bed.ring(0, &[1]);
    bed.establish(1);
    bed.balance.set_node(1, &BalanceNode { generation: 2, ..node(1, L2, false) }).unwrap();
    bed.ring(0, &[2]);
    assert_eq!(bed.to(&udp(vip4(), 1, b"x")), (TxNew, 2));
}

#[test]
fn without_a_node_packets_are_dropped_and_counted() {
    let Some(bed) = Bed::new(L2, false) else { return };
    bed.ring(0, &[]);
    assert_eq!(bed.run(&udp(vip4(), 1, b"x")).0, DropNoNode);
    bed.ring(0, &[1]);
    bed.state(1, BalanceState::Down);
    assert_eq!(bed.run(&udp(vip4(), 1, b"x")).0, DropNoNode);
    assert_eq!(bed.balance.service_traffic(0).unwrap().dropped, 2);
}

#[test]
fn a_flood_of_strangers_evicts_no_established_flow() {
    let options = BalanceOptions { flows: 4096, probation: 512, seed: 7 };
    let Some(bed) = Bed::with(&options, L2, false) else { return };
    let slots: Vec<u32> = (1..100).map(|port| bed.establish(port)).collect();
    let mut frame = udp(vip4(), 1, b"x");
    for source in 0..20_000u32 {
        frame[26..30].copy_from_slice(&(0x0b00_0000 + source).to_be_bytes());
        bed.balance.prog_test_run(&frame, 1).unwrap();
    }
    let mut syn = tcp(vip4(), 1, Tcp::Syn);
    for source in 0..20_000u32 {
        syn[26..30].copy_from_slice(&(0x0b00_0000 + source).to_be_bytes());
        bed.balance.prog_test_run(&syn, 1).unwrap();
    }
    bed.ring(0, &[3]);
    for (port, slot) in (1..100).zip(&slots) {
        assert_eq!(bed.to(&udp(vip4(), port, b"x")), (TxFlow, *slot));
    }
    let (established, probation) = bed.balance.flow_counts();
    assert!(established == 99 && probation <= 512, "{established} {probation}");
}

#[test]
fn affinity_keeps_an_address_on_a_node() {
    let Some(bed) = Bed::new(L2, false) else { return };
    let sticky = BalanceListener { affinity: true, ..listener(0) };
    bed.balance.set_listener(vip4(), BalanceProtocol::Udp, &sticky).unwrap();
    let (_, first) = bed.to(&udp(vip4(), 1, b"x"));
    for port in 2..200 {
        assert_eq!(bed.to(&udp(vip4(), port, b"x")).1, first);
    }
}

#[test]
fn with_affinity_the_end_of_a_connection_is_not_that_of_others() {
    let Some(bed) = Bed::new(L2, false) else { return };
    let sticky = BalanceListener { affinity: true, ..listener(1) };
    bed.balance.set_listener(vip4(), BalanceProtocol::Tcp, &sticky).unwrap();
    bed.ring(1, &[1]);
    for kind in [Tcp::Syn, Tcp::Ack, Tcp::Ack, Tcp::Ack] {
        bed.to(&tcp(vip4(), 5, kind));
    }
    bed.ring(1, &[2]);
    assert_eq!(bed.to(&tcp(vip4(), 6, Tcp::Fin)), (TxFlow, 1));
    assert_eq!(bed.to(&tcp(vip4(), 7, Tcp::Rst)), (TxFlow, 1));
    sleep(QUIET);
    assert_eq!(bed.to(&tcp(vip4(), 8, Tcp::Syn)), (TxFlow, 1), "the same source");
    assert_eq!(bed.to(&tcp(vip4(), 5, Tcp::Ack)), (TxFlow, 1), "its first connection goes on");
    bed.state(1, BalanceState::Draining);
    assert_eq!(bed.to(&tcp(vip4(), 9, Tcp::Syn)), (TxFlow, 1), "a drained node keeps the source");
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

#[test]
fn flows_are_counted_by_the_node_and_the_time_of_their_service() {
    let Some(bed) = Bed::new(L2, false) else { return };
    bed.ring(0, &[1]);
    bed.ring(1, &[1]);
    bed.establish(1);
    bed.establish(2);
    for port in [3, 4] {
        for kind in [Tcp::Syn, Tcp::Ack, Tcp::Ack] {
            bed.to(&tcp(vip4(), port, kind));
        }
    }
    bed.to(&tcp(vip4(), 4, Tcp::Rst));
    bed.balance.set_node(1, &BalanceNode { generation: 2, ..node(1, L2, false) }).unwrap();
    bed.establish(5);
    let minute = Duration::from_secs(60);
    let count = |idle: &[(u32, Duration)]| {
        bed.balance
            .flows_by_node(&idle.iter().copied().collect())
            .unwrap()
            .into_iter()
            .collect::<BTreeMap<_, _>>()
    };
    assert_eq!(count(&[(0, minute), (1, minute)]), BTreeMap::from([((1, 1), 3), ((1, 2), 1)]));
    sleep(QUIET);
    let second = Duration::from_secs(1);
    assert_eq!(count(&[(0, second), (1, minute)]), BTreeMap::from([((1, 1), 1)]));
}

#[test]
fn fewer_flows_win_new_ones() {
    let Some(bed) = Bed::new(L2, false) else { return };
    let least = BalanceListener { least_connections: true, ..listener(0) };
    bed.balance.set_listener(vip4(), BalanceProtocol::Udp, &least).unwrap();
    bed.balance.set_node(1, &BalanceNode { load: 1_000_000, ..node(1, L2, false) }).unwrap();
    let to: Vec<u32> = (0..400).map(|port| bed.to(&udp(vip4(), 1000 + port, b"x")).1).collect();
    let loaded = to.iter().filter(|slot| **slot == 1).count();
    // Both candidates of a flow are the loaded node for a quarter of the flows.
    assert!((50..150).contains(&loaded), "{loaded} of 400 went to the loaded node");

    // An ICMP error about a flow of nobody's adds nothing: the other node would come to have more.
    bed.balance.set_node(1, &BalanceNode { load: 1_000_000, ..node(1, L2, false) }).unwrap();
    bed.balance.set_node(2, &BalanceNode { step: 20_000, ..node(2, L2, false) }).unwrap();
    let mut sent = Vec::new();
    let step = PacketBuilder::ethernet2(OWN_MAC, CLIENT_MAC).ipv4([192, 0, 2, 10], [198, 51, 100, 7], 64);
    step.udp(443, 9000).write(&mut sent, &[0; 64]).unwrap();
    let mut error = Vec::new();
    let step = PacketBuilder::ethernet2(CLIENT_MAC, OWN_MAC).ipv4([203, 0, 113, 1], [192, 0, 2, 10], 64);
    step.icmpv4_raw(3, 4, [0, 0, 5, 0]).write(&mut error, packet(&sent)).unwrap();
    bed.ring(0, &[2]);
    for _ in 0..100 {
        assert_eq!(bed.run(&error).0, TxIcmp);
    }
    bed.ring(0, &[1, 2]);
    let to: Vec<u32> = (0..40).map(|port| bed.to(&udp(vip4(), 2000 + port, b"x")).1).collect();
    let free = to.iter().filter(|slot| **slot == 2).count();
    assert!(free > 20, "{free} of 40 went to the node without load");
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

/// A QUIC packet with this connection ID; a long header gives its length.
fn quic(long: bool, cid: &[u8], port: u16) -> Vec<u8> {
    let mut payload = if long { vec![0xc0, 0, 0, 0, 1, cid.len() as u8] } else { vec![0x40] };
    payload.extend(cid);
    payload.extend([0; 40]);
    udp(vip4(), port, &payload)
}

#[test]
fn quic_goes_by_its_connection_id() {
    let Some(bed) = Bed::new(L2, false) else { return };
    let by_id = BalanceListener { quic_lb: true, ..listener(0) };
    bed.balance.set_listener(vip4(), BalanceProtocol::Udp, &by_id).unwrap();
    for (config, length) in [(0u8, 1usize), (1, 4), (2, 8), (3, 9), (6, 15)] {
        bed.balance.set_quic(0, config, Some(length as u8)).unwrap();
        let server = |slot: u8| vec![0x80 | slot; length];
        for slot in [1u8, 2, 3] {
            bed.balance.set_server_id(0, config, &server(slot), slot.into()).unwrap();
        }
        for slot in [1u8, 2, 3] {
            let mut cid = vec![config << 5 | 0x13];
            cid.extend(server(slot));
            cid.extend([0x77; 5]);
            for long in [false, true] {
                let frame = quic(long, &cid, 4000 + u16::from(slot));
                assert_eq!(bed.to(&frame), (TxQuicLb, slot.into()), "config {config} long {long}");
            }
            let mut elsewhere = quic(false, &cid, 999);
            elsewhere[29] = 99;
            assert_eq!(bed.to(&elsewhere), (TxQuicLb, slot.into()), "a client that has moved");
            cid[length] ^= 0x40;
            assert_eq!(bed.to(&quic(false, &cid, 7000)).0, TxNew, "no node has this ID");
            let frame = quic(false, &cid, 7000);
            for _ in 0..3 {
                bed.to(&frame);
            }
            assert_eq!(bed.to(&frame).0, TxFlow);
            bed.balance
                .set_listener(vip4(), BalanceProtocol::Udp, &BalanceListener { service: 0, ..by_id })
                .unwrap();
            // Forget the flow for the next round: another generation of all nodes.
            let generation = 2 + u32::from(config) * 10 + u32::from(slot);
            (1..=3).for_each(|slot| {
                bed.balance.set_node(slot, &BalanceNode { generation, ..node(slot, L2, false) }).unwrap();
            });
        }
    }
    let id = |rotation: u8| [&[rotation << 5][..], &[0x81; 16]].concat();
    assert_eq!(bed.to(&quic(false, &id(7), 8000)).0, TxNew, "marked as not routable");
    assert_eq!(bed.to(&quic(false, &id(5), 8001)).0, TxNew, "no such configuration");
    assert_eq!(bed.to(&quic(true, &id(0)[..5], 8002)).0, TxNew, "too short for a server ID and a nonce");
    let tiny = udp(vip4(), 8003, &[0x40, 0, 0x81]);
    assert_eq!(bed.to(&tiny).0, TxNew);
    bed.state(1, BalanceState::Draining);
    assert_eq!(bed.to(&quic(false, &id(0), 8004)), (TxQuicLb, 1));
    bed.ring(0, &[2]);
    bed.state(1, BalanceState::Down);
    let (counter, slot) = bed.to(&quic(false, &id(0), 8005));
    assert_eq!((counter, slot), (TxNew, 2), "its node is dead");
    bed.balance.remove_server_id(0, 0, &[0x81]).unwrap();
    bed.balance.set_quic(0, 1, None).unwrap();
    assert_eq!(bed.to(&quic(false, &id(1), 8006)).0, TxNew);
    assert!(bed.balance.service_traffic(0).unwrap().by_id > 0);
}

/// The rows in clear of appendix B.1 of draft-ietf-quic-load-balancers-21: the whole connection ID.
#[test]
fn the_drafts_connection_ids_are_read() {
    let Some(bed) = Bed::new(L2, false) else { return };
    let by_id = BalanceListener { quic_lb: true, ..listener(0) };
    bed.balance.set_listener(vip4(), BalanceProtocol::Udp, &by_id).unwrap();
    let first = [0x07, 0xc4, 0x60, 0x5e, 0x45, 0x04, 0xcc, 0x4f];
    let second = [0x2a, 0x35, 0x0d, 0x28, 0xb4, 0x20, 0x34, 0x87, 0xd9, 0x70, 0x0b];
    for (config, cid, length, slot) in [(0, &first[..], 3, 1), (1, &second[..], 5, 3)] {
        bed.balance.set_quic(0, config, Some(length)).unwrap();
        bed.balance.set_server_id(0, config, &cid[1..1 + usize::from(length)], slot).unwrap();
        for long in [false, true] {
            assert_eq!(bed.to(&quic(long, cid, 4000)), (TxQuicLb, slot));
        }
    }
}

/// What a packet costs, by the kernel's clock over 200 runs, as many as its hop limit allows; the least of 200. Prints, and
/// asserts nothing: `cargo test -p expressway-xbpf --test balance -- --ignored --nocapture`.
#[test]
#[ignore = "measures"]
fn the_cost_of_a_packet() {
    let Some(bed) = Bed::new(L2, false) else { return };
    let least = |mut frame: Vec<u8>| {
        frame[22] = 255;
        let runs = (0..200).map(|_| bed.balance.prog_test_run(&frame, 200).unwrap().duration.as_nanos());
        runs.min().unwrap()
    };
    println!("no service: {} ns", least(udp("192.0.2.11:443".parse().unwrap(), 1, &[0; 64])));
    bed.establish(1);
    println!("UDP, established flow, layer 2: {} ns", least(udp(vip4(), 1, &[0; 64])));
    let by_id = BalanceListener { quic_lb: true, ..listener(0) };
    bed.balance.set_listener(vip4(), BalanceProtocol::Udp, &by_id).unwrap();
    bed.balance.set_quic(0, 0, Some(4)).unwrap();
    bed.balance.set_server_id(0, 0, &[1, 2, 3, 4], 1).unwrap();
    let cid = [&[0, 1, 2, 3, 4][..], &[9; 11]].concat();
    println!("QUIC by connection ID, layer 2: {} ns", least(quic(false, &cid, 2)));
}

mod fuzz {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        /// Whatever arrives: one counter, what passes is unchanged, what leaves has right checksums in its outer header.
        #[test]
        fn any_packet_has_one_verdict(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), any::<u8>()), 64),
            cut in any::<prop::sample::Index>(),
            method in prop::sample::select(vec![L2, Ipip, Gue]),
            ipv6 in any::<bool>(),
        ) {
            let Some(bed) = Bed::new(method, ipv6) else { return Ok(()) };
            for frame in all_packets() {
                for pair in changes.chunks(2) {
                    let mut frame = frame.clone();
                    for (at, value, _) in pair {
                        let end = frame.len().min(80);
                        frame[at.index(end)] = *value;
                    }
                    let (counter, run) = bed.run(&frame);
                    if counter.verdict() == "tx" && run.frame[12..14] == [8, 0] {
                        let header = Ipv4Header::from_slice(&run.frame[14..]).unwrap().0;
                        let valid = Ipv4Header::from_slice(&frame[14..])
                            .is_ok_and(|(header, _)| header.calc_header_checksum() == header.header_checksum);
                        if method != L2 || valid {
                            prop_assert_eq!(header.calc_header_checksum(), header.header_checksum);
                        }
                    }
                }
                let length = 14 + cut.index(frame.len() - 14);
                bed.run(&frame[..length]);
            }
        }
    }
}
