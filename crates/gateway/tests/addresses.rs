//! Clients whose address changes, by a NAT's doing, on purpose or by forgery.

mod support;

use std::time::{Duration, Instant};

use expressway_netio::sim::SimIo;
use expressway_netio::{Flow, PacketIo};
use support::client::{Client, Options};
use support::world::{Build, World};

fn client(world: &mut World, port: u16, options: Options) -> usize {
    let client = Client::new(&world.network, &format!("198.51.100.1:{port}"), world.server(), options);
    world.add(client)
}

#[test]
fn a_nat_rebinding_in_mid_transfer_changes_nothing_for_the_client() {
    let mut world = Build::default().world();
    let outer = |port: u16| format!("203.0.113.7:{port}").parse().unwrap();
    world.network.translate("198.51.100.1:5000".parse().unwrap(), outer(7000));
    let id = client(&mut world, 5000, Options::default());
    world.clients[id].get("/bytes/20000000");
    for step in 1..4 {
        world.until("some of the body", |world| world.clients[id].received() > step * 2_000_000);
        world.network.translate("198.51.100.1:5000".parse().unwrap(), outer(7000 + step as u16 * 2));
        // What was under way is lost; a client that only ever acknowledges would have nothing to say.
        world.clients[id].quic.send_ack_eliciting().unwrap();
    }
    world.until("the rest", |world| world.clients[id].is_done());
    let response = world.clients[id].response(0);
    assert!(response.finished && response.intact && response.received == 20_000_000, "{response:?}");
    let stats = world.stats(0);
    assert_eq!(stats.connections_accepted, 1);
    assert_eq!(stats.paths_new, 3);
}

/// Has a client's port change `count` times while it downloads, and never back to an earlier one.
fn rebind_often(mut world: World, count: u64, spare_id: bool) -> World {
    let outer = |port: u64| format!("203.0.113.7:{port}").parse().unwrap();
    world.network.translate("198.51.100.1:5000".parse().unwrap(), outer(7000));
    let id = client(&mut world, 5000, Options::default());
    world.clients[id].get("/bytes/30000000");
    for step in 1..=count {
        world.until("some of the body", |world| world.clients[id].received() > step * 1_000_000);
        if spare_id && step == 1 {
            world.clients[id].offer_spare_id();
        }
        world.network.translate("198.51.100.1:5000".parse().unwrap(), outer(7000 + step));
        world.clients[id].quic.send_ack_eliciting().unwrap();
        world.until("the port validated", |world| world.stats(0).paths_migrated == step);
    }
    world.until("the rest", |world| world.clients[id].is_done());
    let response = world.clients[id].response(0);
    assert!(response.finished && response.intact && response.received == 30_000_000, "{response:?}");
    world
}

#[test]
fn a_port_may_change_any_number_of_times() {
    for spare_id in [false, true] {
        let world = rebind_often(Build::default().world(), 24, spare_id);
        let stats = world.stats(0);
        assert_eq!((stats.connections_accepted, stats.paths_new, stats.paths_failed), (1, 24, 0));
    }
}

#[test]
fn a_port_may_change_any_number_of_times_between_two_workers() {
    let world = rebind_often(Build { workers: 2, ..Build::default() }.world(), 24, false);
    let (first, second) = (world.stats(0), world.stats(1));
    assert_eq!((first.connections_accepted, second.connections_accepted), (1, 0));
    assert_eq!((first.paths_new, first.paths_failed), (24, 0));
    assert!(first.taken_over > 10 && first.taken_over <= second.handed_over, "{first:?} {second:?}");
}

/// An address that is not the client's, from which datagrams of its are sent.
struct Forger {
    io: SimIo,
    flow: Flow,
    sent: usize,
    received: Vec<Vec<u8>>,
}

impl Forger {
    fn new(world: &World, address: &str) -> Self {
        let local = address.parse().unwrap();
        let io = world.network.endpoint(&[local]).unwrap();
        Self { io, flow: Flow::new(local, world.server()), sent: 0, received: Vec::new() }
    }

    /// Sends the next datagram of `client`.
    fn send_for(&mut self, client: &mut Client) {
        client.quic.send_ack_eliciting().unwrap();
        let datagram = client.first_flight();
        let mut source = Some(&datagram);
        self.io
            .transmit(&self.flow, datagram.len(), &mut |slot| {
                source.take().map_or(0, |datagram| {
                    slot[..datagram.len()].copy_from_slice(datagram);
                    datagram.len()
                })
            })
            .unwrap();
        self.io.flush(Instant::now()).unwrap();
        self.sent += datagram.len();
    }

    fn receive(&mut self) -> bool {
        let received = &mut self.received;
        self.io.receive(Instant::now(), &mut |datagram| received.push(datagram.payload.to_vec())).unwrap();
        !self.received.is_empty()
    }

    #[track_caller]
    fn check_limit(&mut self) {
        self.receive();
        let received: usize = self.received.iter().map(Vec::len).sum();
        assert!(received <= 3 * self.sent, "{received} bytes for {}", self.sent);
    }
}

#[test]
fn addresses_that_do_not_answer_get_little_and_the_client_keeps_its_connection() {
    let mut world = Build::default().world();
    let id = client(&mut world, 5000, Options::default());
    world.clients[id].get("/bytes/30000000");
    let mut forgers: Vec<_> =
        (1..=12).map(|last| Forger::new(&world, &format!("203.0.113.{last}:7000"))).collect();
    for (step, forger) in (1u64..).zip(&mut forgers) {
        world.until("some of the body", |world| world.clients[id].received() > step * 2_000_000);
        forger.send_for(&mut world.clients[id]);
        world.until("it was seen", |world| world.stats(0).paths_new == step);
    }
    world.until("the rest", |world| world.clients[id].is_done());
    let response = world.clients[id].response(0);
    assert!(response.finished && response.intact && response.received == 30_000_000, "{response:?}");
    forgers.iter_mut().for_each(Forger::check_limit);
    let stats = world.stats(0);
    assert_eq!((stats.connections_accepted, stats.paths_migrated), (1, 0));
}

#[test]
fn an_answer_proves_the_address_that_was_asked_and_no_other() {
    let mut world = Build::default().world();
    let id = client(&mut world, 5000, Options::default());
    world.clients[id].get("/bytes/30000000");
    world.until("some of the body", |world| world.clients[id].received() > 2_000_000);
    world.clients[id].reads = false;
    let mut own = Forger::new(&world, "203.0.113.1:7000");
    own.send_for(&mut world.clients[id]);
    world.until("a challenge", |_| own.receive());
    // It is answered from elsewhere, where nobody listens.
    let mut victim = Forger::new(&world, "203.0.113.2:7000");
    victim.send_for(&mut world.clients[id]);
    world.until("the second was seen", |world| world.stats(0).paths_new == 2);
    let (from, to) = (world.server(), "198.51.100.1:5000".parse().unwrap());
    for datagram in &mut own.received.clone() {
        world.clients[id].quic.recv(datagram, quiche::RecvInfo { from, to }).unwrap();
    }
    for _ in 0..4 {
        victim.send_for(&mut world.clients[id]);
    }
    world.for_a_while(Duration::from_millis(200));
    victim.check_limit();
    assert_eq!(world.stats(0).paths_migrated, 0);
}

#[test]
fn a_client_may_migrate_with_a_connection_id_of_its_own() {
    let mut world = Build::default().world();
    let id = client(&mut world, 5000, Options::default());
    world.clients[id].get("/bytes/10000000");
    world.until("some of the body", |world| world.clients[id].received() > 1_000_000);
    assert!(world.clients[id].quic.available_dcids() >= 2, "the server offers spare connection IDs");
    world.clients[id].offer_spare_id();
    world.clients[id].migrate("198.51.100.1:25000");
    world.until("the rest", |world| world.clients[id].is_done());
    let response = world.clients[id].response(0);
    assert!(response.finished && response.intact && response.received == 10_000_000, "{response:?}");
    let stats = world.stats(0);
    assert_eq!((stats.paths_new, stats.paths_migrated, stats.connections_accepted), (1, 1, 1));
}

#[test]
fn a_rebinding_that_lands_on_another_worker_is_handed_over() {
    let mut world = Build { workers: 2, ..Build::default() }.world();
    let outer = |port: u16| format!("203.0.113.7:{port}").parse().unwrap();
    world.network.translate("198.51.100.1:5000".parse().unwrap(), outer(7000));
    let id = client(&mut world, 5000, Options::default());
    world.clients[id].get("/bytes/10000000");
    world.until("some of the body", |world| world.clients[id].received() > 2_000_000);
    world.network.translate("198.51.100.1:5000".parse().unwrap(), outer(7001));
    world.clients[id].quic.send_ack_eliciting().unwrap();
    world.until("the rest", |world| world.clients[id].is_done());
    let response = world.clients[id].response(0);
    assert!(response.finished && response.intact && response.received == 10_000_000, "{response:?}");
    let (first, second) = (world.stats(0), world.stats(1));
    assert_eq!((first.connections_accepted, second.connections_accepted), (1, 0));
    assert!(first.taken_over > 10 && first.taken_over <= second.handed_over, "{first:?} {second:?}");
}
