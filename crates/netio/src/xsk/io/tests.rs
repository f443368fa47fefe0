//! Tests of the backend's decisions without an interface: what a frame becomes, which way a burst takes.

use std::net::{IpAddr, SocketAddr};

use expressway_wire::{ChecksumMode, MacAddr, UdpHeaders, VlanTags};
use proptest::prelude::*;

use super::receive::{Origin, Prefix, deliver, info, is_martian};
use super::*;
use crate::io::{Ecn, TimeSource, Timestamp, Via};
use crate::readers::PacketInfo;
use crate::readers::abi::PAYLOAD;
use crate::route::Path;
use crate::xsk::UmemPacket;

const VIA: Via = Via::Xsk(3);

/// Payload, remote, local and ECN of a datagram.
type Seen = (Vec<u8>, SocketAddr, SocketAddr, Ecn);

/// Hands a frame over; what the sink saw, and the counters.
fn delivered(frame: &mut [u8], verify: bool) -> (Option<Seen>, IoStats) {
    let (mut stats, mut seen) = (IoStats::default(), None);
    let origin = Origin { via: VIA, ifindex: 7, verify, prefix: Prefix::None };
    let length = frame.len();
    let handed = deliver(frame, origin, &mut stats, &mut |datagram| {
        assert_eq!(datagram.via, VIA);
        seen = Some((datagram.payload.to_vec(), datagram.remote, datagram.local, datagram.ecn));
    });
    assert_eq!(handed.is_some(), seen.is_some());
    if let (Some(keep), Some((payload, ..))) = (&handed, &seen) {
        let start = usize::from(keep.info.flags & PAYLOAD);
        assert_eq!((keep.part.start, keep.part.len() - start), (0, payload.len()));
        assert!(keep.part.end <= length, "padding is no part of it");
    }
    (seen, stats)
}

fn frame(source: &str, destination: &str, payload: &[u8]) -> Vec<u8> {
    let headers = UdpHeaders {
        ecn: 1,
        ..UdpHeaders::new(
            MacAddr([2; 6]),
            MacAddr([4; 6]),
            source.parse().unwrap(),
            destination.parse().unwrap(),
        )
    };
    let mut frame = vec![0; headers.header_len()];
    frame.extend(payload);
    headers.write(&mut frame, payload.len(), ChecksumMode::Full, 0).unwrap();
    frame
}

#[test]
fn readers_are_told_where_the_payload_is_and_who_stamped() {
    let data = [7; 50];
    for source in [None, Some(TimeSource::Device), Some(TimeSource::Program)] {
        let PacketInfo { timestamp, flags } =
            info(42, source.map(|source| Timestamp { nanoseconds: 99, source }));
        let lent = UmemPacket { data: &data, timestamp, sequence: 0, flags, source: 0 };
        assert_eq!((lent.payload(), lent.time_source()), (Some(&data[42..]), source));
        assert_eq!(lent.timestamp, if source.is_some() { 99 } else { 0 });
    }
}

#[test]
fn a_frame_becomes_a_datagram_with_its_addresses_and_marks() {
    let mut frame = frame("192.0.2.9:5000", "192.0.2.1:443", b"payload");
    // Ethernet pads short frames; the padding is not the datagram's.
    frame.resize(60, 0);
    let (seen, stats) = delivered(&mut frame, true);
    let (remote, local) = ("192.0.2.9:5000".parse().unwrap(), "192.0.2.1:443".parse().unwrap());
    assert_eq!(seen, Some((b"payload".to_vec(), remote, local, Ecn::Ect1)));
    assert_eq!((stats.rx_xsk_packets, stats.rx_xsk_bytes), (1, 7));
}

#[test]
fn link_local_addresses_say_on_which_link() {
    let (seen, _) = delivered(&mut frame("[fe80::9]:5000", "[2001:db8::1]:443", b"x"), true);
    let (_, remote, local, _) = seen.unwrap();
    assert_eq!(remote.to_string(), "[fe80::9%7]:5000");
    assert_eq!(local.to_string(), "[2001:db8::1]:443");
}

#[test]
fn a_wrong_checksum_is_dropped_only_where_it_is_verified() {
    let mut frame = frame("192.0.2.9:5000", "192.0.2.1:443", b"payload");
    *frame.last_mut().unwrap() ^= 1;
    let (seen, stats) = delivered(&mut frame.clone(), true);
    assert_eq!((seen, stats.dropped_checksum, stats.rx_xsk_packets), (None, 1, 0));
    let (seen, stats) = delivered(&mut frame, false);
    assert_eq!((seen.is_some(), stats.dropped_checksum), (true, 0));
}

#[test]
fn sources_that_would_turn_the_answer_inwards_are_dropped() {
    for (source, destination) in [
        ("127.0.0.1:53", "192.0.2.1:443"),
        ("192.0.2.1:443", "192.0.2.1:443"),
        ("[::1]:53", "[2001:db8::1]:443"),
        ("[2001:db8::1]:53", "[2001:db8::1]:443"),
    ] {
        let (seen, stats) = delivered(&mut frame(source, destination, b"x"), true);
        assert_eq!((seen, stats.dropped_malformed, stats.rx_xsk_packets), (None, 1, 0), "{source}");
    }
    for source in ["0.0.0.0", "0.1.2.3", "224.0.0.1", "240.0.0.1", "255.255.255.255", "::", "ff02::1"] {
        assert!(is_martian(source.parse().unwrap()), "{source}");
    }
    for source in ["10.0.0.1", "223.255.255.255", "169.254.0.1", "fe80::1", "2001:db8::1"] {
        assert!(!is_martian(source.parse().unwrap()), "{source}");
    }
}

/// A kernel's way that takes everything.
#[derive(Default)]
struct Taker {
    taken: usize,
    received: usize,
}

impl PacketIo for Taker {
    fn receive(&mut self, _now: Instant, _sink: &mut dyn FnMut(Datagram<'_>)) -> Result<usize, IoError> {
        self.received += 1;
        Ok(0)
    }

    fn transmit(
        &mut self,
        _flow: &Flow,
        segment: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> Result<Sent, IoError> {
        let (mut sent, mut buffer) = (Sent::default(), vec![0; segment]);
        while let bytes @ 1.. = fill(&mut buffer) {
            sent.packets += 1;
            sent.bytes += bytes;
        }
        self.taken += sent.packets;
        Ok(sent)
    }

    fn flush(&mut self, _now: Instant) -> Result<(), IoError> {
        Ok(())
    }

    fn max_payload(&mut self, _flow: &Flow) -> usize {
        1234
    }

    fn descriptors(&self, _visit: &mut dyn FnMut(BorrowedFd<'_>)) {}

    fn batch(&self) -> usize {
        1
    }

    fn stats(&self) -> IoStats {
        IoStats { tx_kernel_packets: self.taken as u64, ..IoStats::default() }
    }
}

struct Fixed(Resolution);

impl Routes for Fixed {
    fn resolve(&mut self, _local: IpAddr, _remote: IpAddr) -> Resolution {
        self.0
    }
}

fn backend(resolution: Resolution) -> XskIo<Taker, Fixed> {
    XskIo::new(Vec::new(), Taker::default(), Fixed(resolution), XskIoConfig::default()).unwrap()
}

/// Sends three datagrams; the fallback counters (neighbour, route, socket).
fn fallbacks(io: &mut XskIo<Taker, Fixed>, remote: &str) -> [u64; 3] {
    let flow = Flow::new("[2001:db8::1]:443".parse().unwrap(), remote.parse().unwrap());
    let mut left = 3;
    let mut fill = |slice: &mut [u8]| {
        if left == 0 {
            return 0;
        }
        left -= 1;
        slice.len()
    };
    assert_eq!(io.transmit(&flow, 100, &mut fill).unwrap(), Sent { packets: 3, bytes: 300, blocked: false });
    assert_eq!(io.max_payload(&flow), 1234);
    let stats = io.stats();
    assert_eq!(stats.tx_kernel_packets, 3);
    [stats.tx_fallback_neighbour, stats.tx_fallback_route, stats.tx_fallback_socket]
}

#[test]
fn what_af_xdp_cannot_send_takes_the_kernel_socket_and_is_counted_by_reason() {
    let next_hop = "2001:db8::2".parse().unwrap();
    let ready = Resolution::Ready(Path {
        ifindex: 5,
        egress: 5,
        source_mac: MacAddr([2; 6]),
        destination_mac: MacAddr([4; 6]),
        vlan: VlanTags::NONE,
        mtu: 1500,
        source: "2001:db8::1".parse().unwrap(),
        stale: false,
    });
    let cases = [
        (Resolution::Unresolved { egress: 5, next_hop, mtu: 1500 }, "[2001:db8::2]:9", [3, 0, 0]),
        (Resolution::NotDirect { egress: 1, mtu: 65_536 }, "[2001:db8::2]:9", [0, 3, 0]),
        (Resolution::Unreachable, "[2001:db8::2]:9", [0, 3, 0]),
        // No binding on that interface.
        (ready, "[2001:db8::2]:9", [0, 3, 0]),
        (ready, "[fe80::2]:9", [0, 3, 0]),
    ];
    for (resolution, remote, expected) in cases {
        let mut io = backend(resolution);
        assert_eq!(fallbacks(&mut io, remote), expected, "{resolution:?} {remote}");
    }
}

#[test]
fn an_idle_backend_asks_the_kernel_each_turn() {
    let mut io = backend(Resolution::Unreachable);
    for _ in 0..5 {
        io.receive(Instant::now(), &mut |_| ()).unwrap();
    }
    assert_eq!(io.kernel().received, 5);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever a frame holds, it is handed over or counted as dropped, once.
    #[test]
    fn every_frame_is_handed_over_or_counted(
        mut bytes in prop::collection::vec(any::<u8>(), 0..200),
        flips in prop::collection::vec((0..200usize, any::<u8>()), 0..4),
        real in any::<bool>(),
        verify in any::<bool>(),
    ) {
        if real {
            bytes = frame("192.0.2.9:5000", "192.0.2.1:443", &bytes);
            for (at, with) in flips {
                let at = at % bytes.len();
                bytes[at] ^= with;
            }
        }
        let (seen, stats) = delivered(&mut bytes, verify);
        prop_assert_eq!(stats.rx_xsk_packets, u64::from(seen.is_some()));
        prop_assert_eq!(stats.rx_xsk_packets + stats.dropped_malformed + stats.dropped_checksum, 1);
    }
}
