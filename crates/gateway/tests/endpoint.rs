//! The endpoint end to end over the simulated network, against quiche clients.

mod support;

use std::time::{Duration, Instant};

use expressway_gateway::quic::cid::CidIssuer;
use expressway_gateway::quic::{Message, RetryPolicy, Secrets, Settings};
use expressway_netio::sim::Link;
use expressway_netio::{Flow, PacketIo};
use support::client::{Client, Options};
use support::world::{Build, World, certificate, identity, setup};

fn client(world: &mut World, port: u16, options: Options) -> usize {
    let client = Client::new(&world.network, &format!("198.51.100.1:{port}"), world.server(), options);
    world.add(client)
}

/// Sends one datagram from an address of its own, and hears no answer.
fn send_raw(world: &mut World, from: &str, payload: Vec<u8>) {
    let from = from.parse().unwrap();
    let mut io = world.network.endpoint(&[from]).unwrap();
    let mut source = Some(payload);
    io.transmit(&Flow::new(from, world.server()), 1472, &mut |slot| {
        source.take().map_or(0, |payload| {
            slot[..payload.len()].copy_from_slice(&payload);
            payload.len()
        })
    })
    .unwrap();
    io.flush(Instant::now()).unwrap();
}

/// Fetches `paths` on one connection and checks every byte.
#[track_caller]
fn fetch(world: &mut World, options: Options, paths: &[(&str, u64)]) -> usize {
    let port = 5000 + world.clients.len() as u16;
    let id = client(world, port, options);
    for (path, _) in paths {
        world.clients[id].get(path);
    }
    world.until("all responses", |world| world.clients[id].is_done());
    for (index, (path, length)) in paths.iter().enumerate() {
        let response = world.clients[id].response(index);
        assert_eq!(response.status, Some(200), "{path}");
        assert!(response.finished && response.intact, "{path}: {response:?}");
        assert_eq!(response.received, *length, "{path}");
    }
    id
}

#[test]
fn bodies_of_every_kind_arrive_whole() {
    let mut world = Build::default().world();
    let paths = [
        ("/bytes/0", 0),
        ("/bytes/1", 1),
        ("/bytes/1024", 1024),
        ("/bytes/65536", 65_536),
        ("/bytes/65537", 65_537),
        ("/bytes/5000000", 5_000_000),
        ("/unsized/300000", 300_000),
        ("/unsized/0", 0),
        ("/slow/400000", 400_000),
    ];
    let id = fetch(&mut world, Options::default(), &paths);
    let stats = world.stats(0);
    assert_eq!(stats.requests, paths.len() as u64);
    assert_eq!(stats.responses_complete, paths.len() as u64);
    assert_eq!(stats.requests_active, 0);
    assert_eq!(stats.response_body_bytes, paths.iter().map(|(_, length)| length).sum::<u64>());
    assert_eq!(world.clients[id].largest_received, 1472, "path-MTU discovery found the link's MTU");
}

#[test]
fn head_and_errors_have_no_body_but_a_length() {
    let mut world = Build::default().world();
    let id = client(&mut world, 5000, Options::default());
    world.clients[id].request("HEAD", "/bytes/1000", &[], b"");
    world.clients[id].request("POST", "/bytes/1000", &[("content-length", "5")], b"hello");
    world.clients[id].get("/nothing");
    world.until("responses", |world| world.clients[id].is_done());
    let head = world.clients[id].response(0);
    assert_eq!((head.status, head.received), (Some(200), 0));
    assert_eq!(head.header("content-length"), Some("1000"));
    assert_eq!(world.clients[id].response(1).status, Some(405));
    assert_eq!(world.clients[id].response(2).status, Some(404));
}

#[test]
fn a_hundred_streams_share_a_connection() {
    let mut world = Build::default().world();
    let paths = [("/bytes/100000", 100_000); 100];
    fetch(&mut world, Options::default(), &paths);
}

#[test]
fn loss_reordering_and_duplication_corrupt_nothing() {
    let link = Link {
        delay: Duration::from_millis(3),
        jitter: Duration::from_millis(2),
        loss: 0.06,
        duplicate: 0.05,
        reorder: 0.10,
        reorder_delay: Duration::from_millis(4),
        ..Link::default()
    };
    for seed in 1..4 {
        let mut world = Build { link: link.clone(), seed, ..Build::default() }.world();
        let paths = [("/bytes/1000000", 1_000_000), ("/unsized/300000", 300_000), ("/bytes/200000", 200_000)];
        fetch(&mut world, Options::default(), &paths);
        let lost = world.network.stats().dropped_loss;
        assert!(lost > 20, "the link lost only {lost} datagrams");
    }
}

#[test]
fn a_hop_that_swallows_large_datagrams_is_found_and_lived_with() {
    let link = Link { delay: Duration::from_millis(1), path_mtu: 1350, ..Link::default() };
    let mut world = Build { link, ..Build::default() }.world();
    let id = fetch(&mut world, Options::default(), &[("/bytes/3000000", 3_000_000)]);
    let largest = world.clients[id].largest_received;
    assert!((1200..=1322).contains(&largest), "largest datagram: {largest}");
}

#[test]
fn large_links_are_used_and_a_limit_that_shrank_is_survived() {
    let delay = Duration::from_millis(1);
    let link = Link { delay, mtu: 9000, path_mtu: 9000, ..Link::default() };
    let mut world = Build { link, ..Build::default() }.world();
    // The first connection tells the endpoint what the interface carries.
    let large = || Options { max_payload: 9000, ..Options::default() };
    fetch(&mut world, large(), &[("/bytes/1000", 1000)]);
    let id = fetch(&mut world, large(), &[("/bytes/3000000", 3_000_000)]);
    assert_eq!(world.clients[id].largest_received, 8972);
    // The next one is made for that limit, and finds a smaller one.
    let (server, client) = (world.server().ip(), "198.51.100.1".parse().unwrap());
    world.network.set_link(server, client, Link { delay, ..Link::default() });
    let id = fetch(&mut world, large(), &[("/bytes/40000000", 40_000_000)]);
    assert!(world.stats(0).mtu_probes_dropped > 0);
    let largest = world.clients[id].largest_received;
    assert!((1201..=1472).contains(&largest), "largest datagram: {largest}");
}

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
    let secrets = Secrets::derive(&identity(&world.certificate)).unwrap();
    let id = CidIssuer::new(7, secrets.cid).issue().unwrap();
    let mut first =
        Client::new(&world.network, "198.51.100.8:1", world.server(), Options::default()).first_flight();
    assert_eq!(usize::from(first[5]), id.0.len());
    first[6..22].copy_from_slice(&id.0);
    send_raw(&mut world, "198.51.100.66:6666", first);
    world.until("a Retry", |world| world.stats(0).retries_sent == 1);
}

#[test]
fn under_load_a_forged_token_buys_no_handshake() {
    let tune = |settings: &mut Settings| settings.retry = RetryPolicy::UnderLoad { handshaking: 0 };
    let mut world = Build { tune, ..Build::default() }.world();
    let mut forged =
        Client::new(&world.network, "198.51.100.8:1", world.server(), Options::default()).first_flight();
    // Behind the two connection IDs stands the token's length, 0; the format byte and the length within make
    // it one of this server's by looks.
    let scid = 6 + usize::from(forged[5]);
    let token = scid + 1 + usize::from(forged[scid]);
    assert_eq!(forged[token], 0);
    let mut bytes = [0; 1 + 34];
    (bytes[0], bytes[1], bytes[2], bytes[10]) = (34, 0xe1, 0xff, 8);
    forged.splice(token..=token, bytes);
    send_raw(&mut world, "198.51.100.66:6666", forged);
    world.until("the forgery", |world| world.stats(0).dropped_invalid_token == 1);
    assert_eq!(world.stats(0).connections_accepted, 0);
    fetch(&mut world, Options::default(), &[("/bytes/1000", 1000)]);
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
    let settings = Settings::new(identity(&certificate));
    world.start(&setup("again", settings), 1);
    world.clients[id].get("/bytes/1000");
    world.until("a reset", |world| world.clients[id].quic.is_closed());
    assert!(!world.clients[id].quic.is_timed_out());
    assert!(world.stats(0).resets_sent >= 1);
    assert_eq!(world.stats(0).connections_accepted, 0);
}

#[test]
fn draining_finishes_what_is_under_way_and_refuses_the_rest() {
    let mut world = Build::default().world();
    let busy = client(&mut world, 5000, Options::default());
    let idle = client(&mut world, 5001, Options::default());
    world.clients[busy].get("/bytes/10000000");
    world.clients[idle].get("/bytes/10");
    world.until("a beginning", |world| {
        world.clients[busy].received() > 100_000 && world.clients[idle].is_done()
    });
    let deadline = Instant::now() + Duration::from_secs(20);
    assert!(world.peers[0].try_send(Message::Drain { deadline }).is_ok());
    world.until("GOAWAY", |world| world.clients.iter().all(|client| client.goaway.is_some()));
    assert_eq!(world.clients[busy].goaway, Some(4));
    let late = client(&mut world, 5002, Options::default());
    world.until("the end", |world| world.is_finished());
    world.until("the news", |world| world.clients.iter().all(|client| client.quic.peer_error().is_some()));
    let response = world.clients[busy].response(0);
    assert!(response.finished && response.intact && response.received == 10_000_000, "{response:?}");
    for id in [busy, idle] {
        let error = world.clients[id].quic.peer_error().unwrap();
        assert_eq!((error.is_app, error.error_code), (true, 0x100), "H3_NO_ERROR");
    }
    let error = world.clients[late].quic.peer_error().unwrap();
    assert_eq!((error.is_app, error.error_code), (false, 2), "CONNECTION_REFUSED");
    assert!(Instant::now() < deadline, "it did not wait for the deadline");
}

#[test]
fn at_the_deadline_a_drain_ends_whatever_is_open() {
    let mut world = Build::default().world();
    let id = client(&mut world, 5000, Options { reads: false, max_data: 100_000, ..Options::default() });
    world.clients[id].get("/bytes/10000000");
    world.until("a beginning", |world| world.stats(0).requests == 1);
    let deadline = Instant::now() + Duration::from_millis(300);
    assert!(world.peers[0].try_send(Message::Drain { deadline }).is_ok());
    world.until("the end", |world| world.is_finished());
    assert!(Instant::now() >= deadline);
    assert_eq!(world.stats(0).responses_cancelled, 1);
}

#[test]
fn an_idle_connection_goes_away() {
    let tune = |settings: &mut Settings| settings.idle_timeout = Duration::from_secs(1);
    let mut world = Build { tune, ..Build::default() }.world();
    fetch(&mut world, Options::default(), &[("/bytes/10", 10)]);
    world.until("silence", |world| world.stats(0).connections == 0);
    let stats = world.stats(0);
    assert_eq!((stats.connections_closed, stats.connections_timed_out), (1, 1));
}

#[test]
fn a_client_that_stops_reading_pins_no_more_than_the_window() {
    let tune = |settings: &mut Settings| settings.send_window = 256 << 10;
    let mut world = Build { tune, ..Build::default() }.world();
    let id = client(&mut world, 5000, Options { reads: false, max_data: 8 << 20, ..Options::default() });
    for _ in 0..50 {
        world.clients[id].get("/bytes/100000000");
    }
    let mut most = 0;
    let mut last = (0, Instant::now());
    // Until nothing has been sent for a while: the client's flow control is used up.
    world.until("a standstill", |world| {
        most = most.max(world.held_bytes());
        let sent = world.stats(0).bytes_sent;
        if sent != last.0 {
            last = (sent, Instant::now());
        }
        sent > (8 << 20) && last.1.elapsed() > Duration::from_millis(500)
    });
    assert!(most <= 256 << 10, "{most} bytes were held");
    assert!(most >= 128 << 10, "the window was used");
}

#[test]
fn a_request_that_is_cancelled_lets_go_of_its_memory() {
    let mut world = Build::default().world();
    let id = client(&mut world, 5000, Options { reads: false, max_data: 1 << 20, ..Options::default() });
    world.clients[id].get("/bytes/100000000");
    world.until("data held", |world| world.held_bytes() > 0 && !world.clients[id].streams.is_empty());
    let stream = world.clients[id].streams[0];
    world.clients[id].quic.stream_shutdown(stream, quiche::Shutdown::Read, 0x10c).unwrap();
    world.until("it to be let go", |world| world.held_bytes() == 0 && world.stats(0).requests_active == 0);
    let stats = world.stats(0);
    assert_eq!((stats.responses_cancelled, stats.connections), (1, 1));
    world.clients[id].reads = true;
    world.clients[id].get("/bytes/1000");
    world.until("another request", |world| {
        world.clients[id].streams.len() == 2 && world.clients[id].response(1).is_over()
    });
    assert!(world.clients[id].response(1).intact);
}

#[test]
fn a_body_that_fails_resets_its_stream_and_no_other() {
    let mut world = Build::default().world();
    let id = client(&mut world, 5000, Options::default());
    world.clients[id].get("/fail/200000");
    world.clients[id].get("/bytes/300000");
    world.until("both", |world| world.clients[id].is_done());
    assert_eq!(world.clients[id].response(0).reset, Some(0x102), "H3_INTERNAL_ERROR");
    assert!(world.clients[id].response(1).finished && world.clients[id].response(1).intact);
    assert_eq!(world.stats(0).responses_failed, 1);
}

#[test]
fn malformed_requests_are_reset_and_the_connection_lives() {
    let mut world = Build { tune: |settings| settings.max_header_size = 4096, ..Build::default() }.world();
    let id = client(&mut world, 5000, Options::default());
    let good = [(":method", "GET"), (":scheme", "https"), (":authority", "a"), (":path", "/bytes/10")];
    world.clients[id].raw(&good[..3], b"");
    world.clients[id].raw(&[&good[..], &[("connection", "close")]].concat(), b"");
    // Its answer is slow in coming, so the body is seen first.
    let slow = [&good[..3], &[(":path", "/slow/1000000"), ("content-length", "3")]].concat();
    world.clients[id].raw(&slow, b"four");
    world.clients[id].raw(&[&good[..], &[("x", &"y".repeat(6000))]].concat(), b"");
    world.clients[id].raw(&good, b"");
    world.until("all", |world| world.clients[id].is_done());
    for index in 0..3 {
        assert_eq!(world.clients[id].response(index).reset, Some(0x10e), "request {index}: H3_MESSAGE_ERROR");
    }
    assert_eq!(world.clients[id].response(3).status, Some(431));
    assert_eq!(world.clients[id].response(4).received, 10);
    assert_eq!(world.stats(0).refused_malformed, 3);
    assert_eq!(world.stats(0).connections, 1);
}

#[test]
fn a_client_that_keeps_abandoning_requests_is_cut_off() {
    let mut world = Build::default().world();
    let id = client(&mut world, 5000, Options::default());
    world.until("a connection", |world| world.clients[id].http.is_some());
    world.until("the end of patience", |world| {
        let client = &mut world.clients[id];
        client.get("/bytes/100000000");
        for stream in std::mem::take(&mut client.streams) {
            let _ = client.quic.stream_shutdown(stream, quiche::Shutdown::Read, 0x10c);
            let _ = client.quic.stream_shutdown(stream, quiche::Shutdown::Write, 0x10c);
        }
        client.quic.peer_error().is_some()
    });
    let error = world.clients[id].quic.peer_error().unwrap();
    assert_eq!((error.is_app, error.error_code), (true, 0x107), "H3_EXCESSIVE_LOAD");
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
    assert!(stats.dropped_malformed > 20 && stats.dropped_bad_initial > 20, "{stats:?}");
    // A flight that was altered only where it does not matter opens a connection, and all its like go there.
    assert!(stats.connections_accepted <= 4, "{stats:?}");
    world.clients[id].get("/bytes/100000");
    world.until("service as before", |world| world.clients[id].is_done());
    assert!(world.clients[id].response(1).intact);
}

#[test]
fn a_reload_changes_new_connections_and_leaves_open_ones() {
    let mut world = Build::default().world();
    let name = |world: &mut World, id: usize| {
        world.clients[id].get("/name");
        world.until("a name", |world| world.clients[id].is_done());
        let last = *world.clients[id].streams.last().unwrap();
        let body = world.clients[id].responses[&last].body.clone();
        (String::from_utf8(body).unwrap(), world.clients[id].quic.peer_cert().unwrap().to_vec())
    };
    let old = client(&mut world, 5000, Options::default());
    let (before, first_certificate) = name(&mut world, old);
    assert_eq!(before, "first");
    let settings = Settings::new(identity(&certificate("edge.example")));
    let second = setup("second", settings);
    world.shared.reload(second).unwrap();
    assert!(world.peers[0].try_send(Message::Wake).is_ok());
    world.for_a_while(Duration::from_millis(20));
    assert_eq!(name(&mut world, old), ("first".to_owned(), first_certificate.clone()));
    let new = client(&mut world, 5001, Options::default());
    let (after, second_certificate) = name(&mut world, new);
    assert_eq!(after, "second");
    assert_ne!(first_certificate, second_certificate);
}

#[test]
fn early_data_is_served_to_safe_methods_only_and_only_when_allowed() {
    for allowed in [false, true] {
        let tune = if allowed {
            |settings: &mut Settings| settings.early_data = true
        } else {
            |_: &mut Settings| {}
        };
        let mut world = Build { tune, ..Build::default() }.world();
        let first =
            fetch(&mut world, Options { early_data: true, ..Options::default() }, &[("/bytes/10", 10)]);
        world.until("a ticket", |world| world.clients[first].quic.session().is_some());
        let session = world.clients[first].quic.session().map(<[u8]>::to_vec);
        let options = Options { early_data: true, session, ..Options::default() };
        let id = client(&mut world, 5009, options);
        world.clients[id].get("/bytes/1000");
        world.clients[id].request("POST", "/bytes/1000", &[], b"");
        world.until("answers", |world| world.clients[id].is_done());
        assert!(world.clients[id].quic.is_resumed());
        assert_eq!(world.clients[id].response(0).received, 1000);
        let status = world.clients[id].response(1).status;
        assert_eq!(status, Some(if allowed { 425 } else { 405 }));
        assert_eq!(world.stats(0).connections_early_data, u64::from(allowed));
    }
}

#[cfg(feature = "qlog")]
#[test]
fn logs_for_diagnosis_are_written_when_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let (qlog, keylog) = (directory.path().join("qlog"), directory.path().join("keys"));
    let certificate = certificate("edge.example");
    let mut settings = Settings::new(identity(&certificate));
    (settings.qlog, settings.keylog) = (Some(qlog.clone()), Some(keylog.clone()));
    let mut world = Build { certificate: Some(certificate), ..Build::default() }.world();
    world.start(&setup("logged", settings), 1);
    fetch(&mut world, Options::default(), &[("/bytes/1000", 1000)]);
    let keys = std::fs::read_to_string(&keylog).unwrap();
    assert!(keys.contains("SERVER_TRAFFIC_SECRET_0 "), "{keys}");
    world.start(&setup("end", Settings::new(identity(&world.certificate.clone()))), 1);
    let logs: Vec<_> = std::fs::read_dir(&qlog).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(logs.len(), 1);
    assert!(std::fs::read_to_string(&logs[0]).unwrap().contains("packet_sent"));
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
