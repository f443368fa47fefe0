//! Bridges on rooms: what publishers send, and what is then in tracks.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use expressway_h3::varint;
use expressway_settings::SourceFile;
use serde_json::Value;

use super::*;
use crate::config::Config;
use crate::moq::broadcast::Broadcast;
use crate::moq::broadcast::{NoTrack, Publisher};
use crate::moq::room::Limits;
use crate::moq::track::{End, Next};
use crate::rtp::header::packet;
use crate::status::BridgeCounters;

const PATH: &str = "studio.hang";
/// Payload types.
const H264: u8 = 102;
const VP8: u8 = 96;
const OPUS: u8 = 111;
const VP9: u8 = 98;

const SPS: &[u8] = &[0x67, 0x42, 0xc0, 0x1e, 1];
const PPS: &[u8] = &[0x68, 2];

struct Bed {
    room: Room,
    moq: Arc<moq::room::Room>,
    bridge: Bridge,
    now: Instant,
    /// The last number of each stream.
    sequences: [u16; 128],
}

/// An object as it is in a track: its time in the track, and what it is.
type Object = (u64, Vec<u8>);

impl Bed {
    fn new(more: &str) -> Self {
        Self::with(more, Limits::default())
    }

    fn with(more: &str, limits: Limits) -> Self {
        let text = format!(
            "[moq]\nlisten = [\"192.0.2.1:443\"]\ncertificate = \"cert.pem\"\nprivate_key = \"key.pem\"\n[[room]]\nname = \"a\"\n\
             rtp_in = \"192.0.2.1:5004\"\nmoq = true\nmoq_broadcast = \"{PATH}\"\n{more}\n"
        );
        let config = Config::parse(&SourceFile { file: "relay.toml".into(), text }).unwrap();
        let now = Instant::now();
        let moq = moq::room::Room::new("a", limits);
        let bridge = Bridge::new(PATH, Arc::clone(&moq), now);
        Self { room: Room::new(config.rooms[0].clone(), now), moq, bridge, now, sequences: [1000; 128] }
    }

    fn wait(&mut self, milliseconds: u64) {
        self.now += Duration::from_millis(milliseconds);
    }

    fn datagram(&mut self, datagram: &[u8]) {
        let remote: SocketAddr = "192.0.2.8:5000".parse().unwrap();
        let input = self.room.config().input.unwrap();
        self.room.handle_datagram(datagram, remote, input, self.now);
        self.bridge.look(&mut self.room, self.now);
    }

    /// A packet of a stream, whose SSRC is its payload type.
    fn packet(&mut self, payload_type: u8, sequence: u16, (timestamp, marker): (u32, bool), payload: &[u8]) {
        let header = Header { payload_type, sequence, timestamp, ssrc: payload_type.into() };
        let mut datagram = packet(header, payload);
        datagram[1] |= u8::from(marker) << 7;
        self.datagram(&datagram);
    }

    fn next(&mut self, payload_type: u8, timestamp: (u32, bool), payload: &[u8]) {
        self.sequences[usize::from(payload_type)] += 1;
        self.packet(payload_type, self.sequences[usize::from(payload_type)], timestamp, payload);
    }

    /// A key frame of three packets.
    fn key(&mut self, timestamp: u32) {
        self.next(H264, (timestamp, false), SPS);
        self.next(H264, (timestamp, false), PPS);
        self.next(H264, (timestamp, true), &[0x65, 9]);
    }

    fn delta(&mut self, timestamp: u32, number: u8) {
        self.next(H264, (timestamp, true), &[0x41, number]);
    }

    /// The last number of the pictures.
    fn last(&self) -> u16 {
        self.sequences[usize::from(H264)]
    }

    /// A packet of theirs is lost: its number.
    fn lose(&mut self) -> u16 {
        self.sequences[usize::from(H264)] += 1;
        self.last()
    }

    fn track(&self, name: &str) -> Arc<moq::track::Track> {
        self.moq.find(PATH).unwrap().track(&self.moq, name).unwrap()
    }

    /// The objects of a group that is kept, and whether it is complete.
    fn group(&self, name: &str, number: u64) -> (Vec<Object>, bool) {
        let track = self.track(name);
        let mut cursor = track.find(number).unwrap();
        let (mut octets, mut objects, mut time) = (Vec::new(), Vec::new(), 0i64);
        let is_complete = loop {
            match track.next(&cursor) {
                Next::Octets(next) => {
                    octets.extend_from_slice(&next);
                    cursor.advance(next.len(), next.len());
                }
                Next::Complete => break true,
                Next::Wait => break false,
                Next::Gone(code) => panic!("gone: {code}"),
            }
        };
        let mut rest = &octets[..];
        while let Some((zigzag, length)) = varint::read(rest) {
            rest = &rest[length..];
            time += (zigzag >> 1) as i64 ^ -((zigzag & 1) as i64);
            let (size, length) = varint::read(rest).unwrap();
            let (object, left) = rest[length..].split_at(size as usize);
            objects.push((time as u64, object.to_vec()));
            rest = left;
        }
        (objects, is_complete)
    }

    /// Frames of a group, whose times are said twice, and whether it is complete.
    fn frames(&self, name: &str, number: u64) -> (Vec<Object>, bool) {
        let (objects, is_complete) = self.group(name, number);
        let frame = |(time, object): Object| {
            let (said, length) = varint::read(&object).unwrap();
            assert_eq!(said, time);
            (time, object[length..].to_vec())
        };
        (objects.into_iter().map(frame).collect(), is_complete)
    }

    fn catalog(&self) -> Value {
        let newest = self.track("catalog.json").newest().unwrap();
        let (objects, is_complete) = self.group("catalog.json", newest);
        assert!(is_complete && objects.len() == 1);
        serde_json::from_slice(&objects[0].1).unwrap()
    }

    fn counters(&self) -> BridgeCounters {
        self.bridge.counters
    }
}

fn units(units: &[&[u8]]) -> Vec<u8> {
    units.iter().flat_map(|unit| [&[0, 0, 0, 1][..], unit].concat()).collect()
}

#[test]
fn pictures_and_sound_become_a_broadcast() {
    let mut bed = Bed::new("");
    bed.key(1000);
    assert!(bed.moq.find(PATH).is_none(), "there may be sound too");
    bed.next(OPUS, (7, false), &[0xfc, 1]);
    let catalog = bed.catalog();
    assert_eq!(catalog["video"]["renditions"]["video"]["codec"], "avc3.42c01e");
    assert_eq!(catalog["audio"]["renditions"]["audio"]["codec"], "opus");
    bed.track("video").follow(Arc::new(AtomicUsize::new(0)), true).unwrap();
    bed.wait(40);
    bed.delta(1000 + 3600, 1);
    bed.next(OPUS, (7 + 960, false), &[0xfc, 2]);
    bed.key(1000 + 7200);
    let (frames, is_complete) = bed.frames("video", 0);
    assert!(is_complete, "a key frame begins the next");
    assert_eq!(frames, [(0, units(&[SPS, PPS, &[0x65, 9]])), (40_000, units(&[&[0x41, 1]]))]);
    let (frames, is_complete) = bed.frames("video", 1);
    assert!(!is_complete && frames.len() == 1 && frames[0].0 == 80_000);
    // Nobody follows the sound: its last frame is kept.
    assert_eq!(bed.frames("audio", 1), (vec![(20_000, vec![0xfc, 2])], true));
    assert!(bed.track("audio").find(0).is_none());
    let counters = bed.counters();
    assert_eq!((counters.frames, counters.groups, counters.frames_lost), (5, 4, 0));
    assert_eq!(bed.bridge.gauges().announced, 1);
    // What is not there is said not to be.
    let broadcast = bed.moq.find(PATH).unwrap();
    assert_eq!(broadcast.track(&bed.moq, "other").unwrap_err(), NoTrack::NotFound);
}

#[test]
fn all_groups_are_kept_for_who_follows() {
    let mut bed = Bed::new("");
    bed.key(0);
    bed.next(OPUS, (0, false), &[1]);
    bed.track("video").follow(Arc::new(AtomicUsize::new(0)), true).unwrap();
    (1..5).for_each(|number| bed.key(number * 3000));
    (0..5).for_each(|number| assert_eq!(bed.frames("video", number).0.len(), 1));
}

#[test]
fn one_kind_alone_is_announced_a_little_later_and_the_other_joins() {
    let mut bed = Bed::new("");
    bed.next(OPUS, (0, false), &[1]);
    assert!(bed.moq.find(PATH).is_none());
    bed.wait(1000);
    bed.next(OPUS, (48_000, false), &[2]);
    let catalog = bed.catalog();
    assert!(catalog.get("video").is_none() && catalog.get("audio").is_some());
    bed.key(0);
    assert!(bed.catalog().get("video").is_some());
    assert_eq!(bed.frames("video", 0).0[0].0, 1_000_000, "by when it came");
}

#[test]
fn after_a_loss_there_is_nothing_before_the_next_key_frame() {
    let mut bed = Bed::new("");
    bed.key(0);
    bed.next(OPUS, (0, false), &[1]);
    let asked = bed.counters().keyframes_wanted;
    bed.delta(3000, 1);
    let late = bed.lose();
    bed.delta(6000, 2);
    assert!(!bed.frames("video", 0).1, "it may come yet");
    bed.wait(200);
    bed.delta(9000, 3);
    let (frames, is_complete) = bed.frames("video", 0);
    assert!(is_complete && frames.len() == 2, "whole up to the loss");
    assert_eq!(bed.counters().keyframes_wanted, asked + 1);
    bed.delta(12_000, 4);
    bed.key(15_000);
    bed.delta(18_000, 5);
    assert_eq!(bed.frames("video", 1).0.len(), 2);
    assert_eq!((bed.counters().frames_lost, bed.counters().frames), (3, 5));
    // One that comes now is too late.
    bed.packet(H264, late, (3000, true), &[0x41, 9]);
    assert_eq!(bed.counters().dropped_late, 1);
    assert_eq!(bed.frames("video", 1).0.len(), 2);
}

#[test]
fn a_frame_that_is_lost_as_a_whole_is_missed_all_the_same() {
    let mut bed = Bed::new("rtcp = \"none\"");
    bed.key(0);
    bed.next(OPUS, (0, false), &[1]);
    bed.lose();
    // With a delimiter, each packet says that a frame begins.
    for number in 2..5u32 {
        bed.wait(30);
        bed.next(H264, (number * 3000, false), &[0x09, 0xf0]);
        bed.delta(number * 3000, 1);
    }
    let (frames, is_complete) = bed.frames("video", 0);
    assert!(is_complete && frames.len() == 1, "others refer to it");
    assert_eq!(bed.counters().frames_lost, 1 + 3);
    bed.sequences[usize::from(OPUS)] += 3;
    bed.next(OPUS, (960 * 4, false), &[1]);
    bed.wait(30);
    bed.next(OPUS, (960 * 5, false), &[1]);
    assert_eq!(bed.counters().frames_lost, 4 + 3, "each packet is one");
}

#[test]
fn a_packet_that_is_only_late_is_put_in_its_place() {
    let mut bed = Bed::new("");
    bed.key(0);
    bed.next(OPUS, (0, false), &[1]);
    let number = bed.last();
    bed.packet(H264, number + 2, (6000, true), &[0x41, 2]);
    bed.wait(100);
    bed.packet(H264, number + 1, (3000, true), &[0x41, 1]);
    let frames = bed.frames("video", 0).0;
    let times: Vec<_> = frames.iter().map(|(time, _)| *time).collect();
    assert_eq!(times, [0, 33_333, 66_666]);
    assert_eq!(frames[2].1, units(&[&[0x41, 2]]));
}

#[test]
fn what_is_no_frame_is_dropped_and_counted() {
    let mut bed = Bed::with("", Limits { frame: 1024, ..Limits::default() });
    bed.key(0);
    bed.next(OPUS, (0, false), &[1]);
    bed.next(H264, (3000, true), &[0x7c, 0x05, 1]);
    assert_eq!(bed.counters().dropped_malformed, 1);
    bed.next(H264, (6000, false), SPS);
    bed.next(H264, (6000, true), &[0x65; 1200]);
    assert_eq!(bed.counters().dropped_too_long, 1);
    bed.next(VP9, (0, true), &[1]);
    assert_eq!(bed.counters().dropped_codec, 1);
    bed.delta(9000, 1);
    assert_eq!(bed.counters().frames_lost, 1);
    assert_eq!(bed.counters().frames, 2);
    let mut bed = Bed::new("");
    bed.next(H264, (0, true), &[0x65, 1]);
    assert_eq!(
        (bed.counters().frames_lost, bed.counters().dropped_no_parameters),
        (1, 0),
        "it may have had some"
    );
    bed.next(H264, (3000, true), &[0x65, 1]);
    assert_eq!(bed.counters().dropped_no_parameters, 1);
}

#[test]
fn a_group_that_is_more_than_what_is_kept_ends() {
    let mut bed = Bed::with("", Limits { track_cache: 64 << 10, ..Limits::default() });
    bed.key(0);
    bed.next(OPUS, (0, false), &[1]);
    let before = bed.counters().keyframes_wanted;
    bed.wait(2000);
    for number in 1..80u32 {
        bed.next(H264, (number * 3000, true), &[0x41; 1000]);
    }
    let counters = bed.counters();
    assert_eq!((counters.dropped_unpublished, counters.keyframes_wanted), (1, before + 1));
    assert!(bed.moq.cached() <= 64 << 10);
    bed.key(500_000);
    assert_eq!(bed.frames("video", 1).0.len(), 1);
}

#[test]
fn the_broadcast_ends_with_its_publisher_and_another_begins_anew() {
    let mut bed = Bed::new("");
    bed.key(0);
    bed.next(OPUS, (0, false), &[1]);
    let track = bed.track("video");
    bed.wait(5000);
    bed.room.handle_timeout(bed.now);
    bed.bridge.look(&mut bed.room, bed.now);
    assert!(bed.moq.find(PATH).is_none());
    assert_eq!(track.end(), Some(End::Complete(1)));
    assert_eq!(bed.room.streams().iter().map(|stream| stream.watchers).sum::<u32>(), 0);
    bed.key(70_000);
    bed.next(OPUS, (0, false), &[1]);
    assert_eq!(bed.frames("video", 0).0[0].0, 0, "its own times");
}

#[test]
fn sound_and_pictures_keep_together_by_reports() {
    let mut bed = Bed::new("rtcp = \"mux\"");
    let report = |ssrc: u32, ntp: u64, rtp: u32| {
        let mut report = vec![0x80, 200, 0, 6];
        report.extend(ssrc.to_be_bytes());
        report.extend(ntp.to_be_bytes());
        report.extend(rtp.to_be_bytes());
        report.extend([0; 8]);
        report
    };
    bed.key(1000);
    // Sound comes late by 300 ms.
    bed.wait(300);
    bed.next(OPUS, (500, false), &[1]);
    assert_eq!(bed.frames("audio", 0).0[0].0, 300_000, "by when it came");
    let second = 1u64 << 32;
    bed.datagram(&report(H264.into(), 100 * second, 1000));
    bed.datagram(&report(OPUS.into(), 100 * second, 500));
    bed.wait(20);
    bed.next(OPUS, (500 + 960, false), &[2]);
    bed.key(1000 + 1800);
    let (sound, pictures) = (bed.frames("audio", 1).0[0].0, bed.frames("video", 1).0[0].0);
    assert_eq!((sound, pictures), (320_000, 320_000));
}

#[test]
fn another_stream_takes_over_when_the_first_is_silent() {
    let mut bed = Bed::new("");
    bed.key(0);
    bed.next(OPUS, (0, false), &[1]);
    let send = |bed: &mut Bed, sequence: u16, payload: &[u8]| {
        let header = Header { payload_type: H264, sequence, timestamp: 7, ssrc: 77 };
        let mut datagram = packet(header, payload);
        datagram[1] |= 0x80;
        bed.datagram(&datagram);
    };
    send(&mut bed, 5, &[0x41, 1]);
    assert_eq!(bed.counters().other_streams, 1, "of another codec, or of the same, until then");
    bed.wait(1000);
    send(&mut bed, 6, &[0x65, 7]);
    assert_eq!(bed.frames("video", 0).0.len(), 1);
    assert_eq!(bed.counters().frames_lost, 1, "what was before it is not known");
    send(&mut bed, 7, &[0x65, 8]);
    assert_eq!(bed.counters().dropped_no_parameters, 1, "those of the former are not its");
    send(&mut bed, 8, &[&[0x78, 0, 5][..], SPS, &[0, 2], PPS, &[0, 2, 0x65, 9]].concat());
    assert_eq!(bed.frames("video", 1).0[0].1, units(&[SPS, PPS, &[0x65, 9]]));
}

#[test]
fn a_codec_that_changes_is_another_broadcast() {
    let mut bed = Bed::new("");
    bed.key(0);
    bed.next(OPUS, (0, false), &[1]);
    let number = bed.moq.find(PATH).unwrap().number;
    bed.wait(2000);
    let header = Header { payload_type: VP8, sequence: bed.last() + 1, timestamp: 0, ssrc: H264.into() };
    let mut datagram = packet(header, &[0x10, 0x10, 0, 0, 0x9d, 0x01, 0x2a, 64, 0, 48, 0, 1]);
    datagram[1] |= 0x80;
    bed.datagram(&datagram);
    let broadcast = bed.moq.find(PATH).unwrap();
    assert_ne!(broadcast.number, number);
    assert_eq!(bed.catalog()["video"]["renditions"]["video"]["codedWidth"], 64);
    assert_eq!(bed.frames("video", 0).0.len(), 1);
}

#[test]
fn the_layer_with_the_highest_rate_is_published_from_a_key_frame_on() {
    let mut bed = Bed::new("");
    assert!(bed.room.offer_session(1, bed.now));
    let send_part = |bed: &mut Bed, rid: &str, (sequence, timestamp): (u16, u32), marker, payload: &[u8]| {
        let header = Header { payload_type: H264, sequence, timestamp, ssrc: rid.len() as u32 };
        bed.room.handle_session(1, (header, marker), Some(rid), payload, bed.now);
        bed.bridge.look(&mut bed.room, bed.now);
    };
    let send = |bed: &mut Bed, rid: &str, sequence: u16, timestamp: u32, payload: &[u8]| {
        send_part(bed, rid, (sequence, timestamp), true, payload);
    };
    let key = [&[0x78, 0, 5][..], SPS, &[0, 2], PPS, &[0, 2, 0x65, 9]].concat();
    send(&mut bed, "l", 1, 0, &key);
    for number in 2..60u16 {
        bed.wait(50);
        let timestamp = u32::from(number) * 4500;
        send(&mut bed, "l", number, timestamp, &[0x41, 1]);
        send(&mut bed, "hi", number, timestamp, &[0x41; 900]);
    }
    assert_eq!(bed.counters().frames, 59, "the lower one, which was first");
    assert_eq!(bed.bridge.candidate, Some(1));
    assert!(bed.room.poll_session_keyframe(bed.now).is_some(), "a key frame of the other was asked for");
    // A picture of the lower one is coming, of the same time.
    send_part(&mut bed, "l", (60, 60 * 4500), false, &[0x41, 1]);
    send(&mut bed, "hi", 60, 60 * 4500, &key);
    send(&mut bed, "hi", 61, 61 * 4500, &[0x41; 900]);
    send(&mut bed, "l", 61, 60 * 4500, &[0x41, 1]);
    assert_eq!((bed.counters().frames, bed.counters().frames_lost), (61, 1));
    assert_eq!((bed.frames("video", 1).0.len(), bed.frames("video", 1).0[1].1.len()), (2, 904));
    let watchers: Vec<_> = bed.room.streams().iter().map(|stream| stream.watchers).collect();
    assert_eq!(watchers, [0, 1]);
}

#[test]
fn another_codec_takes_over_from_a_silent_stream() {
    let mut bed = Bed::new("");
    bed.key(0);
    bed.next(OPUS, (0, false), &[1]);
    let key = [0x10, 0x10, 0, 0, 0x9d, 0x01, 0x2a, 64, 0, 48, 0, 1];
    bed.next(VP8, (0, true), &key);
    assert_eq!(bed.counters().other_streams, 1);
    bed.wait(1000);
    bed.next(VP8, (90_000, true), &key);
    bed.next(OPUS, (48_000, false), &[1]);
    assert_eq!(bed.catalog()["video"]["renditions"]["video"]["codec"], "vp8");
}

#[test]
fn one_that_was_forgotten_for_others_is_announced_again_when_they_are_gone() {
    let mut bed = Bed::new("");
    bed.key(0);
    bed.next(OPUS, (0, false), &[1]);
    let others: Vec<_> = (1..9)
        .map(|number| {
            let publisher = Publisher::new(number, Arc::new(AtomicUsize::new(0)));
            let other = Broadcast::new(number, (PATH, PATH), Vec::new(), publisher);
            bed.moq.announce(Arc::clone(&other)).unwrap();
            other
        })
        .collect();
    bed.wait(1000);
    bed.key(90_000);
    assert_eq!(bed.bridge.gauges().announced, 0);
    others.iter().for_each(|other| _ = bed.moq.retract(other, 99));
    assert!(bed.moq.find(PATH).is_none());
    bed.wait(1000);
    bed.key(180_000);
    bed.next(OPUS, (96_000, false), &[1]);
    bed.wait(1000);
    bed.key(270_000);
    assert_eq!(bed.bridge.gauges().announced, 1);
    let catalog = bed.catalog();
    assert!(catalog.get("video").is_some() && catalog.get("audio").is_some());
    assert_eq!(bed.track("video").newest(), Some(1));
}

#[test]
fn a_session_that_takes_the_path_is_made_room_for() {
    let mut bed = Bed::new("");
    bed.key(0);
    bed.next(OPUS, (0, false), &[1]);
    let publisher = Publisher::new(1, Arc::new(AtomicUsize::new(0)));
    let other = Broadcast::new(1, (PATH, PATH), Vec::new(), publisher);
    let former = bed.moq.announce(Arc::clone(&other)).unwrap().unwrap();
    while former.close_one() {}
    bed.wait(1000);
    bed.key(90_000);
    assert_eq!(bed.bridge.gauges().announced, 0);
    let before = bed.counters();
    bed.wait(2000);
    bed.key(180_000);
    let after = bed.counters();
    assert_eq!((after.frames, after.keyframes_wanted), (before.frames, before.keyframes_wanted));
    assert!(after.dropped_unpublished > before.dropped_unpublished);
    // It goes, and who asks before the bridge has seen that waits.
    bed.moq.retract(&other, 99);
    let early = bed.track("video");
    let wrong = bed.track("wrong");
    bed.wait(1000);
    bed.key(270_000);
    bed.key(273_000);
    assert!(Arc::ptr_eq(&early, &bed.track("video")) && early.newest().is_some());
    assert!(matches!(wrong.end(), Some(End::Failed(_))), "there is none of that name");
    assert!(bed.catalog().get("video").is_some());
    assert_eq!(bed.bridge.gauges().announced, 1);
}
