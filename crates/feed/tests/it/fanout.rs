//! A fan-out on loopback with subscribers on ordinary sockets.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use expressway_feed::fanout::{
    Fanout, Framing, Limits, Listen, Membership, Options, Protocol, Reason, SlowClient, Start, StartPolicy,
    Statistics,
};
use expressway_netio::udp::{UdpConfig, UdpIo};

/// Reached only by what hangs.
const LIMIT: Duration = Duration::from_secs(60);

struct Feed {
    fanout: Fanout,
    sender: UdpSocket,
}

impl Feed {
    fn new(change: impl FnOnce(&mut Options)) -> Self {
        let listen = Listen { protocol: Protocol::Tcp, address: "127.0.0.1:0".parse().unwrap() };
        let mut options = Options::new(vec![listen]);
        options.framing = Framing::Len16;
        options.slow_client = SlowClient::Drop;
        change(&mut options);
        let io = UdpIo::bind(&UdpConfig::new(vec!["127.0.0.1:0".parse().unwrap()])).unwrap();
        let address = io.addresses().next().unwrap();
        let fanout = Fanout::start(options, io, None).unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        sender.connect(address).unwrap();
        Self { fanout, sender }
    }

    fn address(&self) -> SocketAddr {
        self.fanout.listen()[0].address
    }

    /// A subscriber that the feed knows of.
    fn subscribe(&self) -> TcpStream {
        let before = self.fanout.statistics().subscribers.len();
        let stream = self.connect();
        self.wait("the subscriber", |statistics| statistics.subscribers.len() > before);
        stream
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address()).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream
    }

    /// Sends datagrams, never more at once than the receive buffer holds.
    fn send(&self, payloads: impl IntoIterator<Item = Vec<u8>>) {
        let taken = |statistics: &Statistics| statistics.counter("datagrams").unwrap();
        let mut sent = taken(&self.fanout.statistics());
        for payload in payloads {
            self.sender.send(&payload).unwrap();
            sent += 1;
            if sent % 64 == 0 {
                self.wait("datagrams taken", |statistics| taken(statistics) >= sent);
            }
        }
        self.wait("datagrams taken", |statistics| taken(statistics) >= sent);
    }

    fn wait(&self, what: &str, true_of: impl Fn(&Statistics) -> bool) -> Statistics {
        let deadline = Instant::now() + LIMIT;
        loop {
            let statistics = self.fanout.statistics();
            if true_of(&statistics) {
                return statistics;
            }
            assert!(Instant::now() < deadline, "never: {what}: {statistics:#?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// One frame of a len16 stream: a payload, or the number of datagrams missed.
#[derive(Debug, PartialEq, Eq)]
enum Frame {
    Payload(Vec<u8>),
    Gap(u64),
}

fn read_frame(stream: &mut impl Read) -> Frame {
    let mut length = [0; 2];
    stream.read_exact(&mut length).unwrap();
    if length == [0xff, 0xff] {
        let mut missed = [0; 8];
        stream.read_exact(&mut missed).unwrap();
        return Frame::Gap(u64::from_be_bytes(missed));
    }
    let mut payload = vec![0; usize::from(u16::from_be_bytes(length))];
    stream.read_exact(&mut payload).unwrap();
    Frame::Payload(payload)
}

/// A datagram that says its number and whose length and content follow from it.
fn numbered(number: u64) -> Vec<u8> {
    let mut payload = number.to_be_bytes().to_vec();
    payload.resize(8 + (number as usize * 37) % 1300, number as u8);
    payload
}

fn number_of(payload: &[u8]) -> u64 {
    let number = u64::from_be_bytes(payload[..8].try_into().unwrap());
    assert_eq!(payload, numbered(number), "torn or mixed up");
    number
}

/// Reads up to datagram `last`; every gap must be announced, and with the right count. Returns how many were
/// missed.
fn read_to(stream: &mut impl Read, mut next: u64, last: u64) -> u64 {
    let mut missed = 0;
    while next <= last {
        match read_frame(stream) {
            Frame::Gap(count) => {
                assert_ne!(count, 0);
                missed += count;
                next += count;
            }
            Frame::Payload(payload) => {
                assert_eq!(number_of(&payload), next, "order");
                next += 1;
            }
        }
    }
    missed
}

#[test]
fn every_subscriber_gets_every_datagram_from_the_next_on() {
    let feed = Feed::new(|_| {});
    let mut first = feed.subscribe();
    feed.send((0..100).map(numbered));
    let mut second = feed.subscribe();
    feed.send((100..300).map(numbered));
    assert_eq!(read_to(&mut first, 0, 299), 0);
    assert_eq!(read_to(&mut second, 100, 299), 0);
    let statistics = feed.wait("all counted", |s| s.counter("sent_frames") == Some(300 + 200));
    assert_eq!(statistics.counter("datagrams"), Some(300));
    let [one, two] = &statistics.subscribers[..] else { panic!("two subscribers") };
    assert_eq!((one.frames, two.frames, one.gaps, one.lag_bytes, one.lag_frames), (300, 200, 0, 0, 0));
    assert!(one.rtt.is_some_and(|rtt| !rtt.is_zero()) && one.sends <= 300);
}

#[test]
fn framing_none_is_payloads_back_to_back() {
    let feed = Feed::new(|options| options.framing = Framing::None);
    let mut subscriber = feed.subscribe();
    feed.send([b"one".to_vec(), Vec::new(), b"two".to_vec()]);
    let mut bytes = [0; 6];
    subscriber.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"onetwo");
    assert_eq!(feed.fanout.statistics().counter("dropped_empty"), Some(1));
}

#[test]
fn an_empty_datagram_and_the_largest_are_frames() {
    let feed = Feed::new(|options| options.framing = Framing::Len32);
    let mut subscriber = feed.subscribe();
    feed.send([Vec::new(), vec![7; 65_507]]);
    let mut bytes = vec![0; 4 + 4 + 65_507];
    subscriber.read_exact(&mut bytes).unwrap();
    assert_eq!(bytes[..8], [0, 0, 0, 0, 0, 0, 0xff, 0xe3]);
    assert!(bytes[8..].iter().all(|byte| *byte == 7));
}

#[test]
fn several_threads_share_the_subscribers() {
    let feed = Feed::new(|options| options.threads = 3);
    let mut subscribers: Vec<TcpStream> = (0..7).map(|_| feed.subscribe()).collect();
    feed.send((0..500).map(numbered));
    for subscriber in &mut subscribers {
        assert_eq!(read_to(subscriber, 0, 499), 0);
    }
    let threads: std::collections::BTreeSet<usize> =
        feed.fanout.statistics().subscribers.iter().map(|one| one.thread).collect();
    assert_eq!(threads.into_iter().collect::<Vec<_>>(), [0, 1, 2]);
}

fn tight(options: &mut Options) {
    options.ring = 1 << 20;
    options.limits = Limits {
        lag_bytes: 1 << 16,
        lag_age: Duration::from_secs(3600),
        send_buffer: 1 << 13,
        ..Limits::default()
    };
}

#[test]
fn a_subscriber_that_stalls_misses_whole_datagrams_and_is_told_how_many() {
    let feed = Feed::new(tight);
    let (mut stalled, mut other) = (feed.subscribe(), feed.subscribe());
    let reader = std::thread::spawn(move || read_to(&mut other, 0, 29_999));
    for start in (0..30_000).step_by(50) {
        feed.send((start..start + 50).map(numbered));
        feed.wait("the reader's socket took all", |s| s.subscribers[1].lag_bytes == 0);
    }
    assert_eq!(reader.join().unwrap(), 0, "who reads misses nothing");
    // It reads on: a part from before, the rest of a frame, a marker, and then the newest.
    let missed = read_to(&mut stalled, 0, 29_999);
    assert!(missed > 1000, "missed only {missed}");
    feed.send([numbered(30_000)]);
    assert_eq!(read_to(&mut stalled, 30_000, 30_000), 0);
    let statistics = feed.wait("the gap", |s| s.counter("skipped_frames") == Some(missed));
    assert_eq!(statistics.subscribers[0].skipped, missed);
}

#[test]
fn age_alone_makes_slow_too() {
    let feed = Feed::new(|options| {
        tight(options);
        options.limits.lag_bytes = 1 << 18;
        options.limits.lag_age = Duration::from_millis(50);
        options.slow_client = SlowClient::Disconnect;
    });
    let mut stalled = feed.subscribe();
    // So slowly that it is old before it is much.
    let mut next = 0;
    while let Some(one) = feed.fanout.statistics().subscribers.first() {
        if one.lag_bytes != 0 {
            std::thread::sleep(Duration::from_millis(20));
        }
        feed.send((next..next + 20).map(numbered));
        next += 20;
    }
    let statistics = feed.fanout.statistics();
    assert_eq!(statistics.disconnected(Reason::TooOld), 1);
    // In the midst of a frame the end is a reset: nothing of the frame can be taken for the whole.
    let mut rest = Vec::new();
    match stalled.read_to_end(&mut rest) {
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
        Ok(_) => {
            let mut rest = &rest[..];
            while !rest.is_empty() {
                read_frame(&mut rest);
            }
        }
    }
}

#[test]
fn who_takes_nothing_at_all_is_disconnected_in_the_end() {
    let feed = Feed::new(|options| {
        tight(options);
        options.limits.stall = Duration::from_millis(300);
    });
    let _stalled = feed.subscribe();
    let mut next = 0;
    while !feed.fanout.statistics().subscribers.is_empty() {
        feed.send((next..next + 50).map(numbered));
        next += 50;
    }
    let statistics = feed.fanout.statistics();
    // The kernel's TCP_USER_TIMEOUT may be the first to say so.
    assert_eq!(statistics.disconnected(Reason::Stalled) + statistics.disconnected(Reason::TimedOut), 1);
}

#[test]
fn half_closed_subscribers_go_on_reading_and_others_may_talk() {
    let feed = Feed::new(|_| {});
    let (mut half, mut chatty) = (feed.subscribe(), feed.subscribe());
    half.shutdown(std::net::Shutdown::Write).unwrap();
    chatty.set_nonblocking(true).unwrap();
    while chatty.write(&[0x55; 65_536]).is_ok() {}
    chatty.set_nonblocking(false).unwrap();
    feed.send((0..200).map(numbered));
    assert_eq!(read_to(&mut half, 0, 199) + read_to(&mut chatty, 0, 199), 0);
}

#[test]
fn who_closes_while_the_feed_pauses_is_not_counted_for_ever() {
    let feed = Feed::new(|options| options.limits.stall = Duration::from_millis(300));
    let (closed, stays) = (feed.subscribe(), feed.subscribe());
    drop(closed);
    let statistics = feed.wait("its end, without a datagram", |s| s.disconnected(Reason::Closed) == 1);
    assert_eq!(statistics.subscribers.len(), 1);
    assert!(!statistics.subscribers[0].half_closed);
    stays.shutdown(std::net::Shutdown::Write).unwrap();
    feed.wait("its half", |s| s.subscribers.first().is_none_or(|one| one.half_closed));
}

#[test]
fn who_half_closes_and_is_sent_something_stays_beyond_the_stall_limit() {
    let feed = Feed::new(|options| options.limits.stall = Duration::from_millis(500));
    let mut half = feed.subscribe();
    half.shutdown(std::net::Shutdown::Write).unwrap();
    let began = Instant::now();
    let mut next = 0;
    while began.elapsed() < Duration::from_millis(1500) {
        feed.send([numbered(next)]);
        assert_eq!(read_to(&mut half, next, next), 0);
        next += 1;
    }
}

#[test]
fn who_resets_or_leaves_is_counted_by_the_way_it_went() {
    let feed = Feed::new(|_| {});
    let (reset, closed, mut stays) = (feed.subscribe(), feed.subscribe(), feed.subscribe());
    rustix::net::sockopt::set_socket_linger(&reset, Some(Duration::ZERO)).unwrap();
    drop(reset);
    feed.wait("the reset", |s| s.disconnected(Reason::Reset) == 1);
    drop(closed);
    // A closed connection shows when something is sent to it: its kernel resets it then.
    let mut next = 0;
    while feed.fanout.statistics().subscribers.len() > 1 {
        feed.send([numbered(next)]);
        next += 1;
    }
    assert_eq!(read_to(&mut stays, 0, next - 1), 0);
    let gone: u64 = feed.fanout.statistics().disconnects.iter().map(|(_, count)| count).sum();
    assert_eq!(gone, 2);
}

#[test]
fn the_last_datagrams_are_there_for_who_starts_with_them() {
    let feed = Feed::new(|options| options.start = StartPolicy::Fixed(Start::Last(10)));
    feed.send((0..50).map(numbered));
    let mut subscriber = feed.subscribe();
    feed.send([numbered(50)]);
    assert_eq!(read_to(&mut subscriber, 40, 50), 0);
}

#[test]
fn a_subscriber_may_ask_where_to_start() {
    let feed = Feed::new(|options| options.start = StartPolicy::Ask);
    feed.send((0..50).map(numbered));
    let ask = |line: &str| {
        let before = feed.fanout.statistics().subscribers.len();
        let mut stream = feed.connect();
        let (one, other) = line.split_at(line.len() / 2);
        stream.write_all(one.as_bytes()).unwrap();
        stream.write_all(other.as_bytes()).unwrap();
        feed.wait("the subscriber", |s| s.subscribers.len() > before);
        stream
    };
    let (mut last, mut next) = (ask("last:3\n"), ask("next\r\n"));
    feed.send([numbered(50)]);
    assert_eq!(read_to(&mut last, 47, 50) + read_to(&mut next, 50, 50), 0);
    let mut wrong = feed.connect();
    wrong.write_all(b"everything, please\n").unwrap();
    assert!(matches!(wrong.read(&mut [0; 1]), Ok(0) | Err(_)));
    feed.wait("the refusal", |s| s.counter("refused_handshake") == Some(1));
}

#[test]
fn the_newest_snapshot_comes_first_and_then_all_behind_it() {
    let snapshot = |number: u64| [b"SNAP".to_vec(), number.to_be_bytes().to_vec()].concat();
    let feed = Feed::new(|options| {
        tight(options);
        options.snapshot = Some(b"SNAP".to_vec());
        options.start = StartPolicy::Fixed(Start::Snapshot);
    });
    feed.send([numbered(0), snapshot(1), numbered(1), snapshot(2), numbered(2), numbered(3)]);
    let mut subscriber = feed.subscribe();
    assert_eq!(read_frame(&mut subscriber), Frame::Payload(snapshot(2)));
    assert_eq!(read_to(&mut subscriber, 2, 3), 0);
    // When what is behind the snapshot is no longer there, that is a gap like any other.
    feed.send((4..4000).map(numbered));
    let mut late = feed.subscribe();
    feed.send([numbered(4000)]);
    assert_eq!(read_frame(&mut late), Frame::Payload(snapshot(2)));
    assert_eq!(read_to(&mut late, 2, 4000), 4000 - 2);
}

#[test]
fn the_limit_and_the_allow_list_turn_away() {
    let feed = Feed::new(|options| options.limits.subscribers = 2);
    let (one, _two) = (feed.subscribe(), feed.subscribe());
    let mut third = feed.connect();
    assert!(matches!(third.read(&mut [0; 1]), Ok(0) | Err(_)));
    feed.wait("the refusal", |s| s.counter("refused_limit") == Some(1));
    // A place that comes free can be taken.
    rustix::net::sockopt::set_socket_linger(&one, Some(Duration::ZERO)).unwrap();
    drop(one);
    feed.wait("the place", |s| s.subscribers.len() == 1);
    feed.subscribe();

    let strangers = Feed::new(|options| options.allow = vec!["192.0.2.0/24".parse().unwrap()]);
    let mut stranger = strangers.connect();
    assert!(matches!(stranger.read(&mut [0; 1]), Ok(0) | Err(_)));
    strangers.wait("the refusal", |s| s.counter("refused_address") == Some(1));
}

#[test]
fn datagrams_of_other_sources_are_dropped() {
    let feed = Feed::new(|options| options.sources = vec!["127.0.0.2".parse().unwrap()]);
    let mut subscriber = feed.subscribe();
    feed.sender.send(&numbered(7)).unwrap();
    feed.wait("the drop", |s| s.counter("dropped_source") == Some(1));
    let allowed = UdpSocket::bind("127.0.0.2:0").unwrap();
    allowed.connect(feed.sender.peer_addr().unwrap()).unwrap();
    allowed.send(&numbered(0)).unwrap();
    assert_eq!(read_to(&mut subscriber, 0, 0), 0);
}

#[test]
fn at_the_end_subscribers_get_what_was_received_and_an_orderly_close() {
    let feed = Feed::new(|_| {});
    let mut subscriber = feed.subscribe();
    feed.send((0..2000).map(numbered));
    let reader = std::thread::spawn(move || {
        let missed = read_to(&mut subscriber, 0, 1999);
        (missed, subscriber.read(&mut [0; 1]).unwrap())
    });
    let statistics = feed.fanout.stop().unwrap();
    assert_eq!(reader.join().unwrap(), (0, 0));
    assert_eq!(statistics.disconnected(Reason::Stopped), 1);
}

#[test]
fn what_cannot_be_bound_or_joined_says_which_and_why() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let start = |options: Options, membership: Option<Membership>| {
        let io = UdpIo::bind(&UdpConfig::new(vec!["127.0.0.1:0".parse().unwrap()])).unwrap();
        Fanout::start(options, io, membership).map(|_| ()).unwrap_err().to_string()
    };
    let error = start(Options::new(vec![Listen { protocol: Protocol::Tcp, address }]), None);
    assert!(error.starts_with(&format!("tcp {address}: bind: ")), "{error}");
    let listen = Listen { protocol: Protocol::Tcp, address: "127.0.0.1:0".parse().unwrap() };
    let membership = Membership {
        group: "239.1.1.1".parse().unwrap(),
        interface: Some("absent0".into()),
        sources: Vec::new(),
    };
    let error = start(Options::new(vec![listen]), Some(membership));
    assert!(error.starts_with("group 239.1.1.1 on absent0: "), "{error}");
    assert!(start(Options::new(Vec::new()), None).contains("no listen address"));
}
