//! Bodies of requests, as handlers get them.

use std::sync::Arc;
use std::task::{Poll, Wake, Waker};
use std::time::{Duration, Instant};

use expressway_gateway::quic::Settings;
use expressway_h3::qpack::Fields;
use expressway_h3::{RequestEvent, RequestReader};
use expressway_web::{BodyError, RequestBody};

use crate::support::handler::{held, pattern_bytes};
use crate::support::streams::{CONTROL, SETTINGS, connected, frame, headers, read, write};
use crate::support::world::World;

struct Nobody;

impl Wake for Nobody {
    fn wake(self: Arc<Self>) {}
}

fn waker() -> Waker {
    Waker::from(Arc::new(Nobody))
}

/// HEADERS with a POST to `path`.
fn post(path: &str, extra: &[(&str, &str)]) -> Vec<u8> {
    let fields = [(":method", "POST"), (":scheme", "https"), (":authority", "a"), (":path", path)];
    headers(fields.iter().chain(extra))
}

/// What a response consists of: its body, and its sections after the head.
fn parts(stream: &[u8]) -> (Vec<u8>, Vec<(String, String)>) {
    let (mut reader, mut input) = (RequestReader::default(), stream);
    let (mut body, mut sections, mut strings) = (Vec::new(), 0, Vec::new());
    let mut trailers = Vec::new();
    while let Some(event) = reader.next(&mut input, 10_000).unwrap() {
        match event {
            RequestEvent::Data(piece) => body.extend_from_slice(piece),
            RequestEvent::Headers(section) => {
                sections += 1;
                if sections > 1 {
                    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
                    let fields = Fields::new(section, &mut strings);
                    trailers.extend(fields.map(|(name, value)| (text(name), text(value))));
                }
            }
        }
    }
    reader.end().unwrap();
    (body, trailers)
}

/// The body that the handler holds.
fn wait(world: &mut World, name: &str) -> RequestBody {
    let mut body = None;
    world.until("a request", |_| {
        body = body.take().or_else(|| held(name));
        body.is_some()
    });
    body.unwrap()
}

/// Sends as much of `bytes` as QUIC takes, and says how much that was.
fn send_some(world: &mut World, id: usize, bytes: &[u8]) -> usize {
    world.clients[id].quic.stream_send(0, bytes, false).unwrap_or(0)
}

#[test]
fn a_body_and_its_trailers_come_back() {
    let (mut world, id) = connected(|_| {});
    let body = pattern_bytes(0, 200_000);
    let section = [&[0, 0][..], b"\x25x-sum\x011"].concat();
    let rest = [frame(0, &body[1000..]), frame(1, &section)].concat();
    write(&mut world, id, &[(CONTROL, SETTINGS, false), (0, &post("/echo", &[]), false)]);
    write(&mut world, id, &[(0, &frame(0, &body[..1000]), false)]);
    let mut sent = 0;
    world.until("all of it sent", |world| {
        sent += send_some(world, id, &rest[sent..]);
        sent == rest.len()
    });
    write(&mut world, id, &[(0, &[], true)]);
    let answer = read(&mut world, id, 0).unwrap();
    let (echoed, trailers) = parts(&answer);
    assert!(echoed == body, "{} bytes", echoed.len());
    assert_eq!(trailers, [("x-sum".to_owned(), "1".to_owned())]);
    assert_eq!(world.stats(0).responses_complete, 1);
}

#[test]
fn a_reader_that_does_not_read_holds_up_its_client_and_nobody_else() {
    let (mut world, id) = connected(|_| {});
    let body = frame(0, &pattern_bytes(0, 4 << 20));
    write(&mut world, id, &[(CONTROL, SETTINGS, false), (0, &post("/hold/slow", &[]), false)]);
    let mut reader = wait(&mut world, "slow");
    let mut sent = 0;
    for _ in 0..200 {
        sent += send_some(&mut world, id, &body[sent..]);
        world.for_a_while(Duration::from_millis(20));
    }
    let (stopped_at, mut read_bytes) = (sent, 0);
    assert!(stopped_at < 3 << 20, "{stopped_at} bytes went although nobody read");
    write(&mut world, id, &[(4, &[post("/echo", &[]), frame(0, b"quick")].concat(), true)]);
    assert_eq!(parts(&read(&mut world, id, 4).unwrap()).0, b"quick");
    let waker = waker();
    world.until("all of it read", |world| {
        sent += send_some(world, id, &body[sent..]);
        while let Poll::Ready(Some(chunk)) = reader.poll_chunk(10_000, &waker) {
            let chunk = chunk.unwrap();
            assert_eq!(chunk, pattern_bytes(read_bytes, chunk.len()));
            read_bytes += chunk.len() as u64;
        }
        read_bytes == 4 << 20
    });
}

#[test]
fn a_reader_sees_that_its_client_gave_up() {
    let (mut world, id) = connected(|_| {});
    write(&mut world, id, &[(CONTROL, SETTINGS, false), (0, &post("/hold/reset", &[]), false)]);
    write(&mut world, id, &[(0, &frame(0, b"half"), false)]);
    let mut reader = wait(&mut world, "reset");
    world.clients[id].quic.stream_shutdown(0, quiche::Shutdown::Write, 0x10c).unwrap();
    world.until("the reset", |world| world.stats(0).requests_active == 0);
    let waker = waker();
    let mut last = reader.poll_chunk(100, &waker);
    while matches!(last, Poll::Ready(Some(Ok(_)))) {
        last = reader.poll_chunk(100, &waker);
    }
    assert_eq!(last, Poll::Ready(Some(Err(BodyError::Stopped))), "no end that looks like one");
}

#[test]
fn a_body_shorter_than_announced_is_no_end() {
    let (mut world, id) = connected(|_| {});
    let request = [post("/hold/short", &[("content-length", "10")]), frame(0, b"four")].concat();
    write(&mut world, id, &[(CONTROL, SETTINGS, false), (0, &request, false)]);
    let mut reader = wait(&mut world, "short");
    assert_eq!(reader.length(), Some(10));
    write(&mut world, id, &[(0, &[], true)]);
    world.until("the refusal", |world| world.stats(0).refused_malformed == 1);
    let waker = waker();
    assert!(matches!(reader.poll_chunk(100, &waker), Poll::Ready(Some(Ok(_)))));
    assert_eq!(reader.poll_chunk(100, &waker), Poll::Ready(Some(Err(BodyError::Stopped))));
}

/// Reads what there is of bodies.
fn drain(bodies: &mut [&mut RequestBody]) {
    let waker = waker();
    for body in bodies {
        while let Poll::Ready(Some(Ok(_))) = body.poll_chunk(100_000, &waker) {}
    }
}

/// Two clients send within each moment that a body may stand still, one of them too little in all.
#[test]
fn a_client_that_owes_its_body_is_cut_off_and_so_is_one_that_sends_a_bit_now_and_then() {
    let (mut world, id) = connected(|settings| settings.request_timeout = Duration::from_secs(2));
    let requests = [post("/hold/silent", &[]), post("/hold/slow", &[]), post("/hold/good", &[])];
    write(&mut world, id, &[(CONTROL, SETTINGS, false)]);
    for (stream, request) in requests.iter().enumerate() {
        write(&mut world, id, &[(4 * stream as u64, request, false)]);
    }
    let [mut silent, mut slow, mut good] = ["silent", "slow", "good"].map(|name| wait(&mut world, name));
    let (mut last, mut bits) = (Instant::now(), 0);
    world.until("the timeouts", |world| {
        if last.elapsed() > Duration::from_millis(200) {
            last = Instant::now();
            bits += 1;
            let _ = world.clients[id].quic.stream_send(4, &frame(0, b"a bit"), false);
            write(world, id, &[(8, &frame(0, &[0; 1000]), false)]);
        }
        drain(&mut [&mut silent, &mut slow, &mut good]);
        world.stats(0).refused_request_timeout == 2
    });
    assert!(bits >= 5, "it moved");
    world.for_a_while(Duration::from_millis(500));
    let stats = world.stats(0);
    assert_eq!((stats.refused_request_timeout, stats.requests_active), (2, 1));
    write(&mut world, id, &[(8, &[], true)]);
    world.until("the end", |_| matches!(good.poll_chunk(100_000, &waker()), Poll::Ready(None)));
}

#[test]
fn any_octet_will_do_where_no_rate_is_asked_of_bodies() {
    let tune = |settings: &mut Settings| {
        settings.request_timeout = Duration::from_secs(1);
        settings.request_rate = 0;
    };
    let (mut world, id) = connected(tune);
    write(&mut world, id, &[(CONTROL, SETTINGS, false), (0, &post("/hold/free", &[]), false)]);
    let mut reader = wait(&mut world, "free");
    for _ in 0..30 {
        write(&mut world, id, &[(0, &frame(0, b"x"), false)]);
        world.for_a_while(Duration::from_millis(100));
        drain(&mut [&mut reader]);
    }
    assert_eq!(world.stats(0).refused_request_timeout, 0);
    world.until("the timeout", |world| world.stats(0).refused_request_timeout == 1);
}

/// Its client waits for nothing but the reader, as when an origin is slow.
#[test]
fn a_body_that_its_reader_does_not_take_is_not_owed() {
    let (mut world, id) = connected(|settings| settings.request_timeout = Duration::from_millis(500));
    write(&mut world, id, &[(CONTROL, SETTINGS, false), (0, &post("/hold/left", &[]), false)]);
    let mut reader = wait(&mut world, "left");
    write(&mut world, id, &[(0, &frame(0, &[0; 1000]), false)]);
    world.for_a_while(Duration::from_secs(2));
    assert_eq!((world.stats(0).refused_request_timeout, world.stats(0).refused_received_timeout), (0, 0));
    drain(&mut [&mut reader]);
    world.until("the timeout", |world| world.stats(0).refused_request_timeout == 1);
}

/// The values of `:status`, in order. The reader is one of requests, to which a section behind another is of trailers.
fn statuses(stream: &[u8]) -> Vec<String> {
    let (mut reader, mut input) = (RequestReader::default(), stream);
    let (mut found, mut strings) = (Vec::new(), Vec::new());
    loop {
        let before = found.len();
        match reader.next(&mut input, 10_000).unwrap() {
            None => return found,
            Some(RequestEvent::Data(_)) => {}
            Some(RequestEvent::Headers(section)) => {
                let statuses = Fields::new(section, &mut strings).filter(|(name, _)| *name == b":status");
                found.extend(statuses.map(|(_, value)| String::from_utf8(value.to_vec()).unwrap()));
            }
        }
        if found[before..] == ["100"] {
            reader = RequestReader::default();
        }
    }
}

const EXPECTS: [(&str, &str); 2] = [("expect", "100-Continue"), ("content-length", "5")];

#[test]
fn a_client_is_told_to_go_on_when_its_body_is_asked_for_and_not_before() {
    let (mut world, id) = connected(|_| {});
    write(&mut world, id, &[(CONTROL, SETTINGS, false), (0, &post("/hold/expected", &EXPECTS), false)]);
    let mut reader = wait(&mut world, "expected");
    world.for_a_while(Duration::from_millis(200));
    let mut buffer = [0; 100];
    assert!(world.clients[id].quic.stream_recv(0, &mut buffer).is_err(), "nobody has asked for it");
    let waker = waker();
    assert!(reader.poll_chunk(10, &waker).is_pending());
    let mut told = Vec::new();
    world.until("it is told to go on", |world| {
        if let Ok((length, last)) = world.clients[id].quic.stream_recv(0, &mut buffer) {
            assert!(!last);
            told.extend_from_slice(&buffer[..length]);
        }
        !told.is_empty()
    });
    assert_eq!(statuses(&told), ["100"]);
    write(&mut world, id, &[(0, &frame(0, b"hello"), true)]);
    world.until("the body", |_| reader.poll_chunk(10, &waker).is_ready());
    assert!(world.clients[id].quic.stream_recv(0, &mut buffer).is_err(), "it is told once");
}

#[test]
fn who_answers_well_and_keeps_the_body_asks_for_it_and_others_do_not() {
    let (mut world, id) = connected(|_| {});
    write(&mut world, id, &[(CONTROL, SETTINGS, false), (0, &post("/echo", &EXPECTS), false)]);
    world.for_a_while(Duration::from_millis(100));
    write(&mut world, id, &[(0, &frame(0, b"hello"), true)]);
    let answer = read(&mut world, id, 0).unwrap();
    assert_eq!(statuses(&answer), ["100", "200"]);
    write(&mut world, id, &[(4, &post("/name", &EXPECTS), false)]);
    assert_eq!(statuses(&read(&mut world, id, 4).unwrap()), ["405"], "nobody wants it");
    let whole = [post("/echo", &EXPECTS), frame(0, b"hello")].concat();
    write(&mut world, id, &[(8, &whole, true)]);
    let answer = read(&mut world, id, 8).unwrap();
    assert_eq!(statuses(&answer).last().map(String::as_str), Some("200"));
}
