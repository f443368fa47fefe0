//! A UMEM that is shared: by sockets, and with readers in other processes, written in C and in Rust, honest, slow,
//! killed and hostile.

mod common;

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use common::c::{CReader, unique_path};
use common::netns::{FAR, FAR_DEVICE, FAR_MAC, NEAR, NEAR_DEVICE, NEAR_MAC, Pair, is_privileged};
use expressway_netio::express::{
    BindMode, ForeignSocket, NotSent, OpenError, PortConfig, ReaderError, ReaderReport, ShareConfig,
    ShareError, SharedUmem, SocketId, UmemConfig, UmemReader, interface_index,
};
use expressway_wire::{ChecksumMode, MacAddr, UdpHeaders};
use expressway_xbpf::{AttachMode, Attachment, Existing, Options, Redirect};
use rustix::process::Signal;

const PORT: u16 = 7411;
const RING: u32 = 128;
const QUOTA: u32 = 64;

/// A veth whose near end receives into a UMEM, and a sender at the far end.
struct Bed {
    umem: SharedUmem,
    socket: SocketId,
    path: PathBuf,
    sender: UdpSocket,
    /// Of all packets that were lent to somebody: how many, their bytes, and the sum of these.
    lent: (u64, u64, u32),
    redirect: Redirect,
    _attachment: Attachment,
    pair: Pair,
}

fn port(queue: u32) -> PortConfig {
    PortConfig { mode: BindMode::Copy, rx_ring: RING, tx_ring: RING, ..PortConfig::new(NEAR_DEVICE, queue) }
}

fn config(frames: u32) -> UmemConfig {
    UmemConfig { frames, shareable: true, ..UmemConfig::default() }
}

impl Bed {
    /// Frames for the socket and so many readers; readers are let in.
    fn new(readers: u32) -> Self {
        let pair = Pair::new(1500, 1);
        let redirect = Redirect::load(&Options { queues: 4, ..Options::default() }).unwrap();
        redirect.add_pair(SocketAddr::new(NEAR[0], PORT)).unwrap();
        let mut umem = SharedUmem::new(&config(2 * RING + readers * QUOTA)).unwrap();
        let (attachment, socket) = pair.near.enter(|| {
            let index = interface_index(NEAR_DEVICE).unwrap();
            let attachment = redirect.attach(index, AttachMode::Native, Existing::Refuse).unwrap();
            (attachment, umem.bind(&port(0), Some(redirect.xsk_map())).unwrap())
        });
        let path = unique_path();
        umem.share(ShareConfig { readers: readers + 1, quota: QUOTA, ..ShareConfig::new(&path) }).unwrap();
        let sender = pair.far.enter(|| UdpSocket::bind((FAR[0], 0)).unwrap());
        Self { umem, socket, path, sender, lent: (0, 0, 0), redirect, _attachment: attachment, pair }
    }

    /// One turn of the receiver: lends all it receives to all who are there.
    fn turn(&mut self) {
        self.umem.wait(Some(Duration::from_millis(5))).unwrap();
        let readers = self.umem.readers();
        let lent = &mut self.lent;
        self.umem
            .receive(self.socket, 64, |mut packet| {
                let bytes = packet.bytes();
                let sum = bytes.iter().fold(0u32, |sum, &byte| sum.wrapping_add(byte.into()));
                let length = bytes.len() as u64;
                if !packet.lend(readers, 0, 0).is_empty() {
                    *lent = (lent.0 + 1, lent.1 + length, lent.2.wrapping_add(sum));
                }
            })
            .unwrap();
        self.umem.flush().unwrap();
    }

    /// Turns until `done`. A bound far beyond what it takes, so that a failure is no hang.
    fn run(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !done(self) {
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "never: {what}; {:?}",
                self.umem.reader_stats()
            );
            self.turn();
        }
    }

    fn send(&self, first: u32, count: u32) {
        for number in first..first + count {
            let mut payload = vec![number as u8; 16 + number as usize % 1000];
            payload[..4].copy_from_slice(&number.to_be_bytes());
            self.sender.send_to(&payload, (NEAR[0], PORT)).unwrap();
        }
    }

    fn received(&self) -> u64 {
        self.umem.stats(self.socket).unwrap().rx_express_packets
    }

    /// Sends so many packets, in bursts, each of which every reader but those in `slow` must return first.
    fn send_all(&mut self, count: u32, slow: usize) {
        for first in (0..count).step_by(20) {
            let burst = 20.min(count - first);
            let wanted = self.received() + u64::from(burst);
            self.send(first, burst);
            self.run("a burst comes back", |bed| {
                let busy = bed.umem.reader_reports().filter(|report| report.held > 0).count();
                bed.received() == wanted && busy <= slow
            });
        }
    }

    fn wait_for_readers(&mut self, count: u32) {
        self.run("a reader comes or goes", |bed| bed.umem.readers().count() == count);
    }

    fn report(&self, number: usize) -> ReaderReport {
        self.umem.reader_reports().nth(number).unwrap()
    }
}

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
    assert!(message.ends_with("its UMEM has not enough frames for another quota"), "{message}");
    drop(bed);
    first.join().unwrap();

    let mut umem = SharedUmem::new(&config(2 * QUOTA)).unwrap();
    let path = unique_path();
    umem.share(ShareConfig { quota: QUOTA, ..ShareConfig::new(&path) }).unwrap();
    let connect = |path: PathBuf| std::thread::spawn(move || UmemReader::connect(path));
    let mut answer = |asking: JoinHandle<Result<UmemReader, ReaderError>>| {
        while !asking.is_finished() {
            umem.wait(Some(Duration::from_millis(1))).unwrap();
        }
        asking.join().unwrap()
    };
    let _one = answer(connect(path.clone())).unwrap();
    let message = answer(connect(path.clone())).expect_err("one is enough").to_string();
    assert!(message.ends_with("refuses another reader: as many as it admits are connected"), "{message}");
    drop(umem);
    let message = UmemReader::connect(&path).expect_err("nobody listens").to_string();
    assert!(message.contains(": connect: ENOENT"), "{message}");
}

#[test]
fn what_cannot_be_shared_is_an_error_that_says_why() {
    let mut private = SharedUmem::new(&UmemConfig { frames: 256, ..UmemConfig::default() }).unwrap();
    assert!(matches!(
        private.share(ShareConfig::new(unique_path())),
        Err(ShareError::Config { field: "quota", .. })
    ));
    let small = || ShareConfig { quota: 8, ..ShareConfig::new(unique_path()) };
    assert!(matches!(private.share(small()), Err(ShareError::Private)));
    let mut umem = SharedUmem::new(&config(256)).unwrap();
    for (wrong, field) in [
        (ShareConfig { readers: 33, ..small() }, "readers"),
        (ShareConfig { readers: 0, ..small() }, "readers"),
        (ShareConfig { quota: 0, ..small() }, "quota"),
        (ShareConfig { quota: 257, ..small() }, "quota"),
    ] {
        assert!(matches!(umem.share(wrong), Err(ShareError::Config { field: named, .. }) if named == field));
    }
    let nowhere = ShareConfig { path: "/no/such/directory/umem.sock".into(), ..small() };
    let message = umem.share(nowhere).expect_err("no directory").to_string();
    assert_eq!(
        message.split_once("bind: ENOENT").map(|(start, _)| start),
        Some("socket for readers /no/such/directory/umem.sock: ")
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
    assert!(matches!(umem.share(small()), Err(ShareError::Twice)));
    let mut other = SharedUmem::new(&config(256)).unwrap();
    assert!(other.share(dead).unwrap_err().to_string().contains("another process listens there"));
}

#[test]
fn sockets_that_cannot_share_are_refused_by_name() {
    if !is_privileged() {
        return;
    }
    let mut bed = Bed::new(1);
    let map = bed.redirect.xsk_map();
    let mut bind = |config: PortConfig| {
        let umem = &mut bed.umem;
        bed.pair.near.enter(|| umem.bind(&config, Some(map))).map_err(|error| match error {
            OpenError::Config { field, .. } => field.to_owned(),
            other => other.to_string(),
        })
    };
    assert_eq!(bind(port(0)).unwrap_err(), "queue", "two sockets of one queue");
    assert_eq!(bind(port(1)).unwrap_err(), "frames");
    let message = bind(PortConfig { rx_ring: 64, tx_ring: 64, ..port(1) });
    assert_eq!(message.unwrap_err(), "frames");
    drop(bed);

    let pair = Pair::new(1500, 2);
    let redirect = Redirect::load(&Options { queues: 1, ..Options::default() }).unwrap();
    let mut umem = SharedUmem::new(&config(1024)).unwrap();
    let mut other = SharedUmem::new(&config(1024)).unwrap();
    pair.near.enter(|| {
        let named = |result: Result<SocketId, OpenError>| result.expect_err("refused").to_string();
        let first = umem.bind(&port(0), None).unwrap();
        // A queue that the interface has not, and a map that is too small: the UMEM is as it was.
        let message = named(umem.bind(&port(7), None));
        assert!(message.contains("near0 queue 7: AF_XDP bind on a shared UMEM: EINVAL"), "{message}");
        let message = named(umem.bind(&port(1), Some(redirect.xsk_map())));
        assert!(
            message.contains("queue 1: AF_XDP insertion into the XSKMAP: E2BIG")
                || message.contains("fewer entries"),
            "{message}"
        );
        assert_eq!(umem.mode(first).unwrap(), expressway_netio::express::ObtainedMode::Copy);
        let second = umem.bind(&port(1), None).unwrap();
        assert_ne!(first, second);
        // A socket of another UMEM is told from one's own.
        assert!(matches!(other.receive(first, 1, |_| ()), Err(ForeignSocket(_))));
        assert!(other.transmit(second, |_| 60).is_err() && umem.transmit(second, |_| 60).unwrap());
        umem.flush().unwrap();
    });
    pair.near.ip("link set near0 mtu 3900");
    let error = pair.near.enter(|| other.bind(&port(0), None)).expect_err("no room in a frame");
    assert!(error.to_string().starts_with("AF_XDP frame_size = 4096: must hold a packet"), "{error}");
}

#[test]
fn a_packet_cannot_be_sent_by_a_socket_of_another_umem() {
    if !is_privileged() {
        return;
    }
    let mut bed = Bed::new(1);
    let (foreign_pair, mut foreign) = (Pair::new(1500, 1), SharedUmem::new(&config(1024)).unwrap());
    let elsewhere = foreign_pair.near.enter(|| foreign.bind(&port(0), None).unwrap());
    bed.send(0, 1);
    let mut refused = 0;
    while refused == 0 {
        bed.umem.wait(None).unwrap();
        bed.umem
            .receive(bed.socket, 1, |packet| {
                let error = packet.send(elsewhere).unwrap_err();
                assert!(matches!(error, NotSent::Foreign(_)));
                assert!(error.to_string().contains("another UMEM"), "{error}");
                refused += 1;
            })
            .unwrap();
    }
    assert!(bed.umem.as_fd().try_clone_to_owned().is_ok());
}

#[test]
fn a_link_that_goes_is_an_error_that_names_it_and_packets_wait_for_it() {
    if !is_privileged() {
        return;
    }
    let mut bed = Bed::new(1);
    let build = |bed: &mut Bed| {
        let built = bed.umem.transmit(bed.socket, |frame| {
            frame[..60].fill(0xff);
            60
        });
        assert!(built.unwrap());
        bed.umem.flush()
    };
    build(&mut bed).unwrap();
    bed.pair.near.ip(&format!("link set {NEAR_DEVICE} down"));
    let message = build(&mut bed).expect_err("the link is down").to_string();
    assert!(message.starts_with("near0 queue 0: AF_XDP sending: ENETDOWN"), "{message}");
    assert!(message.ends_with("; set the interface up (`ip link set ... up`)"), "{message}");
    assert_eq!(bed.umem.in_flight(bed.socket).unwrap(), 1, "it waits");
    bed.pair.near.ip(&format!("link set {NEAR_DEVICE} up"));
    bed.umem.flush().unwrap();
    while bed.umem.in_flight(bed.socket).unwrap() > 0 {
        bed.umem.wait(Some(Duration::from_millis(1))).unwrap();
    }
    bed.pair.near.ip(&format!("link del {NEAR_DEVICE}"));
    let message = build(&mut bed).expect_err("the interface is gone").to_string();
    assert!(message.starts_with("near0 queue 0: AF_XDP sending: ENXIO"), "{message}");
    assert!(message.ends_with("the interface went away: make the sockets anew"), "{message}");
}

#[test]
fn every_queue_receives_into_one_umem_and_forwards_to_any_other() {
    if !is_privileged() {
        return;
    }
    let pair = Pair::new(1500, 2);
    let redirects: Vec<Redirect> =
        (0..2).map(|_| Redirect::load(&Options { queues: 2, ..Options::default() }).unwrap()).collect();
    // What is sent by queue n arrives on queue n of a veth's peer.
    let ends = [(&pair.near, NEAR_DEVICE, &redirects[0]), (&pair.far, FAR_DEVICE, &redirects[1])];
    let [mut near, mut far] = ends.map(|(namespace, device, redirect)| {
        redirect.add_pair(SocketAddr::new(NEAR[0], PORT)).unwrap();
        let mut umem = SharedUmem::new(&UmemConfig { frames: 4 * RING, ..UmemConfig::default() }).unwrap();
        namespace.enter(|| {
            let index = interface_index(device).unwrap();
            let attachment = redirect.attach(index, AttachMode::Native, Existing::Refuse).unwrap();
            let sockets = [0, 1].map(|queue| {
                let config = PortConfig { interface: device.to_owned(), ..port(queue) };
                umem.bind(&config, Some(redirect.xsk_map())).unwrap()
            });
            (umem, sockets, attachment)
        })
    });
    let headers = UdpHeaders::new(
        MacAddr(FAR_MAC),
        MacAddr(NEAR_MAC),
        SocketAddr::new(FAR[0], 9),
        SocketAddr::new(NEAR[0], PORT),
    )
    .template()
    .unwrap();
    let start = Instant::now();
    for queue in [0usize, 1] {
        let (here, there) = (near.1[queue], near.1[1 - queue]);
        let mut back = Vec::new();
        // A veth may lose what is sent before its link is up.
        while back.is_empty() {
            assert!(start.elapsed() < Duration::from_secs(60), "queue {queue}: nothing comes back");
            far.0
                .transmit(far.1[queue], |frame| {
                    frame[headers.header_len()] = b'0' + queue as u8;
                    headers.write(frame, 1, ChecksumMode::Full, 0).unwrap()
                })
                .unwrap();
            far.0.flush().unwrap();
            near.0.wait(Some(Duration::from_millis(20))).unwrap();
            assert_eq!(near.0.receive(there, 64, |_| ()).unwrap(), 0, "it came on its own queue");
            near.0.receive(here, 64, |packet| packet.send(there).unwrap()).unwrap();
            near.0.flush().unwrap();
            far.0.wait(Some(Duration::from_millis(20))).unwrap();
            far.0.receive(far.1[1 - queue], 64, |mut packet| back.push(packet.bytes().to_vec())).unwrap();
        }
        assert!(back.iter().all(|packet| packet[headers.header_len()] == b'0' + queue as u8));
    }
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
        (b"HTTP/1.1 400 Bad Request".to_vec(), "its first message is no greeting"),
        (greeting(2, 0), "it has version 2, this is 1"),
        (greeting(1, 0), "it passed no descriptors"),
        (greeting(1, 0)[..40].to_vec(), "its first message is no greeting"),
        (greeting(1, 3), "it could not make the memory for it; its log says more"),
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
        let error = asking.join().unwrap().expect_err("no receiver").to_string();
        assert!(error.ends_with(wanted) && error.contains(path.to_str().unwrap()), "{error}");
        std::fs::remove_file(&path).unwrap();
    }
}
