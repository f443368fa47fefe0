//! HTTP/3 against a client that writes its streams byte by byte: what it may not do, and how it is told.

mod support;

use support::client::{Client, Options};
use support::world::{Build, World};

/// A client's first streams of one direction.
const CONTROL: u64 = 2;
const SECOND: u64 = 6;
const THIRD: u64 = 10;

/// The stream type of a control stream, and empty SETTINGS.
const SETTINGS: &[u8] = &[0, 4, 0];

/// HEADERS with a GET of /bytes/10 at a host named "a": `:method`, `:scheme`, `:authority`, `:path`.
const GET: &[u8] = b"\x01\x12\x00\x00\xd1\xd7\x50\x01a\x51\x09/bytes/10";

/// The same for /slow/400000, whose answer is not over before all that comes with the request was read.
const SLOW: &[u8] = b"\x01\x15\x00\x00\xd1\xd7\x50\x01a\x51\x0c/slow/400000";

/// HEADERS with a GET of `path` at the same host.
fn get(path: &str) -> Vec<u8> {
    let length = path.len() as u8;
    [&[1, 9 + length], &GET[2..9], &[0x51, length], path.as_bytes()].concat()
}

/// What a client writes: stream, bytes, and whether it ends the stream.
type Write<'a> = (u64, &'a [u8], bool);

fn connected(tune: fn(&mut expressway_gateway::quic::Settings)) -> (World, usize) {
    let mut world = Build { tune, ..Build::default() }.world();
    let id = join(&mut world, "198.51.100.1:5000", Options::default().max_data);
    (world, id)
}

/// A client from `local` that takes `max_data` bytes before it has read some.
fn join(world: &mut World, local: &str, max_data: u64) -> usize {
    let options = Options { http: false, max_data, ..Options::default() };
    let client = Client::new(&world.network, local, world.server(), options);
    let id = world.add(client);
    world.until("a connection", |world| world.clients[id].quic.is_established());
    id
}

fn write(world: &mut World, id: usize, writes: &[Write<'_>]) {
    for (stream, bytes, last) in writes {
        let sent = world.clients[id].quic.stream_send(*stream, bytes, *last).unwrap();
        assert_eq!(sent, bytes.len());
    }
}

/// All that comes on `stream` until it ends, or the code that it is reset with.
fn read(world: &mut World, id: usize, stream: u64) -> Result<Vec<u8>, u64> {
    let (mut all, mut end) = (Vec::new(), None);
    world.until("the end of a stream", |world| {
        let mut buffer = [0; 4096];
        loop {
            match world.clients[id].quic.stream_recv(stream, &mut buffer) {
                Ok((length, last)) => {
                    all.extend_from_slice(&buffer[..length]);
                    if last {
                        end = Some(Ok(()));
                    }
                }
                Err(quiche::Error::StreamReset(code)) => end = Some(Err(code)),
                Err(_) => return end.is_some(),
            }
        }
    });
    end.unwrap().map(|()| all)
}

#[track_caller]
fn closes_with(code: u64, what: &str, writes: &[Write<'_>]) {
    let (mut world, id) = connected(|_| {});
    // One by one, so that streams arrive in the order in which they are written.
    for one in writes {
        if world.clients[id].quic.peer_error().is_none() {
            write(&mut world, id, &[*one]);
            world.for_a_while(std::time::Duration::from_millis(8));
        }
    }
    world.until(what, |world| world.clients[id].quic.peer_error().is_some());
    let error = world.clients[id].quic.peer_error().unwrap();
    assert_eq!((error.is_app, error.error_code), (true, code), "{what}: {error:?}");
    assert!(!error.reason.is_empty(), "{what}");
    assert_eq!(world.stats(0).connections_protocol_error, 1, "{what}");
}

/// After SETTINGS on the control stream.
#[track_caller]
fn control_closes_with(code: u64, what: &str, frames: &[u8]) {
    closes_with(code, what, &[(CONTROL, &[SETTINGS, frames].concat(), false)]);
}

#[test]
fn the_control_stream_begins_with_settings_and_has_them_once() {
    closes_with(0x10a, "H3_MISSING_SETTINGS", &[(CONTROL, &[0, 7, 1, 0], false)]);
    control_closes_with(0x105, "a second SETTINGS", &[4, 0]);
    closes_with(0x109, "a setting of HTTP/2", &[(CONTROL, &[0, 4, 2, 2, 0], false)]);
    closes_with(0x109, "a repeated setting", &[(CONTROL, &[0, 4, 4, 6, 1, 6, 1], false)]);
    closes_with(0x106, "half a setting", &[(CONTROL, &[0, 4, 1, 6], false)]);
}

#[test]
fn control_frames_are_held_to_their_rules() {
    control_closes_with(0x105, "DATA", &[0, 0]);
    control_closes_with(0x105, "HEADERS", &[1, 0]);
    control_closes_with(0x105, "PING of HTTP/2", &[6, 0]);
    control_closes_with(0x108, "MAX_PUSH_ID going down", &[0xd, 1, 5, 0xd, 1, 4]);
    control_closes_with(0x108, "GOAWAY going up", &[7, 1, 0, 7, 1, 4]);
    control_closes_with(0x108, "CANCEL_PUSH", &[3, 1, 0]);
    control_closes_with(0x106, "GOAWAY without an ID", &[7, 0]);
    control_closes_with(0x108, "PRIORITY_UPDATE of a push", &[0x80, 0x0f, 0x07, 0x01, 1, 0]);
    control_closes_with(0x108, "PRIORITY_UPDATE of a server stream", &[0x80, 0x0f, 0x07, 0x00, 1, 1]);
    control_closes_with(0x108, "PRIORITY_UPDATE far ahead", &[0x80, 0x0f, 0x07, 0x00, 2, 0x44, 0x00]);
    control_closes_with(0x107, "a long PRIORITY_UPDATE", &[0x80, 0x0f, 0x07, 0x00, 0x44, 0x00]);
}

#[test]
fn critical_streams_are_opened_once_and_never_closed() {
    let control = (CONTROL, SETTINGS, false);
    closes_with(0x103, "a second control stream", &[control, (SECOND, SETTINGS, false)]);
    closes_with(0x103, "two encoder streams", &[control, (SECOND, &[2], false), (THIRD, &[2], false)]);
    closes_with(0x103, "two decoder streams", &[control, (SECOND, &[3], false), (THIRD, &[3], false)]);
    closes_with(0x103, "a push stream", &[control, (SECOND, &[1, 0], false)]);
    closes_with(0x104, "the control stream ended", &[(CONTROL, SETTINGS, true)]);
    closes_with(0x104, "the encoder stream ended", &[control, (SECOND, &[2], true)]);
    closes_with(0x104, "the decoder stream ended", &[control, (SECOND, &[3], true)]);
}

#[test]
fn a_critical_stream_that_is_reset_or_stopped_ends_the_connection() {
    for shutdown in [(CONTROL, quiche::Shutdown::Write), (3, quiche::Shutdown::Read)] {
        let (mut world, id) = connected(|_| {});
        write(&mut world, id, &[(CONTROL, SETTINGS, false)]);
        world.until("SETTINGS", |world| world.clients[id].quic.stream_readable(3));
        world.for_a_while(std::time::Duration::from_millis(8));
        world.clients[id].quic.stream_shutdown(shutdown.0, shutdown.1, 0x10c).unwrap();
        world.until("the end", |world| world.clients[id].quic.peer_error().is_some());
        assert_eq!(world.clients[id].quic.peer_error().unwrap().error_code, 0x104, "stream {}", shutdown.0);
    }
}

#[test]
fn qpack_streams_carry_only_what_a_table_without_capacity_allows() {
    closes_with(0x201, "a capacity", &[(SECOND, &[2, 0x3f, 0xbd, 0x01], false)]);
    closes_with(0x201, "an insertion", &[(SECOND, &[2, 0xc0, 1, b'x'], false)]);
    closes_with(0x202, "an acknowledgment", &[(SECOND, &[3, 0x84], false)]);
    closes_with(0x202, "an increment", &[(SECOND, &[3, 0x01], false)]);
    closes_with(0x200, "a reference to the table", &[(0, &[1, 3, 2, 0, 0x80], true)]);
    closes_with(0x200, "a section that is cut", &[(0, &[1, 3, 0, 0, 0x51], true)]);
    closes_with(0x200, "trailers that are cut", &[(0, &[SLOW, &[1, 3, 0, 0, 0x51]].concat(), true)]);
}

#[test]
fn request_streams_carry_only_their_frames() {
    closes_with(0x105, "DATA first", &[(0, &[0, 1, b'x'], false)]);
    for kind in [2, 3, 4, 5, 6, 7, 8, 9, 0xd] {
        closes_with(0x105, "a frame that has no place", &[(0, &[kind, 0], false)]);
    }
    closes_with(0x106, "the end within a frame", &[(0, &GET[..10], true)]);
    closes_with(0x106, "the end within a frame header", &[(0, &[1], true)]);
}

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
            world.for_a_while(std::time::Duration::from_millis(3));
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
fn a_client_that_opens_the_door_late_gets_settings_and_goaway_in_order() {
    let (mut world, id) = connected(|_| {});
    write(&mut world, id, &[(CONTROL, SETTINGS, false), (0, GET, true)]);
    assert!(read(&mut world, id, 0).is_ok());
    let mut control = vec![0; 200];
    let (length, _) = world.clients[id].quic.stream_recv(3, &mut control).unwrap();
    assert_eq!(control[..2], [0, 4], "a control stream with SETTINGS");
    assert!(control[2..length].windows(2).any(|pair| pair == [1, 0]), "no dynamic table");
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
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
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    assert!(world.peers[0].try_send(expressway_gateway::quic::Message::Drain { deadline }).is_ok());
    world.until("the other's GOAWAY", |world| world.clients[idle].quic.stream_readable(3));
    world.for_a_while(std::time::Duration::from_millis(8));
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
    world.for_a_while(std::time::Duration::from_millis(8));
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
        world.for_a_while(std::time::Duration::from_millis(4));
    }
    world.until("the end", |world| world.clients[id].quic.peer_error().is_some());
    assert_eq!(world.clients[id].quic.peer_error().unwrap().error_code, 0x107, "H3_EXCESSIVE_LOAD");
}
