//! Traffic through AF_XDP on a veth with a kernel UDP peer, in good weather and bad.

mod common;

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use common::netns::{FAR_DEVICE, NEAR, NEAR_DEVICE, Pair, is_privileged};
use expressway_netio::express::{
    BindMode, ExpressConfig, ExpressIo, Port, PortConfig, PortReport, PortState, TransmitVia,
};
use expressway_netio::route::RouteMirror;
use expressway_netio::udp::{UdpConfig, UdpIo};
use expressway_netio::{Flow, IoStats, PacketIo};
use expressway_xbpf::{AttachMode, Attachment, Counter, Existing, Options, Redirect};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const PORT: u16 = 4433;
/// After this long without what must come, a test fails.
const PATIENCE: Duration = Duration::from_secs(20);

/// An express backend at the near end of a veth.
struct Bed {
    io: ExpressIo,
    redirect: Redirect,
    _attachment: Attachment,
    _mirror: RouteMirror,
    pair: Pair,
}

/// How a bed differs from the usual one.
struct Shape {
    mtu: usize,
    queues: usize,
    /// Ports are opened on this many of the queues.
    ports: u32,
    addresses: Vec<IpAddr>,
    frame_size: u32,
    tx_ring: u32,
    /// Which way the datagrams of a queue leave.
    transmit: fn(u32) -> TransmitVia,
    config: ExpressConfig,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            mtu: 1500,
            queues: 1,
            ports: 1,
            addresses: NEAR.to_vec(),
            frame_size: 2048,
            tx_ring: 512,
            transmit: |_| TransmitVia::Express,
            config: ExpressConfig::default(),
        }
    }
}

impl Bed {
    /// `prepare` sets up what the veth needs besides, before anything is opened.
    fn new(shape: Shape, prepare: impl FnOnce(&Pair)) -> Self {
        let pair = Pair::new(shape.mtu, shape.queues);
        prepare(&pair);
        let listen: Vec<_> = shape.addresses.iter().map(|&ip| SocketAddr::new(ip, PORT)).collect();
        let (io, redirect, attachment, mirror) = pair.near.enter(|| {
            let redirect = Redirect::load(&Options::default()).unwrap();
            for address in &listen {
                redirect.add_pair(*address).unwrap();
            }
            let attachment = redirect.attach(ifindex(), AttachMode::Native, Existing::Refuse).unwrap();
            let open = |queue| {
                let config = PortConfig {
                    mode: BindMode::Copy,
                    frame_size: shape.frame_size,
                    tx_ring: shape.tx_ring,
                    transmit: (shape.transmit)(queue),
                    ..PortConfig::new(NEAR_DEVICE, queue)
                };
                Port::open(config, redirect.xsk_map()).unwrap()
            };
            let ports = (0..shape.ports).map(open).collect();
            let udp = UdpConfig { receive_buffer: 16_384, ..UdpConfig::new(listen) };
            let mirror = RouteMirror::start().unwrap();
            let mut kernel = UdpIo::bind(&udp).unwrap();
            kernel.set_resolver(mirror.resolver().unwrap());
            let io = ExpressIo::new(ports, kernel, mirror.resolver().unwrap(), shape.config).unwrap();
            (io, redirect, attachment, mirror)
        });
        Self { io, redirect, _attachment: attachment, _mirror: mirror, pair }
    }

    /// A socket of the peer's, connected to an address of the near end.
    fn peer(&self, near: IpAddr) -> UdpSocket {
        self.pair.far.enter(|| {
            let any: SocketAddr =
                if near.is_ipv4() { "0.0.0.0:0".parse().unwrap() } else { "[::]:0".parse().unwrap() };
            let socket = UdpSocket::bind(any).unwrap();
            socket.connect(SocketAddr::new(near, PORT)).unwrap();
            socket.set_nonblocking(true).unwrap();
            socket
        })
    }

    /// One turn that echoes what comes in. Returns how many datagrams.
    fn turn(&mut self) -> usize {
        let mut waiting: Vec<(Flow, Vec<u8>)> = Vec::new();
        self.io
            .receive(Instant::now(), &mut |datagram| {
                waiting.push((Flow::new(datagram.local, datagram.remote), datagram.payload.to_vec()));
            })
            .expect("receiving goes on");
        for (flow, payload) in &waiting {
            send(&mut self.io, flow, std::slice::from_ref(payload));
        }
        self.io.flush(Instant::now()).expect("flushing goes on");
        waiting.len()
    }

    /// Sends `payload` from the peer and turns until its echo is back. Sends again now and then when `lossy`.
    fn exchange(&mut self, peer: &UdpSocket, payload: &[u8], lossy: bool) {
        let deadline = Instant::now() + PATIENCE;
        let mut buffer = [0; 16_384];
        let mut turns = 0u32;
        loop {
            if turns == 0 || (lossy && turns.is_multiple_of(1000)) {
                // What the link being down makes of it is the test's business.
                let _ = peer.send(payload);
            }
            turns += 1;
            if self.turn() == 0 {
                std::thread::yield_now();
            }
            match peer.recv(&mut buffer) {
                Ok(length) if &buffer[..length] == payload => return,
                Ok(_) | Err(_) => {}
            }
            assert!(Instant::now() < deadline, "no echo of {} bytes: {:?}", payload.len(), self.io.stats());
            if lossy {
                std::thread::sleep(Duration::from_micros(100));
            }
        }
    }

    /// Exchanges until the neighbour is known and answers leave by AF_XDP.
    fn warm_up(&mut self, peer: &UdpSocket) {
        let deadline = Instant::now() + PATIENCE;
        let before = self.io.stats().tx_express_packets;
        while self.io.stats().tx_express_packets == before {
            self.exchange(peer, b"warm-up", false);
            assert!(Instant::now() < deadline, "{:?}", self.io.stats());
        }
    }

    /// Turns until the only port is in `state`.
    fn await_state(&mut self, state: PortState) {
        let deadline = Instant::now() + PATIENCE;
        while self.report().state != state {
            self.turn();
            assert!(Instant::now() < deadline, "{:?} and not {state:?}", self.report());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn report(&self) -> PortReport {
        self.io.reports().next().expect("a port")
    }
}

fn ifindex() -> u32 {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    rustix::net::netdevice::name_to_index(&socket, NEAR_DEVICE).unwrap()
}

/// Sends payloads in one flow; gives up none.
fn send(io: &mut ExpressIo, flow: &Flow, payloads: &[Vec<u8>]) {
    let segment = payloads.iter().map(Vec::len).max().unwrap_or(0).max(1);
    let mut next = 0;
    for _ in 0..100_000 {
        let mut rest = payloads[next..].iter();
        let sent = io
            .transmit(flow, segment, &mut |slice| {
                rest.next().map_or(0, |payload| {
                    assert_eq!(slice.len(), segment);
                    slice[..payload.len()].copy_from_slice(payload);
                    payload.len()
                })
            })
            .expect("sending goes on");
        next += sent.packets;
        if !sent.blocked {
            return;
        }
        io.flush(Instant::now()).expect("flushing goes on");
    }
    panic!("blocked for ever: {:?}", io.stats());
}

/// Nothing was lost for a reason of our own.
fn assert_no_drops(stats: &IoStats) {
    let drops: Vec<_> = stats
        .fields()
        .into_iter()
        .filter(|field| field.name.contains("drop") && field.value > 0)
        .map(|field| (field.name, field.value))
        .collect();
    assert!(drops.is_empty(), "{drops:?}");
}

#[test]
fn datagrams_pass_both_ways_over_ipv4_and_ipv6() {
    if !is_privileged() {
        return;
    }
    let mut bed = Bed::new(Shape::default(), |_| ());
    for near in [NEAR[0], NEAR[2], NEAR[3]] {
        let peer = bed.peer(near);
        bed.warm_up(&peer);
        let before = bed.io.stats();
        let largest = if near.is_ipv4() { 1472 } else { 1452 };
        let sizes = [1, 17, 18, 19, 64, 65, 1200, 1451, largest];
        for size in sizes {
            let payload: Vec<u8> = (0..size).map(|byte| (byte + size) as u8).collect();
            bed.exchange(&peer, &payload, false);
        }
        let flow = Flow::new(SocketAddr::new(near, PORT), peer_address(near, &peer));
        assert_eq!(bed.io.max_payload(&flow), largest);
        let stats = bed.io.stats();
        let count = sizes.len() as u64;
        assert_eq!(stats.rx_express_packets - before.rx_express_packets, count);
        let reminders = stats.tx_fallback_neighbour - before.tx_fallback_neighbour;
        let express = stats.tx_express_packets - before.tx_express_packets;
        assert_eq!(express + reminders, count, "{stats:?}");
        assert!(express > 0, "{stats:?}");
    }
    assert_no_drops(&bed.io.stats());
    assert_eq!(bed.io.stats().rx_kernel_packets, 0);
}

/// The peer's address as the near end sees it.
fn peer_address(near: IpAddr, peer: &UdpSocket) -> SocketAddr {
    let port = peer.local_addr().unwrap().port();
    SocketAddr::new(common::netns::FAR[usize::from(near.is_ipv6())], port)
}

#[test]
fn datagrams_larger_than_a_frame_pass_both_ways_by_af_xdp() {
    if !is_privileged() {
        return;
    }
    for frame_size in [2048, 4096] {
        let mut bed = Bed::new(Shape { mtu: 9000, frame_size, ..Shape::default() }, |_| ());
        let near = NEAR[0];
        let peer = bed.peer(near);
        bed.warm_up(&peer);
        let before = bed.io.stats();
        let mut exchanges = 0;
        for size in [100, 1700, 1900, 3700, 3900, 5000, 8972] {
            let payload: Vec<u8> = (0..size).map(|byte| byte as u8 ^ (byte >> 8) as u8).collect();
            bed.exchange(&peer, &payload, false);
            exchanges += 1;
        }
        let stats = bed.io.stats();
        assert_no_drops(&stats);
        assert_eq!(stats.rx_express_packets - before.rx_express_packets, exchanges);
        assert_eq!(stats.rx_kernel_packets, 0);
        let report = bed.report();
        assert!(report.multi_buffer);
        assert_eq!(report.gathered, if frame_size == 2048 { 5 } else { 3 });
        // What no frame holds left in several.
        assert_eq!(report.max_segments, 17);
        let reminders = stats.tx_fallback_neighbour - before.tx_fallback_neighbour;
        assert_eq!(stats.tx_express_packets - before.tx_express_packets + reminders, exchanges, "{stats:?}");
        assert_eq!(stats.tx_fallback_socket, 0, "{stats:?}");
        let flow = Flow::new(SocketAddr::new(near, PORT), peer_address(near, &peer));
        assert_eq!(bed.io.max_payload(&flow), 8972);
    }
}

#[test]
fn a_burst_larger_than_the_ring_is_sent_to_the_last_datagram() {
    if !is_privileged() {
        return;
    }
    let mut bed = Bed::new(Shape { tx_ring: 64, ..Shape::default() }, |_| ());
    let peer = bed.peer(NEAR[0]);
    bed.warm_up(&peer);
    let before = bed.io.stats();
    let flow = Flow::new(SocketAddr::new(NEAR[0], PORT), peer_address(NEAR[0], &peer));
    let mut received = 0u64;
    let mut buffer = [0; 2048];
    let mut deadline = Instant::now() + PATIENCE;
    for round in 0..40u8 {
        // The peer's socket holds a round.
        let payloads: Vec<_> = (0..100).map(|number| vec![round ^ number; 1 + usize::from(number)]).collect();
        send(&mut bed.io, &flow, &payloads);
        bed.io.flush(Instant::now()).unwrap();
        for payload in payloads {
            loop {
                match peer.recv(&mut buffer) {
                    Ok(length) => {
                        assert_eq!(buffer[..length], payload, "in order and unharmed");
                        received += 1;
                        deadline = Instant::now() + PATIENCE;
                        break;
                    }
                    Err(_) => {
                        assert!(Instant::now() < deadline, "{received}: {:?}", bed.io.stats());
                        bed.io.flush(Instant::now()).unwrap();
                        std::thread::yield_now();
                    }
                }
            }
        }
    }
    let stats = bed.io.stats();
    let express = stats.tx_express_packets - before.tx_express_packets;
    let reminders = stats.tx_fallback_neighbour - before.tx_fallback_neighbour;
    assert_eq!((received, express + reminders), (4000, 4000));
    assert!(express > 0);
    assert_no_drops(&stats);
}

#[test]
fn an_unknown_neighbour_is_resolved_through_the_kernel_socket() {
    if !is_privileged() {
        return;
    }
    let mut bed = Bed::new(Shape::default(), |_| ());
    let peer = bed.peer(NEAR[0]);
    let flow = Flow::new(SocketAddr::new(NEAR[0], PORT), peer_address(NEAR[0], &peer));
    send(&mut bed.io, &flow, &[b"first".to_vec()]);
    bed.io.flush(Instant::now()).unwrap();
    assert_eq!(bed.io.stats().tx_fallback_neighbour, 1);
    assert_eq!(bed.io.stats().tx_express_packets, 0);
    let deadline = Instant::now() + PATIENCE;
    while bed.io.stats().tx_express_packets == 0 {
        send(&mut bed.io, &flow, &[b"later".to_vec()]);
        bed.turn();
        assert!(Instant::now() < deadline, "{:?}", bed.io.stats());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_queue_without_a_port_is_served_by_the_kernel_socket() {
    if !is_privileged() {
        return;
    }
    // No port at all: everything passes.
    let mut bed = Bed::new(Shape { ports: 0, ..Shape::default() }, |_| ());
    let peer = bed.peer(NEAR[0]);
    for payload in [&b"one"[..], b"two", b"three"] {
        bed.exchange(&peer, payload, false);
    }
    let stats = bed.io.stats();
    assert_eq!((stats.rx_kernel_packets, stats.rx_express_packets), (3, 0));
    // Which of the two depends on whether the neighbour was known yet.
    let fallbacks = stats.tx_fallback_route + stats.tx_fallback_neighbour;
    assert_eq!((fallbacks, stats.tx_kernel_packets), (3, 3), "{stats:?}");
    assert_eq!(bed.redirect.counters().unwrap()[Counter::PassNoSocket], 3);
}

#[test]
fn hybrid_receives_by_af_xdp_and_sends_by_the_kernel() {
    if !is_privileged() {
        return;
    }
    let mut bed = Bed::new(Shape { transmit: |_| TransmitVia::Kernel, ..Shape::default() }, |_| ());
    let peer = bed.peer(NEAR[2]);
    for size in 1..20 {
        bed.exchange(&peer, &vec![7; size * 70], false);
    }
    let stats = bed.io.stats();
    assert_no_drops(&stats);
    assert_eq!((stats.rx_express_packets, stats.tx_kernel_packets), (19, 19));
    let fallbacks = stats.tx_fallback_neighbour + stats.tx_fallback_route + stats.tx_fallback_socket;
    assert_eq!((stats.tx_express_packets, fallbacks), (0, 0), "no fallback, but what was asked for");
}

#[test]
fn each_queue_sends_as_it_is_told() {
    if !is_privileged() {
        return;
    }
    let transmit = |queue| if queue == 0 { TransmitVia::Kernel } else { TransmitVia::Express };
    let mut bed = Bed::new(Shape { queues: 2, ports: 2, transmit, ..Shape::default() }, |_| ());
    let peer = bed.peer(NEAR[0]);
    bed.warm_up(&peer);
    let before = bed.io.stats();
    for size in 1..20 {
        bed.exchange(&peer, &vec![7; size * 70], false);
    }
    // One queue of the interface sends by AF_XDP, and its port is every flow's.
    let stats = bed.io.stats();
    assert_no_drops(&stats);
    assert_eq!(stats.tx_express_packets - before.tx_express_packets, 19);
    let reports: Vec<PortReport> = bed.io.reports().collect();
    assert_eq!((reports[0].transmit, reports[1].transmit), (TransmitVia::Kernel, TransmitVia::Express));
}

#[test]
fn a_full_batch_of_af_xdp_says_that_more_may_wait() {
    if !is_privileged() {
        return;
    }
    let config = ExpressConfig { batch: 4, ..ExpressConfig::default() };
    let mut bed = Bed::new(Shape { config, ..Shape::default() }, |_| ());
    let peer = bed.peer(NEAR[0]);
    bed.warm_up(&peer);
    for _ in 0..6 {
        peer.send(b"waiting").unwrap();
    }
    // The veth delivers in the sender's system call.
    let mut counts = Vec::new();
    for _ in 0..3 {
        let received = bed.io.receive(Instant::now(), &mut |_| ()).unwrap();
        counts.push((received, bed.io.may_have_more(received)));
    }
    assert_eq!(counts, [(4, true), (2, false), (0, false)]);
}

#[test]
fn wrong_udp_checksums_are_dropped_where_they_are_verified() {
    if !is_privileged() {
        return;
    }
    let config = ExpressConfig { verify_checksum: true, ..ExpressConfig::default() };
    let mut bed = Bed::new(Shape { config, ..Shape::default() }, |_| ());
    let peer = bed.peer(NEAR[0]);
    // A kernel peer on a veth leaves the checksum to a device that does not exist.
    peer.send(b"unfinished").unwrap();
    let deadline = Instant::now() + PATIENCE;
    while bed.io.stats().dropped_checksum == 0 {
        assert_eq!(bed.turn(), 0);
        assert!(Instant::now() < deadline, "{:?}", bed.io.stats());
    }
    bed.pair.far.exec(&format!("ethtool -K {FAR_DEVICE} tx off"));
    bed.exchange(&peer, b"finished", false);
    assert_eq!(bed.io.stats().dropped_checksum, 1);
    assert_eq!(bed.io.stats().rx_express_packets, 1);
}

#[test]
fn two_queues_of_one_interface_serve_one_worker() {
    if !is_privileged() {
        return;
    }
    let mut bed = Bed::new(Shape { queues: 2, ports: 2, ..Shape::default() }, |_| ());
    for _ in 0..16 {
        let peer = bed.peer(NEAR[0]);
        bed.exchange(&peer, b"from a port of its own", false);
    }
    let stats = bed.io.stats();
    assert_no_drops(&stats);
    assert_eq!((stats.rx_express_packets, stats.rx_kernel_packets), (16, 0));
}

#[test]
fn a_sleeper_is_woken_by_a_packet_on_either_way() {
    if !is_privileged() {
        return;
    }
    let mut bed = Bed::new(Shape::default(), |_| ());
    let (express, plain) = (bed.peer(NEAR[0]), bed.peer(NEAR[1]));
    // This address is the kernel socket's alone from now on.
    bed.redirect.remove_pair(SocketAddr::new(NEAR[1], PORT)).unwrap();
    let mut buffer = [0; 64];
    for round in 0..50u8 {
        let peer = if round % 2 == 0 { &express } else { &plain };
        peer.send(&[round]).unwrap();
        let mut echoed = 0;
        while echoed == 0 {
            sleep(&mut bed.io);
            echoed += bed.turn();
        }
        let deadline = Instant::now() + PATIENCE;
        while peer.recv(&mut buffer).is_err() {
            assert!(Instant::now() < deadline, "round {round}: {:?}", bed.io.stats());
            std::thread::yield_now();
        }
        assert_eq!(buffer[0], round);
    }
    assert_eq!(bed.io.stats().rx_kernel_packets, 25);
    assert_eq!(bed.io.stats().rx_express_packets, 25);
}

/// Sleeps as the worker does; fails when nothing ever comes.
fn sleep(io: &mut ExpressIo) {
    if io.prepare_sleep() {
        return;
    }
    let mut descriptors = Vec::new();
    io.descriptors(&mut |fd| descriptors.push(fd.try_clone_to_owned().unwrap()));
    let mut waits: Vec<_> = descriptors.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    let timeout = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
    assert_ne!(poll(&mut waits, Some(&timeout)).unwrap(), 0, "never woken: {:?}", io.stats());
}

#[test]
fn a_link_that_goes_down_and_comes_back_is_survived() {
    if !is_privileged() {
        return;
    }
    let mut bed = Bed::new(Shape::default(), |_| ());
    let peer = bed.peer(NEAR[0]);
    bed.warm_up(&peer);
    for round in 0..3 {
        bed.pair.near.ip(&format!("link set {NEAR_DEVICE} down"));
        // The first burst may meet the link before anyone has told.
        let flow = Flow::new(SocketAddr::new(NEAR[0], PORT), peer_address(NEAR[0], &peer));
        send(&mut bed.io, &flow, &vec![b"lost".to_vec(); 100]);
        bed.io.flush(Instant::now()).unwrap();
        bed.await_state(PortState::Down);
        let before = bed.io.stats();
        send(&mut bed.io, &flow, &vec![b"lost".to_vec(); 100]);
        bed.io.flush(Instant::now()).unwrap();
        let stats = bed.io.stats();
        assert_eq!(stats.tx_express_packets, before.tx_express_packets, "nothing is sent into a dead link");
        bed.pair.near.ip(&format!("link set {NEAR_DEVICE} up"));
        bed.await_state(PortState::Up);
        let (rx, tx) = (stats.rx_express_packets, stats.tx_express_packets);
        let deadline = Instant::now() + PATIENCE;
        while bed.io.stats().rx_express_packets == rx || bed.io.stats().tx_express_packets == tx {
            bed.exchange(&peer, format!("after {round}").as_bytes(), true);
            assert!(Instant::now() < deadline, "{:?}", bed.io.stats());
        }
    }
    assert_eq!(bed.report().reopened, 0, "the socket outlived it");
}

#[test]
fn an_interface_that_vanishes_leaves_the_backend_working() {
    if !is_privileged() {
        return;
    }
    let mut bed = Bed::new(Shape::default(), |_| ());
    let peer = bed.peer(NEAR[0]);
    bed.exchange(&peer, b"before", false);
    let flow = Flow::new(SocketAddr::new(NEAR[0], PORT), peer_address(NEAR[0], &peer));
    bed.pair.near.ip(&format!("link del {NEAR_DEVICE}"));
    send(&mut bed.io, &flow, &vec![b"lost".to_vec(); 10]);
    bed.await_state(PortState::Gone);
    assert_eq!(bed.report().mode, None);
    send(&mut bed.io, &flow, &vec![b"lost".to_vec(); 10]);
    bed.turn();
    let before = bed.io.stats().rx_express_packets;
    assert_eq!(before, 1, "what the closed socket had counted stays counted");
}
