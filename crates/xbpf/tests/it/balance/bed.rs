//! The program with services and nodes, and the frames that tests put into it.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use etherparse::{
    IpNumber, Ipv4Header, Ipv6FlowLabel, Ipv6Header, NetSlice, PacketBuilder, SlicedPacket, TransportSlice,
};
use expressway_xbpf::{
    Balance, BalanceCounter, BalanceListener, BalanceMethod, BalanceNode, BalanceOptions, BalanceProtocol,
    BalanceRun, BalanceState, XdpDrop, last_drops,
};

use BalanceCounter::*;
use BalanceMethod::*;

use crate::support;

pub(crate) const DROP: u32 = 1;
pub(crate) const PASS: u32 = 2;
pub(crate) const TX: u32 = 3;
pub(crate) const REDIRECT: u32 = 4;
/// The interface that test runs arrive on.
pub(crate) const LOOPBACK: u32 = 1;
pub(crate) const ELSEWHERE: u32 = 77;

pub(crate) const CLIENT_MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
pub(crate) const OWN_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

pub(crate) fn node_mac(slot: u32) -> [u8; 6] {
    [2, 0, 0, 1, 0, slot as u8]
}

pub(crate) fn vip4() -> SocketAddr {
    "192.0.2.10:443".parse().unwrap()
}

pub(crate) fn vip6() -> SocketAddr {
    "[2001:db8::10]:443".parse().unwrap()
}

pub(crate) fn client(address: SocketAddr, port: u16) -> SocketAddr {
    let ip: IpAddr = if address.is_ipv4() { "198.51.100.7" } else { "2001:db8:9::7" }.parse().unwrap();
    SocketAddr::new(ip, port)
}

pub(crate) fn listener(service: u32) -> BalanceListener {
    let idle = Duration::from_secs(60);
    BalanceListener { service, quic_lb: false, affinity: false, least_connections: false, idle }
}

pub(crate) fn node(slot: u32, method: BalanceMethod, ipv6: bool) -> BalanceNode {
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
pub(crate) struct Bed {
    pub(crate) balance: Balance,
}

impl Bed {
    pub(crate) fn new(method: BalanceMethod, ipv6: bool) -> Option<Self> {
        Self::with(&BalanceOptions { flows: 4096, probation: 1024, seed: 7 }, method, ipv6)
    }

    pub(crate) fn with(options: &BalanceOptions, method: BalanceMethod, ipv6: bool) -> Option<Self> {
        let balance = support::permitted(Balance::load(options))?;
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

    pub(crate) fn ring(&self, service: u32, slots: &[u32]) {
        let ring: Vec<u32> = slots.iter().copied().cycle().take(Balance::RING as usize).collect();
        self.balance.set_ring(service, if slots.is_empty() { &[] } else { &ring }).unwrap();
    }

    pub(crate) fn state(&self, slot: u32, state: BalanceState) {
        self.balance.set_node(slot, &BalanceNode { state, ..node(slot, L2, false) }).unwrap();
    }

    /// Runs `frame` and returns the one counter that grew.
    pub(crate) fn run(&self, frame: &[u8]) -> (BalanceCounter, BalanceRun) {
        let before = self.balance.counters().unwrap();
        let run = self.balance.prog_test_run(frame, 1).unwrap();
        let grown = self.balance.counters().unwrap().since(&before);
        assert_eq!(grown.total(), 1, "one counter a packet: {grown:?}");
        let (counter, _) = grown.iter().find(|(_, packets)| *packets == 1).unwrap();
        match counter.verdict() {
            "pass" => assert_eq!((run.verdict, run.frame.as_slice()), (PASS, frame), "{counter}"),
            "drop" => {
                assert_eq!(run.verdict, DROP, "{counter}");
                let told = last_drops(self.balance.program()).unwrap();
                assert!(told.contains(&XdpDrop::Balance(counter)), "{counter} is told as {told:?}");
            }
            _ => assert!([TX, REDIRECT].contains(&run.verdict), "{counter}: {}", run.verdict),
        }
        (counter, run)
    }

    /// The counter, and the slot of the node that the frame goes to by layer 2.
    pub(crate) fn to(&self, frame: &[u8]) -> (BalanceCounter, u32) {
        let (counter, run) = self.run(frame);
        (counter, u32::from(run.frame[5]))
    }

    /// Makes the UDP flow of `port` established and returns its node.
    pub(crate) fn establish(&self, port: u16) -> u32 {
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

pub(crate) fn ip(to: SocketAddr, port: u16) -> etherparse::PacketBuilderStep<etherparse::IpHeaders> {
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

pub(crate) fn udp(to: SocketAddr, port: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    ip(to, port).udp(port, to.port()).write(&mut frame, payload).unwrap();
    frame
}

#[derive(Clone, Copy)]
pub(crate) enum Tcp {
    Syn,
    Ack,
    Fin,
    Rst,
}

pub(crate) fn tcp(to: SocketAddr, port: u16, kind: Tcp) -> Vec<u8> {
    tcp_at(to, port, kind, 1000)
}

/// With this sequence number.
pub(crate) fn tcp_at(to: SocketAddr, port: u16, kind: Tcp, sequence: u32) -> Vec<u8> {
    let mut frame = Vec::new();
    let step = ip(to, port).tcp(port, to.port(), sequence, 1000);
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
pub(crate) fn packet(frame: &[u8]) -> &[u8] {
    &frame[14..]
}

/// Panics unless all checksums of the frame's packet are right.
pub(crate) fn check_sums(frame: &[u8]) {
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
pub(crate) fn aged(frame: &[u8]) -> Vec<u8> {
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

pub(crate) fn all_packets() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for vip in [vip4(), vip6()] {
        for size in [0, 1, 7, 600, 1201] {
            all.push(udp(vip, 1000 + size as u16, &vec![0xa5; size]));
        }
        all.extend([tcp(vip, 7, Tcp::Syn), tcp(vip, 8, Tcp::Ack), tcp(vip, 9, Tcp::Fin)]);
    }
    all
}
