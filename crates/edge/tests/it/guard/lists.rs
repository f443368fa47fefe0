//! Lists of sources, and what becomes of the packets that no list and no rule decides.

use expressway_xbpf::{GuardOptions, GuardReason};

use crate::support::{PASS, Packet, list, load, packets, reason, with_rules};

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
fn the_default_is_for_what_no_rule_matches() {
    let text = "[[rule]]\nname = \"a\"\nprotocol = \"tcp\"\naction = \"pass\"\n";
    let Some(guard) = load(GuardOptions { drop_default: true, ..with_rules(text) }) else { return };
    assert_eq!(reason(&guard, &Packet::tcp("198.51.100.1", 80, 2).frame()), GuardReason::PassRule);
    assert_eq!(reason(&guard, &Packet::udp("198.51.100.1", 80, b"").frame()), GuardReason::DropDefault);
}

#[test]
fn a_dry_run_counts_and_passes() {
    let options =
        GuardOptions { dry_run: true, block: list(&["198.51.100.0/24"]), ..GuardOptions::default() };
    let Some(guard) = load(options) else { return };
    let run = guard.prog_test_run(&Packet::udp("198.51.100.1", 80, b"x").frame(), 1).unwrap();
    assert_eq!(run.verdict, PASS);
    assert_eq!(packets(&guard, GuardReason::DropBlocked), 1);
}
