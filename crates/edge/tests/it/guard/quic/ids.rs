//! Connection IDs that servers issued, and others.

use expressway_xbpf::{GuardQuic, GuardReason, GuardUnknown};

use super::packets::{CLIENTS, frame, initial, long, short, tagged};
use super::{issued, quic, with};
use crate::support::{PASS, load, reason};

/// RFC 9369.
const VERSION_2: u32 = 0x6b33_43cf;

#[test]
fn packets_of_connections_need_an_id_that_a_server_issued() {
    use GuardReason::{DropQuicConnection, DropQuicInitial, DropQuicVersion, PassDefault};
    let Some(guard) = load(with(quic(&[1, 2]))) else { return };
    let (known, before, other) = (issued(1, 7), issued(2, 7), issued(3, 7));
    let mut changed = known;
    changed[9] ^= 1;
    let client = [9; 8];
    for (name, payload, expected) in [
        ("short header", short(&known, 40), PassDefault),
        ("the key before", short(&before, 40), PassDefault),
        ("another key", short(&other, 40), DropQuicConnection),
        ("a bit changed", short(&changed, 40), DropQuicConnection),
        ("an ID and nothing else", short(&known, 17), PassDefault),
        ("an ID cut", short(&known, 16), DropQuicConnection),
        ("five bytes", short(&known, 5), DropQuicConnection),
        ("one byte", short(&known, 1), DropQuicConnection),
        ("Handshake", long(0xe0, 1, (&known, &client), &[], 100), PassDefault),
        ("Handshake, the key before", long(0xe0, 1, (&before, &client), &[], 100), PassDefault),
        ("Handshake, made up", long(0xe0, 1, (&client, &client), &[], 1200), DropQuicConnection),
        ("Handshake, another key", long(0xe0, 1, (&other, &client), &[], 100), DropQuicConnection),
        ("Handshake, no ID", long(0xe0, 1, (&[], &client), &[], 100), DropQuicConnection),
        ("Retry", long(0xf0, 1, (&client, &known), &[], 100), DropQuicConnection),
        ("0-RTT has the client's", long(0xd0, 1, (&client, &client), &[], 100), PassDefault),
        ("Initial", initial(&client, &client, &[]), PassDefault),
        ("Initial, short", long(0xc0, 1, (&known, &client), &[0], 100), DropQuicInitial),
        ("version 2, Initial", long(0xd0, VERSION_2, (&client, &client), &[0], 1200), PassDefault),
        ("version 2, 0-RTT", long(0xe0, VERSION_2, (&client, &client), &[0], 100), PassDefault),
        ("version 2, Handshake", long(0xf0, VERSION_2, (&client, &client), &[], 100), DropQuicConnection),
        ("version 2, Retry", long(0xc0, VERSION_2, (&client, &client), &[], 100), DropQuicConnection),
        ("another version", long(0xe0, 0x1a2a_3a4a, (&client, &client), &[], 1200), PassDefault),
        ("an ID of 21 bytes", long(0xe0, 1, (&[1; 21], &client), &[], 100), DropQuicVersion),
    ] {
        for from in CLIENTS {
            for tags in 0..3 {
                let frame = tagged(frame(from, &payload), tags);
                assert_eq!(reason(&guard, &frame), expected, "{name} from {from}, {tags} tags");
            }
        }
    }
    for length in 0..=20usize {
        let id = vec![0xe7; length];
        let frame = frame(CLIENTS[0], &long(0xe0, 1, (&id, &[]), &[], 100));
        assert_eq!(reason(&guard, &frame), DropQuicConnection, "{length} bytes");
    }
}

#[test]
fn a_frame_that_ends_within_the_id_does_not_borrow_its_padding() {
    let Some(guard) = load(with(quic(&[1]))) else { return };
    // IP and UDP end within the ID, and the frame goes on with the rest of it.
    let whole = frame(CLIENTS[0], &short(&issued(1, 7), 17));
    let mut cut = frame(CLIENTS[0], &short(&issued(1, 7), 17)[..12]);
    cut.extend(&whole[cut.len()..]);
    assert_eq!(reason(&guard, &cut), GuardReason::DropQuicConnection);
    assert_eq!(reason(&guard, &whole), GuardReason::PassDefault);
}

#[test]
fn unknown_ids_may_be_counted_or_left_alone() {
    let unknown = frame(CLIENTS[0], &short(&[1; 16], 40));
    for (policy, counted) in [(GuardUnknown::Count, 1), (GuardUnknown::Pass, 0)] {
        let Some(guard) = load(with(GuardQuic { unknown: policy, ..quic(&[1]) })) else { return };
        assert_eq!(reason(&guard, &unknown), GuardReason::PassDefault);
        assert_eq!(reason(&guard, &frame(CLIENTS[0], &short(&issued(1, 3), 40))), GuardReason::PassDefault);
        assert_eq!(guard.quic_counts().unwrap().unknown_ids, counted);
    }
    // Without a key nothing is known.
    let Some(guard) = load(with(quic(&[]))) else { return };
    assert_eq!(reason(&guard, &unknown), GuardReason::PassDefault);
}

#[test]
fn about_one_made_up_id_in_65536_passes() {
    let Some(guard) = load(with(quic(&[1]))) else { return };
    let passed = (0..20_000u32)
        .filter(|number| {
            let mut id = [0x5a; 16];
            id[4..8].copy_from_slice(&number.wrapping_mul(2_654_435_761).to_be_bytes());
            guard.prog_test_run(&frame(CLIENTS[0], &short(&id, 40)), 1).unwrap().verdict == PASS
        })
        .count();
    // 0.3 are expected; six or more come once in 20 million.
    assert!(passed < 6, "{passed}");
}
