//! What a client may not do, and how it is told: the error cases of RFC 9114 (HTTP/3), RFC 9204 (QPACK) and RFC 9218
//! (priorities), each with its code.

const STREAM_CREATION_ERROR: u64 = 0x103;
const CLOSED_CRITICAL_STREAM: u64 = 0x104;
const FRAME_UNEXPECTED: u64 = 0x105;
const FRAME_ERROR: u64 = 0x106;
const EXCESSIVE_LOAD: u64 = 0x107;
const ID_ERROR: u64 = 0x108;
const SETTINGS_ERROR: u64 = 0x109;
const MISSING_SETTINGS: u64 = 0x10a;
const REQUEST_INCOMPLETE: u64 = 0x10d;
const MESSAGE_ERROR: u64 = 0x10e;
const DECOMPRESSION_FAILED: u64 = 0x200;
const ENCODER_STREAM_ERROR: u64 = 0x201;
const DECODER_STREAM_ERROR: u64 = 0x202;

const PRIORITY_UPDATE: u64 = 0xf0700;
const PRIORITY_UPDATE_PUSH: u64 = 0xf0701;

/// What a client does.
#[derive(Clone)]
enum Act {
    Write(u64, Vec<u8>, bool),
    Reset(u64),
    Stop(u64),
}

use Act::{Reset, Stop};

use crate::support::client::{Client, Options};
use crate::support::streams::{
    CONTROL, GET, SECOND, SETTINGS, SLOW, THIRD, connected, frame, headers, join, read, write,
};
use crate::support::world::{Build, World};

fn on(stream: u64, parts: &[&[u8]]) -> Act {
    Act::Write(stream, parts.concat(), false)
}

/// The same, and the stream ends.
fn last(stream: u64, parts: &[&[u8]]) -> Act {
    Act::Write(stream, parts.concat(), true)
}

/// These frames on the control stream, after SETTINGS.
fn control(frames: &[&[u8]]) -> Vec<Act> {
    vec![on(CONTROL, &[SETTINGS, &frames.concat()])]
}

/// A whole request stream.
fn request(parts: &[&[u8]]) -> Vec<Act> {
    vec![last(0, parts)]
}

/// Has a new client do that, one by one, so that streams arrive in the order in which they are written.
fn act(world: &mut World, acts: &[Act]) -> usize {
    let port = 5001 + world.clients.len();
    let id = join(world, &format!("198.51.100.1:{port}"), 64 << 20);
    for act in acts {
        if world.clients[id].quic.peer_error().is_some() {
            break;
        }
        match act {
            Act::Write(stream, bytes, last) => write(world, id, &[(*stream, bytes, *last)]),
            Reset(stream) => {
                world.clients[id].quic.stream_shutdown(*stream, quiche::Shutdown::Write, 1).unwrap()
            }
            Stop(stream) => {
                world.until("something to stop", |world| world.clients[id].quic.stream_readable(*stream));
                world.clients[id].quic.stream_shutdown(*stream, quiche::Shutdown::Read, 1).unwrap()
            }
        }
        world.for_a_while(std::time::Duration::from_millis(8));
    }
    id
}

/// Where it is said, what it is, what is done, and the code that the connection is closed with.
type Case = (&'static str, &'static str, Vec<Act>, u64);

#[track_caller]
fn check(cases: Vec<Case>) {
    let (mut world, _) = connected(|_| {});
    for (count, (section, what, acts, code)) in (1..).zip(cases) {
        let id = act(&mut world, &acts);
        let what = format!("{section}: {what}");
        world.until(&what, |world| world.clients[id].quic.peer_error().is_some());
        let error = world.clients[id].quic.peer_error().unwrap();
        assert_eq!((error.is_app, error.error_code), (true, code), "{what}: {error:?}");
        assert!(!error.reason.is_empty(), "{what}");
        assert_eq!(world.stats(0).connections_protocol_error, count, "{what}");
    }
}

#[test]
fn control_streams() {
    let first = |frames: &[&[u8]]| vec![on(CONTROL, &[&[0], &frames.concat()])];
    let begun = || on(CONTROL, &[SETTINGS]);
    check(vec![
        ("RFC 9114, 6.2.1", "GOAWAY before SETTINGS", first(&[&frame(7, &[0])]), MISSING_SETTINGS),
        ("RFC 9114, 6.2.1", "DATA before SETTINGS", first(&[&frame(0, &[0])]), MISSING_SETTINGS),
        (
            "RFC 9114, 6.2.1",
            "a reserved frame before SETTINGS",
            first(&[&frame(0x21, &[])]),
            MISSING_SETTINGS,
        ),
        (
            "RFC 9218, 7.1",
            "PRIORITY_UPDATE before SETTINGS",
            first(&[&frame(PRIORITY_UPDATE, &[0])]),
            MISSING_SETTINGS,
        ),
        (
            "RFC 9114, 6.2.1",
            "a second control stream",
            vec![begun(), on(SECOND, &[SETTINGS])],
            STREAM_CREATION_ERROR,
        ),
        ("RFC 9114, 6.2.1", "it ends", vec![last(CONTROL, &[SETTINGS])], CLOSED_CRITICAL_STREAM),
        ("RFC 9114, 6.2.1", "it ends before SETTINGS", vec![last(CONTROL, &[&[0]])], CLOSED_CRITICAL_STREAM),
        ("RFC 9114, 6.2.1", "it is reset", vec![begun(), Reset(CONTROL)], CLOSED_CRITICAL_STREAM),
        ("RFC 9114, 6.2.1", "ours is stopped", vec![begun(), Stop(3)], CLOSED_CRITICAL_STREAM),
        ("RFC 9114, 6.2.2", "a push stream", vec![begun(), on(SECOND, &[&[1, 0]])], STREAM_CREATION_ERROR),
        ("RFC 9114, 7.2.1", "DATA", control(&[&frame(0, &[])]), FRAME_UNEXPECTED),
        ("RFC 9114, 7.2.2", "HEADERS", control(&[&frame(1, &[])]), FRAME_UNEXPECTED),
        ("RFC 9114, 7.2.5", "PUSH_PROMISE", control(&[&frame(5, &[0])]), FRAME_UNEXPECTED),
        ("RFC 9114, 7.2.8", "PRIORITY of HTTP/2", control(&[&frame(2, &[])]), FRAME_UNEXPECTED),
        ("RFC 9114, 7.2.8", "PING of HTTP/2", control(&[&frame(6, &[])]), FRAME_UNEXPECTED),
        ("RFC 9114, 7.2.8", "WINDOW_UPDATE of HTTP/2", control(&[&frame(8, &[])]), FRAME_UNEXPECTED),
        ("RFC 9114, 7.2.8", "CONTINUATION of HTTP/2", control(&[&frame(9, &[])]), FRAME_UNEXPECTED),
    ]);
}

/// The engine lets go of a stream that is stopped when all that was sent on it is acknowledged.
#[test]
fn our_control_stream_is_stopped_in_the_packet_that_acknowledges_all_of_it() {
    let mut world = Build::default().world();
    let options = Options { http: false, stops: Some(3), ..Options::default() };
    let id = world.add(Client::new(&world.network, "198.51.100.1:5000", world.server(), options));
    world.until("the end", |world| world.clients[id].quic.peer_error().is_some());
    let error = world.clients[id].quic.peer_error().unwrap();
    assert_eq!((error.is_app, error.error_code), (true, CLOSED_CRITICAL_STREAM));
    assert_eq!(world.stats(0).connections_protocol_error, 1);
}

#[test]
fn control_frames() {
    let settings = |payload: &[u8]| vec![on(CONTROL, &[&[0], &frame(4, payload)])];
    let (go, up) = (frame(7, &[0]), frame(7, &[4]));
    let mut cases: Vec<Case> = vec![
        ("RFC 9114, 7.1", "GOAWAY without an ID", control(&[&frame(7, &[])]), FRAME_ERROR),
        ("RFC 9114, 7.1", "GOAWAY with more than an ID", control(&[&frame(7, &[0, 0])]), FRAME_ERROR),
        ("RFC 9114, 7.1", "MAX_PUSH_ID without an ID", control(&[&frame(0xd, &[])]), FRAME_ERROR),
        ("RFC 9114, 7.1", "MAX_PUSH_ID with half an ID", control(&[&frame(0xd, &[0x40])]), FRAME_ERROR),
        ("RFC 9114, 7.1", "CANCEL_PUSH without an ID", control(&[&frame(3, &[])]), FRAME_ERROR),
        ("RFC 9114, 7.1", "half a setting", settings(&[6]), FRAME_ERROR),
        ("RFC 9114, 7.1", "half a setting's value", settings(&[6, 0x40]), FRAME_ERROR),
        ("RFC 9114, 7.2.3", "CANCEL_PUSH of nothing promised", control(&[&frame(3, &[0])]), ID_ERROR),
        ("RFC 9114, 7.2.4", "a second SETTINGS", control(&[&frame(4, &[])]), FRAME_UNEXPECTED),
        ("RFC 9114, 7.2.4", "a repeated setting", settings(&[6, 1, 6, 1]), SETTINGS_ERROR),
        ("RFC 9204, 5", "a repeated setting of QPACK", settings(&[1, 0, 1, 0]), SETTINGS_ERROR),
        ("RFC 9220, 3", "a switch that is 2", settings(&[8, 2]), SETTINGS_ERROR),
        ("RFC 9297, 2.1.1", "a switch that is 2", settings(&[0x33, 2]), SETTINGS_ERROR),
        ("RFC 9114, 10.5", "a long SETTINGS", settings(&[0x21; 3000]), EXCESSIVE_LOAD),
        ("RFC 9114, 5.2", "GOAWAY going up", control(&[&go, &up]), ID_ERROR),
        (
            "RFC 9114, 7.2.7",
            "MAX_PUSH_ID going down",
            control(&[&frame(0xd, &[5]), &frame(0xd, &[4])]),
            ID_ERROR,
        ),
    ];
    for id in [0, 2, 3, 4, 5] {
        cases.push(("RFC 9114, 7.2.4.1", "a setting of HTTP/2", settings(&[id, 0]), SETTINGS_ERROR));
    }
    check(cases);
}

#[test]
fn priority_updates() {
    let update = |kind, payload: &[u8]| control(&[&frame(kind, payload)]);
    let beside = |kind| vec![on(CONTROL, &[SETTINGS]), last(0, &[GET, &frame(kind, &[0])])];
    check(vec![
        ("RFC 9218, 7.2", "of a server's stream", update(PRIORITY_UPDATE, &[1]), ID_ERROR),
        ("RFC 9218, 7.2", "of a stream of one direction", update(PRIORITY_UPDATE, &[2]), ID_ERROR),
        ("RFC 9218, 7.2", "of a server's of one direction", update(PRIORITY_UPDATE, &[3]), ID_ERROR),
        // The first stream beyond those that a client may open.
        ("RFC 9218, 7.1", "beyond the limit of streams", update(PRIORITY_UPDATE, &[0x42, 0x00]), ID_ERROR),
        ("RFC 9218, 7.1", "far beyond it", update(PRIORITY_UPDATE, &[0xff; 8]), ID_ERROR),
        ("RFC 9218, 7.2", "of a push", update(PRIORITY_UPDATE_PUSH, &[0]), ID_ERROR),
        ("RFC 9114, 7.1", "of nothing", update(PRIORITY_UPDATE, &[]), FRAME_ERROR),
        ("RFC 9114, 7.1", "of half an ID", update(PRIORITY_UPDATE, &[0x40]), FRAME_ERROR),
        ("RFC 9114, 10.5", "a long one", update(PRIORITY_UPDATE, &[0; 300]), EXCESSIVE_LOAD),
        ("RFC 9218, 7.1", "on a request stream", beside(PRIORITY_UPDATE), FRAME_UNEXPECTED),
        ("RFC 9218, 7.1", "of a push, on a request stream", beside(PRIORITY_UPDATE_PUSH), FRAME_UNEXPECTED),
    ]);
}

#[test]
fn request_streams() {
    let trailers = headers([&("x", "y")]);
    let body = frame(0, b"body");
    let mut cases: Vec<Case> = vec![
        ("RFC 9114, 4.1", "DATA first", request(&[&body]), FRAME_UNEXPECTED),
        ("RFC 9114, 4.1", "empty DATA first", request(&[&frame(0, b"")]), FRAME_UNEXPECTED),
        ("RFC 9114, 4.1", "DATA after trailers", request(&[SLOW, &trailers, &body]), FRAME_UNEXPECTED),
        ("RFC 9114, 4.1", "trailers twice", request(&[SLOW, &trailers, &trailers]), FRAME_UNEXPECTED),
        ("RFC 9114, 7.1", "the end within HEADERS", request(&[&GET[..10]]), FRAME_ERROR),
        ("RFC 9114, 7.1", "the end within DATA", request(&[SLOW, &body[..4]]), FRAME_ERROR),
        ("RFC 9114, 7.1", "the end within trailers", request(&[SLOW, &trailers[..4]]), FRAME_ERROR),
        ("RFC 9114, 7.1", "the end within a frame's header", request(&[&[1]]), FRAME_ERROR),
        ("RFC 9114, 7.1", "the end within a reserved frame", request(&[SLOW, &[0x21, 5]]), FRAME_ERROR),
    ];
    for kind in [2, 3, 4, 5, 6, 7, 8, 9, 0xd] {
        let other = frame(kind, &[]);
        cases.push(("RFC 9114, 7.2", "a frame of no request", request(&[&other]), FRAME_UNEXPECTED));
        cases.push(("RFC 9114, 7.2", "the same behind HEADERS", request(&[SLOW, &other]), FRAME_UNEXPECTED));
    }
    check(cases);
}

#[test]
fn field_sections() {
    let section = |section: &[u8]| request(&[&frame(1, section)]);
    let mut cases: Vec<Case> = [
        ("RFC 9204, 4.5.1.1", "a required insert count", &[2, 0, 0xd1][..]),
        ("RFC 9204, 4.5.1.1", "a required insert count and an entry", &[2, 0, 0x80]),
        ("RFC 9204, 4.5.1.2", "a negative base", &[0, 0x80, 0xd1]),
        ("RFC 9204, 4.5.1", "no prefix", &[]),
        ("RFC 9204, 4.5.1", "half a prefix", &[0]),
        ("RFC 9204, 4.5.2", "an entry of the dynamic table", &[0, 0, 0x80]),
        ("RFC 9204, 4.5.3", "an entry beyond the base", &[0, 0, 0x10]),
        ("RFC 9204, 4.5.4", "a name of the dynamic table", &[0, 0, 0x40, 1, b'x']),
        ("RFC 9204, 4.5.5", "a name beyond the base", &[0, 0, 0x00, 1, b'x']),
        ("RFC 9204, 3.1", "an entry beyond the static table", &[0, 0, 0xff, 36]),
        ("RFC 9204, 3.1", "a name beyond the static table", &[0, 0, 0x5f, 84, 1, b'x']),
        (
            "RFC 9204, 4.1.1",
            "an index of more than 62 bits",
            b"\0\0\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
        ),
        ("RFC 9204, 4.1.1", "an index without end", b"\0\0\xff\x80"),
        ("RFC 9204, 4.1.2", "a name that is cut", &[0, 0, 0x23, b'x']),
        ("RFC 9204, 4.1.2", "a value that is cut", &[0, 0, 0x51, 9, b'/']),
        (
            "RFC 9204, 4.1.2",
            "a length of more than 62 bits",
            b"\0\0\x51\x7f\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
        ),
        ("RFC 9204, 4.1.2", "no Huffman code", &[0, 0, 0x51, 0x81, 0xff]),
        ("RFC 9204, 4.1.2", "EOS in a Huffman code", &[0, 0, 0x51, 0x84, 0xff, 0xff, 0xff, 0xff]),
    ]
    .into_iter()
    .map(|(said, what, bytes)| (said, what, section(bytes), DECOMPRESSION_FAILED))
    .collect();
    let trailers = request(&[SLOW, &frame(1, &[0, 0, 0x80])]);
    cases.push((
        "RFC 9204, 4.5.2",
        "an entry of the dynamic table in trailers",
        trailers,
        DECOMPRESSION_FAILED,
    ));
    check(cases);
}

#[test]
fn qpack_streams() {
    let begun = || on(CONTROL, &[SETTINGS]);
    let on_stream = |kind: u8, bytes: &[u8]| vec![begun(), on(SECOND, &[&[kind], bytes])];
    let mut cases: Vec<Case> = Vec::new();
    for kind in [2, 3] {
        let both = vec![begun(), on(SECOND, &[&[kind]]), on(THIRD, &[&[kind]])];
        cases.push(("RFC 9204, 4.2", "a second one", both, STREAM_CREATION_ERROR));
        let ended = vec![begun(), last(SECOND, &[&[kind]])];
        cases.push(("RFC 9204, 4.2", "it ends", ended, CLOSED_CRITICAL_STREAM));
        let reset = vec![begun(), on(SECOND, &[&[kind]]), Reset(SECOND)];
        cases.push(("RFC 9204, 4.2", "it is reset", reset, CLOSED_CRITICAL_STREAM));
    }
    for (said, what, bytes) in [
        ("RFC 9204, 4.3.1", "a capacity beyond the limit", &[0x3f, 0xbd, 0x01][..]),
        ("RFC 9204, 4.3.1", "a capacity of 1", &[0x21]),
        ("RFC 9204, 4.3.2", "an insertion with a static name", &[0xc0, 1, b'x']),
        ("RFC 9204, 4.3.2", "an insertion with a name of the table", &[0x80, 1, b'x']),
        ("RFC 9204, 4.3.3", "an insertion", &[0x41, b'a', 1, b'x']),
        ("RFC 9204, 4.3.4", "a duplicate", &[0x00]),
    ] {
        cases.push((said, what, on_stream(2, bytes), ENCODER_STREAM_ERROR));
    }
    for (said, what, bytes) in [
        ("RFC 9204, 4.4.1", "an acknowledgment of a section without entries", &[0x84][..]),
        ("RFC 9204, 4.4.3", "an increment beyond what was inserted", &[0x01]),
        ("RFC 9204, 4.4.3", "an increment of 0", &[0x00]),
        (
            "RFC 9204, 4.1.1",
            "a stream ID without end",
            &[0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
        ),
    ] {
        cases.push((said, what, on_stream(3, bytes), DECODER_STREAM_ERROR));
    }
    check(cases);
}

#[test]
fn what_looks_wrong_and_is_right() {
    let control = |payload: &[&[u8]]| vec![on(CONTROL, &[SETTINGS, &payload.concat()])];
    let beside = |acts: Vec<Act>| [control(&[]), acts].concat();
    let (mut world, _) = connected(|_| {});
    for (what, acts) in [
        (
            "reserved settings, twice",
            vec![on(CONTROL, &[&[0], &frame(4, &[0x21, 1, 0x40, 0x40, 1, 0x40, 0x40, 2])])],
        ),
        ("a reserved frame, GOAWAY going down, MAX_PUSH_ID going up", {
            let frames =
                [frame(0x21, b"x"), frame(7, &[8]), frame(7, &[0]), frame(0xd, &[1]), frame(0xd, &[2])];
            control(&[&frames.concat()])
        }),
        ("priorities of streams to come", {
            let frames = [frame(PRIORITY_UPDATE, b"\x41\xfcu=1"), frame(PRIORITY_UPDATE, b"\x04,;=?")];
            control(&[&frames.concat()])
        }),
        (
            "a capacity of 0 and a cancellation",
            beside(vec![on(SECOND, &[&[2, 0x20]]), on(THIRD, &[&[3, 0x44]])]),
        ),
        ("a stream of a reserved type that ends", beside(vec![last(SECOND, &[&[0x21], b"anything"])])),
        ("one that is reset", beside(vec![on(SECOND, &[&[0x21], b"anything"]), Reset(SECOND)])),
        ("one that ends before its type", beside(vec![last(SECOND, &[&[0x40]]), last(THIRD, &[])])),
        ("one that is reset before its type", beside(vec![on(SECOND, &[&[0x40]]), Reset(SECOND)])),
        ("requests before SETTINGS", vec![]),
    ] {
        let id = act(&mut world, &acts);
        // Frames of reserved types may stand anywhere.
        let request =
            [&frame(0x21, b"x"), GET, &frame(0x40, b""), &frame(0, b"x"), &frame(0x5f, b"y")].concat();
        write(&mut world, id, &[(0, &request, true)]);
        assert!(read(&mut world, id, 0).is_ok_and(|answer| answer.ends_with(&[7, 8, 9])), "{what}");
        assert!(world.clients[id].quic.peer_error().is_none(), "{what}");
    }
    assert_eq!(world.stats(0).connections_protocol_error, 0);
}

/// What becomes of a request: a status, or a code.
type Answer = Result<u16, u64>;

type Fields = Vec<(&'static str, &'static str)>;

/// A GET whose answer is not over before all that comes with it was read.
const GOOD: [(&str, &str); 4] =
    [(":method", "GET"), (":scheme", "https"), (":authority", "a"), (":path", "/slow/100000")];

fn with(extra: &[(&'static str, &'static str)]) -> Fields {
    [&GOOD[..], extra].concat()
}

/// With other values of fields that it has, or without them.
fn but(others: &[(&'static str, Option<&'static str>)]) -> Fields {
    let of = |(name, value)| {
        let other = others.iter().find(|(other, _)| *other == name);
        other.map_or(Some((name, value)), |(_, value)| value.map(|value| (name, value)))
    };
    GOOD.into_iter().filter_map(of).collect()
}

/// Sends requests on streams of one connection, which goes on through all of them.
fn check_requests(cases: Vec<(&str, Vec<u8>, Answer)>) {
    let (mut world, id) = connected(|settings| settings.max_header_size = 4096);
    write(&mut world, id, &[(CONTROL, SETTINGS, false)]);
    for (stream, (what, bytes, expected)) in (0..).step_by(4).zip(cases) {
        write(&mut world, id, &[(stream, &bytes, true)]);
        let found = read(&mut world, id, stream).map(|answer| status(&answer));
        assert_eq!(found, expected, "{what}");
    }
    assert_eq!(world.stats(0).connections_protocol_error, 0);
    assert!(world.clients[id].quic.peer_error().is_none());
}

/// The status of an answer, whose head has a two-byte length.
fn status(answer: &[u8]) -> u16 {
    let head = usize::from(u16::from_be_bytes([answer[1], answer[2]]) & 0x3fff);
    let fields = quiche::h3::qpack::Decoder::new().decode(&answer[3..3 + head], u64::MAX).unwrap();
    let text = String::from_utf8(quiche::h3::NameValue::value(&fields[0]).to_vec()).unwrap();
    text.parse().unwrap()
}

#[test]
fn malformed_requests() {
    let mut cases: Vec<(&str, Vec<u8>, Answer)> = vec![
        ("nothing", vec![], Err(REQUEST_INCOMPLETE)),
        ("only a reserved frame", frame(0x21, b"x"), Err(REQUEST_INCOMPLETE)),
    ];
    let malformed: Vec<(&str, Fields)> = vec![
        ("no :method", but(&[(":method", None)])),
        ("no :scheme", but(&[(":scheme", None)])),
        ("no :path", but(&[(":path", None)])),
        ("no :authority", but(&[(":authority", None)])),
        (":method twice", with(&[(":method", "GET")])),
        (":scheme twice", with(&[(":scheme", "https")])),
        (":path twice", with(&[(":path", "/bytes/10")])),
        (":authority twice", with(&[(":authority", "a")])),
        ("a pseudo-header field of responses", with(&[(":status", "200")])),
        ("one that is not defined", with(&[(":what", "x")])),
        ("one of extended CONNECT", with(&[(":protocol", "websocket")])),
        ("one behind a field", [&[("x", "y")], &GOOD[..]].concat()),
        ("an empty name", with(&[("", "x")])),
        ("upper case", with(&[("Range", "bytes=0-1")])),
        ("a space in a name", with(&[("a b", "x")])),
        ("a colon in a name", with(&[("a:b", "x")])),
        ("a line feed in a value", with(&[("x", "a\nb")])),
        ("a carriage return in a value", with(&[("x", "a\rb")])),
        ("a zero in a value", with(&[("x", "a\0b")])),
        ("a space before a value", with(&[("x", " a")])),
        ("a tab behind a value", with(&[("x", "a\t")])),
        ("connection", with(&[("connection", "close")])),
        ("keep-alive", with(&[("keep-alive", "1")])),
        ("proxy-connection", with(&[("proxy-connection", "close")])),
        ("transfer-encoding", with(&[("transfer-encoding", "chunked")])),
        ("upgrade", with(&[("upgrade", "h2c")])),
        ("te other than trailers", with(&[("te", "gzip")])),
        ("an empty :method", but(&[(":method", Some(""))])),
        (":method that is no token", but(&[(":method", Some("G T"))])),
        ("an empty :path", but(&[(":path", Some(""))])),
        ("a :path without a slash", but(&[(":path", Some("bytes/10"))])),
        ("an absolute :path", but(&[(":path", Some("https://a/bytes/10"))])),
        ("a fragment", but(&[(":path", Some("/bytes/10#a"))])),
        ("* but for OPTIONS", but(&[(":path", Some("*"))])),
        ("an empty :authority", but(&[(":authority", Some(""))])),
        ("user information", but(&[(":authority", Some("user@a"))])),
        ("an empty :authority and a host", [but(&[(":authority", Some(""))]), vec![("host", "a")]].concat()),
        ("another host", with(&[("host", "b")])),
        ("an empty host", with(&[("host", "")])),
        ("two hosts, of which the first is right", with(&[("host", "a"), ("host", "b")])),
        ("two hosts alone", [but(&[(":authority", None)]), vec![("host", "a"), ("host", "b")]].concat()),
        ("CONNECT with :path", but(&[(":method", Some("CONNECT")), (":scheme", None)])),
        ("CONNECT with :scheme", but(&[(":method", Some("CONNECT")), (":path", None)])),
        ("CONNECT without :authority", vec![(":method", "CONNECT")]),
        ("lengths that differ", with(&[("content-length", "0"), ("content-length", "1")])),
        ("a list of lengths that differ", with(&[("content-length", "0, 1")])),
        ("an empty length", with(&[("content-length", "")])),
        ("a negative length", with(&[("content-length", "-1")])),
        ("a length with a sign", with(&[("content-length", "+0")])),
        ("a length of more than 64 bits", with(&[("content-length", "18446744073709551616")])),
        ("a length and no body", with(&[("content-length", "1")])),
    ];
    cases.extend(malformed.into_iter().map(|(what, fields)| (what, headers(&fields), Err(MESSAGE_ERROR))));
    check_requests(cases);
}

#[test]
fn bodies_and_trailers() {
    let post = |length: &'static str| headers(&with(&[("content-length", length)]));
    let (five, rest) = (frame(0, b"12345"), headers([&("digest", "x")]));
    let trailers = |fields: &[(&str, &str)]| [SLOW, &headers(fields)].concat();
    let many: Vec<(&str, &str)> = vec![("x", "y"); 200];
    let long = "y".repeat(5000);
    check_requests(vec![
        ("a body as long as it says", [&post("5")[..], &five].concat(), Ok(200)),
        ("the same in parts", [&post("10")[..], &five, &frame(0, b""), &five].concat(), Ok(200)),
        ("the same with trailers", [&post("5")[..], &five, &rest].concat(), Ok(200)),
        ("one length twice", [&headers(&with(&[("content-length", "5"); 2]))[..], &five].concat(), Ok(200)),
        ("a longer body", [&post("4")[..], &five].concat(), Err(MESSAGE_ERROR)),
        ("a longer body with trailers", [&post("4")[..], &five, &rest].concat(), Err(MESSAGE_ERROR)),
        ("a shorter body", [&post("6")[..], &five].concat(), Err(MESSAGE_ERROR)),
        ("a shorter body that trailers end", [&post("6")[..], &five, &rest].concat(), Err(MESSAGE_ERROR)),
        ("no body but trailers", [&post("1")[..], &rest].concat(), Err(MESSAGE_ERROR)),
        (
            "a shorter body, trailers and a reserved frame",
            [&post("6")[..], &five, &rest, &frame(0x21, b"")].concat(),
            Err(MESSAGE_ERROR),
        ),
        ("no trailers in a trailer section", trailers(&[]), Ok(200)),
        ("a pseudo-header field in trailers", trailers(&[(":path", "/")]), Err(MESSAGE_ERROR)),
        ("the same behind others", trailers(&[("a", "b"), (":status", "200")]), Err(MESSAGE_ERROR)),
        ("upper case in trailers", trailers(&[("Digest", "x")]), Err(MESSAGE_ERROR)),
        ("connection in trailers", trailers(&[("connection", "close")]), Err(MESSAGE_ERROR)),
        ("trailers beyond the number of fields", trailers(&many), Err(EXCESSIVE_LOAD)),
        ("trailers beyond the limit", trailers(&[("x", &long)]), Err(EXCESSIVE_LOAD)),
        ("fields beyond the limit", headers(&[&GOOD[..], &[("x", &long)]].concat()), Ok(431)),
        ("more fields than the limit", headers(&[&GOOD[..], &many].concat()), Ok(431)),
        (
            "a section that is announced beyond it",
            [&[1, 0x60, 1][..], &[0; 8193]].concat(),
            Err(EXCESSIVE_LOAD),
        ),
        ("CONNECT", headers(&[(":method", "CONNECT"), (":authority", "a:1")]), Ok(501)),
        ("another scheme", headers(&but(&[(":scheme", Some("ftp"))])), Ok(400)),
        ("te: trailers and the right host", headers(&with(&[("te", "trailers"), ("host", "A")])), Ok(200)),
        ("the right host twice", headers(&with(&[("host", "a"), ("host", "a")])), Err(MESSAGE_ERROR)),
    ]);
}
