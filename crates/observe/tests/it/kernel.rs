//! The kernel's path, over veth: what it receives, sends and drops. Needs root.

use std::collections::HashSet;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use expressway_lab::Role;
use expressway_observe::{Capture, CaptureError, CaptureOptions, Direction, Point, Points, XdpPoints};

use crate::support::{Seen, TestLab, kernel, options, rest, take, take_until};

const PORT: u16 = 4444;

#[test]
fn root_both_ways_are_seen_whole_with_the_sender() {
    let Some(lab) = TestLab::up("ways", |_| ()) else { return };
    let (server, client) = (lab.socket(Role::Server, PORT), lab.socket(Role::Client, PORT));
    let index = lab.index();
    let seen = lab.server(|| {
        let exchange = |words: &[u8]| {
            let mut buffer = [0; 64];
            client.send_to(words, server.local_addr().unwrap()).unwrap();
            let (length, from) = server.recv_from(&mut buffer).unwrap();
            server.send_to(&buffer[..length], from).unwrap();
            client.recv(&mut buffer).unwrap();
        };
        // Neighbours are known then: what waits for one leaves when its answer comes, whoever runs at the moment.
        exchange(b"before");
        let mut capture = Capture::open(options(index, "udp port 4444", kernel())).unwrap();
        exchange(b"there");
        take(&mut capture, 2)
    });
    let [received, sent] = &seen[..] else { panic!("{seen:?}") };
    assert_eq!((received.point, sent.point), (Point::KernelReceive, Point::KernelTransmit));
    assert_eq!(received.point.direction(), Direction::In);
    for packet in [received, sent] {
        assert_eq!(packet.payload(), b"there");
        assert_eq!((packet.length, packet.data.len()), (47, 47));
        assert_eq!((packet.drop.as_deref(), packet.verdict, packet.id), (None, None, None));
    }
    assert!(received.time <= sent.time);
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
    assert!(since - sent.time < 3_600_000_000_000, "no time of today: {}", sent.time);
    assert_eq!(sent.process.as_ref().map(|process| process.0), Some(std::process::id()));
}

#[test]
fn root_what_has_no_socket_is_shown_with_the_kernels_reason() {
    let Some(lab) = TestLab::up("drop", |_| ()) else { return };
    let client = lab.socket(Role::Client, PORT);
    let index = lab.index();
    let to = std::net::SocketAddr::from((lab.0.addresses(Role::Server).ipv4, 9));
    let seen = lab.server(|| {
        let points = Points { drops: true, ..kernel() };
        let mut capture = Capture::open(options(index, "udp dst port 9", points)).unwrap();
        client.send_to(b"nobody", to).unwrap();
        take(&mut capture, 2)
    });
    let [received, dropped] = &seen[..] else { panic!("{seen:?}") };
    assert_eq!(received.drop, None);
    assert_eq!((dropped.point, dropped.drop.as_deref()), (Point::KernelReceive, Some("no_socket")));
    assert_eq!(dropped.data, received.data, "the same packet, from its Ethernet header on");
}

#[test]
fn root_a_filter_runs_in_the_kernel_and_what_it_refuses_is_only_counted() {
    let Some(lab) = TestLab::up("none", |_| ()) else { return };
    let (server, client) = (lab.socket(Role::Server, PORT), lab.socket(Role::Client, PORT));
    let index = lab.index();
    lab.server(|| {
        let mut capture = Capture::open(options(index, "udp port 5555", kernel())).unwrap();
        for _ in 0..10 {
            client.send_to(b"not this one", server.local_addr().unwrap()).unwrap();
            server.recv(&mut [0; 64]).unwrap();
        }
        assert_eq!(rest(&mut capture), []);
        let [losses] = capture.losses()[..] else { panic!() };
        assert!(losses.seen >= 10, "{losses:?}");
        assert_eq!((losses.interface, losses.matched, losses.lost), (index, 0, 0));
    });
}

#[test]
fn root_what_lies_beyond_the_kernels_part_of_a_filter_is_decided_by_libpcap() {
    let Some(lab) = TestLab::up("beyond", |_| ()) else { return };
    let (server, client) = (lab.socket(Role::Server, PORT), lab.socket(Role::Client, PORT));
    let index = lab.index();
    lab.server(|| {
        let mut limited = options(index, "udp port 4444 and udp[1000] = 7", kernel());
        limited.snaplen = 60;
        let mut capture = Capture::open(limited).unwrap();
        for value in [6, 7, 8] {
            client.send_to(&[value; 1200], server.local_addr().unwrap()).unwrap();
            server.recv(&mut [0; 2000]).unwrap();
        }
        client.send_to(&[7; 100], server.local_addr().unwrap()).unwrap();
        server.recv(&mut [0; 2000]).unwrap();
        let seen = rest(&mut capture);
        assert_eq!(seen.len(), 1, "{seen:?}");
        assert_eq!((seen[0].length, seen[0].data.len(), seen[0].payload()[0]), (1242, 60, 7));
        assert_eq!(capture.losses()[0].matched, 1);
    });
}

#[test]
fn root_what_finds_no_room_is_counted_and_nothing_else_is_missing() {
    let Some(lab) = TestLab::up("loss", |_| ()) else { return };
    let (server, client) = (lab.socket(Role::Server, PORT), lab.socket(Role::Client, PORT));
    let index = lab.index();
    lab.server(|| {
        let mut small = options(index, "udp port 4444", kernel());
        small.buffer = 1;
        let mut capture = Capture::open(small).unwrap();
        let mut seen = Vec::new();
        for round in 0..40u32 {
            for number in 0..10 {
                let mut payload = [0; 300];
                payload[..4].copy_from_slice(&(round * 10 + number).to_be_bytes());
                client.send_to(&payload, server.local_addr().unwrap()).unwrap();
                server.recv(&mut [0; 400]).unwrap();
            }
            if round % 2 == 0 {
                seen.append(&mut rest(&mut capture));
            }
        }
        seen.append(&mut rest(&mut capture));
        let [losses] = capture.losses()[..] else { panic!() };
        assert_eq!(losses.matched, 400);
        assert!(losses.lost > 0, "a page holds 400 packets?");
        assert_eq!(losses.matched, losses.lost + seen.len() as u64);
        let numbers: Vec<&[u8]> = seen.iter().map(|packet| &packet.payload()[..4]).collect();
        assert!(numbers.is_sorted(), "in order");
        let whole = |packet: &Seen| packet.data.len() == 342 && packet.payload()[4..] == [0; 296];
        assert!(seen.iter().all(whole), "records that wrap around the end of the buffer are whole");
    });
}

#[test]
fn root_two_captures_see_the_same_at_once() {
    let Some(lab) = TestLab::up("two", |_| ()) else { return };
    let (server, client) = (lab.socket(Role::Server, PORT), lab.socket(Role::Client, PORT));
    let index = lab.index();
    lab.server(|| {
        let mut first = Capture::open(options(index, "udp port 4444", kernel())).unwrap();
        let mut second = Capture::open(options(index, "udp", kernel())).unwrap();
        client.send_to(b"both", server.local_addr().unwrap()).unwrap();
        let payload = |seen: Vec<Seen>| seen[0].payload().to_vec();
        assert_eq!(payload(take(&mut first, 1)), b"both");
        assert_eq!(payload(take(&mut second, 1)), b"both");
        drop(first);
        client.send_to(b"alone", server.local_addr().unwrap()).unwrap();
        assert_eq!(payload(take(&mut second, 1)), b"alone");
    });
}

#[test]
fn root_the_tag_that_a_device_would_insert_is_part_of_the_packet() {
    let Some(lab) = TestLab::up("vlan", |config| config.vlan = Some(5)) else { return };
    let index = lab.index();
    let addresses = lab.0.addresses(Role::Server).vlan_ipv4.expect("a VLAN");
    let peer = lab.0.addresses(Role::Client).vlan_ipv4.expect("a VLAN");
    let socket = |role, ip| lab.0.run(role, move || std::net::UdpSocket::bind((ip, PORT)).unwrap()).unwrap();
    let (server, client) = (socket(Role::Server, addresses), socket(Role::Client, peer));
    lab.server(|| {
        let mut capture = Capture::open(options(index, "vlan 5 and udp port 4444", kernel())).unwrap();
        client.send_to(b"in", server.local_addr().unwrap()).unwrap();
        server.send_to(b"out", client.local_addr().unwrap()).unwrap();
        let seen = take(&mut capture, 2);
        for (packet, payload) in seen.iter().zip([&b"in"[..], b"out"]) {
            assert_eq!(packet.data[12..18], [0x81, 0, 0, 5, 8, 0]);
            assert_eq!(&packet.data[46..46 + payload.len()], payload);
            assert_eq!(packet.length as usize, packet.data.len());
        }
    });
}

#[test]
fn root_interfaces_that_are_not_there_and_captures_of_nothing_are_errors() {
    let Some(lab) = TestLab::up("errors", |_| ()) else { return };
    lab.server(|| {
        let nowhere = Capture::open(options(4_000_000, "", kernel())).unwrap_err();
        assert!(nowhere.to_string().contains("no such interface"), "{nowhere}");
        let nothing = CaptureOptions { interfaces: vec![], ..options(1, "", kernel()) };
        assert!(matches!(Capture::open(nothing), Err(CaptureError::Interfaces(0))));
        let points = Points { xdp: XdpPoints::None, xsk: false, kernel: false, drops: false };
        assert!(matches!(Capture::open(options(1, "", points)), Err(CaptureError::Nothing(_))));
    });
}

/// What `root_nothing_is_left_of_a_killed_capture` kills.
#[test]
#[ignore = "the other test runs it"]
fn captures_until_it_is_killed() {
    let capture = Capture::open(options(1, "udp", kernel())).unwrap();
    println!("attached");
    loop {
        std::thread::park();
        assert!(capture.notes().len() < 1000);
    }
}

/// The ids of the BPF programs that a process holds.
fn programs(process: u32) -> HashSet<u32> {
    let mut ids = HashSet::new();
    for file in std::fs::read_dir(format!("/proc/{process}/fdinfo")).unwrap().flatten() {
        let text = std::fs::read_to_string(file.path()).unwrap_or_default();
        ids.extend(text.lines().filter_map(|line| line.strip_prefix("prog_id:")?.trim().parse::<u32>().ok()));
    }
    ids
}

#[test]
fn root_nothing_is_left_of_a_killed_capture() {
    let Some(_lab) = TestLab::up("kill", |_| ()) else { return };
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "--nocapture", "kernel::captures_until_it_is_killed"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("attached")), "it ended");
    let held = programs(child.id());
    assert!(held.len() >= 2, "{held:?}");
    child.kill().unwrap();
    child.wait().unwrap();
    // The kernel frees programs after a grace period.
    let lives = |id: &u32| libbpf_rs::Program::fd_from_id(*id).is_ok();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while held.iter().any(lives) {
        assert!(std::time::Instant::now() < deadline, "still there");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

#[test]
fn root_packets_wait_for_nobody_to_ask() {
    let Some(lab) = TestLab::up("wait", |_| ()) else { return };
    let (server, client) = (lab.socket(Role::Server, PORT), lab.socket(Role::Client, PORT));
    let index = lab.index();
    lab.server(|| {
        let mut capture = Capture::open(options(index, "udp port 4444", kernel())).unwrap();
        client.send_to(b"one", server.local_addr().unwrap()).unwrap();
        let seen =
            take_until(&mut capture, |capture, seen| capture.losses()[0].matched == 1 && seen.len() == 1);
        assert_eq!(seen[0].payload(), b"one");
        assert_eq!(rest(&mut capture), [], "nothing comes twice");
    });
}
