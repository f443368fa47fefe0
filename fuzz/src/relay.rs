//! Targets of `expressway-relay`: what publishers, receivers and strangers send to a room of RTP, and to WebRTC sessions.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use expressway_netio::slice::{Slice, SliceLimit};
use expressway_netio::{Datagram, Flow, IoError, IoStats, PacketIo, io::Sent};
use expressway_relay::config::{Config, Room as RoomConfig};
use expressway_relay::rtp::{Progress, Room};
use expressway_relay::webrtc::answer::{Identity, Role, Wanted, answer};
use expressway_relay::webrtc::demux::{PacketKind, Ufrags, classify};
use expressway_settings::SourceFile;

use crate::cost::{Account, Bound};

/// What a room does with what comes, repairs and reports that it sends included. A datagram costs its headers too.
const ROOM: Bound =
    Bound { steps: (300, 20_000), allocations: (1, 100), bytes: (120, 25_000), peak: (100, 20_000) };

/// Bytes of IPv4 and UDP headers: nothing smaller arrives.
const HEADERS: usize = 28;

/// Packets that a room keeps.
const HISTORY: u64 = 64;

/// Takes everything, and counts.
#[derive(Default)]
struct Sink {
    slot: Vec<u8>,
    datagrams: u64,
    to_publisher: u64,
}

impl PacketIo for Sink {
    fn receive(&mut self, _: Instant, _: &mut dyn FnMut(Datagram<'_>)) -> Result<usize, IoError> {
        Ok(0)
    }

    fn transmit(
        &mut self,
        flow: &Flow,
        segment: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> Result<Sent, IoError> {
        let mut sent = Sent::default();
        self.slot.resize(2048, 0);
        loop {
            let length = fill(&mut self.slot[..segment]);
            if length == 0 {
                break;
            }
            assert!(length <= segment);
            sent.packets += 1;
            sent.bytes += length;
        }
        self.datagrams += sent.packets as u64;
        if flow.remote.port() < 6000 {
            self.to_publisher += sent.packets as u64;
        }
        Ok(sent)
    }

    fn flush(&mut self, _: Instant) -> Result<(), IoError> {
        Ok(())
    }

    fn max_payload(&mut self, _: &Flow) -> usize {
        1472
    }

    fn descriptors(&self, _: &mut dyn FnMut(BorrowedFd<'_>)) {}

    fn batch(&self) -> usize {
        1
    }

    fn stats(&self) -> IoStats {
        IoStats::default()
    }
}

fn room() -> RoomConfig {
    let text = format!(
        "[[room]]\nname = \"a\"\nrtp_in = \"192.0.2.1:5004\"\nhistory = {HISTORY}\nmax_packet = 128\n\
         rtp_out = [\"192.0.2.9:6000\"]\n[[room.out]]\naddress = \"192.0.2.9:7000\"\nssrc = 9\npayload_types = {{ 96 = 100 }}\n"
    );
    let source = SourceFile { file: "room.toml".into(), text };
    Config::parse(&source).expect("a room").rooms.remove(0)
}

/// What finding the session of a datagram costs: nothing is kept of it.
pub const DEMUX: Bound = Bound { steps: (8, 800), allocations: (0, 4), bytes: (1, 256), peak: (1, 256) };

/// What an offer costs until it is answered or refused, the session that comes of it included.
const OFFER: Bound = Bound {
    steps: (4000, 2_500_000),
    allocations: (20, 15_000),
    bytes: (4000, 2_500_000),
    peak: (400, 400_000),
};

/// A datagram of anybody for the address of all sessions.
pub fn demux(data: &[u8]) {
    if let PacketKind::Request(ufrag) = classify(data) {
        assert!(data.windows(ufrag.len().max(1)).any(|part| part == ufrag.as_bytes()) || ufrag.is_empty());
        let ufrags = UFRAGS.get_or_init(Ufrags::default);
        assert_eq!(ufrags.worker(ufrag), None, "nobody can make one up");
    }
}

static UFRAGS: std::sync::OnceLock<Ufrags> = std::sync::OnceLock::new();
static IDENTITY: std::sync::OnceLock<Identity> = std::sync::OnceLock::new();

/// A byte that says whether to publish, and an offer.
pub fn offer(data: &[u8]) {
    let Some((kind, offer)) = data.split_first() else { return };
    let Ok(offer) = std::str::from_utf8(offer) else { return };
    let role = if kind & 1 == 0 { Role::Publish } else { Role::Play };
    let identity = IDENTITY.get_or_init(|| Identity::new().expect("a certificate"));
    let source = SourceFile {
        file: "room.toml".into(),
        text: "[webrtc]\nlisten = [\"192.0.2.1:1\"]\nhttp = \"192.0.2.1:1\"\n[[room]]\nname = \"a\"\nwhip = true\nwhep = true\ndata = \"all\"\n".into(),
    };
    let room = Config::parse(&source).expect("a room").rooms.remove(0);
    let announce = ["192.0.2.1:3478".parse().expect("an address")];
    let mut account = Account::default();
    let wanted = Wanted { role, worker: 0, room: &room, announce: &announce, highest: None };
    account.run(offer.len(), || drop(answer(identity, offer, wanted)));
    account.settle(&OFFER);
}

/// Steps of a byte that says who sends and how long it takes, one for the length, and what is sent.
pub fn room_of_rtp(mut data: &[u8]) {
    let address = |text: &str| -> SocketAddr { text.parse().expect("an address") };
    let (input, control) = (address("192.0.2.1:5004"), address("192.0.2.1:5005"));
    let senders = [
        (address("192.0.2.8:5000"), input),
        (address("192.0.2.8:5001"), control),
        (address("192.0.2.9:6001"), control),
        (address("192.0.2.9:7001"), control),
        (address("192.0.2.7:5000"), input),
        (address("192.0.2.8:5002"), input),
        (address("192.0.2.7:5001"), control),
        (address("192.0.2.8:5000"), control),
    ];
    let start = Instant::now();
    let (mut room, mut now) = (Room::new(room(), start), start);
    let (mut sink, mut account, mut datagrams) = (Sink::default(), Account::default(), 0u64);
    let mut slice = Slice::alone(SliceLimit::Pieces(u32::MAX));
    while let Some((&[kind, length], rest)) = data.split_first_chunk() {
        let (datagram, rest) = rest.split_at(rest.len().min(length.into()));
        data = rest;
        now += Duration::from_millis([0, 1, 20, 3000][usize::from(kind >> 3) & 3]);
        let (remote, local) = senders[usize::from(kind) & 7];
        datagrams += 1;
        account.run(HEADERS + datagram.len(), || {
            if room.deadline(now).is_some_and(|deadline| deadline <= now) {
                room.handle_timeout(now);
            }
            room.handle_datagram(datagram, remote, local, now);
            let progress = room.transmit(&mut sink, &mut slice, now).expect("a sink takes all");
            assert_eq!(progress, Progress::Done);
        });
        assert!(!room.has_news());
    }
    account.settle(&ROOM);
    let counters = &room.counters;
    let dropped = counters.dropped_malformed
        + counters.dropped_not_allowed
        + counters.dropped_second_publisher
        + counters.dropped_too_long
        + counters.dropped_ssrc
        + counters.dropped_duplicate;
    assert!(counters.packets + dropped <= datagrams);
    let repairs: u64 = room.receivers().iter().map(|receiver| receiver.counters.repairs).sum();
    // Each receiver has what was kept, and of repairs no more than its share (256 and a quarter of what it got).
    assert!(repairs <= 2 * (256 + counters.packets / 4), "{repairs} repairs of {} packets", counters.packets);
    let reports = 2 * datagrams;
    assert!(sink.datagrams - sink.to_publisher <= 2 * counters.packets + repairs + reports);
}
