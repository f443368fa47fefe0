//! Packets of all sorts through every program that may change or keep them, by BPF_PROG_TEST_RUN: seeded, the same in each run.
//! What passes is unchanged; what leaves has the size that it must have, and checksums that etherparse finds right.
//!
//! The filter has the same in `crates/edge/tests/it/guard/rules.rs`, the router in `forward.rs`, where its routes are.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use etherparse::{
    IpNumber, Ipv4Header, Ipv6FlowLabel, NetSlice, PacketBuilder, SlicedPacket, TransportSlice,
};
use expressway_xbpf::{
    Action, Balance, BalanceListener, BalanceMethod, BalanceNode, BalanceOptions, BalanceProtocol,
    BalanceState, Baseline, Counter,
};

use crate::support::{self, Service, pair4, pair6};

const ETHERNET: usize = 14;
const LOOPBACK: u32 = 1;
const DROP: u32 = 1;
const PASS: u32 = 2;
const TX: u32 = 3;
const REDIRECT: u32 = 4;
/// Hop limit of what is sent.
const HOPS: u8 = 9;
/// Of the way to the balancer's nodes.
const MTU: usize = 1500;

/// xorshift64*
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % bound
    }

    fn one_in(&mut self, bound: usize) -> bool {
        self.below(bound) == 0
    }
}

/// A whole packet to an address, with right checksums: UDP or TCP, tagged or not, of any size that one buffer holds.
fn whole(dice: &mut Dice, to: &[SocketAddr]) -> Vec<u8> {
    let to = to[dice.below(to.len())];
    let payload = vec![
        dice.below(256) as u8;
        [0, 1, 30, 64, 512, 1200, 1400, 1432, 1472][dice.below(9)] + dice.below(3)
    ];
    let ports = (1024 + dice.below(40) as u16, if dice.one_in(5) { 9 } else { to.port() });
    let link = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 9], [2, 0, 0, 0, 0, 1]);
    let tagged = dice.one_in(8);
    let net = match to.ip() {
        IpAddr::V4(address) => {
            let source = [198, 51, 100, dice.below(40) as u8];
            match tagged {
                true => link.single_vlan(7u16.try_into().unwrap()).ipv4(source, address.octets(), HOPS),
                false => link.ipv4(source, address.octets(), HOPS),
            }
        }
        IpAddr::V6(address) => {
            let mut header = etherparse::Ipv6Header {
                traffic_class: dice.below(256) as u8,
                flow_label: Ipv6FlowLabel::try_new(dice.below(1 << 20) as u32).unwrap(),
                payload_length: 0,
                next_header: IpNumber::UDP,
                hop_limit: HOPS,
                source: [0; 16],
                destination: address.octets(),
            };
            header.source[..4].copy_from_slice(&[0x20, 1, 0x0d, 0xb8]);
            header.source[15] = dice.below(40) as u8;
            let ip = etherparse::IpHeaders::Ipv6(header, etherparse::Ipv6Extensions::default());
            match tagged {
                true => link.single_vlan(7u16.try_into().unwrap()).ip(ip),
                false => link.ip(ip),
            }
        }
    };
    let mut frame = Vec::new();
    if dice.one_in(2) {
        net.udp(ports.0, ports.1).write(&mut frame, &payload).unwrap();
    } else {
        let step = net.tcp(ports.0, ports.1, 1000, 1000);
        let step = match dice.below(4) {
            0 => step.syn(),
            1 => step.fin().ack(1),
            2 => step.rst(),
            _ => step.ack(1),
        };
        step.write(&mut frame, &payload).unwrap();
    }
    // As a short frame comes by Ethernet.
    if frame.len() < 60 && dice.one_in(2) {
        frame.resize(60, 0);
    }
    frame
}

/// The same, or with a few bytes of its headers changed, or cut short. True if it is as it was.
fn any(dice: &mut Dice, to: &[SocketAddr]) -> (Vec<u8>, bool) {
    let mut frame = whole(dice, to);
    match dice.below(4) {
        0 => {
            for _ in 0..=dice.below(3) {
                let at = dice.below(frame.len().min(90));
                frame[at] = dice.below(256) as u8;
            }
        }
        1 => frame.truncate((ETHERNET + dice.below(80)).min(frame.len())),
        _ => return (frame, true),
    }
    (frame, false)
}

/// One counter a packet, no byte changed, and what is taken `wire` takes: `Service` asserts these.
#[test]
fn what_the_gateways_program_sees_stays_as_it_is() {
    let Some(service) = Service::new() else { return };
    let (mut dice, mut taken) = (Dice(1), 0);
    for _ in 0..4000 {
        let (frame, _) = any(&mut dice, &[pair4(), pair6()]);
        taken += usize::from(service.classify(&frame) == Counter::Taken);
    }
    assert!(taken > 200, "{taken}");
}

#[test]
fn baseline_programs_change_hardware_addresses_and_nothing_else() {
    for action in Action::ALL {
        let Some(baseline) = support::permitted(Baseline::load(action, LOOPBACK, Some(LOOPBACK))) else {
            return;
        };
        let mut dice = Dice(2);
        for _ in 0..500 {
            let (frame, _) = any(&mut dice, &[pair4(), pair6()]);
            let run = baseline.prog_test_run(&frame, 1).unwrap();
            let swapped = [&frame[6..12], &frame[..6], &frame[12..]].concat();
            let (verdict, expected) = match action {
                Action::Drop | Action::Touch => (DROP, &frame),
                Action::Pass | Action::Count => (PASS, &frame),
                Action::Tx => (TX, &swapped),
                Action::Redirect => (REDIRECT, &swapped),
            };
            assert_eq!((run.verdict, &run.frame), (verdict, expected), "{action}");
        }
    }
}

/// A balancer with one service at two addresses, for both protocols, and one node.
fn balancer(method: BalanceMethod, ipv6: bool) -> Option<(Balance, Vec<SocketAddr>)> {
    let balance =
        support::permitted(Balance::load(&BalanceOptions { flows: 4096, probation: 1024, seed: 7 }))?;
    let (address, source) =
        if ipv6 { ("2001:db8:1::1", "2001:db8:1::ff") } else { ("10.0.0.1", "10.0.0.254") };
    let node = BalanceNode {
        address: address.parse().unwrap(),
        source: source.parse().unwrap(),
        ifindex: LOOPBACK,
        destination_mac: [2, 0, 0, 1, 0, 1],
        source_mac: [2, 0, 0, 0, 0, 1],
        generation: 1,
        mtu: MTU as u32,
        load: 0,
        step: 1,
        method,
        state: BalanceState::Up,
    };
    balance.set_node(1, &node).unwrap();
    let services: Vec<SocketAddr> =
        ["192.0.2.10:443", "[2001:db8::10]:443"].map(|text| text.parse().unwrap()).into();
    for (service, protocol) in [(0, BalanceProtocol::Udp), (1, BalanceProtocol::Tcp)] {
        for to in &services {
            let idle = Duration::from_secs(60);
            let listener =
                BalanceListener { service, quic_lb: true, affinity: false, least_connections: false, idle };
            balance.set_listener(*to, protocol, &listener).unwrap();
        }
        balance.set_ring(service, &vec![1; Balance::RING as usize]).unwrap();
    }
    Some((balance, services))
}

/// A packet with one hop less, as every packet leaves.
fn aged(packet: &[u8]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    if packet[0] >> 4 == 4 {
        let mut header = Ipv4Header::from_slice(&packet).unwrap().0;
        header.time_to_live -= 1;
        header.header_checksum = header.calc_header_checksum();
        packet[..header.header_len()].copy_from_slice(&header.to_bytes());
    } else {
        packet[7] -= 1;
    }
    packet
}

/// Panics unless every checksum of a frame is right, but those that are left out.
fn check_sums(frame: &[u8]) {
    let sliced = SlicedPacket::from_ethernet(frame).unwrap();
    match (sliced.net.as_ref().unwrap(), sliced.transport.as_ref()) {
        (NetSlice::Ipv4(ip), transport) => {
            let header = ip.header().to_header();
            assert_eq!(header.calc_header_checksum(), header.header_checksum, "IPv4 header");
            match transport {
                Some(TransportSlice::Icmpv4(icmp)) => {
                    assert_eq!(icmp.icmp_type().calc_checksum(icmp.payload()), icmp.checksum(), "ICMP");
                }
                Some(TransportSlice::Udp(udp)) if udp.checksum() != 0 => {
                    let sum = udp.to_header().calc_checksum_ipv4(&header, udp.payload()).unwrap();
                    assert_eq!(sum, udp.checksum(), "UDP");
                }
                _ => {}
            }
        }
        (NetSlice::Ipv6(ip), transport) => {
            let header = ip.header().to_header();
            match transport {
                Some(TransportSlice::Icmpv6(icmp)) => {
                    assert!(icmp.is_checksum_valid(header.source, header.destination), "ICMPv6");
                }
                Some(TransportSlice::Udp(udp)) if udp.checksum() != 0 => {
                    let sum = udp.to_header().calc_checksum_ipv6(&header, udp.payload()).unwrap();
                    assert_eq!(sum, udp.checksum(), "UDP over IPv6");
                }
                _ => {}
            }
        }
        (other, _) => panic!("{other:?}"),
    }
}

/// Bytes of the outer headers of a method.
fn outer(method: BalanceMethod, ipv6: bool) -> usize {
    let ip = if ipv6 { 40 } else { 20 };
    match method {
        BalanceMethod::L2 => 0,
        BalanceMethod::Ipip => ip,
        BalanceMethod::Gue => ip + 8,
    }
}

/// The length of a whole packet by its own header.
fn length(packet: &[u8]) -> usize {
    let field = |at: usize| usize::from(u16::from_be_bytes([packet[at], packet[at + 1]]));
    if packet[0] >> 4 == 4 { field(2) } else { 40 + field(4) }
}

#[test]
fn what_the_balancer_sends_is_the_packet_and_its_outer_headers_are_right() {
    for method in [BalanceMethod::L2, BalanceMethod::Ipip, BalanceMethod::Gue] {
        for ipv6 in [false, true] {
            let Some((balance, services)) = balancer(method, ipv6) else { return };
            let (mut dice, mut sent, mut answered) = (Dice(3), 0, 0);
            for _ in 0..2000 {
                let (frame, is_whole) = any(&mut dice, &services);
                let before = balance.counters().unwrap();
                let run = balance.prog_test_run(&frame, 1).unwrap();
                let grown = balance.counters().unwrap().since(&before);
                assert_eq!(grown.total(), 1, "one counter a packet: {grown:?}");
                let (counter, _) = grown.iter().find(|(_, packets)| *packets == 1).unwrap();
                let extra = outer(method, ipv6);
                match run.verdict {
                    PASS => assert_eq!(run.frame, frame, "{counter}"),
                    DROP => {}
                    _ if counter.to_string().contains("too_big") => {
                        check_sums(&run.frame);
                        answered += 1;
                    }
                    _ => {
                        assert_eq!(run.frame.len(), frame.len() + extra, "{counter}");
                        if method != BalanceMethod::L2 || is_whole {
                            // What was wrong within stays wrong, and a sum over it with it.
                            let outside = SlicedPacket::from_ethernet(&run.frame);
                            assert!(outside.is_ok() || !is_whole, "{outside:?}");
                        }
                        if is_whole {
                            let packet = &frame[ETHERNET..];
                            assert!(length(packet) + extra <= MTU);
                            check_sums(&run.frame);
                            assert_eq!(run.frame[ETHERNET + extra..], aged(packet), "{counter}");
                            assert_eq!(length(&run.frame[ETHERNET..]), length(packet) + extra);
                            sent += 1;
                        }
                    }
                }
            }
            assert!(sent > 200, "{method:?} {ipv6}: {sent} sent");
            assert!(answered > 0 || method == BalanceMethod::L2, "{method:?} {ipv6}: none is too big");
        }
    }
}
