//! Samples of dropped packets, by BPF_PROG_TEST_RUN: which, how many, and what they say. Needs root.

use expressway_xbpf::{
    Guard, GuardOptions, GuardRate, GuardReason, GuardSamples, GuardSampling, GuardSamplingCount,
};

use crate::support::{Packet, list, load, with_rules};

const BUFFER: usize = 64 << 10;

/// One in so many of what is blocked, and of what a rule drops.
fn options(blocked: u32, ruled: u32, rate: GuardRate) -> GuardOptions {
    let every = |reason: &GuardReason| match reason {
        GuardReason::DropBlocked => blocked,
        GuardReason::DropRule => ruled,
        _ => 0,
    };
    GuardOptions {
        block: list(&["198.51.100.0/24"]),
        sampling: Some(GuardSampling {
            every: GuardReason::ALL.iter().map(every).collect(),
            rate,
            snaplen: 40,
        }),
        ..with_rules("[[rule]]\nname = \"a\"\nprotocol = \"udp\"\naction = \"drop\"")
    }
}

/// No limit that a test reaches.
const FAST: GuardRate = GuardRate { rate: 1_000_000, burst: 1_000_000 };

const BLOCKED: &str = "198.51.100.7";
const RULED: &str = "203.0.113.7";

fn frame(source: &str, payload: usize) -> Vec<u8> {
    Packet::udp(source, 2, &vec![7; payload]).frame()
}

/// Keeps the thread on a CPU, whose counters one in so many is counted by.
fn stay() {
    let cpu = rustix::thread::sched_getcpu();
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).unwrap();
}

/// Reason, rule, generation, lengths and whether it passed, of all that has come.
type Sampled = (GuardReason, Option<(u32, u32)>, u32, Vec<u8>, bool);

fn read(samples: &mut GuardSamples) -> Vec<Sampled> {
    let mut found = Vec::new();
    samples.read(true, &mut |sample| {
        found.push((sample.reason, sample.rule, sample.length, sample.data.to_vec(), sample.passed));
    });
    found
}

fn counts(guard: &Guard, reason: GuardReason) -> GuardSamplingCount {
    guard.sampling_counts().unwrap().into_iter().find(|(one, _)| *one == reason).unwrap().1
}

#[test]
fn one_in_so_many_of_each_reason_is_sampled() {
    let Some(guard) = load(options(10, 1, FAST)) else { return };
    stay();
    let mut samples = guard.samples(BUFFER).unwrap();
    guard.prog_test_run(&frame(BLOCKED, 60), 31).unwrap();
    guard.prog_test_run(&frame(RULED, 2), 3).unwrap();
    let found = read(&mut samples);
    let blocked: Vec<_> = found.iter().filter(|one| one.0 == GuardReason::DropBlocked).collect();
    assert_eq!(blocked.len(), 4, "the first, and each tenth behind it");
    assert_eq!(*blocked[0], (GuardReason::DropBlocked, None, 102, frame(BLOCKED, 60)[..40].to_vec(), false));
    let ruled: Vec<_> = found.iter().filter(|one| one.0 == GuardReason::DropRule).collect();
    assert_eq!(ruled.len(), 3);
    // A packet that is shorter than what is kept of one comes whole.
    assert_eq!(*ruled[0], (GuardReason::DropRule, Some((0, 0)), 44, frame(RULED, 2)[..40].to_vec(), false));
    assert_eq!(
        counts(&guard, GuardReason::DropBlocked),
        GuardSamplingCount { taken: 4, limited: 0, lost: 0 }
    );
    assert!(read(&mut samples).is_empty(), "once each");
}

#[test]
fn what_is_not_asked_for_is_not_sampled() {
    let Some(guard) = load(options(0, 1, FAST)) else { return };
    let mut samples = guard.samples(BUFFER).unwrap();
    guard.prog_test_run(&frame(BLOCKED, 1), 10).unwrap();
    assert!(read(&mut samples).is_empty());
    assert_eq!(counts(&guard, GuardReason::DropBlocked), GuardSamplingCount::default());
}

#[test]
fn the_rate_holds_for_each_reason_apart() {
    let Some(guard) = load(options(1, 1, GuardRate { rate: 1, burst: 1000 })) else { return };
    let mut samples = guard.samples(BUFFER << 4).unwrap();
    guard.prog_test_run(&frame(BLOCKED, 1), 5000).unwrap();
    guard.prog_test_run(&frame(RULED, 1), 3).unwrap();
    let found = read(&mut samples);
    let blocked = counts(&guard, GuardReason::DropBlocked);
    // Time passes meanwhile.
    assert!((1000..1100).contains(&blocked.taken), "{blocked:?}");
    assert_eq!(blocked.taken + blocked.limited, 5000);
    assert_eq!(counts(&guard, GuardReason::DropRule), GuardSamplingCount { taken: 3, limited: 0, lost: 0 });
    assert_eq!(found.len() as u64, blocked.taken + 3);
}

#[test]
fn what_finds_no_room_is_counted() {
    let Some(guard) = load(options(1, 1, FAST)) else { return };
    stay();
    guard.prog_test_run(&frame(BLOCKED, 1), 7).unwrap();
    assert_eq!(counts(&guard, GuardReason::DropBlocked).lost, 7, "nobody reads");
    let mut samples = guard.samples(1).unwrap();
    guard.prog_test_run(&frame(BLOCKED, 1), 1000).unwrap();
    let blocked = counts(&guard, GuardReason::DropBlocked);
    assert!(blocked.lost > 7 && blocked.taken > 0, "{blocked:?}");
    assert_eq!(blocked.taken + blocked.lost, 1007);
    assert_eq!(read(&mut samples).len() as u64, blocked.taken);
    // There is room again.
    guard.prog_test_run(&frame(RULED, 1), 1).unwrap();
    assert_eq!(read(&mut samples).len(), 1);
}

#[test]
fn the_next_filter_uses_the_same_buffers() {
    let Some(guard) = load(options(1, 1, FAST)) else { return };
    let mut samples = guard.samples(BUFFER).unwrap();
    let next = Guard::load(GuardOptions { dry_run: true, ..options(1, 1, FAST) }, Some(&guard)).unwrap();
    drop(guard);
    next.prog_test_run(&frame(RULED, 1), 1).unwrap();
    let found = read(&mut samples);
    let [(GuardReason::DropRule, Some((0, generation)), .., passed)] = found[..] else { panic!("{found:?}") };
    assert_eq!((generation, passed), (next.generation(), true));
    assert_eq!(next.generation(), 1);
}
