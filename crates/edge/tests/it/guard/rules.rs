//! Compiled rules against a plain search for the first that matches.

use std::net::IpAddr;

use expressway_edge::guard::{Pattern, Range, Rule};
use expressway_xbpf::{GuardOptions, GuardPrefix, GuardQuic, GuardReason, GuardRule};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::support::{DROP, ICMP, PASS, Packet, TCP, UDP, list, load, reason, rules, with_rules};

/// Whether a payload has a pattern.
fn is_in(pattern: &Pattern, payload: &[u8]) -> bool {
    let from = usize::from(pattern.probe.offset);
    let Some(bytes) = payload.get(from..from + usize::from(pattern.probe.length)) else { return false };
    bytes.iter().zip(pattern.probe.mask).zip(pattern.value).all(|((byte, mask), value)| byte & mask == value)
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
    let port = |ranges: &[Range], port: u16| {
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
        && (rule.payload.is_empty() || rule.payload.iter().any(|pattern| is_in(pattern, payload)))
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
            ..Packet::udp("10.1.2.3", 0, b"")
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
    let quic = GuardQuic { ports: vec![0, 443], ..GuardQuic::default() };
    let options = GuardOptions { quic, block: list(&["10.1.2.0/25"]), ..with_rules(text) };
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
