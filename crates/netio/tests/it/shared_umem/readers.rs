//! Readers in other processes.

use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::Duration;

use expressway_netio::xsk::{
    ReaderAccess, ReaderAccessError, ReaderError, SharedUmem, UmemConfig, UmemReader,
};
use rustix::process::Signal;

use super::bed::{Bed, QUOTA, config};
use crate::common::c::{CReader, unique_path};
use crate::common::netns::is_privileged;

/// What a reader in Rust saw until the receiver was gone: packets, bytes, their sum, packets missed.
fn rust_reader(bed: &Bed) -> JoinHandle<(u64, u64, u32, u64)> {
    let path = bed.path.clone();
    std::thread::spawn(move || {
        // The receiver answers within its turns.
        let mut reader = UmemReader::connect(path).unwrap();
        assert_eq!(reader.quota(), QUOTA);
        let (mut packets, mut bytes, mut sum, mut next) = (0, 0, 0u32, 0);
        loop {
            reader
                .receive(16, |packet| {
                    packets += 1;
                    bytes += packet.data.len() as u64;
                    sum = packet.data.iter().fold(sum, |sum, &byte| sum.wrapping_add(byte.into()));
                    assert!(packet.sequence >= next, "in order");
                    next = packet.sequence + 1;
                })
                .unwrap();
            match reader.wait(None) {
                Ok(_) => {}
                Err(ReaderError::Gone { .. }) => return (packets, bytes, sum, next - packets),
                Err(error) => panic!("{error}"),
            }
        }
    })
}

#[test]
fn readers_in_c_and_rust_see_every_byte_that_was_received() {
    if !is_privileged() {
        return;
    }
    let mut bed = Bed::new(2);
    let mut in_c = CReader::start("examples/c/reader.c", &bed.path, &["2000"]);
    bed.wait_for_readers(1);
    let in_rust = rust_reader(&bed);
    bed.wait_for_readers(2);
    bed.send_all(2000, 0);
    let (packets, bytes, sum) = bed.lent;
    assert_eq!(in_c.output(), format!("packets {packets} bytes {bytes} lost 0 sum {sum}\n"));
    bed.wait_for_readers(1);
    assert_eq!((packets, bed.umem.share_stats().readers_gone), (2000, 1));
    let stats = bed.umem.reader_stats();
    assert_eq!((stats.lent, stats.returned, stats.dropped_quota, stats.bad_returns), (4000, 4000, 0, 0));
    drop(bed);
    assert_eq!(in_rust.join().unwrap(), (packets, bytes, sum, 0));
}

#[test]
fn a_reader_that_stops_costs_its_quota_and_one_that_is_killed_nothing() {
    if !is_privileged() {
        return;
    }
    let mut bed = Bed::new(2);
    let stopped = CReader::start("examples/c/reader.c", &bed.path, &[]);
    bed.wait_for_readers(1);
    stopped.signal(Signal::STOP);
    let fast = rust_reader(&bed);
    bed.wait_for_readers(2);
    bed.send_all(200, 1);
    let slow = bed.report(0);
    assert_eq!((slow.held, slow.stats.lent), (QUOTA, QUOTA.into()));
    assert_eq!(slow.stats.dropped_quota, 200 - u64::from(QUOTA));

    stopped.signal(Signal::KILL);
    bed.wait_for_readers(1);
    let past = bed.umem.share_stats();
    assert_eq!((past.readers_gone, past.frames_reclaimed), (1, QUOTA.into()));
    // Its frames are there for another.
    let mut another = CReader::start("examples/c/reader.c", &bed.path, &["300"]);
    bed.wait_for_readers(2);
    bed.send_all(300, 0);
    assert!(another.output().starts_with("packets 300 "));
    assert_eq!(bed.umem.stats(bed.socket).unwrap().xdp_fill_ring_empty, 0, "the socket always had frames");
    drop(bed);
    assert_eq!(fast.join().unwrap().0, 500, "the fast one missed nothing");
}

#[test]
fn a_hostile_reader_cannot_write_and_its_returns_are_counted() {
    if !is_privileged() {
        return;
    }
    let mut bed = Bed::new(2);
    let honest = rust_reader(&bed);
    bed.wait_for_readers(1);
    for (round, arguments) in [&["100"][..], &["100", "talk"]].iter().enumerate() {
        let mut hostile = CReader::start("tests/c/hostile.c", &bed.path, arguments);
        bed.wait_for_readers(2);
        let before = bed.umem.reader_stats();
        bed.send_all(100, 0);
        let round = round as u64 + 1;
        bed.run("the hostile one is dismissed", |bed| bed.umem.share_stats().readers_dismissed == round);
        let after = bed.umem.reader_stats();
        assert_eq!(after.bad_returns - before.bad_returns, 400, "four of each five");
        assert_eq!((after.lent - before.lent, after.returned - before.returned), (200, 200));
        assert_eq!(
            hostile.output(),
            "map: Operation not permitted\nmap reopened: Operation not permitted\nprotect: Permission denied\n\
             write: refused\ntruncate: Operation not permitted\ndismissed\n"
        );
        assert_eq!(bed.umem.readers().count(), 1);
    }
    bed.send_all(100, 0);
    let (packets, bytes, sum) = bed.lent;
    drop(bed);
    assert_eq!(honest.join().unwrap(), (packets, bytes, sum, 0));
    assert_eq!(packets, 300);
}

#[test]
fn a_reader_beyond_number_or_frames_is_told_so() {
    if !is_privileged() {
        return;
    }
    // Room for one, and a second is refused for its frames, as the bed admits one more than it has frames for.
    let mut bed = Bed::new(1);
    let refused = |bed: &mut Bed| {
        let path = bed.path.clone();
        let refused = bed.umem.share_stats().readers_refused;
        let asking = std::thread::spawn(move || UmemReader::connect(path));
        bed.run("a reader is refused", |bed| bed.umem.share_stats().readers_refused == refused + 1);
        asking.join().unwrap().expect_err("refused").to_string()
    };
    let first = rust_reader(&bed);
    bed.wait_for_readers(1);
    let message = refused(&mut bed);
    assert!(message.ends_with("not enough UMEM frames for another reader's quota"), "{message}");
    drop(bed);
    first.join().unwrap();

    let mut umem = SharedUmem::new(&config(2 * QUOTA)).unwrap();
    let path = unique_path();
    umem.share(ReaderAccess { quota: QUOTA, ..ReaderAccess::new(&path) }).unwrap();
    let connect = |path: PathBuf| std::thread::spawn(move || UmemReader::connect(path));
    let mut answer = |asking: JoinHandle<Result<UmemReader, ReaderError>>| {
        while !asking.is_finished() {
            umem.wait(Some(Duration::from_millis(1))).unwrap();
        }
        asking.join().unwrap()
    };
    let _one = answer(connect(path.clone())).unwrap();
    let message = answer(connect(path.clone())).expect_err("one is enough").to_string();
    assert!(message.ends_with("reader rejected by the receiver: too many readers"), "{message}");
    drop(umem);
    let message = UmemReader::connect(&path).expect_err("nobody listens").to_string();
    assert!(message.contains(": connect: ENOENT"), "{message}");
}

#[test]
fn what_cannot_be_shared_is_an_error_that_says_why() {
    let mut private = SharedUmem::new(&UmemConfig { frames: 256, ..UmemConfig::default() }).unwrap();
    assert!(matches!(
        private.share(ReaderAccess::new(unique_path())),
        Err(ReaderAccessError::Config { field: "quota", .. })
    ));
    let small = || ReaderAccess { quota: 8, ..ReaderAccess::new(unique_path()) };
    assert!(matches!(private.share(small()), Err(ReaderAccessError::Private)));
    let mut umem = SharedUmem::new(&config(256)).unwrap();
    for (wrong, field) in [
        (ReaderAccess { readers: 33, ..small() }, "readers"),
        (ReaderAccess { readers: 0, ..small() }, "readers"),
        (ReaderAccess { quota: 0, ..small() }, "quota"),
        (ReaderAccess { quota: 257, ..small() }, "quota"),
    ] {
        assert!(
            matches!(umem.share(wrong), Err(ReaderAccessError::Config { field: named, .. }) if named == field)
        );
    }
    let nowhere = ReaderAccess { path: "/no/such/directory/umem.sock".into(), ..small() };
    let message = umem.share(nowhere).expect_err("no directory").to_string();
    assert_eq!(
        message.split_once("bind: ENOENT").map(|(start, _)| start),
        Some("reader socket /no/such/directory/umem.sock: ")
    );
    // A file that is no socket is left alone; a socket that nobody listens at is replaced.
    let (file, dead) = (small(), small());
    std::fs::write(&file.path, "precious").unwrap();
    assert!(umem.share(file.clone()).unwrap_err().to_string().contains("EADDRINUSE"));
    assert_eq!(std::fs::read_to_string(&file.path).unwrap(), "precious");
    std::fs::remove_file(&file.path).unwrap();
    let left =
        rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::SEQPACKET, None)
            .unwrap();
    rustix::net::bind(&left, &rustix::net::SocketAddrUnix::new(&dead.path).unwrap()).unwrap();
    drop(left);
    umem.share(dead.clone()).unwrap();
    assert!(matches!(umem.share(small()), Err(ReaderAccessError::Twice)));
    let mut other = SharedUmem::new(&config(256)).unwrap();
    assert!(other.share(dead).unwrap_err().to_string().contains("another process is listening there"));
}

#[test]
fn what_listens_but_is_no_receiver_of_this_version_is_named() {
    use rustix::net::{
        AddressFamily, SendFlags, SocketAddrUnix, SocketType, accept, bind, listen, send, socket,
    };
    let greeting = |version: u32, status: u32| {
        let mut bytes = [0u8; 64];
        for (at, word) in [0x4d55_5058u32, version, status].into_iter().enumerate() {
            bytes[4 * at..4 * at + 4].copy_from_slice(&word.to_ne_bytes());
        }
        bytes.to_vec()
    };
    let cases = [
        (b"HTTP/1.1 400 Bad Request".to_vec(), "unexpected first message"),
        (greeting(2, 0), "version 2, expected 1"),
        (greeting(1, 0), "no descriptors received"),
        (greeting(1, 0)[..40].to_vec(), "unexpected first message"),
        (greeting(1, 3), "it could not allocate memory for this reader; see its log"),
    ];
    for (message, wanted) in cases {
        let path = unique_path();
        let listener = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&listener, 1).unwrap();
        let asking = std::thread::spawn({
            let path = path.clone();
            move || UmemReader::connect(path)
        });
        let connection = accept(&listener).unwrap();
        send(&connection, &message, SendFlags::empty()).unwrap();
        let error = asking.join().unwrap().expect_err("not a receiver").to_string();
        assert!(error.ends_with(wanted) && error.contains(path.to_str().unwrap()), "{error}");
        std::fs::remove_file(&path).unwrap();
    }
}
