//! Tests: packets of a publisher on their way to players, and the end of sessions.

use super::*;
use crate::rtp::header::{Header, packet};

#[test]
fn packets_go_through_and_a_key_frame_is_asked_for() {
    let (mut bed, mut publisher, mut player) = connected("", [None, None]);
    publish(&mut bed, &mut publisher, &mut player, 65_530..65_560);
    let payloads: Vec<u8> = player.packets.iter().map(|(_, payload)| *payload).collect();
    assert_eq!(payloads, (65_530..65_560).map(|number: u64| number as u8).collect::<Vec<_>>());
    assert!(player.packets.windows(2).all(|pair| pair[0].0 + 1 == pair[1].0), "{:?}", player.packets);
    assert_eq!(publisher.keyframes, 1);
    assert_eq!(bed.counters(0).packets, 30);
}

#[test]
fn another_publisher_goes_on_where_the_first_was() {
    let (mut bed, mut first, mut player) = connected("", [None, None]);
    publish(&mut bed, &mut first, &mut player, 100..110);
    let mut second = Peer::publisher(5002, bed.now);
    assert_eq!(bed.join(0, Role::Publish, &mut second), Err(Refused::Conflict));
    bed.run(&mut [&mut player], 0, Duration::from_secs(6));
    let mut second = Peer::publisher(5003, bed.now);
    bed.join(0, Role::Publish, &mut second).unwrap();
    bed.run(&mut [&mut second, &mut player], 0, Duration::from_secs(1));
    publish(&mut bed, &mut second, &mut player, 7000..7010);
    assert_eq!(player.packets.len(), 20);
    assert!(player.packets.windows(2).all(|pair| pair[0].0 + 1 == pair[1].0), "{:?}", player.packets);
    assert_eq!(bed.counters(0).ended_replaced, 1);
}

#[test]
fn a_session_that_never_comes_expires() {
    let mut bed = Bed::new(1, "");
    let mut player = Peer::player(5000, bed.now);
    bed.join(0, Role::Play, &mut player).unwrap();
    assert_eq!(bed.table.len(), 1);
    bed.run(&mut [], 0, Duration::from_secs(11));
    assert_eq!((bed.table.len(), bed.counters(0).ended_handshake), (0, 1));
    assert_eq!(bed.workers[0].next_deadline(), None, "no timer is left");
}

#[test]
fn who_is_not_heard_from_is_gone() {
    let (mut bed, mut publisher, mut player) = connected("", [None, None]);
    bed.run(&mut [&mut publisher], 0, Duration::from_secs(40));
    assert_eq!(bed.counters(0).ended_lost, 1);
    assert_eq!(bed.table.len(), 1);
    // It comes back with datagrams of a session that is no more.
    bed.run(&mut [&mut publisher, &mut player], 0, Duration::from_secs(3));
    assert!(
        bed.demux(0).dropped_fragment > 0 && bed.demux(0).dropped_stranger == 0
            || bed.demux(0).dropped_fragment > 0
    );
}

#[test]
fn what_finds_no_room_is_skipped_or_dropped_and_counted() {
    let (mut bed, mut publisher, mut player) = connected("", [None, None]);
    publish(&mut bed, &mut publisher, &mut player, 1..5);
    bed.workers[0].io_mut().room = 0;
    publish(&mut bed, &mut publisher, &mut player, 5..205);
    bed.run(&mut [&mut publisher, &mut player], 0, Duration::from_secs(9));
    bed.workers[0].io_mut().room = usize::MAX;
    publish(&mut bed, &mut publisher, &mut player, 205..210);
    let counters = bed.counters(0);
    assert!(counters.skipped > 0, "{counters:?}");
    let last = player.packets.last().unwrap().1;
    assert_eq!(last, 209, "it goes on with what is new");
    bed.workers[0].io_mut().longest = 60;
    publish(&mut bed, &mut publisher, &mut player, 210..212);
    assert!(bed.counters(0).dropped_too_long >= 2);
}

#[test]
fn datagrams_beyond_what_may_wait_for_a_session_are_dropped() {
    let (mut bed, _, mut player) = connected("", [None, None]);
    // Its next request of ICE, again and again, each of which is answered.
    while player.out.iter().all(|datagram| datagram[0] != 0) {
        bed.now += Duration::from_millis(100);
        player.turn(bed.now);
    }
    let request = player.out.iter().find(|datagram| datagram[0] == 0).unwrap().clone();
    bed.workers[0].io_mut().room = 0;
    bed.workers[0].io_mut().arriving = vec![(request, player.address, media()); 600];
    for _ in 0..20 {
        bed.workers[0].turn(bed.now).unwrap();
    }
    let waiting = bed.counters(0).dropped_waiting;
    assert!((88..=100).contains(&waiting), "{waiting}: 512 of 600 may wait");
}

#[test]
fn what_cannot_be_read_is_counted() {
    let (mut bed, mut publisher, mut player) = connected("", [None, None]);
    bed.workers[0].io_mut().arriving.push((vec![0x80], player.address, media()));
    bed.run(&mut [&mut publisher, &mut player], 0, Duration::from_millis(5));
    assert_eq!(bed.counters(0).dropped_malformed, 1);
}

#[test]
fn what_a_session_cannot_play_is_counted() {
    let mut bed = Bed::new(1, "rtp_in = \"192.0.2.1:5004\"");
    let mut player = Peer::player(5001, bed.now);
    bed.join(0, Role::Play, &mut player).unwrap();
    bed.run(&mut [&mut player], 0, Duration::from_secs(2));
    // RTP of two codecs, of which it plays the first.
    for (number, kind) in [(1, 96), (1, 97), (2, 96)] {
        let header = Header { payload_type: kind, sequence: number, timestamp: 0, ssrc: kind.into() };
        let (from, to) = ("192.0.2.8:5000".parse().unwrap(), "192.0.2.1:5004".parse().unwrap());
        bed.workers[0].io_mut().arriving.push((packet(header, b"x"), from, to));
    }
    bed.run(&mut [&mut player], 0, Duration::from_millis(100));
    assert_eq!(player.packets.iter().map(|(_, payload)| *payload).collect::<Vec<_>>(), b"xx");
    assert_eq!(bed.counters(0).dropped_codec, 1);
}

#[test]
fn a_report_that_is_due_does_not_keep_the_worker_busy() {
    let mut bed = Bed::new(1, "rtp_in = \"192.0.2.1:5004\"");
    let (from, to) = ("192.0.2.8:5000".parse().unwrap(), "192.0.2.1:5004".parse().unwrap());
    for number in 1..200 {
        let header = Header { payload_type: 96, sequence: number, timestamp: 0, ssrc: 9 };
        bed.workers[0].io_mut().arriving.push((packet(header, b"x"), from, to));
        bed.now += Duration::from_millis(50);
        let turn = bed.workers[0].turn(bed.now).unwrap();
        assert!(!turn.has_more(), "packet {number}: a slice of 100 pieces was used up");
    }
    let reports =
        bed.workers[0].io_mut().sent.iter().filter(|(flow, _)| flow.remote.ip() == from.ip()).count();
    assert!(reports > 3, "{reports} reports to the publisher");
}
