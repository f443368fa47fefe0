//! No turn of a worker is long: whatever clients ask is cut into slices. Here slices are counted in pieces, so that the same
//! is done in each on every machine; nothing may be lost or wait for ever because of where they end.

use std::time::{Duration, Instant};

use expressway_gateway::quic::{Message, RetryPolicy, Settings};
use expressway_netio::SliceLimit::Pieces;
use expressway_netio::sim::Link;

use super::exchange::{client, fetch};
use crate::support::client::{Client, Options};
use crate::support::world::{Build, World, setup, tls};

fn world(pieces: u32) -> World {
    Build { link: Link::default(), slice: Pieces(pieces), ..Build::default() }.world()
}

/// An established client, and what turns did until then forgotten.
fn established(world: &mut World, port: u16, options: Options) -> usize {
    let id = client(world, port, options);
    world.until("a connection", |world| world.clients[id].quic.is_established());
    world.until("quiet", |world| world.network.in_flight() == 0);
    world.most(0);
    id
}

#[test]
fn a_hundred_requests_at_once_are_started_one_by_one() {
    let mut world = world(1);
    let id = established(&mut world, 5000, Options::default());
    for _ in 0..100 {
        world.clients[id].get("/bytes/3000");
    }
    world.until("all responses", |world| world.clients[id].is_done());
    assert!((0..100).all(|index| world.clients[id].response(index).received == 3000));
    let most = world.most(0);
    assert_eq!(most.requests, 1);
    assert!(most.transmitted < 64, "{most:?}");
}

#[test]
fn a_request_waits_for_no_more_than_a_slice_of_every_other_connection() {
    let mut world = world(4);
    let greedy: Vec<_> =
        (0..5).map(|number| established(&mut world, 5000 + number, Options::default())).collect();
    let good = established(&mut world, 6000, Options::default());
    let before = world.stats(0).requests;
    for _ in 0..100 {
        for id in &greedy {
            world.clients[*id].get("/bytes/10");
        }
    }
    world.until("the flood", |world| world.stats(0).requests > before);
    let begun = world.stats(0).requests;
    world.clients[good].get("/bytes/10");
    world.until("its response", |world| {
        !world.clients[good].streams.is_empty() && world.clients[good].is_done()
    });
    // Datagrams that came before it are read first, four a turn; then each other connection has its slice once.
    let started = world.stats(0).requests - begun;
    assert!(started < 150, "{started} requests were started before it was answered");
    world.until("the rest", |world| world.clients.iter().all(Client::is_done));
    assert_eq!(world.stats(0).requests - before, 501);
    assert!(world.most(0).requests <= 16, "four connections, four requests each");
}

#[test]
fn bodies_are_moved_in_parts_and_arrive_whole() {
    let tune = |settings: &mut Settings| settings.send_window = 8 << 20;
    let mut world = Build { link: Link::default(), slice: Pieces(1), tune, ..Build::default() }.world();
    let paths = [("/bytes/9000000", 9_000_000), ("/unsized/700000", 700_000), ("/slow/900000", 900_000)];
    fetch(&mut world, Options::default(), &paths);
    // One of each kind: woken, fed, refilled.
    let most = world.most(0).held;
    assert!(most <= 3 * (256 << 10), "{most} bytes in a turn");
    assert!(world.unfinished_turns(0) > 20);
}

#[test]
fn slices_that_end_anywhere_lose_nothing_on_a_bad_link() {
    let link = Link {
        delay: Duration::from_millis(2),
        jitter: Duration::from_millis(1),
        loss: 0.04,
        duplicate: 0.05,
        reorder: 0.10,
        ..Link::default()
    };
    for (seed, pieces) in [1, 2, 3, 7].into_iter().enumerate() {
        let tune = |settings: &mut Settings| settings.send_window = 128 << 10;
        let (link, seed) = (link.clone(), seed as u64);
        let mut world = Build { link, seed, slice: Pieces(pieces), tune, ..Build::default() }.world();
        let mut paths =
            vec![("/bytes/700000", 700_000), ("/slow/300000", 300_000), ("/unsized/90000", 90_000)];
        paths.extend([("/bytes/5000", 5000); 60]);
        fetch(&mut world, Options::default(), &paths);
    }
}

#[test]
fn an_end_that_is_sent_alone_and_lost_is_sent_again() {
    let link = Link { delay: Duration::from_millis(2), loss: 0.2, ..Link::default() };
    let mut world = Build { link, ..Build::default() }.world();
    fetch(&mut world, Options::default(), &[("/late/100", 100); 60]);
}

#[test]
fn datagrams_of_other_workers_come_in_slices_too() {
    let build = Build { link: Link::default(), workers: 2, slice: Pieces(2), ..Build::default() };
    let mut world = build.world();
    let id = fetch(&mut world, Options::default(), &[("/bytes/1000", 1000)]);
    // The address that it moves to is the other worker's.
    world.network.translate("198.51.100.1:5000".parse().unwrap(), "198.51.100.1:5001".parse().unwrap());
    for _ in 0..90 {
        world.clients[id].request("POST", "/bytes/10", &[], &[7; 4000]);
    }
    world.until("all responses", |world| world.clients[id].is_done());
    let (one, other) = (world.stats(0), world.stats(1));
    assert!(one.taken_over + other.taken_over > 150, "{one:?} {other:?}");
    assert!((0..2).all(|worker| world.most(worker).messages <= 2));
}

/// First flights of clients that have not been heard of, all of them there before the next turn.
fn flood(world: &World, count: u16) -> Vec<Client> {
    (0..count)
        .map(|number| {
            let from = format!("198.51.{}.{}:6000", 100 + number / 200, 1 + number % 200);
            let mut one = Client::new(&world.network, &from, world.server(), Options::default());
            one.send_first_flight();
            one
        })
        .collect()
}

#[test]
fn handshakes_begin_one_by_one_and_all_are_completed() {
    let mut world = world(1);
    for one in flood(&world, 40) {
        world.add(one);
    }
    world.until("all handshakes", |world| world.stats(0).connections_established == 40);
    assert_eq!(world.most(0).accepted, 1);
    assert_eq!(world.stats(0).connections_accepted, 40);
}

#[test]
fn early_data_waits_behind_the_packet_that_it_came_with() {
    let tune = |settings: &mut Settings| settings.early_data = true;
    let mut world = Build { slice: Pieces(100), tune, ..Build::default() }.world();
    let early = || Options { early_data: true, ..Options::default() };
    let first = fetch(&mut world, early(), &[("/bytes/10", 10)]);
    world.until("a ticket", |world| world.clients[first].quic.session().is_some());
    let session = world.clients[first].quic.session().map(<[u8]>::to_vec);
    let id = client(&mut world, 5009, Options { session, ..early() });
    for _ in 0..20 {
        world.clients[id].request("GET", "/bytes/10", &[("x", &"y".repeat(1000))], b"");
    }
    world.until("responses", |world| world.clients[id].is_done());
    let stats = world.stats(0);
    assert_eq!((stats.connections_early_data, stats.dropped_no_connection), (1, 0));
}

#[test]
fn a_line_of_handshakes_that_grows_long_asks_for_retries_and_never_grows_longer() {
    for (retry, accepted) in [(RetryPolicy::Never, 256), (RetryPolicy::UnderLoad { handshaking: 1000 }, 128)]
    {
        // So many pieces that a turn receives all before the first handshake.
        let mut world = world(10_000);
        let mut settings = Settings::new(tls(&world.certificate));
        settings.retry = retry;
        world.start_greedy(&setup("flooded", settings), 1, Pieces(10_000));
        let _silent = flood(&world, 300);
        world.until("all of them", |world| world.stats(0).datagrams_received >= 300);
        world.for_a_while(Duration::from_millis(20));
        let stats = world.stats(0);
        // A first flight may be two datagrams, of which the second goes behind the first.
        assert!(stats.connections_accepted <= accepted, "{retry:?}: {stats:?}");
        assert!(stats.connections_accepted >= accepted / 2, "{retry:?}: {stats:?}");
        match retry {
            RetryPolicy::Never => assert!(stats.dropped_handshake_queue_full > 0 && stats.retries_sent == 0),
            _ => assert!(stats.dropped_handshake_queue_full == 0 && stats.retries_sent >= 100, "{stats:?}"),
        }
        // A client that comes later is served.
        fetch(&mut world, Options::default(), &[("/bytes/1000", 1000)]);
    }
}

#[test]
fn all_connections_hear_of_a_drain_and_of_its_end_though_not_in_one_turn() {
    let mut world = world(2);
    for number in 0..30 {
        let options = Options { reads: false, max_stream_data: 100_000, ..Options::default() };
        let id = established(&mut world, 5000 + number, options);
        world.clients[id].get("/bytes/100000000");
    }
    world.until("requests", |world| world.stats(0).requests == 30);
    world.until("quiet", |world| world.network.in_flight() == 0);
    world.most(0);
    let deadline = Instant::now() + Duration::from_secs(3);
    assert!(world.peers[0].try_send(Message::Drain { deadline }).is_ok());
    world.until("GOAWAY", |world| world.clients.iter().all(|client| client.goaway.is_some()));
    world.until("the end", |world| world.is_finished());
    world.until("goodbyes", |world| world.clients.iter().all(|client| client.quic.is_draining()));
    assert!(world.clients.iter().all(|client| client.quic.peer_error().is_some()));
    let most = world.most(0);
    // A burst of each of two connections, or two that are closed.
    assert!(most.transmitted <= 2 * 64 && most.cancelled <= 4, "{most:?}");
}

#[test]
fn the_requests_of_a_connection_that_has_gone_are_given_up_by_and_by() {
    let mut world = world(3);
    let id = established(&mut world, 5000, Options { reads: false, ..Options::default() });
    for _ in 0..90 {
        world.clients[id].get("/bytes/1000000");
    }
    world.until("requests", |world| world.stats(0).requests_active == 90);
    world.most(0);
    world.clients[id].quic.close(true, 0x100, b"").unwrap();
    world.until("its end", |world| world.stats(0).connections == 0);
    let stats = world.stats(0);
    assert_eq!((stats.responses_cancelled, stats.requests_active), (90, 0));
    assert_eq!(world.held_bytes(), 0);
    let most = world.most(0);
    assert!(most.cancelled <= 9, "three turns of three: {most:?}");
}

/// A frame that moves request `stream` to another priority (RFC 9218, section 7.2).
fn priority_update(stream: u8, urgency: u8) -> Vec<u8> {
    let value = format!("u={urgency}");
    let mut frame = vec![0x80, 0x0f, 0x07, 0x00, 1 + value.len() as u8, stream];
    frame.extend_from_slice(value.as_bytes());
    frame
}

#[test]
fn a_storm_of_priorities_is_read_in_parts() {
    let mut world = world(1);
    let id = established(&mut world, 5000, Options { http: false, ..Options::default() });
    let mut storm = vec![0x00, 0x04, 0x00];
    (0..1600).for_each(|number| storm.extend(priority_update(number as u8 % 32 * 4 % 64, number as u8 % 8)));
    let before = world.unfinished_turns(0);
    let mut sent = 0;
    world.until("all of it", |world| {
        sent += world.clients[id].quic.stream_send(2, &storm[sent..], false).unwrap_or(0);
        sent == storm.len()
    });
    world.until("quiet", |world| world.network.in_flight() == 0);
    world.for_a_while(Duration::from_millis(20));
    assert!(world.clients[id].quic.peer_error().is_none() && world.clients[id].quic.local_error().is_none());
    let turns = world.unfinished_turns(0) - before;
    assert!(turns >= storm.len() as u64 / 1024, "{} bytes in {turns} turns", storm.len());
}

#[test]
fn a_large_request_is_read_in_parts_and_to_its_end() {
    let tune = |settings: &mut Settings| settings.receive_window = 1 << 20;
    let mut world = Build { link: Link::default(), slice: Pieces(1), tune, ..Build::default() }.world();
    let id = established(&mut world, 5000, Options::default());
    for _ in 0..3 {
        let length = ("content-length", "600000");
        world.clients[id].request("POST", "/bytes/10", &[length], &vec![7; 600_000]);
    }
    world.until("answers", |world| world.clients[id].is_done());
    assert!((0..3).all(|index| world.clients[id].response(index).status == Some(405)));
    // The connection goes on.
    world.clients[id].get("/bytes/10");
    world.until("another", |world| world.clients[id].is_done());
}
