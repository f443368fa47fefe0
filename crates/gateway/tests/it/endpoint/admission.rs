//! Who is let in, and how the others are answered.

use std::time::{Duration, Instant};

use expressway_gateway::quic::cid::{CheckKeys, Cid, CidIssuer};
use expressway_gateway::quic::{FilterKey, RetryPolicy, Secrets, Settings};
use expressway_netio::{Flow, PacketIo};

use super::exchange::{client, fetch, send_raw};
use crate::support::client::{Client, Options};
use crate::support::world::{Build, identity, instance, setup, tls};

#[test]
fn an_always_retry_server_serves_those_who_come_back() {
    let mut world =
        Build { tune: |settings| settings.retry = RetryPolicy::Always, ..Build::default() }.world();
    fetch(&mut world, Options::default(), &[("/bytes/1000", 1000)]);
    let stats = world.stats(0);
    // A first flight may be two datagrams, and each is answered.
    assert!(stats.retries_sent >= 1);
    assert_eq!(stats.connections_accepted, 1);
}

#[test]
fn retry_begins_under_load_and_not_before() {
    let tune = |settings: &mut Settings| settings.retry = RetryPolicy::UnderLoad { handshaking: 3 };
    let mut world = Build { tune, ..Build::default() }.world();
    // Three clients that never answer hold three handshakes open.
    for port in 6000..6003 {
        let mut silent =
            Client::new(&world.network, &format!("198.51.100.9:{port}"), world.server(), Options::default());
        silent.send_first_flight();
    }
    world.until("three handshakes", |world| world.stats(0).handshaking == 3);
    assert_eq!(world.stats(0).retries_sent, 0);
    fetch(&mut world, Options::default(), &[("/bytes/1000", 1000)]);
    assert!(world.stats(0).retries_validated >= 1);
}

/// A client makes up the ID of its first packets, and one in 65,536 passes for an ID of ours.
#[test]
fn a_client_whose_own_id_names_a_worker_that_there_is_none_of_is_answered() {
    let tune = |settings: &mut Settings| settings.retry = RetryPolicy::Always;
    let mut world = Build { tune, ..Build::default() }.world();
    let secrets = Secrets::derive(&identity(&world.certificate), &world.instance).unwrap();
    let id = CidIssuer::new(7, secrets.cid).issue().unwrap();
    let mut first =
        Client::new(&world.network, "198.51.100.8:1", world.server(), Options::default()).first_flight();
    assert_eq!(usize::from(first[5]), id.0.len());
    first[6..22].copy_from_slice(&id.0);
    send_raw(&mut world, "198.51.100.66:6666", first);
    world.until("a Retry", |world| world.stats(0).retries_sent == 1);
}

/// With the keys of a filter in front, which lets packets with IDs of the server pass unasked.
#[test]
fn behind_a_filter_who_has_seen_an_id_is_asked_and_others_are_not() {
    let tune = |settings: &mut Settings| {
        settings.retry = RetryPolicy::Never;
        settings.filter_keys = vec![FilterKey([3; 32])];
    };
    let mut world = Build { tune, ..Build::default() }.world();
    let id = CidIssuer::new(0, CheckKeys::new(&[3; 16], None)).issue().unwrap();
    let mut first =
        Client::new(&world.network, "198.51.100.8:1", world.server(), Options::default()).first_flight();
    first[6..22].copy_from_slice(&id.0);
    send_raw(&mut world, "198.51.100.66:6666", first);
    world.until("a Retry", |world| world.stats(0).retries_sent == 1);
    fetch(&mut world, Options::default(), &[("/bytes/1000", 1000)]);
    assert_eq!(world.stats(0).retries_sent, 1);
}

#[test]
fn a_client_comes_back_with_a_token_of_the_filters_form() {
    let tune = |settings: &mut Settings| {
        settings.retry = RetryPolicy::Always;
        settings.filter_keys = vec![FilterKey([3; 32]), FilterKey([4; 32])];
    };
    let mut world = Build { tune, ..Build::default() }.world();
    fetch(&mut world, Options::default(), &[("/bytes/1000", 1000)]);
    let stats = world.stats(0);
    assert!(stats.retries_sent >= 1 && stats.retries_validated >= 1);
    assert_eq!((stats.connections_accepted, stats.refused_invalid_token), (1, 0));
}

/// With a token that looks like one of this server's.
fn forge_token(datagram: &mut Vec<u8>) {
    // Behind the two connection IDs stands the token's length, 0; the format byte and the length within do it.
    let scid = 6 + usize::from(datagram[5]);
    let token = scid + 1 + usize::from(datagram[scid]);
    assert_eq!(datagram[token], 0);
    let mut bytes = [0; 1 + 34];
    (bytes[0], bytes[1], bytes[2], bytes[10]) = (34, 0xe1, 0xff, 8);
    datagram.splice(token..=token, bytes);
}

#[test]
fn a_forged_token_is_refused_and_buys_no_handshake() {
    for policy in [RetryPolicy::Never, RetryPolicy::Always, RetryPolicy::UnderLoad { handshaking: 0 }] {
        let mut world = Build::default().world();
        let mut settings = Settings::new(tls(&world.certificate));
        settings.retry = policy;
        world.start(&setup("strict", settings), 1);
        let id = client(&mut world, 6000, Options { http: false, ..Options::default() });
        // Its first datagrams are spent on this one, which is as good as any that is authentic.
        let mut forged = world.clients[id].first_flight();
        while world.clients[id].quic.send(&mut [0; 1350]).is_ok() {}
        forge_token(&mut forged);
        let sent = world.stats(0).bytes_sent;
        world.clients[id].send_raw(&forged);
        world.until("a refusal", |world| world.clients[id].quic.peer_error().is_some());
        // INVALID_TOKEN (RFC 9000, section 20.1).
        let error = world.clients[id].quic.peer_error().unwrap();
        assert_eq!((error.is_app, error.error_code), (false, 0xb));
        let stats = world.stats(0);
        assert_eq!((stats.refused_invalid_token, stats.connections_accepted), (1, 0));
        assert!(stats.bytes_sent - sent <= 100, "{} bytes", stats.bytes_sent - sent);
        fetch(&mut world, Options::default(), &[("/bytes/1000", 1000)]);
    }
}

#[test]
fn an_unknown_version_is_negotiated_away() {
    let mut world = Build::default().world();
    let options = Options { version: 0x1a1a_1a1a, ..Options::default() };
    fetch(&mut world, options, &[("/bytes/1000", 1000)]);
    assert!(world.stats(0).version_negotiations_sent >= 1);
}

#[test]
fn a_restarted_server_resets_the_connections_it_does_not_know() {
    let mut world = Build::default().world();
    let certificate = world.certificate.clone();
    let id = fetch(&mut world, Options::default(), &[("/bytes/1000", 1000)]);
    let mut settings = Settings::new(tls(&certificate));
    settings.instance = world.instance.clone();
    world.start(&setup("again", settings), 1);
    world.clients[id].get("/bytes/1000");
    world.until("a reset", |world| world.clients[id].quic.is_closed());
    assert!(!world.clients[id].quic.is_timed_out());
    assert!(world.stats(0).resets_sent >= 1);
    assert_eq!(world.stats(0).connections_accepted, 0);
}

/// RFC 9000, section 21.11: who has seen a connection ID asks another server, by an address of its own.
#[test]
fn a_server_gives_away_no_reset_token_of_another_with_its_certificate() {
    let mut world = Build::default().world();
    let certificate = world.certificate.clone();
    let id = fetch(&mut world, Options::default(), &[("/bytes/1000", 1000)]);
    let seen = Cid::from_slice(&world.clients[id].quic.destination_id()).unwrap();
    // One server in 65,536 takes the ID for its own, and makes a token for it that is nobody's.
    let other = ["second", "third"].map(|node| instance(&certificate, node)).into_iter().find(|other| {
        let secrets = Secrets::derive(&identity(&certificate), other).unwrap();
        !CidIssuer::new(0, secrets.cid).is_ours(&seen)
    });
    let mut settings = Settings::new(tls(&certificate));
    settings.instance = other.unwrap();
    world.start(&setup("another", settings), 1);
    // The packets of its client, too, come to the other one.
    world.clients[id].get("/bytes/1000");
    world.until("a packet of no connection", |world| world.stats(0).dropped_unknown_connection > 1);
    let dropped = world.stats(0).dropped_unknown_connection;
    let attacker = "198.51.100.66:6666";
    let mut io = world.network.endpoint(&[attacker.parse().unwrap()]).unwrap();
    let flow = Flow::new(attacker.parse().unwrap(), world.server());
    for _ in 0..20 {
        let mut packet = vec![0x55; 100];
        packet[1..17].copy_from_slice(&seen.0);
        let mut source = Some(packet);
        io.transmit(&flow, 100, &mut |slot| {
            source.take().map_or(0, |packet| {
                slot.copy_from_slice(&packet);
                packet.len()
            })
        })
        .unwrap();
        io.flush(Instant::now()).unwrap();
    }
    world.until("all of them", |world| world.stats(0).dropped_unknown_connection >= dropped + 20);
    let stats = world.stats(0);
    assert_eq!((stats.resets_sent, world.clients[id].quic.is_closed()), (0, false));
    world.for_a_while(Duration::from_millis(20));
    io.receive(Instant::now(), &mut |_| panic!("an answer")).unwrap();
}

#[test]
fn junk_leaves_no_state_and_hurts_nobody() {
    let mut world = Build::default().world();
    let id = fetch(&mut world, Options::default(), &[("/bytes/1000", 1000)]);
    let initial =
        Client::new(&world.network, "198.51.100.8:1", world.server(), Options::default()).first_flight();
    let mut junk = world.network.endpoint(&["198.51.100.66:6666".parse().unwrap()]).unwrap();
    let flow = Flow::new("198.51.100.66:6666".parse().unwrap(), world.server());
    let mut random = expressway_netio::sim::Random::new(7);
    let mut sent = 0;
    for round in 0..2000_usize {
        let mut payload: Vec<u8> = match round % 4 {
            // Truncated, altered and extended first flights, and noise.
            0 => initial[..round % initial.len()].to_vec(),
            1 | 2 => initial.clone(),
            _ => vec![0; 1 + round % 1400],
        };
        for _ in 0..=round % 9 {
            let at = random.next_u64() as usize % payload.len().max(1);
            if let Some(byte) = payload.get_mut(at) {
                *byte = random.next_u64() as u8;
            }
        }
        if round % 4 == 3 {
            payload.iter_mut().for_each(|byte| *byte = random.next_u64() as u8);
        }
        let mut source = Some(payload).filter(|payload| !payload.is_empty());
        junk.transmit(&flow, 1472, &mut |slot| {
            source.take().map_or(0, |payload| {
                slot[..payload.len()].copy_from_slice(&payload);
                sent += 1;
                payload.len()
            })
        })
        .unwrap();
        junk.flush(Instant::now()).unwrap();
        if round % 50 == 0 {
            world.for_a_while(Duration::from_millis(2));
        }
    }
    world.until("all of it", |world| {
        world.network.in_flight() == 0 || world.io_stats().rx_kernel_packets > sent
    });
    world.for_a_while(Duration::from_millis(50));
    let stats = world.stats(0);
    assert!(stats.dropped_bad_header > 20 && stats.dropped_bad_initial > 20, "{stats:?}");
    // A flight that was altered only where it does not matter opens a connection, and all its like go there.
    assert!(stats.connections_accepted <= 4, "{stats:?}");
    world.clients[id].get("/bytes/100000");
    world.until("service as before", |world| world.clients[id].is_done());
    assert!(world.clients[id].response(1).intact);
}

#[test]
fn a_full_table_takes_no_more() {
    let mut world = Build { tune: |settings| settings.max_connections = 2, ..Build::default() }.world();
    fetch(&mut world, Options::default(), &[("/bytes/10", 10)]);
    fetch(&mut world, Options::default(), &[("/bytes/10", 10)]);
    client(&mut world, 5900, Options::default());
    world.until("a refusal", |world| world.stats(0).dropped_connection_limit > 0);
    assert_eq!(world.stats(0).connections, 2);
}
