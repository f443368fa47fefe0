//! The receiver on loopback, with peers on ordinary sockets.

use std::net::{SocketAddr, UdpSocket};
use std::sync::mpsc::channel;
use std::time::Duration;

use expressway_feed::probe::Probe;
use expressway_feed::receive::{Batch, Batches, Clock, Handler, Latency, Options, Receiver};
use expressway_netio::io::TimeSource;
use expressway_netio::udp::{UdpConfig, UdpIo};
use expressway_netio::wait::Spin;
use expressway_netio::{Datagram, Wait};

/// Reached only by what hangs.
const LIMIT: Duration = Duration::from_secs(60);

fn open() -> (UdpIo, SocketAddr) {
    let config =
        UdpConfig { timestamps: true, gro: false, ..UdpConfig::new(vec!["127.0.0.1:0".parse().unwrap()]) };
    let io = UdpIo::bind(&config).unwrap();
    let address = io.addresses().next().unwrap();
    (io, address)
}

fn sender(to: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(to).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    socket
}

#[test]
fn a_closure_sees_each_datagram_whole_and_in_order_until_the_limit() {
    let (io, address) = open();
    let socket = sender(address);
    let mut seen = Vec::new();
    let options = Options { limit: Some(3), ..Options::default() };
    let mut receiver = Receiver::new(io, options, |datagram: Datagram<'_>| {
        seen.push((datagram.payload.to_vec(), datagram.remote))
    })
    .unwrap();
    for payload in [&b"one"[..], b"", b"three", b"surplus"] {
        socket.send(payload).unwrap();
    }
    receiver.run().unwrap();
    let counters = receiver.counters();
    assert_eq!((counters.datagrams, counters.bytes, counters.dropped_surplus), (3, 8, 1));
    assert_eq!((counters.stamped_kernel, counters.unstamped()), (3, 0));
    assert_eq!(receiver.watch().counters(), counters, "shown as they ended");
    drop(receiver);
    let from = socket.local_addr().unwrap();
    assert_eq!(seen, [(b"one".to_vec(), from), (Vec::new(), from), (b"three".to_vec(), from)]);
}

#[test]
fn another_thread_ends_it_however_it_waits() {
    for wait in [Wait::Interrupt, Wait::Spin(Spin::default())] {
        let (io, address) = open();
        let (told, tells) = channel();
        let thread = std::thread::spawn(move || {
            let options = Options { wait, cpu: Some(0), ..Options::default() };
            let mut receiver = Receiver::new(io, options, |_: Datagram<'_>| {}).unwrap();
            told.send((receiver.stopper(), receiver.watch())).unwrap();
            receiver.run().unwrap();
            receiver.counters().datagrams
        });
        let (stopper, watch) = tells.recv_timeout(LIMIT).unwrap();
        sender(address).send(b"seen").unwrap();
        while watch.counters().datagrams == 0 {
            std::thread::yield_now();
        }
        stopper.stop();
        assert_eq!(thread.join().unwrap(), 1);
        stopper.stop();
    }
}

#[test]
fn a_cpu_that_is_not_there_is_an_error_that_names_it() {
    let options = Options { cpu: Some(100_000), ..Options::default() };
    let mut receiver = Receiver::new(open().0, options, |_: Datagram<'_>| {}).unwrap();
    assert!(receiver.run().unwrap_err().to_string().contains("100000"));
}

#[test]
fn only_the_sources_wanted_are_handed_over() {
    let (io, address) = open();
    let other = UdpSocket::bind("127.0.0.2:0").unwrap();
    other.send_to(b"foreign", address).unwrap();
    sender(address).send(b"wanted").unwrap();
    let options =
        Options { limit: Some(1), sources: vec!["127.0.0.1".parse().unwrap()], ..Options::default() };
    let mut receiver =
        Receiver::new(io, options, |datagram: Datagram<'_>| assert_eq!(datagram.payload, b"wanted")).unwrap();
    receiver.run().unwrap();
    assert_eq!(receiver.counters().dropped_source, 1);
}

#[test]
fn batches_hold_what_came_together_and_no_more_than_fits() {
    let (io, address) = open();
    let socket = sender(address);
    for number in 0..10u8 {
        socket.send(&[number; 9]).unwrap();
    }
    let mut sizes = Vec::new();
    let mut bytes = Vec::new();
    let take = |batch: &Batch| {
        sizes.push(batch.len());
        for (arrival, payload) in batch.iter() {
            assert!(arrival.timestamp.is_some_and(|stamp| stamp.source == TimeSource::Kernel));
            assert_eq!(arrival.local, address);
            bytes.extend_from_slice(payload);
        }
    };
    let options = Options { limit: Some(10), ..Options::default() };
    let mut receiver = Receiver::new(io, options, Batches::new(4, 0, take)).unwrap();
    receiver.run().unwrap();
    drop(receiver);
    assert_eq!(sizes.iter().sum::<usize>(), 10);
    assert!(sizes.iter().all(|size| (1..=4).contains(size)), "{sizes:?}");
    let expected: Vec<u8> = (0..10u8).flat_map(|number| [number; 9]).collect();
    assert_eq!(bytes, expected);
}

#[test]
fn echoes_come_back_whole_of_every_size() {
    let (io, address) = open();
    let socket = sender(address);
    let thread = std::thread::spawn(move || {
        let options = Options { limit: Some(41), echo: true, ..Options::default() };
        let mut receiver = Receiver::new(io, options, |_: Datagram<'_>| {}).unwrap();
        receiver.run().unwrap();
        receiver.counters()
    });
    let mut buffer = [0; 2048];
    for number in 0..40usize {
        let payload = vec![number as u8; 1 + number * 33 % 1400];
        socket.send(&payload).unwrap();
        let length = socket.recv(&mut buffer).unwrap();
        assert_eq!(buffer[..length], payload);
    }
    // Packet I/O sends no empty ones.
    socket.send(b"").unwrap();
    let counters = thread.join().unwrap();
    assert_eq!((counters.echoed, counters.dropped_echo), (40, 1));
}

/// Ends after the first batch.
struct Once(Latency, u64);

impl Handler for Once {
    fn handle_datagram(&mut self, datagram: Datagram<'_>) {
        self.0.record(&datagram);
    }

    fn end_batch(&mut self) {
        self.1 += 1;
    }

    fn is_finished(&self) -> bool {
        self.1 == 1
    }
}

#[test]
fn latency_is_measured_from_the_stamp_and_from_when_a_probe_was_due() {
    let (io, address) = open();
    let socket = sender(address);
    let due = Probe::now() - 5_000_000;
    socket.send(&Probe { sequence: 0, time: due, flow: 0 }.to_bytes()).unwrap();
    socket.send(b"no probe").unwrap();
    let mut receiver = Receiver::new(io, Options::default(), Once(Latency::new(Clock::Tai), 0)).unwrap();
    receiver.run().unwrap();
    let (_, Once(latency, batches)) = receiver.into_parts();
    assert_eq!(batches, 1);
    let counts = latency.callback().map(|(name, track)| (name, track.histogram().len()));
    assert_eq!(counts, [("nic", 0), ("xdp", 0), ("kernel", 2)]);
    let wire = latency.wire();
    assert_eq!((wire.histogram().len(), wire.implausible), (1, 0));
    assert!(wire.histogram().min() >= 4_990_000, "the sender was 5 ms late, which counts");
}
