//! XDP programs and AF_XDP sockets of whoever, over veth. Needs root, and a kernel that takes fentry programs.

use std::net::UdpSocket;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use expressway_lab::Role;
use expressway_observe::{Capture, Packet, Point, Points, Verdict, XdpPoints};
use expressway_xbpf::{
    Action, AttachMode, Attachment, Baseline, Existing, Guard, GuardOptions, Keep, Options, Redirect,
};
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapInfo};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::support::{Seen, TestLab, has_fentry, open_traced, options, rest, take, take_until, xdp};

const PORT: u16 = 4444;
const FILTER: &str = "udp port 4444";
const MODES: [AttachMode; 2] = [AttachMode::Native, AttachMode::Generic];

/// A program that is not ours, on the server's interface.
fn foreign(index: u32, action: Action, mode: AttachMode) -> Attachment {
    Baseline::load(action, index, None).unwrap().attach(index, mode, Existing::Refuse).unwrap()
}

/// Makes neighbours known, for programs that take their packets too.
fn greet(client: &UdpSocket, server: &UdpSocket) {
    client.send_to(b"hello", server.local_addr().unwrap()).unwrap();
    server.recv(&mut [0; 64]).unwrap();
}

#[test]
fn root_each_packet_is_shown_once_as_it_came_with_the_verdict() {
    for (number, mode) in MODES.into_iter().enumerate() {
        let Some(lab) = TestLab::up(&format!("once{number}"), |_| ()) else { return };
        let (server, client) = (lab.socket(Role::Server, PORT), lab.socket(Role::Client, PORT));
        let index = lab.index();
        greet(&client, &server);
        lab.server(|| {
            for (action, verdict) in [(Action::Drop, Verdict::Drop), (Action::Count, Verdict::Pass)] {
                let attachment = foreign(index, action, mode);
                let points = Points { kernel: true, ..Points::default() };
                let Some(mut capture) = open_traced(options(index, FILTER, points)) else { return };
                for number in 0..10u8 {
                    client.send_to(&[number; 64], server.local_addr().unwrap()).unwrap();
                }
                let mut seen = take(&mut capture, 10);
                if verdict == Verdict::Pass {
                    for _ in 0..10 {
                        server.recv(&mut [0; 64]).unwrap();
                    }
                }
                seen.extend(rest(&mut capture));
                assert_eq!(seen.len(), 10, "{seen:?}");
                for (number, packet) in (0..).zip(&seen) {
                    assert_eq!(
                        (packet.point, packet.verdict),
                        (Point::XdpEntry, Some(verdict)),
                        "{packet:?}"
                    );
                    assert_eq!(packet.payload(), [number; 64]);
                    assert_eq!((packet.queue, packet.id), (Some(0), None));
                }
                let [losses] = capture.losses()[..] else { panic!() };
                assert_eq!((losses.matched, losses.lost), (10, 0));
                drop(attachment);
            }
        });
    }
}

#[test]
fn root_why_a_program_of_ours_drops_is_told_to_each_that_observes() {
    const COUNT: usize = 5;
    for (number, mode) in MODES.into_iter().enumerate() {
        let Some(lab) = TestLab::up(&format!("why{number}"), |_| ()) else { return };
        let (server, client) = (lab.socket(Role::Server, PORT), lab.socket(Role::Client, PORT));
        let index = lab.index();
        greet(&client, &server);
        let (to, reasons) = (server.local_addr().unwrap(), |seen: &[Seen]| -> Vec<_> {
            seen.iter().map(|packet| (packet.verdict, packet.drop.clone())).collect()
        });
        lab.server(|| {
            let all = GuardOptions { drop_default: true, ..GuardOptions::default() };
            let guard = Guard::load(all, None).unwrap();
            let attachment = guard.attach(index, mode, Existing::Refuse, Keep::Process).unwrap();
            client.send_to(b"nobody sees it", to).unwrap();
            let points = [XdpPoints::Arrival, XdpPoints::Arrival, XdpPoints::Exit];
            let mut captures = Vec::new();
            for point in points {
                let Some(capture) = open_traced(options(index, FILTER, xdp(point))) else { return };
                captures.push(capture);
            }
            for _ in 0..COUNT {
                client.send_to(b"dropped", to).unwrap();
            }
            for capture in &mut captures {
                let told = reasons(&take(capture, COUNT));
                assert_eq!(told, vec![(Some(Verdict::Drop), Some("default".to_owned())); COUNT], "{mode:?}");
            }
            // One of others in its place tells no reason, and the filter's last one is not taken for it.
            let foreign = Baseline::load(Action::Drop, index, None).unwrap();
            foreign.replace(&attachment).unwrap();
            let [capture, ..] = &mut captures[..] else { unreachable!() };
            let seen = take_until(capture, |_, seen| {
                client.send_to(b"dropped too", to).unwrap();
                seen.iter().any(|packet| packet.drop.is_none())
            });
            assert!(seen.iter().all(|packet| packet.verdict == Some(Verdict::Drop)), "{seen:?}");
        });
    }
}

#[test]
fn root_entry_and_exit_are_a_pair_and_the_exit_is_as_the_program_left_it() {
    let Some(lab) = TestLab::up("pair", |_| ()) else { return };
    let (server, client) = (lab.socket(Role::Server, PORT), lab.socket(Role::Client, PORT));
    let index = lab.index();
    greet(&client, &server);
    lab.server(|| {
        let _attachment = foreign(index, Action::Tx, AttachMode::Native);
        let Some(mut both) = open_traced(options(index, FILTER, xdp(XdpPoints::Both))) else { return };
        let mut entry = Capture::open(options(index, FILTER, xdp(XdpPoints::Entry))).unwrap();
        let mut exit = Capture::open(options(index, FILTER, xdp(XdpPoints::Exit))).unwrap();
        client.send_to(b"turned", server.local_addr().unwrap()).unwrap();
        let seen = take(&mut both, 2);
        let [came, left] = &seen[..] else { panic!("{seen:?}") };
        assert_eq!((came.point, left.point), (Point::XdpEntry, Point::XdpExit));
        assert_eq!((came.verdict, left.verdict), (None, Some(Verdict::Tx)));
        assert!(came.id.is_some() && came.id == left.id, "{seen:?}");
        assert_eq!((&came.data[..6], &came.data[6..12]), (&left.data[6..12], &left.data[..6]), "swapped");
        assert_eq!((came.payload(), left.payload()), (&b"turned"[..], &b"turned"[..]));
        let (came_alone, left_alone) = (take(&mut entry, 1), take(&mut exit, 1));
        assert_eq!((came_alone[0].verdict, &came_alone[0].data), (None, &came.data));
        assert_eq!((left_alone[0].verdict, &left_alone[0].data), (Some(Verdict::Tx), &left.data));
    });
}

/// An AF_XDP socket that is not bound, in the slot of queue 0.
fn unbound(redirect: &Redirect) -> OwnedFd {
    let socket = socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None).unwrap();
    let map = MapHandle::from_map_id(MapInfo::new(redirect.xsk_map()).unwrap().info.id).unwrap();
    map.update(&0u32.to_ne_bytes(), &socket.as_raw_fd().to_ne_bytes(), MapFlags::ANY).unwrap();
    socket
}

#[test]
fn root_a_redirect_that_fails_is_shown_with_its_error_and_whose_socket_it_was() {
    for (number, mode) in MODES.into_iter().enumerate() {
        let Some(lab) = TestLab::up(&format!("fails{number}"), |_| ()) else { return };
        let (server, client) = (lab.socket(Role::Server, PORT), lab.socket(Role::Client, PORT));
        let index = lab.index();
        lab.server(|| {
            let redirect = Redirect::load(&Options::default()).unwrap();
            redirect.add_pair(server.local_addr().unwrap()).unwrap();
            let _socket = unbound(&redirect);
            let _attachment = redirect.attach(index, mode, Existing::Refuse).unwrap();
            let Some(mut capture) = open_traced(options(index, FILTER, xdp(XdpPoints::Arrival))) else {
                return;
            };
            client.send_to(b"nobody takes it", server.local_addr().unwrap()).unwrap();
            let seen = take(&mut capture, 1);
            // The socket is not bound: xsk_rcv_check in net/xdp/xsk.c.
            let error = Some(rustix::io::Errno::NXIO.raw_os_error());
            assert_eq!(seen[0].verdict, Some(Verdict::Redirect { error }), "{mode:?} {seen:?}");
            let process = seen[0].process.as_ref().map(|process| process.0);
            assert_eq!(process, Some(std::process::id()), "{mode:?} {seen:?}");
        });
    }
}

#[test]
fn root_programs_are_followed_as_they_come_and_go() {
    let Some(lab) = TestLab::up("follow", |_| ()) else { return };
    let (server, client) = (lab.socket(Role::Server, PORT), lab.socket(Role::Client, PORT));
    let index = lab.index();
    lab.server(|| {
        let points = Points { kernel: true, ..xdp(XdpPoints::Arrival) };
        let Some(mut capture) = open_traced(options(index, FILTER, points)) else { return };
        // Until a packet is shown so, which takes until the program is looked for.
        let until = |capture: &mut Capture, wanted: (Point, Option<Verdict>)| {
            take_until(capture, |_, seen| {
                client.send_to(b"again", server.local_addr().unwrap()).unwrap();
                seen.iter().any(|packet: &Seen| (packet.point, packet.verdict) == wanted)
            })
        };
        until(&mut capture, (Point::KernelReceive, None));
        for mode in MODES {
            let first = foreign(index, Action::Drop, mode);
            until(&mut capture, (Point::XdpEntry, Some(Verdict::Drop)));
            drop(first);
            let second = foreign(index, Action::Count, mode);
            until(&mut capture, (Point::XdpEntry, Some(Verdict::Pass)));
            drop(second);
            until(&mut capture, (Point::KernelReceive, None));
        }
        let others: Vec<_> = capture.notes().iter().filter(|note| !note.gap).collect();
        assert!(others.is_empty(), "{others:?}");
    });
}

/// Sends numbered datagrams until it is told to stop, and returns how many. The receiver keeps up.
fn numbered(client: &UdpSocket, server: &UdpSocket, stop: &AtomicBool) -> u32 {
    let to = server.local_addr().unwrap();
    server.set_nonblocking(true).unwrap();
    let mut sent = 0u32;
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..8 {
            client.send_to(&sent.to_be_bytes(), to).unwrap();
            sent += 1;
        }
        while server.recv(&mut [0; 64]).is_ok() {}
        std::thread::sleep(Duration::from_micros(500));
    }
    server.set_nonblocking(false).unwrap();
    sent
}

/// How often each number was shown.
fn shown(seen: &[Seen], sent: u32) -> Vec<usize> {
    let mut times = vec![0; sent as usize];
    for packet in seen {
        times[u32::from_be_bytes(packet.payload()[..4].try_into().unwrap()) as usize] += 1;
    }
    times
}

#[test]
#[ignore = "around a swap a packet may be missed, or shown twice on drivers that copy"]
fn root_each_packet_is_shown_once_while_programs_take_turns() {
    const TURNS: usize = 12;
    for (number, mode) in MODES.into_iter().enumerate() {
        let Some(lab) = TestLab::up(&format!("turns{number}"), |_| ()) else { return };
        let (server, client) = (lab.socket(Role::Server, PORT), lab.socket(Role::Client, PORT));
        let index = lab.index();
        greet(&client, &server);
        lab.server(|| {
            let attachment = foreign(index, Action::Count, mode);
            // Also where no program can be captured at: then the kernel's path has all of them.
            let points = Points { kernel: true, ..xdp(XdpPoints::Arrival) };
            let mut capture = Capture::open(options(index, FILTER, points)).unwrap();
            let is_traced = has_fentry(&capture);
            let (stop, mut seen) = (AtomicBool::new(false), Vec::new());
            let sent = std::thread::scope(|scope| {
                let sender = scope.spawn(|| numbered(&client, &server, &stop));
                // Some are loaded long before their turn, so that they are not known by then.
                let loaded = |_| Baseline::load(Action::Count, index, None).unwrap();
                let before: Vec<Baseline> = (0..TURNS / 2).map(loaded).collect();
                for turn in 0..TURNS {
                    for _ in 0..3 {
                        let mut keep = |packet: &Packet<'_>| seen.push(Seen::from(packet));
                        capture.poll(Duration::from_millis(20), &mut keep).unwrap();
                    }
                    match before.get(turn) {
                        Some(program) => program.replace(&attachment).unwrap(),
                        None => {
                            Baseline::load(Action::Count, index, None).unwrap().replace(&attachment).unwrap()
                        }
                    }
                }
                stop.store(true, Ordering::Relaxed);
                sender.join().unwrap()
            });
            // Everything has been received; what is shown is on its way.
            loop {
                let before = seen.len();
                let mut keep = |packet: &Packet<'_>| seen.push(Seen::from(packet));
                capture.poll(Duration::from_millis(500), &mut keep).unwrap();
                if seen.len() == before {
                    break;
                }
            }
            seen.extend(rest(&mut capture));
            let times = shown(&seen, sent);
            let [losses] = capture.losses()[..] else { panic!() };
            // A slow machine's buffers may be full while a program is attached to: that is counted.
            let missing: Vec<_> = (0..sent).filter(|number| times[*number as usize] == 0).collect();
            let told = (losses, capture.missed(), capture.notes());
            assert!(missing.len() as u64 == losses.lost, "{mode:?}: missing {missing:?} of {sent}; {told:?}");
            assert!(times.iter().all(|times| *times <= 1), "{mode:?}: some more than once; {told:?}");
            let at_program = seen.iter().filter(|packet| packet.point == Point::XdpEntry);
            let is_passed = |packet: &Seen| packet.verdict == Some(Verdict::Pass) || losses.lost > 0;
            assert!(at_program.clone().all(is_passed));
            assert_eq!(at_program.count() > 0, is_traced);
            drop(attachment);
        });
    }
}

#[test]
fn root_what_a_program_drops_is_shown_from_its_first_packet_or_a_note_tells() {
    let Some(lab) = TestLab::up("gap", |_| ()) else { return };
    let (server, client) = (lab.socket(Role::Server, PORT), lab.socket(Role::Client, PORT));
    let index = lab.index();
    greet(&client, &server);
    lab.server(|| {
        let attachment = foreign(index, Action::Count, AttachMode::Native);
        let unknown = Baseline::load(Action::Drop, index, None).unwrap();
        let Some(mut capture) = open_traced(options(index, FILTER, xdp(XdpPoints::Arrival))) else { return };
        let to = server.local_addr().unwrap();
        // It is loaded while the capture runs, so that it is captured at before it is on the interface.
        let known = Baseline::load(Action::Drop, index, None).unwrap();
        assert_eq!(rest(&mut capture), []);
        capture.poll(Duration::ZERO, &mut |packet| panic!("{packet:?}")).unwrap();
        known.replace(&attachment).unwrap();
        for number in 0..20u32 {
            client.send_to(&number.to_be_bytes(), to).unwrap();
        }
        let seen = take(&mut capture, 20);
        assert!(seen.iter().all(|packet| packet.verdict == Some(Verdict::Drop)), "{seen:?}");
        assert_eq!((capture.gaps(), capture.notes()), (0, &[][..]));
        // This one is found when it is there.
        unknown.replace(&attachment).unwrap();
        let mut sent = 0u32;
        let seen = take_until(&mut capture, |capture, seen| {
            client.send_to(&sent.to_be_bytes(), to).unwrap();
            sent += 1;
            capture.gaps() == 1 && seen.len() > 20
        });
        let [note] = capture.notes() else { panic!("{:?}", capture.notes()) };
        assert!(
            note.gap && note.interface == Some(index) && note.text.contains(" ms is not shown"),
            "{note}"
        );
        let number = |packet: &Seen| u32::from_be_bytes(packet.payload()[..4].try_into().unwrap());
        let mut numbers: Vec<u32> = seen.iter().map(number).collect();
        if !numbers.contains(&(sent - 1)) {
            let more =
                take_until(&mut capture, |_, more| more.iter().any(|packet| number(packet) == sent - 1));
            numbers.extend(more.iter().map(number));
        }
        numbers.sort_unstable();
        let first = numbers[0];
        assert!(numbers.into_iter().eq(first..sent), "none is missing but the first: {first} of {sent}");
    });
}

#[test]
fn root_packets_of_several_buffers_are_whole() {
    let Some(lab) = TestLab::up("jumbo", |config| config.mtu = 9000) else { return };
    let (server, client) = (lab.socket(Role::Server, PORT), lab.socket(Role::Client, PORT));
    let index = lab.index();
    lab.server(|| {
        let redirect = Redirect::load(&Options::default()).unwrap();
        let _attachment = redirect.attach(index, AttachMode::Native, Existing::Refuse).unwrap();
        let Some(mut capture) = open_traced(options(index, FILTER, xdp(XdpPoints::Both))) else { return };
        let payload: Vec<u8> = (0..8900u32).map(|at| (at % 251) as u8).collect();
        client.send_to(&payload, server.local_addr().unwrap()).unwrap();
        for packet in take(&mut capture, 2) {
            assert_eq!((packet.length, packet.data.len()), (8942, 8942), "{:?}", packet.point);
            assert_eq!(packet.payload(), payload);
        }
    });
}

#[test]
fn root_what_another_process_sends_by_af_xdp_is_shown_with_its_name() {
    let Some(lab) = TestLab::up("gen", |_| ()) else { return };
    let binary = std::env::var_os("EXPRESSWAY_BIN").unwrap_or_else(|| {
        let folder = std::env::current_exe().unwrap();
        folder.ancestors().nth(2).unwrap().join("expressway").into()
    });
    let client = lab.socket(Role::Client, PORT);
    let index = lab.index();
    let to = client.local_addr().unwrap().to_string();
    let mut command = lab.0.command(Role::Server, binary);
    command
        .args(["gen", "udp", "--to", &to, "--rate", "1k", "--count", "20", "--size", "200", "--io", "copy"]);
    lab.server(|| {
        let points = Points { xdp: XdpPoints::None, xsk: true, kernel: true, drops: false };
        let Some(mut capture) = open_traced(options(index, FILTER, points)) else { return };
        let mut child =
            command.stdout(Stdio::null()).spawn().expect("the binary: cargo build --bin expressway");
        let process = child.id();
        let waiter = std::thread::spawn(move || child.wait());
        let seen = take(&mut capture, 20);
        assert!(waiter.join().unwrap().unwrap().success());
        assert_eq!(rest(&mut capture), [], "no packet is shown twice, as one of the kernel's too");
        let mut numbers = Vec::new();
        for packet in &seen {
            assert_eq!(packet.point, Point::XskTransmit { zero_copy: false });
            assert_eq!((packet.length, packet.data.len(), packet.queue), (242, 242, Some(0)));
            let (id, name) = packet.process.as_ref().expect("a process");
            // `ip netns exec` becomes the command.
            assert_eq!(*id, process);
            assert!(name.starts_with("expressway") || name.starts_with("gen"), "{name}");
            numbers.push(packet.payload()[..8].to_vec());
        }
        assert!(numbers.is_sorted());
        let mut buffer = [0; 300];
        for number in numbers {
            assert_eq!(client.recv(&mut buffer).unwrap(), 200);
            assert_eq!(buffer[..8], number);
        }
    });
}
