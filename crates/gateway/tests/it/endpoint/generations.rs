//! Processes that follow each other: whose datagrams go where, and how the older one lets its clients go.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use expressway_gateway::quic::cid::{Cid, CidIssuer};
use expressway_gateway::quic::{
    Forward, Forwarded, Generations, Message, Older, RetryPolicy, Secrets, Settings, TakenOver,
};
use expressway_netio::SliceLimit::Pieces;
use expressway_netio::sim::Link;

use super::exchange::{client, fetch, send_all};
use crate::support::client::Options;
use crate::support::world::{Build, World, identity, setup, tls};

const STRANGER: &str = "198.51.100.66:6000";

/// The greatest ID of a request's stream (RFC 9114, section 5.2).
const EVERY_STREAM: u64 = (1 << 62) - 4;

type Seen = Arc<Mutex<Vec<(SocketAddr, SocketAddr, Vec<u8>)>>>;

/// An older process: records what is forwarded to it, and answers as it is told.
struct Recorded(Seen, Forwarded);

impl Forward for Recorded {
    fn forward(&self, local: SocketAddr, remote: SocketAddr, payload: &[u8]) -> Forwarded {
        self.0.lock().unwrap().push((local, remote, payload.to_vec()));
        self.1
    }
}

/// Generation 2 with generation 1 before it, and IDs of a generation.
fn second(answer: Forwarded) -> (World, Seen, impl Fn(u8) -> Cid) {
    let mut world = Build::default().world();
    let secrets = Secrets::derive(&identity(&world.certificate), &world.instance).unwrap();
    let seen = Seen::default();
    let older =
        Older { generation: 1, keys: secrets.cid, forward: Box::new(Recorded(Arc::clone(&seen), answer)) };
    world.generations = Generations { own: 2, older: vec![older] };
    let settings = Settings { instance: world.instance.clone(), ..Settings::new(tls(&world.certificate)) };
    world.start_greedy(&setup("second", settings), 1, Pieces(10_000));
    (world, seen, move |generation| CidIssuer::new(0, secrets.cid).of_generation(generation).issue().unwrap())
}

fn short(cid: &Cid) -> Vec<u8> {
    let mut packet = vec![0x55; 100];
    packet[1..=cid.0.len()].copy_from_slice(&cid.0);
    packet
}

fn handshake(cid: &Cid) -> Vec<u8> {
    let mut packet = vec![0xe0, 0, 0, 0, 1, cid.0.len() as u8];
    packet.extend(cid.0);
    packet.resize(200, 0);
    packet
}

#[test]
fn datagrams_of_an_older_process_go_there_as_they_came() {
    let (mut world, seen, id) = second(Forwarded::Sent);
    let packets = [short(&id(1)), handshake(&id(1)), short(&id(2)), handshake(&id(2)), short(&id(3))];
    send_all(&mut world, STRANGER, packets.clone());
    world.until("all of them", |world| world.stats(0).datagrams_received == 5);
    let stats = world.stats(0);
    assert_eq!((stats.forwarded_older, stats.dropped_older_full), (2, 0));
    let from = (world.server(), STRANGER.parse().unwrap());
    let expected = packets[..2].iter().map(|packet| (from.0, from.1, packet.clone())).collect::<Vec<_>>();
    assert_eq!(*seen.lock().unwrap(), expected);
    // Its own that is unknown, and that of a generation that is no more.
    assert_eq!((stats.resets_sent, stats.dropped_no_connection), (2, 1));
    fetch(&mut world, Options::default(), &[("/bytes/1000", 1000)]);
    assert_eq!(seen.lock().unwrap().len(), 2, "what is new is the newest's");
}

#[test]
fn datagrams_for_an_older_process_that_is_behind_are_dropped() {
    let (mut world, seen, id) = second(Forwarded::Full);
    send_all(&mut world, STRANGER, [short(&id(1)), short(&id(1))]);
    world.until("both", |world| world.stats(0).datagrams_received == 2);
    let stats = world.stats(0);
    assert_eq!((stats.forwarded_older, stats.dropped_older_full, stats.resets_sent), (0, 2, 0));
    assert_eq!(seen.lock().unwrap().len(), 2);
}

#[test]
fn connections_of_an_older_process_that_has_ended_are_reset() {
    let (mut world, _seen, id) = second(Forwarded::Gone);
    send_all(&mut world, STRANGER, [short(&id(1))]);
    world.until("a reset", |world| world.stats(0).resets_sent == 1);
    assert_eq!(world.stats(0).dropped_older_full, 0);
}

#[test]
fn what_was_forwarded_comes_to_its_worker_and_goes_no_further() {
    let (mut world, seen, id) = second(Forwarded::Sent);
    let path = (world.server(), STRANGER.parse().unwrap());
    let take = |payload: &[u8]| world.shared.take_over(&world.peers, path, payload);
    // Also what the older one before this would have: nobody sends it there.
    assert_eq!(take(&short(&id(2))), TakenOver::Given);
    assert_eq!(take(&short(&id(1))), TakenOver::Given);
    let mut elsewhere = id(2);
    elsewhere.0[13] = 9;
    assert_eq!(take(&short(&elsewhere)), TakenOver::UnknownWorker);
    assert_eq!(take(&[0x40; 3]), TakenOver::UnknownWorker);
    world.until("both", |world| world.stats(0).taken_over == 2);
    assert!(seen.lock().unwrap().is_empty());
    while world.shared.take_over(&world.peers, path, &short(&id(2))) == TakenOver::Given {}
    assert_eq!(world.shared.take_over(&world.peers, path, &short(&id(2))), TakenOver::Full, "a bound");
}

#[test]
fn who_retires_gives_notice_answers_what_crosses_it_and_completes_handshakes() {
    let mut world = Build::default().world();
    let idle = client(&mut world, 5000, Options::default());
    world.clients[idle].get("/bytes/10");
    world.until("a response", |world| world.clients[idle].is_done());
    // It is on its way when the process retires.
    let late = client(&mut world, 5001, Options::default());
    world.clients[late].get("/bytes/1000");
    let deadline = Instant::now() + Duration::from_secs(20);
    assert!(world.peers[0].try_send(Message::Retire { deadline }).is_ok());
    // It has not heard of it.
    world.clients[idle].get("/bytes/20");
    world.until("the first GOAWAY", |world| world.clients[idle].goaway == Some(EVERY_STREAM));
    world.until("what crossed it", |world| world.clients[idle].is_done());
    world.until("the handshake and its request", |world| {
        world.clients[late].is_done() && world.stats(0).responses_complete == 3
    });
    assert_eq!(world.stats(0).refused_goaway, 0);
    world.until("the end", |world| world.is_finished());
    world.until("the news", |world| world.clients.iter().all(|client| client.quic.peer_error().is_some()));
    for id in [idle, late] {
        let error = world.clients[id].quic.peer_error().unwrap();
        assert_eq!((error.is_app, error.error_code), (true, 0x100), "H3_NO_ERROR");
        assert!(world.clients[id].goaway.is_some_and(|goaway| goaway < EVERY_STREAM), "the second GOAWAY");
    }
    assert_eq!(world.stats(0).refused_draining, 0);
    assert!(Instant::now() < deadline, "it did not wait for the deadline");
}

#[test]
fn who_retires_without_connections_serves_a_client_that_it_has_sent_a_retry() {
    let tune = |settings: &mut Settings| settings.retry = RetryPolicy::Always;
    // Long enough for the Retry to be on its way still.
    let link = Link { delay: Duration::from_millis(50), ..Link::default() };
    let mut world = Build { tune, link, ..Build::default() }.world();
    let id = client(&mut world, 5000, Options::default());
    world.until("a Retry", |world| world.stats(0).retries_sent >= 1);
    assert_eq!(world.stats(0).connections_accepted, 0);
    let deadline = Instant::now() + Duration::from_secs(20);
    assert!(world.peers[0].try_send(Message::Retire { deadline }).is_ok());
    world.clients[id].get("/bytes/10");
    world.until("a response", |world| {
        let is_done = world.clients[id].is_done();
        assert!(is_done || !world.is_finished(), "a worker that is finished ends");
        is_done
    });
    world.until("the end", |world| world.is_finished());
    assert!(Instant::now() < deadline, "it did not wait for the deadline");
}

#[test]
fn who_retires_can_be_told_to_hurry() {
    let mut world = Build::default().world();
    let id = client(&mut world, 5000, Options { reads: false, max_data: 100_000, ..Options::default() });
    world.clients[id].get("/bytes/10000000");
    world.until("a beginning", |world| world.stats(0).requests == 1);
    let soon = Instant::now() + Duration::from_millis(300);
    let late = Instant::now() + Duration::from_secs(3600);
    assert!(world.peers[0].try_send(Message::Retire { deadline: late }).is_ok());
    assert!(world.peers[0].try_send(Message::Drain { deadline: soon }).is_ok());
    let refused = client(&mut world, 5001, Options::default());
    world.until("the end", |world| world.is_finished());
    assert_eq!(world.stats(0).responses_cancelled, 1);
    assert!(world.clients[refused].quic.peer_error().is_none_or(|error| error.error_code == 2));
}
