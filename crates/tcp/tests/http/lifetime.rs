//! Reload, drain and end.

use std::time::{Duration, Instant};

use expressway_tcp::Limits;

use crate::stage::octets;
use crate::world::{Build, LIMIT, ask, get, request, setup, speak};

#[test]
fn a_reload_changes_what_answers_and_drops_nobody() {
    let world = Build { workers: 1, ..Build::default() }.world();
    let mut wire = world.connect();
    assert_eq!(wire.get("/version").1, b"one");
    let mut slow = world.connect();
    slow.send("GET /stream/3000000 HTTP/1.0\r\n\r\n");
    slow.head();
    world.server.reload(setup("two", Limits::default()));
    assert_eq!(wire.get("/version").1, b"two");
    assert_eq!(get(&world, "/version").1, b"two");
    assert_eq!(slow.rest(), octets(3_000_000));
}

#[test]
fn a_drain_finishes_what_was_begun() {
    let world = Build::default().world();
    let mut idle = world.connect();
    idle.get("/bytes/1");
    let mut slow = world.connect();
    slow.send("GET /stream/30000000 HTTP/1.1\r\nhost: a\r\n\r\n");
    slow.head();
    let mut upload = world.connect();
    upload.send("POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\na");
    upload.head();
    let server = &world.server;
    speak(&world, |mut send| async move {
        let (response, _) = send.send_request(request("GET", "/stream/3000000"), true).unwrap();
        let response = response.await.unwrap();
        server.drain(Instant::now() + LIMIT);
        assert!(idle.rest().is_empty());
        let (_, body, _) = crate::world::take(response).await.unwrap();
        assert_eq!(body, octets(3_000_000));
        assert!(ask(&mut send, request("GET", "/bytes/1")).await.is_err(), "it was told to go away");
    });
    upload.send("b");
    upload.rest();
    slow.rest();
    assert!(std::net::TcpStream::connect(world.plain).is_err());
    world.server.join().unwrap();
}

#[test]
fn a_drain_ends_in_time() {
    let world = Build::default().world();
    let mut never = world.connect();
    never.send("GET /never HTTP/1.1\r\nhost: a\r\n\r\n");
    world.until("it is heard", || world.count("tcp_requests_active", "") == 1);
    world.server.drain(Instant::now() + Duration::from_millis(200));
    assert!(never.rest().is_empty());
    world.server.join().unwrap();
}

#[test]
fn who_retires_answers_until_clients_go_elsewhere() {
    let world = Build::default().world();
    let (mut idle, mut fresh) = (world.connect(), world.connect());
    idle.get("/bytes/1");
    world.until("both are there", || world.count("tcp_connections", "") >= 2);
    let (here, server) = (&world, &world.server);
    speak(&world, |mut send| async move {
        let (response, _) = send.send_request(request("GET", "/stream/3000000"), true).unwrap();
        let response = response.await.unwrap();
        server.retire(Instant::now() + LIMIT);
        // An idle connection is not closed: its client may be asking. The response tells it, as soon as the worker knows.
        for wire in [&mut idle, &mut fresh] {
            here.until("it is told", || {
                let (head, body) = wire.get("/bytes/2");
                assert_eq!(body, octets(2));
                head.to_ascii_lowercase().contains("connection: close")
            });
            assert!(wire.rest().is_empty(), "it is closed then");
        }
        let (_, body, _) = crate::world::take(response).await.unwrap();
        assert_eq!(body, octets(3_000_000));
        assert!(ask(&mut send, request("GET", "/bytes/1")).await.is_err(), "it was told to go away");
    });
    assert!(std::net::TcpStream::connect(world.plain).is_err());
    world.server.join().unwrap();
}

#[test]
fn who_retires_can_be_told_to_hurry() {
    let world = Build::default().world();
    let mut never = world.connect();
    never.send("GET /never HTTP/1.1\r\nhost: a\r\n\r\n");
    world.until("it is heard", || world.count("tcp_requests_active", "") == 1);
    world.server.retire(Instant::now() + Duration::from_secs(3600));
    world.server.drain(Instant::now() + Duration::from_millis(200));
    assert!(never.rest().is_empty());
    world.server.join().unwrap();
}
