//! Streams that begin with a message and do not go on.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::world::World;

/// What a message of so many octets begins with, and the first of them.
fn part(kind: u8, length: u16, octets: usize) -> Vec<u8> {
    [&[kind], &(length | 0x4000).to_be_bytes()[..], &vec![b'x'; octets]].concat()
}

/// Opens so many streams, which each begin in that way; the last of them.
fn begin(world: &mut World, peer: usize, count: usize, is_request: bool, octets: &[u8]) -> u64 {
    let mut last = 0;
    for _ in 0..count {
        last = world.peers[peer].open(is_request);
        world.peers[peer].send(last, octets.to_vec(), false);
    }
    last
}

#[test]
fn messages_that_are_incomplete_are_counted_and_have_their_time() {
    let mut world = World::usual();
    let publisher = world.publisher();
    let (reader, id) = world.subscriber(publisher);
    let rude = world.enter();
    let limit = world.peers[rude].quic.peer_streams_left_bidi();
    world.until("it is there", |world| world.room.gauges.sessions.load(Relaxed) == 3);
    world.until("nothing is held", |world| world.memory.total() == 0);
    let slow = begin(&mut world, rude, 50, true, &part(2, 1000, 300));
    begin(&mut world, rude, 50, false, &part(0, 1000, 300));
    // A subscription whose change is not whole.
    let stream = world.peers[rude].subscribe(7, "video", 100);
    world.peers[rude].send(stream, vec![0x40], false);
    world.until("all count", |world| world.memory.total() >= 101 * 1024 + 100 * 300);
    assert!(world.memory.total() < 101 * 2048);
    // One goes on, an octet now and then: it gains nothing by that.
    for round in 0..18 {
        world.peers[rude].send(slow, vec![b'x'], false);
        world.for_a_while(Duration::from_millis(500));
        assert_eq!(world.room.counters.ended_incomplete.load(Relaxed), 0, "{round}");
        world.peers[publisher].group(id, round, b"object");
    }
    world.until("their time is over", |world| world.room.counters.ended_incomplete.load(Relaxed) == 101);
    world.until("nothing is held", |world| world.memory.total() == 0);
    world.until("their places are free", |world| world.peers[rude].quic.peer_streams_left_bidi() > limit / 4);
    assert!(world.peers[rude].quic.peer_error().is_none(), "the session goes on");
    world.until("nobody else noticed", |world| world.peers[reader].groups().len() == 18);
}

#[test]
fn too_many_incomplete_messages_end_the_session() {
    let mut world = World::usual();
    let rude = world.enter();
    world.until("it is there", |world| world.room.gauges.sessions.load(Relaxed) == 1);
    begin(&mut world, rude, 16, true, &part(2, 4096, 4000));
    world.for_a_while(Duration::from_millis(50));
    assert!(world.peers[rude].quic.peer_error().is_none(), "a few are what packets that are lost leave");
    begin(&mut world, rude, 16, true, &part(2, 4096, 4000));
    world.until("the end", |world| {
        world.peers[rude].quic.peer_error().is_some_and(|error| error.error_code == 3)
    });
    world.until("nothing is held", |world| world.memory.total() == 0);
    assert_eq!(world.room.counters.sessions_failed.load(Relaxed), 1);
}

#[test]
fn before_setup_what_comes_stays_where_it_is_counted() {
    const STREAMS: usize = 40;
    let mut world = World::usual();
    let peer = world.connect(b"moq-lite-05");
    let asked = part(2, 4096, 8192 - 3);
    let last = begin(&mut world, peer, STREAMS, true, &asked);
    // The type takes several octets, of which the first comes alone.
    let long = world.peers[peer].open(true);
    world.peers[peer].send(long, vec![0x80], false);
    world.until("all of it", |world| world.memory.total() >= STREAMS * (8192 - 1));
    world.peers[peer].send(long, vec![0, 0, 2, 0], false);
    world.for_a_while(Duration::from_millis(50));
    assert!(world.memory.total() >= STREAMS * (8192 - 1));
    assert_eq!(world.peers[peer].quic.stream_capacity(last), Ok(0), "no window is opened further");
    // Then it is read: it is nothing that a peer may say.
    world.peers[peer].setup();
    world.until("the end", |world| {
        world.peers[peer].quic.peer_error().is_some_and(|error| error.error_code == 3)
    });
    world.until("nothing is held", |world| world.memory.total() == 0);
}

#[test]
fn what_was_begun_before_setup_is_read_behind_it() {
    let mut world = World::usual();
    let publisher = world.publisher();
    let (_, id) = world.subscriber(publisher);
    world.peers[publisher].group(id, 0, b"object");
    let peer = world.connect(b"moq-lite-05");
    // SETUP comes on the stream that is opened first, and last of all.
    let setup = world.peers[peer].open(false);
    let stream = world.peers[peer].subscribe(0, "video", 100);
    world.for_a_while(Duration::from_millis(20));
    world.peers[peer].send(setup, b"\x01".to_vec(), false);
    world.for_a_while(Duration::from_millis(20));
    world.peers[peer].send(setup, b"\x0a\x01\x02\x07/studio".to_vec(), true);
    world.until("an answer", |world| !world.peers[peer].answers(stream).is_empty());
}
