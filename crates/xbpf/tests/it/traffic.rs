//! Real packets over a veth pair: what is taken, what the kernel gets, while pairs change. Needs root and
//! iproute2.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use expressway_xbpf::{AttachMode, Counter, Counters, Existing, Options, Redirect, Verdict};

use AttachMode::{Generic, Native};

use crate::support::frame::*;
use crate::support::netns::{FAR, Link, NEAR, Shape, bind, index_of};
use crate::support::raw::RawSender;
use crate::support::{self, eventually, load, pair4, pair6};

/// A server in the near namespace: the program and a kernel socket on the same address.
struct Server<'a> {
    link: &'a Link,
    redirect: &'a Redirect,
    kernel: UdpSocket,
    before: Counters,
}

impl<'a> Server<'a> {
    fn new(link: &'a Link, redirect: &'a Redirect, address: SocketAddr) -> Self {
        let kernel = link.in_near(|| bind(address));
        kernel.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        Self { link, redirect, kernel, before: redirect.counters().unwrap() }
    }

    /// Packets counted as `counter` since the start.
    fn count(&self, counter: Counter) -> u64 {
        self.redirect.counters().unwrap().since(&self.before)[counter]
    }

    /// Waits until `packets` have been counted as `counter`.
    fn await_count(&self, counter: Counter, packets: u64) {
        assert!(eventually(|| self.count(counter) >= packets), "{:?}", self.redirect.counters());
        assert_eq!(self.count(counter), packets);
    }

    /// The next datagram that the kernel socket gets.
    fn kernel_receives(&self) -> Vec<u8> {
        let mut buffer = vec![0; 65536];
        let length = self.kernel.recv(&mut buffer).expect("a datagram through the kernel");
        buffer.truncate(length);
        buffer
    }

    /// Whether the kernel socket has nothing waiting.
    fn kernel_is_empty(&self) -> bool {
        self.kernel.set_nonblocking(true).unwrap();
        let empty = self.kernel.recv(&mut [0; 1]).is_err();
        self.kernel.set_nonblocking(false).unwrap();
        empty
    }

    fn address(&self) -> SocketAddr {
        self.kernel.local_addr().unwrap()
    }
}

/// Pass without a pair, taken with one and a socket, passed again without the socket or the pair.
fn pairs_and_sockets_steer(mode: AttachMode, server: &Server<'_>, client: &UdpSocket) {
    let (redirect, to) = (server.redirect, server.address());
    let _attachment =
        server.link.in_near(|| redirect.attach(index_of(NEAR), mode, Existing::Refuse)).unwrap();

    client.send_to(b"no pair", to).unwrap();
    assert_eq!(server.kernel_receives(), b"no pair");
    assert_eq!(server.count(Counter::PassOtherPair), 1);

    redirect.add_pair(to).unwrap();
    client.send_to(b"no socket", to).unwrap();
    assert_eq!(server.kernel_receives(), b"no socket");
    assert_eq!(server.count(Counter::PassNoSocket), 1);

    let socket = support::fill_slot(redirect, 0);
    client.send_to(b"taken", to).unwrap();
    server.await_count(Counter::Taken, 1);
    assert!(server.kernel_is_empty());

    // A socket that closes leaves the map by itself; at the latest when no child of a test next to this
    // one, between fork and exec, holds a duplicate.
    drop(socket);
    let frame = datagram(to, b"probe");
    assert!(eventually(|| redirect.prog_test_run(&frame, 1).unwrap().verdict == Verdict::Pass));
    let passed = server.count(Counter::PassNoSocket);
    client.send_to(b"socket closed", to).unwrap();
    assert_eq!(server.kernel_receives(), b"socket closed");
    assert_eq!(server.count(Counter::PassNoSocket), passed + 1);

    redirect.remove_pair(to).unwrap();
    client.send_to(b"pair removed", to).unwrap();
    assert_eq!(server.kernel_receives(), b"pair removed");
    assert_eq!(server.count(Counter::PassOtherPair), 2);
    assert_eq!(redirect.counters().unwrap().since(&server.before).of_verdict(Verdict::Drop), 0);
}

#[test]
fn pairs_and_sockets_steer_traffic_in_every_mode() {
    let Some(redirect) = load(&Options::default()) else { return };
    let link = Link::new(&Shape::default());
    for mode in [Native, Generic] {
        let client = link.client("192.0.2.2:0");
        pairs_and_sockets_steer(mode, &Server::new(&link, &redirect, pair4()), &client);
        let client = link.client("[2001:db8::2]:0");
        pairs_and_sockets_steer(mode, &Server::new(&link, &redirect, pair6()), &client);
    }
}

#[test]
fn frames_of_9000_bytes_keep_whole_in_native_mode() {
    let Some(redirect) = load(&Options::default()) else { return };
    let link = Link::new(&Shape { mtu: 9000, ..Shape::default() });
    let server = Server::new(&link, &redirect, pair4());
    redirect.add_pair(pair4()).unwrap();
    let _attachment = link.in_near(|| redirect.attach(index_of(NEAR), Native, Existing::Refuse)).unwrap();
    let client = link.client("192.0.2.2:0");
    for size in [1, 1472, 3506, 4096, 8000, 8972] {
        let payload: Vec<u8> = (0..size).map(|byte| byte as u8).collect();
        client.send_to(&payload, pair4()).unwrap();
        assert_eq!(server.kernel_receives(), payload, "{size} bytes");
    }
    assert_eq!(server.count(Counter::PassNoSocket), 6);
    let _socket = support::fill_slot(&redirect, 0);
    client.send_to(&[0; 8972], pair4()).unwrap();
    server.await_count(Counter::Taken, 1);
}

#[test]
fn fragments_reach_the_kernel_and_are_put_together_there() {
    let Some(redirect) = load(&Options::default()) else { return };
    let link = Link::new(&Shape::default());
    for (address, client) in [(pair4(), "192.0.2.2:0"), (pair6(), "[2001:db8::2]:0")] {
        let server = Server::new(&link, &redirect, address);
        redirect.add_pair(address).unwrap();
        let _attachment = link.in_near(|| redirect.attach(index_of(NEAR), Native, Existing::Refuse)).unwrap();
        let _socket = support::fill_slot(&redirect, 0);
        link.client(client).send_to(&[7; 4000], address).unwrap();
        assert_eq!(server.kernel_receives(), [7; 4000]);
        assert_eq!((server.count(Counter::PassFragment), server.count(Counter::Taken)), (3, 0));
    }
}

#[test]
fn frames_as_they_come_off_a_wire_meet_the_verdict_of_the_tables() {
    let Some(redirect) = load(&Options::default()) else { return };
    let link = Link::new(&Shape::default());
    let server = Server::new(&link, &redirect, pair4());
    redirect.add_pair(pair4()).unwrap();
    let _socket = support::fill_slot(&redirect, 0);
    let raw = link.in_far(|| RawSender::new(FAR));
    let packet = ipv4(UDP, "192.0.2.1".parse().unwrap(), &[], &udp(443, b"x"));
    let options = ipv4(UDP, "192.0.2.1".parse().unwrap(), &[1; 4], &udp(443, b"x"));
    let plain = ethernet(&[], IPV4, &packet);
    let cases = [
        (ethernet(&[(C_TAG, 100)], IPV4, &packet), Counter::Taken),
        (ethernet(&[(S_TAG, 200), (C_TAG, 100)], IPV4, &packet), Counter::Taken),
        (ethernet(&[(S_TAG, 200), (C_TAG, 100), (C_TAG, 1)], IPV4, &packet), Counter::PassVlanDepth),
        (ethernet(&[], IPV4, &options), Counter::PassIpv4Options),
        (patched(&plain, ETHERNET + 24, &[0, 200]), Counter::DropUdpLength),
        (plain[..ETHERNET + 20 + 5].to_vec(), Counter::DropUdpHeader),
        (plain[..ETHERNET + 20 + 8].to_vec(), Counter::DropIpLength),
        (plain[..ETHERNET + 20 + 3].to_vec(), Counter::PassTruncated),
    ];
    for mode in [Native, Generic] {
        let _attachment = link.in_near(|| redirect.attach(index_of(NEAR), mode, Existing::Refuse)).unwrap();
        for (frame, counter) in &cases {
            let before = server.count(*counter);
            raw.send(frame);
            server.await_count(*counter, before + 1);
        }
    }
}

#[test]
fn pairs_change_while_traffic_flows_and_no_packet_is_misjudged() {
    const BURSTS: u64 = 200;
    const BURST: u64 = 64; // well below the 256 slots of a veth ring
    let Some(redirect) = load(&Options::default()) else { return };
    let link = Link::new(&Shape::default());
    let server = Server::new(&link, &redirect, pair4());
    let _socket = support::fill_slot(&redirect, 0);
    let _attachment = link.in_near(|| redirect.attach(index_of(NEAR), Native, Existing::Refuse)).unwrap();
    let client = link.client("192.0.2.2:0");
    let done = AtomicBool::new(false);
    let seen = || {
        let counters = redirect.counters().unwrap().since(&server.before);
        counters[Counter::Taken] + counters[Counter::PassOtherPair]
    };

    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                redirect.add_pair(pair4()).unwrap();
                std::thread::yield_now();
                redirect.remove_pair(pair4()).unwrap();
            }
        });
        for burst in 1..=BURSTS {
            for _ in 0..BURST {
                client.send_to(b"x", pair4()).unwrap();
            }
            assert!(eventually(|| seen() >= burst * BURST), "each packet is counted once");
            while !server.kernel_is_empty() {}
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(seen(), BURSTS * BURST);

    // Once the call has returned, it holds for every later packet.
    let mut taken = server.count(Counter::Taken);
    for round in 0..50u64 {
        redirect.add_pair(pair4()).unwrap();
        client.send_to(b"x", pair4()).unwrap();
        taken += 1;
        server.await_count(Counter::Taken, taken);
        redirect.remove_pair(pair4()).unwrap();
        client.send_to(&round.to_be_bytes(), pair4()).unwrap();
        assert_eq!(server.kernel_receives(), round.to_be_bytes());
    }
}
