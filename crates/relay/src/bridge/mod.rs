//! From RTP to Media over QUIC: what a room's publisher sends, as a broadcast that MoQ players understand.
//!
//! ```text
//!  history ─▶ Order: by sequence number ─▶ Assembler: frames ─▶ Clock: times ─▶ LocalTrack ─▶ sessions of any worker
//!             (waits for what is missing)  (H.264, VP8, Opus)
//! ```
//!
//! * [`order`]: packets of a stream in order, in the room's history; [`frames`]: packets to frames, by `h264` and `vp8`.
//! * [`clock`]: RTP timestamps as microseconds; `catalog`: by which players find tracks.
//! * `lane`: all of this for one stream; `choice`: which stream that is.
//!
//! The format is hang's (draft-lcurley-moq-hang), which the players of moq-rs and @moq read. A broadcast has one track of pictures and one of
//! sound. A group begins at a key frame and has all frames up to its end. If a packet is lost for good, its frame and the group end there,
//! a key frame is asked for, and the next group begins with it. Each frame of sound is a group.
//!
//! A bridge runs with its room, on one worker. It does what a packet needs when that has come, and has no timers. What is not in the room's
//! history is here for one frame of each lane at most.

mod catalog;
mod choice;
pub mod clock;
pub mod frames;
mod h264;
mod lane;
pub mod order;
#[cfg(test)]
mod tests;
mod vp8;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::config::Kind;
use crate::moq;
use crate::moq::local::{HEAD, LocalBroadcast, LocalTrack};
use crate::moq::wire::TrackInfo;
use crate::rtp::Room;
use crate::rtp::header::Header;
use crate::rtp::history::Position;
use crate::status::{BridgeCounters, BridgeGauges};
use frames::{Fault, Frame, is_bridged};
use lane::{Arrived, Lane};

/// How long a broadcast waits to be announced for the first frame of a lane that it has, so that its first catalog names both; and
/// between two announcements.
const SETTLED: Duration = Duration::from_secs(1);
/// How often it is looked whether the broadcast still stands, and another stream is better.
const LOOK: Duration = Duration::from_secs(1);

/// How long a group is kept while there is a newer one, in milliseconds: as long as a player that is behind may want it.
const MAX_AGE: u64 = 30_000;
/// Units of a frame's time in a second.
const TIMESCALE: u64 = 1_000_000;

/// Of tracks with the same priority of a subscriber's: the catalog first, then sound, as hang has it.
fn info(priority: u8) -> TrackInfo {
    TrackInfo { priority, max_age: MAX_AGE, timescale: TIMESCALE }
}

const CATALOG_PRIORITY: u8 = 100;

/// Where the lane of a kind is.
fn place(kind: Kind) -> usize {
    match kind {
        Kind::Video => 0,
        Kind::Audio => 1,
    }
}

fn priority(kind: Kind) -> u8 {
    match kind {
        Kind::Audio => 80,
        Kind::Video => 60,
    }
}

/// What a room's publisher sends, on its way into a broadcast.
#[derive(Debug)]
pub struct Bridge {
    /// The path of the broadcast.
    path: Box<str>,
    moq: Arc<moq::room::Room>,
    /// The next packet in the room's history.
    cursor: Position,
    /// Publishers that the room has had: another one begins anew.
    publishers: u64,
    /// When frames' times begin: at the publisher's first packet.
    epoch: Instant,
    /// By kind, as [`place`] says.
    lanes: [Option<Lane>; 2],
    /// A stream that the video lane is to change to, at a key frame.
    candidate: Option<u8>,
    broadcast: Option<Announced>,
    /// No announcement before.
    not_before: Instant,
    look_at: Instant,
    /// What is counted.
    pub counters: BridgeCounters,
}

/// A broadcast, and its catalog.
#[derive(Debug)]
struct Announced {
    broadcast: LocalBroadcast,
    catalog: Option<LocalTrack>,
    is_announced: bool,
    /// Another's is in its place.
    is_taken: bool,
}

impl Bridge {
    /// Publishes what comes into a room as the broadcast `path` of `moq`.
    pub fn new(path: &str, moq: Arc<moq::room::Room>, now: Instant) -> Self {
        Self {
            path: path.into(),
            moq,
            cursor: 0,
            publishers: 0,
            epoch: now,
            lanes: [None, None],
            candidate: None,
            broadcast: None,
            not_before: now,
            look_at: now,
            counters: BridgeCounters::default(),
        }
    }

    /// After something has happened in the room: takes in what is new.
    pub fn look(&mut self, room: &mut Room, now: Instant) {
        let publishers = room.counters.publishers;
        if !room.has_publisher() || publishers != self.publishers {
            self.end(room);
            (self.publishers, self.epoch) = (publishers, now);
        }
        if !room.has_publisher() {
            self.cursor = room.history().head();
            return;
        }
        self.cursor = self.cursor.max(room.history().tail());
        while self.cursor < room.history().head() {
            self.cursor += 1;
            self.take(room, self.cursor - 1, now);
        }
        for kind in [Kind::Video, Kind::Audio] {
            self.advance(room, kind, now);
        }
        if let Some(one) = &mut self.broadcast {
            one.broadcast.end_former();
        }
        self.announce(now);
        if self.look_at <= now {
            self.look_at = now + LOOK;
            self.look_around(room, now);
        }
        if self.is_taken() {
            return;
        }
        if let Some(lane) = &mut self.lanes[place(Kind::Video)]
            && lane.poll_key(now)
        {
            self.counters.keyframes_wanted += 1;
            room.want_session_keyframe(lane.stream);
        }
    }

    /// What it is like now.
    pub fn gauges(&self) -> BridgeGauges {
        let is_there = |one: &Announced| one.is_announced && !one.is_taken;
        BridgeGauges { announced: self.broadcast.as_ref().is_some_and(is_there).into() }
    }

    fn is_taken(&self) -> bool {
        self.broadcast.as_ref().is_some_and(|one| one.is_taken)
    }

    /// The publisher is gone, and with it the broadcast.
    fn end(&mut self, room: &mut Room) {
        self.candidate = None;
        // Their tracks are complete, before there is no broadcast.
        for lane in self.lanes.iter_mut().filter_map(Option::take) {
            room.watch([lane.stream].into_iter(), std::iter::empty());
        }
        self.broadcast = None;
    }

    /// A packet goes to the lane of its stream.
    fn take(&mut self, room: &mut Room, position: Position, now: Instant) {
        let Some(kept) = room.history().at(position) else { return };
        let Some(header) = Header::parse(kept.bytes) else { return };
        let stream = kept.mapping.stream;
        let arrived = Arrived { stream, ssrc: header.ssrc, sequence: header.sequence, position };
        let codec = room.config().codecs[usize::from(header.payload_type)];
        let own = self.lanes.iter_mut().flatten().find(|lane| lane.stream == stream);
        // A payload of another codec on the same stream takes a number there, at least.
        let is_changed = |lane: &Lane| codec.is_some_and(|codec| codec != lane.codec() && is_bridged(codec));
        match own {
            Some(lane) if is_changed(lane) => self.end(room),
            Some(lane) if lane.ssrc != header.ssrc => {
                return lane.change(arrived, &mut self.counters, now);
            }
            Some(lane) => return lane.note(arrived, &mut self.counters, now),
            None => {}
        }
        let Some(codec) = codec.filter(|codec| is_bridged(*codec)) else {
            self.counters.dropped_codec += 1;
            return;
        };
        if self.lanes[place(codec.kind())].is_some() && self.take_other(room, arrived, codec, now) {
            return;
        }
        let longest = usize::try_from(self.moq.limits.frame).unwrap_or(usize::MAX) - HEAD;
        self.lanes[place(codec.kind())] = Lane::new(codec, arrived, longest, now);
        room.watch(std::iter::empty(), [stream].into_iter());
    }

    /// Goes on with a lane as far as there are packets.
    fn advance(&mut self, room: &Room, kind: Kind, now: Instant) {
        while let Some(lane) = &mut self.lanes[place(kind)]
            && let Some(made) = lane.next(room, &mut self.counters, now)
        {
            made.into_iter().flatten().for_each(|made| self.publish(made, room, kind, now));
        }
    }

    fn publish(&mut self, made: Result<Frame, Fault>, room: &Room, kind: Kind, now: Instant) {
        let is_taken = self.is_taken();
        let Some(lane) = &mut self.lanes[place(kind)] else { return };
        let Some(timed) = lane.judge(made, (room, self.epoch), &mut self.counters, now) else { return };
        let has_changed = timed.frame.is_key && lane.poll_decoding();
        if is_taken {
            self.counters.dropped_unpublished += 1;
            return;
        }
        if lane.track.is_none() {
            self.open_track(kind);
        }
        if has_changed {
            self.write_catalog(now);
        }
        if let Some(lane) = &mut self.lanes[place(kind)] {
            lane.write(timed, &mut self.counters, now);
        }
    }

    /// A lane gets its track, and there is a broadcast.
    fn open_track(&mut self, kind: Kind) {
        let one = self.broadcast.get_or_insert_with(|| {
            let broadcast = LocalBroadcast::new(&self.moq, &self.path);
            Announced { broadcast, catalog: None, is_announced: false, is_taken: false }
        });
        let track = one.broadcast.track(catalog::track(kind), info(priority(kind)));
        if let Some(lane) = &mut self.lanes[place(kind)] {
            lane.track = track;
        }
    }

    fn write_catalog(&mut self, now: Instant) {
        let tracks =
            self.lanes.iter().flatten().filter_map(|lane| Some((lane.kind(), lane.decoding.as_ref()?)));
        let written = catalog::write(tracks);
        let Some(one) = &mut self.broadcast else { return };
        if one.catalog.is_none() {
            one.catalog = one.broadcast.track(catalog::TRACK, info(CATALOG_PRIORITY));
        }
        let Some(track) = &mut one.catalog else { return };
        let mut octets = vec![0; HEAD];
        octets.extend_from_slice(&written);
        let time = now.saturating_duration_since(self.epoch).as_micros() as u64;
        if track.begin(now) {
            track.write(time, octets, HEAD);
            track.end_group();
        }
    }

    /// Announces the broadcast once its catalog names all lanes, or they have had time enough.
    fn announce(&mut self, now: Instant) {
        let Some(one) = self.broadcast.as_mut().filter(|one| !one.is_announced) else { return };
        let has_all = self.lanes.iter().all(|lane| lane.as_ref().is_some_and(|lane| lane.decoding.is_some()));
        let is_late = now.saturating_duration_since(self.epoch) >= SETTLED;
        if one.catalog.is_none() || !(has_all || is_late) || now < self.not_before {
            return;
        }
        self.not_before = now + SETTLED;
        one.is_announced = one.broadcast.announce().is_ok();
    }
}
