//! How connections end, and what a reload and the logs make of them.

use std::time::{Duration, Instant};

#[cfg(feature = "qlog")]
use expressway_gateway::quic::QlogPhase;
use expressway_gateway::quic::{CongestionControl, Message, Settings};
use expressway_netio::sim::Link;
#[cfg(feature = "qlog")]
use expressway_netio::trace::Filter;

use super::exchange::{client, fetch};
#[cfg(feature = "qlog")]
use crate::support::client::Client;
use crate::support::client::Options;
use crate::support::world::{Build, World, certificate, setup, tls};

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
fn at_the_deadline_a_client_is_told_whatever_window_and_pacer_say() {
    // The one is held back by the pacer then, the other by the congestion window.
    let tunes: [fn(&mut Settings); 2] = [
        |settings| settings.congestion = CongestionControl::Bbr2,
        |settings| settings.congestion = CongestionControl::Cubic,
    ];
    let link = Link { delay: Duration::from_millis(50), rate: Some(10_000_000), ..Link::default() };
    for tune in tunes {
        let mut world = Build { tune, link: link.clone(), ..Build::default() }.world();
        let id = client(&mut world, 5000, Options::default());
        world.clients[id].get("/bytes/100000000");
        world.until("a beginning", |world| world.clients[id].received() > 2_500_000);
        let deadline = Instant::now() + Duration::from_millis(100);
        assert!(world.peers[0].try_send(Message::Drain { deadline }).is_ok());
        world.until("the end", |world| world.is_finished());
        // Of a worker that is finished there are no more turns, although this one would take them.
        assert_eq!(world.stats(0).connections_closed, 1);
        world.until("the news", |world| world.clients[id].quic.peer_error().is_some());
    }
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
    let settings = Settings::new(tls(&certificate("edge.example")));
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

/// What a setup has, such as open files and the thread of a log, may take time to let go of.
#[test]
fn no_worker_is_the_last_to_have_a_former_setup() {
    let mut world = Build::default().world();
    let first = setup("first", Settings::new(tls(&world.certificate)));
    world.start(&first, 1);
    let former = std::sync::Arc::downgrade(&first);
    drop(first);
    let id = fetch(&mut world, Options::default(), &[("/bytes/10", 10)]);
    let second = setup("second", Settings::new(tls(&world.certificate)));
    world.shared.reload(second).unwrap();
    assert!(world.peers[0].try_send(Message::Wake).is_ok());
    world.for_a_while(Duration::from_millis(20));
    world.shared.collect();
    assert!(former.upgrade().is_some(), "an open connection has it");
    world.clients[id].quic.close(true, 0x100, b"").unwrap();
    world.until("the end", |world| world.stats(0).connections == 0);
    assert!(former.upgrade().is_some(), "the worker was not the last to have it");
    world.shared.collect();
    assert!(former.upgrade().is_none());
}

#[cfg(feature = "qlog")]
#[test]
fn logs_for_diagnosis_are_written_when_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let (qlog, keylog) = (directory.path().join("qlog"), directory.path().join("keys"));
    let certificate = certificate("edge.example");
    let mut settings = Settings::new(tls(&certificate));
    (settings.qlog, settings.keylog) = (Some(qlog.clone()), Some(keylog.clone()));
    let mut world = Build { certificate: Some(certificate), ..Build::default() }.world();
    world.start(&setup("logged", settings), 1);
    fetch(&mut world, Options::default(), &[("/bytes/1000", 1000)]);
    let keys = std::fs::read_to_string(&keylog).unwrap();
    assert!(keys.contains("SERVER_TRAFFIC_SECRET_0 "), "{keys}");
    world.start(&setup("end", Settings::new(tls(&world.certificate.clone()))), 1);
    let logs: Vec<_> = std::fs::read_dir(&qlog).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(logs.len(), 1);
    assert!(std::fs::read_to_string(&logs[0]).unwrap().contains("packet_sent"));
}

/// What a recording has by now.
#[cfg(feature = "qlog")]
fn text(recording: &expressway_gateway::quic::Recording) -> String {
    String::from_utf8(recording.read()).unwrap()
}

#[cfg(feature = "qlog")]
#[test]
fn a_garbage_initial_does_not_end_a_recording_and_no_reset_token_is_in_it() {
    let mut world = Build::default().world();
    let filter = Filter { client: Some(("198.51.100.1".parse().unwrap(), None)), connection: Vec::new() };
    let recording = world.shared.record_qlog(filter, 8 << 20).unwrap();
    for round in 1..=3 {
        let local = format!("198.51.100.1:{}", 4000 + round);
        let mut junk = Client::new(&world.network, &local, world.server(), Options::default());
        let mut flight = junk.first_flight();
        *flight.last_mut().unwrap() ^= 1;
        junk.send_raw(&flight);
        world.until("its drop", |world| world.stats(0).dropped_bad_initial == round);
        assert_eq!((recording.report().phase, text(&recording)), (QlogPhase::Waiting, String::new()));
    }
    fetch(&mut world, Options::default(), &[("/bytes/1000", 1000)]);
    let report = recording.report();
    assert!(report.phase == QlogPhase::Running && report.events > 10 && report.lost == 0, "{report:?}");
    let text = text(&recording);
    assert_eq!(text.matches("file_schema").count(), 1, "of one connection");
    assert!(text.contains("packet_received") && text.contains("new_connection_id"), "{text}");
    // In the transport parameters, and with each ID that was issued.
    let values: Vec<_> = text.split("\"stateless_reset_token\":").skip(1).collect();
    assert!(values.len() > 1 && values.iter().all(|value| value.starts_with("\"\"")), "{text}");
}

#[cfg(feature = "qlog")]
#[test]
fn a_recording_finds_a_connection_by_its_first_id_and_not_by_the_clients_choice() {
    let mut world = Build::default().world();
    let mut forger = Client::new(&world.network, "198.51.100.1:5000", world.server(), Options::default());
    let flight = forger.first_flight();
    let chosen = flight[6..6 + usize::from(flight[5])].to_vec();
    forger.send_raw(&flight);
    let recording = world.shared.record_qlog(Filter { client: None, connection: chosen }, 1 << 20).unwrap();
    let id = world.add(forger);
    world.clients[id].get("/bytes/1000");
    world.until("the response", |world| world.clients[id].is_done());
    assert_eq!(recording.report().phase, QlogPhase::Waiting);
    drop(recording);
    let first = world.clients[id].quic.destination_id().to_vec();
    world.until("another ID", |world| world.clients[id].quic.available_dcids() > 0);
    world.clients[id].quic.retire_dcid(0).unwrap();
    world.for_a_while(Duration::from_millis(50));
    assert_ne!(world.clients[id].quic.destination_id().to_vec(), first);
    let recording = world.shared.record_qlog(Filter { client: None, connection: first }, 1 << 20).unwrap();
    world.clients[id].get("/bytes/1000");
    world.until("the response", |world| world.clients[id].is_done());
    assert_eq!(recording.report().phase, QlogPhase::Running);
}

#[test]
fn a_timer_that_moves_later_wakes_nobody() {
    let mut world = Build::default().world();
    let id = fetch(&mut world, Options::default(), &[("/bytes/1000", 1000)]);
    let before = world.vain_turns(0);
    for _ in 1..40 {
        world.clients[id].get("/bytes/1000");
        world.until("the response", |world| world.clients[id].is_done());
    }
    assert_eq!(world.vain_turns(0) - before, 0);
}
