//! A ring that other processes read: in C and in Rust, honest, slow, stopped, killed and hostile. Needs no
//! privilege.

use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use expressway_netio::broadcast::{
    Broadcast, BroadcastConfig, BroadcastReader, ReaderAccessError, ReaderError, Record, flags,
};
use rustix::process::Signal;

use crate::common::c::{CReader, unique_path};

const EXAMPLE: &str = "examples/c/broadcast_reader.c";

/// A ring, and of all that was written to it: how many records, their bytes, and the sum of these.
struct Bed {
    ring: Broadcast,
    path: PathBuf,
    written: (u64, u64, u32),
}

impl Bed {
    fn new(change: impl FnOnce(&mut BroadcastConfig)) -> Self {
        let path = unique_path();
        let mut config = BroadcastConfig::new(&path);
        change(&mut config);
        Self { ring: Broadcast::new(config).unwrap(), path, written: (0, 0, 0) }
    }

    /// Attends to readers until `done`. A bound far beyond what it takes, so that a failure is no hang.
    fn run(&mut self, what: &str, done: impl Fn(&Broadcast) -> bool) {
        let start = Instant::now();
        while !done(&self.ring) {
            assert!(start.elapsed() < Duration::from_secs(60), "never: {what}; {:?}", self.ring.stats());
            self.ring.attend();
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn wait_for_readers(&mut self, count: usize) {
        self.run("a reader comes or goes", |ring| ring.readers().count() == count);
    }

    /// Writes so many records of various lengths, published in batches of up to 16.
    fn write(&mut self, count: u64) {
        for _ in 0..count {
            let number = self.written.0;
            let data: Vec<u8> = (0..number * 7 % 1400).map(|at| (number + at) as u8).collect();
            // Stamped by each in turn, and by nobody.
            let flags = [flags::STAMP_NIC, flags::STAMP_XDP, flags::STAMP_KERNEL, 0][(number % 4) as usize];
            assert!(self.ring.push(&Record { data: &data, number, flags, ..Record::default() }));
            let sum = data.iter().fold(self.written.2, |sum, &byte| sum.wrapping_add(byte.into()));
            self.written = (number + 1, self.written.1 + data.len() as u64, sum);
            if number.is_multiple_of(16) {
                self.ring.publish();
            }
        }
        self.ring.publish();
    }

    /// Writes so many records, waiting for all readers after each few.
    fn write_gently(&mut self, count: u64) {
        for _ in 0..count / 50 {
            self.write(50);
            self.run("readers keep up", |ring| ring.readers().all(|lag| lag.bytes == 0));
        }
    }

    fn summary(&self) -> String {
        let (records, bytes, sum) = self.written;
        let [nic, xdp, kernel] = [3, 2, 1].map(|more| (records + more) / 4);
        format!("records {records} bytes {bytes} lost 0 sum {sum} nic {nic} xdp {xdp} kernel {kernel}\n")
    }
}

/// What a reader in Rust saw until the writer was gone: records, their bytes' sum, records lost.
fn rust_reader(bed: &Bed) -> JoinHandle<(u64, u32, u64)> {
    let path = bed.path.clone();
    std::thread::spawn(move || {
        // The writer answers when it attends.
        let mut reader = BroadcastReader::connect(path).unwrap();
        let (mut records, mut sum) = (0, 0u32);
        loop {
            let seen = |one: expressway_netio::broadcast::Received<'_>| {
                records += 1;
                assert_eq!(one.sequence, one.record.number);
                sum = one.record.data.iter().fold(sum, |sum, &byte| sum.wrapping_add(byte.into()));
            };
            reader.receive(16, seen).unwrap();
            match reader.wait(None) {
                Ok(_) => {}
                Err(ReaderError::Gone { .. }) => return (records, sum, reader.lost()),
                Err(error) => panic!("{error}"),
            }
        }
    })
}

#[test]
fn readers_in_c_and_rust_see_every_record_that_was_written() {
    let mut bed = Bed::new(|_| {});
    let mut in_c = CReader::start(EXAMPLE, &bed.path, &["2000"]);
    bed.wait_for_readers(1);
    let in_rust = rust_reader(&bed);
    bed.wait_for_readers(2);
    bed.write_gently(2000);
    assert_eq!(in_c.output(), bed.summary());
    bed.wait_for_readers(1);
    let (stats, (records, bytes, sum)) = (bed.ring.stats(), bed.written);
    assert_eq!(
        (stats.records, stats.bytes, stats.readers_accepted, stats.readers_gone),
        (records, bytes, 2, 1)
    );
    drop(bed);
    assert_eq!(in_rust.join().unwrap(), (records, sum, 0));
}

#[test]
fn a_reader_that_stops_holds_nobody_up_and_learns_what_it_lost() {
    let mut bed = Bed::new(|config| (config.capacity, config.largest) = (1 << 16, 1400));
    let mut slow = CReader::start(EXAMPLE, &bed.path, &["1"]);
    let killed = CReader::start(EXAMPLE, &bed.path, &[]);
    bed.wait_for_readers(2);
    let fast = rust_reader(&bed);
    bed.wait_for_readers(3);
    slow.signal(Signal::STOP);
    killed.signal(Signal::STOP);
    // Not one of these writes waits for the two: they would never end.
    while bed.written.1 < 4 << 16 {
        bed.write(10);
        let behind: Vec<u64> = bed.ring.readers().map(|lag| lag.bytes).collect();
        bed.run("the fast one keeps up", |ring| ring.readers().any(|lag| lag.bytes == 0));
        assert_eq!(behind.len(), 3);
    }
    assert_eq!(bed.ring.readers().filter(|lag| lag.bytes > 1 << 16).count(), 2);
    killed.signal(Signal::KILL);
    bed.wait_for_readers(2);
    slow.signal(Signal::CONT);
    let newest = bed.written.0 - 1;
    let length = newest * 7 % 1400;
    let sum: u32 = (0..length).map(|at| u32::from((newest + at) as u8)).sum();
    let seen = slow.output();
    assert!(seen.starts_with(&format!("records 1 bytes {length} lost {newest} sum {sum} ")), "{seen}");
    let (records, _, sum) = bed.written;
    drop(bed);
    assert_eq!(fast.join().unwrap(), (records, sum, 0));
}

#[test]
fn a_hostile_reader_cannot_write_and_costs_the_others_nothing() {
    let mut bed = Bed::new(|config| (config.capacity, config.largest) = (1 << 16, 1400));
    let honest = rust_reader(&bed);
    bed.wait_for_readers(1);
    let mut hostile = CReader::start("tests/c/hostile_broadcast.c", &bed.path, &[]);
    bed.wait_for_readers(2);
    while bed.ring.stats().readers_dismissed == 0 {
        bed.write(10);
        // The hostile one says that it is ahead of all.
        bed.run("the honest one keeps up", |ring| ring.readers().all(|lag| lag.bytes == 0));
    }
    assert_eq!(
        hostile.output(),
        "map: Operation not permitted\nmap reopened: Operation not permitted\nprotect: Permission denied\n\
         write: refused\ntruncate: Operation not permitted\nnext: 1\nlost: some\ndismissed\n"
    );
    let (records, _, sum) = bed.written;
    drop(bed);
    assert_eq!(honest.join().unwrap(), (records, sum, 0));
}

#[test]
fn a_reader_that_comes_later_begins_with_what_comes_next() {
    let mut bed = Bed::new(|_| {});
    bed.write(10);
    assert!(bed.ring.push(&Record { data: b"not published", number: 10, ..Record::default() }));
    let reader = rust_reader(&bed);
    bed.wait_for_readers(1);
    bed.ring.publish();
    let sum = b"not published".iter().map(|&byte| u32::from(byte)).sum();
    drop(bed);
    assert_eq!(reader.join().unwrap(), (1, sum, 0));
}

#[test]
fn what_cannot_be_is_an_error_that_says_why() {
    let good = || BroadcastConfig::new(unique_path());
    for (wrong, field) in [
        (BroadcastConfig { readers: 0, ..good() }, "readers"),
        (BroadcastConfig { readers: 257, ..good() }, "readers"),
        (BroadcastConfig { capacity: 5000, ..good() }, "capacity"),
        (BroadcastConfig { capacity: 2048, ..good() }, "capacity"),
        (BroadcastConfig { capacity: 1 << 35, ..good() }, "capacity"),
        (BroadcastConfig { capacity: 1 << 17, ..good() }, "largest"),
        (BroadcastConfig { largest: usize::MAX, ..good() }, "largest"),
    ] {
        let named = Broadcast::new(wrong).err();
        assert!(
            matches!(named, Some(ReaderAccessError::Config { field: named, .. }) if named == field),
            "{named:?}"
        );
    }
    let nowhere = BroadcastConfig { path: "/no/such/directory/ring.sock".into(), ..good() };
    let message = Broadcast::new(nowhere).err().unwrap().to_string();
    assert!(message.starts_with("reader socket /no/such/directory/ring.sock: bind: ENOENT"), "{message}");

    let mut bed = Bed::new(|config| (config.readers, config.largest) = (1, 100));
    assert!(!bed.ring.push(&Record { data: &[0; 101], ..Record::default() }));
    assert_eq!((bed.ring.stats().dropped_long, bed.ring.stats().records), (1, 0));
    let connect = |path: PathBuf| std::thread::spawn(move || BroadcastReader::connect(path).err());
    let first = rust_reader(&bed);
    bed.wait_for_readers(1);
    let second = connect(bed.path.clone());
    bed.run("a reader is refused", |ring| ring.stats().readers_refused == 1);
    let message = second.join().unwrap().expect("one is enough").to_string();
    assert!(message.ends_with("reader rejected by the receiver: too many readers"), "{message}");
    let (path, taken) = (bed.path.clone(), BroadcastConfig::new(&bed.path));
    let message = Broadcast::new(taken).err().unwrap().to_string();
    assert!(message.contains("another process is listening there"), "{message}");
    drop(bed);
    first.join().unwrap();
    let message = connect(path).join().unwrap().expect("nobody listens").to_string();
    assert!(message.contains(": connect: ENOENT"), "{message}");
}

/// Of many who come at once, or come again and again, a few are attended to at a time.
#[test]
fn a_crowd_of_readers_is_let_in_a_few_at_a_time() {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, connect, socket};
    let mut bed = Bed::new(|config| config.readers = 16);
    let address = SocketAddrUnix::new(&bed.path).unwrap();
    let join = || {
        let one = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        connect(&one, &address).unwrap();
        one
    };
    let crowd: Vec<_> = (0..20).map(|_| join()).collect();
    let attended = |ring: &Broadcast| ring.stats().readers_accepted + ring.stats().readers_refused;
    for number in 1..=20 {
        let before = attended(&bed.ring);
        bed.ring.attend();
        assert!(attended(&bed.ring) - before <= 4, "at the attendance of number {number}");
    }
    // None is forgotten, and those that say nothing keep their places only as long as they are there.
    let stats = bed.ring.stats();
    assert_eq!((stats.readers_accepted, stats.readers_refused), (16, 4));
    drop(crowd);
    bed.wait_for_readers(0);
}

/// A reader of one kind that finds the other's socket is told so, not misled.
#[test]
fn the_socket_of_a_umem_is_no_ring() {
    use expressway_netio::xsk::{ReaderAccess, SharedUmem, UmemConfig, UmemReader};
    let mut umem =
        SharedUmem::new(&UmemConfig { frames: 256, shareable: true, ..UmemConfig::default() }).unwrap();
    let path = unique_path();
    umem.share(ReaderAccess { quota: 8, ..ReaderAccess::new(&path) }).unwrap();
    let asking = std::thread::spawn(move || BroadcastReader::connect(path).err());
    while !asking.is_finished() {
        umem.wait(Some(Duration::from_millis(1))).unwrap();
    }
    let message = asking.join().unwrap().expect("it is no ring").to_string();
    assert!(message.contains("not a receiver of this version"), "{message}");

    let mut bed = Bed::new(|_| {});
    let path = bed.path.clone();
    let asking = std::thread::spawn(move || UmemReader::connect(path).err());
    while !asking.is_finished() {
        bed.ring.attend();
    }
    let message = asking.join().unwrap().expect("it is no UMEM").to_string();
    assert!(message.contains("not a receiver of this version"), "{message}");
}
