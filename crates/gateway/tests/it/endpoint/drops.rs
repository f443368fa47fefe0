//! Datagrams, connections and requests that are dropped, each counted by its reason. What other tests make happen is not here:
//! `tests/drops.txt` has all.

use std::time::{Duration, Instant};

use expressway_gateway::quic::cid::CidIssuer;
use expressway_gateway::quic::{Message, Secrets, Settings};
use expressway_netio::SliceLimit::Pieces;

use super::exchange::{client, fetch, send_all};
use crate::support::client::Options;
use crate::support::world::{Build, World, identity, setup, tls};

const STRANGER: &str = "198.51.100.66:6000";

/// A packet with a long header: its first byte, its version and its connection ID, filled up to a length.
fn long(first: u8, version: u32, dcid: &[u8], length: usize) -> Vec<u8> {
    let mut packet = vec![first];
    packet.extend(version.to_be_bytes());
    packet.push(dcid.len() as u8);
    packet.extend(dcid);
    // No source connection ID, and no token in an Initial.
    packet.resize(length.max(packet.len()), 0);
    packet
}

/// Sends all of them before the server looks.
fn send_at_once(world: &mut World, payloads: impl IntoIterator<Item = Vec<u8>>) {
    send_all(world, STRANGER, payloads);
    // Longer than the link takes.
    std::thread::sleep(Duration::from_millis(10));
}

#[test]
fn what_opens_no_connection_is_counted_by_its_reason() {
    let mut world = Build::default().world();
    let packets = [
        long(0xc0, 0x1a1a_1a1a, &[7; 8], 100),
        // Version Negotiation, and a Retry.
        long(0xc0, 0, &[7; 8], 100),
        long(0xf0, 1, &[7; 8], 100),
        // A Handshake packet, and 0-RTT.
        long(0xe0, 1, &[7; 8], 100),
        long(0xd0, 1, &[7; 8], 1200),
        long(0xc0, 1, &[7; 8], 1199),
        long(0xc0, 1, &[7; 7], 1200),
        // Neither form of header.
        vec![0; 100],
    ];
    send_all(&mut world, STRANGER, packets);
    world.until("all of them", |world| world.stats(0).datagrams_received == 8);
    let stats = world.stats(0);
    assert_eq!(stats.dropped_unknown_version, 1);
    assert_eq!(stats.dropped_server_only, 2);
    assert_eq!(stats.dropped_no_connection, 2);
    assert_eq!(stats.dropped_small_initial, 1);
    assert_eq!(stats.dropped_short_cid, 1);
    assert_eq!(stats.dropped_bad_header, 1);
    assert_eq!((stats.version_negotiations_sent, stats.connections_accepted), (0, 0));
}

#[test]
fn answers_beyond_those_that_may_wait_are_dropped() {
    let mut world = Build::default().world();
    let settings = Settings::new(tls(&world.certificate));
    world.start_greedy(&setup("flooded", settings), 1, Pieces(10_000));
    send_at_once(&mut world, (0..2148).map(|_| long(0xc0, 0x1a1a_1a1a, &[7; 8], 1200)));
    world.until("all of them", |world| world.stats(0).datagrams_received == 2148);
    let stats = world.stats(0);
    assert_eq!((stats.version_negotiations_sent, stats.dropped_reply_queue), (2048, 100));
    fetch(&mut world, Options::default(), &[("/bytes/1000", 1000)]);
}

/// A server with so many workers, of which the first gets datagrams for the others: so many for each, in one turn.
fn handed_over(workers: usize, each: usize) -> World {
    let mut world = Build::default().world();
    let settings = Settings { instance: world.instance.clone(), ..Settings::new(tls(&world.certificate)) };
    world.start_greedy(&setup("flooded", settings), workers, Pieces(10_000));
    let secrets = Secrets::derive(&identity(&world.certificate), &world.instance).unwrap();
    let packets: Vec<_> = (1..workers)
        .flat_map(|owner| {
            let id = CidIssuer::new(owner as u8, secrets.cid).issue().unwrap();
            let mut packet = vec![0x55; 100];
            packet[1..=id.0.len()].copy_from_slice(&id.0);
            std::iter::repeat_n(packet, each)
        })
        .collect();
    let sent = packets.len() as u64;
    send_at_once(&mut world, packets);
    world.until("all of them", |world| world.stats(0).datagrams_received == sent);
    world
}

#[test]
fn datagrams_for_a_worker_whose_mailbox_is_full_are_dropped() {
    let world = handed_over(2, 300);
    let stats = world.stats(0);
    assert_eq!((stats.handed_over, stats.dropped_handover_full), (256, 44));
}

#[test]
fn datagrams_for_other_workers_beyond_the_buffers_for_them_are_dropped() {
    // The address that they come from is the first of six workers'.
    let world = handed_over(6, 210);
    let stats = world.stats(0);
    assert_eq!((stats.handed_over, stats.dropped_handover_buffer), (1024, 5 * 210 - 1024));
}

#[test]
fn a_drain_refuses_new_connections_and_requests_that_cross_its_goaway() {
    let mut world = Build::default().world();
    let busy = client(&mut world, 5000, Options::default());
    world.clients[busy].get("/bytes/10000000");
    world.until("a beginning", |world| world.clients[busy].received() > 100_000);
    let deadline = Instant::now() + Duration::from_secs(20);
    assert!(world.peers[0].try_send(Message::Drain { deadline }).is_ok());
    // It has not heard of it.
    world.clients[busy].get("/bytes/10");
    client(&mut world, 5001, Options::default());
    world.until("both refusals", |world| {
        let stats = world.stats(0);
        stats.refused_goaway == 1 && stats.refused_draining >= 1
    });
    assert_eq!(world.stats(0).requests, 2);
}
