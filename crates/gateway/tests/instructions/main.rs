//! What the main paths of the endpoint cost, for `scripts/instructions`: it runs one path under callgrind, which counts the
//! instructions of a worker's turns (`Server::turn` of `support/world.rs`), and not those of the clients beside it.
//!
//! Packets are sealed and opened, requests read and answered; the network is simulated, so no kernel has a part in it. As
//! an ordinary test, each path runs once and shows that it does what it is counted for.

#[path = "../support/mod.rs"]
mod support;

use std::sync::Arc;

use bytes::Bytes;
use expressway_netio::sim::Link;
use expressway_web::memory::Memory;
use expressway_web::{Exchange, Handler, RequestBody, RequestHead, Wake};
use http::{HeaderMap, StatusCode};

use support::client::{Client, Options};
use support::world::{Build, World};

/// Answers `/N` with N octets that lie in memory.
struct Memories(Bytes);

/// Octets of the longest answer.
const LONGEST: usize = 1 << 20;

impl Handler for Memories {
    fn start(&self, request: &RequestHead, _: RequestBody, _: Wake) -> Exchange {
        let length: usize = request.target[1..].parse().unwrap();
        Exchange::fixed(&request.method, StatusCode::OK, HeaderMap::new(), self.0.slice(..length))
    }
}

fn world() -> World {
    let handler: Arc<dyn Handler> = Arc::new(Memories(vec![7; LONGEST].into()));
    Build { link: Link::default(), handler: Some((handler, Memory::new(256 << 20))), ..Build::default() }
        .world()
}

/// The world's one client.
fn join(world: &mut World, number: usize) {
    let local = format!("198.51.100.1:{}", 5000 + number);
    world.clients = vec![Client::new(&world.network, &local, world.server(), Options::default())];
    world.until("a connection", |world| world.clients[0].http.is_some());
}

/// Has a connection answer `requests` of `octets` each, so many at a time.
fn answer(octets: usize, requests: usize, at_once: usize) {
    let mut world = world();
    join(&mut world, 0);
    for _ in 0..requests / at_once {
        for _ in 0..at_once {
            world.clients[0].get(&format!("/{octets}"));
        }
        world.until("the answers", |world| world.clients[0].is_done());
        assert_eq!(world.clients[0].received(), (at_once * octets) as u64);
        world.clients[0].responses.clear();
    }
    assert_eq!(world.stats(0).requests, requests as u64);
}

/// 64 MiB in bodies of 1 MiB, four at a time.
#[test]
fn bulk() {
    answer(LONGEST, 64, 4);
}

/// 4,000 requests for 1 KiB, eight at a time.
#[test]
fn requests() {
    answer(1 << 10, 4000, 8);
}

/// 40 connections with a request each.
#[test]
fn connections() {
    let mut world = world();
    for number in 0..40 {
        join(&mut world, number);
        world.clients[0].get("/1024");
        world.until("the answer", |world| world.clients[0].is_done());
    }
    assert_eq!(world.stats(0).connections_established, 40);
}
