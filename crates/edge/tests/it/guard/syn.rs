//! SYN cookies by the filter's program, in a network namespace with a listener.

use std::cell::Cell;
use std::net::{IpAddr, TcpListener};

use expressway_xbpf::{Guard, GuardOptions, GuardReason, GuardSyn};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::support::{PASS, Packet, check_sums, packets, run};
use crate::udp_netns::{Namespace, is_privileged};

const PORT: u16 = 8080;
const CLIENT: u16 = 50_000;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;
/// A segment size of 1400.
const SEGMENT: [u8; 4] = [2, 4, 5, 120];

fn syn(source: &str) -> Packet {
    Packet {
        ports: (CLIENT, PORT),
        numbers: (1000, 0),
        options: SEGMENT.to_vec(),
        ..Packet::tcp(source, PORT, SYN)
    }
}

/// Checks a SYN-ACK from the first byte to the last; its sequence number, which is the cookie.
fn cookie(answer: &[u8], asked: &Packet) -> u32 {
    assert_eq!(answer[..12], [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
    assert_eq!(answer[12..12 + 4 * asked.tags], [0x81, 0, 0, 7].repeat(asked.tags));
    let ip = &answer[14 + 4 * asked.tags..];
    let tcp = match (asked.destination, asked.source) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            assert_eq!((ip[0], &ip[12..16], &ip[16..20]), (0x45, &from.octets()[..], &to.octets()[..]));
            assert_eq!(u16::from_be_bytes([ip[2], ip[3]]), 44);
            &ip[20..]
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            assert_eq!(
                (ip[0], ip[6], &ip[8..24], &ip[24..40]),
                (0x60, 6, &from.octets()[..], &to.octets()[..])
            );
            assert_eq!(u16::from_be_bytes([ip[4], ip[5]]), 24);
            &ip[40..]
        }
        _ => unreachable!("one family"),
    };
    assert_eq!((tcp.len(), tcp[12], tcp[13]), (24, 6 << 4, SYN | ACK));
    assert_eq!((&tcp[..2], &tcp[2..4]), (&PORT.to_be_bytes()[..], &CLIENT.to_be_bytes()[..]));
    assert_eq!(tcp[8..12], asked.numbers.0.wrapping_add(1).to_be_bytes());
    assert_eq!(tcp[20..22], [2, 4]);
    let segment = u16::from_be_bytes([tcp[22], tcp[23]]);
    assert!((536..=1400).contains(&segment), "{segment}");
    check_sums(answer);
    u32::from_be_bytes(tcp[4..8].try_into().unwrap())
}

/// A namespace whose listeners make cookies as `cookies` says, with work to be done in it beside a listener.
fn beside_a_listener(cookies: u8, check_acks: bool, work: impl FnOnce(&Guard) + Send) {
    if !is_privileged() {
        return;
    }
    let space = Namespace::new();
    space.exec(&format!("sysctl -qw net.ipv4.tcp_syncookies={cookies}"));
    space.run(|| {
        let _listener = TcpListener::bind(("::", PORT)).unwrap();
        let syn = GuardSyn { ports: vec![PORT, 9090], check_acks };
        let guard = Guard::load(GuardOptions { syn, ..GuardOptions::default() }, None).unwrap();
        work(&guard);
    });
}

#[test]
fn a_syn_is_answered_and_its_cookie_taken() {
    beside_a_listener(2, true, |guard| {
        for source in ["198.51.100.1", "2001:db8::7"] {
            for tags in 0..3 {
                for (name, options) in [
                    ("a segment size", SEGMENT.to_vec()),
                    ("none", vec![]),
                    (
                        "as Linux sends",
                        [&SEGMENT[..], &[4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7]].concat(),
                    ),
                    ("the most there can be", [1; 40].to_vec()),
                    ("one longer than its header", vec![2, 40, 0, 0]),
                ] {
                    let asked = Packet { options, tags, ..syn(source) };
                    let (reason, answer) = run(guard, &asked.frame());
                    assert_eq!(reason, GuardReason::AnswerSyn, "{name} from {source}, {tags} tags");
                    let cookie = cookie(&answer, &asked);
                    let ack = Packet {
                        flags: ACK,
                        numbers: (asked.numbers.0 + 1, cookie.wrapping_add(1)),
                        options: vec![],
                        ..asked
                    };
                    assert_eq!(run(guard, &ack.frame()).0, GuardReason::PassDefault, "{name}");
                }
            }
        }
    });
}

#[test]
fn what_is_no_syn_for_a_listener_is_the_stacks() {
    beside_a_listener(2, false, |guard| {
        let mut options = syn("198.51.100.1").frame();
        options[14] = 0x46;
        options.splice(34..34, [1, 1, 1, 1]);
        options[17] += 4;
        for (name, frame, expected) in [
            (
                "no listener",
                Packet { ports: (CLIENT, 9090), ..syn("198.51.100.1") }.frame(),
                GuardReason::PassDefault,
            ),
            (
                "another port",
                Packet { ports: (CLIENT, 80), ..syn("198.51.100.1") }.frame(),
                GuardReason::PassDefault,
            ),
            (
                "SYN, ACK",
                Packet { flags: SYN | ACK, ..syn("198.51.100.1") }.frame(),
                GuardReason::PassDefault,
            ),
            ("RST", Packet { flags: RST, ..syn("198.51.100.1") }.frame(), GuardReason::PassDefault),
            ("ACK", Packet { flags: ACK, ..syn("198.51.100.1") }.frame(), GuardReason::PassDefault),
            (
                "SYN, RST",
                Packet { flags: SYN | RST, ..syn("198.51.100.1") }.frame(),
                GuardReason::DropTcpFlags,
            ),
            ("IP options", options, GuardReason::PassDefault),
        ] {
            assert_eq!(run(guard, &frame).0, expected, "{name}");
        }
        let mut cut = syn("198.51.100.1").frame();
        cut[46] = 15 << 4;
        assert_eq!(run(guard, &cut).0, GuardReason::DropMalformed);
    });
}

#[test]
fn acks_of_nothing_are_dropped_beyond_what_the_stack_may_refuse() {
    beside_a_listener(2, true, |guard| {
        let stray = |number: u32| {
            let numbers = (number, number.wrapping_mul(2_654_435_761));
            Packet { flags: ACK, numbers, ..syn("198.51.100.1") }.frame()
        };
        // All at once: of those the stack may refuse 100, and one more each millisecond.
        let verdicts: Vec<_> =
            (0..20_000).map(|number| guard.prog_test_run(&stray(number), 1).unwrap().verdict).collect();
        let passed = verdicts.iter().filter(|verdict| **verdict == PASS).count();
        assert!((100..verdicts.len()).contains(&passed), "{passed}");
        assert_eq!(packets(guard, GuardReason::DropTcpAck) as usize, verdicts.len() - passed);
        // A cookie is good all the same, and who has none of a listener is refused by the stack.
        let asked = syn("198.51.100.2");
        let (_, answer) = run(guard, &asked.frame());
        let numbers = (asked.numbers.0 + 1, cookie(&answer, &asked).wrapping_add(1));
        let ack = Packet { flags: ACK, numbers, options: vec![], ..asked };
        assert_eq!(run(guard, &ack.frame()).0, GuardReason::PassDefault);
        let elsewhere = Packet { ports: (CLIENT, 9090), flags: ACK, ..syn("198.51.100.1") };
        assert_eq!(run(guard, &elsewhere.frame()).0, GuardReason::PassDefault);
    });
}

#[test]
fn without_a_flood_the_stack_answers_unless_it_always_makes_cookies() {
    for cookies in [0, 1] {
        beside_a_listener(cookies, false, |guard| {
            assert_eq!(run(guard, &syn("198.51.100.1").frame()).0, GuardReason::PassDefault);
        });
    }
}

/// An answer comes from a host, not from a group.
#[test]
fn a_syn_in_a_frame_to_a_group_is_not_answered() {
    beside_a_listener(2, false, |guard| {
        for source in ["198.51.100.1", "2001:db8::7"] {
            for group in [[0xff; 6], [1, 0, 0x5e, 0, 0, 1]] {
                let mut frame = syn(source).frame();
                frame[..6].copy_from_slice(&group);
                assert_eq!(run(guard, &frame).0, GuardReason::DropSyn, "{source}");
            }
        }
    });
}

/// Whatever is changed in a SYN, or cut off: a verdict, and an answer that is whole and nobody else's.
#[test]
fn random_syns_are_judged() {
    beside_a_listener(2, true, |guard| {
        let mut runner =
            TestRunner::new(Config { cases: 3000, failure_persistence: None, ..Config::default() });
        let changes = proptest::collection::vec((0usize..100, any::<u8>()), 0..4);
        let options = proptest::collection::vec(any::<[u8; 4]>(), 0..=10).prop_map(|words| words.concat());
        let cases = (
            any::<bool>(),
            any::<u32>(),
            options,
            0usize..3,
            prop_oneof![Just(SYN), Just(ACK), any::<u8>()],
            changes,
            20usize..140,
        );
        let answered = Cell::new(0);
        runner
            .run(&cases, |(ipv6, number, options, tags, flags, changes, length)| {
                let source = if ipv6 { "2001:db8::7" } else { "198.51.100.1" };
                let asked = Packet { numbers: (number, 7), options, tags, flags, ..syn(source) };
                let mut frame = asked.frame();
                let whole = changes.is_empty() && length >= frame.len();
                for (at, byte) in changes {
                    if let Some(place) = frame.get_mut(at) {
                        *place = byte;
                    }
                }
                frame.truncate(length);
                let (reason, answer) = run(guard, &frame);
                if whole && flags == SYN {
                    prop_assert_eq!(reason, GuardReason::AnswerSyn);
                }
                if reason == GuardReason::AnswerSyn {
                    check_sums(&answer);
                    prop_assert_eq!(&answer[..6], &frame[6..12]);
                    prop_assert_eq!(&answer[6..12], &frame[..6]);
                    answered.set(answered.get() + 1);
                }
                Ok(())
            })
            .unwrap();
        assert!(answered.get() > 100, "{answered:?}");
    });
}
