//! The filter's program on single packets of QUIC, by BPF_PROG_TEST_RUN: connection IDs, tokens and Retry packets. Needs root.

mod ids;
mod packets;
mod retry;

use expressway_wire::siphash::SipKey;
use expressway_xbpf::{Error, Guard, GuardKey, GuardOptions, GuardQuic, GuardReason, GuardUnknown};

const DROP: u32 = 1;
const PASS: u32 = 2;
const TX: u32 = 3;

/// Where QUIC is served.
const PORT: u16 = 443;

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

fn key(fill: u8) -> [u8; 32] {
    std::array::from_fn(|at| at as u8 ^ fill)
}

fn quic(keys: &[u8]) -> GuardQuic {
    GuardQuic {
        ports: vec![PORT],
        keys: keys.iter().map(|fill| GuardKey(key(*fill))).collect(),
        unknown: GuardUnknown::Drop,
        retry: None,
    }
}

fn with(quic: GuardQuic) -> GuardOptions {
    GuardOptions { quic, ..GuardOptions::default() }
}

/// An ID as a server with the key issues them.
fn issued(fill: u8, number: u8) -> [u8; 16] {
    let mut id = [number; 16];
    id[0] |= 0xe0;
    let hash = SipKey::new(key(fill)[..16].try_into().unwrap()).hash(&id[..14]).to_le_bytes();
    id[14..].copy_from_slice(&hash[..2]);
    id
}

/// Runs a frame: the one reason that grew, and what became of the frame, which is unchanged unless it was answered.
fn run(guard: &Guard, frame: &[u8]) -> (GuardReason, Vec<u8>) {
    let before = guard.counts().unwrap();
    let run = guard.prog_test_run(frame, 1).unwrap();
    let after = guard.counts().unwrap();
    let grown: Vec<_> = before.iter().zip(&after).filter(|(old, new)| old != new).collect();
    let [(old, new)] = grown[..] else { panic!("{} counters changed", grown.len()) };
    assert_eq!((new.1.packets - old.1.packets, new.1.bytes - old.1.bytes), (1, frame.len() as u64));
    let reason = new.0;
    assert_eq!(
        run.verdict,
        match reason.verdict() {
            "drop" => DROP,
            "answer" => TX,
            _ => PASS,
        }
    );
    assert!(reason.answers() || run.frame == frame, "changed");
    (reason, run.frame)
}

fn reason(guard: &Guard, frame: &[u8]) -> GuardReason {
    run(guard, frame).0
}
