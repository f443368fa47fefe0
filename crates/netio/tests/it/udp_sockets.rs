//! The kernel UDP backend between namespaces: contents, addresses, marks, steering, configuration.

use std::net::UdpSocket;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use expressway_netio::io::TimeSource;
use expressway_netio::trace::{Filter, Options, Tracers};
use expressway_netio::udp::{SendMode, Steering, UdpConfig, UdpGroup, UdpIo};
use expressway_netio::{Ecn, Flow, IoError, PacketIo};

use crate::datagrams::{LENGTHS, address, open, payload, receive, send};
use crate::udp_netns::{self, Namespace, eventually, is_privileged};

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
fn the_kernels_stamps_come_where_they_are_asked_for() {
    let realtime = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let mut config = UdpConfig::new(vec![address("127.0.0.1:0")]);
    for timestamps in [false, true] {
        (config.timestamps, config.gro) = (timestamps, false);
        let mut io = UdpIo::bind(&config).unwrap();
        let to = io.addresses().next().unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        let before = realtime();
        for _ in 0..3 {
            sender.send_to(b"stamped", to).unwrap();
        }
        let mut stamps = Vec::new();
        while stamps.len() < 3 {
            io.receive(Instant::now(), &mut |datagram| stamps.push(datagram.hints.timestamp)).unwrap();
        }
        let after = realtime();
        if !timestamps {
            assert_eq!(stamps, [None; 3]);
            continue;
        }
        let stamps: Vec<_> = stamps.into_iter().map(|stamp| stamp.expect("each has one")).collect();
        assert!(stamps.iter().all(|stamp| stamp.source == TimeSource::Kernel));
        let times: Vec<u64> = stamps.iter().map(|stamp| stamp.nanoseconds).collect();
        assert!(times.is_sorted() && before <= times[0] && times[2] <= after, "{before} {times:?} {after}");
    }
}

#[test]
fn the_kernel_stamps_while_somebody_traces() {
    let tracers = Tracers::new(1);
    let mut config = UdpConfig::new(vec![address("127.0.0.1:0")]);
    config.gro = false;
    let mut io = UdpIo::bind(&config).unwrap();
    io.set_tracer(tracers.tracer(0));
    let to = io.addresses().next().unwrap();
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    let receive = |io: &mut UdpIo| {
        sender.send_to(b"stamped", to).unwrap();
        let mut stamp = None;
        while stamp.is_none() {
            io.receive(Instant::now(), &mut |datagram| stamp = Some(datagram.hints.timestamp)).unwrap();
        }
        stamp.flatten()
    };
    assert_eq!(receive(&mut io), None);
    let recording = tracers.start(&Options { filter: Filter::default(), sample: 1 }).unwrap();
    // The kernel begins to stamp some time after it was asked.
    let stamp = std::iter::repeat_with(|| receive(&mut io)).take(10_000).flatten().next().expect("a stamp");
    let taken = recording.clock().nanoseconds(Instant::now());
    let arrived = stamp.monotonic(&recording.clock(), taken).expect("the clock was not set");
    assert!(arrived <= taken);
    drop(recording);
    assert_eq!(receive(&mut io), None, "and no longer");
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
        ("no listen address", |config| config.listen.clear()),
        ("listed twice", |config| config.listen = vec![address("127.0.0.1:1"); 2]),
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

/// As two processes have them, of which one makes way for the other.
#[test]
fn sockets_that_two_have_are_received_by_the_one_whose_gate_is_open() {
    if !is_privileged() {
        return;
    }
    let (near, far) = Namespace::pair();
    let config = UdpConfig::new(vec![address("10.9.0.1:4433")]);
    let made = near.run(|| UdpGroup::bind(&config, 1).unwrap()).into_workers().remove(0);
    let shared = UdpGroup::adopt(&config, vec![made.duplicate().unwrap()]).unwrap();
    let mut first = UdpIo::new(&config, made).unwrap();
    let mut second = UdpIo::new(&config, shared.into_workers().remove(0)).unwrap();
    let mut sender = open(&far, &UdpConfig::new(vec![address("10.9.0.2:5000")]));
    let flow = Flow::new(address("10.9.0.2:5000"), address("10.9.0.1:4433"));
    let watched = |io: &UdpIo| {
        let mut count = 0;
        io.descriptors(&mut |_| count += 1);
        count
    };
    let (pause, before, generation) = (first.pause(), watched(&first), first.descriptors_generation());
    pause.pause();
    assert!(!pause.is_paused(), "the worker has not seen it");
    first.flush(Instant::now()).unwrap();
    assert!(pause.is_paused());
    assert_eq!(watched(&first), before - 1, "it would wake the worker for ever");
    assert_ne!(first.descriptors_generation(), generation);
    send(&mut sender, &flow, 1200, &[100, 200]);
    let kept = receive(&mut second, 2);
    assert_eq!(kept[0].payload, payload(0, 100));
    send(&mut sender, &flow, 1200, &[300]);
    for _ in 0..50 {
        assert_eq!(first.receive(Instant::now(), &mut |_| ()).unwrap(), 0);
    }
    // It sends as ever, and receives again.
    let back = Flow::new(address("10.9.0.1:4433"), address("10.9.0.2:5000"));
    send(&mut first, &back, 1200, &[50]);
    assert_eq!(receive(&mut sender, 1)[0].remote, address("10.9.0.1:4433"));
    pause.resume();
    first.flush(Instant::now()).unwrap();
    assert!(!pause.is_paused());
    assert_eq!(receive(&mut first, 1)[0].payload, payload(0, 300));
}
