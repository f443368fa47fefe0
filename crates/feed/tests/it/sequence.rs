//! Sequenced feeds on loopback: two lines, and a re-request server that loses requests and answers in parts.

use std::net::{SocketAddr, UdpSocket};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use expressway_feed::receive::{Options, Receiver};
use expressway_feed::sequence::mold::{Builder, Request, Session};
use expressway_feed::sequence::{
    Arbiter, ArbiterConfig, Event, Framing, Line, RerequestClient, RerequestConfig, Sequenced, Sequencer,
};
use expressway_netio::udp::{UdpConfig, UdpIo};

/// Reached only by what hangs.
const LIMIT: Duration = Duration::from_secs(60);
const COUNT: u64 = 400;

fn open(lines: usize) -> (UdpIo, Vec<SocketAddr>) {
    let io = UdpIo::bind(&UdpConfig::new(vec!["127.0.0.1:0".parse().unwrap(); lines])).unwrap();
    let addresses = io.addresses().collect();
    (io, addresses)
}

fn session() -> Session {
    Session::new("LOOPBACK").unwrap()
}

fn packet(first: u64, count: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut builder = Builder::new(&mut bytes, session(), first);
    (first..first + count).for_each(|number| assert!(builder.push(&number.to_be_bytes())));
    bytes
}

/// What comes of a feed, as text, up to its last message.
fn describe(event: Event<'_>) -> String {
    match event {
        Event::Message(message) => {
            assert_eq!(message.data, message.sequence.to_be_bytes());
            format!("{}{}", message.sequence, if message.late { " late" } else { "" })
        }
        Event::Gap { first, count } => format!("gap {first}+{count}"),
        other => format!("{other:?}"),
    }
}

fn config(lines: u8, hold: Duration) -> ArbiterConfig {
    ArbiterConfig { lines, hold, start: Some(1), ..ArbiterConfig::new(Framing::MoldUdp64) }
}

/// Turns a receiver until it is `done`.
fn run<F: FnMut(Event<'_>)>(receiver: &mut Receiver<UdpIo, Sequenced<F>>, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < LIMIT, "never; {:?}", receiver.handler().sequencer().arbiter().stats());
        receiver.turn().unwrap();
    }
}

#[test]
fn two_lines_that_lose_different_packets_are_one_whole_feed() {
    let (io, lines) = open(2);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (told, tells) = channel();
    let sequencer = Sequencer::new(Arbiter::new(config(2, LIMIT)).unwrap(), lines.clone());
    let handler = Sequenced::new(sequencer, move |event: Event<'_>| told.send(describe(event)).unwrap());
    let mut receiver = Receiver::new(io, Options::default(), handler).unwrap();
    for number in (1..=COUNT).step_by(2) {
        for (line, to) in lines.iter().enumerate() {
            // Each line loses a part of its own.
            if number as usize % 7 != 2 * line + 1 {
                socket.send_to(&packet(number, 2), to).unwrap();
            }
        }
        receiver.turn().unwrap();
    }
    let mut seen = Vec::new();
    run(&mut receiver, || {
        seen.extend(tells.try_iter());
        seen.last().is_some_and(|last| *last == COUNT.to_string())
    });
    let whole: Vec<String> = (1..=COUNT).map(|number| number.to_string()).collect();
    assert_eq!(seen[1..], whole);
    let arbiter = receiver.handler().sequencer().arbiter();
    let [a, b] = [0, 1].map(|line| arbiter.line_stats(Line::Feed(line)));
    assert!(a.first > 0 && b.first > 0 && a.skipped > 0 && b.skipped > 0);
    assert_eq!((a.first + b.first, arbiter.stats().gaps, arbiter.stats().lost), (COUNT, 0, 0));
}

/// Loses every third request, and answers the others by ten messages at most.
fn server(socket: UdpSocket) -> JoinHandle<u64> {
    std::thread::spawn(move || {
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        let mut buffer = [0; 64];
        for served in 0.. {
            let (length, from) = socket.recv_from(&mut buffer).unwrap();
            if buffer[..length] == *b"end" {
                return served;
            }
            let request = Request::parse(&buffer[..length]).unwrap();
            assert_eq!(request.session, session());
            if served % 3 != 0 {
                let count = u64::from(request.count).min(10);
                socket.send_to(&packet(request.sequence, count), from).unwrap();
            }
        }
        unreachable!()
    })
}

#[test]
fn what_is_lost_on_all_lines_comes_by_request() {
    let (io, lines) = open(1);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let rerequests = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = rerequests.local_addr().unwrap();
    let server = server(rerequests);
    let (told, tells) = channel();
    let mut sequencer = Sequencer::new(Arbiter::new(config(1, LIMIT)).unwrap(), lines.clone());
    let retries = RerequestConfig { retries: 20, ..RerequestConfig::default() };
    let client = RerequestClient::connect(address, retries).unwrap();
    assert_eq!(client.server(), address);
    sequencer.ask(client);
    let handler = Sequenced::new(sequencer, move |event: Event<'_>| told.send(describe(event)).unwrap());
    let mut receiver = Receiver::new(io, Options::default(), handler).unwrap();
    let replies = receiver.handler().sequencer().client().unwrap().listen(receiver.poster()).unwrap();
    for number in 1..=COUNT {
        if !(50..150).contains(&number) && number % 11 != 3 {
            socket.send_to(&packet(number, 1), lines[0]).unwrap();
        }
        receiver.turn().unwrap();
    }
    let mut seen = Vec::new();
    run(&mut receiver, || {
        seen.extend(tells.try_iter());
        seen.last().is_some_and(|last| *last == COUNT.to_string())
    });
    let whole: Vec<String> = (1..=COUNT).map(|number| number.to_string()).collect();
    assert_eq!(seen[1..], whole);
    let sequencer = receiver.handler().sequencer();
    let stats = sequencer.client().unwrap().stats();
    assert!(stats.timeouts > 0 && stats.replies > 10, "{stats:?}");
    assert_eq!((stats.abandoned, sequencer.arbiter().stats().gaps, replies.dropped()), (0, 0, 0));
    let by_reply = sequencer.arbiter().line_stats(Line::Reply).first;
    assert_eq!(by_reply, 100 + (1..=COUNT).filter(|n| !(50..150).contains(n) && n % 11 == 3).count() as u64);
    socket.send_to(b"end", address).unwrap();
    assert_eq!(server.join().unwrap(), stats.requests);
}

#[test]
fn a_server_that_is_not_there_is_given_up_and_the_gap_announced() {
    let (io, lines) = open(1);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let nobody = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (told, tells) = channel();
    // The hold time is longer than all retries.
    let hold = Duration::from_millis(300);
    let mut sequencer = Sequencer::new(Arbiter::new(config(1, hold)).unwrap(), lines.clone());
    sequencer.ask(RerequestClient::connect(nobody, RerequestConfig::default()).unwrap());
    let handler = Sequenced::new(sequencer, move |event: Event<'_>| told.send(describe(event)).unwrap());
    let mut receiver = Receiver::new(io, Options::default(), handler).unwrap();
    let _replies = receiver.handler().sequencer().client().unwrap().listen(receiver.poster()).unwrap();
    socket.send_to(&packet(1, 1), lines[0]).unwrap();
    socket.send_to(&packet(4, 1), lines[0]).unwrap();
    let mut seen = Vec::new();
    run(&mut receiver, || {
        seen.extend(tells.try_iter());
        seen.last().is_some_and(|last| last == "4")
    });
    assert_eq!(seen[1..], ["1", "gap 2+2", "4"]);
    let stats = receiver.handler().sequencer().client().unwrap().stats();
    // Four, unless the machine was so slow that the hold time came first.
    assert!((1..=4).contains(&stats.requests) && stats.replies == 0, "{stats:?}");
}

#[test]
fn datagrams_to_no_lines_address_are_counted_and_ignored() {
    let (io, lines) = open(2);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let sequencer = Sequencer::new(Arbiter::new(config(1, LIMIT)).unwrap(), vec![lines[0]]);
    let mut receiver =
        Receiver::new(io, Options::default(), Sequenced::new(sequencer, |_: Event<'_>| ())).unwrap();
    socket.send_to(&packet(1, 1), lines[1]).unwrap();
    let start = Instant::now();
    while receiver.handler().sequencer().dropped_address() == 0 {
        assert!(start.elapsed() < LIMIT);
        receiver.turn().unwrap();
    }
    assert_eq!(receiver.handler().sequencer().arbiter().expected(), None);
}
