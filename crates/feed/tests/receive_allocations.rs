//! In steady state a receiver allocates nothing for a datagram: not in its turn, not for a latency, an echo or a batch,
//! and not to put a feed in order and into a ring.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use expressway_feed::probe::Probe;
use expressway_feed::receive::{Batch, Batches, Clock, Handler, Latency, Options, Receiver};
use expressway_feed::sequence::{Arbiter, ArbiterConfig, Event, Framing, Sequenced, Sequencer};
use expressway_netio::Datagram;
use expressway_netio::broadcast::{Broadcast, BroadcastConfig, Record};
use expressway_netio::udp::{UdpConfig, UdpIo};

#[path = "../../netio/tests/counting_allocator/mod.rs"]
mod counting_allocator;

use counting_allocator::allocations;

/// Latencies, and behind them batches.
struct Both<F>(Latency, Batches<F>);

impl<F: FnMut(&Batch)> Handler for Both<F> {
    fn handle_datagram(&mut self, datagram: Datagram<'_>) {
        self.0.record(&datagram);
        self.1.handle_datagram(datagram);
    }

    fn end_batch(&mut self) {
        self.1.end_batch();
    }
}

#[test]
fn a_receiver_in_steady_state_allocates_nothing() {
    let before = allocations();
    drop(std::hint::black_box(Box::new(7)));
    assert!(allocations() > before, "the allocator counts");

    let listen = vec!["127.0.0.1:0".parse().unwrap()];
    let io = UdpIo::bind(&UdpConfig { timestamps: true, gro: false, ..UdpConfig::new(listen) }).unwrap();
    let address = io.addresses().next().unwrap();
    let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
    peer.connect(address).unwrap();
    peer.set_nonblocking(true).unwrap();
    let mut batched = 0;
    let both = Both(Latency::new(Clock::Tai), Batches::new(7, 0, |batch: &Batch| batched += batch.len()));
    let mut receiver = Receiver::new(io, Options { echo: true, ..Options::default() }, both).unwrap();
    let (mut sent, mut allocated) = (0, 0);
    let mut buffer = [0; 2048];
    for round in 0..200usize {
        for number in 0..32usize {
            let probe = Probe { sequence: sent, time: Probe::now(), flow: 0 };
            let mut payload = [0; 1200];
            payload[..Probe::LENGTH].copy_from_slice(&probe.to_bytes());
            peer.send(&payload[..Probe::LENGTH + (number * 31 + round) % 1100]).unwrap();
            sent += 1;
        }
        while receiver.counters().datagrams < sent {
            let before = allocations();
            receiver.turn().unwrap();
            if round >= 20 {
                allocated += allocations() - before;
            }
        }
        while peer.recv(&mut buffer).is_ok() {}
    }
    let counters = receiver.counters();
    assert_eq!((counters.datagrams, counters.echoed, allocated), (6400, 6400, 0));
    assert_eq!(receiver.handler().0.wire().histogram().len(), 6400);
    drop(receiver);
    assert_eq!(batched, 6400);
}

#[test]
fn a_sequenced_feed_in_steady_state_allocates_nothing() {
    const BURST: u64 = 32;
    let io = UdpIo::bind(&UdpConfig::new(vec!["127.0.0.1:0".parse().unwrap(); 2])).unwrap();
    let lines: Vec<SocketAddr> = io.addresses().collect();
    let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
    let path = std::env::temp_dir().join(format!("expressway-allocations-{}.sock", std::process::id()));
    let mut ring =
        Broadcast::new(BroadcastConfig { capacity: 1 << 20, ..BroadcastConfig::new(path) }).unwrap();
    let config = ArbiterConfig {
        lines: 2,
        window: 64,
        hold: Duration::from_secs(3600),
        start: Some(0),
        ..ArbiterConfig::new(Framing::Seq64)
    };
    let sequencer = Sequencer::new(Arbiter::new(config).unwrap(), lines.clone());
    let handler = Sequenced::new(sequencer, |event: Event<'_>| {
        if let Event::Message(message) = event {
            assert!(ring.push(&Record { data: message.data, number: message.sequence, ..Record::default() }));
            ring.publish();
        }
    });
    let mut receiver = Receiver::new(io, Options::default(), handler).unwrap();
    let (mut sent, mut allocated) = (0, 0);
    for round in 0..200u64 {
        // What one line loses the other brings, behind the rest of the burst.
        for (line, to) in lines.iter().enumerate() {
            for number in round * BURST..(round + 1) * BURST {
                if number % 5 != 2 * line as u64 {
                    let mut payload = [0; 512];
                    payload[..8].copy_from_slice(&number.to_be_bytes());
                    peer.send_to(&payload, to).unwrap();
                    sent += 1;
                }
            }
        }
        while receiver.counters().datagrams < sent {
            let before = allocations();
            receiver.turn().unwrap();
            if round >= 100 {
                allocated += allocations() - before;
            }
        }
    }
    let stats = receiver.handler().sequencer().arbiter().stats();
    assert_eq!((stats.messages, stats.lost, allocated), (200 * BURST, 0, 0));
    assert!(stats.recovered > 0, "some were put aside");
    drop(receiver);
    assert_eq!(ring.stats().records, 200 * BURST);
}
