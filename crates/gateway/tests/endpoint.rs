//! The endpoint end to end over the simulated network, against quiche clients.

mod support;

use std::time::Duration;

use expressway_netio::sim::Link;
use support::client::{Client, Options};
use support::world::{Build, World};

fn client(world: &mut World, port: u16, options: Options) -> usize {
    let client = Client::new(&world.network, &format!("198.51.100.1:{port}"), world.server(), options);
    world.add(client)
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
