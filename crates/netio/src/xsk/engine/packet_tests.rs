//! Tests of who has which frame, with two fake kernels and readers of all kinds.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use proptest::prelude::*;

use super::fake::{FakeKernel, Heap, HeapRing, NoSocket, rings_and_kernel};
use super::{Engine, Kernel, RxFrame, Umem, Xsk, XskId};
use crate::readers::abi::PacketDescriptor;
use crate::readers::{MAX_READERS, PacketInfo, ReaderRings};
use crate::ring::{Consumer, Producer, RingMemory};
use crate::umem::Owner;
use crate::xsk::abi::Descriptor;

const RING: u32 = 4;
const QUOTA: u32 = 4;
const READERS: usize = 3;
const A: XskId = XskId(0);
const B: XskId = XskId(1);

fn collect<K: Kernel>(engine: &mut Engine<K>) -> u32 {
    engine.readers.collect(&mut engine.umem)
}

fn dismiss<K: Kernel>(engine: &mut Engine<K>, place: usize) {
    engine.readers.dismiss(&mut engine.umem, place);
}

/// Lends the whole packet.
fn lend(mut packet: RxFrame<'_, Heap>, readers: u32, info: PacketInfo) -> u32 {
    let whole = 0..packet.bytes().len();
    packet.lend(whole, readers, info)
}

/// The other side of a reader's rings.
struct FakeReader {
    packets: Consumer<Arc<HeapRing<PacketDescriptor>>>,
    returns: Producer<Arc<HeapRing<u64>>>,
    kept: Vec<PacketDescriptor>,
}

impl FakeReader {
    fn take(&mut self, count: usize) {
        for _ in 0..count {
            self.kept.extend(self.packets.pop());
        }
        self.packets.release();
    }

    fn give_back(&mut self, addr: u64) {
        let _ = self.returns.push(addr);
        self.returns.publish();
    }
}

fn reader() -> (ReaderRings<Heap>, FakeReader) {
    let (packets, returns) = (HeapRing::starting_at(QUOTA, u32::MAX - 1), HeapRing::starting_at(QUOTA, 7));
    let rings = ReaderRings::new(Arc::clone(&packets), Arc::clone(&returns), QUOTA);
    (rings, FakeReader { packets: Consumer::new(packets), returns: Producer::new(returns), kept: Vec::new() })
}

struct Bed {
    engine: Engine<Heap>,
    kernels: [FakeKernel; 2],
    readers: [Option<FakeReader>; READERS],
}

impl Bed {
    fn new() -> Self {
        let shares = 4 * RING as usize + READERS * QUOTA as usize;
        let mut umem = Umem::new(2048, shares as u32, false).unwrap();
        let ((one, near), (two, far)) = (rings_and_kernel(RING), rings_and_kernel(RING));
        let xsks = vec![Xsk::new(A, &mut umem, NoSocket, one, 0), Xsk::new(B, &mut umem, NoSocket, two, 0)];
        let engine = Engine::new(umem, xsks);
        Self { engine, kernels: [near, far], readers: [const { None }; READERS] }
    }

    fn join(&mut self, place: usize) {
        if self.readers[place].is_none() && self.engine.readers.reader(place).is_none() {
            let (rings, reader) = reader();
            self.engine.readers.admit(&mut self.engine.umem, place, rings);
            self.readers[place] = Some(reader);
        }
    }

    fn join_all(&mut self, places: [usize; 2]) {
        places.into_iter().for_each(|place| self.join(place));
    }

    fn complete(&mut self, xsk: XskId) -> usize {
        let (xsk, umem) = self.engine.xsk(xsk);
        xsk.complete(umem)
    }

    fn arrive(&mut self, xsk: XskId, packet: &[u8]) -> bool {
        let umem = &mut self.engine.umem;
        self.kernels[xsk.0 as usize].receive_into(umem, packet)
    }

    fn collect(&mut self) {
        let corrupt = collect(&mut self.engine);
        for place in 0..READERS {
            if corrupt & (1 << place) != 0 {
                dismiss(&mut self.engine, place);
                self.readers[place] = None;
            }
        }
    }

    /// Every frame has one owner, those who hold some hold no more than their share, and the promises add up.
    fn check(&self) {
        let umem = &self.engine.umem;
        let mut all = umem.free_count();
        assert_eq!(umem.owned_by(Owner::Program), umem.free_count(), "a frame of the program's is not free");
        for xsk in [A, B] {
            let (receiving, sending) = self.engine.xsks[xsk.0 as usize].held();
            assert_eq!(umem.owned_by(Owner::Receive(xsk)), receiving);
            assert_eq!(umem.owned_by(Owner::Transmit(xsk)), sending);
            assert!(receiving <= RING as usize && sending <= RING as usize);
            all += receiving + sending;
        }
        let lent = self.engine.readers.holders().iter().filter(|set| **set != 0).count();
        assert_eq!(umem.owned_by(Owner::Readers), lent);
        assert_eq!(all + lent, umem.count(), "a frame is lost");
        let mut promised = 4 * RING as usize;
        for place in 0..MAX_READERS {
            let has = self.engine.readers.holders().iter().filter(|set| **set & (1 << place) != 0).count();
            match self.engine.readers.reader(place) {
                Some(reader) => {
                    assert_eq!(reader.held() as usize, has);
                    assert!(reader.held() <= QUOTA);
                    promised += QUOTA as usize;
                }
                None => assert_eq!(has, 0, "somebody who is gone has a frame"),
            }
        }
        assert_eq!(umem.unreserved(), umem.count() - promised);
    }
}

#[test]
fn a_frame_received_on_one_socket_leaves_by_another_without_a_copy() {
    let mut bed = Bed::new();
    assert!(bed.arrive(A, b"through"));
    let mut place = 0;
    bed.engine.receive_each(A, 8, |mut packet| {
        packet.bytes()[0] = b'T';
        place = packet.bytes().as_ptr() as usize;
        assert!(packet.send(B));
    });
    bed.check();
    bed.engine.xsks[B.0 as usize].tx.publish();
    assert_eq!((bed.kernels[0].take(8), bed.kernels[1].take(8)), (0, 1));
    let sent = bed.kernels[1].sending[0];
    let umem = &bed.engine.umem;
    assert_eq!(umem.kernel_read(sent.addr, sent.len), b"Through");
    assert_eq!(umem.registration().0 + sent.addr, place as u64, "the frame that it arrived in");
    bed.kernels[1].complete(8);
    assert_eq!(bed.complete(B), 1);
    bed.check();
}

#[test]
fn forwarding_beyond_a_sockets_share_drops_and_starves_nobody() {
    let mut bed = Bed::new();
    let mut forwarded = 0;
    for _ in 0..10 {
        while bed.arrive(A, b"packet") {}
        bed.engine.receive_each(A, 64, |packet| forwarded += u32::from(packet.send(B)));
        bed.check();
    }
    assert_eq!(forwarded, RING, "as many as the TX ring has entries");
    assert!(bed.arrive(A, b"still receives") && bed.arrive(B, b"still receives"));
}

#[test]
fn a_completion_in_the_ring_of_another_socket_is_refused() {
    let mut bed = Bed::new();
    bed.arrive(A, b"packet");
    bed.engine.receive_each(A, 1, |packet| assert!(packet.send(B)));
    bed.engine.xsks[B.0 as usize].tx.publish();
    bed.kernels[1].take(1);
    let addr = bed.kernels[1].sending[0].addr;
    bed.kernels[0].completion.push(addr).unwrap();
    bed.kernels[0].completion.publish();
    assert_eq!(bed.complete(A), 0);
    assert_eq!(bed.engine.xsks[A.0 as usize].counters().bad_descriptor, 1);
    bed.check();
}

#[test]
fn a_packet_lent_to_two_readers_is_free_when_both_have_returned_it() {
    let mut bed = Bed::new();
    bed.join_all([0, 2]);
    bed.arrive(B, b"quote");
    bed.engine.receive_each(B, 1, |packet| {
        assert_eq!(lend(packet, u32::MAX, PacketInfo { timestamp: 99, flags: 5 }), 0b101)
    });
    assert_eq!(bed.engine.readers.publish(), 0, "nobody sleeps");
    let free = bed.engine.umem.free_count();
    for place in [0, 2] {
        assert_eq!(bed.engine.umem.free_count(), free);
        let reader = bed.readers[place].as_mut().unwrap();
        reader.take(8);
        let packet = reader.kept[0];
        assert_eq!(
            (packet.len, packet.flags, packet.source, packet.timestamp, packet.sequence),
            (5, 5, 1, 99, 0)
        );
        reader.give_back(packet.addr);
        bed.collect();
        bed.check();
    }
    assert_eq!(bed.engine.umem.free_count(), free + 1);
}

#[test]
fn a_slow_reader_costs_its_quota_and_no_packet_of_others() {
    let mut bed = Bed::new();
    bed.join_all([0, 1]);
    for round in 0..50u64 {
        assert!(bed.arrive(A, b"tick"), "round {round}");
        let mut lent = 0;
        bed.engine.receive_each(A, 1, |packet| lent = lend(packet, 0b11, PacketInfo::default()));
        assert_eq!(lent, if round < QUOTA.into() { 0b11 } else { 0b10 });
        bed.engine.readers.publish();
        let fast = bed.readers[1].as_mut().unwrap();
        fast.take(8);
        let packet = fast.kept.pop().unwrap();
        assert_eq!(packet.sequence, round);
        fast.give_back(packet.addr);
        bed.collect();
        bed.check();
    }
    let slow = bed.engine.readers.reader(0).unwrap();
    assert_eq!((slow.held(), slow.stats().dropped_quota), (QUOTA, 50 - u64::from(QUOTA)));
}

#[test]
fn what_a_dead_reader_had_is_free_at_once() {
    let mut bed = Bed::new();
    bed.join_all([0, 1]);
    for _ in 0..QUOTA {
        bed.arrive(A, b"tick");
        bed.engine.receive_each(A, 1, |packet| assert_eq!(lend(packet, 0b11, PacketInfo::default()), 0b11));
    }
    dismiss(&mut bed.engine, 0);
    bed.check();
    dismiss(&mut bed.engine, 1);
    bed.check();
    assert!(bed.engine.readers.holders().iter().all(|set| *set == 0));
    assert_eq!(bed.engine.readers.vacancy(), Some(0));
}

#[test]
fn false_returns_are_counted_and_change_nothing() {
    let mut bed = Bed::new();
    bed.join_all([0, 1]);
    bed.arrive(A, b"tick");
    let mut addr = 0;
    bed.engine.receive_each(A, 1, |packet| assert_eq!(lend(packet, 0b10, PacketInfo::default()), 0b10));
    bed.engine.readers.publish();
    bed.readers[1].as_mut().unwrap().take(1);
    addr += bed.readers[1].as_ref().unwrap().kept[0].addr;
    // Another's frame, outside, the kernel's, free: then the right reader, twice.
    for false_address in [addr, u64::MAX, 2048 * 1000, 0] {
        bed.readers[0].as_mut().unwrap().give_back(false_address);
    }
    bed.collect();
    bed.check();
    assert_eq!(bed.engine.readers.reader(0).unwrap().stats().bad_returns, 4);
    for _ in 0..2 {
        bed.readers[1].as_mut().unwrap().give_back(addr);
    }
    bed.collect();
    bed.check();
    let counters = bed.engine.readers.reader(1).unwrap().stats();
    assert_eq!((counters.returned, counters.bad_returns), (1, 1));
}

#[test]
fn a_reader_with_impossible_indices_is_told() {
    let mut bed = Bed::new();
    bed.join_all([0, 1]);
    bed.readers[1].as_ref().unwrap().returns.memory().producer().store(1000, Ordering::Release);
    assert_eq!(collect(&mut bed.engine), 0b10);
}

#[test]
fn a_handler_that_unwinds_loses_no_frame() {
    let mut bed = Bed::new();
    bed.arrive(A, b"one");
    bed.arrive(A, b"two");
    let unwound = catch_unwind(AssertUnwindSafe(|| bed.engine.receive_each(A, 8, |_| panic!("handler"))));
    assert!(unwound.is_err());
    bed.check();
    assert_eq!(bed.engine.receive_each(A, 8, |_| ()), 1);
    bed.check();
}

/// What may happen next, at any side.
#[derive(Clone, Debug)]
enum Event {
    Arrive(u16),
    Forward { from: u16, to: u16, limit: usize },
    Lend { from: u16, readers: u32, limit: usize },
    Drop { from: u16, limit: usize },
    Build { xsk: u16, submit: bool },
    Publish,
    Take { xsk: u16, count: usize },
    Complete { xsk: u16, count: usize },
    Collect,
    Join(usize),
    Die(usize),
    ReaderTakes { place: usize, count: usize },
    ReaderReturns { place: usize },
    FalseReturn { place: usize, addr: u64 },
    ReaderIndex { place: usize, which: u8, to: u32 },
    FalseRx { xsk: u16, addr: u64, len: u32 },
    FalseCompletion { xsk: u16, addr: u64 },
}

fn addresses() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0..2048 * 32u64, 1 => any::<u64>()]
}

fn honest() -> impl Strategy<Value = Event> {
    let xsk = || 0..2u16;
    let place = || 0..READERS;
    prop_oneof![
        4 => xsk().prop_map(Event::Arrive),
        2 => (xsk(), xsk(), 0..5usize).prop_map(|(from, to, limit)| Event::Forward { from, to, limit }),
        3 => (xsk(), any::<u32>(), 0..5usize)
            .prop_map(|(from, readers, limit)| Event::Lend { from, readers, limit }),
        1 => (xsk(), 0..5usize).prop_map(|(from, limit)| Event::Drop { from, limit }),
        1 => (xsk(), any::<bool>()).prop_map(|(xsk, submit)| Event::Build { xsk, submit }),
        2 => Just(Event::Publish),
        2 => (xsk(), 1..5usize).prop_map(|(xsk, count)| Event::Take { xsk, count }),
        2 => (xsk(), 1..5usize).prop_map(|(xsk, count)| Event::Complete { xsk, count }),
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
        2 => (0..2u16, addresses(), 0..4096u32).prop_map(|(xsk, addr, len)| Event::FalseRx { xsk, addr, len }),
        2 => (0..2u16, addresses()).prop_map(|(xsk, addr)| Event::FalseCompletion { xsk, addr }),
    ]
}

fn apply(bed: &mut Bed, event: &Event) {
    match *event {
        Event::Arrive(xsk) => {
            bed.arrive(XskId(xsk), &[0xaa; 60]);
        }
        Event::Forward { from, to, limit } => {
            bed.engine.receive_each(XskId(from), limit, |packet| {
                packet.send(XskId(to));
            });
        }
        Event::Lend { from, readers, limit } => {
            bed.engine.receive_each(XskId(from), limit, |packet| {
                lend(packet, readers, PacketInfo::default());
            });
        }
        Event::Drop { from, limit } => {
            bed.engine.receive_each(XskId(from), limit, |mut packet| packet.bytes().fill(0x55));
        }
        Event::Build { xsk, submit } => {
            if let Some(frame) = bed.engine.alloc(XskId(xsk))
                && submit
            {
                frame.submit(0..64);
            }
        }
        Event::Publish => {
            bed.engine.readers.publish();
            for xsk in [A, B] {
                bed.engine.xsks[xsk.0 as usize].tx.publish();
            }
        }
        Event::Take { xsk, count } => {
            bed.kernels[xsk as usize].take(count);
        }
        Event::Complete { xsk, count } => {
            bed.kernels[xsk as usize].complete(count);
            bed.complete(XskId(xsk));
        }
        Event::Collect => bed.collect(),
        Event::Join(place) => bed.join(place),
        Event::Die(place) => {
            dismiss(&mut bed.engine, place);
            bed.readers[place] = None;
        }
        Event::FalseRx { xsk, addr, len } => {
            bed.kernels[xsk as usize].push_rx(Descriptor { addr, len, options: 0 });
        }
        Event::FalseCompletion { xsk, addr } => {
            if bed.kernels[xsk as usize].completion.push(addr).is_ok() {
                bed.kernels[xsk as usize].completion.publish();
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
            if let Some(packet) = reader.kept.pop() {
                reader.give_back(packet.addr);
            }
        }
        Event::FalseReturn { addr, .. } => reader.give_back(addr),
        Event::ReaderIndex { which: 0, to, .. } => {
            reader.packets.memory().consumer().store(to, Ordering::Release);
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
        for xsk in [0, 1] {
            while bed.kernels[xsk as usize].take(8) + bed.kernels[xsk as usize].complete(8) > 0 {
                bed.complete(XskId(xsk));
            }
            apply(&mut bed, &Event::Drop { from: xsk, limit: 64 });
            prop_assert_eq!(bed.engine.xsks[usize::from(xsk)].counters().bad_descriptor, 0);
        }
        for reader in bed.readers.iter_mut().flatten() {
            reader.take(8);
            while let Some(packet) = reader.kept.pop() {
                reader.give_back(packet.addr);
            }
        }
        prop_assert_eq!(collect(&mut bed.engine), 0);
        bed.check();
        for place in 0..READERS {
            let counters = bed.engine.readers.reader(place).map(|one| (one.held(), one.stats().bad_returns));
            prop_assert!(matches!(counters, None | Some((0, 0))), "{:?}", counters);
        }
        // Both fill rings are full; all else is free.
        prop_assert_eq!(bed.engine.umem.free_count(), bed.engine.umem.count() - 2 * RING as usize);
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
