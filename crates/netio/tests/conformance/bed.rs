//! What a backend stands in while it is checked, and the moves that all checks share.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use expressway_netio::{Ecn, Flow, PacketIo};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// After this long without what must come, a check fails: 20 s, or as many as EXPRESSWAY_TEST_LIMIT says, for
/// machines that are slow. Nothing is asserted about time below it.
pub fn patience() -> Duration {
    let limit = std::env::var("EXPRESSWAY_TEST_LIMIT").ok().and_then(|value| value.parse().ok());
    Duration::from_secs(limit.unwrap_or(20))
}

/// What both sides send until it has come. It may come once more later, and counts as nothing then.
const GREETING: &[u8] = b"greeting";

/// The port that the backend listens on.
pub const PORT: u16 = 4433;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

pub const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// A datagram as one side saw it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seen {
    pub payload: Vec<u8>,
    pub remote: SocketAddr,
    pub local: SocketAddr,
    /// The ECN bits, as in the IP header.
    pub ecn: u8,
}

/// A backend under test with a peer that is not one of ours.
pub trait Bed {
    /// The backend.
    fn io(&mut self) -> &mut dyn PacketIo;

    /// The backend's address `number` (0 or 1) of a family.
    fn address(&self, family: Family, number: usize) -> IpAddr;

    /// The peer's address of a family.
    fn peer_address(&self, family: Family) -> IpAddr;

    /// The peer sends from its own port `port`.
    fn peer_send(&mut self, port: u16, to: SocketAddr, ecn: Ecn, payload: &[u8]);

    /// The peer takes one datagram that has come to its port `port`, if one has.
    fn peer_receive(&mut self, family: Family, port: u16) -> Option<Seen>;

    /// Whether the peer can send a datagram without payload.
    fn peer_sends_empty(&self) -> bool {
        true
    }

    /// Whether datagrams are received and sent by AF_XDP when nothing prevents it.
    fn uses_xsk(&self) -> (bool, bool) {
        (false, false)
    }

    /// Whether datagrams with a wrong UDP checksum are dropped.
    fn verifies_checksums(&self) -> bool {
        true
    }

    /// Whether the peer receives whatever the backend sends, however fast. A NIC loses what its ring has no room for.
    fn loses_nothing(&self) -> bool {
        true
    }

    /// MTU of the path.
    fn mtu(&self) -> usize;

    /// Puts a raw frame on the link towards the backend; false where there are no frames.
    fn inject(&mut self, _frame: &[u8]) -> bool {
        false
    }

    /// Takes the link down and up again; false where there is none. `act` runs while it is down.
    fn bounce(&mut self, _act: &mut dyn FnMut(&mut dyn PacketIo)) -> bool {
        false
    }

    /// Forgets the peer's link-layer addresses; false where there are none.
    fn forget_neighbours(&mut self) -> bool {
        false
    }
}

impl dyn Bed + '_ {
    pub fn flow(&self, family: Family, port: u16) -> Flow {
        Flow::new(self.local(family), SocketAddr::new(self.peer_address(family), port))
    }

    pub fn local(&self, family: Family) -> SocketAddr {
        SocketAddr::new(self.address(family, 0), PORT)
    }

    /// Opens the peer's port and makes both sides know each other's link-layer addresses.
    pub fn greet(&mut self, family: Family, port: u16) {
        let mut pause = Pause::new("the first datagram passes both ways");
        loop {
            let local = self.local(family);
            self.peer_send(port, local, Ecn::NotEct, GREETING);
            let seen = self.received();
            if !seen.is_empty() {
                break;
            }
            pause.wait();
        }
        loop {
            let flow = self.flow(family, port);
            let before = self.io().stats().tx_xsk_packets;
            self.send(&flow, &[GREETING.to_vec()]);
            // Until the neighbour is known, which takes a while after the link came up, the kernel sends.
            let is_on_its_way = !self.uses_xsk().1 || self.io().stats().tx_xsk_packets > before;
            if self.peer_receive(family, port).is_some() && is_on_its_way {
                break;
            }
            // A backend hears of links and neighbours while it receives.
            self.received();
            let stats = self.io().stats();
            pause.wait_noting(&format!("{stats:?}"));
        }
        // What was greeted more than once.
        std::thread::sleep(Duration::from_millis(20));
        self.received();
        while self.peer_receive(family, port).is_some() {}
    }

    /// What the backend has received until now.
    pub fn received(&mut self) -> Vec<Seen> {
        let mut seen = Vec::new();
        let io = self.io();
        let receive = |io: &mut dyn PacketIo, seen: &mut Vec<Seen>| {
            io.receive(Instant::now(), &mut |datagram| {
                seen.push(Seen {
                    payload: datagram.payload.to_vec(),
                    remote: datagram.remote,
                    local: datagram.local,
                    ecn: datagram.ecn as u8,
                });
            })
            .expect("receiving does not fail")
        };
        loop {
            let before = seen.len();
            let count = receive(io, &mut seen);
            assert_eq!(count, seen.len() - before, "receive says how many it handed over");
            if count == 0 {
                break;
            }
        }
        io.flush(Instant::now()).expect("flushing does not fail");
        seen
    }

    /// Waits until the backend has received `count` datagrams.
    pub fn receive_exactly(&mut self, count: usize) -> Vec<Seen> {
        let mut seen = Vec::new();
        let mut pause = Pause::new("the backend receives everything");
        loop {
            seen.extend(self.received().into_iter().filter(|datagram| datagram.payload != GREETING));
            if seen.len() >= count {
                return seen;
            }
            pause.wait_for(&self.descriptors(), &format!("{} of {count}", seen.len()));
        }
    }

    /// Waits until the peer has received `count` datagrams on one port.
    pub fn peer_receive_exactly(&mut self, family: Family, port: u16, count: usize) -> Vec<Seen> {
        let mut seen = Vec::new();
        let mut pause = Pause::new("the peer receives everything");
        while seen.len() < count {
            match self.peer_receive(family, port) {
                // Its peer was slow.
                Some(datagram) if datagram.payload == GREETING => {}
                Some(datagram) => seen.push(datagram),
                None => {
                    self.io().flush(Instant::now()).expect("flushing does not fail");
                    let stats = self.io().stats();
                    pause.wait_noting(&format!("{} of {count}, {stats:?}", seen.len()));
                }
            }
        }
        seen
    }

    /// Transmits `payloads` in one flow with room for the largest, and flushes; goes on after `blocked`.
    /// Returns how often it was blocked.
    pub fn send(&mut self, flow: &Flow, payloads: &[Vec<u8>]) -> usize {
        let segment = payloads.iter().map(Vec::len).max().unwrap_or(1);
        let (mut next, mut blocked) = (0, 0);
        let mut pause = Pause::new("transmit buffers come free");
        while next < payloads.len() {
            let accepted = offer(self.io(), flow, segment, &payloads[next..]);
            next += accepted.0;
            self.io().flush(Instant::now()).expect("flushing does not fail");
            if accepted.1 {
                blocked += 1;
                if accepted.0 == 0 {
                    pause.wait();
                }
            } else {
                assert_eq!(next, payloads.len(), "not blocked, thus everything was asked for");
            }
        }
        blocked
    }

    /// The backend's descriptors, duplicated so that nothing is borrowed.
    pub fn descriptors(&mut self) -> Vec<OwnedFd> {
        let mut all = Vec::new();
        self.io().descriptors(&mut |fd| all.push(fd.try_clone_to_owned().expect("a descriptor is free")));
        all
    }

    /// Gives the backend turns until none of its descriptors is readable.
    pub fn quiesce(&mut self) {
        let mut pause = Pause::new("the backend comes to rest");
        loop {
            self.received();
            if !is_readable(&self.descriptors(), Duration::ZERO) {
                return;
            }
            pause.wait();
        }
    }
}

/// Transmits as many of `payloads` as are accepted: how many, and whether the backend was blocked.
pub fn offer(io: &mut dyn PacketIo, flow: &Flow, segment: usize, payloads: &[Vec<u8>]) -> (usize, bool) {
    let mut next = 0;
    let sent = io
        .transmit(flow, segment, &mut |slot| {
            assert_eq!(slot.len(), segment, "a slot has the size of the segment");
            let Some(payload) = payloads.get(next) else { return 0 };
            slot[..payload.len()].copy_from_slice(payload);
            next += 1;
            payload.len()
        })
        .expect("transmitting does not fail");
    let bytes: usize = payloads[..next].iter().map(Vec::len).sum();
    assert_eq!((sent.packets, sent.bytes), (next, bytes), "transmit says what it accepted");
    (next, sent.blocked)
}

pub fn is_readable(descriptors: &[OwnedFd], within: Duration) -> bool {
    let mut polled: Vec<_> = descriptors.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    let timeout = Timespec { tv_sec: within.as_secs() as i64, tv_nsec: i64::from(within.subsec_nanos()) };
    poll(&mut polled, Some(&timeout)).expect("descriptors can be polled") != 0
}

/// Waits a moment between attempts, and fails the check when the patience is over.
pub struct Pause {
    what: &'static str,
    since: Instant,
}

impl Pause {
    pub fn new(what: &'static str) -> Self {
        Self { what, since: Instant::now() }
    }

    pub fn wait(&mut self) {
        self.wait_noting("");
    }

    pub fn wait_noting(&mut self, note: &str) {
        assert!(self.since.elapsed() < patience(), "did not happen: {} {note}", self.what);
        std::thread::sleep(Duration::from_millis(1));
    }

    pub fn wait_for(&mut self, descriptors: &[OwnedFd], note: &str) {
        assert!(self.since.elapsed() < patience(), "did not happen: {} {note}", self.what);
        let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        let mut polled: Vec<_> =
            borrowed.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
        let moment = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
        poll(&mut polled, Some(&moment)).expect("descriptors can be polled");
    }
}

/// A payload whose every byte depends on its number and size.
pub fn payload(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (number.wrapping_mul(31) ^ at.wrapping_mul(7) ^ (number >> 8)) as u8).collect()
}

/// The payloads of what was seen, sorted.
pub fn payloads(seen: &[Seen]) -> Vec<Vec<u8>> {
    let mut payloads: Vec<_> = seen.iter().map(|datagram| datagram.payload.clone()).collect();
    payloads.sort_unstable();
    payloads
}

pub fn sorted(mut payloads: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    payloads.sort_unstable();
    payloads
}
