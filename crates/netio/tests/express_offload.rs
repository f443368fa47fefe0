//! Transmit metadata over a veth in copy mode: time stamps, launch times refused, and what becomes of checksums that
//! are left to a device. The frames are looked at as they arrive at the other end.
#![allow(unsafe_code)] // A packet socket.

mod common;

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use common::netns::{FAR, FAR_DEVICE, NEAR, NEAR_DEVICE, Pair, is_privileged};
use expressway_netio::express::{
    BindMode, ChecksumFault, ChecksumProbe, ChecksumProof, ExpressConfig, ExpressIo, Grant, Port, PortConfig,
    TransmitHints, TransmitTime,
};
use expressway_netio::route::RouteMirror;
use expressway_netio::udp::{UdpConfig, UdpIo};
use expressway_netio::{Flow, IoError, PacketIo};
use expressway_wire::{ChecksumState, parse_udp};
use expressway_xbpf::{AttachMode, Attachment, Existing, Options, Redirect};

const PORT: u16 = 4433;
const PATIENCE: Duration = Duration::from_secs(20);
const ALL: TransmitHints = TransmitHints { timestamps: true, checksum: true, launch_time: true };

struct Bed {
    io: ExpressIo,
    sniffer: OwnedFd,
    peer: UdpSocket,
    _redirect: Redirect,
    _attachment: Attachment,
    _mirror: RouteMirror,
    pair: Pair,
}

impl Bed {
    fn new(mtu: usize, hints: TransmitHints) -> Self {
        let pair = Pair::new(mtu, 1);
        let (io, redirect, attachment, mirror) = pair.near.enter(|| {
            let redirect = Redirect::load(&Options::default()).unwrap();
            let attachment =
                redirect.attach(ifindex(NEAR_DEVICE), AttachMode::Native, Existing::Refuse).unwrap();
            let config = PortConfig { mode: BindMode::Copy, hints, ..PortConfig::new(NEAR_DEVICE, 0) };
            let port = Port::open(config, redirect.xsk_map()).unwrap();
            let mirror = RouteMirror::start().unwrap();
            let mut kernel = UdpIo::bind(&UdpConfig::new(vec![local()])).unwrap();
            kernel.set_resolver(mirror.resolver().unwrap());
            let io = ExpressIo::new(vec![port], kernel, mirror.resolver().unwrap(), ExpressConfig::default())
                .unwrap();
            (io, redirect, attachment, mirror)
        });
        let (sniffer, peer) = pair.far.enter(|| {
            let peer = UdpSocket::bind(remote()).unwrap();
            peer.set_nonblocking(true).unwrap();
            (sniffer(), peer)
        });
        let mut bed =
            Self { io, sniffer, peer, _redirect: redirect, _attachment: attachment, _mirror: mirror, pair };
        bed.warm_up();
        bed
    }

    /// Sends until datagrams leave by AF_XDP, and forgets what that left behind.
    fn warm_up(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        while self.io.stats().tx_express_packets == 0 {
            self.send(&[b"warm-up".to_vec()]);
            assert!(Instant::now() < deadline, "{:?}", self.io.stats());
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(20));
        while receive(&self.sniffer).is_some() {}
        while self.peer.recv(&mut [0; 64]).is_ok() {}
        self.io.transmit_times(&mut |_, _| ());
    }

    /// Sends payloads in one burst.
    fn send(&mut self, payloads: &[Vec<u8>]) {
        let segment = payloads.iter().map(Vec::len).max().unwrap();
        let mut rest = payloads.iter();
        let sent = self
            .io
            .transmit(&flow(), segment, &mut |slot| {
                rest.next().map_or(0, |payload| {
                    slot[..payload.len()].copy_from_slice(payload);
                    payload.len()
                })
            })
            .unwrap();
        assert_eq!(sent.packets, payloads.len());
        self.io.flush(Instant::now()).unwrap();
    }

    /// The next frame that arrives at the far end and that `judge` takes.
    fn arrival<T>(&mut self, mut judge: impl FnMut(&[u8]) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(verdict) = receive(&self.sniffer).and_then(|frame| judge(&frame)) {
                return verdict;
            }
            assert!(Instant::now() < deadline, "nothing came: {:?}", self.io.stats());
            self.io.flush(Instant::now()).unwrap();
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    fn probe(&mut self) -> Result<ChecksumProof, ChecksumFault> {
        // The kernel's socket may take a burst to confirm the neighbour: the next one leaves by AF_XDP.
        let probe: ChecksumProbe = (0..10)
            .find_map(|_| {
                let probe = self.io.send_checksum_probe(&flow());
                self.io.flush(Instant::now()).unwrap();
                probe
            })
            .expect("copy mode grants checksums");
        self.arrival(|frame| probe.judge(frame))
    }

    /// Sends `payload` by AF_XDP; what the checksum field of the frame that arrives holds.
    fn checksum_of(&mut self, payload: Vec<u8>) -> Result<ChecksumState, bool> {
        let before = self.io.stats().tx_express_packets;
        let deadline = Instant::now() + PATIENCE;
        while self.io.stats().tx_express_packets == before {
            while receive(&self.sniffer).is_some() {}
            self.send(std::slice::from_ref(&payload));
            assert!(Instant::now() < deadline);
        }
        self.arrival(|frame| {
            let layout = parse_udp(frame).ok()?;
            (frame[layout.payload()] == payload)
                .then(|| layout.verify_checksum(frame).map_err(|_| layout.is_checksum_partial()))
        })
    }
}

fn local() -> SocketAddr {
    SocketAddr::new(NEAR[0], PORT)
}

fn remote() -> SocketAddr {
    SocketAddr::new(FAR[0], 5000)
}

fn flow() -> Flow {
    Flow::new(local(), remote())
}

fn ifindex(device: &str) -> u32 {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    rustix::net::netdevice::name_to_index(&socket, device).unwrap()
}

/// A packet socket that sees what arrives at the far device, in the namespace of the calling thread.
fn sniffer() -> OwnedFd {
    let protocol = i32::from((libc::ETH_P_IP as u16).to_be());
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: plain system call; the descriptor is checked and owned below.
    let fd = unsafe { libc::socket(libc::AF_PACKET, kind, protocol) };
    assert!(fd >= 0, "root may open packet sockets: {}", std::io::Error::last_os_error());
    // SAFETY: just opened, and owned by nobody else.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: all zero is a valid value of this struct of integers.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol as u16;
    address.sll_ifindex = ifindex(FAR_DEVICE) as i32;
    let length = size_of::<libc::sockaddr_ll>() as u32;
    // SAFETY: the address lives and is as long as said.
    let bound = unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), length) };
    assert_eq!(bound, 0, "{}", std::io::Error::last_os_error());
    fd
}

fn receive(sniffer: &OwnedFd) -> Option<Vec<u8>> {
    let mut frame = vec![0; 16_384];
    let (length, _) = rustix::net::recv(sniffer, &mut frame[..], rustix::net::RecvFlags::empty()).ok()?;
    frame.truncate(length);
    Some(frame)
}

fn tai() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Tai);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[test]
fn a_checksum_left_unfinished_is_seen_and_never_trusted() {
    if !is_privileged() {
        return;
    }
    let mut bed = Bed::new(1500, ALL);
    assert_eq!(bed.probe().unwrap_err(), ChecksumFault::Unfinished, "a veth promises and hands on");
    let report = bed.io.reports().next().unwrap();
    assert!(report.grants.checksum.is_granted() && !report.device_checksum);
    for size in [1, 2, 700, 1472] {
        assert_eq!(bed.checksum_of(vec![0x5a; size]), Ok(ChecksumState::Valid), "software does it: {size}");
    }
}

#[test]
fn a_checksum_that_is_proven_is_left_to_the_device() {
    if !is_privileged() {
        return;
    }
    let mut bed = Bed::new(9000, ALL);
    // Without the feature the kernel finishes what was left to the device (`skb_csum_hwoffload_help`).
    bed.pair.near.exec(&format!("ethtool -K {NEAR_DEVICE} tx off"));
    let proof = bed.probe().expect("finished");
    assert!(bed.io.trust_checksum(&proof));
    assert!(bed.io.reports().next().unwrap().device_checksum);
    for size in [1, 2, 97, 700, 1472, 8972] {
        assert_eq!(bed.checksum_of(vec![0x5a; size]), Ok(ChecksumState::Valid), "{size}");
    }
    // That it was left to the device shows when the device stops doing it.
    bed.pair.near.exec(&format!("ethtool -K {NEAR_DEVICE} tx on"));
    for size in [700, 8972] {
        assert_eq!(bed.checksum_of(vec![0x5b; size]), Err(true), "unfinished: {size}");
    }
}

#[test]
fn sent_datagrams_are_stamped_in_order_and_at_a_plausible_time() {
    if !is_privileged() {
        return;
    }
    let mut bed = Bed::new(9000, TransmitHints { timestamps: true, ..TransmitHints::default() });
    let first = bed.io.stats().tx_express_packets;
    let begin = tai();
    let large = |number: u8| vec![number; if number.is_multiple_of(3) { 8000 } else { 100 }];
    for number in 0..30 {
        bed.send(&[large(number)]);
    }
    let sent = bed.io.stats().tx_express_packets - first;
    let mut times: Vec<TransmitTime> = Vec::new();
    let deadline = Instant::now() + PATIENCE;
    while (times.len() as u64) < sent {
        bed.send(&[b"brings completions".to_vec()]);
        bed.io.transmit_times(&mut |port, time| {
            assert_eq!(port, 0);
            times.push(time);
        });
        assert!(Instant::now() < deadline, "{} of {sent}: {:?}", times.len(), bed.io.stats());
    }
    let end = tai();
    let numbers: Vec<u64> = times.iter().map(|time| time.sequence).collect();
    assert_eq!(numbers, (first..first + times.len() as u64).collect::<Vec<_>>());
    assert!(times.iter().all(|time| (begin..=end).contains(&time.nanoseconds)), "{begin} {times:?} {end}");
    let stats = bed.io.stats();
    assert_eq!((stats.tx_stamps_unfetched, stats.tx_stamps_implausible), (0, 0));
}

#[test]
fn a_launch_time_that_the_device_has_not_is_an_error_before_anything_is_built() {
    if !is_privileged() {
        return;
    }
    let mut bed = Bed::new(1500, ALL);
    let refused = Grant::Refused("copy mode has no launch time");
    assert_eq!(bed.io.reports().next().unwrap().grants.launch_time, refused);
    let mut filled = false;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let result = bed.io.transmit_at(&flow(), 100, tai(), &mut |_| {
            filled = true;
            0
        });
        match result {
            Err(IoError::Socket { what, source }) => {
                assert_eq!(source.kind(), std::io::ErrorKind::Unsupported);
                assert_eq!(what, "launch time for 10.77.0.2:5000: refused: copy mode has no launch time");
                assert!(!filled);
                return;
            }
            // The neighbour is due for a reminder by the kernel socket.
            Ok(_) => filled = false,
            Err(other) => panic!("{other}"),
        }
        assert!(Instant::now() < deadline);
    }
}
