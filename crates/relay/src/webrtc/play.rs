//! What a session plays: packets and messages of the room on their way to its peer.
//!
//! The capacity of its path is estimated from the peer's reports (transport-wide feedback, or REMB). The estimate decides which simulcast
//! layer the session sees. Packets are paced by it only if there are layers: a stream that cannot be made smaller would only arrive later.

use std::time::{Duration, Instant};

use expressway_netio::{Flow, IoError, PacketIo};
use str0m::Input;
use str0m::bwe::{Bitrate, BweKind};
use str0m::net::Transmit;

use super::layers::{Wish, layers, up_to};
use super::payloads::Payloads;
use super::send_track::Written;
use super::session::{Alive, BURST, RoomContext, Session};
use crate::config::Kind;
use crate::rtp::Progress;
use crate::rtp::history::Position;

/// Between two choices of layers.
const CHOICE: Duration = Duration::from_millis(100);
/// How long packets may be held back to spread them, and how many: beyond, all go at once.
const HELD: (Duration, usize) = (Duration::from_millis(200), 256);
/// What the path is probed for, in percent of the rate of the highest layer: somewhat more than that takes to be chosen.
const PROBE: u64 = 150;

/// What is known of the path to a peer that plays.
#[derive(Debug)]
pub(super) struct Path {
    /// The peer reports on every packet (draft-holmer-rmcat-transport-wide-cc-extensions-01).
    pub(super) has_feedback: bool,
    /// Bits per second that it carries; `None`: unknown.
    pub(super) estimate: Option<u64>,
    /// The highest layer that the peer asks for, by RID.
    pub(super) highest: Option<Box<str>>,
    /// When layers are chosen again.
    next_choice: Instant,
    /// What it is probed for, in bits per second.
    probed: u64,
}

/// No path of a session carries more, in bits per second.
const MOST_BITS: u64 = 100_000_000_000;

impl Path {
    /// Nothing is known yet.
    pub(super) fn new(has_feedback: bool, highest: Option<Box<str>>, now: Instant) -> Self {
        Self { has_feedback, estimate: None, highest, next_choice: now, probed: 0 }
    }
}

impl Session {
    /// What the path carries is estimated anew.
    pub(super) fn handle_estimate(&mut self, estimate: BweKind) {
        let bits = match estimate {
            BweKind::Twcc { estimate, can_probe: true } => estimate.as_u64(),
            BweKind::Remb { estimate, .. } if !self.path.has_feedback => estimate.as_u64(),
            _ => return,
        };
        // A peer may report anything (REMB goes beyond 2^80), and estimates are summed.
        self.path.estimate = Some(bits.min(MOST_BITS));
    }

    /// The highest layer that the peer asks for; `None`: any.
    pub(super) fn set_highest(&mut self, highest: Option<Box<str>>, now: Instant) {
        (self.path.highest, self.path.next_choice) = (highest, now);
    }

    /// Chooses layers.
    fn choose(&mut self, context: &mut RoomContext<'_>, now: Instant) {
        if now < self.path.next_choice {
            return;
        }
        self.path.next_choice = now + CHOICE;
        let room = &mut *context.room;
        let there = layers(room, Kind::Video, now);
        let sound: u64 = self
            .tracks
            .iter()
            .filter(|track| track.kind == Kind::Audio)
            .filter_map(|track| room.streams().get(usize::from(track.source?)))
            .map(|stream| stream.rate.bits_per_second(now))
            .sum();
        let highest = self.path.highest.as_deref();
        let most = up_to(&there, highest).last().map_or(0, |layer| layer.rate);
        let budget = self.path.estimate.map(|estimate| estimate.saturating_sub(sound));
        let (mut needed, mut before, mut after) = (Vec::new(), Vec::new(), Vec::new());
        for track in self.tracks.iter_mut().filter(|track| track.kind == Kind::Video) {
            before.extend(track.watched());
            needed.extend(track.choose(&there, Wish { budget, highest }, now));
            after.extend(track.watched());
        }
        room.watch(before.into_iter(), after.into_iter());
        needed.into_iter().for_each(|stream| room.want_session_keyframe(stream));
        let probed = if most == 0 { 0 } else { (most + sound) * PROBE / 100 };
        // A rate is never the same twice.
        if self.path.has_feedback && probed.abs_diff(self.path.probed) > self.path.probed / 8 {
            self.path.probed = probed;
            self.rtc.bwe().set_desired_bitrate(Bitrate::from(probed));
        }
        self.pace(context, now);
    }

    /// Packets of a layer are spread, unless they wait for long.
    fn pace(&mut self, context: &RoomContext<'_>, now: Instant) {
        for track in &self.tracks {
            let mut api = self.rtc.direct_api();
            let Some(stream) = api.stream_tx(&track.ssrc) else { continue };
            let is_late = stream.queue_info().is_some_and(|queue| {
                let first = queue.first_unsent();
                let waits = first.map_or(Duration::ZERO, |first| now.saturating_duration_since(first));
                waits >= HELD.0 || queue.packet_count() >= HELD.1
            });
            let is_spread = self.path.has_feedback && !is_late && track.is_layered(context.room);
            stream.set_unpaced(!is_spread);
        }
    }

    /// The layers that it sees are others' again.
    pub(super) fn unwatch(&self, context: &mut RoomContext<'_>) {
        self.tracks.iter().for_each(|track| context.room.watch(track.watched(), std::iter::empty()));
    }

    /// Gives it the next packets and messages of the room, and sends what there is. [`Progress::Done`]: it has everything that it
    /// takes.
    pub(super) fn play(
        &mut self,
        io: &mut dyn PacketIo,
        (context, payloads): (&mut RoomContext<'_>, &mut Payloads),
        flow: impl Fn(&Transmit) -> Flow,
        now: Instant,
    ) -> Result<(Progress, Alive), IoError> {
        if !self.send(io, &flow, context.counters)? {
            return Ok((Progress::Blocked, Ok(())));
        }
        if !self.is_connected() {
            return Ok((Progress::Done, Ok(())));
        }
        let mut alive = Ok(());
        if self.write_packets(context, payloads, now) {
            alive = self.input(Input::Timeout(now)).and_then(|()| self.advance(context, now));
        }
        if let Err(why) = alive.and_then(|()| self.write_messages(context, now)) {
            return Ok((Progress::Done, Err(why)));
        }
        let has_more = self.cursor < context.room.history().head()
            || self.channels.as_ref().is_some_and(|channels| channels.has_more(context.log));
        Ok(match (self.send(io, &flow, context.counters)?, has_more) {
            (false, _) => (Progress::Blocked, Ok(())),
            (true, true) => (Progress::More, Ok(())),
            (true, false) => (Progress::Done, Ok(())),
        })
    }

    /// Writes the next packets of media. Whether there were some.
    fn write_packets(
        &mut self,
        context: &mut RoomContext<'_>,
        payloads: &mut Payloads,
        now: Instant,
    ) -> bool {
        if self.tracks.is_empty() {
            self.cursor = context.room.history().head();
            return false;
        }
        self.choose(context, now);
        let RoomContext { room, counters, .. } = context;
        if self.cursor < room.history().tail() {
            counters.skipped += room.history().tail() - self.cursor;
            self.cursor = room.history().tail();
            for source in self.tracks.iter().filter_map(|track| track.source) {
                room.want_session_keyframe(source);
            }
        }
        let mut written = 0;
        let first = self.cursor;
        self.cursor = room.history().head().min(first + BURST as Position);
        for position in first..self.cursor {
            for track in &mut self.tracks {
                let before = (track.source, track.wanted());
                let what = track.write(&mut self.rtc, (room, payloads), position, now);
                let after = (track.source, track.wanted());
                if before != after {
                    let watched =
                        |(source, wanted): (Option<u8>, Option<u8>)| source.into_iter().chain(wanted);
                    room.watch(watched(before), watched(after));
                    counters.layer_changes += u64::from(before.1.is_some() && before.0.is_some());
                }
                match what {
                    Written::No => continue,
                    Written::Codec => counters.dropped_codec += 1,
                    Written::Yes(count) => written += count,
                    Written::First => written += 1,
                    Written::Waiting => {}
                }
                if let (Written::First, Some(stream), _) | (Written::Waiting, _, Some(stream)) =
                    (what, track.source, track.wanted())
                {
                    room.want_session_keyframe(stream);
                }
                break;
            }
        }
        counters.packets += written as u64;
        written > 0
    }
}
