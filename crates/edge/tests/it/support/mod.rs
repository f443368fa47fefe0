//! What the tests of this crate share: the filter loaded, run on a frame, and what it counted.

mod packet;
mod sums;

use expressway_edge::guard::list::prefix;
use expressway_edge::guard::{Rule, classifier};
use expressway_xbpf::{Error, Guard, GuardOptions, GuardPrefix, GuardReason, GuardRule, XdpDrop, last_drops};

pub use packet::{ICMP, Packet, TCP, UDP};
pub use sums::check_sums;

// Verdicts of XDP programs.
pub const DROP: u32 = 1;
pub const PASS: u32 = 2;
pub const TX: u32 = 3;

/// What was loaded, or `None` where the test has to be skipped for lack of privilege.
pub fn permitted<T>(loaded: Result<T, Error>) -> Option<T> {
    match loaded {
        Ok(loaded) => Some(loaded),
        Err(Error::NotPermitted { .. })
            if std::env::var_os("EXPRESSWAY_REQUIRE_ROOT_TESTS").is_none_or(|value| value != "1") =>
        {
            eprintln!("skipped: needs root (CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON)");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// The filter, or `None` where the test has to be skipped.
pub fn load(options: GuardOptions) -> Option<Guard> {
    permitted(Guard::load(options, None))
}

/// Rules as a configuration has them.
pub fn rules(text: &str) -> Vec<(Rule, GuardRule)> {
    #[derive(serde::Deserialize)]
    struct File {
        rule: Vec<Rule>,
    }
    let file: File = toml::from_str(text).unwrap();
    file.rule.into_iter().map(|rule| (rule.clone(), rule.effect().unwrap())).collect()
}

pub fn with_rules(text: &str) -> GuardOptions {
    GuardOptions { classifier: classifier::compile(&rules(text)), ..GuardOptions::default() }
}

pub fn list(entries: &[&str]) -> Vec<GuardPrefix> {
    entries.iter().map(|entry| prefix(entry).unwrap()).collect()
}

/// Runs a frame: the one reason whose counter grew, and what became of the frame, after checking that verdict and counter
/// agree and that the frame is unchanged unless it was answered.
pub fn run(guard: &Guard, frame: &[u8]) -> (GuardReason, Vec<u8>) {
    let before = guard.counts().unwrap();
    let run = guard.prog_test_run(frame, 1).unwrap();
    let after = guard.counts().unwrap();
    let grown: Vec<_> = before.iter().zip(&after).filter(|(old, new)| old != new).collect();
    let [(old, new)] = grown[..] else { panic!("{} counters changed", grown.len()) };
    assert_eq!((new.1.packets - old.1.packets, new.1.bytes - old.1.bytes), (1, frame.len() as u64));
    let reason = new.0;
    let verdict = match reason {
        _ if reason.answers() => TX,
        _ if reason.drops() => DROP,
        _ => PASS,
    };
    assert_eq!(run.verdict, verdict, "{reason:?}");
    assert!(reason.answers() || run.frame == frame, "changed");
    if reason.drops() {
        let told = last_drops(guard.program()).unwrap();
        assert!(told.contains(&XdpDrop::Guard(reason)), "{reason:?} is told as {told:?}");
    }
    (reason, run.frame)
}

/// The reason that a frame is counted by.
pub fn reason(guard: &Guard, frame: &[u8]) -> GuardReason {
    run(guard, frame).0
}

/// Packets counted by a reason so far.
pub fn packets(guard: &Guard, reason: GuardReason) -> u64 {
    guard.counts().unwrap().into_iter().find(|(one, _)| *one == reason).unwrap().1.packets
}
