//! Datagrams both ways: addresses, sizes, bursts, queues, checksums, wake-ups.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use expressway_netio::trace::{Channel, Filter, Hop, Options, Tracers};
use expressway_netio::xsk::{BindingReport, TransmitVia, XskIo, XskIoConfig};
use expressway_netio::{Flow, IoStats, PacketIo};
use expressway_xbpf::Counter;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::bed::{Bed, PATIENCE, PORT, Shape, peer_address, send};
use crate::common::netns::{FAR_DEVICE, NEAR, NEAR_DEVICE, is_privileged};

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
        assert_eq!(stats.rx_xsk_packets - before.rx_xsk_packets, count);
        let reminders = stats.tx_fallback_neighbour - before.tx_fallback_neighbour;
        let xsk = stats.tx_xsk_packets - before.tx_xsk_packets;
        assert_eq!(xsk + reminders, count, "{stats:?}");
        assert!(xsk > 0, "{stats:?}");
    }
    assert_no_drops(&bed.io.stats());
    assert_eq!(bed.io.stats().rx_kernel_packets, 0);
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
        assert_eq!(stats.rx_xsk_packets - before.rx_xsk_packets, exchanges);
        assert_eq!(stats.rx_kernel_packets, 0);
        let report = bed.report();
        assert!(report.multi_buffer);
        assert_eq!(report.gathered, if frame_size == 2048 { 5 } else { 3 });
        // What no frame holds left in several.
        assert_eq!(report.max_segments, 17);
        let reminders = stats.tx_fallback_neighbour - before.tx_fallback_neighbour;
        assert_eq!(stats.tx_xsk_packets - before.tx_xsk_packets + reminders, exchanges, "{stats:?}");
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
    let xsk = stats.tx_xsk_packets - before.tx_xsk_packets;
    let reminders = stats.tx_fallback_neighbour - before.tx_fallback_neighbour;
    assert_eq!((received, xsk + reminders), (4000, 4000));
    assert!(xsk > 0);
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
    assert_eq!(bed.io.stats().tx_xsk_packets, 0);
    let deadline = Instant::now() + PATIENCE;
    while bed.io.stats().tx_xsk_packets == 0 {
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
    assert_eq!((stats.rx_kernel_packets, stats.rx_xsk_packets), (3, 0));
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
    assert_eq!((stats.rx_xsk_packets, stats.tx_kernel_packets), (19, 19));
    let fallbacks = stats.tx_fallback_neighbour + stats.tx_fallback_route + stats.tx_fallback_socket;
    assert_eq!((stats.tx_xsk_packets, fallbacks), (0, 0), "no fallback, but what was asked for");
}

#[test]
fn each_queue_sends_as_it_is_told() {
    if !is_privileged() {
        return;
    }
    let transmit = |queue| if queue == 0 { TransmitVia::Kernel } else { TransmitVia::Xsk };
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
    assert_eq!(stats.tx_xsk_packets - before.tx_xsk_packets, 19);
    let reports: Vec<BindingReport> = bed.io.reports().collect();
    assert_eq!((reports[0].transmit, reports[1].transmit), (TransmitVia::Kernel, TransmitVia::Xsk));
}

#[test]
fn a_full_batch_of_af_xdp_says_that_more_may_wait() {
    if !is_privileged() {
        return;
    }
    let config = XskIoConfig { batch: 4, ..XskIoConfig::default() };
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
    let config = XskIoConfig { verify_checksum: true, ..XskIoConfig::default() };
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
    assert_eq!(bed.io.stats().rx_xsk_packets, 1);
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
    assert_eq!((stats.rx_xsk_packets, stats.rx_kernel_packets), (16, 0));
}

#[test]
fn a_sleeper_is_woken_by_a_packet_on_either_way() {
    if !is_privileged() {
        return;
    }
    let mut bed = Bed::new(Shape::default(), |_| ());
    let (xsk, plain) = (bed.peer(NEAR[0]), bed.peer(NEAR[1]));
    // This address is the kernel socket's alone from now on.
    bed.redirect.remove_pair(SocketAddr::new(NEAR[1], PORT)).unwrap();
    let mut buffer = [0; 64];
    for round in 0..50u8 {
        let peer = if round % 2 == 0 { &xsk } else { &plain };
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
    assert_eq!(bed.io.stats().rx_xsk_packets, 25);
}

/// Sleeps as the worker does; fails when nothing ever comes.
fn sleep(io: &mut XskIo) {
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
fn a_traced_burst_says_its_socket_and_when_its_frames_came_back() {
    if !is_privileged() {
        return;
    }
    let mut bed = Bed::new(Shape::default(), |_| ());
    let tracers = Tracers::new(1);
    let tracer = tracers.tracer(0);
    bed.io.set_tracer(tracer.clone());
    let peer = bed.peer(NEAR[0]);
    bed.warm_up(&peer);
    let mut recording = tracers.start(&Options { filter: Filter::default(), sample: 1 }).unwrap();
    assert_eq!(recording.queue(0, 0), Some((NEAR_DEVICE.to_owned(), 0)));
    let flow = Flow::new(SocketAddr::new(NEAR[0], PORT), peer_address(NEAR[0], &peer));
    // What nobody follows is not told.
    send(&mut bed.io, &flow, &[vec![1; 100]]);
    let burst = tracer.begin_burst();
    // In two calls, which are one burst.
    send(&mut bed.io, &flow, &[vec![2; 100], vec![3; 100]]);
    send(&mut bed.io, &flow, &[vec![4; 100]]);
    tracer.end_burst(burst, 7, 3, 300);
    let mut events = Vec::new();
    let deadline = Instant::now() + PATIENCE;
    while events.len() < 2 {
        assert!(Instant::now() < deadline, "{events:?}: {:?}", bed.io.stats());
        bed.io.flush(Instant::now()).unwrap();
        bed.io.receive(Instant::now(), &mut |_| ()).unwrap();
        events.extend(recording.take(10).into_iter().flat_map(|batch| batch.events));
    }
    let [built, completed] = &events[..] else { panic!("{events:?}") };
    assert!(matches!(built.hop, Hop::Burst { mark: 1, way: Channel::Xsk(0), packets: 3, bytes: 300, .. }));
    assert_eq!((completed.connection, &completed.hop), (0, &Hop::Completed { mark: 1 }));
    assert!(built.time <= completed.time);
}
