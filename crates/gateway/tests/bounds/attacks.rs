//! What has been tried by hand, each with the bound of a turn. With TURNS=1 in the environment and `--nocapture` the longest
//! turn of each is printed; with TURNS=whole that of turns which are not cut.

use std::time::Duration;

use expressway_netio::{Flow, PacketIo};

use crate::bed::{BLOCK, BLOCKS, BOUND, beside, clients, longest, world};
use crate::support::client::{Client, Options};
use crate::support::world::World;

/// Asserts the bound for what `attack` does in a world with `count` clients.
#[track_caller]
fn holds(what: &str, count: u16, options: fn() -> Options, attack: impl Fn(&mut World, &[usize])) {
    let _beside = beside();
    let longest = longest(|| {
        let mut world = world(|settings| settings.send_window = 4 << 20);
        let ids = clients(&mut world, count, options);
        attack(&mut world, &ids);
        world.most(0).time
    });
    println!("{what}: {longest:?}");
    assert!(longest <= BOUND, "{what}: {longest:?}");
}

fn all_done(world: &mut World) {
    world.until("all responses", |world| world.clients.iter().all(Client::is_done));
}

/// Asks for `count` times `fields` on each connection.
fn ask(world: &mut World, ids: &[usize], count: usize, path: &str, extra: &[(&str, &str)]) {
    for id in ids {
        for _ in 0..count {
            world.clients[*id].request("GET", path, extra, b"");
        }
    }
    all_done(world);
}

#[test]
fn a_hundred_requests_at_once_on_each_of_many_connections() {
    holds("16 times 100 requests", 16, Options::default, |world, ids| ask(world, ids, 100, "/small", &[]));
}

#[test]
fn a_hundred_large_files_at_once() {
    holds("100 large files", 1, Options::default, |world, ids| {
        for _ in 0..100 {
            world.clients[ids[0]].get("/large");
        }
        world.until("some of it", |world| world.clients[ids[0]].received() > 60 << 20);
    });
}

#[test]
fn ranges_of_an_octet_in_every_block() {
    let ranges: Vec<_> = (0..BLOCKS).map(|block| format!("{0}-{0}", block * BLOCK)).collect();
    let ranges = format!("bytes={}", ranges.join(","));
    holds("200 ranges in 200 blocks", 2, Options::default, |world, ids| {
        ask(world, ids, 10, "/large", &[("range", &ranges)]);
    });
}

#[test]
fn conditions_with_fifteen_thousand_members() {
    let members = ["a,".repeat(15_000), "\"\",".repeat(10_000), "W/,".repeat(10_000)];
    for (name, members) in
        [("if-none-match", &members[0]), ("if-match", &members[1]), ("if-none-match", &members[2])]
    {
        holds("conditions of 30 kB", 2, Options::default, |world, ids| {
            ask(world, ids, 20, "/small", &[(name, members)]);
        });
    }
}

#[test]
fn authorities_of_fifteen_thousand_labels() {
    let labels = format!("{}edge.example", "a.".repeat(15_000));
    holds("authorities of 15,000 labels", 2, Options::default, |world, ids| {
        for id in ids {
            for _ in 0..20 {
                let fields = [
                    (":method", "GET"),
                    (":scheme", "https"),
                    (":authority", &labels[..]),
                    (":path", "/small"),
                ];
                world.clients[*id].raw(&fields, b"");
            }
        }
        all_done(world);
    });
}

#[test]
fn retries_and_version_negotiation_by_the_thousand() {
    let _beside = beside();
    let longest = longest(|| {
        let mut world = world(|settings| settings.retry = expressway_gateway::quic::RetryPolicy::Always);
        let one = |version| Options { version, ..Options::default() };
        let (from, server) = ("198.51.100.77:7".parse().unwrap(), world.server());
        let first = Client::new(&world.network, "198.51.100.8:1", server, one(quiche::PROTOCOL_VERSION))
            .first_flight();
        let mut other = first.clone();
        other[1..5].copy_from_slice(&[0x1a; 4]);
        let mut io = world.network.endpoint(&[from]).unwrap();
        for packet in [first, other] {
            for _ in 0..10 {
                let mut left = 200;
                io.transmit(&Flow::new(from, server), packet.len(), &mut |slot| {
                    if left == 0 {
                        return 0;
                    }
                    left -= 1;
                    slot.copy_from_slice(&packet);
                    packet.len()
                })
                .unwrap();
                io.flush(std::time::Instant::now()).unwrap();
            }
        }
        world.until("answers", |world| {
            let stats = world.stats(0);
            stats.datagrams_received == 4000
        });
        world.for_a_while(Duration::from_millis(20));
        world.most(0).time
    });
    println!("4000 Retries and Version Negotiations: {longest:?}");
    assert!(longest <= BOUND, "{longest:?}");
}

/// An octet on each of a hundred streams, in as few packets as they fit into.
#[test]
fn packets_full_of_small_frames() {
    holds(
        "packets of small frames",
        1,
        || Options { http: true, ..Options::default() },
        |world, ids| {
            let client = &mut world.clients[ids[0]];
            for round in 0..200 {
                for stream in 0..100 {
                    // A frame of an unknown type, as long as it will be.
                    let octet: &[u8] = if round == 0 { &[0x21] } else { &[0x00] };
                    let _ = client.quic.stream_send(stream * 4, octet, false);
                }
                let _ = client.send_now();
            }
            world.for_a_while(Duration::from_millis(200));
        },
    );
}

#[test]
fn connections_that_go_all_at_once() {
    holds(
        "80 connections that end",
        80,
        || Options { reads: false, ..Options::default() },
        |world, ids| {
            for id in ids {
                for _ in 0..20 {
                    world.clients[*id].get("/large");
                }
            }
            world.until("requests", |world| world.stats(0).requests == 80 * 20);
            for id in ids {
                world.clients[*id].quic.close(true, 0x100, b"").unwrap();
            }
            world.until("their end", |world| world.stats(0).connections == 0);
        },
    );
}

#[test]
fn loss_timers_of_many_connections_at_once() {
    holds(
        "timers of 80 connections",
        80,
        || Options { reads: false, ..Options::default() },
        |world, ids| {
            for id in ids {
                for _ in 0..5 {
                    world.clients[*id].get("/large");
                }
            }
            // Nobody acknowledges anything from now on.
            world.until("data under way", |world| world.stats(0).datagrams_sent > 80 * 20);
            let clients = std::mem::take(&mut world.clients);
            world.for_a_while(Duration::from_millis(1500));
            drop(clients);
        },
    );
}
