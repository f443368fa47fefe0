//! Tests of the rings: against a fake other side, and under loom.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::heap::HeapRing;
use super::*;

#[cfg(not(loom))]
mod fake_side {
    use super::*;

    type Ring = Arc<HeapRing<u64>>;

    fn ring(capacity: u32, start: u32) -> (Producer<Ring>, Consumer<Ring>) {
        let memory = HeapRing::starting_at(capacity, start);
        (Producer::new(Arc::clone(&memory)), Consumer::new(memory))
    }

    #[test]
    fn entries_come_out_in_order_across_the_wrap() {
        let (mut producer, mut consumer) = ring(8, u32::MAX - 3);
        for round in 0..100u64 {
            for entry in 0..5 {
                producer.push(round * 5 + entry).unwrap();
            }
            producer.publish();
            for entry in 0..5 {
                assert_eq!(consumer.pop(), Some(round * 5 + entry));
            }
            assert_eq!(consumer.pop(), None);
            consumer.release();
        }
    }

    #[test]
    fn nothing_is_seen_before_it_is_published() {
        let (mut producer, mut consumer) = ring(4, 0);
        producer.push(1).unwrap();
        assert_eq!(consumer.available(1), 0);
        producer.publish();
        assert_eq!(consumer.available(1), 1);
    }

    #[test]
    fn a_slot_is_free_only_after_release() {
        let (mut producer, mut consumer) = ring(2, 0);
        producer.push(1).unwrap();
        producer.push(2).unwrap();
        assert_eq!(producer.push(3), Err(Full));
        producer.publish();
        assert_eq!(producer.unconsumed(), 2);
        assert_eq!(consumer.pop(), Some(1));
        assert_eq!(producer.push(3), Err(Full));
        consumer.release();
        assert_eq!(producer.unconsumed(), 1);
        assert_eq!(producer.push(3), Ok(()));
    }

    #[test]
    fn a_producer_index_beyond_the_ring_makes_the_consumer_corrupt() {
        let (_producer, mut consumer) = ring(4, 0);
        consumer.memory().producer().store(5, Ordering::Relaxed);
        assert_eq!(consumer.available(1), 0);
        assert_eq!(consumer.pop(), None);
        assert!(consumer.is_corrupt());
        consumer.memory().producer().store(1, Ordering::Relaxed);
        assert_eq!(consumer.pop(), None, "a corrupt ring yields nothing any more");
    }

    #[test]
    fn a_producer_index_going_back_makes_the_consumer_corrupt() {
        let (mut producer, mut consumer) = ring(4, 10);
        for entry in 0..3 {
            producer.push(entry).unwrap();
        }
        producer.publish();
        assert_eq!(consumer.available(1), 3);
        while consumer.pop().is_some() {}
        consumer.memory().producer().store(12, Ordering::Relaxed);
        assert_eq!(consumer.available(1), 0);
        assert!(consumer.is_corrupt());
    }

    #[test]
    fn a_consumer_index_that_overtakes_or_goes_back_makes_the_producer_corrupt() {
        for wrong in [11, 8, 3] {
            let (mut producer, _consumer) = ring(2, 9);
            producer.push(1).unwrap();
            producer.push(2).unwrap();
            producer.publish();
            // 9 + 2 published; 12 overtakes, 8 and 3 lie behind what was given back.
            let wrong = if wrong == 11 { 12 } else { wrong };
            producer.memory().consumer().store(wrong, Ordering::Relaxed);
            assert_eq!(producer.push(3), Err(Full), "{wrong}");
            assert!(producer.is_corrupt());
        }
    }

    #[test]
    fn the_wakeup_flag_is_the_lowest_bit() {
        let (producer, _consumer) = ring(2, 0);
        producer.memory().flags().store(2, Ordering::Relaxed);
        assert!(!producer.needs_wakeup());
        producer.memory().flags().store(3, Ordering::Relaxed);
        assert!(producer.needs_wakeup());
    }
}

#[cfg(loom)]
mod loom_models {
    use super::*;

    /// Every interleaving of a producer and a consumer over the wrap of a full ring: entries come out once,
    /// in order, and loom sees no slot touched by both sides.
    #[test]
    fn loom_entries_pass_once_and_in_order() {
        loom::model(|| {
            let memory = HeapRing::starting_at(2, u32::MAX - 1);
            let mut producer = Producer::new(Arc::clone(&memory));
            let mut consumer = Consumer::new(memory);
            let sender = loom::thread::spawn(move || {
                let mut sent = 0u64;
                for _ in 0..3 {
                    if producer.push(sent).is_ok() {
                        sent += 1;
                        producer.publish();
                    }
                }
                assert!(!producer.is_corrupt());
                (producer, sent)
            });
            let mut received = 0u64;
            for _ in 0..2 {
                while let Some(entry) = consumer.pop() {
                    assert_eq!(entry, received);
                    received += 1;
                }
                consumer.release();
            }
            let (mut producer, mut sent) = sender.join().unwrap();
            while producer.push(sent).is_ok() {
                sent += 1;
            }
            producer.publish();
            while let Some(entry) = consumer.pop() {
                assert_eq!(entry, received);
                received += 1;
            }
            assert_eq!(received, sent);
            assert!(!consumer.is_corrupt());
        });
    }

    /// A batch is seen whole or not at all.
    #[test]
    fn loom_a_batch_is_published_at_once() {
        loom::model(|| {
            let memory = HeapRing::starting_at(4, 0);
            let mut producer = Producer::new(Arc::clone(&memory));
            let mut consumer = Consumer::new(memory);
            let sender = loom::thread::spawn(move || {
                producer.push(7).unwrap();
                producer.push(8).unwrap();
                producer.publish();
            });
            match consumer.available(1) {
                0 => {}
                2 => assert_eq!((consumer.pop(), consumer.pop()), (Some(7), Some(8))),
                other => panic!("{other} entries of a batch of 2"),
            }
            sender.join().unwrap();
        });
    }

    /// A frame goes to a reader in another process and comes back: no write of the receiver's meets a read of
    /// the reader's, and each sees what the other left.
    #[test]
    fn loom_a_lent_frame_is_touched_by_one_side_at_a_time() {
        loom::model(|| {
            let (packets, returns) = (HeapRing::starting_at(2, 0), HeapRing::starting_at(2, u32::MAX));
            let frame = Arc::new(loom::cell::UnsafeCell::new(0u64));
            let mut to_reader = Producer::new(Arc::clone(&packets));
            let mut from_reader = Consumer::new(Arc::clone(&returns));
            let shown = Arc::clone(&frame);
            let reader = loom::thread::spawn(move || {
                let (mut taken, mut given) = (Consumer::new(packets), Producer::new(returns));
                for _ in 0..2 {
                    if let Some(packet) = taken.pop() {
                        // SAFETY: lent, so the receiver does not write it; loom fails the test if it does.
                        assert_eq!(shown.with(|bytes| unsafe { *bytes }), packet);
                        taken.release();
                        given.push(packet).unwrap();
                        given.publish();
                    }
                }
            });
            let mut mine = true;
            for packet in 1..4u64 {
                mine = mine || from_reader.pop().is_some();
                from_reader.release();
                if mine {
                    // SAFETY: never lent, or returned.
                    frame.with_mut(|bytes| unsafe { *bytes = packet });
                    to_reader.push(packet).unwrap();
                    to_reader.publish();
                    mine = false;
                }
            }
            reader.join().unwrap();
        });
    }

    /// The wake-up protocol: the kernel raises the flag and looks again, the program publishes and reads the
    /// flag. Whatever the order, one of them notices.
    #[test]
    fn loom_a_wakeup_is_never_missed() {
        loom::model(|| {
            let memory = HeapRing::starting_at(2, 0);
            let mut producer = Producer::new(Arc::clone(&memory));
            let kernel = loom::thread::spawn(move || Consumer::new(memory).want_wakeup(true));
            producer.push(1u64).unwrap();
            producer.publish();
            let told = producer.needs_wakeup();
            let noticed = kernel.join().unwrap();
            assert!(told || noticed, "the entry would lie there for ever");
        });
    }
}
