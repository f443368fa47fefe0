//! Limits, their buckets, and bans.

use std::net::IpAddr;

use expressway_xbpf::{Guard, GuardLimit, GuardOptions, GuardPer, GuardRate, GuardReason, GuardRule};

use crate::support::{Packet, load, reason, with_rules};

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
