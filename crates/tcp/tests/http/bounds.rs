//! Clients that are slow, or do not go on: each limit is met, counted, and concerns nobody else.

use std::io::Read;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use bytes::Bytes;
use expressway_tcp::Limits;

use crate::stage::octets;
use crate::world::{Build, ask, request, speak};

const SHORT: Duration = Duration::from_millis(300);

#[test]
fn a_handshake_has_its_time() {
    let world = Build::limited(|limits| limits.handshake_timeout = SHORT);
    let mut silent = crate::world::connect(world.tls);
    let mut half = crate::world::connect(world.tls);
    half.send(b"\x16\x03\x01\x02\x00\x01\x00\x01");
    assert!(silent.rest().is_empty());
    half.rest();
    world.wait_for("tcp_refused", "handshake-timeout", 2);
    let mut wrong = crate::world::connect(world.tls);
    wrong.send("GET / HTTP/1.1\r\n\r\n");
    wrong.rest();
    world.wait_for("tcp_refused", "handshake", 1);
    world.serves();
}

#[test]
fn a_header_section_has_its_time_however_it_comes() {
    let world = Build::limited(|limits| limits.header_timeout = SHORT);
    let mut wire = world.connect();
    wire.get("/bytes/1");
    wire.send("GET / HTTP/1.1\r\nhost: a\r\n");
    // An octet now and then gains nothing.
    while wire.try_send(b"x: y\r\n") {
        std::thread::sleep(SHORT / 10);
    }
    world.wait_for("tcp_refused", "header-timeout", 1);
    world.serves();
}

#[test]
fn an_idle_connection_is_closed_and_one_with_a_request_is_not() {
    let world = Build::limited(|limits| limits.idle_timeout = SHORT);
    let mut fresh = world.connect();
    let mut used = world.connect();
    used.get("/bytes/1");
    let mut busy = world.connect();
    busy.send("GET /never HTTP/1.1\r\nhost: a\r\n\r\n");
    assert!(fresh.rest().is_empty() && used.rest().is_empty());
    let mut h2 = world.connect_tls(b"\x02h2");
    h2.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0");
    h2.rest();
    world.until("one connection left", || world.count("tcp_connections", "") == 1);
    assert_eq!(world.count("tcp_requests_active", ""), 1);
}

#[test]
fn a_header_section_has_its_size() {
    let world = Build::default().world();
    let ask = |fields: &str| {
        let mut wire = world.connect();
        let _ = wire.try_send(
            format!("GET /bytes/1 HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{fields}\r\n").as_bytes(),
        );
        String::from_utf8_lossy(&wire.rest()).into_owned()
    };
    assert!(ask(&format!("x: {}\r\n", "y".repeat(20_000))).starts_with("HTTP/1.1 200"));
    for fields in [format!("x: {}\r\n", "y".repeat(40_000)), "x: y\r\n".repeat(200), "x: y\r\n".repeat(300)] {
        assert!(ask(&fields).starts_with("HTTP/1.1 431"), "{}", fields.len());
    }
    world.wait_for("tcp_refused", "header-size", 3);
    world.serves();
}

#[test]
fn a_body_that_does_not_come_is_not_waited_for() {
    let world = Build::limited(|limits| limits.request_timeout = SHORT);
    let mut wire = world.connect();
    wire.send("POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\nhello");
    wire.rest();
    world.wait_for("tcp_refused", "request-timeout", 1);
    let ended = speak(&world, |mut send| async move {
        let (response, mut stream) = send.send_request(request("POST", "/echo"), false).unwrap();
        stream.send_data(Bytes::from_static(b"hello"), false).unwrap();
        let mut body = response.await.unwrap().into_body();
        assert_eq!(body.data().await.unwrap().unwrap(), "hello");
        let ended = body.data().await.unwrap().is_err();
        assert_eq!(ask(&mut send, request("GET", "/bytes/5")).await.unwrap().1, octets(5), "others go on");
        ended
    });
    assert!(ended);
    world.wait_for("tcp_refused", "request-timeout", 2);
}

/// What comes within every moment that a body may stand still, and too little in all.
fn in_a_hurry(limits: &mut Limits) {
    limits.request_timeout = Duration::from_secs(2);
    limits.request_rate = 1000;
}

#[test]
fn a_body_of_which_a_bit_comes_now_and_then_is_not_waited_for() {
    let world = Build::limited(in_a_hurry);
    // One that is read, and one that nobody wants.
    for path in ["/echo", "/bytes/1"] {
        let mut wire = world.connect();
        wire.send(format!("POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000\r\n\r\n"));
        let (start, mut bits) = (Instant::now(), 0);
        while wire.try_send(b"bit") {
            assert!(start.elapsed() < crate::world::LIMIT, "{path}: no end");
            std::thread::sleep(Duration::from_millis(100));
            bits += 1;
        }
        assert!(bits >= 10, "{path}: {bits}");
    }
    world.wait_for("tcp_refused", "request-timeout", 1);
    world.until("they are gone", || world.count("tcp_connections", "") == 0);
    world.serves();
}

#[test]
fn a_stream_of_whose_body_a_bit_comes_now_and_then_is_ended_and_others_go_on() {
    let world = Build::limited(in_a_hurry);
    speak(&world, |mut send| async move {
        let (slow, mut sends_slowly) = send.send_request(request("POST", "/echo"), false).unwrap();
        let (good, mut sends) = send.send_request(request("POST", "/echo"), false).unwrap();
        let (mut slow, mut good) = (slow.await.unwrap().into_body(), good.await.unwrap().into_body());
        let error = loop {
            let _ = sends_slowly.send_data(Bytes::from_static(b"bit"), false);
            sends.send_data(Bytes::from(vec![0; 1000]), false).unwrap();
            let echoed = good.data().await.unwrap().unwrap();
            good.flow_control().release_capacity(echoed.len()).unwrap();
            match tokio::time::timeout(Duration::from_millis(100), slow.data()).await {
                Ok(Some(Err(error))) => break error,
                Ok(None) => panic!("it ended well"),
                Ok(Some(Ok(_))) => tokio::time::sleep(Duration::from_millis(100)).await,
                Err(_) => {}
            }
        };
        assert!(error.is_reset(), "{error}");
        sends.send_data(Bytes::new(), true).unwrap();
        while let Some(echoed) = good.data().await {
            good.flow_control().release_capacity(echoed.unwrap().len()).unwrap();
        }
    });
    world.wait_for("tcp_refused", "request-timeout", 1);
}

#[test]
fn a_response_that_is_not_taken_is_ended() {
    let world = Build::limited(|limits| limits.response_timeout = SHORT);
    let mut wire = world.connect();
    wire.send("GET /stream/1000000000 HTTP/1.1\r\nhost: a\r\n\r\n");
    world.wait_for("tcp_refused", "response-timeout", 1);
    world.serves();
    world.until("it is gone", || world.count("tcp_connections", "") == 0);
    wire.rest();
    assert_eq!(world.memory.total(), 0, "and with it what it held");
}

#[test]
fn a_stream_that_is_not_taken_is_ended_and_the_connection_goes_on() {
    let world = Build::limited(|limits| limits.response_timeout = SHORT);
    speak(&world, |mut send| async move {
        let (response, _) = send.send_request(request("GET", "/stream/100000000"), true).unwrap();
        let mut stalled = response.await.unwrap().into_body();
        // Others are served all the while, and none of it is read.
        let first = stalled.data().await.unwrap().unwrap();
        assert!(!first.is_empty());
        let error = loop {
            assert_eq!(ask(&mut send, request("GET", "/bytes/50000")).await.unwrap().1, octets(50_000));
            tokio::time::sleep(SHORT / 10).await;
            // What was on its way may be read; it gives nothing back.
            match tokio::time::timeout(SHORT / 10, stalled.data()).await {
                Ok(Some(Err(error))) => break error,
                Ok(None) => panic!("it ended well"),
                Ok(Some(Ok(_))) | Err(_) => {}
            }
        };
        assert!(error.is_reset(), "{error}");
        assert_eq!(ask(&mut send, request("GET", "/bytes/5")).await.unwrap().1, octets(5));
    });
    world.wait_for("tcp_refused", "response-timeout", 1);
}

/// What takes something within every moment that a response may stand still, and too little in all.
const FAST: u64 = 64 << 20;

#[test]
fn a_response_of_which_little_is_taken_now_and_then_is_ended() {
    let world = Build::limited(|limits| {
        limits.response_timeout = Duration::from_secs(2);
        limits.response_rate = FAST;
    });
    let mut wire = world.connect();
    wire.send("GET /stream/10000000000 HTTP/1.1\r\nhost: a\r\n\r\n");
    let (mut scratch, mut all, start) = (vec![0; 256 << 10], 0, Instant::now());
    while let Ok(read @ 1..) = TcpStream::read(&mut wire.0, &mut scratch) {
        all += read as u64;
        assert!(start.elapsed() < crate::world::LIMIT, "{all} octets, and no end");
        std::thread::sleep(Duration::from_millis(20));
    }
    world.wait_for("tcp_refused", "response-timeout", 1);
    world.until("it is gone", || world.memory.total() == 0);
    world.serves();
}

#[test]
fn a_stream_of_which_little_is_taken_now_and_then_is_ended_and_others_go_on() {
    let world = Build::limited(|limits| {
        limits.response_timeout = Duration::from_secs(2);
        limits.response_rate = FAST;
    });
    speak(&world, |mut send| async move {
        let (response, _) = send.send_request(request("GET", "/stream/10000000000"), true).unwrap();
        let mut slow = response.await.unwrap().into_body();
        let error = loop {
            match slow.data().await {
                Some(Ok(octets)) => slow.flow_control().release_capacity(octets.len()).unwrap(),
                Some(Err(error)) => break error,
                None => panic!("it ended well"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
            assert_eq!(ask(&mut send, request("GET", "/bytes/5")).await.unwrap().1, octets(5));
        };
        assert!(error.is_reset(), "{error}");
        assert_eq!(ask(&mut send, request("GET", "/bytes/5")).await.unwrap().1, octets(5));
    });
    world.wait_for("tcp_refused", "response-timeout", 1);
}

#[test]
fn who_takes_no_octet_of_many_streams_holds_no_more_than_a_connection_may() {
    let world = Build::default().world();
    let (memory, window) = (&world.memory, 2 << 20);
    speak(&world, |mut send| async move {
        let mut bodies = Vec::new();
        for _ in 0..100 {
            std::future::poll_fn(|context| send.poll_ready(context)).await.unwrap();
            let (response, _) = send.send_request(request("GET", "/stream/100000000"), true).unwrap();
            bodies.push(response.await.unwrap().into_body());
        }
        tokio::time::sleep(SHORT).await;
        let held = memory.total();
        // The window, what each stream may have beyond it, the requests, and the records of them.
        assert!(held < 2 * window + 100 * 8192, "{held} octets");
    });
    world.until("all of it is free", || world.memory.total() == 0);
}

#[test]
fn beyond_the_maximum_the_idle_leave_and_then_newcomers_do() {
    let world = Build::limited(|limits| limits.max_connections = 3);
    let mut idle = world.connect();
    idle.get("/bytes/1");
    let busy: Vec<_> = (0..2)
        .map(|_| {
            let mut wire = world.connect();
            wire.send("GET /never HTTP/1.1\r\nhost: a\r\n\r\n");
            wire
        })
        .collect();
    world.until("they are heard", || world.count("tcp_requests_active", "") == 2);
    let mut next = world.connect();
    next.send("GET /never HTTP/1.1\r\nhost: a\r\n\r\n");
    assert!(idle.rest().is_empty());
    world.wait_for("tcp_refused", "shed", 1);
    world.until("it is heard", || world.count("tcp_requests_active", "") == 3);
    assert!(world.connect().rest().is_empty());
    world.wait_for("tcp_refused", "connections", 1);
    drop((busy, next));
    world.until("there is room", || world.count("tcp_connections", "") == 0);
    world.serves();
}

#[test]
fn an_address_has_its_maximum() {
    let world = Build::limited(|limits| limits.max_connections_per_address = 2);
    let mut two = [world.connect(), world.connect()];
    for wire in &mut two {
        wire.get("/bytes/1");
    }
    assert!(world.connect().rest().is_empty());
    world.wait_for("tcp_refused", "address", 1);
    drop(two);
    world.until("there is room", || world.count("tcp_connections", "") == 0);
    world.connect().get("/bytes/1");
}

#[test]
fn a_worker_serves_others_while_one_takes_all_it_can() {
    let world = Build::default().world();
    let greedy = std::thread::spawn({
        let address = world.plain;
        move || {
            let mut wire = crate::world::connect(address);
            wire.send("GET /stream/500000000 HTTP/1.0\r\n\r\n");
            let mut scratch = vec![0; 1 << 20];
            let mut all = 0;
            while let Ok(read @ 1..) = TcpStream::read(&mut wire.0, &mut scratch) {
                all += read;
            }
            all
        }
    });
    for _ in 0..50 {
        world.serves();
    }
    assert!(greedy.join().unwrap() > 500_000_000);
}
