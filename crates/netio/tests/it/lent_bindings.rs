//! Packets of a port lent to readers in other processes: what they see, and what those cost who stop, die or are too many.

use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use expressway_netio::PacketIo;
use expressway_netio::xsk::{
    LendReport, ObtainedMode, OpenError, ReaderAccess, ReaderError, UmemReader, XskBinding, XskConfig, XskIo,
    XskIoConfig,
};
use rustix::process::Signal;

use crate::common::c::{CReader, unique_path};
use crate::common::netns::{FAR, NEAR, NEAR_DEVICE, Pair, is_privileged};
use crate::common::xsk::{Around, open_bindings};

const PORT: u16 = 7412;
const RING: u32 = 64;
const QUOTA: u32 = 32;

/// A port that lends, and senders at the far end.
struct Bed {
    io: XskIo,
    path: PathBuf,
    senders: Vec<(UdpSocket, SocketAddr)>,
    /// Datagrams that the callback saw.
    seen: u64,
    _around: Around,
    _pair: Pair,
}

fn share(path: &Path, readers: u32) -> ReaderAccess {
    ReaderAccess { readers, quota: QUOTA, ..ReaderAccess::new(path) }
}

impl Bed {
    fn new(readers: u32) -> Self {
        let (pair, path) = (Pair::new(1500, 1), unique_path());
        let lend = |port: XskConfig| XskConfig {
            rx_ring: RING,
            tx_ring: RING,
            lend: Some(share(&path, readers)),
            ..port
        };
        let (io, around) = open_bindings(&pair, 1, PORT, XskIoConfig::default(), ObtainedMode::Copy, lend);
        let senders = pair.far.enter(|| {
            let of = |index: usize| {
                let socket = UdpSocket::bind((FAR[index], 0)).unwrap();
                // Two addresses of each family.
                (socket, SocketAddr::new(NEAR[2 * index], PORT))
            };
            (0..FAR.len()).map(of).collect()
        });
        let mut bed = Self { io, path, senders, seen: 0, _around: around, _pair: pair };
        // Neighbours are found, so that nothing overtakes.
        for (socket, to) in &bed.senders {
            socket.send_to(b"first", to).unwrap();
        }
        bed.run("the first come", |bed| bed.seen == bed.senders.len() as u64);
        bed.seen = 0;
        bed
    }

    fn turn(&mut self) {
        let now = Instant::now();
        let seen = &mut self.seen;
        self.io.receive(now, &mut |_| *seen += 1).unwrap();
        self.io.flush(now).unwrap();
    }

    /// Turns until `done`. A bound far beyond what it takes, so that a failure is no hang.
    fn run(&mut self, what: &str, done: impl Fn(&mut Self) -> bool) {
        let start = Instant::now();
        while !done(self) {
            assert!(start.elapsed() < Duration::from_secs(60), "never: {what}; {:?}", self.report());
            self.turn();
        }
    }

    fn report(&mut self) -> LendReport {
        self.io.lend_report()
    }

    fn wait_for_arrivals(&mut self, count: u64) {
        self.run("a reader comes", |bed| bed.report().arrivals.readers_accepted == count);
    }

    /// Sends datagrams in bursts that the rings hold, each of which the callback has seen before the next.
    fn send(&mut self, numbers: std::ops::Range<u32>) {
        for number in numbers {
            let (socket, to) = &self.senders[number as usize % self.senders.len()];
            socket.send_to(payload(number).as_bytes(), to).unwrap();
            if number % 16 == 15 {
                let wanted = u64::from(number) + 1;
                self.run("a burst comes", |bed| bed.seen == wanted);
            }
        }
    }
}

/// Of any length, the empty one and those that Ethernet pads among them.
fn payload(number: u32) -> String {
    "x".repeat(number as usize * 97 % 1300) + &number.to_string()
}

/// What a reader in Rust saw until the receiver was gone.
fn rust_reader(path: &Path) -> JoinHandle<Vec<String>> {
    let path = path.to_owned();
    std::thread::spawn(move || {
        let mut reader = UmemReader::connect(path).unwrap();
        let mut seen = Vec::new();
        loop {
            reader
                .receive(16, |packet| {
                    seen.push(String::from_utf8(packet.payload().unwrap().to_vec()).unwrap());
                })
                .unwrap();
            match reader.wait(None) {
                Ok(_) => {}
                Err(ReaderError::Gone { .. }) => return seen,
                Err(error) => panic!("{error}"),
            }
        }
    })
}

#[test]
fn readers_see_every_datagram_that_the_callback_saw() {
    if !is_privileged() {
        return;
    }
    let mut bed = Bed::new(2);
    let mut in_c = CReader::start("examples/c/datagram_reader.c", &bed.path, &["64"]);
    bed.wait_for_arrivals(1);
    let in_rust = rust_reader(&bed.path);
    bed.wait_for_arrivals(2);
    // So that neither holds its quota: each burst is returned before the next. All lines together fit into a pipe.
    for first in (0..64).step_by(16) {
        bed.send(first..first + 16);
        let wanted = 2 * (u64::from(first) + 16);
        bed.run("a burst is returned", |bed| bed.report().given.returned == wanted);
    }
    let lines: Vec<String> = (0..64).map(payload).collect();
    let of_c: Vec<String> = (0..64)
        .map(|number: u32| format!("{number} 0 none {} {}\n", payload(number).len(), payload(number)))
        .collect();
    assert_eq!(in_c.output(), of_c.concat());
    let report = bed.report();
    assert_eq!((report.given.lent, report.given.dropped_quota, report.given.bad_returns), (128, 0, 0));
    assert_eq!((report.not_lent.not_lent_kernel, report.not_lent.not_lent_multi_frame), (0, 0));
    drop(bed);
    assert_eq!(in_rust.join().unwrap(), lines);
}

#[test]
fn a_reader_that_stops_costs_its_quota_and_no_datagram_of_the_callback() {
    if !is_privileged() {
        return;
    }
    let mut bed = Bed::new(2);
    let stopped = CReader::start("examples/c/datagram_reader.c", &bed.path, &[]);
    bed.wait_for_arrivals(1);
    stopped.signal(Signal::STOP);
    let refused = std::thread::spawn({
        let path = bed.path.clone();
        move || (UmemReader::connect(&path), UmemReader::connect(&path).expect_err("two are enough"))
    });
    bed.run("a third is refused", |bed| bed.report().arrivals.readers_refused == 1);
    let (idle, message) = refused.join().unwrap();
    assert!(message.to_string().contains("too many readers"), "{message}");
    // Ten times what the rings and both quotas hold together.
    bed.send(0..2560);
    let report = bed.report();
    assert_eq!(bed.seen, 2560);
    assert_eq!(report.given.lent, 2 * u64::from(QUOTA));
    assert_eq!(report.given.dropped_quota, 2 * (2560 - u64::from(QUOTA)));
    let stats = bed.io.stats();
    let lost = (stats.xdp_rx_ring_full, stats.xdp_rx_dropped, stats.xdp_fill_ring_empty);
    assert_eq!(lost, (0, 0, 0), "the socket always had frames");

    stopped.signal(Signal::KILL);
    drop(idle);
    bed.run("both are gone", |bed| bed.report().arrivals.readers_gone == 2);
    assert_eq!(bed.report().arrivals.frames_reclaimed, 2 * u64::from(QUOTA));
    // Their frames are there for another.
    let another = rust_reader(&bed.path);
    bed.wait_for_arrivals(3);
    bed.send(2560..2560 + QUOTA);
    drop(bed);
    assert_eq!(another.join().unwrap(), (2560..2560 + QUOTA).map(payload).collect::<Vec<_>>());
}

#[test]
fn what_comes_by_the_kernel_is_counted_as_not_lent() {
    if !is_privileged() {
        return;
    }
    let mut bed = Bed::new(1);
    let reader = rust_reader(&bed.path);
    bed.wait_for_arrivals(1);
    // Fragments are the kernel's.
    let (socket, to) = &bed.senders[0];
    socket.send_to(&[b'f'; 4000], to).unwrap();
    bed.run("a datagram comes", |bed| bed.seen == 1);
    assert_eq!((bed.report().given.lent, bed.report().not_lent.not_lent_kernel), (0, 1));
    drop(bed);
    assert!(reader.join().unwrap().is_empty());
}

#[test]
fn what_cannot_be_lent_is_an_error_that_says_why() {
    if !is_privileged() {
        return;
    }
    let pair = Pair::new(1500, 1);
    let open = |lend: ReaderAccess| {
        let map = expressway_xbpf::Redirect::load(&expressway_xbpf::Options::default()).unwrap();
        let config = XskConfig { lend: Some(lend), ..XskConfig::new(NEAR_DEVICE, 0) };
        pair.near.enter(|| XskBinding::open(config, map.xsk_map()).err().expect("refused"))
    };
    let good = share(Path::new("/no/such/folder/umem.sock"), 1);
    assert!(matches!(
        open(ReaderAccess { quota: 0, ..good.clone() }),
        OpenError::Config { field: "quota", value: 0, .. }
    ));
    let message = open(good).to_string();
    let expected = format!("{NEAR_DEVICE} queue 0: reader socket /no/such/folder/umem.sock: bind: ENOENT");
    assert!(message.starts_with(&expected) && message.ends_with("; the directory must exist"), "{message}");
}
