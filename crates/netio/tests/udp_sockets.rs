//! The kernel UDP backend between namespaces: contents, addresses, marks, steering, and sends that fail.

mod udp_netns;

use std::net::{SocketAddr, UdpSocket};
use std::time::Instant;

use expressway_netio::udp::{SendMode, Steering, UdpConfig, UdpGroup, UdpIo};
use expressway_netio::{Ecn, Flow, IoError, PacketIo};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use udp_netns::{Namespace, eventually, is_privileged, option, sh};

/// A datagram as a test keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Kept {
    payload: Vec<u8>,
    remote: SocketAddr,
    local: SocketAddr,
    ecn: Ecn,
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn open(space: &Namespace, config: &UdpConfig) -> UdpIo {
    space.run(|| UdpIo::bind(config).unwrap())
}

fn receive(io: &mut UdpIo, count: usize) -> Vec<Kept> {
    let mut kept = Vec::new();
    eventually(&format!("{count} datagrams"), || {
        io.receive(Instant::now(), &mut |datagram| {
            kept.push(Kept {
                payload: datagram.payload.to_vec(),
                remote: datagram.remote,
                local: datagram.local,
                ecn: datagram.ecn,
            });
        })
        .unwrap();
        (kept.len() >= count).then_some(())
    });
    assert_eq!(kept.len(), count, "no datagram comes twice");
    kept
}

/// Payload `number`: of `length` bytes, its own all over.
fn payload(number: usize, length: usize) -> Vec<u8> {
    (0..length).map(|index| (number.wrapping_mul(31) + index * 7 + index / 251) as u8).collect()
}

/// Sends payloads of these lengths as one burst and flushes.
fn send(io: &mut UdpIo, flow: &Flow, segment: usize, lengths: &[usize]) {
    let mut number = 0;
    while number < lengths.len() {
        let sent = io
            .transmit(flow, segment, &mut |slice| {
                let Some(length) = lengths.get(number).copied() else { return 0 };
                slice[..length].copy_from_slice(&payload(number, length));
                number += 1;
                length
            })
            .unwrap();
        io.flush(Instant::now()).unwrap();
        assert!(sent.packets > 0 || number == lengths.len(), "transmit makes progress");
    }
    io.flush(Instant::now()).unwrap();
}

const LENGTHS: [usize; 10] = [1200, 1200, 1200, 700, 1200, 1200, 1, 1200, 1200, 1200];

fn round_trip(mode: SendMode, gro: bool, server: &str, client: &str) {
    let (near, far) = Namespace::pair();
    let mut config = UdpConfig::new(vec![address(server)]);
    (config.send, config.gro) = (mode, gro);
    let mut receiver = open(&near, &config);
    config.listen = vec![address(client)];
    let mut sender = open(&far, &config);
    let flow = Flow::new(address(client), address(server));
    send(&mut sender, &flow, 1200, &LENGTHS);
    let mut kept = receive(&mut receiver, LENGTHS.len());
    // GRO may hand over a short last segment before or after what follows it; contents are what counts.
    let mut expected: Vec<_> =
        LENGTHS.iter().enumerate().map(|(number, length)| payload(number, *length)).collect();
    kept.sort_by(|a, b| a.payload.cmp(&b.payload));
    expected.sort();
    for (kept, expected) in kept.iter().zip(&expected) {
        assert_eq!(kept.payload, *expected);
        assert_eq!((kept.remote, kept.local), (address(client), address(server)));
    }
    let stats = sender.stats();
    assert_eq!(stats.tx_kernel_packets, 10);
    assert_eq!(stats.tx_kernel_bytes, LENGTHS.iter().sum::<usize>() as u64);
    assert_eq!(receiver.stats().rx_kernel_packets, 10);
    assert_eq!(receiver.stats().rx_kernel_bytes, stats.tx_kernel_bytes);
    let expected = if mode == SendMode::Sendmsg { 10 } else { 1 };
    assert_eq!(stats.tx_syscalls, expected, "system calls of {mode:?}");
    assert_eq!(sender.is_gso(), mode == SendMode::Gso);
}

#[test]
fn gso_and_gro_carry_every_byte_over_ipv4() {
    if is_privileged() {
        round_trip(SendMode::Gso, true, "10.9.0.1:4433", "10.9.0.2:5000");
    }
}

#[test]
fn gso_and_gro_carry_every_byte_over_ipv6() {
    if is_privileged() {
        round_trip(SendMode::Gso, true, "[fd09::1]:4433", "[fd09::2]:5000");
    }
}

#[test]
fn sendmmsg_and_sendmsg_without_gro_carry_every_byte() {
    if is_privileged() {
        round_trip(SendMode::Sendmmsg, false, "10.9.0.1:4433", "10.9.0.2:5000");
        round_trip(SendMode::Sendmsg, false, "[fd09::1]:4433", "[fd09::2]:5000");
    }
}

#[test]
fn gso_of_many_flows_takes_one_system_call() {
    if !is_privileged() {
        return;
    }
    let (near, far) = Namespace::pair();
    let mut receivers: Vec<_> = (0..8u8)
        .map(|port| {
            open(&near, &UdpConfig::new(vec![address(&format!("10.9.0.1:{}", 6000 + u16::from(port)))]))
        })
        .collect();
    let mut sender = open(&far, &UdpConfig::new(vec![address("10.9.0.2:5000")]));
    for port in 0..8u8 {
        let flow =
            Flow::new(address("10.9.0.2:5000"), address(&format!("10.9.0.1:{}", 6000 + u16::from(port))));
        let mut left = 20;
        sender
            .transmit(&flow, 1000, &mut |slice| {
                left -= 1;
                if left < 0 {
                    return 0;
                }
                slice.fill(port);
                slice.len()
            })
            .unwrap();
    }
    sender.flush(Instant::now()).unwrap();
    assert_eq!(sender.stats().tx_syscalls, 1);
    for (port, receiver) in receivers.iter_mut().enumerate() {
        let kept = receive(receiver, 20);
        assert!(kept.iter().all(|kept| kept.payload == [port as u8; 1000]));
    }
}

#[test]
fn replies_leave_from_the_address_that_was_asked() {
    if !is_privileged() {
        return;
    }
    let (near, far) = Namespace::pair();
    near.ip("addr add 10.9.0.77/24 dev v0");
    near.ip("addr add fd09::77/64 dev v0 nodad");
    let config = UdpConfig::new(vec![address("0.0.0.0:4433"), address("[::]:4433")]);
    let mut server = open(&near, &config);
    for (client, asked) in [
        ("10.9.0.2:0", "10.9.0.77:4433"),
        ("10.9.0.2:0", "10.9.0.1:4433"),
        ("[fd09::2]:0", "[fd09::77]:4433"),
        ("[fd09::2]:0", "[fd09::1]:4433"),
    ] {
        let client = far.run(|| UdpSocket::bind(client).unwrap());
        client.set_read_timeout(Some(udp_netns::DEADLINE)).unwrap();
        client.send_to(b"ask", asked).unwrap();
        let kept = receive(&mut server, 1).remove(0);
        assert_eq!((kept.local, kept.remote), (address(asked), client.local_addr().unwrap()));
        send(&mut server, &Flow::new(kept.local, kept.remote), 1200, &[1200, 1200, 3]);
        let mut buffer = [0; 2000];
        for _ in 0..3 {
            let (_, from) = client.recv_from(&mut buffer).unwrap();
            assert_eq!(from, address(asked));
        }
    }
}

#[test]
fn marks_are_sent_and_read() {
    if !is_privileged() {
        return;
    }
    let (near, far) = Namespace::pair();
    for (server, client) in [("10.9.0.1:4433", "10.9.0.2:5000"), ("[fd09::1]:4433", "[fd09::2]:5000")] {
        let mut receiver = open(&near, &UdpConfig::new(vec![address(server)]));
        let mut sender = open(&far, &UdpConfig::new(vec![address(client)]));
        for ecn in [Ecn::Ect0, Ecn::NotEct, Ecn::Ect1, Ecn::Ce] {
            let flow = Flow { ecn, dscp: 46, ..Flow::new(address(client), address(server)) };
            send(&mut sender, &flow, 500, &[500, 500]);
            assert!(receive(&mut receiver, 2).iter().all(|kept| kept.ecn == ecn), "{ecn:?}");
        }
    }
}

fn workers(space: &Namespace, listen: &str, count: usize) -> Vec<UdpIo> {
    let mut config = UdpConfig::new(vec![address(listen)]);
    config.steering = Steering::ByteAt { offset: 1, clear_mask: 0x80 };
    space.run(|| {
        let group = UdpGroup::bind(&config, count).unwrap();
        group.into_workers().into_iter().map(|sockets| UdpIo::new(&config, sockets).unwrap()).collect()
    })
}

/// Collects until `count` datagrams have come in anywhere; returns the payloads by worker.
fn by_worker(workers: &mut [UdpIo], count: usize) -> Vec<Vec<Vec<u8>>> {
    let mut payloads = vec![Vec::new(); workers.len()];
    eventually(&format!("{count} datagrams at the workers"), || {
        for (worker, payloads) in workers.iter_mut().zip(&mut payloads) {
            worker.receive(Instant::now(), &mut |datagram| payloads.push(datagram.payload.to_vec())).unwrap();
        }
        (payloads.iter().map(Vec::len).sum::<usize>() == count).then_some(())
    });
    payloads
}

#[test]
fn a_short_header_is_steered_to_the_worker_it_names() {
    if !is_privileged() {
        return;
    }
    let (near, far) = Namespace::pair();
    for (server, client) in [("10.9.0.1:4433", "10.9.0.2:0"), ("[fd09::1]:4433", "[fd09::2]:0")] {
        let mut workers = workers(&near, server, 4);
        for worker in 0..4u8 {
            // Every client port has another hash; the byte decides alone.
            for _ in 0..8 {
                let client = far.run(|| UdpSocket::bind(client).unwrap());
                client.send_to(&[0x40, worker, 1, 2, 3], server).unwrap();
            }
        }
        for (worker, payloads) in by_worker(&mut workers, 32).iter().enumerate() {
            assert_eq!(payloads.len(), 8);
            assert!(payloads.iter().all(|payload| payload[1] == worker as u8));
        }
    }
}

#[test]
fn what_names_no_worker_stays_with_its_flow_by_hash() {
    if !is_privileged() {
        return;
    }
    let (near, far) = Namespace::pair();
    let mut workers = workers(&near, "10.9.0.1:4433", 4);
    let mut used = std::collections::HashSet::new();
    for round in 0..24 {
        let client = far.run(|| UdpSocket::bind("10.9.0.2:0").unwrap());
        // Long headers that seem to name different workers, short ones out of range, and a runt.
        for probe in
            [&[0xc0, 0, round][..], &[0xc0, 3, round], &[0x40, 4, round], &[0x40, 255, round], &[0x40]]
        {
            client.send_to(probe, "10.9.0.1:4433").unwrap();
        }
        let payloads = by_worker(&mut workers, 5);
        let holders: Vec<_> = (0..4).filter(|worker| !payloads[*worker].is_empty()).collect();
        assert_eq!(holders.len(), 1, "one flow, one worker");
        used.insert(holders[0]);
    }
    assert!(used.len() > 1, "the hash spreads flows: {used:?}");
}

#[test]
fn a_group_of_another_process_is_refused() {
    if !is_privileged() {
        return;
    }
    let space = Namespace::new();
    let listen = vec![address("127.0.0.1:4433")];
    let config = UdpConfig::new(listen);
    let first = space.run(|| UdpGroup::bind(&config, 2).unwrap());
    let error = space.run(|| UdpGroup::bind(&config, 2).err().expect("the address is in use"));
    assert!(
        matches!(&error, IoError::Socket { source, .. } if source.kind() == std::io::ErrorKind::AddrInUse)
    );
    assert!(error.to_string().contains("127.0.0.1:4433"), "{error}");
    let shared = UdpConfig { exclusive: false, ..config.clone() };
    drop(first);
    space.run(|| {
        let _one = UdpGroup::bind(&shared, 1).unwrap();
        UdpGroup::bind(&shared, 1).unwrap();
    });
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
    assert_eq!(sender.stats().dropped_no_buffer, 0);
    sender.flush(start + config.send_patience).unwrap();
    let stats = sender.stats();
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

#[test]
fn a_datagram_larger_than_the_buffer_is_dropped_and_counted() {
    if !is_privileged() {
        return;
    }
    let space = Namespace::new();
    let mut config = UdpConfig::new(vec![address("127.0.0.1:4433")]);
    (config.gro, config.receive_buffer) = (false, 1500);
    let mut io = open(&space, &config);
    let client = space.run(|| UdpSocket::bind("127.0.0.1:0").unwrap());
    client.send_to(&[7; 1501], "127.0.0.1:4433").unwrap();
    client.send_to(&[], "127.0.0.1:4433").unwrap();
    client.send_to(&[8; 1500], "127.0.0.1:4433").unwrap();
    let kept = receive(&mut io, 2);
    assert_eq!((kept[0].payload.len(), kept[1].payload.len()), (0, 1500), "an empty datagram is one too");
    assert_eq!(io.stats().dropped_truncated, 1);
}

#[test]
fn what_the_kernel_drops_at_the_socket_is_counted() {
    if !is_privileged() {
        return;
    }
    let space = Namespace::new();
    let mut config = UdpConfig::new(vec![address("127.0.0.1:4433")]);
    config.socket_receive_buffer = 4096;
    let mut io = open(&space, &config);
    let client = space.run(|| UdpSocket::bind("127.0.0.1:0").unwrap());
    for _ in 0..200 {
        client.send_to(&[7; 1000], "127.0.0.1:4433").unwrap();
    }
    let dropped = io.stats().rx_kernel_dropped;
    assert!(dropped > 0);
    receive(&mut io, 200 - dropped as usize);
}

#[test]
fn a_wrong_configuration_is_refused_by_name() {
    let good = UdpConfig::new(vec![address("127.0.0.1:0")]);
    type Change = fn(&mut UdpConfig);
    let cases: [(&str, Change); 8] = [
        ("listen names no address", |config| config.listen.clear()),
        ("named twice", |config| config.listen = vec![address("127.0.0.1:1"); 2]),
        ("IPv4", |config| config.listen = vec![address("[::ffff:127.0.0.1]:1")]),
        ("multicast", |config| config.listen = vec![address("224.0.0.1:1")]),
        ("receive_batch", |config| config.receive_batch = 0),
        ("receive_buffer", |config| config.receive_buffer = 100),
        ("transmit_memory", |config| config.transmit_memory = 1),
        ("max_payload", |config| config.max_payload = 70_000),
    ];
    for (words, change) in cases {
        let mut config = good.clone();
        change(&mut config);
        let error = config.validate(1).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    assert!(good.validate(0).is_err() && good.validate(257).is_err() && good.validate(256).is_ok());
}
