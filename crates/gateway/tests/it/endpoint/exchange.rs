//! What the tests say to the endpoint.

use std::time::Instant;

use expressway_netio::{Flow, PacketIo};

use crate::support::client::{Client, Options};
use crate::support::world::World;

pub(crate) fn client(world: &mut World, port: u16, options: Options) -> usize {
    let client = Client::new(&world.network, &format!("198.51.100.1:{port}"), world.server(), options);
    world.add(client)
}

/// Sends one datagram from an address of its own, and hears no answer.
pub(crate) fn send_raw(world: &mut World, from: &str, payload: Vec<u8>) {
    send_all(world, from, [payload]);
}

/// Sends datagrams from an address of their own, and hears no answer.
pub(crate) fn send_all(world: &mut World, from: &str, payloads: impl IntoIterator<Item = Vec<u8>>) {
    let from = from.parse().unwrap();
    let mut io = world.network.endpoint(&[from]).unwrap();
    for payload in payloads {
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
}

/// Fetches `paths` on one connection and checks every byte.
#[track_caller]
pub(crate) fn fetch(world: &mut World, options: Options, paths: &[(&str, u64)]) -> usize {
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
