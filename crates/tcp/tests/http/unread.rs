//! What clients send and nobody reads: counted, bounded by the memory that is left, and not waited for for long.

use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::floods::{CONTINUATION, END_HEADERS, END_STREAM, HEADERS, PREFACE, frame, head};
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
