//! Tests of a shard whose subscribers are pairs of sockets, driven by hand.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use expressway_netio::mailbox::{Mailbox, mailbox};
use expressway_netio::udp::UdpIo;

use super::*;
use crate::fanout::framing::{Framing, append_pong};
use crate::fanout::options::{Protocol, Start};
use crate::fanout::ring::Ring;
use crate::fanout::transport::Transport;

/// A masked ping without a payload, and the pong to it.
const PING: [u8; 6] = [0x89, 0x80, 1, 2, 3, 4];

struct Bed {
    shard: Shard,
    sender: Mailbox<Message>,
    _rings: [Ring; 2],
}

impl Bed {
    fn new() -> Self {
        let rings = [Framing::Len16, Framing::WebSocket].map(|framing| Ring::new(framing, 1 << 20));
        let limits = Limits::default();
        let common = Common {
            limits,
            slow_client: SlowClient::Drop,
            ledger: Arc::new(Ledger::new(&limits, rings.iter().map(|ring| ring.shared().clone()).collect())),
            snapshot: Arc::default(),
            epoch: Instant::now(),
        };
        let (sender, inbox) = mailbox(1024).unwrap();
        let views = rings.iter().map(Ring::view).collect();
        Self { shard: Shard::new(0, common, inbox, views).unwrap(), sender, _rings: rings }
    }

    fn send_subscriber(&self) -> UnixStream {
        let (server, client) = UnixStream::pair().unwrap();
        let newcomer = Newcomer {
            transport: Transport::Plain(Arc::new(server.into())),
            protocol: Protocol::WebSocket,
            peer: "192.0.2.1:1".parse().unwrap(),
            start: Start::Next,
            greeting: Vec::new(),
            input: Vec::new(),
        };
        assert!(self.sender.try_send(Message::Subscribe(Box::new(newcomer))).is_ok());
        client
    }

    /// What a turn of the shard does, without waiting. How many subscribers had one.
    fn turn(&mut self) -> u64 {
        let before = self.shard.given;
        let mut source = None::<FeedInput<UdpIo>>;
        self.shard.turn(&mut source).unwrap();
        self.shard.sleep(&mut source, Some(Duration::ZERO)).unwrap();
        self.shard.given - before
    }

    /// Turns until there is nothing to do. How many subscribers had a turn.
    fn settle(&mut self) -> u64 {
        let mut given = 0;
        loop {
            let now = self.turn();
            given += now;
            if now == 0 && !self.shard.is_busy() && self.sender.is_empty() {
                return given;
            }
        }
    }

    fn disconnected(&self, reason: Reason) -> u64 {
        self.shard.common.ledger.statistics().disconnected(reason)
    }
}

#[test]
fn what_one_subscriber_does_costs_a_turn_of_its_own_and_none_of_the_others() {
    let mut bed = Bed::new();
    let mut clients: Vec<UnixStream> = (0..900).map(|_| bed.send_subscriber()).collect();
    bed.settle();
    assert_eq!(bed.shard.wheel.len(), 900);
    for pings in 1..=3 {
        clients[7].write_all(&PING).unwrap();
        let given = bed.settle();
        // The interval's timer may call all together once.
        assert!((1..=4).contains(&(given % 900)), "{given} turns for ping {pings}");
        let (mut pong, mut expected) = ([0; 2], Vec::new());
        append_pong(&[], &mut expected);
        clients[7].read_exact(&mut pong).unwrap();
        assert_eq!(pong[..], expected);
    }
    drop(clients.pop());
    assert!((1..=4).contains(&(bed.settle() % 900)));
    assert_eq!(bed.disconnected(Reason::Closed), 1);
}

#[test]
fn newcomers_come_in_a_few_at_a_time() {
    let mut bed = Bed::new();
    let _clients: Vec<UnixStream> = (0..200).map(|_| bed.send_subscriber()).collect();
    let (mut turns, mut before) = (0, 0);
    while bed.shard.wheel.len() < 200 {
        bed.turn();
        let came = bed.shard.wheel.len() - before;
        assert!(came <= 2 * NEWCOMERS, "{came} in a turn");
        (turns, before) = (turns + 1, bed.shard.wheel.len());
    }
    assert!(turns >= 6);
    // Many messages that only wake do not keep the next newcomer waiting.
    for _ in 0..200 {
        assert!(bed.sender.try_send(Message::Frames).is_ok());
    }
    let _last = bed.send_subscriber();
    bed.turn();
    assert_eq!(bed.shard.wheel.len(), 201);
}

#[test]
fn what_one_subscriber_sends_is_read_a_part_at_a_time() {
    let mut bed = Bed::new();
    let mut client = bed.send_subscriber();
    bed.settle();
    // One frame, of which the end never comes.
    client.write_all(&[0x82, 0xff, 0, 0, 0, 0, 1, 0, 0, 0, 1, 2, 3, 4]).unwrap();
    client.write_all(&[0; 40_000]).unwrap();
    let mut turns = 0;
    while {
        bed.turn();
        bed.shard.is_busy()
    } {
        turns += 1;
    }
    assert!(turns >= 40_000 / 4096, "{turns} turns");
    assert_eq!(bed.shard.wheel.len(), 1);
    client.write_all(&[0; 40_000]).unwrap();
    bed.settle();
    assert_eq!(bed.disconnected(Reason::Flooded), 1);
}

#[test]
fn frames_count_for_more_than_their_bytes() {
    let mut bed = Bed::new();
    let (mut flooder, mut talker) = (bed.send_subscriber(), bed.send_subscriber());
    bed.settle();
    // 12,000 bytes, which as one frame would be well.
    flooder.write_all(&PING.repeat(2000)).unwrap();
    talker.write_all(&PING.repeat(200)).unwrap();
    bed.settle();
    assert_eq!(bed.disconnected(Reason::Flooded), 1);
    assert_eq!(bed.shard.wheel.len(), 1);
}
