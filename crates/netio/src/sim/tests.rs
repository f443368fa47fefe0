use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::*;
use crate::io::{Datagram, Ecn, Flow, IoError, PacketIo};

fn address(host: u8, port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, host], port))
}

const A: u8 = 1;
const B: u8 = 2;

struct Bed {
    network: Network,
    a: SimIo,
    b: SimIo,
    origin: Instant,
}

fn bed(seed: u64, link: Link) -> Bed {
    let network = Network::new(seed, link);
    let a = network.endpoint(&[address(A, 1)]).expect("free");
    let b = network.endpoint(&[address(B, 2)]).expect("free");
    Bed { network, a, b, origin: Instant::now() }
}

impl Bed {
    fn send(&mut self, now: Instant, numbers: std::ops::Range<u32>, ecn: Ecn) {
        let flow = Flow { ecn, ..Flow::new(address(A, 1), address(B, 2)) };
        send(&mut self.a, now, &flow, numbers, 100);
    }

    /// Numbers and marks of what has arrived at B by `after`.
    fn arrived(&mut self, after: Duration) -> Vec<(u32, Ecn)> {
        arrived(&mut self.b, self.origin + after)
    }
}

fn send(io: &mut SimIo, now: Instant, flow: &Flow, mut numbers: std::ops::Range<u32>, len: usize) {
    while !numbers.is_empty() {
        io.transmit(flow, len, &mut |slot| {
            let Some(number) = numbers.next() else { return 0 };
            slot[..4].copy_from_slice(&number.to_be_bytes());
            len
        })
        .expect("the simulated network does not fail");
        io.flush(now).expect("the simulated network does not fail");
    }
}

fn number(datagram: &Datagram<'_>) -> u32 {
    u32::from_be_bytes(datagram.payload[..4].try_into().expect("at least four bytes"))
}

fn arrived(io: &mut SimIo, now: Instant) -> Vec<(u32, Ecn)> {
    let mut seen = Vec::new();
    while io.receive(now, &mut |datagram| seen.push((number(&datagram), datagram.ecn))).expect("no failure")
        != 0
    {}
    seen
}

const MS: Duration = Duration::from_millis(1);

#[test]
fn delay_holds_to_the_nanosecond() {
    let mut bed = bed(1, Link { delay: 10 * MS, ..Link::default() });
    bed.send(bed.origin, 0..3, Ecn::NotEct);
    assert_eq!(bed.network.next_arrival_after(bed.origin), Some(bed.origin + 10 * MS));
    assert_eq!(bed.arrived(10 * MS - Duration::from_nanos(1)), []);
    let numbers: Vec<u32> = bed.arrived(10 * MS).into_iter().map(|(number, _)| number).collect();
    assert_eq!(numbers, [0, 1, 2]);
}

#[test]
fn jitter_keeps_order() {
    let mut bed = bed(1, Link { delay: MS, jitter: 20 * MS, ..Link::default() });
    for step in 0..100 {
        bed.send(bed.origin + step * MS, step..step + 1, Ecn::NotEct);
    }
    let numbers: Vec<u32> = bed.arrived(1000 * MS).into_iter().map(|(number, _)| number).collect();
    assert_eq!(numbers, (0..100).collect::<Vec<_>>());
}

#[test]
fn loss_duplication_and_reordering_come_at_their_rates_and_add_up() {
    let link = Link { delay: MS, loss: 0.1, duplicate: 0.05, reorder: 0.02, ..Link::default() };
    let mut bed = bed(7, link);
    let mut seen = Vec::new();
    for step in 0..4000u32 {
        let after = step * MS;
        bed.send(bed.origin + after, step..step + 1, Ecn::NotEct);
        seen.extend(bed.arrived(after));
    }
    seen.extend(bed.arrived(10_000 * MS));
    let stats = bed.network.stats();
    assert_eq!(stats.entered, 4000);
    assert_eq!(stats.delivered, seen.len() as u64);
    assert_eq!(stats.entered + stats.duplicated, stats.delivered + stats.dropped_loss);
    assert!((300..500).contains(&stats.dropped_loss), "{stats:?}");
    assert!((120..260).contains(&stats.duplicated), "{stats:?}");
    assert!((40..130).contains(&stats.reordered), "{stats:?}");
    let overtaken = seen.windows(2).filter(|pair| pair[1].0 < pair[0].0).count();
    assert!(overtaken > 20, "{overtaken}");
    assert_eq!(bed.network.in_flight(), 0);
}

#[test]
fn one_seed_gives_one_run_and_another_gives_another() {
    let run = |seed| {
        let mut bed = bed(seed, Link { loss: 0.3, duplicate: 0.3, reorder: 0.3, ..Link::default() });
        bed.send(bed.origin, 0..200, Ecn::NotEct);
        bed.arrived(100 * MS)
    };
    assert_eq!(run(3), run(3));
    assert_ne!(run(3), run(4));
}

#[test]
fn a_rate_spaces_datagrams_and_its_queue_is_bounded() {
    // 100 B and 28 B of headers at 1,024,000 bit/s: 1 ms each.
    let link = Link { rate: Some(1_024_000), queue_bytes: 128 * 10, ..Link::default() };
    let mut bed = bed(1, link);
    bed.send(bed.origin, 0..15, Ecn::NotEct);
    assert_eq!(bed.network.stats().dropped_queue, 5);
    for nth in 1..=10 {
        assert_eq!(bed.arrived(nth * MS).len(), 1, "datagram {nth}");
    }
    bed.send(bed.origin + 20 * MS, 20..21, Ecn::NotEct);
    assert_eq!(bed.arrived(21 * MS).len(), 1, "the queue has drained");
}

#[test]
fn a_queue_marks_only_what_is_capable_of_ecn() {
    let link = Link { rate: Some(1_024_000), mark_above_bytes: 256, ..Link::default() };
    let mut bed = bed(1, link.clone());
    bed.send(bed.origin, 0..6, Ecn::Ect0);
    let marks: Vec<Ecn> = bed.arrived(100 * MS).into_iter().map(|(_, ecn)| ecn).collect();
    assert_eq!(marks, [Ecn::Ect0, Ecn::Ect0, Ecn::Ect0, Ecn::Ce, Ecn::Ce, Ecn::Ce]);
    let mut bed = self::bed(1, Link { mark: 1.0, ..link });
    bed.send(bed.origin, 0..6, Ecn::NotEct);
    assert!(bed.arrived(100 * MS).iter().all(|&(_, ecn)| ecn == Ecn::NotEct));
}

#[test]
fn the_first_hop_refuses_what_is_too_large_and_a_later_one_swallows_it() {
    let mut bed = bed(1, Link { mtu: 1000, path_mtu: 500, ..Link::default() });
    let flow = Flow::new(address(A, 1), address(B, 2));
    assert_eq!(bed.a.max_payload(&flow), 972);
    send(&mut bed.a, bed.origin, &flow, 0..1, 973);
    assert_eq!(bed.a.stats().dropped_send_refused, 1);
    send(&mut bed.a, bed.origin, &flow, 0..1, 972);
    send(&mut bed.a, bed.origin, &flow, 0..1, 472);
    assert_eq!(bed.network.stats().dropped_path_mtu, 1);
    assert_eq!(bed.arrived(MS).len(), 1);
}

#[test]
fn a_translated_address_is_what_others_see_and_rebinding_moves_it() {
    let mut bed = bed(1, Link::default());
    let seen_by_b = |bed: &mut Bed| {
        let flow = Flow::new(address(A, 1), address(B, 2));
        send(&mut bed.a, bed.origin, &flow, 0..1, 4);
        let mut remote = None;
        bed.b.receive(bed.origin, &mut |datagram| remote = Some(datagram.remote)).expect("no failure");
        remote.expect("one has arrived")
    };
    assert_eq!(seen_by_b(&mut bed), address(A, 1));
    bed.network.translate(address(A, 1), address(9, 1000));
    assert_eq!(seen_by_b(&mut bed), address(9, 1000));
    bed.network.translate(address(A, 1), address(9, 2000));
    assert_eq!(seen_by_b(&mut bed), address(9, 2000));

    for (port, reaches) in [(2000, true), (1000, false)] {
        send(&mut bed.b, bed.origin, &Flow::new(address(B, 2), address(9, port)), 0..1, 4);
        let mut local = None;
        bed.a.receive(bed.origin, &mut |datagram| local = Some(datagram.local)).expect("no failure");
        assert_eq!(local, reaches.then(|| address(A, 1)), "port {port}");
    }
    assert_eq!(bed.network.stats().dropped_unreachable, 1);
}

#[test]
fn nobody_sends_from_an_address_that_is_not_his() {
    let mut bed = bed(1, Link::default());
    send(&mut bed.a, bed.origin, &Flow::new(address(B, 2), address(B, 2)), 0..1, 4);
    assert_eq!(bed.a.stats().dropped_send_refused, 1);
    assert_eq!(bed.network.stats().entered, 0);
}

#[test]
fn addresses_are_taken_once_and_given_back() {
    let bed = bed(1, Link::default());
    let taken = bed.network.endpoint(&[address(A, 1)]).expect_err("it is taken");
    assert_eq!(taken.kind(), std::io::ErrorKind::AddrInUse);
    let wildcard = bed.network.endpoint(&[SocketAddr::from(([0, 0, 0, 0], 1))]).expect_err("a wildcard");
    assert_eq!(wildcard.kind(), std::io::ErrorKind::AddrNotAvailable);
    drop(bed.a);
    bed.network.endpoint(&[address(A, 1)]).expect("it is free again");
}

#[test]
fn an_endpoint_that_does_not_read_is_bounded() {
    let mut bed = bed(1, Link::default());
    for _ in 0..10 {
        bed.send(bed.origin, 0..1000, Ecn::NotEct);
    }
    assert_eq!(bed.network.in_flight(), 8192);
    assert_eq!(bed.network.stats().dropped_receive_queue, 10_000 - 8192);
}

/// Sends one datagram every 10 ms, or answers each; counts what it gets.
struct Peer {
    io: SimIo,
    flow: Flow,
    next: Option<Instant>,
    got: Rc<Cell<u32>>,
}

impl Node for Peer {
    fn turn(&mut self, now: Instant) -> Result<bool, IoError> {
        let received = self.io.receive(now, &mut |_| ())?;
        self.got.set(self.got.get() + received as u32);
        let due = self.next.is_some_and(|next| next <= now);
        let answers = if self.next.is_none() { received as u32 } else { u32::from(due) };
        if due {
            self.next = Some(now + 10 * MS);
        }
        send(&mut self.io, now, &self.flow.clone(), 0..answers, 100);
        Ok(received != 0 || due)
    }

    fn next_deadline(&mut self) -> Option<Instant> {
        self.next
    }
}

#[test]
fn the_driver_takes_virtual_time_from_event_to_event() {
    let Bed { network, a, b, origin } = bed(1, Link { delay: 30 * MS, ..Link::default() });
    let got = Rc::new(Cell::new(0));
    let there = Flow::new(address(A, 1), address(B, 2));
    let back = Flow::new(there.remote, there.local);
    let mut asker = Peer { io: a, flow: there, next: Some(origin), got: Rc::clone(&got) };
    let mut answerer = Peer { io: b, flow: back, next: None, got: Rc::default() };
    let mut clock = Clock::virtual_from(origin);
    let hour = origin + Duration::from_secs(3600);
    let nodes: &mut [&mut dyn Node] = &mut [&mut asker, &mut answerer];
    let done = run_until(&network, nodes, &mut clock, hour, || got.get() == 100).expect("no failure");
    assert!(done);
    assert_eq!(clock.now(), origin + 99 * 10 * MS + 60 * MS, "the hundredth answer");
}

#[test]
fn a_simulation_at_rest_ends_at_its_limit() {
    let network = Network::new(1, Link::default());
    let origin = Instant::now();
    let mut clock = Clock::virtual_from(origin);
    let done = run_until(&network, &mut [], &mut clock, origin + MS, || false).expect("no failure");
    assert!(!done);
    assert_eq!(clock.now(), origin + MS);
}
