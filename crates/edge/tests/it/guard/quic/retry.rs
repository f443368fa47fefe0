//! Retry packets in the place of servers, and the tokens that clients come back with.

use std::net::{IpAddr, SocketAddr};
use std::time::{SystemTime, UNIX_EPOCH};

use boring::symm::{Cipher, encrypt_aead};
use expressway_wire::parse_udp;
use expressway_wire::siphash::SipKey;
use expressway_xbpf::{Guard, GuardOptions, GuardQuic, GuardRate, GuardReason, GuardRetry};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::packets::{CLIENT, CLIENTS, SERVER, frame, initial, long, server, tagged};
use super::{issued, key, quic, with};
use crate::support::{PASS, TX, check_sums, load, packets, reason, run, with_rules};

pub(super) fn always(keys: &[u8]) -> GuardOptions {
    with(GuardQuic { retry: Some(GuardRetry::Always), ..quic(keys) })
}

/// A Retry packet, taken apart.
#[derive(Debug)]
struct Retry {
    destination: Vec<u8>,
    source: Vec<u8>,
    token: Vec<u8>,
}

/// The tag as RFC 9001, section 5.8 has it, by a library's AES-128-GCM.
fn tag(original: &[u8], packet: &[u8]) -> [u8; 16] {
    let key = 0xbe0c_690b_9f66_575a_1d76_6b54_e368_c84e_u128.to_be_bytes();
    let nonce = &0x4615_99d3_5d63_2bf2_2398_25bb_u128.to_be_bytes()[4..];
    let pseudo = [&[original.len() as u8], original, packet].concat();
    let mut tag = [0; 16];
    encrypt_aead(Cipher::aes_128_gcm(), &key, Some(nonce), &pseudo, &[], &mut tag).unwrap();
    tag
}

/// Checks an answer from the first byte to the last.
fn parse(answer: &[u8], client: &str, original: &[u8]) -> Retry {
    let client: SocketAddr = client.parse().unwrap();
    check_sums(answer);
    let layout = parse_udp(answer).unwrap();
    assert_eq!((layout.source, layout.destination), (server(client), client));
    assert_eq!((layout.source_mac, layout.destination_mac), (SERVER, CLIENT));
    assert_eq!((layout.ttl, layout.tos, layout.dont_fragment), (64, 0, true));
    assert_eq!(layout.payload().end, answer.len(), "nothing behind");
    let packet = &answer[layout.payload()];
    let (body, end) = packet.split_at(packet.len() - 16);
    assert_eq!(end, tag(original, body));
    assert_eq!(body[..5], [0xf0, 0, 0, 0, 1]);
    let (length, rest) = (usize::from(body[5]), &body[6..]);
    let (destination, rest) = rest.split_at(length);
    let (source, token) = rest[1..].split_at(usize::from(rest[0]));
    Retry { destination: destination.to_vec(), source: source.to_vec(), token: token.to_vec() }
}

fn challenged(guard: &Guard, client: &str, original: &[u8], source: &[u8]) -> Retry {
    let (reason, answer) = run(guard, &frame(client, &initial(original, source, &[])));
    assert_eq!(reason, GuardReason::AnswerRetry);
    let retry = parse(&answer, client, original);
    assert_eq!(retry.destination, source);
    retry
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// A token as a server makes it, `age` seconds ago.
pub(super) fn token(fill: u8, client: &str, original: &[u8], retry: &[u8], age: i64) -> Vec<u8> {
    let client: SocketAddr = client.parse().unwrap();
    let address = match client.ip() {
        IpAddr::V4(four) => four.to_ipv6_mapped(),
        IpAddr::V6(six) => six,
    };
    let time = (now().wrapping_add_signed(-age) as u32).to_be_bytes();
    let mut token = [&[0xe2, original.len() as u8][..], &time, original].concat();
    token.resize(26, 0);
    let mut text = [&token[..], &client.port().to_be_bytes(), retry].concat();
    text.resize(48, 0);
    text.extend(address.octets());
    let mac = SipKey::new(key(fill)[16..].try_into().unwrap()).hash(&text);
    token.extend(mac.to_le_bytes());
    token
}

#[test]
fn an_initial_without_a_token_is_answered_and_with_it_passes() {
    let Some(guard) = load(always(&[1])) else { return };
    let mut seen = std::collections::HashSet::new();
    for client in CLIENTS {
        for original in 8..=20usize {
            for source in 0..=20usize {
                let (original, source) = (vec![0xa0 | original as u8; original], vec![0xb7; source]);
                let retry = challenged(&guard, client, &original, &source);
                assert_eq!((retry.source.len(), retry.source[0] >> 5, retry.token.len()), (8, 7, 34));
                assert!(seen.insert(retry.source.clone()), "an ID twice");
                let again = frame(client, &initial(&retry.source, &source, &retry.token));
                assert_eq!(reason(&guard, &again), GuardReason::PassDefault);
            }
        }
    }
    assert_eq!(guard.quic_counts().unwrap().tokens, seen.len() as u64);
}

#[test]
fn tags_of_vlans_stay_and_padding_goes() {
    let Some(guard) = load(always(&[1])) else { return };
    for tags in 0..3 {
        for client in CLIENTS {
            let mut asked = tagged(frame(client, &initial(&[5; 8], &[6; 8], &[])), tags);
            asked.extend([0; 40]);
            let (reason, mut answer) = run(&guard, &asked);
            assert_eq!(reason, GuardReason::AnswerRetry);
            let front: Vec<u8> = answer.drain(12..12 + 4 * tags).collect();
            assert_eq!(front, [0x81, 0, 0, 7].repeat(tags));
            parse(&answer, client, &[5; 8]);
        }
    }
}

/// The headers in the linear part, or not even those; what is behind in fragments, which the answer does not need.
#[test]
fn frames_of_several_buffers_are_answered() {
    let Some(guard) = load(always(&[1])) else { return };
    for client in CLIENTS {
        let asked = frame(client, &initial(&[5; 20], &[6; 20], &[]));
        for linear in [200, 70, 64, 50, 20] {
            match guard.prog_test_run_split(&asked, linear) {
                Ok(run) => {
                    assert_eq!(run.verdict, TX, "{linear} bytes");
                    parse(&run.frame, client, &[5; 20]);
                }
                Err(error) => return eprintln!("skipped: needs Linux 6.18: {error}"),
            }
        }
    }
}

#[test]
fn the_token_is_that_of_servers() {
    let Some(guard) = load(always(&[1, 2])) else { return };
    for client in CLIENTS {
        let retry = challenged(&guard, client, &[5; 11], &[6; 8]);
        let ours = |age| token(1, client, &[5; 11], &retry.source, age);
        assert!((0..3).any(|age| ours(age) == retry.token), "made within the last seconds");
        // Those of a server, with an ID of its length, by the key in use and the one before.
        for fill in [1, 2] {
            let again = initial(&[8; 16], &[6; 8], &token(fill, client, &[5; 20], &[8; 16], 0));
            assert_eq!(reason(&guard, &frame(client, &again)), GuardReason::PassDefault);
        }
    }
}

#[test]
fn a_token_is_good_for_its_client_and_for_seconds() {
    let Some(guard) = load(always(&[1])) else { return };
    let with_token =
        |client: &str, id: &[u8], token: &[u8]| reason(&guard, &frame(client, &initial(id, &[6; 8], token)));
    let client = CLIENTS[0];
    let good = token(1, client, &[5; 8], &[8; 8], 0);
    let passes = |reason| reason == GuardReason::PassDefault;
    assert!(passes(with_token(client, &[8; 8], &good)));
    for (name, client, id) in [
        ("another address", "198.51.100.2:50000", &[8; 8][..]),
        ("another port", "198.51.100.1:50001", &[8; 8]),
        ("the other family", CLIENTS[1], &[8; 8]),
        ("another attempt", client, &[9; 8]),
        ("no ID", client, &[]),
    ] {
        assert_eq!(with_token(client, id, &good), GuardReason::DropQuicToken, "{name}");
    }
    for (age, expected) in [(7, true), (13, false), (60, false), (-3, true), (-8, false)] {
        let token = token(1, client, &[5; 8], &[8; 8], age);
        assert_eq!(passes(with_token(client, &[8; 8], &token)), expected, "{age} seconds");
    }
    assert_eq!(
        with_token(client, &[8; 8], &token(3, client, &[5; 8], &[8; 8], 0)),
        GuardReason::DropQuicToken,
        "another key"
    );
    // The first byte says that it is a token of this form; without it there is none.
    for bit in 8..good.len() * 8 {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(with_token(client, &[8; 8], &bad), GuardReason::DropQuicToken, "bit {bit}");
    }
}

#[test]
fn tokens_of_other_forms_are_as_none() {
    let Some(guard) = load(always(&[1])) else { return };
    let client = CLIENTS[0];
    for length in (0..=100usize).chain([1000]).filter(|length| *length != 34) {
        let frame = frame(client, &initial(&[8; 8], &[6; 8], &vec![0xe2; length]));
        let (reason, answer) = run(&guard, &frame);
        assert_eq!(reason, GuardReason::AnswerRetry, "{length} bytes");
        parse(&answer, client, &[8; 8]);
    }
    // Of a server alone, and of a server that nobody here knows.
    for first in [0xe1, 0] {
        let frame = frame(client, &initial(&[8; 8], &[6; 8], &[first; 34]));
        assert_eq!(reason(&guard, &frame), GuardReason::AnswerRetry);
    }
    // Lengths in more bytes than they need.
    let good = token(1, client, &[5; 8], &[8; 8], 0);
    for (prefix, expected) in [
        (&[34][..], GuardReason::PassDefault),
        (&[0x40, 34], GuardReason::PassDefault),
        (&[0x80, 0, 0, 34], GuardReason::AnswerRetry),
        (&[0xc0, 0, 0, 0, 0, 0, 0, 34], GuardReason::AnswerRetry),
        (&[0xff, 0xff], GuardReason::AnswerRetry),
        (&[0x7f, 0xff], GuardReason::AnswerRetry),
        (&[0x40, 0], GuardReason::AnswerRetry),
    ] {
        let rest = [prefix, &good].concat();
        let frame = frame(client, &long(0xc0, 1, (&[8; 8], &[6; 8]), &rest, 1200));
        assert_eq!(reason(&guard, &frame), expected, "{prefix:?}");
    }
}

#[test]
fn what_cannot_be_answered_is_dropped() {
    use GuardReason::{DropQuicChallenge, DropQuicInitial, DropQuicVersion, PassDefault};
    let Some(guard) = load(always(&[1])) else { return };
    let client = CLIENTS[0];
    for length in 0..8usize {
        let frame = frame(client, &initial(&vec![8; length], &[6; 8], &[]));
        assert_eq!(reason(&guard, &frame), DropQuicChallenge, "an ID of {length} bytes");
    }
    // IP options and an extension header, behind which the answer would have to be put together anew.
    let mut options = frame(client, &initial(&[8; 8], &[6; 8], &[]));
    options[14] = 0x46;
    options.splice(34..34, [1, 1, 1, 1]);
    let length = (options.len() - 14) as u16;
    options[16..18].copy_from_slice(&length.to_be_bytes());
    assert_eq!(reason(&guard, &options), DropQuicChallenge);
    let mut extended = frame(CLIENTS[1], &initial(&[8; 8], &[6; 8], &[]));
    extended.splice(54..54, [17, 0, 1, 4, 0, 0, 0, 0]);
    extended[20] = 60;
    let length = (extended.len() - 54) as u16;
    extended[18..20].copy_from_slice(&length.to_be_bytes());
    assert_eq!(reason(&guard, &extended), DropQuicChallenge);
    for (name, payload, expected) in [
        ("too short", long(0xc0, 1, (&[8; 8], &[6; 8]), &[0], 1199), DropQuicInitial),
        ("a source ID of 21 bytes", long(0xc0, 1, (&[8; 8], &[6; 21]), &[0], 1200), DropQuicVersion),
        ("0-RTT", long(0xd0, 1, (&[8; 8], &[6; 8]), &[], 1200), PassDefault),
        ("version 2", long(0xd0, 0x6b33_43cf, (&[8; 8], &[6; 8]), &[0], 1200), PassDefault),
        ("a connection's", initial(&issued(1, 9), &[6; 8], &[]), PassDefault),
        ("a connection's, with a token", initial(&issued(1, 9), &[6; 8], &[0xe2; 34]), PassDefault),
    ] {
        assert_eq!(reason(&guard, &frame(client, &payload)), expected, "{name}");
    }
}

#[test]
fn a_rate_passes_before_anybody_is_asked() {
    let rate = GuardRetry::Above(GuardRate { rate: 1, burst: 3 });
    let Some(guard) = load(with(GuardQuic { retry: Some(rate), ..quic(&[1]) })) else { return };
    let first = |host: u8| {
        reason(&guard, &frame(&format!("198.51.100.{host}:50000"), &initial(&[8; 8], &[6; 8], &[])))
    };
    let reasons: Vec<_> = (1..=20).map(first).collect();
    assert_eq!(reasons[..3], [GuardReason::PassDefault; 3]);
    // One more a second passes, and this takes less than a few.
    assert!(reasons[3..].iter().filter(|reason| **reason == GuardReason::AnswerRetry).count() > 10);
    let good = token(1, CLIENTS[0], &[5; 8], &[8; 8], 0);
    assert_eq!(
        reason(&guard, &frame(CLIENTS[0], &initial(&[8; 8], &[6; 8], &good))),
        GuardReason::PassDefault
    );
}

#[test]
fn forged_sources_leave_nothing_behind() {
    let limit = with_rules("[[rule]]\nname = \"a\"\nlimit = \"1/s\"\nper = \"source\"\n");
    let Some(guard) = load(GuardOptions { classifier: limit.classifier, ..always(&[1]) }) else { return };
    for host in 0..200u8 {
        let client = format!("10.1.2.{host}:50000");
        assert_eq!(
            reason(&guard, &frame(&client, &initial(&[8; 8], &[6; 8], &[]))),
            GuardReason::AnswerRetry
        );
        assert_eq!(
            reason(&guard, &frame(&client, &initial(&[8; 8], &[6; 8], &[0xe2; 34]))),
            GuardReason::DropQuicToken
        );
    }
    assert_eq!((guard.expire().0, guard.overflows().unwrap()[0]), (0, 0));
}

#[test]
fn a_dry_run_answers_nothing() {
    let Some(guard) = load(GuardOptions { dry_run: true, ..always(&[1]) }) else { return };
    let asked = frame(CLIENTS[0], &initial(&[8; 8], &[6; 8], &[]));
    let run = guard.prog_test_run(&asked, 1).unwrap();
    assert_eq!((run.verdict, run.frame == asked), (PASS, true));
    assert_eq!(packets(&guard, GuardReason::AnswerRetry), 1);
}

/// Whatever is changed in a first packet, or cut off: a verdict, and an answer that is whole.
#[test]
fn random_initials_are_judged() {
    let Some(guard) = load(always(&[1, 2])) else { return };
    let mut runner = TestRunner::new(Config { cases: 3000, failure_persistence: None, ..Config::default() });
    let changes = proptest::collection::vec((0usize..110, any::<u8>()), 0..5);
    let cases = (0usize..2, 0usize..22, 0usize..22, 0usize..40, changes, 60usize..1300);
    runner
        .run(&cases, |(client, original, source, token, changes, length)| {
            let payload = initial(&vec![8; original], &vec![6; source], &vec![0xe2; token]);
            let mut frame = frame(CLIENTS[client], &payload);
            for (at, byte) in changes {
                frame[at] = byte;
            }
            frame.truncate(length);
            let (reason, answer) = run(&guard, &frame);
            if reason == GuardReason::AnswerRetry {
                check_sums(&answer);
            }
            Ok(())
        })
        .unwrap();
}
