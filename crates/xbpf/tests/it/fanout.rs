//! A feed forwarded in the kernel, over a veth pair: every datagram once, in order, whole. Needs root and iproute2.

use std::io::{ErrorKind, Read};
use std::net::{IpAddr, SocketAddr, SocketAddrV6, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use expressway_xbpf::{Error, FanoutCounts, FanoutEvent, FanoutOptions, FanoutPrograms, FanoutRecord, Turn};
use rustix::net::{AddressFamily, SocketType, sockopt};

use crate::support::netns::{FAR, Link, NEAR, Shape, index_of};
use crate::support::{self, eventually, privileges_required};

const PORT: u16 = 5000;

/// The destination of a feed, and the private group that stands in for it.
struct Addressing {
    destination: IpAddr,
    group: IpAddr,
}

impl Addressing {
    fn ipv4() -> Self {
        Self { destination: [192, 0, 2, 1].into(), group: [239, 255, 3, 4].into() }
    }

    fn ipv6() -> Self {
        Self { destination: "2001:db8::1".parse().unwrap(), group: "ff12:6578::abcd".parse().unwrap() }
    }
}

/// The programs in the near namespace with a listener and subscribers.
struct Fan {
    link: Link,
    programs: FanoutPrograms,
    feed: UdpSocket,
    subscribers: Vec<Subscriber>,
}

struct Subscriber {
    client: TcpStream,
    connection: TcpStream,
    socket: UdpSocket,
    cookie: u64,
}

fn options(prefix: u32) -> FanoutOptions {
    FanoutOptions {
        prefix,
        max_lag: 1 << 20,
        max_age: Duration::from_secs(3600),
        max_queue: 1024,
        subscribers: 16,
        ports: Vec::new(),
        netns: 0,
        turn: None,
    }
}

/// A UDP socket of `group` that nothing has come to: bound, not joined.
fn bound(group: IpAddr) -> UdpSocket {
    let family = if group.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket(family, SocketType::DGRAM, None).unwrap();
    sockopt::set_socket_reuseaddr(&socket, true).unwrap();
    // The group's scope is the link.
    let address = match group {
        IpAddr::V4(_) => SocketAddr::new(group, PORT),
        IpAddr::V6(group) => SocketAddrV6::new(group, PORT, 0, index_of(NEAR)).into(),
    };
    rustix::net::bind(&socket, &address).unwrap();
    socket.into()
}

fn join(socket: &UdpSocket, addressing: &Addressing) {
    match (addressing.group, addressing.destination) {
        (IpAddr::V4(group), IpAddr::V4(own)) => socket.join_multicast_v4(&group, &own).unwrap(),
        (IpAddr::V6(group), _) => socket.join_multicast_v6(&group, index_of(NEAR)).unwrap(),
        _ => unreachable!(),
    }
}

impl Fan {
    fn new(
        addressing: &Addressing,
        subscribers: usize,
        change: impl FnOnce(&mut FanoutOptions) + Send,
    ) -> Option<Self> {
        Self::failing(addressing, subscribers, (false, false), change)
    }

    /// In a kernel that has no memory to rewrite headers, or to put something in front of datagrams.
    fn failing(
        addressing: &Addressing,
        subscribers: usize,
        (rewrite, room): (bool, bool),
        change: impl FnOnce(&mut FanoutOptions) + Send,
    ) -> Option<Self> {
        let mut options = options(4);
        let link = Link::new(&Shape::default());
        let destination = SocketAddr::new(addressing.destination, PORT);
        let (programs, listener) = link.in_near(|| {
            let listener = TcpListener::bind(SocketAddr::new(addressing.destination, 0)).unwrap();
            options.ports = vec![listener.local_addr().unwrap().port()];
            let turn = Turn { destination, group: addressing.group, sources: Vec::new() };
            options.turn = Some(turn);
            change(&mut options);
            let programs = FanoutPrograms::load_failing(&options, rewrite, room).and_then(|mut programs| {
                programs.turn(index_of(NEAR))?;
                assert!(programs.is_turning(index_of(NEAR)));
                Ok(programs)
            });
            (programs, listener)
        });
        let programs = match programs {
            Err(Error::NotPermitted { .. }) if !privileges_required() => {
                eprintln!("skipped: needs root");
                return None;
            }
            result => result.unwrap(),
        };
        let to = listener.local_addr().unwrap();
        let feed = link.client(if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" });
        feed.connect(destination).unwrap();
        let subscribers = (0..subscribers)
            .map(|_| {
                let client = link.in_far(|| TcpStream::connect(to).unwrap());
                client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
                let (connection, _) = listener.accept().unwrap();
                sockopt::set_tcp_nodelay(&connection, true).unwrap();
                let socket = link.in_near(|| bound(addressing.group));
                let cookie = sockopt::socket_cookie(&socket).unwrap();
                let of_connection = sockopt::socket_cookie(&connection).unwrap();
                programs.forward((socket.as_fd(), cookie), (connection.as_fd(), of_connection)).unwrap();
                link.in_near(|| join(&socket, addressing));
                Subscriber { client, connection, socket, cookie }
            })
            .collect();
        Some(Self { link, programs, feed, subscribers })
    }

    fn counts(&self) -> FanoutCounts {
        self.programs.counts().unwrap()
    }
}

/// Datagram `number`: its length and content follow from it.
fn payload(number: u32) -> Vec<u8> {
    let mut payload = number.to_be_bytes().to_vec();
    payload.resize(4 + (number as usize * 37) % 1200, number as u8);
    payload
}

impl Subscriber {
    fn exactly(&mut self, length: usize) -> Vec<u8> {
        let mut data = vec![0; length];
        self.client.read_exact(&mut data).unwrap();
        data
    }

    fn number(&mut self, length: usize) -> u64 {
        self.exactly(length).iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    /// Reads datagram `next`, or a later one behind the announcement that it missed those between; the number of these.
    fn datagram(&mut self, prefix: usize, next: &mut u32) -> u64 {
        let mut missed = 0;
        loop {
            let length = if prefix == 0 { payload(*next).len() as u64 } else { self.number(prefix) };
            if prefix != 0 && length == (1 << (8 * prefix)) - 1 {
                let gap = self.number(8);
                missed += gap;
                *next += gap as u32;
                continue;
            }
            assert_eq!(self.exactly(length as usize), payload(*next), "datagram {next}");
            *next += 1;
            return missed;
        }
    }

    /// Reads datagrams `from..to` behind prefixes of this length; the number of those announced as missed.
    fn read(&mut self, prefix: usize, from: u32, to: u32) -> u64 {
        let (mut next, mut missed) = (from, 0);
        while next < to {
            missed += self.datagram(prefix, &mut next);
        }
        missed
    }
}

#[test]
fn every_subscriber_gets_every_datagram_over_both_families_in_all_framings() {
    for addressing in [Addressing::ipv4(), Addressing::ipv6()] {
        for prefix in [0, 2, 4] {
            let Some(mut fan) = Fan::new(&addressing, 3, |options| options.prefix = prefix) else { return };
            for number in 0..300 {
                fan.feed.send(&payload(number)).unwrap();
            }
            for subscriber in &mut fan.subscribers {
                assert_eq!(subscriber.read(prefix as usize, 0, 300), 0);
            }
            let counts = fan.counts();
            let expected = FanoutCounts { given: 900, turned: 300, ..FanoutCounts::default() };
            assert_eq!(counts, expected, "{}", addressing.group);
            let record = fan.programs.record(fan.subscribers[0].cookie).unwrap().unwrap();
            assert_eq!((record.datagrams, record.skipped, record.slow), (300, 0, false));
        }
    }
}

/// Datagrams whose checksum the sender computed, instead of leaving it to a device.
#[test]
fn checksums_are_right_behind_the_turn() {
    for addressing in [Addressing::ipv4(), Addressing::ipv6()] {
        let Some(mut fan) = Fan::new(&addressing, 1, |_| {}) else { return };
        fan.link.in_far(|| {
            let off = std::process::Command::new("ethtool").args(["-K", FAR, "tx", "off"]).output().unwrap();
            assert!(off.status.success(), "{off:?}");
        });
        for number in 0..100 {
            fan.feed.send(&payload(number)).unwrap();
        }
        assert_eq!(fan.subscribers[0].read(4, 0, 100), 0);
        let errors = fan.link.in_near(|| std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap());
        let udp: Vec<&str> = errors.lines().filter(|line| line.starts_with("Udp:")).collect();
        let at = udp[0].split_whitespace().position(|name| name == "InCsumErrors").unwrap();
        assert_eq!(udp[1].split_whitespace().nth(at), Some("0"));
    }
}

#[test]
fn a_stalled_subscriber_is_bounded_and_told_what_it_missed() {
    for prefix in [2, 4] {
        stall(prefix);
    }
}

fn stall(prefix: usize) {
    let Some(mut fan) = Fan::new(&Addressing::ipv4(), 2, |options| {
        options.prefix = prefix as u32;
        options.max_lag = 64 << 10;
        options.max_queue = 100;
    }) else {
        return;
    };
    let cookie = fan.subscribers[0].cookie;
    let (mut sent, mut of_stalled, mut given_at) = (0, FanoutRecord::default(), 0);
    let deadline = Instant::now() + Duration::from_secs(60);
    // Until it was given none of the last 200. Before that its socket may take everything once more.
    while sent - given_at < 200 {
        assert!(Instant::now() < deadline, "{:?}", fan.counts());
        for number in sent..sent + 50 {
            fan.feed.send(&payload(number)).unwrap();
        }
        // Who reads keeps up.
        assert_eq!(fan.subscribers[1].read(prefix, sent, sent + 50), 0);
        sent += 50;
        let record = || fan.programs.record(cookie).unwrap().unwrap();
        assert!(eventually(|| record().datagrams + record().skipped == u64::from(sent)), "{:?}", record());
        let record = record();
        assert!(record.queue <= 100, "{record:?}");
        if record.datagrams > of_stalled.datagrams {
            given_at = sent;
        }
        of_stalled = record;
    }
    assert!(of_stalled.slow && fan.counts().skipped_catching_up >= 199, "{of_stalled:?} {:?}", fan.counts());
    let events: Vec<FanoutEvent> = fan.programs.events().collect();
    assert!(events.iter().any(|event| matches!(event, FanoutEvent::Slow { .. })), "{events:?}");
    // It reads what it was given, and where its socket took everything in between, what it had missed by then.
    let [stalled, reader] = &mut fan.subscribers[..] else { unreachable!() };
    let (mut next, mut announced) = (0, 0);
    for _ in 0..of_stalled.datagrams {
        announced += stalled.datagram(prefix, &mut next);
    }
    assert!(announced + 200 <= of_stalled.skipped, "{announced} of {of_stalled:?}");
    // The next datagram that it is given comes behind the number of those that it was not.
    let programs = &fan.programs;
    let caught_up = || {
        fan.feed.send(&payload(sent)).unwrap();
        assert_eq!(reader.client.peek(&mut [0]).unwrap(), 1);
        programs.record(cookie).unwrap().unwrap().gaps == of_stalled.gaps + 1
    };
    while !caught_up() {}
    assert_eq!(stalled.number(prefix), (1 << (8 * prefix)) - 1, "no marker");
    assert!(stalled.number(8) >= of_stalled.skipped - announced);
}

#[test]
fn bytes_and_datagrams_that_wait_each_make_slow() {
    for (max_lag, max_queue) in [(64 << 10, u32::MAX), (1 << 30, 10)] {
        let limit = |options: &mut FanoutOptions| (options.max_lag, options.max_queue) = (max_lag, max_queue);
        let Some(fan) = Fan::new(&Addressing::ipv4(), 1, limit) else { return };
        // By the limit that is small, and by the other.
        let counted = || match fan.counts() {
            counts if max_queue == u32::MAX => (counts.skipped_bytes, counts.skipped_queue),
            counts => (counts.skipped_queue, counts.skipped_bytes),
        };
        let (mut sent, deadline) = (0, Instant::now() + Duration::from_secs(60));
        while counted().0 == 0 {
            assert!(Instant::now() < deadline, "{:?}", fan.counts());
            for number in sent..sent + 20 {
                fan.feed.send(&payload(number)).unwrap();
            }
            sent += 20;
        }
        assert_eq!(counted().1, 0, "{:?}", fan.counts());
    }
}

#[test]
fn age_alone_makes_slow_too() {
    let Some(fan) = Fan::new(&Addressing::ipv4(), 1, |options| options.max_age = Duration::from_millis(50))
    else {
        return;
    };
    let mut sent = 0;
    while fan.counts().skipped_age == 0 {
        assert_eq!(fan.counts().skipped_bytes + fan.counts().skipped_queue, 0);
        for number in sent..sent + 20 {
            fan.feed.send(&payload(number)).unwrap();
        }
        sent += 20;
        std::thread::sleep(Duration::from_millis(20));
    }
    let events: Vec<FanoutEvent> = fan.programs.events().collect();
    assert!(matches!(events[..], [FanoutEvent::Slow { by_age: true, .. }]), "{events:?}");
}

#[test]
fn who_reset_is_given_nothing() {
    let Some(mut fan) = Fan::new(&Addressing::ipv4(), 2, |_| {}) else { return };
    let gone = fan.subscribers.remove(0);
    sockopt::set_socket_linger(&gone.client, Some(Duration::ZERO)).unwrap();
    drop(gone.client);
    let reset = || {
        let state = gone.connection.peek(&mut [0]);
        state.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset)
    };
    gone.connection.set_nonblocking(true).unwrap();
    assert!(eventually(reset));
    for number in 0..20 {
        fan.feed.send(&payload(number)).unwrap();
    }
    assert_eq!(fan.subscribers[0].read(4, 0, 20), 0);
    let counts = fan.counts();
    assert_eq!((counts.skipped_state, counts.given), (20, 20));
    assert_eq!(fan.programs.record(gone.cookie).unwrap().unwrap().skipped, 20);
    fan.programs.end(gone.cookie);
    fan.feed.send(&payload(20)).unwrap();
    assert_eq!(fan.subscribers[0].read(4, 20, 21), 0);
    assert_eq!(fan.counts().skipped_state, 20);
    drop(gone.socket);
}

#[test]
fn only_allowed_sources_and_nobody_straight_to_the_private_group() {
    let addressing = Addressing::ipv4();
    let sources = vec!["192.0.2.2".parse().unwrap()];
    let change = |options: &mut FanoutOptions| options.turn.as_mut().unwrap().sources = sources;
    let Some(mut fan) = Fan::new(&addressing, 1, change) else { return };
    fan.link.ip_far(&format!("address add 192.0.2.3/24 dev {FAR}"));
    let other = fan.link.client("192.0.2.3:0");
    let destination = SocketAddr::new(addressing.destination, PORT);
    other.send_to(b"foreign", destination).unwrap();
    fan.link.ip_far(&format!("route add {}/32 dev {FAR}", addressing.group));
    let straight = fan.link.client("192.0.2.2:0");
    straight.send_to(b"private", SocketAddr::new(addressing.group, PORT)).unwrap();
    fan.feed.send(&payload(0)).unwrap();
    assert_eq!(fan.subscribers[0].read(4, 0, 1), 0);
    let counts = fan.counts();
    assert_eq!((counts.dropped_source, counts.dropped_private, counts.turned), (1, 1, 1), "{counts:?}");
}

#[test]
fn without_memory_datagrams_are_dropped_or_skipped_and_counted() {
    for way in [Addressing::ipv4(), Addressing::ipv6()] {
        let Some(fan) = Fan::failing(&way, 1, (true, false), |_| {}) else { return };
        for number in 0..5 {
            fan.feed.send(&payload(number)).unwrap();
        }
        assert!(eventually(|| fan.counts().dropped_rewrite == 5), "{:?}", fan.counts());
        let expected = FanoutCounts { dropped_rewrite: 5, ..FanoutCounts::default() };
        assert_eq!(fan.counts(), expected, "{}", way.group);
        let Some(fan) = Fan::failing(&way, 1, (false, true), |_| {}) else { return };
        for number in 0..5 {
            fan.feed.send(&payload(number)).unwrap();
        }
        assert!(eventually(|| fan.counts().skipped_memory == 5), "{:?}", fan.counts());
        let record = fan.programs.record(fan.subscribers[0].cookie).unwrap().unwrap();
        assert_eq!((fan.counts().given, record.datagrams, record.skipped), (0, 0, 5));
    }
}

/// As one that was under way when its subscriber ended.
#[test]
fn a_datagram_for_a_socket_that_is_nobodys_any_more_is_dropped() {
    let way = Addressing::ipv4();
    let Some(mut fan) = Fan::new(&way, 1, |_| {}) else { return };
    let socket = fan.link.in_near(|| bound(way.group));
    let connection = &fan.subscribers[0].connection;
    let known = (connection.as_fd(), sockopt::socket_cookie(connection).unwrap());
    // Its own cookie has no record.
    fan.programs.forward((socket.as_fd(), u64::MAX), known).unwrap();
    fan.link.in_near(|| join(&socket, &way));
    for number in 0..5 {
        fan.feed.send(&payload(number)).unwrap();
    }
    assert_eq!(fan.subscribers[0].read(4, 0, 5), 0);
    assert!(eventually(|| fan.counts().dropped_unknown == 5), "{:?}", fan.counts());
    assert_eq!((fan.counts().given, fan.counts().skipped_memory), (5, 0));
}

#[test]
fn nothing_stays_on_the_interface() {
    let Some(fan) = Fan::new(&Addressing::ipv4(), 1, |_| {}) else { return };
    let near = fan.link.near().to_owned();
    let Fan { link, programs, feed, subscribers, .. } = fan;
    drop(programs);
    drop(subscribers);
    // Now a datagram is an ordinary one, for an ordinary socket.
    let plain = support::netns::inside(&near, || UdpSocket::bind("192.0.2.1:5000").unwrap());
    plain.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut buffer = [0; 2048];
    feed.send(&payload(1)).unwrap();
    let length = plain.recv(&mut buffer).unwrap();
    assert_eq!(&buffer[..length], &payload(1)[..]);
    drop(link);
}
