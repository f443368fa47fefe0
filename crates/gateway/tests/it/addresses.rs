//! Clients whose address changes, by a NAT's doing, on purpose or by forgery.

use std::time::{Duration, Instant};

use expressway_netio::sim::{Link, SimIo};
use expressway_netio::{Flow, PacketIo};

use crate::support::client::{Client, Options};
use crate::support::world::{Build, World};

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
        self.send(&held_back(client));
    }

    fn send(&mut self, datagram: &[u8]) {
        send(&mut self.io, &self.flow, datagram);
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

fn send(io: &mut SimIo, flow: &Flow, datagram: &[u8]) {
    let mut source = Some(datagram);
    io.transmit(flow, datagram.len(), &mut |slot| {
        source.take().map_or(0, |datagram| {
            slot[..datagram.len()].copy_from_slice(datagram);
            datagram.len()
        })
    })
    .unwrap();
    io.flush(Instant::now()).unwrap();
}

/// The next datagram of `client`, unsent: what it sends from now on overtakes it.
fn held_back(client: &mut Client) -> Vec<u8> {
    client.quic.send_ack_eliciting().unwrap();
    client.first_flight()
}

/// A connected client, with datagrams of it that were held back, and a newer one that the server has had. Those that are much
/// older would count as duplicates.
fn overtaken(count: usize) -> (World, usize, Vec<Vec<u8>>) {
    let mut world = Build::default().world();
    world.network.translate("198.51.100.1:5000".parse().unwrap(), "203.0.113.7:7000".parse().unwrap());
    let id = client(&mut world, 5000, Options::default());
    world.clients[id].get("/bytes/1000");
    world.until("a response", |world| world.clients[id].is_done());
    world.for_a_while(Duration::from_millis(50));
    let older = (0..count).map(|_| held_back(&mut world.clients[id])).collect();
    let acknowledged = world.clients[id].quic.stats().acked_bytes;
    world.clients[id].quic.send_ack_eliciting().unwrap();
    world.until("a newer datagram", |world| world.clients[id].quic.stats().acked_bytes > acknowledged);
    (world, id, older)
}

#[track_caller]
fn check_service(world: &mut World, id: usize) {
    world.clients[id].get("/bytes/300000");
    world.until("another response", |world| world.clients[id].is_done());
    let response = world.clients[id].response(1);
    assert!(response.finished && response.intact && response.received == 300_000, "{response:?}");
    assert_eq!(world.stats(0).connections_accepted, 1);
}

/// RFC 9000, section 9.3: the client is where its highest-numbered packet came from.
#[test]
fn a_datagram_that_was_overtaken_moves_nobody() {
    let (mut world, id, older) = overtaken(20);
    let mut elsewhere = Forger::new(&world, "203.0.113.1:7000");
    let received = world.clients[id].quic.stats().recv;
    for datagram in &older {
        elsewhere.send(datagram);
    }
    // They are opened and acknowledged all the same, to the client.
    world.until("an acknowledgement", |world| world.clients[id].quic.stats().recv > received);
    let stats = world.stats(0);
    assert_eq!((stats.paths_new, stats.paths_migrated), (0, 0));
    assert!(!elsewhere.receive(), "nothing is sent there");
    check_service(&mut world, id);
    // One that overtakes those before it does move it.
    elsewhere.send_for(&mut world.clients[id]);
    world.until("it was seen", |world| world.stats(0).paths_new == 1);
    world.until("a challenge", |_| elsewhere.receive());
    elsewhere.check_limit();
}

#[test]
fn datagrams_that_come_late_from_a_former_port_do_not_undo_a_rebinding() {
    let (mut world, id, older) = overtaken(40);
    let mut former = Forger::new(&world, "203.0.113.8:7000");
    let rebind = |world: &mut World, port: u16, count: u64| {
        let outer = format!("203.0.113.7:{port}").parse().unwrap();
        world.network.translate("198.51.100.1:5000".parse().unwrap(), outer);
        world.clients[id].quic.send_ack_eliciting().unwrap();
        world.until("the next port", |world| world.stats(0).paths_new == count);
    };
    // Late ones come before the new port is validated, and after.
    rebind(&mut world, 7001, 1);
    for datagram in &older[..20] {
        former.send(datagram);
    }
    world.until("the port validated", |world| world.stats(0).paths_migrated == 1);
    for datagram in &older[20..] {
        former.send(datagram);
    }
    world.for_a_while(Duration::from_millis(20));
    check_service(&mut world, id);
    assert_eq!((world.stats(0).paths_new, world.stats(0).paths_migrated), (1, 1));
    assert!(!former.receive(), "nothing is sent there");
}

#[test]
fn datagrams_that_come_late_do_not_undo_a_migration() {
    let mut world = Build::default().world();
    let id = client(&mut world, 5000, Options::default());
    world.clients[id].get("/bytes/1000");
    world.until("a response", |world| world.clients[id].is_done());
    world.for_a_while(Duration::from_millis(50));
    let older: Vec<_> = (0..20).map(|_| held_back(&mut world.clients[id])).collect();
    world.clients[id].offer_spare_id();
    world.clients[id].migrate("198.51.100.1:25000");
    world.until("the migration", |world| world.stats(0).paths_migrated == 1);
    let flow = Flow::new("198.51.100.1:5000".parse().unwrap(), world.server());
    older.iter().for_each(|datagram| send(&mut world.clients[id].io, &flow, datagram));
    world.for_a_while(Duration::from_millis(20));
    check_service(&mut world, id);
    let stats = world.stats(0);
    assert_eq!((stats.paths_new, stats.paths_migrated), (1, 1));
}

#[test]
fn ports_may_change_where_datagrams_overtake_each_other() {
    let link = Link {
        delay: Duration::from_millis(3),
        jitter: Duration::from_millis(2),
        reorder: 0.2,
        reorder_delay: Duration::from_millis(6),
        ..Link::default()
    };
    let world = rebind_often(Build { link, ..Build::default() }.world(), 12, false);
    let stats = world.stats(0);
    assert_eq!((stats.connections_accepted, stats.paths_new, stats.paths_failed), (1, 12, 0));
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
    // The client says nothing by itself, or it would be heard from where it is.
    let (mut world, id, _) = overtaken(0);
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

/// The engine wants to send something on the path for challenges then, which is not because it was answered.
#[test]
fn a_challenge_of_the_client_is_no_answer_to_one() {
    let (mut world, id, _) = overtaken(0);
    let (local, server) = ("198.51.100.1:5000".parse().unwrap(), world.server());
    let mut victim = Forger::new(&world, "203.0.113.2:7000");
    for _ in 0..3 {
        world.clients[id].quic.probe_path(local, server).unwrap();
        let probe = world.clients[id].first_flight();
        victim.send(&probe);
    }
    world.for_a_while(Duration::from_millis(5));
    assert_eq!(world.stats(0).paths_new, 0, "a probe says nothing of where the client is");
    for _ in 0..3 {
        victim.send_for(&mut world.clients[id]);
        world.for_a_while(Duration::from_millis(4));
    }
    // A client that times out says something from where it is, and the address is then new once more.
    assert!(world.stats(0).paths_new >= 1);
    assert_eq!(world.stats(0).paths_migrated, 0);
    victim.check_limit();
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
