//! Tests of the frames' life against a fake kernel, well-behaved and hostile.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

use proptest::prelude::*;

use super::assembly::ASSEMBLY_SIZE;
use super::fake::{FakeKernel, Heap, HeapRing, engine_and_kernel};
use super::{Engine, Outcome, XskId};
use crate::readers::{PacketInfo, ReaderRings};
use crate::ring::{AtomicIndex, RingMemory, XDP_RING_NEED_WAKEUP};
use crate::umem::Owner;
use crate::xsk::abi::{Descriptor, XDP_PKT_CONTD};

/// The only socket.
const A: XskId = XskId(0);
const RING: u32 = 8;

/// Frames in the program's pool, and with the kernel to receive into and to send from.
fn held(engine: &Engine<Heap>) -> (usize, usize, usize) {
    let (receiving, sending) = engine.xsks[0].held();
    (engine.umem.free_count(), receiving, sending)
}

fn complete(engine: &mut Engine<Heap>) -> usize {
    let (xsk, umem) = engine.xsk(A);
    xsk.complete(umem)
}

fn submit_parts(engine: &mut Engine<Heap>, packet: &[u8]) -> bool {
    let (xsk, umem) = engine.xsk(A);
    xsk.submit_parts(umem, packet)
}

fn received(engine: &mut Engine<Heap>) -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    engine.receive_each(A, 64, |mut packet| {
        packets.push(packet.bytes().to_vec());
    });
    packets
}

/// Every frame has one owner, the owners together have all frames, and neither direction has more than its
/// share.
fn check_frames(engine: &Engine<Heap>) {
    let (free, receiving, sending) = held(engine);
    let umem = &engine.umem;
    assert_eq!(umem.owned_by(Owner::Program), free, "a frame of the program's is in no pool");
    assert_eq!(umem.owned_by(Owner::Receive(A)), receiving, "a receive frame is lost");
    assert_eq!(umem.owned_by(Owner::Transmit(A)), sending, "a transmit frame is lost");
    assert_eq!(free + receiving + sending, umem.count());
    assert!(receiving <= RING as usize && sending <= RING as usize, "{receiving} {sending}");
}

#[test]
fn the_fill_ring_is_full_before_anything_else_happens() {
    let (engine, mut kernel) = engine_and_kernel(RING, 0);
    assert_eq!(kernel.fill.available(u32::MAX), RING);
    check_frames(&engine);
}

#[test]
fn received_packets_come_out_in_order_and_their_frames_go_back_at_once() {
    let (mut engine, mut kernel) = engine_and_kernel(RING, 0);
    for round in 0..20u8 {
        for packet in 0..RING as u8 {
            assert!(kernel.receive(&mut engine, &[round, packet]));
        }
        assert!(!kernel.receive(&mut engine, b"no frame left"));
        assert!(engine.xsks[0].has_received());
        let packets = received(&mut engine);
        assert_eq!(packets, (0..RING as u8).map(|packet| vec![round, packet]).collect::<Vec<_>>());
        assert!(!engine.xsks[0].has_received());
        assert_eq!(kernel.fill.available(u32::MAX), RING, "kept full");
        check_frames(&engine);
    }
}

#[test]
fn a_limit_leaves_the_rest_for_the_next_call() {
    let (mut engine, mut kernel) = engine_and_kernel(RING, 0);
    for packet in 0..5u8 {
        kernel.receive(&mut engine, &[packet]);
    }
    let mut seen = Vec::new();
    for expected in [3, 2] {
        let taken = engine.receive_each(A, 3, |mut packet| {
            seen.push(packet.bytes()[0]);
        });
        assert_eq!(taken, expected);
    }
    assert_eq!(seen, [0, 1, 2, 3, 4]);
}

#[test]
fn a_packet_may_be_changed_in_place() {
    let (mut engine, mut kernel) = engine_and_kernel(RING, 0);
    kernel.receive(&mut engine, b"sealed");
    engine.receive_each(A, 1, |mut packet| {
        packet.bytes().copy_from_slice(b"opened");
        assert_eq!(packet.bytes(), b"opened");
    });
    check_frames(&engine);
}

#[test]
fn a_packet_in_several_frames_is_handed_over_in_one_piece() {
    let (mut engine, mut kernel) = engine_and_kernel(RING, ASSEMBLY_SIZE);
    let jumbo: Vec<u8> = (0..8000u32).map(|byte| byte as u8).collect();
    assert!(kernel.receive(&mut engine, &jumbo));
    assert!(kernel.receive(&mut engine, b"small"));
    assert_eq!(received(&mut engine), [jumbo, b"small".to_vec()]);
    assert_eq!(engine.xsks[0].counters().gathered, 1);
    check_frames(&engine);
}

#[test]
fn a_packet_larger_than_the_assembly_is_dropped_and_counted_once() {
    let (mut engine, mut kernel) = engine_and_kernel(RING, 4000);
    assert!(kernel.receive(&mut engine, &[1; 8000]));
    assert!(kernel.receive(&mut engine, b"next"));
    assert_eq!(received(&mut engine), [b"next".to_vec()]);
    assert_eq!(engine.xsks[0].counters().truncated, 1);
    check_frames(&engine);
}

#[test]
fn a_packet_whose_parts_come_in_two_calls_is_put_together() {
    let (mut engine, mut kernel) = engine_and_kernel(RING, ASSEMBLY_SIZE);
    let (first, second) = (kernel.fill.pop().unwrap(), kernel.fill.pop().unwrap());
    assert!(engine.umem.kernel_write(first, b"abc"));
    assert!(engine.umem.kernel_write(second, b"def"));
    kernel.push_rx(Descriptor { addr: first, len: 3, options: XDP_PKT_CONTD });
    assert!(received(&mut engine).is_empty());
    kernel.push_rx(Descriptor { addr: second, len: 3, options: 0 });
    assert_eq!(received(&mut engine), [b"abcdef".to_vec()]);
    check_frames(&engine);
}

#[test]
fn bad_descriptors_are_counted_and_never_handed_over() {
    let (mut engine, mut kernel) = engine_and_kernel(RING, 0);
    let own = kernel.fill.pop().unwrap();
    let bad = [
        // Outside the UMEM.
        Descriptor { addr: u64::MAX, len: 1, options: 0 },
        Descriptor { addr: 2048 * 2 * u64::from(RING), len: 1, options: 0 },
        // A transmit frame, which is the program's.
        Descriptor { addr: 2048 * u64::from(RING), len: 1, options: 0 },
        // Overruns its frame; the frame itself is known and goes back.
        Descriptor { addr: own + 256, len: 1793, options: 0 },
        // Overflows when added up.
        Descriptor { addr: 256, len: u32::MAX, options: 0 },
    ];
    for descriptor in bad {
        assert!(kernel.push_rx(descriptor));
    }
    assert!(received(&mut engine).is_empty());
    assert_eq!(engine.xsks[0].counters().bad_descriptor, bad.len() as u64);
    check_frames(&engine);
}

#[test]
fn a_frame_returned_twice_by_rx_keeps_one_owner() {
    let (mut engine, mut kernel) = engine_and_kernel(RING, 0);
    // Two descriptors of one frame in one batch: the frame goes back to the fill ring between them, so
    // the second again names a frame of the kernel's. It may be handed over, but has one owner throughout.
    let own = kernel.fill.pop().unwrap();
    kernel.push_rx(Descriptor { addr: own, len: 4, options: 0 });
    kernel.push_rx(Descriptor { addr: own, len: 4, options: 0 });
    received(&mut engine);
    check_frames(&engine);
}

#[test]
fn a_packet_with_a_bad_part_is_skipped_whole() {
    let (mut engine, mut kernel) = engine_and_kernel(RING, ASSEMBLY_SIZE);
    let (first, last) = (kernel.fill.pop().unwrap(), kernel.fill.pop().unwrap());
    kernel.push_rx(Descriptor { addr: first, len: 3, options: XDP_PKT_CONTD });
    kernel.push_rx(Descriptor { addr: u64::MAX, len: 3, options: XDP_PKT_CONTD });
    kernel.push_rx(Descriptor { addr: last, len: 3, options: 0 });
    assert!(kernel.receive(&mut engine, b"good"));
    assert_eq!(received(&mut engine), [b"good".to_vec()]);
    assert_eq!(engine.xsks[0].counters().bad_descriptor, 1);
    check_frames(&engine);
}

#[test]
fn a_handler_that_unwinds_loses_no_frame() {
    let (mut engine, mut kernel) = engine_and_kernel(RING, 0);
    kernel.receive(&mut engine, b"one");
    kernel.receive(&mut engine, b"two");
    let unwound = catch_unwind(AssertUnwindSafe(|| engine.receive_each(A, 8, |_| panic!("handler"))));
    assert!(unwound.is_err());
    check_frames(&engine);
    assert_eq!(received(&mut engine), [b"two".to_vec()]);
    assert_eq!(kernel.fill.available(u32::MAX), RING);
}

#[test]
fn a_sent_frame_is_reused_only_after_its_completion() {
    let (mut engine, mut kernel) = engine_and_kernel(RING, 0);
    for packet in 0..RING as u8 {
        let mut frame = engine.alloc(A).unwrap();
        frame.bytes()[58..61].fill(packet);
        assert!(frame.submit(58..61));
    }
    assert!(engine.alloc(A).is_none());
    assert_eq!(kernel.take(8), 0, "not published yet");
    engine.xsks[0].tx.publish();
    assert_eq!(engine.xsks[0].untaken(), RING);
    assert_eq!(kernel.take(3), 3);
    assert_eq!(engine.xsks[0].untaken(), RING - 3);
    assert!(engine.alloc(A).is_none(), "taken is not completed");
    let sent = kernel.sending[1];
    assert_eq!((sent.addr % 2048, sent.len, sent.options), (58, 3, 0));
    assert_eq!(engine.umem.kernel_read(sent.addr, sent.len), [1, 1, 1]);
    kernel.complete(2);
    assert!(engine.alloc(A).is_some());
    assert_eq!(engine.xsks[0].counters().completed, 2);
    check_frames(&engine);
}

#[test]
fn a_flush_shows_the_kernel_what_was_built_and_kicks_it_only_then() {
    let (mut engine, mut kernel) = engine_and_kernel(RING, 0);
    let flush = |engine: &mut Engine<Heap>| {
        let (xsk, umem) = engine.xsk(A);
        (xsk.flush(umem), xsk.stats().tx_syscalls)
    };
    assert_eq!(flush(&mut engine), (None, 0), "nothing waits");
    for _ in 0..2 {
        assert!(engine.alloc(A).unwrap().submit(0..64));
    }
    // The fake kernel does nothing while it is kicked, as one whose device is full.
    let (outcome, calls) = flush(&mut engine);
    assert_eq!(outcome, Some(Outcome::Later));
    assert!(calls > 0);
    assert_eq!((kernel.take(8), kernel.complete(1)), (2, 1));
    assert_eq!(flush(&mut engine), (None, calls), "the kernel has taken everything");
    assert_eq!(engine.xsks[0].outcome(), Outcome::Sent);
    check_frames(&engine);
}

#[test]
fn a_packet_put_together_from_several_frames_is_lent_to_nobody_and_counted() {
    let (mut engine, mut kernel) = engine_and_kernel(RING, ASSEMBLY_SIZE);
    let rings = || (HeapRing::starting_at(4, 0), HeapRing::starting_at(4, 0));
    for (place, expected) in [(0, 0), (1, 1)] {
        assert!(kernel.receive(&mut engine, &[7; 8000]));
        engine.receive_each(A, 1, |packet| assert_eq!(packet.lend(0..8000, 0b11, PacketInfo::default()), 0));
        assert_eq!(engine.readers.not_lent(), expected, "counted where there are readers");
        let (packets, returns) = rings();
        engine.readers.admit(&mut engine.umem, place, ReaderRings::new(packets, returns, 4));
    }
    check_frames(&engine);
}

#[test]
fn a_packet_in_parts_is_sent_whole_or_not_at_all() {
    let (mut engine, mut kernel) = engine_and_kernel(RING, 0);
    let packet: Vec<u8> = (0..9014).map(|byte| (byte % 251) as u8).collect();
    assert_eq!(engine.xsks[0].parts(&engine.umem, packet.len()), 5);
    assert!(submit_parts(&mut engine, &packet));
    assert!(!submit_parts(&mut engine, &packet), "three frames are left");
    assert!(!submit_parts(&mut engine, &[]));
    assert_eq!(engine.xsks[0].in_flight(), 5, "a refused packet holds no frame");
    engine.xsks[0].tx.publish();
    assert_eq!(kernel.take(8), 5);
    let mut sent = Vec::new();
    for (number, part) in kernel.sending.iter().enumerate() {
        assert_eq!(part.options, if number < 4 { XDP_PKT_CONTD } else { 0 });
        sent.extend(engine.umem.kernel_read(part.addr, part.len));
    }
    assert_eq!(sent, packet);
    kernel.complete(8);
    assert!(submit_parts(&mut engine, &packet), "completions make room");
    check_frames(&engine);
}

#[test]
fn an_aborted_build_gives_its_frame_back() {
    let (mut engine, _kernel) = engine_and_kernel(RING, 0);
    drop(engine.alloc(A).unwrap());
    let unwound = catch_unwind(AssertUnwindSafe(|| {
        let _frame = engine.alloc(A).unwrap();
        panic!("fill");
    }));
    assert!(unwound.is_err());
    assert!(!engine.alloc(A).unwrap().submit(2000..2049), "beyond the frame");
    assert_eq!(held(&engine), (RING as usize, RING as usize, 0));
    check_frames(&engine);
}

#[test]
fn false_completions_are_counted_and_change_nothing() {
    let (mut engine, mut kernel) = engine_and_kernel(RING, 0);
    assert!(engine.alloc(A).unwrap().submit(0..64));
    engine.xsks[0].tx.publish();
    kernel.take(1);
    let sent = kernel.sending.pop().unwrap().addr;
    for addr in [u64::MAX, 0, sent + 2048, sent, sent] {
        kernel.completion.push(addr).unwrap();
    }
    kernel.completion.publish();
    assert_eq!(complete(&mut engine), 1);
    assert_eq!(engine.xsks[0].counters().bad_descriptor, 4);
    check_frames(&engine);
}

#[test]
fn impossible_indices_stop_the_engine_but_lose_no_frame() {
    let (mut engine, kernel) = engine_and_kernel(RING, 0);
    kernel.rx.memory().producer().store(77, Ordering::Release);
    assert!(received(&mut engine).is_empty());
    assert!(engine.xsks[0].is_corrupt());
    check_frames(&engine);
}

#[test]
fn the_wakeup_flags_of_fill_and_tx_are_told_apart() {
    let (engine, kernel) = engine_and_kernel(RING, 0);
    kernel.fill.memory().flags().store(XDP_RING_NEED_WAKEUP, Ordering::Relaxed);
    assert!(engine.xsks[0].fill.needs_wakeup() && !engine.xsks[0].tx.needs_wakeup());
}

/// What may happen next, at either side.
#[derive(Clone, Debug)]
enum Event {
    KernelReceives { bytes: usize },
    KernelTakes(usize),
    KernelCompletes(usize),
    ProgramReceives(usize),
    ProgramSends { length: usize },
    ProgramSendsParts { length: usize },
    ProgramAborts,
    ProgramFlushes,
    ProgramCompletes,
    RxDescriptor { addr: u64, len: u32, options: u32 },
    Completion(u64),
    IndexJumps { ring: u8, by: u32 },
}

fn addresses() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0..2048 * 2 * u64::from(RING) + 4096, 1 => any::<u64>()]
}

fn honest() -> impl Strategy<Value = Event> {
    prop_oneof![
        (1..9000usize).prop_map(|bytes| Event::KernelReceives { bytes }),
        (1..1700usize).prop_map(|bytes| Event::KernelReceives { bytes }),
        (1..9usize).prop_map(Event::KernelTakes),
        (1..9usize).prop_map(Event::KernelCompletes),
        (0..9usize).prop_map(Event::ProgramReceives),
        (1..2049usize).prop_map(|length| Event::ProgramSends { length }),
        (0..18_000usize).prop_map(|length| Event::ProgramSendsParts { length }),
        Just(Event::ProgramAborts),
        Just(Event::ProgramFlushes),
        Just(Event::ProgramCompletes),
    ]
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        12 => honest(),
        4 => (addresses(), prop_oneof![0..4096u32, any::<u32>()], 0..4u32)
            .prop_map(|(addr, len, options)| Event::RxDescriptor { addr, len, options }),
        4 => addresses().prop_map(Event::Completion),
        1 => (0..4u8, any::<u32>()).prop_map(|(ring, by)| Event::IndexJumps { ring, by }),
    ]
}

fn jump(kernel: &FakeKernel, ring: u8, by: u32) {
    let shift = |index: &std::sync::atomic::AtomicU32| {
        AtomicIndex::store(
            index,
            AtomicIndex::load(index, Ordering::Relaxed).wrapping_add(by),
            Ordering::Release,
        );
    };
    match ring {
        0 => shift(kernel.fill.memory().consumer()),
        1 => shift(kernel.rx.memory().producer()),
        2 => shift(kernel.tx.memory().consumer()),
        _ => shift(kernel.completion.memory().producer()),
    }
}

fn apply(engine: &mut Engine<Heap>, kernel: &mut FakeKernel, event: &Event) {
    match *event {
        Event::KernelReceives { bytes } => {
            kernel.receive(engine, &vec![0xaa; bytes]);
        }
        Event::KernelTakes(count) => {
            kernel.take(count);
        }
        Event::KernelCompletes(count) => {
            kernel.complete(count);
        }
        Event::ProgramReceives(limit) => {
            engine.receive_each(A, limit, |mut packet| {
                packet.bytes().fill(0x55);
            });
        }
        Event::ProgramSends { length } => {
            if let Some(mut frame) = engine.alloc(A) {
                frame.bytes()[..length].fill(0x33);
                frame.submit(0..length);
            }
        }
        Event::ProgramSendsParts { length } => {
            submit_parts(engine, &vec![0x77; length]);
        }
        Event::ProgramAborts => drop(engine.alloc(A)),
        Event::ProgramFlushes => engine.xsks[0].tx.publish(),
        Event::ProgramCompletes => {
            complete(engine);
        }
        Event::RxDescriptor { addr, len, options } => {
            kernel.push_rx(Descriptor { addr, len, options });
        }
        Event::Completion(addr) => {
            if kernel.completion.push(addr).is_ok() {
                kernel.completion.publish();
            }
        }
        Event::IndexJumps { ring, by } => jump(kernel, ring, by),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    /// With an honest kernel nothing is ever refused, and when all is quiet every frame is where it began.
    #[test]
    fn frames_are_conserved_in_any_order_of_events(events in prop::collection::vec(honest(), 0..200)) {
        let (mut engine, mut kernel) = engine_and_kernel(RING, ASSEMBLY_SIZE);
        for event in &events {
            apply(&mut engine, &mut kernel, event);
            check_frames(&engine);
        }
        engine.xsks[0].tx.publish();
        while kernel.take(8) + kernel.complete(8) > 0 {
            complete(&mut engine);
        }
        complete(&mut engine);
        engine.receive_each(A, usize::MAX, |_| ());
        prop_assert_eq!(held(&engine), (RING as usize, RING as usize, 0));
        prop_assert_eq!(kernel.fill.available(u32::MAX), RING);
        prop_assert_eq!(engine.xsks[0].counters().bad_descriptor, 0);
        prop_assert!(!engine.xsks[0].is_corrupt());
    }

    /// Whatever the kernel writes into the rings, no frame leaks and none has two owners.
    #[test]
    fn frames_have_one_owner_whatever_the_kernel_does(events in prop::collection::vec(any_event(), 0..200)) {
        let (mut engine, mut kernel) = engine_and_kernel(RING, ASSEMBLY_SIZE);
        for event in &events {
            apply(&mut engine, &mut kernel, event);
            check_frames(&engine);
        }
    }
}
