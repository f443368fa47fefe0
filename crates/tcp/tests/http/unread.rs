//! What clients send and nobody reads: counted, bounded by the memory that is left, and not waited for for long.

use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::floods::{CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, PREFACE, RST_STREAM, frame, head};
use crate::stage::octets;
use crate::world::{Build, LIMIT, World, ask, request, speak};

const SHORT: Duration = Duration::from_millis(300);

/// Part of a head.
const PART: usize = 40_000;

fn part_of_a_head() -> Vec<u8> {
    format!("GET /bytes/1 HTTP/1.1\r\nhost: a\r\nx: {}", "y".repeat(PART)).into_bytes()
}

#[test]
fn heads_that_are_incomplete_are_counted() {
    let world = Build::default().world();
    let mut wires: Vec<_> = (0..20).map(|_| world.connect()).collect();
    wires.iter_mut().for_each(|wire| wire.send(part_of_a_head()));
    world.until("all parts", || world.memory.total() >= 20 * PART);
    assert!(world.memory.total() < 21 * (PART + 100), "{}", world.memory.total());
    wires.truncate(10);
    world.until("half of them", || world.memory.total() < 11 * (PART + 100));
    drop(wires);
    world.until("none", || world.memory.total() == 0);
}

/// Has a client of HTTP/2 send so much of a body as it may, which nobody reads, and looks what is held meanwhile.
fn unread_body(world: &World, look: impl FnOnce()) {
    speak(world, |mut send| async move {
        let (_response, mut stream) = send.send_request(request("POST", "/held"), false).unwrap();
        // It has heard how large windows are by then.
        assert_eq!(ask(&mut send, request("GET", "/bytes/5")).await.unwrap().1, octets(5));
        stream.reserve_capacity(1 << 20);
        stream.send_data(Bytes::from(vec![0; 1 << 20]), false).unwrap();
        let start = Instant::now();
        // The pipe to the handler and HTTP/2's window are full.
        while world.memory.total() < 128 << 10 {
            assert!(start.elapsed() < LIMIT, "{}", world.memory.total());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        look();
    });
}

#[test]
fn bodies_that_nobody_reads_are_counted() {
    let world = Build::default().world();
    unread_body(&world, || {
        std::thread::sleep(SHORT);
        let held = world.memory.total();
        assert!((128 << 10..400 << 10).contains(&held), "{held}");
    });
    world.until("nothing is held", || world.memory.total() == 0);
    // Nor is anything left of bodies that were taken, or of those that nobody wanted.
    speak(&world, |mut send| async move {
        for target in ["/echo", "/bytes/1", "/echo"] {
            let (response, mut stream) = send.send_request(request("POST", target), false).unwrap();
            stream.send_data(Bytes::from(octets(60_000)), true).unwrap();
            let mut body = response.await.unwrap().into_body();
            while let Some(Ok(chunk)) = body.data().await {
                body.flow_control().release_capacity(chunk.len()).unwrap();
            }
        }
    });
    world.until("nothing is held", || world.memory.total() == 0);
}

#[test]
fn where_no_memory_is_left_those_are_ended_who_send_what_nobody_reads_and_others_are_served() {
    const MEMORY: usize = 1 << 20;
    const CLIENTS: usize = 100;
    let world = Build { memory: MEMORY, ..Build::default() }.world();
    let mut wires: Vec<_> = (0..CLIENTS).map(|_| world.connect()).collect();
    for wire in &mut wires {
        wire.try_send(&part_of_a_head());
    }
    world.wait_for("tcp_refused", "memory", 10);
    // What was left, a little of each of the others, and what the count is behind by.
    let held = world.memory.total();
    assert!(held <= MEMORY + CLIENTS * (16 << 10) + (64 << 10), "{held}");
    world.serves();
    drop(wires);
    world.until("there is memory", || world.memory.total() == 0);
    world.serves();
}

#[test]
fn an_incomplete_section_of_http2_has_its_time_and_counts_as_what_it_may_become() {
    let world = Build::limited(|limits| limits.header_timeout = SHORT);
    let mut wire = world.connect_tls(b"\x02h2");
    let section = head("GET", "/bytes/1");
    wire.send([PREFACE, &frame(HEADERS, END_STREAM, 1, &section[..9])].concat());
    world.until("it counts", || world.memory.total() >= 64 << 10);
    // An octet now and then gains nothing.
    while wire.try_send(&frame(CONTINUATION, 0, 1, b"")) {
        std::thread::sleep(SHORT / 4);
    }
    world.wait_for("tcp_refused", "header-timeout", 1);
    world.until("nothing is held", || world.memory.total() == 0);
    world.serves();
}

/// Bytes of memory that this process has.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<usize>().unwrap() << 10
}

/// A header section that has one field, whose value is long, in HPACK's table and then refers to it so many times, an octet each.
fn bomb(times: usize) -> Vec<u8> {
    let mut section = head("GET", "/bytes/1");
    let value = 3900_usize;
    // A literal with incremental indexing (RFC 7541, section 6.2.1), and its length as an integer of 7 bits (section 5.1).
    section.extend([0x40, 1, b'x', 0x7f, ((value - 127) & 0x7f | 0x80) as u8, ((value - 127) >> 7) as u8]);
    section.extend(vec![b'v'; value]);
    // The first field of the dynamic table is number 62 (section 2.3.3).
    section.extend(vec![0x80 | 62; times]);
    section
}

#[test]
fn a_section_that_refers_to_one_long_field_again_and_again_is_refused_and_costs_no_more_than_its_limit() {
    const CLIENTS: usize = 12;
    let world = Build::default().world();
    // It is read as others are where it is within the limit.
    let mut wire = world.connect_tls(b"\x02h2");
    wire.send([PREFACE, &frame(HEADERS, END_HEADERS | END_STREAM, 1, &bomb(4))].concat());
    world.wait_for("tcp_responses", "complete", 1);
    drop(wire);
    let before = resident();
    // 48 MB each, if it were kept.
    let mut wires: Vec<_> = (0..CLIENTS).map(|_| world.connect_tls(b"\x02h2")).collect();
    let bombs = [PREFACE, &frame(HEADERS, END_HEADERS | END_STREAM, 1, &bomb(12_000))].concat();
    for wire in &mut wires {
        wire.try_send(&bombs);
    }
    for wire in &mut wires {
        // GOAWAY, and what it says of why.
        let told = wire.rest();
        assert!(told.windows(16).any(|part| part == b"header_list_way_"), "{} octets", told.len());
    }
    let grown = resident().saturating_sub(before);
    assert!(grown < CLIENTS * (4 << 20), "{grown} bytes");
    assert_eq!(world.count("tcp_requests", "HTTP/2.0"), 1, "none became a request");
    drop(wires);
    world.serves();
}

/// A field line of HPACK without a table.
fn field(name: &str, value: &str) -> Vec<u8> {
    [&[0, name.len() as u8][..], name.as_bytes(), &[value.len() as u8], value.as_bytes()].concat()
}

#[test]
fn bodies_that_were_given_up_are_not_counted_on_a_connection_that_is_never_idle() {
    const UPLOADS: u32 = 40;
    let world = Build::limited(|limits| limits.max_requests = 8);
    let mut wire = world.connect_tls(b"\x02h2");
    // It is never idle.
    wire.send([PREFACE, &frame(HEADERS, END_HEADERS | END_STREAM, 1, &head("GET", "/never"))].concat());
    // Requests that are malformed are nobody's, and the next are not taken for them.
    let malformed = [head("POST", "/echo"), field("content-length", "1, 2")].concat();
    for number in 0..UPLOADS {
        let (bad, stream) = (4 * number + 3, 4 * number + 5);
        let body = frame(DATA, 0, stream, b"x").repeat(100);
        let mut both = frame(HEADERS, END_HEADERS, bad, &malformed);
        both.extend(frame(HEADERS, END_HEADERS, stream, &head("POST", "/held")));
        wire.send([both, body].concat());
        world.wait_for("tcp_requests", "HTTP/2.0", u64::from(number) + 2);
        // Half of its last frame comes before it is given up, and the rest behind that.
        let last = frame(DATA, 0, stream, &[0; 16_000]);
        wire.send(&last[..8000]);
        world.wait_for("tcp_received_bytes", "h2", 8000 + 16_000 * u64::from(number));
        wire.send([&last[8000..], &frame(RST_STREAM, 0, stream, &8u32.to_be_bytes())].concat());
        world.until("it is over", || world.count("tcp_requests_active", "") == 1);
        assert_eq!(world.count("tcp_refused", "memory"), 0);
    }
    // What is left is the request that goes on, and places for the frames of a few bodies.
    world.until("they are gone", || world.memory.total() < 120_000);
    drop(wire);
    world.until("nothing is held", || world.memory.total() == 0);
}

#[test]
fn the_time_of_a_section_begins_with_it_and_not_with_one_before() {
    let world = Build::limited(|limits| limits.header_timeout = 4 * SHORT);
    let mut wire = world.connect_tls(b"\x02h2");
    wire.send(PREFACE);
    // Each read ends within a section, the one after the other, for three times as long as one may take.
    let section = head("GET", "/bytes/1");
    let begin = |stream: u32| frame(HEADERS, END_STREAM, stream, &section);
    wire.send(begin(1));
    for number in 0..12u32 {
        std::thread::sleep(SHORT);
        let end = frame(CONTINUATION, END_HEADERS, 2 * number + 1, b"");
        wire.send([end, begin(2 * number + 3)].concat());
    }
    world.wait_for("tcp_requests", "HTTP/2.0", 12);
    assert_eq!(world.count("tcp_refused", "header-timeout"), 0);
    // The last has no end, and no other begins.
    world.wait_for("tcp_refused", "header-timeout", 1);
    world.serves();
}
