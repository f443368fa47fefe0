//! HTTP/2 frames by the thousand: resets, continuations, pings, settings, empty ones and tiny ones.

use std::net::TcpStream;

use boring::ssl::SslStream;

use crate::world::{Build, Wire, World};

pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// `GET` or `POST` of a target, in HPACK without a table.
pub(crate) fn head(method: &str, target: &str) -> Vec<u8> {
    let mut head = Vec::new();
    for (name, value) in
        [(":method", method), (":scheme", "https"), (":authority", "edge.test"), (":path", target)]
    {
        head.extend([0, name.len() as u8]);
        head.extend(name.as_bytes());
        head.push(value.len() as u8);
        head.extend(value.as_bytes());
    }
    head
}

/// Sends what `next` makes until the connection is over; the server serves others meanwhile and afterwards.
fn flood(world: &World, refusal: &str, start: &[u8], mut next: impl FnMut(u32) -> Vec<u8>) {
    let mut wire: Wire<SslStream<TcpStream>> = world.connect_tls(b"\x02h2");
    wire.send(PREFACE);
    wire.send(start);
    // A client that reads nothing is ended for that; this one is to be for what it sends.
    wire.0.get_ref().set_nonblocking(false).unwrap();
    let mut frames = 0;
    loop {
        let burst: Vec<u8> = (frames..frames + 100).flat_map(&mut next).collect();
        frames += 100;
        assert!(frames < 10_000_000, "never ended");
        if !wire.try_send(&burst) {
            break;
        }
        drain(&mut wire);
        if frames % 100_000 == 0 {
            world.serves();
        }
    }
    world.wait_for("tcp_refused", refusal, 1);
    world.serves();
}

/// Reads what is there.
fn drain(wire: &mut Wire<SslStream<TcpStream>>) {
    wire.0.get_ref().set_nonblocking(true).unwrap();
    let mut scratch = [0; 65_536];
    while let Ok(1..) = std::io::Read::read(&mut wire.0, &mut scratch) {}
    wire.0.get_ref().set_nonblocking(false).unwrap();
}

#[test]
fn rapid_resets_end_the_connection() {
    let world = Build::default().world();
    flood(&world, "flood", &[], |number| {
        let stream = 2 * number + 1;
        let mut both = frame(HEADERS, END_HEADERS | END_STREAM, stream, &head("GET", "/stream/1000000"));
        both.extend(frame(RST_STREAM, 0, stream, &8u32.to_be_bytes()));
        both
    });
    world.until("nothing is left", || world.count("tcp_requests_active", "") == 0);
}

#[test]
fn requests_that_are_begun_and_abandoned_end_the_connection_too() {
    let world = Build::default().world();
    flood(&world, "flood", &[], |number| {
        let (hundred, stream) = (number / 200, 2 * (number / 200 * 100 + number % 100) + 1);
        if number % 200 < 100 {
            return frame(HEADERS, END_HEADERS | END_STREAM, stream, &head("GET", "/never"));
        }
        if number % 200 == 100 {
            let ended = || world.count("tcp_refused", "flood") > 0;
            let begun = u64::from(hundred + 1) * 100;
            world.until("they are begun", || ended() || world.count("tcp_requests", "HTTP/2.0") >= begun);
        }
        frame(RST_STREAM, 0, stream, &8u32.to_be_bytes())
    });
    assert!(world.count("tcp_requests", "HTTP/2.0") >= 500);
    world.until("nothing is left", || world.count("tcp_requests_active", "") == 0);
}

#[test]
fn continuations_without_end_are_cut_off() {
    let world = Build::default().world();
    let start = frame(HEADERS, END_STREAM, 1, &head("GET", "/bytes/1"));
    flood(&world, "flood", &start, |_| frame(CONTINUATION, 0, 1, b""));
    let start = frame(HEADERS, END_STREAM, 1, &head("GET", "/bytes/1"));
    flood(&world, "flood", &start, |_| frame(CONTINUATION, 0, 1, &b"\x00\x01x\x01y".repeat(100)));
}

#[test]
fn pings_and_settings_are_answered_up_to_a_point() {
    let world = Build::default().world();
    flood(&world, "flood", &[], |_| frame(PING, 0, 0, &[0; 8]));
    flood(&world, "flood", &[], |_| frame(SETTINGS, 0, 0, &[]));
    flood(&world, "flood", &[], |_| frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]));
}

#[test]
fn frames_with_little_or_nothing_in_them_are_taken_up_to_a_point() {
    let world = Build::default().world();
    let start = frame(HEADERS, END_HEADERS, 1, &head("POST", "/echo"));
    flood(&world, "flood", &start, |_| frame(DATA, 0, 1, b""));
    flood(&world, "flood", &start, |_| frame(DATA, 0, 1, b"x"));
}
