//! Target of `expressway-relay`: what a publisher sends, as frames of Media over QUIC.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use expressway_h3::varint;
use expressway_relay::bridge::Bridge;
use expressway_relay::config::Config;
use expressway_relay::moq::room::{Limits, Room as MoqRoom, Wake};
use expressway_relay::moq::track::Next;
use expressway_relay::rtp::Room;
use expressway_relay::rtp::header::Header;
use expressway_settings::SourceFile;

use crate::cost::{Account, Bound};

/// What a packet costs with its frame: room and bridge copy it once each, and a frame has a head and a place in a group.
const BRIDGE: Bound =
    Bound { steps: (140, 30_000), allocations: (1, 550), bytes: (90, 80_000), peak: (40, 50_000) };

/// Bytes of the headers of IPv4, UDP and RTP: nothing smaller arrives.
const HEADERS: usize = 40;

const LIMITS: Limits = Limits {
    broadcasts: 4,
    tracks: 8,
    subscriptions: 8,
    track_cache: 64 << 10,
    room_cache: 96 << 10,
    frame: 4096,
};

/// Payload types and SSRCs of the streams: two of H.264, VP8, Opus, VP9, H.264 and VP8 on one SSRC, and RTP of no codec.
const STREAMS: [(u8, u32); 8] = [(102, 1), (102, 2), (96, 3), (111, 4), (98, 5), (102, 6), (96, 6), (99, 7)];

/// Somebody who follows a track.
#[derive(Debug, Default)]
struct Follower(AtomicUsize);

#[derive(Clone, Debug)]
struct Handle(Arc<Follower>);

impl Wake for Handle {
    fn wake(&self) {
        self.0.0.fetch_add(1, Relaxed);
    }
}

fn room(now: Instant) -> Room {
    let text = "[moq]\nlisten = [\"192.0.2.1:443\"]\ncertificate = \"c\"\nprivate_key = \"k\"\n[[room]]\nname = \"a\"\n\
                rtp_in = \"192.0.2.1:5004\"\nmoq = true\nmoq_broadcast = \"a\"\nhistory = 64\nmax_packet = 300\n";
    let source = SourceFile { file: "room.toml".into(), text: text.into() };
    Room::new(Config::parse(&source).expect("a room").rooms.remove(0), now)
}

/// Each group of a track that is kept consists of whole objects.
fn check(moq: &Arc<MoqRoom>, name: &str) {
    let Some(broadcast) = moq.find("a") else { return };
    let Ok(track) = broadcast.track(moq, name) else { return };
    for number in 0..=track.newest().unwrap_or(0) {
        let Some(mut cursor) = track.find(number) else { continue };
        let mut octets = Vec::new();
        while let Next::Octets(next) = track.next(&cursor) {
            octets.extend_from_slice(&next);
            cursor.advance(next.len(), next.len());
        }
        let mut rest = &octets[..];
        while !rest.is_empty() {
            let (_, time) = varint::read(rest).expect("a time");
            let (length, head) = varint::read(&rest[time..]).expect("a length");
            assert!(length <= LIMITS.frame);
            rest = &rest[time + head + length as usize..];
        }
    }
}

/// Steps of a byte that says which stream it is, whether a frame ends, and how the number goes on; one for the length; and the payload.
pub fn bridge(mut data: &[u8]) {
    let start = Instant::now();
    let (mut room, mut now) = (room(start), start);
    let moq = MoqRoom::new("a", LIMITS);
    let mut bridge = Bridge::new("a", Arc::clone(&moq), now);
    let (remote, local) = ("192.0.2.8:5000".parse().expect("an address"), room.config().input.expect("one"));
    let (mut numbers, mut times) = ([0u16; 8], [0u32; 8]);
    let (mut account, mut packets, mut octets) = (Account::default(), 0u64, 0u64);
    let follower = Handle(Arc::default());
    let mut follows = false;
    while let Some((&[kind, length], rest)) = data.split_first_chunk() {
        let (payload, rest) = rest.split_at(rest.len().min(length.into()));
        data = rest;
        let (payload_type, ssrc) = STREAMS[usize::from(kind & 7)];
        let stream = ssrc as usize - 1;
        let number = &mut numbers[stream];
        *number = match kind >> 5 {
            0..=3 => number.wrapping_add(1),
            4 => number.wrapping_add(2),
            5 => number.wrapping_sub(3),
            6 => number.wrapping_add(5000),
            _ => {
                now += Duration::from_millis(250);
                number.wrapping_add(1)
            }
        };
        let header = Header { payload_type, sequence: *number, timestamp: times[stream], ssrc };
        let mut datagram = vec![0x80, (kind << 4) & 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        header.write(&mut datagram);
        datagram.extend_from_slice(payload);
        if kind & 0x10 != 0 {
            times[stream] = times[stream].wrapping_add(3000);
        }
        now += Duration::from_millis(1);
        packets += 1;
        octets += payload.len() as u64;
        account.run(HEADERS + payload.len(), || {
            if room.deadline(now).is_some_and(|deadline| deadline <= now) {
                room.handle_timeout(now);
            }
            room.handle_datagram(&datagram, remote, local, now);
            bridge.look(&mut room, now);
        });
        assert!(moq.cached() <= LIMITS.room_cache);
        // Somebody comes, so that more than the newest group is kept.
        if !follows
            && let Some(track) = moq.find("a").and_then(|broadcast| broadcast.track(&moq, "video").ok())
        {
            follows = track.follow(follower.clone(), true).is_some();
        }
    }
    ["video", "audio", "catalog.json"].into_iter().for_each(|name| check(&moq, name));
    account.settle(&BRIDGE);
    let counters = bridge.counters;
    assert!(counters.frames <= packets);
    assert!(counters.groups <= counters.frames);
    assert!(counters.dropped_codec + counters.other_streams + counters.dropped_late <= packets);
    // Start codes take no more than what they stand for, and parameter sets are added to key frames.
    assert!(counters.bytes <= 5 * octets + 4200 * counters.groups);
}
