//! Tests of the ring: against a model, against a writer on another thread, and under loom.

use std::sync::Arc;
use std::sync::atomic::Ordering;

#[cfg(loom)]
use loom::sync::atomic::AtomicU64;
#[cfg(not(loom))]
use std::sync::atomic::AtomicU64;

use super::*;

/// A ring on the heap.
struct HeapMemory {
    intent: AtomicU64,
    tail: AtomicU64,
    latest: AtomicU64,
    words: Vec<AtomicU64>,
}

impl HeapMemory {
    fn new(words: usize) -> Arc<Self> {
        let word = || AtomicU64::new(0);
        let words = (0..words).map(|_| word()).collect();
        Arc::new(Self { intent: word(), tail: word(), latest: word(), words })
    }
}

impl Memory for Arc<HeapMemory> {
    type Word = AtomicU64;

    fn intent(&self) -> &AtomicU64 {
        &self.intent
    }

    fn tail(&self) -> &AtomicU64 {
        &self.tail
    }

    fn latest(&self) -> &AtomicU64 {
        &self.latest
    }

    fn words(&self) -> &[AtomicU64] {
        &self.words
    }
}

fn ring(words: usize, largest: usize) -> (Writer<Arc<HeapMemory>>, Reader<Arc<HeapMemory>>) {
    let memory = HeapMemory::new(words);
    let writer = Writer::new(Arc::clone(&memory), largest);
    let reader = Reader::new(memory, writer.entry(), largest);
    (writer, reader)
}

#[cfg(not(loom))]
mod one_thread {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    fn found(reader: &mut Reader<Arc<HeapMemory>>) -> Option<(Vec<u8>, u64, u64)> {
        match reader.next() {
            Found::Nothing => None,
            Found::Record { record, sequence, lost } => Some((record.data.to_vec(), sequence, lost)),
            Found::Corrupt => panic!("corrupt"),
        }
    }

    #[test]
    fn a_record_comes_out_with_all_that_was_said_of_it() {
        let (mut writer, mut reader) = ring(32, 64);
        let record = Record {
            data: b"nine byte",
            timestamp: u64::MAX,
            number: 1 << 60,
            flags: 0xabcd,
            source: 0xffff,
        };
        assert!(writer.push(&record));
        assert_eq!(reader.next(), Found::Nothing, "not published");
        assert!(writer.publish() && !writer.publish());
        assert_eq!(reader.next(), Found::Record { record, sequence: 0, lost: 0 });
        assert_eq!(reader.next(), Found::Nothing);
        assert!(!writer.push(&Record { data: &[0; 65], ..Record::default() }), "too long");
        assert_eq!(size_of_record(9), 48);
        assert_eq!(reader.position(), 48);
    }

    #[test]
    fn one_that_was_overtaken_goes_on_with_the_newest_and_knows_its_loss() {
        // Five records of 40 bytes in 256.
        let (mut writer, mut reader) = ring(32, 64);
        for number in 0..100u8 {
            assert!(writer.push(&Record { data: &[number], ..Record::default() }));
            writer.publish();
        }
        assert_eq!(found(&mut reader), Some((vec![99], 99, 99)));
        assert_eq!(found(&mut reader), None);
        assert!(writer.push(&Record { data: &[100], ..Record::default() }));
        writer.publish();
        assert_eq!(found(&mut reader), Some((vec![100], 100, 0)));
    }

    #[test]
    fn a_batch_larger_than_the_ring_hides_the_newest_too() {
        let (mut writer, mut reader) = ring(32, 64);
        let mut push = |number: u8| assert!(writer.push(&Record { data: &[number], ..Record::default() }));
        push(0);
        (1..20).for_each(&mut push);
        // Nothing of it was published: what the reader is to begin with is gone, and it waits.
        assert_eq!(found(&mut reader), None);
        writer.publish();
        assert_eq!(found(&mut reader), Some((vec![19], 19, 19)));
        (20..30).for_each(|number| assert!(writer.push(&Record { data: &[number], ..Record::default() })));
        assert_eq!(found(&mut reader), None);
        let mut late = Reader::new(Arc::clone(&reader.memory), writer.entry(), 64);
        writer.publish();
        assert_eq!(found(&mut reader), Some((vec![29], 29, 9)));
        assert_eq!(found(&mut late), Some((vec![29], 29, 9)), "it began with 20");
    }

    #[test]
    fn what_no_writer_writes_ends_the_reading() {
        let corrupt = |spoil: fn(&HeapMemory)| {
            let (mut writer, mut reader) = ring(32, 64);
            for _ in 0..2 {
                assert!(writer.push(&Record { data: b"12345678", ..Record::default() }));
            }
            writer.publish();
            assert_eq!(found(&mut reader).map(|one| one.1), Some(0));
            spoil(&reader.memory);
            reader.next() == Found::Corrupt
        };
        assert!(!corrupt(|_| {}));
        assert!(corrupt(|memory| memory.tail.store(0, Ordering::Relaxed)), "the tail goes back");
        assert!(corrupt(|memory| memory.words[5].store(65, Ordering::Relaxed)), "too long");
        assert!(corrupt(|memory| memory.words[5].store(64, Ordering::Relaxed)), "beyond the tail");
        assert!(corrupt(|memory| memory.words[6].store(0, Ordering::Relaxed)), "numbered anew");
    }

    proptest! {
        /// Whatever is pushed and published when: a reader gets what the writer says it still has, in order, whole,
        /// and each record is either got or counted as lost.
        #[test]
        fn every_record_is_read_whole_or_counted_as_lost(
            steps in proptest::collection::vec((0..200usize, 0..4u8, 0..4usize), 1..200),
        ) {
            let (mut writer, mut reader) = ring(64, 128);
            // What was published and is whole still: data by number.
            let mut kept: VecDeque<(u64, Vec<u8>, u64)> = VecDeque::new();
            let (mut pushed, mut published, mut end, mut got, mut lost) = (0u64, 0u64, 0u64, 0u64, 0u64);
            for (length, publish, reads) in steps {
                let data: Vec<u8> = (0..length).map(|at| (pushed as usize + at) as u8).collect();
                let record = Record { data: &data, number: pushed, ..Record::default() };
                prop_assert_eq!(writer.push(&record), length <= 128);
                if length <= 128 {
                    let start = end;
                    end += size_of_record(length) as u64;
                    kept.push_back((pushed, data, start));
                    kept.retain(|(_, _, start)| end - start <= 512);
                    pushed += 1;
                }
                if publish == 0 {
                    writer.publish();
                    published = pushed;
                }
                for _ in 0..reads {
                    let Some((data, sequence, missed)) = found(&mut reader) else { break };
                    lost += missed;
                    prop_assert_eq!(sequence, got + lost);
                    got += 1;
                    let there = kept.iter().find(|(number, _, _)| *number == sequence);
                    prop_assert_eq!(Some(&data), there.map(|(_, data, _)| data));
                    prop_assert!(sequence < published);
                }
            }
            writer.publish();
            while let Some((_, _, missed)) = found(&mut reader) {
                (got, lost) = (got + 1, lost + missed);
            }
            // Beyond a batch that hid the newest, nothing says how many were lost until the next record.
            prop_assert!(got + lost <= pushed);
            prop_assert!(writer.push(&Record::default()));
            writer.publish();
            let (_, sequence, missed) = found(&mut reader).expect("the newest is there");
            prop_assert_eq!((sequence, got + lost + missed), (pushed, pushed));
        }
    }
}

#[cfg(not(loom))]
mod two_threads {
    use super::*;

    /// A writer that goes round a small ring as fast as it can: what the reader gets is whole, in order, and with
    /// what it lost it is all.
    #[test]
    fn no_record_is_torn_however_fast_the_writer_is() {
        const RECORDS: u64 = 200_000;
        let (mut writer, mut reader) = ring(128, 240);
        let writing = std::thread::spawn(move || {
            for number in 0..RECORDS {
                let data = [number.to_ne_bytes(); 30];
                let length = 8 + (number % 30) as usize * 8;
                let record = Record { data: &data.as_flattened()[..length], number, ..Record::default() };
                assert!(writer.push(&record));
                if number % 3 == 0 {
                    writer.publish();
                }
            }
            writer.publish();
            // For a reader that the last batch hid the newest from.
            assert!(writer.push(&Record { number: RECORDS, ..Record::default() }));
            writer.publish();
        });
        let (mut got, mut lost) = (0, 0);
        loop {
            match reader.next() {
                Found::Nothing => std::thread::yield_now(),
                Found::Corrupt => panic!("corrupt"),
                Found::Record { record, sequence, lost: missed } => {
                    lost += missed;
                    assert_eq!((record.number, got + lost), (sequence, sequence));
                    if sequence == RECORDS {
                        break;
                    }
                    got += 1;
                    assert_eq!(record.data.len(), 8 + (sequence % 30) as usize * 8);
                    assert!(record.data.chunks(8).all(|word| *word == sequence.to_ne_bytes()), "torn");
                }
            }
        }
        writing.join().unwrap();
        assert_eq!(got + lost, RECORDS);
    }
}

#[cfg(loom)]
mod loom_models {
    use super::*;

    fn push(writer: &mut Writer<Arc<HeapMemory>>, number: u8) {
        let data = [number; 8];
        assert!(writer.push(&Record { data: &data, number: number.into(), ..Record::default() }));
        writer.publish();
    }

    fn explore(model: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        // All interleavings of so many relaxed words are too many; three switches show each pair of accesses in
        // both orders.
        builder.preemption_bound = Some(3);
        builder.check(model);
    }

    /// Every interleaving of a reader with a writer that overwrites what it reads: a record is read whole, or not at
    /// all.
    #[test]
    fn loom_no_record_is_torn() {
        explore(|| {
            // One record of five words in eight: the second lies over the first, round the end.
            let (mut writer, mut reader) = ring(8, 8);
            push(&mut writer, 1);
            let writing = loom::thread::spawn(move || push(&mut writer, 2));
            let mut seen = 0;
            for _ in 0..2 {
                match reader.next() {
                    Found::Nothing => {}
                    Found::Corrupt => panic!("corrupt"),
                    Found::Record { record, sequence, lost } => {
                        assert_eq!(record.data, [sequence as u8 + 1; 8]);
                        assert_eq!(record.number, sequence + 1);
                        seen += lost + 1;
                        assert_eq!(seen, sequence + 1);
                    }
                }
            }
            writing.join().unwrap();
        });
    }

    /// A reader that goes to sleep while the writer publishes: it sees the record, or the writer sees that it
    /// sleeps.
    #[test]
    fn loom_no_sleeper_is_missed() {
        explore(|| {
            let (mut writer, mut reader) = ring(8, 0);
            let flag = Arc::new(AtomicU64::new(0));
            let theirs = Arc::clone(&flag);
            let writing = loom::thread::spawn(move || {
                assert!(writer.push(&Record::default()) && writer.publish());
                Writer::<Arc<HeapMemory>>::is_asleep(&theirs)
            });
            let sees = reader.want_wakeup(&flag, true);
            let woken = writing.join().unwrap();
            assert!(sees || woken);
        });
    }
}
