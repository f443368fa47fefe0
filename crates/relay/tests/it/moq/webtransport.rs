//! Sessions over WebTransport, whose clients set limits of their own or say things in another order than most.

use expressway_h3::webtransport::{Limits, SETTINGS, to_http3, write_head};
use expressway_h3::{frame, qpack, varint};
use expressway_relay::moq::wire::{Wishes, stream_code, write};

use super::world::World;

/// The stream of the request for the session.
const SESSION: u64 = 0;
/// SETUP of MoQ, without parameters.
const SETUP: &[u8] = b"\x01\x01\x00";
/// Bytes of the heads of streams.
const HEAD: usize = 3;

/// A control stream whose settings have these limits.
fn control(limits: Limits) -> Vec<u8> {
    let mut out = vec![0];
    frame::write(frame::SETTINGS, &mut out, |out| {
        let values = [limits.unidirectional, limits.bidirectional, limits.data];
        for ((id, _), value) in
            SETTINGS[7..10].iter().zip(values).chain([(&(0x33, 1), 1), (&(0x2c7c_f000, 1), 1)])
        {
            varint::write(*id, out);
            varint::write(value, out);
        }
    });
    out
}

/// A request for a session in the room.
fn connect() -> Vec<u8> {
    let mut out = Vec::new();
    frame::write(frame::HEADERS, &mut out, |out| {
        let mut encoder = qpack::Encoder::new(out);
        for (name, value) in [
            (":method", "CONNECT"),
            (":protocol", "webtransport-h3"),
            (":scheme", "https"),
            (":authority", "relay.example"),
            (":path", "/studio"),
        ] {
            encoder.field(name.as_bytes(), value.as_bytes());
        }
    });
    out
}

/// A frame with a capsule of one number.
fn capsule(kind: u64, value: u64) -> Vec<u8> {
    let (mut payload, mut out) = (Vec::new(), Vec::new());
    varint::write(value, &mut payload);
    frame::write(frame::DATA, &mut out, |out| {
        frame::write_header(kind, payload.len() as u64, out);
        out.extend_from_slice(&payload);
    });
    out
}

/// What is said on a stream of the session.
fn behind_head(is_bidirectional: bool, octets: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    write_head(SESSION, is_bidirectional, &mut out);
    out.extend_from_slice(octets);
    out
}

/// A peer that has entered the room over WebTransport and subscribed to the track `video` of `cam`; its index.
fn subscriber(world: &mut World, limits: Limits) -> usize {
    let index = world.connect(b"h3");
    let peer = &mut world.peers[index];
    let (own, session) = (peer.open(false), peer.open(true));
    assert_eq!(session, SESSION);
    peer.send(own, control(limits), false);
    peer.send(session, connect(), false);
    let setup = peer.open(false);
    peer.send(setup, behind_head(false, SETUP), true);
    let wishes = Wishes { priority: 1, max_age: 30_000, start: None, end: None };
    let asked = peer.open(true);
    peer.send(asked, behind_head(true, &write::subscribe(0, "cam", "video", wishes)), false);
    index
}

/// Bytes of the session's streams that the relay has opened, without their heads, and of those that the peer has; groups that have come whole.
fn came(world: &World, index: usize) -> (usize, Vec<u64>) {
    let peer = &world.peers[index];
    let (mut bytes, mut groups) = (0, Vec::new());
    for (stream, octets) in peer.streams().filter(|(stream, _)| *stream != SESSION && *stream != 3) {
        let head = if stream & 1 != 0 { HEAD } else { 0 };
        assert!(head == 0 || octets[..HEAD] == behind_head(stream & 2 == 0, b"")[..], "{stream}");
        bytes += octets.len() - head;
        // A group's type, length, subscription and number.
        if stream & 3 == 3 && octets[HEAD] == 0 && peer.ended.contains(&stream) {
            groups.push(u64::from(octets[HEAD + 3]));
        }
    }
    (bytes, groups)
}

#[test]
fn a_session_keeps_to_the_limits_of_its_client() {
    let mut world = World::usual();
    let publisher = world.publisher();
    world.until("the broadcast", |world| world.room.find("cam").is_some());
    // One stream is for SETUP, two for groups.
    let limits = Limits { data: 6000, bidirectional: 3, unidirectional: 3 };
    let index = subscriber(&mut world, limits);
    world.until("a subscription", |world| world.peers[publisher].asked().is_some());
    let id = world.peers[publisher].asked().unwrap();
    world.peers[publisher].group(id, 0, &[0; 4000]);
    world.until("the first group", |world| came(world, index).1 == [0]);
    for number in 1..5 {
        world.peers[publisher].group(id, number, &[number as u8; 4000]);
    }
    world.until("as much as may come", |world| came(world, index).0 == 6000);
    world.for_a_while(std::time::Duration::from_millis(50));
    assert_eq!(came(&world, index), (6000, vec![0]));
    world.peers[index].send(SESSION, capsule(0x190b_4d3d, 1 << 20), false);
    world.until("the second group", |world| came(world, index).1 == [0, 1]);
    // Longer than it takes until streams are looked at that may have been stopped, which one that waits to begin is not.
    world.for_a_while(std::time::Duration::from_millis(2500));
    assert_eq!(came(&world, index).1, [0, 1], "there may be no stream for the third");
    // Less than before says nothing.
    world.peers[index].send(SESSION, capsule(0x190b_4d3d, 1), false);
    world.peers[index].send(SESSION, capsule(0x190b_4d40, 100), false);
    world.until("all groups", |world| came(world, index).1 == [0, 1, 2, 3, 4]);
    assert!(world.peers[index].resets.is_empty());
}

#[test]
fn streams_and_a_request_that_come_before_settings_wait_for_them() {
    come_before_settings(World::usual());
}

#[test]
fn however_short_turns_are_a_session_begins() {
    (1..=6).for_each(|pieces| come_before_settings(World::in_pieces(pieces)));
}

fn come_before_settings(mut world: World) {
    let publisher = world.publisher();
    world.until("the broadcast", |world| world.room.find("cam").is_some());
    let index = world.connect(b"h3");
    let peer = &mut world.peers[index];
    let (own, session, setup, asked) = (peer.open(false), peer.open(true), peer.open(false), peer.open(true));
    let wishes = Wishes { priority: 1, max_age: 30_000, start: None, end: None };
    // Heads that are cut, and integers that are longer than they need be.
    peer.send(asked, vec![0x80, 0, 0, 0x41, 0x40], false);
    peer.send(setup, vec![0x40], false);
    world.for_a_while(std::time::Duration::from_millis(20));
    let peer = &mut world.peers[index];
    peer.send(asked, vec![0], false);
    peer.send(asked, write::subscribe(0, "cam", "video", wishes), false);
    peer.send(setup, vec![0x54, 0], false);
    peer.send(setup, SETUP.to_vec(), true);
    peer.send(session, connect(), false);
    world.for_a_while(std::time::Duration::from_millis(20));
    assert!(world.peers[index].came(SESSION).is_empty(), "it is not known what the client speaks");
    world.peers[index].send(own, control(Limits::default()), false);
    world.until("a subscription", |world| world.peers[publisher].asked().is_some());
    let id = world.peers[publisher].asked().unwrap();
    world.peers[publisher].group(id, 0, &[9; 4000]);
    world.until("the group", |world| came(world, index).1 == [0]);
    // What is refused has a code of the session's.
    let peer = &mut world.peers[index];
    let asked = peer.open(true);
    peer.send(asked, behind_head(true, &write::subscribe(1, "none", "video", wishes)), false);
    world.until("a refusal", |world| world.peers[index].resets.contains_key(&asked));
    assert_eq!(world.peers[index].resets[&asked], to_http3(stream_code::NOT_FOUND as u32));
}
