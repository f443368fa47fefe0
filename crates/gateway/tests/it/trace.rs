//! What is recorded of requests while somebody traces.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use expressway_netio::sim::Link;
use expressway_netio::trace::{Channel, Event, Filter, Hop, Options as Tracing, Recording};

use crate::support::client::{Client, Options};
use crate::support::world::{Build, World};

fn client(world: &mut World, port: u16) -> usize {
    let local = format!("198.51.100.1:{port}");
    let client = Client::new(&world.network, &local, world.server(), Options::default());
    world.add(client)
}

fn all() -> Tracing {
    Tracing { filter: Filter::default(), sample: 1 }
}

fn by_port(port: u16) -> Tracing {
    let client = Some(("198.51.100.1".parse().unwrap(), Some(port)));
    Tracing { filter: Filter { client, ..Filter::default() }, sample: 1 }
}

/// What was recorded by now, by worker.
fn events(recording: &mut Recording) -> Vec<Event> {
    let mut events = Vec::new();
    while let Some(batch) = recording.take(10_000) {
        events.extend(batch.events);
    }
    assert_eq!(recording.lost(), 0);
    events
}

fn name(hop: &Hop) -> &'static str {
    match hop {
        Hop::Connection { .. } => "connection",
        Hop::Taken { .. } => "taken",
        Hop::Opened => "opened",
        Hop::Request { .. } => "request",
        Hop::Started { .. } => "started",
        Hop::Answered { .. } => "answered",
        Hop::Body { .. } => "body",
        Hop::Written { .. } => "written",
        Hop::Acknowledged { .. } => "acknowledged",
        Hop::Sent { .. } => "sent",
        Hop::Ended { .. } => "ended",
        Hop::Closed => "closed",
        Hop::Burst { .. } => "burst",
        Hop::Flushed { .. } => "flushed",
        Hop::Completed { .. } => "completed",
    }
}

fn stream(hop: &Hop) -> Option<u64> {
    match hop {
        Hop::Request { stream, .. }
        | Hop::Started { stream }
        | Hop::Answered { stream, .. }
        | Hop::Body { stream }
        | Hop::Written { stream, .. }
        | Hop::Acknowledged { stream } => Some(*stream),
        _ => None,
    }
}

/// Hops of requests in their order, by connection and stream.
fn requests(events: &[Event]) -> BTreeMap<(u64, u64), Vec<&'static str>> {
    let mut requests: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for event in events {
        if let Some(stream) = stream(&event.hop) {
            requests.entry((event.connection, stream)).or_default().push(name(&event.hop));
        }
    }
    requests
}

/// Requests on a link with that loss, followed to their acknowledgements.
fn followed(seed: u64, loss: f64, paths: &[&str]) -> Vec<Event> {
    let link = Link { delay: Duration::from_millis(2), loss, ..Link::default() };
    let mut world = Build { link, seed, ..Build::default() }.world();
    let mut recording = world.tracers.start(&all()).unwrap();
    let id = client(&mut world, 5000);
    for path in paths {
        world.clients[id].get(path);
    }
    world.until("the answers", |world| world.clients[id].is_done());
    let mut found = Vec::new();
    world.until("acknowledgements", |_| {
        found.extend(events(&mut recording));
        found.iter().filter(|event| name(&event.hop) == "acknowledged").count() == paths.len()
    });
    found
}

#[test]
fn a_request_comes_by_every_hop_in_order_with_and_without_loss() {
    let paths = ["/bytes/100", "/bytes/300000", "/bytes/0", "/bytes/5000"];
    for (seed, loss) in [(1, 0.0), (2, 0.02), (3, 0.1)] {
        let found = followed(seed, loss, &paths);
        assert!(found.is_sorted_by_key(|event| event.time), "one worker: one order");
        let requests = requests(&found);
        assert_eq!(requests.len(), paths.len());
        for (request, hops) in requests {
            let expected = ["request", "started", "answered", "body", "written", "acknowledged"];
            let expected: Vec<_> =
                expected.into_iter().filter(|hop| *hop != "body" || hops.contains(hop)).collect();
            assert_eq!(hops, expected, "seed {seed}: {request:?}");
        }
        let bodies = found.iter().filter(|event| name(&event.hop) == "body").count();
        assert_eq!(bodies, 3, "one has no body");
        for event in &found {
            match &event.hop {
                Hop::Request { request, datagram, .. } => {
                    assert!(request.starts_with("GET https://") && request.contains("/bytes/"), "{request}");
                    assert!(datagram.taken <= datagram.opened && datagram.opened <= event.time);
                    assert_eq!((datagram.way, datagram.arrived), (Some(Channel::Simulated), None));
                }
                Hop::Burst { began, packets, bytes, .. } => {
                    assert!(*began <= event.time && *packets > 0 && bytes / packets <= 1500);
                }
                Hop::Written { complete, .. } => assert!(complete),
                _ => {}
            }
        }
    }
}

#[test]
fn each_burst_is_flushed_in_the_turn_that_built_it() {
    let found = followed(1, 0.0, &["/bytes/3000000"]);
    let mut built = 0;
    for event in &found {
        match event.hop {
            Hop::Burst { mark, .. } => {
                assert!(mark > built, "marks ascend");
                built = mark;
            }
            Hop::Flushed { mark, began } => {
                assert!(mark >= built && began <= event.time);
                built = mark;
            }
            _ => {}
        }
    }
    assert!(built > 10);
}

#[test]
fn only_the_client_that_was_asked_for_is_followed() {
    let mut world = Build::default().world();
    let mut recording = world.tracers.start(&by_port(5001)).unwrap();
    let ids = [client(&mut world, 5000), client(&mut world, 5001)];
    for id in ids {
        world.clients[id].get("/bytes/20000");
    }
    world.until("the answers", |world| ids.iter().all(|id| world.clients[*id].is_done()));
    let found = events(&mut recording);
    let wanted: SocketAddr = "198.51.100.1:5001".parse().unwrap();
    assert_eq!(requests(&found).len(), 1);
    for event in &found {
        if let Hop::Taken { remote, .. } | Hop::Connection { remote, .. } = &event.hop {
            assert_eq!(*remote, wanted);
        }
    }
}

#[test]
fn an_id_selects_its_connection_and_one_that_runs_is_taken_up() {
    let mut world = Build::default().world();
    let ids = [client(&mut world, 5000), client(&mut world, 5001)];
    for id in ids {
        world.clients[id].get("/bytes/20000");
    }
    world.until("the answers", |world| ids.iter().all(|id| world.clients[*id].is_done()));
    // Both are followed from their next packets on; one of them by its ID then.
    let mut recording = world.tracers.start(&all()).unwrap();
    for id in ids {
        world.clients[id].get("/bytes/10");
    }
    world.until("the answers", |world| ids.iter().all(|id| world.clients[*id].is_done()));
    let known: BTreeMap<SocketAddr, Box<str>> = events(&mut recording)
        .into_iter()
        .filter_map(|event| match event.hop {
            Hop::Connection { remote, id } => Some((remote, id)),
            _ => None,
        })
        .collect();
    assert_eq!(known.len(), 2);
    drop(recording);
    let (remote, id) = known.last_key_value().unwrap();
    let bytes = data_encoding::HEXLOWER.decode(&id.as_bytes()[..16]).unwrap();
    let filter = Filter { client: None, connection: bytes };
    let mut recording = world.tracers.start(&Tracing { filter, sample: 1 }).unwrap();
    for id in ids {
        world.clients[id].get("/bytes/10");
    }
    world.until("the answers", |world| ids.iter().all(|id| world.clients[*id].is_done()));
    let found = events(&mut recording);
    assert_eq!(requests(&found).len(), 1);
    let first = found.iter().find_map(|event| match &event.hop {
        Hop::Connection { remote, .. } => Some(*remote),
        _ => None,
    });
    assert_eq!(first, Some(*remote));
}

#[test]
fn a_client_keeps_its_number_when_its_address_changes() {
    let mut world = Build::default().world();
    let outer = |port: u16| format!("203.0.113.7:{port}").parse().unwrap();
    world.network.translate("198.51.100.1:5000".parse().unwrap(), outer(7000));
    let mut recording = world.tracers.start(&all()).unwrap();
    let id = client(&mut world, 5000);
    world.clients[id].get("/bytes/3000000");
    world.until("some of the body", |world| world.clients[id].received() > 500_000);
    world.network.translate("198.51.100.1:5000".parse().unwrap(), outer(7001));
    world.clients[id].quic.send_ack_eliciting().unwrap();
    world.until("the rest", |world| world.clients[id].is_done());
    let connections: Vec<_> = events(&mut recording)
        .into_iter()
        .filter_map(|event| match event.hop {
            Hop::Connection { remote, .. } => Some((event.connection, remote)),
            _ => None,
        })
        .collect();
    let number = connections[0].0;
    assert!(connections.iter().all(|(other, _)| *other == number), "{connections:?}");
    assert!(connections.iter().any(|(_, remote)| *remote == outer(7001)), "{connections:?}");
}

#[test]
fn one_request_in_n_is_followed_and_packets_only_with_it() {
    let mut world = Build::default().world();
    let id = client(&mut world, 5000);
    world.clients[id].get("/bytes/10");
    world.until("the connection", |world| world.clients[id].is_done());
    let sampled = Tracing { sample: 5, ..all() };
    let mut recording = world.tracers.start(&sampled).unwrap();
    let mut found = Vec::new();
    for number in 1..=10 {
        world.clients[id].get("/bytes/10");
        world.until("the answer", |world| world.clients[id].is_done());
        let is_sampled = number % 5 == 1;
        let mut new = events(&mut recording);
        world.until("the acknowledgement", |_| {
            new.extend(events(&mut recording));
            !is_sampled || new.iter().any(|event| name(&event.hop) == "acknowledged")
        });
        let bursts = new.iter().filter(|event| name(&event.hop) == "burst").count();
        assert_eq!(requests(&new).len(), usize::from(is_sampled), "{number}: {new:?}");
        assert_eq!(bursts > 0, is_sampled, "{number}: {new:?}");
        found.extend(new);
    }
    assert_eq!(requests(&found).len(), 2);
}

#[test]
fn a_request_that_is_given_up_ends() {
    let mut world = Build::default().world();
    let mut recording = world.tracers.start(&all()).unwrap();
    let id = client(&mut world, 5000);
    world.clients[id].get("/bytes/300000000");
    world.until("some of the body", |world| world.clients[id].received() > 500_000);
    world.clients[id].quic.close(true, 0x100, b"").unwrap();
    world.until("the end", |world| world.stats(0).connections_closed == 1);
    let found = events(&mut recording);
    let end = found.iter().find_map(|event| match event.hop {
        Hop::Written { complete, bytes, .. } => Some((complete, bytes > 0)),
        _ => None,
    });
    assert_eq!(end, Some((false, true)));
    let closed: Vec<_> = found.iter().filter(|event| event.hop == Hop::Closed).collect();
    let last = found.iter().rfind(|event| event.connection != 0);
    assert_eq!(closed, Vec::from_iter(last), "once, and nothing of it comes after");
}

#[test]
fn what_a_client_sends_is_told_in_printable_characters() {
    let mut world = Build::default().world();
    let mut recording = world.tracers.start(&all()).unwrap();
    let id = client(&mut world, 5000);
    // No scheme of ours: what else is in it is not looked at.
    let fields = [(":method", "GET"), (":scheme", "ftp"), (":authority", "a"), (":path", "/\x1b[2J\n\u{9b}")];
    world.clients[id].raw(&fields, b"");
    world.until("the answer", |world| world.clients[id].is_done());
    let requests: Vec<_> = events(&mut recording)
        .into_iter()
        .filter_map(|event| match event.hop {
            Hop::Request { request, .. } => Some(request),
            _ => None,
        })
        .collect();
    assert_eq!(requests, [r"GET /\x1B[2J\x0A\xC2\x9B".into()]);
}

#[test]
fn a_client_that_moves_out_of_sight_is_told_as_closed() {
    let mut world = Build::default().world();
    let outer = |port: u16| format!("203.0.113.7:{port}").parse().unwrap();
    world.network.translate("198.51.100.1:5000".parse().unwrap(), outer(7000));
    let client_of = |port| Some(("203.0.113.7".parse().unwrap(), Some(port)));
    let filter = Filter { client: client_of(7000), ..Filter::default() };
    let mut recording = world.tracers.start(&Tracing { filter, sample: 1 }).unwrap();
    let id = client(&mut world, 5000);
    world.clients[id].get("/bytes/3000000");
    world.until("some of the body", |world| world.clients[id].received() > 500_000);
    world.network.translate("198.51.100.1:5000".parse().unwrap(), outer(7001));
    world.clients[id].quic.send_ack_eliciting().unwrap();
    world.until("the rest", |world| world.clients[id].is_done());
    let found = events(&mut recording);
    let number = found.iter().find(|event| name(&event.hop) == "connection").unwrap().connection;
    let last = found.iter().rfind(|event| event.connection == number).unwrap();
    assert_eq!(last.hop, Hop::Closed);
}

#[test]
fn a_connection_is_numbered_anew_by_the_next_recording_though_its_client_has_moved() {
    let mut world = Build::default().world();
    let outer = |port: u16| format!("203.0.113.7:{port}").parse().unwrap();
    world.network.translate("198.51.100.1:5000".parse().unwrap(), outer(7000));
    let id = client(&mut world, 5000);
    let mut numbers = Vec::new();
    for port in [7001, 7002, 7003] {
        let mut recording = world.tracers.start(&all()).unwrap();
        world.clients[id].get("/bytes/10");
        world.until("the answer", |world| world.clients[id].is_done());
        let found = events(&mut recording);
        let first = found.iter().find(|event| name(&event.hop) == "connection").unwrap();
        numbers.push(first.connection);
        world.network.translate("198.51.100.1:5000".parse().unwrap(), outer(port));
        drop(recording);
        // Moves while nobody traces.
        world.clients[id].get("/bytes/10");
        world.until("the answer", |world| world.clients[id].is_done());
    }
    assert!(numbers.is_sorted_by(|one, other| one < other), "{numbers:?}");
}
