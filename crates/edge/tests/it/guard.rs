//! The filter's program on single packets, by BPF_PROG_TEST_RUN: every reason, and compiled rules against a plain search
//! for the first that matches. Needs root.

use std::net::IpAddr;

use expressway_edge::guard::list::prefix;
use expressway_edge::guard::{Rule, classifier};
use expressway_xbpf::{
    Error, Guard, GuardLimit, GuardOptions, GuardPer, GuardPrefix, GuardQuic, GuardRate, GuardReason,
    GuardRule,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP: u8 = 1;
const DROP: u32 = 1;
const PASS: u32 = 2;

/// The program, or `None` where the test has to be skipped for lack of privilege.
fn load(options: GuardOptions) -> Option<Guard> {
    match Guard::load(options, None) {
        Ok(guard) => Some(guard),
        Err(Error::NotPermitted { .. })
            if std::env::var_os("EXPRESSWAY_REQUIRE_ROOT_TESTS").is_none_or(|value| value != "1") =>
        {
            eprintln!("skipped: needs root (CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON)");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn rules(text: &str) -> Vec<(Rule, GuardRule)> {
    #[derive(serde::Deserialize)]
    struct File {
        rule: Vec<Rule>,
    }
    let file: File = toml::from_str(text).unwrap();
    file.rule.into_iter().map(|rule| (rule.clone(), rule.effect().unwrap())).collect()
}

fn with_rules(text: &str) -> GuardOptions {
    GuardOptions { classifier: classifier::compile(&rules(text)), ..GuardOptions::default() }
}

fn list(entries: &[&str]) -> Vec<GuardPrefix> {
    entries.iter().map(|entry| prefix(entry).unwrap()).collect()
}

/// A packet, put together by hand so that each field can be wrong on purpose.
#[derive(Clone, Debug)]
struct Packet {
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    ports: (u16, u16),
    flags: u8,
    payload: Vec<u8>,
    /// The fragment field of IPv4.
    fragment: u16,
    tags: usize,
}

impl Packet {
    fn udp(source: &str, port: u16, payload: &[u8]) -> Self {
        let source: IpAddr = source.parse().unwrap();
        let destination = if source.is_ipv4() { "192.0.2.1" } else { "2001:db8::1" };
        Self {
            source,
            destination: destination.parse().unwrap(),
            protocol: UDP,
            ports: (4000, port),
            flags: 0,
            payload: payload.to_vec(),
            fragment: 0,
            tags: 0,
        }
    }

    fn tcp(source: &str, port: u16, flags: u8) -> Self {
        Self { protocol: TCP, flags, ..Self::udp(source, port, b"") }
    }

    fn transport(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self.protocol {
            UDP => {
                bytes.extend(
                    [self.ports.0, self.ports.1, 8 + self.payload.len() as u16]
                        .map(u16::to_be_bytes)
                        .concat(),
                );
                bytes.extend([0, 0]);
            }
            TCP => {
                bytes.extend([self.ports.0, self.ports.1].map(u16::to_be_bytes).concat());
                bytes.extend([0; 8]);
                bytes.extend([5 << 4, self.flags, 0, 0, 0, 0, 0, 0]);
            }
            _ => bytes.extend([8, 0, 0, 0, 0, 0, 0, 0]),
        }
        bytes.extend(&self.payload);
        bytes
    }

    /// Bytes of the IP packet.
    fn length(&self) -> usize {
        self.transport().len() + if self.source.is_ipv4() { 20 } else { 40 }
    }

    fn frame(&self) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        for _ in 0..self.tags {
            frame.extend([0x81, 0, 0, 7]);
        }
        let transport = self.transport();
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                frame.extend([8, 0, 0x45, 0]);
                frame.extend((20 + transport.len() as u16).to_be_bytes());
                frame.extend([0, 1]);
                frame.extend(self.fragment.to_be_bytes());
                frame.extend([64, self.protocol, 0, 0]);
                frame.extend(source.octets());
                frame.extend(destination.octets());
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
                frame.extend((transport.len() as u16).to_be_bytes());
                frame.extend([self.protocol, 64]);
                frame.extend(source.octets());
                frame.extend(destination.octets());
            }
            _ => panic!("two families"),
        }
        frame.extend(transport);
        frame
    }
}

/// Runs a frame and returns the one reason that grew, after checking that verdict and counter agree and that the frame
/// came back unchanged.
fn reason(guard: &Guard, frame: &[u8]) -> GuardReason {
    let before = guard.counts().unwrap();
    let run = guard.prog_test_run(frame, 1).unwrap();
    let after = guard.counts().unwrap();
    assert_eq!(run.frame, frame, "changed");
    let grown: Vec<_> = before.iter().zip(&after).filter(|(old, new)| old != new).collect();
    let [(old, new)] = grown[..] else { panic!("{} counters changed", grown.len()) };
    assert_eq!(new.1.packets - old.1.packets, 1);
    assert_eq!(new.1.bytes - old.1.bytes, frame.len() as u64);
    assert_eq!(run.verdict, if new.0.drops() { DROP } else { PASS });
    new.0
}

fn ports(ports: &[u16]) -> GuardQuic {
    GuardQuic { ports: ports.to_vec(), ..GuardQuic::default() }
}

fn patched(mut frame: Vec<u8>, offset: usize, bytes: &[u8]) -> Vec<u8> {
    frame[offset..offset + bytes.len()].copy_from_slice(bytes);
    frame
}

#[test]
fn lists_come_first() {
    let options = GuardOptions {
        allow: list(&["198.51.100.7", "2001:db8:a::/48"]),
        block: list(&[
            "198.51.100.0/24",
            "203.0.113.9",
            "203.0.113.64/26",
            "10.0.0.0/8",
            "2001:db8:a::/32",
            "192.88.99.1",
        ]),
        ..GuardOptions::default()
    };
    let Some(guard) = load(options) else { return };
    for (source, expected) in [
        ("198.51.100.7", GuardReason::PassAllowed),
        ("198.51.100.8", GuardReason::DropBlocked),
        ("198.51.101.8", GuardReason::PassDefault),
        ("203.0.113.9", GuardReason::DropBlocked),
        ("203.0.113.10", GuardReason::PassDefault),
        ("203.0.113.64", GuardReason::DropBlocked),
        ("203.0.113.127", GuardReason::DropBlocked),
        ("203.0.113.128", GuardReason::PassDefault),
        ("10.255.0.1", GuardReason::DropBlocked),
        ("11.0.0.1", GuardReason::PassDefault),
        ("192.88.99.1", GuardReason::DropBlocked),
        ("192.88.99.2", GuardReason::PassDefault),
        ("2001:db8:a::5", GuardReason::PassAllowed),
        ("2001:db8:b::5", GuardReason::DropBlocked),
        ("2001:db9::5", GuardReason::PassDefault),
    ] {
        for tags in 0..3 {
            let packet = Packet { tags, ..Packet::udp(source, 80, b"x") };
            assert_eq!(reason(&guard, &packet.frame()), expected, "{source}, {tags} tags");
        }
    }
}

#[test]
fn packets_that_cannot_be_are_dropped() {
    use GuardReason::{DropAddress, DropMalformed, DropTcpFlags, PassDefault, PassFragment, PassNotIp};
    let Some(guard) = load(GuardOptions::default()) else { return };
    let udp = || Packet::udp("198.51.100.1", 80, b"0123").frame();
    let tcp = |flags| Packet::tcp("198.51.100.1", 80, flags).frame();
    let six = || Packet::udp("2001:db8::9", 80, b"0123").frame();
    let fragment = |fragment| Packet { fragment, ..Packet::udp("198.51.100.1", 80, &[0; 32]) }.frame();
    let mut arp = udp();
    arp.splice(12..14, [8, 6]);
    // One extension header of eight bytes in front of UDP.
    let mut extended = six();
    extended.splice(54..54, [UDP, 0, 1, 4, 0, 0, 0, 0]);
    extended[20] = 60;
    extended[19] += 8;
    // An atomic fragment header behind Destination Options.
    let behind = |options: usize| {
        let mut headers = [60, 0, 1, 4, 0, 0, 0, 0].repeat(options);
        if options > 0 {
            headers[8 * (options - 1)] = 44;
        }
        headers.extend([UDP, 0, 0, 0, 0, 0, 0, 1]);
        let mut frame = six();
        frame[19] += headers.len() as u8;
        frame[20] = if options > 0 { 60 } else { 44 };
        frame.splice(54..54, headers);
        frame
    };
    for (name, frame, expected) in [
        ("plain", udp(), PassDefault),
        ("atomic fragment", behind(0), PassDefault),
        ("atomic fragment behind five options", behind(5), PassDefault),
        ("atomic fragment behind six options", behind(6), DropMalformed),
        ("IPv4-mapped source", Packet::udp("::ffff:198.51.100.1", 80, b"").frame(), DropAddress),
        ("arp", arp, PassNotIp),
        ("cut IPv4 header", udp()[..30].to_vec(), PassNotIp),
        ("version 5", patched(udp(), 14, &[0x55]), DropMalformed),
        ("short header", patched(udp(), 14, &[0x44]), DropMalformed),
        ("header beyond the packet", patched(udp(), 14, &[0x4f]), DropMalformed),
        ("longer than the frame", patched(udp(), 16, &[1, 0]), DropMalformed),
        ("no room for UDP", patched(udp(), 16, &[0, 24]), DropMalformed),
        ("UDP length 7", patched(udp(), 38, &[0, 7]), DropMalformed),
        ("UDP longer than IP", patched(udp(), 38, &[0, 13]), DropMalformed),
        ("UDP shorter than IP", patched(udp(), 38, &[0, 9]), PassDefault),
        ("padded", [udp(), vec![0; 20]].concat(), PassDefault),
        ("SYN", tcp(0x02), PassDefault),
        ("ACK", tcp(0x10), PassDefault),
        ("no flags", tcp(0), DropTcpFlags),
        ("SYN, FIN", tcp(0x03), DropTcpFlags),
        ("SYN, RST", tcp(0x06), DropTcpFlags),
        ("TCP header of 16 bytes", patched(tcp(2), 46, &[4 << 4]), DropMalformed),
        ("TCP header beyond the packet", patched(tcp(2), 46, &[15 << 4]), DropMalformed),
        ("loopback source", Packet::udp("127.0.0.1", 80, b"").frame(), DropAddress),
        ("multicast source", Packet::udp("239.0.0.1", 80, b"").frame(), DropAddress),
        ("source is destination", Packet::udp("192.0.2.1", 80, b"").frame(), DropAddress),
        ("IPv6 multicast source", Packet::udp("ff02::1", 80, b"").frame(), DropAddress),
        ("IPv6 loopback source", Packet::udp("::1", 80, b"").frame(), DropAddress),
        ("IPv6 source is destination", Packet::udp("2001:db8::1", 80, b"").frame(), DropAddress),
        ("IPv6", six(), PassDefault),
        ("IPv6 longer than the frame", patched(six(), 18, &[1, 0]), DropMalformed),
        ("IPv6 of version 4", patched(six(), 14, &[0x40]), DropMalformed),
        ("IPv6 extension", extended.clone(), PassDefault),
        ("IPv6 extension beyond the packet", patched(extended, 55, &[9]), DropMalformed),
        ("first fragment", fragment(0x2000), PassDefault),
        ("later fragment", fragment(0x2004), PassFragment),
        ("fragment beyond 65,535 bytes", fragment(0x1fff), DropMalformed),
    ] {
        assert_eq!(reason(&guard, &frame), expected, "{name}");
    }
    let Some(lenient) = load(GuardOptions { drop_malformed: false, ..GuardOptions::default() }) else {
        return;
    };
    assert_eq!(reason(&lenient, &tcp(3)), PassDefault);
    let Some(strict) = load(GuardOptions { drop_fragments: true, ..GuardOptions::default() }) else { return };
    assert_eq!(reason(&strict, &fragment(0x2000)), GuardReason::DropFragment);
    assert_eq!(reason(&strict, &fragment(0x2004)), GuardReason::DropFragment);
    assert_eq!(reason(&strict, &udp()), PassDefault);
}

#[test]
fn quic_that_no_client_sends_is_dropped() {
    use GuardReason::{DropQuicInitial, DropQuicVersion, PassDefault};
    let Some(guard) = load(GuardOptions { quic: ports(&[443]), ..GuardOptions::default() }) else { return };
    let long = |first: u8, version: u32, cid: u8, length: usize| {
        let mut payload = vec![first];
        payload.extend(version.to_be_bytes());
        payload.push(cid);
        payload.resize(length, 0);
        payload
    };
    for (name, payload, expected) in [
        ("Initial", long(0xc0, 1, 8, 1200), PassDefault),
        ("short Initial", long(0xc0, 1, 8, 1199), DropQuicInitial),
        ("short Handshake", long(0xe0, 1, 8, 100), PassDefault),
        ("Initial of version 2", long(0xd0, 0x6b33_43cf, 8, 1199), DropQuicInitial),
        ("Retry's number of version 1 in version 2", long(0xc0, 0x6b33_43cf, 8, 100), PassDefault),
        ("draft 29", long(0xc0, 0xff00_001d, 8, 1199), DropQuicInitial),
        ("version negotiation", long(0xc0, 0, 8, 1200), DropQuicVersion),
        ("connection ID of 21 bytes", long(0xc0, 1, 21, 1200), DropQuicVersion),
        ("unknown version", long(0xc0, 0x1a2a_3a4a, 21, 1200), PassDefault),
        ("unknown version, short", long(0xc0, 0x1a2a_3a4a, 8, 1199), DropQuicVersion),
        ("short header", vec![0x40; 30], PassDefault),
        ("nothing", vec![], DropQuicInitial),
        ("a cut long header", vec![0xc0, 0, 0], DropQuicInitial),
    ] {
        for source in ["198.51.100.1", "2001:db8::7"] {
            assert_eq!(reason(&guard, &Packet::udp(source, 443, &payload).frame()), expected, "{name}");
            assert_eq!(reason(&guard, &Packet::udp(source, 444, &payload).frame()), PassDefault, "{name}");
        }
    }
}

#[test]
fn limits_hold_apart_what_they_are_told_to() {
    let text = "[[rule]]\nname = \"a\"\nprotocol = \"udp\"\nlimit = \"1/s\"\nburst = 3\nper = \"source\"\n\
                prefix4 = 24\n[[rule]]\nname = \"b\"\nprotocol = \"tcp\"\nlimit = \"1/s\"\nburst = 2\n";
    let Some(guard) = load(with_rules(text)) else { return };
    let from = |source: &str| reason(&guard, &Packet::udp(source, 80, b"x").frame());
    for _ in 0..3 {
        assert_eq!(from("198.51.100.1"), GuardReason::PassLimit);
    }
    // The same /24, and another one.
    assert_eq!(from("198.51.100.2"), GuardReason::DropLimit);
    assert_eq!(from("198.51.101.1"), GuardReason::PassLimit);
    let tcp = |source: &str| reason(&guard, &Packet::tcp(source, 80, 2).frame());
    assert_eq!(tcp("198.51.100.1"), GuardReason::PassLimit);
    assert_eq!(tcp("2001:db8::7"), GuardReason::PassLimit);
    assert_eq!(tcp("203.0.113.1"), GuardReason::DropLimit);
    let counts = guard.rule_counts().unwrap();
    assert_eq!((counts[0].matched.packets, counts[0].dropped.packets), (5, 1));
    assert_eq!((counts[1].matched.packets, counts[1].dropped.packets), (3, 1));
}

#[test]
fn bytes_are_limited() {
    let text = "[[rule]]\nname = \"a\"\nlimit = \"1B/s\"\nburst_bytes = 65535\nper = \"port\"\n";
    let Some(guard) = load(with_rules(text)) else { return };
    let send = |port| reason(&guard, &Packet::udp("198.51.100.1", port, &[0; 1472]).frame());
    for _ in 0..43 {
        assert_eq!(send(80), GuardReason::PassLimit);
    }
    assert_eq!(send(80), GuardReason::DropLimit);
    assert_eq!(send(81), GuardReason::PassLimit);
}

#[test]
fn who_is_over_a_limit_is_banned() {
    let text = "[[rule]]\nname = \"a\"\ndestination_port = 80\nlimit = \"1/s\"\nburst = 1\nper = \"source\"\nban = \"1h\"\n";
    let Some(guard) = load(with_rules(text)) else { return };
    let send = |source: &str, port| reason(&guard, &Packet::udp(source, port, b"x").frame());
    assert_eq!(send("198.51.100.1", 80), GuardReason::PassLimit);
    assert_eq!(send("198.51.100.1", 80), GuardReason::DropLimit);
    assert_eq!(send("198.51.100.1", 81), GuardReason::DropBanned);
    assert_eq!(send("198.51.100.2", 81), GuardReason::PassDefault);
    assert_eq!(guard.banned(10), ["198.51.100.1".parse::<IpAddr>().unwrap()]);
    assert_eq!(guard.expire().1, 1);
    // Another filter goes on with it, also by other rules; one that never bans does not.
    let other = with_rules(&text.replace("1/s", "2/s"));
    let next = Guard::load(other, Some(&guard)).unwrap();
    assert_eq!(reason(&next, &Packet::udp("198.51.100.1", 81, b"x").frame()), GuardReason::DropBanned);
}

#[test]
fn a_ban_is_for_the_64_of_an_ipv6_source() {
    let text =
        "[[rule]]\nname = \"a\"\ndestination_port = 80\nlimit = \"1B/s\"\nper = \"source\"\nban = \"1h\"\n";
    let Some(guard) = load(with_rules(text)) else { return };
    let send = |source: &str, port| reason(&guard, &Packet::udp(source, port, &[0; 1452]).frame());
    for _ in 0..43 {
        assert_eq!(send("2001:db8:1:2::1", 80), GuardReason::PassLimit);
    }
    assert_eq!(send("2001:db8:1:2:3::9", 80), GuardReason::DropLimit);
    assert_eq!(send("2001:db8:1:2:ffff::1", 81), GuardReason::DropBanned);
    assert_eq!(send("2001:db8:1:3::1", 81), GuardReason::PassDefault);
    assert_eq!(guard.banned(10), ["2001:db8:1:2::".parse::<IpAddr>().unwrap()]);
}

/// Options with one limit by source: two packets of 1,500 bytes, and no third for a long while.
fn two_packets_a_source(buckets: u32) -> GuardOptions {
    let mut options = GuardOptions { buckets, ..GuardOptions::default() };
    options.classifier.rules = vec![GuardRule::Limit(GuardLimit {
        bytes: Some(GuardRate { rate: 1, burst: 3000 }),
        per: GuardPer::Source { prefix4: 32, prefix6: 64 },
        ..GuardLimit::default()
    })];
    options
}

#[test]
fn a_flood_from_forged_sources_pushes_nobody_out() {
    let Some(guard) = load(two_packets_a_source(64)) else { return };
    let send = |source: String| reason(&guard, &Packet::udp(&source, 80, &[0; 1472]).frame());
    for _ in 0..2 {
        assert_eq!(send("198.51.100.1".into()), GuardReason::PassLimit);
    }
    let passed =
        (0..2000).filter(|n| send(format!("10.0.{}.{}", n / 250, n % 250)) == GuardReason::PassLimit).count();
    // Those that found room, and two for each of the 64 shared buckets.
    assert!((63 + 120..=63 + 128).contains(&passed), "{passed}");
    assert_eq!(send("198.51.100.1".into()), GuardReason::DropLimit, "its bucket is still there");
    assert!(guard.overflows().unwrap()[0] > 1900);
}

/// CPUs that see a source first at the same time use one bucket, and none counts as having found no room.
#[test]
fn whoever_is_second_to_make_a_bucket_uses_it() {
    let Some(guard) = load(two_packets_a_source(65_536)) else { return };
    let gate = std::sync::Barrier::new(4);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for n in 0..2000 {
                    let source = format!("10.0.{}.{}", n / 250, n % 250);
                    let frame = Packet::udp(&source, 80, &[0; 1472]).frame();
                    gate.wait();
                    guard.prog_test_run(&frame, 1).unwrap();
                }
            });
        }
    });
    assert_eq!(guard.overflows().unwrap()[0], 0);
    assert_eq!(guard.rule_counts().unwrap()[0].dropped.packets, 2 * 2000);
}

#[test]
fn buckets_that_are_full_again_are_removed() {
    let text = "[[rule]]\nname = \"a\"\nlimit = \"1000M/s\"\nburst = 1\nper = \"source\"\n";
    let Some(guard) = load(with_rules(text)) else { return };
    for host in 1..100 {
        guard.prog_test_run(&Packet::udp(&format!("10.0.0.{host}"), 80, b"x").frame(), 1).unwrap();
    }
    assert_eq!(guard.expire(), (0, 0));
}

#[test]
fn a_dry_run_counts_and_passes() {
    let options =
        GuardOptions { dry_run: true, block: list(&["198.51.100.0/24"]), ..GuardOptions::default() };
    let Some(guard) = load(options) else { return };
    let run = guard.prog_test_run(&Packet::udp("198.51.100.1", 80, b"x").frame(), 1).unwrap();
    assert_eq!(run.verdict, PASS);
    let blocked = guard.counts().unwrap().into_iter().find(|(reason, _)| *reason == GuardReason::DropBlocked);
    assert_eq!(blocked.unwrap().1.packets, 1);
}

#[test]
fn the_default_is_for_what_no_rule_matches() {
    let text = "[[rule]]\nname = \"a\"\nprotocol = \"tcp\"\naction = \"pass\"\n";
    let Some(guard) = load(GuardOptions { drop_default: true, ..with_rules(text) }) else { return };
    assert_eq!(reason(&guard, &Packet::tcp("198.51.100.1", 80, 2).frame()), GuardReason::PassRule);
    assert_eq!(reason(&guard, &Packet::udp("198.51.100.1", 80, b"").frame()), GuardReason::DropDefault);
}

/// Whether a rule takes a packet, as its documentation says.
fn takes(rule: &Rule, packet: &Packet) -> bool {
    let within = |list: &[GuardPrefix], address: IpAddr| {
        let bits = |address: IpAddr| match address {
            IpAddr::V4(address) => u128::from(u32::from(address)) << 96,
            IpAddr::V6(address) => u128::from(address),
        };
        list.is_empty()
            || list.iter().any(|prefix| {
                let shift = 128 - u32::from(prefix.length);
                let same = (bits(prefix.address) ^ bits(address)).checked_shr(shift).unwrap_or(0) == 0;
                prefix.address.is_ipv4() == address.is_ipv4() && same
            })
    };
    let has_ports = [TCP, UDP].contains(&packet.protocol);
    let port = |ranges: &[expressway_edge::guard::Range], port: u16| {
        ranges.is_empty() || has_ports && ranges.iter().any(|range| (range.0..=range.1).contains(&port))
    };
    let length = packet.length() as u16;
    let transport = packet.transport();
    let payload = match packet.protocol {
        UDP => &transport[8..],
        TCP => &transport[20..],
        _ => &transport[..],
    };
    within(&rule.source, packet.source)
        && within(&rule.destination, packet.destination)
        && (rule.protocol.is_empty() || rule.protocol.iter().any(|one| one.0 == packet.protocol))
        && port(&rule.source_port, packet.ports.0)
        && port(&rule.destination_port, packet.ports.1)
        && (rule.length.is_empty() || rule.length.iter().any(|range| (range.0..=range.1).contains(&length)))
        && rule
            .tcp_flags
            .is_none_or(|flags| packet.protocol == TCP && packet.flags & flags.mask == flags.value)
        && (rule.payload.is_empty() || rule.payload.iter().any(|pattern| pattern.is_in(payload)))
}

/// Rules and packets from few values each, so that they meet.
fn any_rule() -> impl Strategy<Value = String> {
    let address = prop_oneof![
        Just("10.0.0.0/8"),
        Just("10.1.0.0/16"),
        Just("10.1.2.3"),
        Just("0.0.0.0/0"),
        Just("2001:db8::/32"),
        Just("2001:db8:1::/48"),
        Just("::/0"),
        Just("2001:db8:1::5"),
        Just("10.1.2.0/25"),
    ];
    let port = prop_oneof![Just("1"), Just("1-2"), Just("2-65535"), Just("0-1"), Just("65535"), Just("3")];
    let length = prop_oneof![Just("0-48"), Just("49-65535"), Just("28"), Just("40-60")];
    let flags = prop_oneof![Just("syn"), Just("syn,!ack"), Just("!rst"), Just("ack,!syn")];
    let maybe = |key: &'static str, value: BoxedStrategy<&'static str>| {
        proptest::option::weighted(0.4, value)
            .prop_map(move |value| value.map_or(String::new(), |value| format!("{key} = \"{value}\"\n")))
    };
    let protocol = prop_oneof![Just("tcp"), Just("udp"), Just("1"), Just("58")];
    // Eight places in all, the most there are.
    let payload = prop_oneof![
        Just("\"offset 0: 00\""),
        Just("\"offset 0: 01\""),
        Just("[\"offset 0: 01\", \"offset 5: 01 00\", \"offset 20: 01\"]"),
        Just("\"offset 39: 01\""),
        Just("\"offset 1472: 00\""),
        Just("[\"offset 4: 01\", { offset = 4, hex = \"02\", mask = \"02\" }]"),
        Just("\"offset 0: 00 01 00 01 00 01 00 01 00 01 00 01 00 01 00 01\""),
        Just("{ offset = 4, hex = \"00\", mask = \"02\" }"),
    ];
    let payload = proptest::option::weighted(0.4, payload)
        .prop_map(|value| value.map_or(String::new(), |value| format!("payload = {value}\n")));
    let action = prop_oneof![Just("pass"), Just("drop")];
    (
        maybe("source", address.clone().boxed()),
        maybe("destination", address.boxed()),
        maybe("protocol", protocol.boxed()),
        maybe("source_port", port.clone().boxed()),
        maybe("destination_port", port.boxed()),
        maybe("length", length.boxed()),
        maybe("tcp_flags", flags.boxed()),
        payload,
        action,
    )
        .prop_map(|(a, b, c, d, e, f, g, h, action)| {
            format!("{a}{b}{c}{d}{e}{f}{g}{h}action = \"{action}\"\n")
        })
}

fn any_packet() -> impl Strategy<Value = Packet> {
    let addresses = prop_oneof![
        (0usize..4, 0usize..3).prop_map(|(from, to)| {
            let source = ["10.1.2.3", "10.1.2.200", "10.9.9.9", "198.51.100.1"][from];
            let destination = ["10.1.2.4", "10.2.0.1", "192.0.2.1"][to];
            (source.parse::<IpAddr>().unwrap(), destination.parse::<IpAddr>().unwrap())
        }),
        (0usize..3, 0usize..2).prop_map(|(from, to)| {
            let source = ["2001:db8:1::5", "2001:db8:2::1", "2001:db9::1"][from];
            (source.parse().unwrap(), ["2001:db8:1::6", "2001:db9::2"][to].parse().unwrap())
        }),
    ];
    let port = || prop_oneof![0u16..5, Just(65535)];
    let flags = prop_oneof![Just(2u8), Just(16), Just(18), Just(4), Just(24)];
    let protocol = prop_oneof![Just(TCP), Just(UDP), Just(ICMP)];
    let payload = prop_oneof![
        proptest::collection::vec(0u8..4, 0..42),
        (0usize..40).prop_map(|length| [0, 1].into_iter().cycle().take(length).collect()),
    ];
    (addresses, protocol, port(), port(), flags, payload).prop_map(
        |((source, destination), protocol, from, to, flags, payload)| Packet {
            source,
            destination,
            protocol,
            ports: (from, to),
            flags,
            payload,
            fragment: 0,
            tags: 0,
        },
    )
}

#[test]
fn compiled_rules_find_the_first_that_matches() {
    if load(GuardOptions::default()).is_none() {
        return;
    }
    // From a handful to more than several words of 64; each set is tried with many packets.
    let mut runner = TestRunner::new(Config {
        cases: 12,
        failure_persistence: None,
        max_shrink_iters: 16,
        ..Config::default()
    });
    let sets = prop_oneof![
        proptest::collection::vec(any_rule(), 1..12),
        proptest::collection::vec(any_rule(), 60..400),
    ];
    let cases = (sets, proptest::collection::vec(any_packet(), 60));
    runner
        .run(&cases, |(texts, packets)| {
            let text: String = texts
                .iter()
                .enumerate()
                .map(|(number, text)| format!("[[rule]]\nname = \"{number}\"\n{text}"))
                .collect();
            let parsed = rules(&text);
            let guard = load(with_rules(&text)).expect("it could be loaded before");
            for packet in packets {
                let before = guard.rule_counts().unwrap();
                let run = guard.prog_test_run(&packet.frame(), 1).unwrap();
                let after = guard.rule_counts().unwrap();
                let matched = (0..after.len()).find(|rule| before[*rule] != after[*rule]);
                let expected = parsed.iter().position(|(rule, _)| takes(rule, &packet));
                prop_assert_eq!(matched, expected, "{:?}", packet);
                let drops = expected.is_some_and(|rule| parsed[rule].1 == GuardRule::Drop);
                prop_assert_eq!(run.verdict, if drops { DROP } else { PASS });
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn the_last_of_the_most_rules_is_found() {
    let text: String = (0..1024)
        .map(|n| {
            format!(
                "[[rule]]\nname = \"{n}\"\nprotocol = \"udp\"\ndestination_port = {n}\naction = \"drop\"\n"
            )
        })
        .collect();
    let Some(guard) = load(with_rules(&text)) else { return };
    for port in [0u16, 63, 64, 1023] {
        assert_eq!(reason(&guard, &Packet::udp("198.51.100.1", port, b"x").frame()), GuardReason::DropRule);
        assert_eq!(guard.rule_counts().unwrap()[usize::from(port)].dropped.packets, 1);
    }
    assert_eq!(reason(&guard, &Packet::udp("198.51.100.1", 1024, b"x").frame()), GuardReason::PassDefault);
}

#[test]
fn payloads_are_matched_where_the_header_ends() {
    use GuardReason::{DropRule, PassDefault, PassFragment, PassRule};
    let text = "[[rule]]\nname = \"exempt\"\nsource = \"198.51.100.9\"\naction = \"pass\"\n\
                [[rule]]\nname = \"a\"\npayload = \"offset 2: 17 00 03 2a\"\naction = \"drop\"\n\
                [[rule]]\nname = \"b\"\nprotocol = \"icmp\"\npayload = { hex = \"0800\", mask = \"f800\" }\naction = \"drop\"\n";
    let Some(guard) = load(with_rules(text)) else { return };
    let bytes = [1, 2, 0x17, 0, 3, 0x2a];
    let udp = |payload: &[u8]| Packet::udp("198.51.100.1", 80, payload);
    // TCP with options of 8 bytes, which look like the payload that is dropped.
    let mut options = Packet { payload: bytes.to_vec(), ..Packet::tcp("198.51.100.1", 80, 0x10) }.frame();
    options[46] = 7 << 4;
    options.splice(54..54, [1, 1, 0x17, 0, 3, 0x2a, 1, 1]);
    options[17] += 8;
    let mut skipped = options.clone();
    skipped[62..68].fill(0);
    for (name, frame, expected) in [
        ("UDP", udp(&bytes).frame(), DropRule),
        ("longer", udp(&[&bytes[..], &[0; 40]].concat()).frame(), DropRule),
        ("one byte short", udp(&bytes[..5]).frame(), PassDefault),
        (
            "one byte short, and padding that would fit",
            [udp(&bytes[..5]).frame(), vec![0x2a]].concat(),
            PassDefault,
        ),
        ("nothing", udp(&[]).frame(), PassDefault),
        ("another byte", udp(&[1, 2, 0x17, 0, 3, 0x2b]).frame(), PassDefault),
        ("IPv6", Packet::udp("2001:db8::9", 80, &bytes).frame(), DropRule),
        ("tagged", Packet { tags: 2, ..udp(&bytes) }.frame(), DropRule),
        (
            "first fragment",
            Packet { fragment: 0x2000, ..udp(&[&bytes[..], &[0; 10]].concat()) }.frame(),
            DropRule,
        ),
        (
            "later fragment",
            Packet { fragment: 0x2004, ..udp(&[&bytes[..], &[0; 10]].concat()) }.frame(),
            PassFragment,
        ),
        ("TCP behind options", options, DropRule),
        ("TCP options only", skipped, PassDefault),
        ("echo request", Packet { protocol: ICMP, ..udp(&[]) }.frame(), DropRule),
        ("an earlier rule", Packet::udp("198.51.100.9", 80, &bytes).frame(), PassRule),
    ] {
        assert_eq!(reason(&guard, &frame), expected, "{name}");
    }
}

/// As many patterns as there may be rules, in as many places as there may be, each found by one look.
#[test]
fn the_most_rules_by_payload_are_told_apart() {
    let text: String = (0..1024)
        .map(|n| {
            let (place, low, high) = (n % 8 * 3, n & 0xff, n >> 8);
            format!(
                "[[rule]]\nname = \"{n}\"\npayload = \"offset {place}: {low:02x} {high:02x} aa\"\naction = \"drop\"\n"
            )
        })
        .collect();
    let Some(guard) = load(with_rules(&text)) else { return };
    for n in [0usize, 7, 8, 511, 1023] {
        let mut payload = [0xff; 30];
        payload[n % 8 * 3..][..3].copy_from_slice(&[n as u8, (n >> 8) as u8, 0xaa]);
        assert_eq!(reason(&guard, &Packet::udp("198.51.100.1", 80, &payload).frame()), GuardReason::DropRule);
        assert_eq!(guard.rule_counts().unwrap()[n].dropped.packets, 1, "{n}");
    }
    // Two places match: the first of the rules decides.
    let mut payload = [0xff; 30];
    payload[3..6].copy_from_slice(&[9, 0, 0xaa]);
    payload[..3].copy_from_slice(&[8, 0, 0xaa]);
    reason(&guard, &Packet::udp("198.51.100.1", 80, &payload).frame());
    let counts = guard.rule_counts().unwrap();
    assert_eq!((counts[8].dropped.packets, counts[9].dropped.packets), (2, 0));
}

/// Whatever arrives: a verdict, an unchanged frame, one counter. Most begin like packets.
#[test]
fn random_frames_are_judged() {
    let text = "[[rule]]\nname = \"p\"\npayload = [\"offset 3: 00\", \"offset 90: 00 01\"]\naction = \"drop\"\n\
                [[rule]]\nname = \"a\"\ntcp_flags = \"syn\"\nlimit = [\"10k/s\", \"1MiB/s\"]\nper = \"source\"\nban = \"1s\"\n";
    let options = GuardOptions { quic: ports(&[0, 443]), block: list(&["10.1.2.0/25"]), ..with_rules(text) };
    let Some(guard) = load(options) else { return };
    let mut runner = TestRunner::new(Config { cases: 2000, failure_persistence: None, ..Config::default() });
    let changes = proptest::collection::vec((0usize..80, any::<u8>()), 0..6);
    runner
        .run(&(any_packet(), changes, 14usize..120), |(packet, changes, length)| {
            let mut frame = packet.frame();
            for (at, byte) in changes {
                if let Some(place) = frame.get_mut(at) {
                    *place = byte;
                }
            }
            frame.truncate(length.max(14));
            reason(&guard, &frame);
            Ok(())
        })
        .unwrap();
}
