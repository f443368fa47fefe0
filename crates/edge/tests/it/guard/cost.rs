//! Nanoseconds a packet by the size of rules and lists, printed and not judged:
//! `cargo test -p expressway-edge --test edge guard::cost -- --ignored --nocapture`. Needs root.
//!
//! BPF_PROG_TEST_RUN runs the program in a loop on one warm frame: its cost with every cache line hot.

use std::net::IpAddr;

use expressway_edge::guard::{Rule, classifier};
use expressway_xbpf::{Guard, GuardOptions, GuardPrefix, GuardRate, GuardReason, GuardSampling};

use crate::support::{DROP, PASS, Packet, list};

const REPEAT: u32 = 1_000_000;
const RUNS: usize = 5;

/// Rules of five fields, none of which matches the frame before the last.
fn options(rules: u32, prefixes: u32) -> GuardOptions {
    let rule = |number: u32| {
        let text = if number + 1 < rules {
            format!(
                "name = \"{number}\"\nprotocol = \"udp\"\nsource = \"10.{}.{}.0/24\"\ndestination = \"192.0.2.0/24\"\n\
                 source_port = {}\ndestination_port = \"400-500\"\naction = \"drop\"",
                number / 250,
                number % 250,
                5000 + number
            )
        } else {
            "name = \"last\"\nprotocol = \"udp\"\ndestination_port = 443\naction = \"pass\"".to_owned()
        };
        let rule: Rule = toml::from_str(&text).unwrap();
        let effect = rule.effect().unwrap();
        (rule, effect)
    };
    let rules: Vec<_> = (0..rules).map(rule).collect();
    // Spread over all networks by a step that is prime to them; some share the /24 of the frame's source.
    let prefix = |number: u32| {
        let address = IpAddr::V4(number.wrapping_mul(2_654_435_761).wrapping_add(0xc633_6402).into());
        GuardPrefix { address, length: if number % 8 == 1 { 24 } else { 32 } }
    };
    let block = (0..prefixes)
        .map(prefix)
        .filter(|one| one.length == 32 || one.address != IpAddr::from([198, 51, 100, 0]));
    GuardOptions {
        block: block.collect(),
        classifier: classifier::compile(&rules),
        ..GuardOptions::default()
    }
}

#[test]
#[ignore = "a measurement"]
fn print_nanoseconds_a_packet() {
    let frame = Packet::udp("198.51.100.1", 443, &[0; 64]).frame();
    println!("{:>6} {:>6}  ns a packet, best and median of {RUNS} runs of {REPEAT}", "best", "median");
    for (rules, prefixes) in [(10, 10), (1000, 10), (10, 1_000_000), (1000, 1_000_000)] {
        let guard = Guard::load(options(rules, prefixes), None).unwrap();
        let mut runs: Vec<_> = (0..RUNS)
            .map(|_| {
                let run = guard.prog_test_run(&frame, REPEAT).unwrap();
                assert_eq!(run.verdict, PASS, "passed by the last rule");
                run.duration.as_nanos()
            })
            .collect();
        runs.sort_unstable();
        assert_eq!(
            guard.rule_counts().unwrap()[rules as usize - 1].matched.packets,
            u64::from(REPEAT) * RUNS as u64
        );
        println!("{:>6} {:>6}  {rules} rules, {prefixes} prefixes", runs[0], runs[RUNS / 2]);
    }
}

#[test]
#[ignore = "a measurement"]
fn print_nanoseconds_a_sampled_drop() {
    let frame = Packet::udp("198.51.100.1", 443, &[0; 64]).frame();
    println!(
        "{:>6} {:>6}  ns a dropped packet, best and median of {RUNS} runs of {REPEAT}",
        "best", "median"
    );
    for (name, one_in, rate) in [
        ("no samples", 0, 1),
        ("one in 100, 100/s", 100, 100),
        ("one in 1, 100/s", 1, 100),
        ("all", 1, 100_000_000),
    ] {
        let sampling = GuardSampling {
            every: vec![one_in; GuardReason::ALL.len()],
            rate: GuardRate { rate, burst: rate },
            snaplen: 256,
        };
        let options = GuardOptions {
            block: list(&["198.51.100.0/24"]),
            sampling: (one_in > 0).then_some(sampling),
            ..GuardOptions::default()
        };
        let guard = Guard::load(options, None).unwrap();
        let mut samples = guard.samples(1 << 20).unwrap();
        let mut runs: Vec<_> = (0..RUNS)
            .map(|_| {
                let run = guard.prog_test_run(&frame, REPEAT).unwrap();
                assert_eq!(run.verdict, DROP, "dropped");
                samples.read(true, &mut |_| {});
                run.duration.as_nanos()
            })
            .collect();
        runs.sort_unstable();
        println!("{:>6} {:>6}  {name}", runs[0], runs[RUNS / 2]);
    }
}
