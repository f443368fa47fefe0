//! HTTP/3 against a client that writes its streams byte by byte. What it may not do is in `errors`.

use std::time::Duration;

use expressway_netio::sim::Link;

use crate::support::streams::{
    CONTROL, GET, SECOND, SETTINGS, SLOW, THIRD, connected, get, join, read, write,
};
use crate::support::world::{Build, World};

#[test]
fn a_section_beyond_the_limit_is_refused_before_it_comes_and_the_connection_lives() {
    let (mut world, id) = connected(|settings| settings.max_header_size = 1024);
    // 2049 bytes are announced.
    write(&mut world, id, &[(CONTROL, SETTINGS, false), (0, &[1, 0x48, 0x01, 0, 0], false)]);
    assert_eq!(read(&mut world, id, 0), Err(0x107));
    assert_eq!(world.stats(0).refused_header_size, 1);
    write(&mut world, id, &[(4, GET, true)]);
    assert!(
        read(&mut world, id, 4).is_ok_and(|bytes| bytes.ends_with(&[0, 10, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9]))
    );
    assert_eq!(world.stats(0).connections_protocol_error, 0);
}

#[test]
fn streams_and_frames_that_mean_nothing_are_passed_over() {
    let (mut world, id) = connected(|_| {});
    let control = [SETTINGS, &[0x21, 2, 7, 7], &[0xd, 1, 9], &[7, 1, 0]].concat();
    write(
        &mut world,
        id,
        &[(CONTROL, &control, false), (SECOND, &[2, 0x20], false), (THIRD, &[3, 0x44], false)],
    );
    // A reserved stream that stays open is stopped; one without so much as a type, and one that ends, are not.
    write(&mut world, id, &[(14, &[0x21, 1, 2, 3], false), (18, &[], true), (22, &[0x40], true)]);
    let request = [&[0x21, 3, 1, 2, 3], GET, &[0x40, 0x5f, 1, 9], &[0, 0]].concat();
    write(&mut world, id, &[(0, &request, true)]);
    assert!(read(&mut world, id, 0).is_ok_and(|bytes| bytes.ends_with(&[7, 8, 9])));
    world.until("STOP_SENDING", |world| {
        matches!(
            world.clients[id].quic.stream_send(14, &[4], false),
            Err(quiche::Error::StreamStopped(0x103))
        )
    });
    assert!(world.clients[id].quic.peer_error().is_none());
}

#[test]
fn a_request_in_single_bytes_is_answered_by_one_frame_of_each_kind() {
    let (mut world, id) = connected(|_| {});
    let whole = [&[0x21, 1, 0], GET].concat();
    for (at, byte) in whole.iter().enumerate() {
        write(&mut world, id, &[(0, &[*byte], at + 1 == whole.len())]);
        if at % 3 == 0 {
            world.for_a_while(Duration::from_millis(3));
        }
    }
    let answer = read(&mut world, id, 0).unwrap();
    // HEADERS with a two-byte length, then DATA of ten bytes that end the stream.
    let head = usize::from(u16::from_be_bytes([answer[1], answer[2]]) & 0x3fff);
    assert_eq!((answer[0], answer[3..6].to_vec()), (1, vec![0, 0, 0xd9]), ":status 200 is static entry 25");
    assert_eq!(answer[3 + head..], [0, 10, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(world.stats(0).responses_complete, 1);
}

#[test]
fn a_body_and_trailers_are_read_beside_the_answer() {
    let (mut world, id) = connected(|_| {});
    let whole = [SLOW, &[0, 2, b'a', b'b'], &[0, 0, 0, 1, b'c'], b"\x01\x06\x00\x00\x21x\x01y"].concat();
    write(&mut world, id, &[(0, &whole, true)]);
    let answer = read(&mut world, id, 0).unwrap();
    assert!(answer.len() > 400_000);
    // Trailers may have no pseudo-header fields.
    write(&mut world, id, &[(4, &[SLOW, b"\x01\x03\x00\x00\xd1"].concat(), true)]);
    assert_eq!(read(&mut world, id, 4), Err(0x10e), "H3_MESSAGE_ERROR");
    let stats = world.stats(0);
    assert_eq!((stats.responses_complete, stats.refused_malformed), (1, 1));
}

#[test]
fn trailers_are_bounded_as_headers_are() {
    let (mut world, id) = connected(|settings| settings.max_header_size = 8 << 10);
    let trailers = |fields: usize| {
        let section = [&[0, 0][..], &b"\x21x\x00".repeat(fields)].concat();
        let length = u16::try_from(section.len()).unwrap() | 1 << 14;
        [SLOW, &[1], &length.to_be_bytes(), &section].concat()
    };
    write(&mut world, id, &[(0, &trailers(128), true)]);
    assert!(read(&mut world, id, 0).is_ok());
    write(&mut world, id, &[(4, &trailers(129), true)]);
    assert_eq!(read(&mut world, id, 4), Err(0x107), "H3_EXCESSIVE_LOAD");
    let stats = world.stats(0);
    assert_eq!((stats.responses_complete, stats.refused_header_size, stats.refused_malformed), (1, 1, 0));
    // The connection goes on.
    write(&mut world, id, &[(8, GET, true)]);
    assert!(read(&mut world, id, 8).is_ok());
}

#[test]
fn a_client_that_opens_the_door_late_gets_settings_and_goaway_in_order() {
    let (mut world, id) = connected(|_| {});
    write(&mut world, id, &[(CONTROL, SETTINGS, false), (0, GET, true)]);
    assert!(read(&mut world, id, 0).is_ok());
    let mut control = vec![0; 200];
    let (length, _) = world.clients[id].quic.stream_recv(3, &mut control).unwrap();
    assert_eq!(control[..2], [0, 4], "a control stream with SETTINGS");
    assert!(control[2..length].windows(2).any(|pair| pair == [1, 0]), "no dynamic table");
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    assert!(world.peers[0].try_send(expressway_gateway::quic::Message::Drain { deadline }).is_ok());
    world.until("GOAWAY", |world| world.clients[id].quic.stream_readable(3));
    let (length, _) = world.clients[id].quic.stream_recv(3, &mut control).unwrap();
    assert_eq!(control[..length], [7, 0x40, 1, 4], "requests from stream 4 on are refused");
}

#[test]
fn a_goaway_that_finds_no_room_goes_when_there_is_some() {
    let (mut world, idle) = connected(|_| {});
    let full = join(&mut world, "198.51.100.2:5000", 50_000);
    let mut control = [0; 200];
    for id in [idle, full] {
        write(&mut world, id, &[(CONTROL, SETTINGS, false)]);
        world.until("SETTINGS", |world| world.clients[id].quic.stream_readable(3));
        while world.clients[id].quic.stream_recv(3, &mut control).is_ok() {}
    }
    // The answer takes all that the client has room for, which reads none of it.
    write(&mut world, full, &[(0, &get("/bytes/400000"), true)]);
    world.until("DATA_BLOCKED", |world| world.clients[full].quic.stats().data_blocked_recv_count > 0);
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    assert!(world.peers[0].try_send(expressway_gateway::quic::Message::Drain { deadline }).is_ok());
    world.until("the other's GOAWAY", |world| world.clients[idle].quic.stream_readable(3));
    world.for_a_while(Duration::from_millis(8));
    assert!(!world.clients[full].quic.stream_readable(3), "there is no room for it");
    assert!(read(&mut world, full, 0).is_ok_and(|bytes| bytes.len() > 400_000));
    world.until("GOAWAY", |world| world.clients[full].quic.stream_readable(3));
    let (length, _) = world.clients[full].quic.stream_recv(3, &mut control).unwrap();
    assert_eq!(control[..length], [7, 0x40, 1, 4]);
}

/// Asks for two large answers after `control`; which stream ends first.
fn first_to_end(control: &[u8]) -> u64 {
    let (mut world, id) = connected(|_| {});
    write(&mut world, id, &[(CONTROL, control, false)]);
    // The control stream is read before the requests come.
    world.until("SETTINGS", |world| world.clients[id].quic.stream_readable(3));
    world.for_a_while(Duration::from_millis(8));
    let request = get("/bytes/1000000");
    write(&mut world, id, &[(0, &request, true), (4, &request, true)]);
    let mut first = None;
    world.until("an answer", |world| {
        let mut buffer = [0; 4096];
        for stream in [0, 4] {
            while let Ok((_, last)) = world.clients[id].quic.stream_recv(stream, &mut buffer) {
                if last {
                    first = first.or(Some(stream));
                }
            }
        }
        first.is_some()
    });
    first.unwrap()
}

#[test]
fn the_priority_of_a_request_may_come_before_it() {
    assert_eq!(first_to_end(SETTINGS), 0, "the first of the same urgency");
    let update =
        |value: &[u8]| [SETTINGS, &[0x80, 0x0f, 0x07, 0x00, 1 + value.len() as u8, 4], value].concat();
    assert_eq!(first_to_end(&update(b"u=1")), 4, "the more urgent");
    assert_eq!(first_to_end(&update(b"u=5")), 0, "the less urgent");
    // What was said last of a stream counts.
    let twice = [&update(b"u=5")[..], &update(b"u=0")[SETTINGS.len()..]].concat();
    assert_eq!(first_to_end(&twice), 4, "the more urgent in the end");
}

#[test]
fn header_sections_in_parts_are_bounded_for_the_connection() {
    let (mut world, id) = connected(|settings| settings.max_header_size = 1024);
    write(&mut world, id, &[(CONTROL, SETTINGS, false)]);
    // Sections of 2000 bytes of which 1500 come: the 22nd is beyond 16 times the limit of 2048.
    let part = [&[1, 0x47, 0xd0, 0, 0][..], &[0; 1498]].concat();
    for stream in (0..30 * 4).step_by(4) {
        if world.clients[id].quic.stream_send(stream, &part, false).is_err() {
            break;
        }
        world.for_a_while(Duration::from_millis(4));
    }
    world.until("the end", |world| world.clients[id].quic.peer_error().is_some());
    assert_eq!(world.clients[id].quic.peer_error().unwrap().error_code, 0x107, "H3_EXCESSIVE_LOAD");
}

/// How many more streams a client may open, of both directions and of one.
fn credit(world: &World, id: usize) -> (u64, u64) {
    let quic = &world.clients[id].quic;
    (quic.peer_streams_left_bidi(), quic.peer_streams_left_uni())
}

/// The client is told to send no more on it, and its answer to that comes after all that there was to acknowledge.
#[test]
fn requests_that_end_after_their_answer_was_acknowledged_give_their_stream_back() {
    let (mut world, id) = connected(|settings| settings.max_requests = 4);
    write(&mut world, id, &[(CONTROL, SETTINGS, false)]);
    let (client, server) = ("198.51.100.1".parse().unwrap(), world.server().ip());
    let link = Build::default().link;
    for number in 0..12 {
        world.until("room for a request", |world| credit(world, id).0 > 0);
        write(&mut world, id, &[(number * 4, GET, false)]);
        world.until("an answer", |world| world.stats(0).responses_complete == number + 1);
        // What the client says to it is lost: that it has it, and that it ends its side. The first is said again when the
        // server asks, and the second when that was acknowledged.
        world.network.set_link(client, server, Link { loss: 1.0, ..link.clone() });
        assert!(read(&mut world, id, number * 4).is_ok());
        world.for_a_while(Duration::from_millis(8));
        world.network.set_link(client, server, link.clone());
        world.for_a_while(Duration::from_millis(80));
    }
    world.until("streams to go on with", |world| credit(world, id).0 >= 2);
}

#[test]
fn streams_that_mean_nothing_give_their_credit_back() {
    let (mut world, id) = connected(|_| {});
    write(&mut world, id, &[(CONTROL, SETTINGS, false)]);
    for number in 1..40 {
        let stream = CONTROL + 4 * number;
        world.until("room for a stream", |world| credit(world, id).1 > 0);
        match number % 3 {
            // It is stopped and reset; it ends; it is reset before its type is known.
            0 => write(&mut world, id, &[(stream, &[0x21, 1, 2], false)]),
            1 => write(&mut world, id, &[(stream, &[0x40, 0x21, 1], true)]),
            _ => {
                write(&mut world, id, &[(stream, &[0x40], false)]);
                world.clients[id].quic.stream_shutdown(stream, quiche::Shutdown::Write, 1).unwrap();
            }
        }
        world.for_a_while(Duration::from_millis(2));
    }
    world.until("streams to go on with", |world| credit(world, id).1 >= 4);
    assert!(world.clients[id].quic.peer_error().is_none());
}

/// What the client stops is told by the engine when there is room to send, and that may be after all has been acknowledged.
#[test]
fn answers_that_are_stopped_when_they_are_over_give_their_stream_back() {
    let (mut world, id) = connected(|settings| settings.max_requests = 8);
    write(&mut world, id, &[(CONTROL, SETTINGS, false), (0, &get("/bytes/900000000"), true)]);
    let mut buffer = vec![0; 64 << 10];
    // The client reads the large one, which takes all the room that there is.
    let mut step = |world: &mut World, time| {
        world.for_a_while(Duration::from_millis(time));
        while world.clients[id].quic.stream_recv(0, &mut buffer).is_ok() {}
    };
    (0..20).for_each(|_| step(&mut world, 5));
    for number in 1..80 {
        let mut patience = 0;
        while credit(&world, id).0 == 0 {
            patience += 1;
            assert!(patience < 200, "request {number}: no stream came back");
            step(&mut world, 2);
        }
        write(&mut world, id, &[(number * 4, GET, true)]);
        step(&mut world, 3);
        let _ = world.clients[id].quic.stream_shutdown(number * 4, quiche::Shutdown::Read, 0x10c);
        step(&mut world, 2);
    }
}
