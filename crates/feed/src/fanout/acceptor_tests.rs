//! Tests of the acceptor on loopback, driven by hand.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpStream};

use expressway_netio::mailbox::mailbox;
use rustix::net::{AddressFamily, SocketType};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::*;
use crate::fanout::options::StartPolicy;
use crate::fanout::service::bind;
use crate::fanout::{Start, Statistics};

/// Reached only by what hangs.
const LIMIT: Duration = Duration::from_secs(60);

struct Bed {
    acceptor: Acceptor,
    addresses: Vec<SocketAddr>,
    ledger: Arc<Ledger>,
    subscribers: Inbox<Message>,
    _stop: Mailbox<()>,
}

impl Bed {
    /// A TCP listener and a WebSocket listener.
    fn new(change: impl FnOnce(&mut Limits)) -> Self {
        let mut limits = Limits { subscribers: 1 << 16, ..Limits::default() };
        change(&mut limits);
        let listeners: Vec<Listener> = [Protocol::Tcp, Protocol::WebSocket]
            .map(|protocol| bind(Listen { protocol, address: "0.0.0.0:0".parse().unwrap() }).unwrap())
            .into();
        let addresses = listeners.iter().map(|listener| listener.listen.address).collect();
        let ledger = Arc::new(Ledger::of_kernel(&limits));
        let (shard, subscribers) = mailbox(1024).unwrap();
        let rules = Rules {
            start: StartPolicy::Fixed(Start::Next),
            origins: Vec::new(),
            tls: None,
            request: limits.request,
        };
        let config = AcceptorConfig {
            listeners,
            rules,
            allow: Vec::new(),
            limits,
            ledger: ledger.clone(),
            shards: vec![shard],
        };
        let (stop, inbox) = mailbox(1).unwrap();
        Self { acceptor: Acceptor::new(config, inbox).unwrap(), addresses, ledger, subscribers, _stop: stop }
    }

    /// A connection to the listener of that number from 127.0.0.`from`.
    fn connect(&mut self, listener: usize, from: u8) -> TcpStream {
        let socket = net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        net::bind(&socket, &SocketAddr::from((Ipv4Addr::new(127, 0, 0, from), 0))).unwrap();
        let to = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), self.addresses[listener].port());
        net::connect(&socket, &to).unwrap();
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let accepted = self.count("accepted");
        self.turn_until("the connection is accepted", |bed| bed.count("accepted") > accepted);
        stream
    }

    fn turn_until(&mut self, what: &str, mut reached: impl FnMut(&Self) -> bool) {
        let deadline = Instant::now() + LIMIT;
        while !reached(self) {
            assert!(Instant::now() < deadline, "never: {what}");
            self.acceptor.turn().unwrap();
        }
    }

    fn statistics(&self) -> Statistics {
        self.ledger.statistics()
    }

    fn count(&self, counter: &str) -> u64 {
        self.statistics().counter(counter).unwrap()
    }
}

fn is_closed(stream: &mut TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let closed =
        !matches!(stream.read(&mut [0]), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock);
    stream.set_nonblocking(false).unwrap();
    closed
}

#[test]
fn a_wake_up_costs_what_became_ready_however_many_wait() {
    let hard = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: hard, maximum: hard }).unwrap();
    // Both ends are here, and other tests run beside.
    let waiting = hard.map_or(3000, |hard| (hard as usize).saturating_sub(500) / 2).min(3000);
    assert!(waiting >= 200, "so few descriptors say nothing: raise the hard limit of open files");
    let mut bed = Bed::new(|limits| (limits.handshakes, limits.handshakes_per_address) = (1 << 16, 1 << 16));
    let mut streams: Vec<TcpStream> = (0..waiting).map(|_| bed.connect(1, 1)).collect();
    assert_eq!(bed.acceptor.pending.len(), waiting);
    // Sockets that have just been added say once that they have room.
    let mut before = u64::MAX;
    while std::mem::replace(&mut before, bed.acceptor.pending.looked_at) != bed.acceptor.pending.looked_at {
        // A turn that does not wait.
        bed.acceptor.rest_until = Some(Instant::now());
        bed.acceptor.turn().unwrap();
    }
    for ready in [1, 5] {
        let before = bed.acceptor.pending.looked_at;
        for stream in &mut streams[..ready] {
            stream.write_all(b"G").unwrap();
        }
        bed.acceptor.turn().unwrap();
        let looked_at = bed.acceptor.pending.looked_at - before;
        assert!(
            (1..=4 * ready as u64).contains(&looked_at),
            "{looked_at} looked at for {ready} that were ready"
        );
    }
    // Those whose time is over are found without the others, too.
    let before = bed.acceptor.pending.looked_at;
    let (first, _) = bed.acceptor.pending.first(None).unwrap();
    bed.acceptor.pending.set_deadline(first, Instant::now());
    bed.turn_until("the deadline has passed", |bed| bed.count("refused_handshake_timeout") == 1);
    assert!(bed.acceptor.pending.looked_at - before <= 16);
    assert_eq!(bed.statistics().handshakes, waiting - 1);
}

#[test]
fn beyond_the_limit_newcomers_are_refused_until_the_oldest_has_had_its_time() {
    let mut bed = Bed::new(|limits| limits.handshakes = 2);
    let (mut oldest, mut second) = (bed.connect(1, 1), bed.connect(1, 2));
    let mut refused = bed.connect(1, 3);
    assert!(is_closed(&mut refused) && !is_closed(&mut oldest) && !is_closed(&mut second));
    assert_eq!((bed.count("refused_busy"), bed.count("refused_displaced")), (1, 0));
    // Listeners without a handshake always accept.
    bed.connect(0, 1);
    assert_eq!(bed.subscribers.drain(10, drop), 1);
    bed.acceptor.patience = Duration::ZERO;
    let mut newest = bed.connect(1, 3);
    assert!(is_closed(&mut oldest) && !is_closed(&mut second) && !is_closed(&mut newest));
    assert_eq!((bed.count("refused_busy"), bed.count("refused_displaced")), (1, 1));
    assert_eq!(bed.statistics().handshakes, 2);
}

#[test]
fn an_address_takes_its_own_share_only() {
    let mut bed = Bed::new(|limits| limits.handshakes_per_address = 2);
    let mut other = bed.connect(1, 2);
    let (mut first, mut second) = (bed.connect(1, 1), bed.connect(1, 1));
    let mut third = bed.connect(1, 1);
    assert!(is_closed(&mut third) && !is_closed(&mut first) && !is_closed(&mut other));
    bed.acceptor.patience = Duration::ZERO;
    let mut fourth = bed.connect(1, 1);
    // Not the oldest of all.
    assert!(is_closed(&mut first) && !is_closed(&mut second) && !is_closed(&mut fourth));
    assert!(!is_closed(&mut other));
    assert_eq!((bed.count("refused_busy"), bed.count("refused_displaced")), (1, 1));
}

#[test]
fn silent_handshakes_do_not_keep_the_places_of_subscribers() {
    let mut bed = Bed::new(|limits| limits.subscribers = 2);
    let (mut oldest, mut second) = (bed.connect(1, 1), bed.connect(1, 1));
    let mut refused = bed.connect(0, 2);
    assert!(is_closed(&mut refused) && !is_closed(&mut oldest));
    bed.acceptor.patience = Duration::ZERO;
    let _subscribers = [bed.connect(0, 2), bed.connect(0, 2)];
    assert!(is_closed(&mut oldest) && is_closed(&mut second));
    // Subscribers do.
    let mut refused = bed.connect(0, 2);
    assert!(is_closed(&mut refused));
    assert_eq!((bed.count("refused_limit"), bed.count("refused_displaced")), (2, 2));
    assert_eq!(bed.subscribers.drain(10, drop), 2);
}

#[test]
fn an_address_has_no_more_subscribers_than_it_may() {
    let mut bed = Bed::new(|limits| limits.subscribers_per_address = Some(2));
    let _two = [bed.connect(0, 1), bed.connect(0, 1)];
    let mut refused = bed.connect(0, 1);
    assert!(is_closed(&mut refused));
    bed.connect(0, 2);
    assert_eq!(bed.subscribers.drain(10, drop), 3);
    assert_eq!(bed.count("refused_limit_address"), 1);
}

#[test]
fn a_deadline_is_of_the_whole_handshake_whatever_comes_meanwhile() {
    let mut bed = Bed::new(|limits| {
        (limits.handshake, limits.request) = (Duration::from_millis(300), 1 << 20);
    });
    let mut slow = bed.connect(1, 1);
    let mut request = b"GET / HTTP/1.1\r\nCookie: ".iter().chain(std::iter::repeat(&b'a'));
    slow.set_nodelay(true).unwrap();
    bed.turn_until("the deadline has passed", |bed| {
        let _ = slow.write_all(&[*request.next().unwrap()]);
        // At most as many bytes as turns, each of which takes some microseconds: far from the longest request.
        bed.count("refused_handshake_timeout") == 1
    });
    assert_eq!(bed.count("refused_size"), 0);
}

#[test]
fn a_request_of_too_many_bytes_is_refused() {
    let mut bed = Bed::new(|limits| limits.request = 4 << 10);
    let mut talker = bed.connect(1, 1);
    talker.write_all(b"GET / HTTP/1.1\r\nCookie: ").unwrap();
    talker.write_all(&[b'a'; 5 << 10]).unwrap();
    bed.turn_until("the refusal", |bed| bed.count("refused_size") == 1);
    assert_eq!(bed.statistics().handshakes, 0);
}

#[test]
fn who_goes_before_it_has_subscribed_is_counted() {
    let mut bed = Bed::new(|_| {});
    let reset = bed.connect(1, 1);
    sockopt::set_socket_linger(&reset, Some(Duration::ZERO)).unwrap();
    drop((reset, bed.connect(1, 1)));
    bed.turn_until("both are counted", |bed| bed.count("abandoned") == 2);
    assert_eq!((bed.acceptor.pending.len(), bed.acceptor.pending.next_deadline()), (0, None));
    assert_eq!(bed.statistics().handshakes, 0);
}
