//! Tests of who has which frame, with two fake kernels and readers of all kinds.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use proptest::prelude::*;

use super::super::abi::Descriptor;
use super::super::fake::{FakeKernel, Heap, HeapRing, rings_and_kernel};
use super::super::frame::Owner;
use super::super::lender::Lender;
use super::super::lending::MAX_READERS;
use super::super::loan::Loan;
use super::super::ring::{Consumer, Producer, RingMemory};
use super::*;

const RING: u32 = 4;
const QUOTA: u32 = 4;
const READERS: usize = 3;
const A: LaneId = LaneId(0);
const B: LaneId = LaneId(1);

fn collect<M: Memory>(exchange: &mut Exchange<M>) -> u32 {
    let (lending, frames) = exchange.lending();
    lending.collect(frames)
}

fn dismiss<M: Memory>(exchange: &mut Exchange<M>, place: usize) {
    let (lending, frames) = exchange.lending();
    lending.dismiss(frames, place);
}

/// The other side of a lender.
struct FakeReader {
    loans: Consumer<Arc<HeapRing<Loan>>>,
    returns: Producer<Arc<HeapRing<u64>>>,
    kept: Vec<Loan>,
}

impl FakeReader {
    fn take(&mut self, count: usize) {
        for _ in 0..count {
            self.kept.extend(self.loans.pop());
        }
        self.loans.release();
    }

    fn give_back(&mut self, addr: u64) {
        let _ = self.returns.push(addr);
        self.returns.publish();
    }
}

fn reader() -> (Lender<Heap>, FakeReader) {
    let (loans, returns) = (HeapRing::starting_at(QUOTA, u32::MAX - 1), HeapRing::starting_at(QUOTA, 7));
    let lender = Lender::new(Arc::clone(&loans), Arc::clone(&returns), QUOTA);
    (lender, FakeReader { loans: Consumer::new(loans), returns: Producer::new(returns), kept: Vec::new() })
}

struct Bed {
    exchange: Exchange<Heap>,
    kernels: [FakeKernel; 2],
    readers: [Option<FakeReader>; READERS],
}

impl Bed {
    fn new() -> Self {
        let shares = 4 * RING as usize + READERS * QUOTA as usize;
        let mut exchange = Exchange::new(Frames::new(2048, shares as u32, false).unwrap());
        let ((one, near), (two, far)) = (rings_and_kernel(RING), rings_and_kernel(RING));
        assert_eq!(exchange.add_lane(one, 2 * RING as usize), A);
        assert_eq!(exchange.add_lane(two, 2 * RING as usize), B);
        Self { exchange, kernels: [near, far], readers: [const { None }; READERS] }
    }

    fn join(&mut self, place: usize) {
        if self.readers[place].is_none() && self.exchange.lending_ref().reader(place).is_none() {
            let (lender, reader) = reader();
            self.exchange.lending().0.admit(place, lender);
            self.readers[place] = Some(reader);
        }
    }

    fn join_all(&mut self, places: [usize; 2]) {
        places.into_iter().for_each(|place| self.join(place));
    }

    fn arrive(&mut self, lane: LaneId, packet: &[u8]) -> bool {
        let umem = &mut self.exchange.frames_mut().umem;
        self.kernels[lane.0 as usize].receive_into(umem, packet)
    }

    fn collect(&mut self) {
        let corrupt = collect(&mut self.exchange);
        for place in 0..READERS {
            if corrupt & (1 << place) != 0 {
                dismiss(&mut self.exchange, place);
                self.readers[place] = None;
            }
        }
    }

    /// Every frame has one owner, those who hold some hold no more than their share, and the promises add up.
    fn check(&self) {
        let frames = self.exchange.frames();
        let umem = &frames.umem;
        let mut all = frames.free.len();
        assert_eq!(umem.owned_by(Owner::Program), frames.free.len(), "a frame of the program's is not free");
        for lane in [A, B] {
            let (receiving, sending) = self.exchange.lane_ref(lane).held();
            assert_eq!(umem.owned_by(Owner::Receive(lane)), receiving);
            assert_eq!(umem.owned_by(Owner::Transmit(lane)), sending);
            assert!(receiving <= RING as usize && sending <= RING as usize);
            all += receiving + sending;
        }
        let lent = self.exchange.lending_ref().holders().iter().filter(|set| **set != 0).count();
        assert_eq!(umem.owned_by(Owner::Lent), lent);
        assert_eq!(all + lent, umem.count(), "a frame is lost");
        let mut promised = 4 * RING as usize;
        for place in 0..MAX_READERS {
            let has =
                self.exchange.lending_ref().holders().iter().filter(|set| **set & (1 << place) != 0).count();
            match self.exchange.lending_ref().reader(place) {
                Some(reader) => {
                    assert_eq!(reader.held() as usize, has);
                    assert!(reader.held() <= QUOTA);
                    promised += QUOTA as usize;
                }
                None => assert_eq!(has, 0, "somebody who is gone has a frame"),
            }
        }
        assert_eq!(self.exchange.unreserved(), umem.count() - promised);
    }
}

#[test]
fn a_frame_received_on_one_socket_leaves_by_another_without_a_copy() {
    let mut bed = Bed::new();
    assert!(bed.arrive(A, b"through"));
    let mut place = 0;
    bed.exchange.receive(A, 8, |mut packet| {
        packet.bytes()[0] = b'T';
        place = packet.bytes().as_ptr() as usize;
        assert!(packet.send(B));
    });
    bed.check();
    bed.exchange.lane(B).publish();
    assert_eq!((bed.kernels[0].take(8), bed.kernels[1].take(8)), (0, 1));
    let sent = bed.kernels[1].sending[0];
    let umem = &bed.exchange.frames().umem;
    assert_eq!(umem.kernel_read(sent.addr, sent.len), b"Through");
    assert_eq!(umem.registration().0 + sent.addr, place as u64, "the frame that it arrived in");
    bed.kernels[1].complete(8);
    assert_eq!(bed.exchange.complete(B), 1);
    bed.check();
}

#[test]
fn forwarding_beyond_a_lanes_share_drops_and_starves_nobody() {
    let mut bed = Bed::new();
    let mut forwarded = 0;
    for _ in 0..10 {
        while bed.arrive(A, b"packet") {}
        bed.exchange.receive(A, 64, |packet| forwarded += u32::from(packet.send(B)));
        bed.check();
    }
    assert_eq!(forwarded, RING, "as many as the TX ring has entries");
    assert!(bed.arrive(A, b"still receives") && bed.arrive(B, b"still receives"));
}

#[test]
fn a_completion_in_the_ring_of_another_socket_is_refused() {
    let mut bed = Bed::new();
    bed.arrive(A, b"packet");
    bed.exchange.receive(A, 1, |packet| assert!(packet.send(B)));
    bed.exchange.lane(B).publish();
    bed.kernels[1].take(1);
    let addr = bed.kernels[1].sending[0].addr;
    bed.kernels[0].completion.push(addr).unwrap();
    bed.kernels[0].completion.publish();
    assert_eq!(bed.exchange.complete(A), 0);
    assert_eq!(bed.exchange.lane_ref(A).counters().bad_descriptor, 1);
    bed.check();
}

#[test]
fn a_packet_lent_to_two_readers_is_free_when_both_have_returned_it() {
    let mut bed = Bed::new();
    bed.join_all([0, 2]);
    bed.arrive(B, b"quote");
    bed.exchange
        .receive(B, 1, |packet| assert_eq!(packet.lend(u32::MAX, Note { timestamp: 99, flags: 5 }), 0b101));
    assert_eq!(bed.exchange.lending().0.publish(), 0, "nobody sleeps");
    let free = bed.exchange.frames().free.len();
    for place in [0, 2] {
        assert_eq!(bed.exchange.frames().free.len(), free);
        let reader = bed.readers[place].as_mut().unwrap();
        reader.take(8);
        let loan = reader.kept[0];
        assert_eq!((loan.len, loan.flags, loan.source, loan.timestamp, loan.sequence), (5, 5, 1, 99, 0));
        reader.give_back(loan.addr);
        bed.collect();
        bed.check();
    }
    assert_eq!(bed.exchange.frames().free.len(), free + 1);
}

#[test]
fn a_slow_reader_costs_its_quota_and_no_packet_of_others() {
    let mut bed = Bed::new();
    bed.join_all([0, 1]);
    for round in 0..50u64 {
        assert!(bed.arrive(A, b"tick"), "round {round}");
        let mut lent = 0;
        bed.exchange.receive(A, 1, |packet| lent = packet.lend(0b11, Note::default()));
        assert_eq!(lent, if round < QUOTA.into() { 0b11 } else { 0b10 });
        bed.exchange.lending().0.publish();
        let fast = bed.readers[1].as_mut().unwrap();
        fast.take(8);
        let loan = fast.kept.pop().unwrap();
        assert_eq!(loan.sequence, round);
        fast.give_back(loan.addr);
        bed.collect();
        bed.check();
    }
    let slow = bed.exchange.lending_ref().reader(0).unwrap();
    assert_eq!((slow.held(), slow.stats().dropped_quota), (QUOTA, 50 - u64::from(QUOTA)));
}

#[test]
fn what_a_dead_reader_had_is_free_at_once() {
    let mut bed = Bed::new();
    bed.join_all([0, 1]);
    for _ in 0..QUOTA {
        bed.arrive(A, b"tick");
        bed.exchange.receive(A, 1, |packet| assert_eq!(packet.lend(0b11, Note::default()), 0b11));
    }
    dismiss(&mut bed.exchange, 0);
    bed.check();
    dismiss(&mut bed.exchange, 1);
    bed.check();
    assert!(bed.exchange.lending_ref().holders().iter().all(|set| *set == 0));
    assert_eq!(bed.exchange.lending_ref().vacancy(), Some(0));
}

#[test]
fn false_returns_are_counted_and_change_nothing() {
    let mut bed = Bed::new();
    bed.join_all([0, 1]);
    bed.arrive(A, b"tick");
    let mut addr = 0;
    bed.exchange.receive(A, 1, |packet| assert_eq!(packet.lend(0b10, Note::default()), 0b10));
    bed.exchange.lending().0.publish();
    bed.readers[1].as_mut().unwrap().take(1);
    addr += bed.readers[1].as_ref().unwrap().kept[0].addr;
    // Another's frame, outside, the kernel's, free: then the right reader, twice.
    for false_address in [addr, u64::MAX, 2048 * 1000, 0] {
        bed.readers[0].as_mut().unwrap().give_back(false_address);
    }
    bed.collect();
    bed.check();
    assert_eq!(bed.exchange.lending_ref().reader(0).unwrap().stats().bad_returns, 4);
    for _ in 0..2 {
        bed.readers[1].as_mut().unwrap().give_back(addr);
    }
    bed.collect();
    bed.check();
    let counters = bed.exchange.lending_ref().reader(1).unwrap().stats();
    assert_eq!((counters.returned, counters.bad_returns), (1, 1));
}

#[test]
fn a_reader_with_impossible_indices_is_told() {
    let mut bed = Bed::new();
    bed.join_all([0, 1]);
    bed.readers[1].as_ref().unwrap().returns.memory().producer().store(1000, Ordering::Release);
    assert_eq!(collect(&mut bed.exchange), 0b10);
}

#[test]
fn a_handler_that_unwinds_loses_no_frame() {
    let mut bed = Bed::new();
    bed.arrive(A, b"one");
    bed.arrive(A, b"two");
    let unwound = catch_unwind(AssertUnwindSafe(|| bed.exchange.receive(A, 8, |_| panic!("handler"))));
    assert!(unwound.is_err());
    bed.check();
    assert_eq!(bed.exchange.receive(A, 8, |_| ()), 1);
    bed.check();
}

/// What may happen next, at any side.
#[derive(Clone, Debug)]
enum Event {
    Arrive(u16),
    Forward { from: u16, to: u16, limit: usize },
    Lend { from: u16, readers: u32, limit: usize },
    Drop { from: u16, limit: usize },
    Build { lane: u16, submit: bool },
    Publish,
    Take { lane: u16, count: usize },
    Complete { lane: u16, count: usize },
    Collect,
    Join(usize),
    Die(usize),
    ReaderTakes { place: usize, count: usize },
    ReaderReturns { place: usize },
    FalseReturn { place: usize, addr: u64 },
    ReaderIndex { place: usize, which: u8, to: u32 },
    FalseRx { lane: u16, addr: u64, len: u32 },
    FalseCompletion { lane: u16, addr: u64 },
}

fn addresses() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0..2048 * 32u64, 1 => any::<u64>()]
}

fn honest() -> impl Strategy<Value = Event> {
    let lane = || 0..2u16;
    let place = || 0..READERS;
    prop_oneof![
        4 => lane().prop_map(Event::Arrive),
        2 => (lane(), lane(), 0..5usize).prop_map(|(from, to, limit)| Event::Forward { from, to, limit }),
        3 => (lane(), any::<u32>(), 0..5usize)
            .prop_map(|(from, readers, limit)| Event::Lend { from, readers, limit }),
        1 => (lane(), 0..5usize).prop_map(|(from, limit)| Event::Drop { from, limit }),
        1 => (lane(), any::<bool>()).prop_map(|(lane, submit)| Event::Build { lane, submit }),
        2 => Just(Event::Publish),
        2 => (lane(), 1..5usize).prop_map(|(lane, count)| Event::Take { lane, count }),
        2 => (lane(), 1..5usize).prop_map(|(lane, count)| Event::Complete { lane, count }),
        2 => Just(Event::Collect),
        2 => place().prop_map(Event::Join),
        1 => place().prop_map(Event::Die),
        2 => (place(), 1..5usize).prop_map(|(place, count)| Event::ReaderTakes { place, count }),
        3 => place().prop_map(|place| Event::ReaderReturns { place }),
    ]
}

fn hostile() -> impl Strategy<Value = Event> {
    prop_oneof![
        12 => honest(),
        3 => (0..READERS, addresses()).prop_map(|(place, addr)| Event::FalseReturn { place, addr }),
        1 => (0..READERS, 0..2u8, any::<u32>())
            .prop_map(|(place, which, to)| Event::ReaderIndex { place, which, to }),
        2 => (0..2u16, addresses(), 0..4096u32).prop_map(|(lane, addr, len)| Event::FalseRx { lane, addr, len }),
        2 => (0..2u16, addresses()).prop_map(|(lane, addr)| Event::FalseCompletion { lane, addr }),
    ]
}

fn apply(bed: &mut Bed, event: &Event) {
    match *event {
        Event::Arrive(lane) => {
            bed.arrive(LaneId(lane), &[0xaa; 60]);
        }
        Event::Forward { from, to, limit } => {
            bed.exchange.receive(LaneId(from), limit, |packet| {
                packet.send(LaneId(to));
            });
        }
        Event::Lend { from, readers, limit } => {
            bed.exchange.receive(LaneId(from), limit, |packet| {
                packet.lend(readers, Note::default());
            });
        }
        Event::Drop { from, limit } => {
            bed.exchange.receive(LaneId(from), limit, |mut packet| packet.bytes().fill(0x55));
        }
        Event::Build { lane, submit } => {
            if let Some(frame) = bed.exchange.acquire(LaneId(lane))
                && submit
            {
                frame.submit(0..64);
            }
        }
        Event::Publish => {
            bed.exchange.lending().0.publish();
            for lane in [A, B] {
                bed.exchange.lane(lane).publish();
            }
        }
        Event::Take { lane, count } => {
            bed.kernels[lane as usize].take(count);
        }
        Event::Complete { lane, count } => {
            bed.kernels[lane as usize].complete(count);
            bed.exchange.complete(LaneId(lane));
        }
        Event::Collect => bed.collect(),
        Event::Join(place) => bed.join(place),
        Event::Die(place) => {
            dismiss(&mut bed.exchange, place);
            bed.readers[place] = None;
        }
        Event::FalseRx { lane, addr, len } => {
            bed.kernels[lane as usize].push_rx(Descriptor { addr, len, options: 0 });
        }
        Event::FalseCompletion { lane, addr } => {
            if bed.kernels[lane as usize].completion.push(addr).is_ok() {
                bed.kernels[lane as usize].completion.publish();
            }
        }
        Event::ReaderTakes { place, .. }
        | Event::ReaderReturns { place }
        | Event::FalseReturn { place, .. }
        | Event::ReaderIndex { place, .. } => {
            if let Some(reader) = &mut bed.readers[place] {
                apply_reader(reader, event);
            }
        }
    }
}

fn apply_reader(reader: &mut FakeReader, event: &Event) {
    match *event {
        Event::ReaderTakes { count, .. } => reader.take(count),
        Event::ReaderReturns { .. } => {
            if let Some(loan) = reader.kept.pop() {
                reader.give_back(loan.addr);
            }
        }
        Event::FalseReturn { addr, .. } => reader.give_back(addr),
        Event::ReaderIndex { which: 0, to, .. } => {
            reader.loans.memory().consumer().store(to, Ordering::Release);
        }
        Event::ReaderIndex { to, .. } => reader.returns.memory().producer().store(to, Ordering::Release),
        _ => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    /// With honest kernels and readers nothing is refused, and when all is quiet every frame is where it
    /// belongs.
    #[test]
    fn shared_frames_are_conserved_in_any_order_of_events(events in prop::collection::vec(honest(), 0..200)) {
        let mut bed = Bed::new();
        for event in &events {
            apply(&mut bed, event);
            bed.check();
        }
        apply(&mut bed, &Event::Publish);
        for lane in [0, 1] {
            while bed.kernels[lane as usize].take(8) + bed.kernels[lane as usize].complete(8) > 0 {
                bed.exchange.complete(LaneId(lane));
            }
            apply(&mut bed, &Event::Drop { from: lane, limit: 64 });
            prop_assert_eq!(bed.exchange.lane_ref(LaneId(lane)).counters().bad_descriptor, 0);
        }
        for reader in bed.readers.iter_mut().flatten() {
            reader.take(8);
            while let Some(loan) = reader.kept.pop() {
                reader.give_back(loan.addr);
            }
        }
        prop_assert_eq!(collect(&mut bed.exchange), 0);
        bed.check();
        for place in 0..READERS {
            let counters = bed.exchange.lending_ref().reader(place).map(|one| (one.held(), one.stats().bad_returns));
            prop_assert!(matches!(counters, None | Some((0, 0))), "{:?}", counters);
        }
        // Both fill rings are full; all else is free.
        prop_assert_eq!(bed.exchange.frames().free.len(), bed.exchange.frames().umem.count() - 2 * RING as usize);
    }

    /// Whatever kernels and readers write, no frame leaks, none has two owners, and nobody has more than its
    /// share.
    #[test]
    fn shared_frames_have_one_owner_whatever_anybody_does(events in prop::collection::vec(hostile(), 0..200)) {
        let mut bed = Bed::new();
        for event in &events {
            apply(&mut bed, event);
            bed.check();
        }
    }
}
