//! The kernel UDP backend when sends fail: GSO, MTU, refusals, ICMP errors, full buffers, lost interfaces.

use std::time::Instant;

use expressway_netio::udp::{SendOptions, UdpConfig, UdpIo};
use expressway_netio::{Flow, PacketIo};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::datagrams::{LENGTHS, address, open, payload, receive, send};
use crate::option;
use crate::udp_netns::{Namespace, eventually, is_privileged, sh};

/// Whether a worker that sleeps on the descriptors would wake.
fn is_readable(io: &UdpIo) -> bool {
    let mut ready = 0;
    io.descriptors(&mut |fd| {
        let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
        ready += poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap();
    });
    ready > 0
}

#[test]
fn datagrams_that_gso_cannot_send_go_without_it_in_the_same_flush() {
    if !is_privileged() {
        return;
    }
    let (near, far) = Namespace::pair();
    let mut receiver = open(&near, &UdpConfig::new(vec![address("10.9.0.1:4433")]));
    let mut sender = open(&far, &UdpConfig::new(vec![address("10.9.0.2:5000")]));
    // A socket without transmit checksums makes udp_send_skb refuse GSO, as a device without checksum
    // offload does before Linux 6.11.
    option::turn_off_checksums(sender.socket(0).unwrap());
    let flow = Flow::new(address("10.9.0.2:5000"), address("10.9.0.1:4433"));
    send(&mut sender, &flow, 1200, &LENGTHS);
    let kept = receive(&mut receiver, LENGTHS.len());
    for (number, kept) in kept.iter().enumerate() {
        assert_eq!(kept.payload, payload(number, LENGTHS[number]));
    }
    assert!(!sender.is_gso(), "turned off for good");
    let stats = sender.stats();
    assert_eq!((stats.tx_kernel_packets, stats.dropped_send_refused), (10, 0));
    send(&mut sender, &flow, 1200, &LENGTHS);
    receive(&mut receiver, LENGTHS.len());
    assert_eq!(sender.stats().tx_syscalls, stats.tx_syscalls + 1, "no second attempt with GSO");
}

#[test]
fn a_device_without_checksum_offload_gets_every_datagram() {
    if !is_privileged() {
        return;
    }
    let (near, far) = Namespace::pair();
    far.exec("ethtool -K v1 tx off");
    let mut receiver = open(&near, &UdpConfig::new(vec![address("10.9.0.1:4433")]));
    let mut sender = open(&far, &UdpConfig::new(vec![address("10.9.0.2:5000")]));
    let flow = Flow::new(address("10.9.0.2:5000"), address("10.9.0.1:4433"));
    // Linux before 6.11 refuses GSO here (EIO), later ones compute the checksums themselves.
    for round in 1..=2 {
        send(&mut sender, &flow, 1200, &LENGTHS);
        receive(&mut receiver, LENGTHS.len());
        let stats = sender.stats();
        assert_eq!((stats.tx_kernel_packets, stats.dropped_send_refused), (10 * round, 0));
    }
    eprintln!("GSO without checksum offload: {}", sender.is_gso());
}

#[test]
fn a_socket_without_room_does_not_stop_the_others() {
    if !is_privileged() {
        return;
    }
    let (near, far) = Namespace::pair();
    let mut receiver = open(&near, &UdpConfig::new(vec![address("10.9.0.1:4433")]));
    far.ip("link add stuck type veth peer name peer");
    far.ip("link set stuck up");
    far.ip("link set peer up");
    far.ip("addr add 10.4.0.1/24 dev stuck");
    far.ip("neigh add 10.4.0.2 lladdr 02:00:00:00:00:bb dev stuck nud permanent");
    far.exec("tc qdisc add dev stuck root tbf rate 8kbit burst 2000 limit 100000000");
    let mut config = UdpConfig::new(vec![address("10.4.0.1:5000"), address("10.9.0.2:5000")]);
    (config.transmit_memory, config.socket_send_buffer) = (65_536, 8192);
    let mut sender = open(&far, &config);
    let stuck = Flow::new(address("10.4.0.1:5000"), address("10.4.0.2:9"));
    let free = Flow::new(address("10.9.0.2:5000"), address("10.9.0.1:4433"));
    let mut blocked = false;
    for _ in 0..20 {
        let mut left = 50;
        let sent = sender.transmit(&stuck, 1200, &mut |slice| {
            left -= 1;
            if left < 0 { 0 } else { slice.len() }
        });
        blocked |= sent.unwrap().blocked;
    }
    assert!(blocked, "the stuck socket holds the memory");
    send(&mut sender, &free, 1200, &[1200; 10]);
    receive(&mut receiver, 10);
    assert!(sender.stats().dropped_no_buffer > 0, "what gave way is counted");
}

#[test]
fn a_segment_above_the_mtu_is_counted_and_leaves_gso_on() {
    if !is_privileged() {
        return;
    }
    let (near, far) = Namespace::pair();
    far.ip("link set v1 mtu 1400");
    for (server, client, headers) in
        [("10.9.0.1:4433", "10.9.0.2:5000", 28), ("[fd09::1]:4433", "[fd09::2]:5000", 48)]
    {
        let mut receiver = open(&near, &UdpConfig::new(vec![address(server)]));
        let mut sender = open(&far, &UdpConfig::new(vec![address(client)]));
        let flow = Flow::new(address(client), address(server));
        assert_eq!(sender.max_payload(&flow), 1500 - headers, "nothing is known yet");
        send(&mut sender, &flow, 1450, &[1450, 1450, 200]);
        assert_eq!(receive(&mut receiver, 1)[0].payload, payload(2, 200), "the one that fits arrives");
        let stats = sender.stats();
        assert_eq!((stats.tx_kernel_packets, stats.dropped_send_refused), (1, 2));
        assert!(sender.is_gso());
        let fits = sender.max_payload(&flow);
        assert_eq!(fits, 1400 - headers, "the kernel's report is learnt");
        send(&mut sender, &flow, fits, &[fits, fits]);
        receive(&mut receiver, 2);
        assert_eq!(sender.stats().dropped_send_refused, 2);
    }
}

#[test]
fn a_routers_report_of_the_path_mtu_lowers_the_payload() {
    if !is_privileged() {
        return;
    }
    let (router, client) = Namespace::pair();
    let server = Namespace::new();
    sh(&format!("ip link add w0 netns {} type veth peer name w1 netns {}", router.name, server.name));
    router.exec("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1");
    for (space, device, host) in [(&router, "w0", 1), (&server, "w1", 2)] {
        space.ip(&format!("link set {device} up mtu 1300"));
        space.ip(&format!("addr add 10.8.0.{host}/24 dev {device}"));
        space.ip(&format!("addr add fd08::{host}/64 dev {device} nodad"));
    }
    client.ip("route add default via 10.9.0.1");
    client.ip("route add default via fd09::1");
    let config = UdpConfig::new(vec![address("10.9.0.2:5000"), address("[fd09::2]:5000")]);
    let mut io = open(&client, &config);
    for (local, remote, expected) in
        [("10.9.0.2:5000", "10.8.0.2:4433", 1300 - 28), ("[fd09::2]:5000", "[fd08::2]:4433", 1300 - 48)]
    {
        let flow = Flow::new(address(local), address(remote));
        eventually("the router's report is learnt", || {
            send(&mut io, &flow, 1400, &[1400, 1400]);
            io.receive(Instant::now(), &mut |_| panic!("nobody answers")).unwrap();
            (io.max_payload(&flow) == expected).then_some(())
        });
        let other = Flow::new(
            address(local),
            address(if flow.remote.is_ipv4() { "10.9.0.1:1" } else { "[fd09::1]:1" }),
        );
        assert!(io.max_payload(&other) > expected, "other destinations keep theirs");
    }
}

#[test]
fn refusals_are_counted_and_nothing_dies() {
    if !is_privileged() {
        return;
    }
    let (near, far) = Namespace::pair();
    for kind in ["blackhole 10.66.1.0/24", "prohibit 10.66.2.0/24", "unreachable 10.66.3.0/24"] {
        far.ip(&format!("route add {kind}"));
    }
    let mut receiver = open(&near, &UdpConfig::new(vec![address("10.9.0.1:4433")]));
    let mut sender = open(&far, &UdpConfig::new(vec![address("10.9.0.2:5000")]));
    let good = Flow::new(address("10.9.0.2:5000"), address("10.9.0.1:4433"));
    for (round, target) in ["10.66.1.1:1", "10.66.2.1:1", "10.66.3.1:1", "203.0.113.1:1"].iter().enumerate() {
        let bad = Flow::new(address("10.9.0.2:5000"), address(target));
        for flow in [&good, &bad, &good] {
            let mut left = 3;
            sender
                .transmit(flow, 1000, &mut |slice| {
                    left -= 1;
                    if left < 0 { 0 } else { slice.len() }
                })
                .unwrap();
        }
        sender.flush(Instant::now()).unwrap();
        receive(&mut receiver, 6);
        let stats = sender.stats();
        let rounds = round as u64 + 1;
        assert_eq!(
            (stats.tx_kernel_packets, stats.dropped_send_refused),
            (6 * rounds, 3 * rounds),
            "{target}"
        );
        assert!(sender.is_gso(), "{target} is no fault of GSO");
    }
    // An address that no socket serves: taken, counted, and the service goes on.
    let foreign = Flow::new(address("10.9.0.2:5001"), address("10.9.0.1:4433"));
    let before = sender.stats().dropped_send_refused;
    send(&mut sender, &foreign, 100, &[]);
    let mut left = 2;
    let sent = sender
        .transmit(&foreign, 100, &mut |_| {
            left -= 1;
            if left < 0 { 0 } else { 100 }
        })
        .unwrap();
    assert_eq!((sent.packets, sender.stats().dropped_send_refused - before), (0, 2));
    assert!(sender.transmit(&good, 0, &mut |_| 0).is_err());
    assert!(sender.transmit(&good, 65_508, &mut |_| 0).is_err());
}

#[test]
fn a_port_that_nobody_has_disturbs_no_other_flow() {
    if !is_privileged() {
        return;
    }
    let (near, far) = Namespace::pair();
    let mut receiver = open(&near, &UdpConfig::new(vec![address("10.9.0.1:4433")]));
    let mut sender = open(&far, &UdpConfig::new(vec![address("10.9.0.2:5000")]));
    let good = Flow::new(address("10.9.0.2:5000"), address("10.9.0.1:4433"));
    let closed = Flow::new(address("10.9.0.2:5000"), address("10.9.0.1:9"));
    // Each ICMP port unreachable becomes an error of the socket that the next call reports.
    for _ in 0..20 {
        send(&mut sender, &closed, 100, &[100]);
        send(&mut sender, &good, 100, &[100]);
        receive(&mut receiver, 1);
        sender.receive(Instant::now(), &mut |_| panic!("nobody answers")).unwrap();
    }
    assert_eq!(sender.stats().dropped_send_refused, 0);
}

#[test]
fn a_flood_of_icmp_errors_leaves_no_descriptor_readable() {
    if !is_privileged() {
        return;
    }
    let (_near, far) = Namespace::pair();
    let mut sender = open(&far, &UdpConfig::new(vec![address("10.9.0.2:5000")]));
    let closed = Flow::new(address("10.9.0.2:5000"), address("10.9.0.1:9"));
    send(&mut sender, &closed, 100, &[100; 5]);
    eventually("every descriptor falls quiet", || {
        sender.receive(Instant::now(), &mut |_| panic!("nobody answers")).unwrap();
        (!is_readable(&sender)).then_some(())
    });
}

#[test]
fn datagrams_above_the_mtu_go_in_fragments_only_when_told() {
    if !is_privileged() {
        return;
    }
    let (near, far) = Namespace::pair();
    for (to, from) in [("10.9.0.1:4433", "10.9.0.2:5000"), ("[fd09::1]:4433", "[fd09::2]:5000")] {
        let mut receiver = open(&near, &UdpConfig::new(vec![address(to)]));
        let mut sender = open(&far, &UdpConfig::new(vec![address(from)]));
        let flow = Flow::new(address(from), address(to));
        send(&mut sender, &flow, 4000, &[4000]);
        assert_eq!(sender.stats().dropped_send_refused, 1, "{to}");
        sender.set_sending(&SendOptions { fragment: true, ttl: Some(9), multicast_interface: None }).unwrap();
        send(&mut sender, &flow, 4000, &[4000]);
        assert_eq!(receive(&mut receiver, 1)[0].payload, payload(0, 4000), "{to}");
        let nowhere = SendOptions { multicast_interface: Some(99_999), ..SendOptions::default() };
        let error = sender.set_sending(&nowhere).unwrap_err().to_string();
        assert!(error.contains("_MULTICAST_IF") && error.contains(from), "{error}");
    }
}

#[test]
fn a_full_socket_buffer_holds_back_then_gives_up_with_a_count() {
    if !is_privileged() {
        return;
    }
    let (near, far) = Namespace::pair();
    let _receiver = open(&near, &UdpConfig::new(vec![address("10.9.0.1:4433")]));
    // A queue that lets next to nothing through, so that the socket's buffer stays charged.
    far.exec("tc qdisc add dev v1 root tbf rate 8kbit burst 2000 limit 100000000");
    let mut config = UdpConfig::new(vec![address("10.9.0.2:5000")]);
    (config.transmit_memory, config.socket_send_buffer) = (65_536, 8192);
    let mut sender = open(&far, &config);
    let flow = Flow::new(address("10.9.0.2:5000"), address("10.9.0.1:4433"));
    let start = Instant::now();
    let accepted = std::cell::Cell::new(0);
    let burst = |sender: &mut UdpIo, count: i32| {
        let mut left = count;
        let fill = &mut |slice: &mut [u8]| {
            left -= 1;
            if left < 0 { 0 } else { slice.len() }
        };
        let sent = sender.transmit(&flow, 1200, fill).unwrap();
        accepted.set(accepted.get() + sent.packets as u64);
        sent
    };
    sender.flush(start).unwrap();
    assert!((0..20).any(|_| burst(&mut sender, 100).blocked), "transmit says when there is no room");
    sender.flush(start).unwrap();
    assert_eq!(burst(&mut sender, 100).packets, 0, "what waits is bounded");
    let stats = sender.stats();
    assert_eq!(stats.dropped_no_buffer, 0);
    assert_eq!(stats.tx_kernel_packets + sender.waiting() as u64, accepted.get());
    sender.flush(start + config.send_patience).unwrap();
    let stats = sender.stats();
    assert_eq!(sender.waiting(), 0);
    assert!(stats.dropped_no_buffer > 0);
    assert_eq!(
        stats.tx_kernel_packets + stats.dropped_no_buffer,
        accepted.get(),
        "every datagram is accounted for"
    );
    // When the queue is gone there is room again, and the writable descriptor has said so.
    assert!(!burst(&mut sender, 20).blocked);
    sender.flush(start).unwrap();
    far.exec("tc qdisc del dev v1 root");
    eventually("the waiting socket wakes the worker", || is_readable(&sender).then_some(()));
    sender.flush(start).unwrap();
    let stats = sender.stats();
    assert_eq!(stats.tx_kernel_packets + stats.dropped_no_buffer, accepted.get());
}

#[test]
fn an_interface_that_goes_and_comes_back_is_served_again() {
    if !is_privileged() {
        return;
    }
    let (near, far) = Namespace::pair();
    let mut server = open(&near, &UdpConfig::new(vec![address("10.9.0.1:4433")]));
    let flow = Flow::new(address("10.9.0.1:4433"), address("10.9.0.2:5000"));
    near.ip("link del v0");
    send(&mut server, &flow, 1000, &[1000, 1000]);
    server.receive(Instant::now(), &mut |_| panic!("nobody is there")).unwrap();
    assert_eq!(server.stats().dropped_send_refused, 2);
    sh(&format!("ip link add v0 netns {} type veth peer name v1 netns {}", near.name, far.name));
    for (space, device, host) in [(&near, "v0", 1), (&far, "v1", 2)] {
        space.ip(&format!("link set {device} up"));
        space.ip(&format!("addr add 10.9.0.{host}/24 dev {device}"));
    }
    let mut client = open(&far, &UdpConfig::new(vec![address("10.9.0.2:5000")]));
    send(&mut client, &Flow::new(address("10.9.0.2:5000"), address("10.9.0.1:4433")), 500, &[500]);
    receive(&mut server, 1);
    send(&mut server, &flow, 1000, &[1000, 1000]);
    receive(&mut client, 2);
    assert!(server.is_gso());
}
