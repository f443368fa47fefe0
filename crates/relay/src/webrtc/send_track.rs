//! What a receiving session sees of a room: one audio and one video stream, whose sequence numbers and timestamps
//! continue whichever of the room's streams they come from. Of a publisher's simulcast it sees one layer, and
//! changes to another at a key frame of that layer.

use std::time::{Duration, Instant};

use str0m::media::{Mid, Pt};
use str0m::rtp::{RtpWrite, SeqNo, Ssrc};
use str0m::{Rtc, rtp};

use super::layers::{Layer, Wish, choose};
use super::payloads::Payloads;
use super::pictures::{PictureNumbers, Rewritten, begins_keyframe};
use crate::config::{Codec, Kind};
use crate::rtp::Room;
use crate::rtp::header::Header;
use crate::rtp::history::{Kept, Position};

/// Silence of a stream after which another of its kind takes its place.
const SILENT: Duration = Duration::from_secs(1);
/// Between two requests of a session for the key frame that it waits for: the room passes on fewer.
const ASK_AGAIN: Duration = Duration::from_millis(500);
/// Packets behind the first of a key frame that may have come before it, by reordering or a repair.
const OVERTOOK: Position = 64;

/// A stream that a session receives.
#[derive(Debug)]
pub(super) struct SendTrack {
    pub(super) kind: Kind,
    pub(super) mid: Mid,
    pub(super) ssrc: Ssrc,
    /// Payload types of the room, and what the session calls them.
    types: Vec<(u8, Pt)>,
    /// The room's stream that it sees.
    pub(super) source: Option<u8>,
    /// Since when.
    since: Option<Instant>,
    /// The SSRC of that stream: another may go on with it, with its own numbers of pictures.
    publisher: u32,
    /// The layer that it is to see, once there is a key frame of it.
    wanted: Option<u8>,
    /// When it last asked for that.
    asked: Option<Instant>,
    sequence_offset: u16,
    timestamp_offset: u32,
    /// What is before this number is of the stream before.
    first: u64,
    sent: Option<Sent>,
    pictures: PictureNumbers,
}

/// The packet with the highest number that was sent.
#[derive(Clone, Copy, Debug)]
struct Sent {
    /// With the times that numbers wrapped.
    sequence: u64,
    timestamp: u32,
    /// The moment of its timestamp by the publisher's clock, if that is known.
    moment: Option<Instant>,
    at: Instant,
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// So many go.
    Yes(usize),
    /// They go, and the stream is new to the session, which can show nothing of it before a key frame.
    First,
    /// It is of another kind or stream.
    No,
    /// It is of the layer that the session waits for, and no key frame: one is to be asked for.
    Waiting,
    /// The session cannot play it.
    Codec,
}

impl SendTrack {
    pub(super) fn new(kind: Kind, mid: Mid, ssrc: Ssrc, types: Vec<(u8, Pt)>) -> Self {
        Self {
            kind,
            mid,
            ssrc,
            types,
            source: None,
            since: None,
            publisher: 0,
            wanted: None,
            asked: None,
            sequence_offset: 0,
            timestamp_offset: 0,
            first: 0,
            sent: None,
            pictures: PictureNumbers::default(),
        }
    }

    /// The payload type of its kind for which there is no word in the session's answer.
    fn payload_type(&self, room: u8) -> Option<Pt> {
        self.types.iter().find(|(own, _)| *own == room).map(|(_, pt)| *pt)
    }

    /// The layers whose packets it needs.
    pub(super) fn watched(&self) -> impl Iterator<Item = u8> + use<> {
        self.source.into_iter().chain(self.wanted)
    }

    /// The layer that it waits for.
    pub(super) fn wanted(&self) -> Option<u8> {
        self.wanted
    }

    /// Whether what it sees is a layer.
    pub(super) fn is_layered(&self, room: &Room) -> bool {
        let stream = self.source.or(self.wanted).and_then(|source| room.streams().get(usize::from(source)));
        stream.is_some_and(|stream| stream.layer.is_some())
    }

    /// Chooses a layer of those that are there. Says of which stream a key frame is needed for that.
    pub(super) fn choose(&mut self, layers: &[Layer<'_>], wish: Wish<'_>, now: Instant) -> Option<u8> {
        let chosen = choose(layers, self.source.zip(self.since), wish, now);
        let wanted = chosen.filter(|chosen| self.source != Some(*chosen));
        if wanted != self.wanted {
            (self.wanted, self.asked) = (wanted, wanted.map(|_| now));
            return wanted;
        }
        None
    }

    /// Gives a packet of the room to the session, if that is to see it.
    pub(super) fn write(
        &mut self,
        rtc: &mut Rtc,
        (room, payloads): (&Room, &mut Payloads),
        position: Position,
        now: Instant,
    ) -> Written {
        let Some(kept) = room.history().at(position) else { return Written::No };
        let Some(header) = Header::parse(kept.bytes) else { return Written::No };
        let Some(codec) = room.config().codecs[usize::from(header.payload_type)] else { return Written::No };
        if codec.kind() != self.kind {
            return Written::No;
        }
        let Some(pt) = self.payload_type(header.payload_type) else { return Written::Codec };
        let (number, from) = (kept.mapping.stream, (room, payloads));
        if self.source == Some(number) {
            return match self.send(rtc, from, (position, kept, header), (codec, pt), now) {
                true => Written::Yes(1),
                false => Written::No,
            };
        }
        let stream = room.streams().get(usize::from(number));
        if stream.is_some_and(|stream| stream.layer.is_some()) {
            return self.write_layer(rtc, from, (position, kept, header), (codec, pt), now);
        }
        if !self.may_follow(room, now) {
            return Written::No;
        }
        self.follow(room, kept, header, now);
        match self.send(rtc, from, (position, kept, header), (codec, pt), now) {
            true => Written::First,
            false => Written::No,
        }
    }

    /// A packet of a layer that it does not see: from a key frame of the one that it waits for on, it does.
    fn write_layer(
        &mut self,
        rtc: &mut Rtc,
        (room, payloads): (&Room, &mut Payloads),
        (position, kept, header): (Position, Kept<'_>, Header),
        (codec, pt): (Codec, Pt),
        now: Instant,
    ) -> Written {
        if self.wanted != Some(kept.mapping.stream) {
            return Written::No;
        }
        let Some(payload) = payloads.payload(room.history(), position) else { return Written::No };
        if !begins_keyframe(codec, &payload) {
            let is_due = self.asked.is_none_or(|asked| now.saturating_duration_since(asked) >= ASK_AGAIN);
            if is_due {
                self.asked = Some(now);
                return Written::Waiting;
            }
            return Written::No;
        }
        self.follow(room, kept, header, now);
        let mut written =
            usize::from(self.send(rtc, (room, payloads), (position, kept, header), (codec, pt), now));
        for before in position.saturating_sub(OVERTOOK)..position {
            let Some(other) = room.history().at(before) else { continue };
            let ahead = other.mapping.sequence.wrapping_sub(kept.mapping.sequence);
            if other.mapping.stream != kept.mapping.stream || ahead == 0 || ahead > OVERTOOK as u16 {
                continue;
            }
            if let Some(header) = Header::parse(other.bytes) {
                written +=
                    usize::from(self.send(rtc, (room, payloads), (before, other, header), (codec, pt), now));
            }
        }
        Written::Yes(written)
    }

    /// A packet of the stream that it sees. False: it is from before that.
    fn send(
        &mut self,
        rtc: &mut Rtc,
        (room, payloads): (&Room, &mut Payloads),
        (position, kept, header): (Position, Kept<'_>, Header),
        (codec, pt): (Codec, Pt),
        now: Instant,
    ) -> bool {
        let sequence = self.extend(kept.mapping.sequence.wrapping_add(self.sequence_offset));
        let Some(sequence) = sequence.filter(|sequence| *sequence >= self.first) else { return false };
        let timestamp = kept.mapping.timestamp.wrapping_add(self.timestamp_offset);
        let Some(payload) = payloads.payload(room.history(), position) else { return false };
        let stream = room.streams().get(usize::from(kept.mapping.stream));
        let moment = stream.and_then(|stream| room.moment(stream, header.timestamp, now));
        if self.sent.is_none_or(|sent| sent.sequence < sequence) {
            self.sent = Some(Sent { sequence, timestamp, moment, at: now });
        }
        let is_layer = stream.is_some_and(|stream| stream.layer.is_some());
        if std::mem::replace(&mut self.publisher, header.ssrc) != header.ssrc {
            self.pictures.change();
        }
        let rewritten = if is_layer { self.pictures.rewrite(codec, &payload) } else { Rewritten::Same };
        let mut api = rtc.direct_api();
        let Some(stream) = api.stream_tx(&self.ssrc) else { return false };
        let wall_clock = moment.unwrap_or(now);
        let packet = |payload| RtpWrite::new(pt, SeqNo::from(sequence), timestamp, wall_clock, payload);
        let packet = match rewritten {
            Rewritten::Same => packet(payload),
            Rewritten::Vp8(patch) => packet(payload).vp8_patch(patch),
            Rewritten::Payload(other) => packet(other.into()),
        };
        let marker = kept.bytes[1] & 0x80 != 0;
        stream.write_rtp(packet.marker(marker).ext_vals(rtp::ExtensionValues::default()).nackable(true));
        true
    }

    /// Whether the stream that it sees is over, so that another takes its place.
    fn may_follow(&self, room: &Room, now: Instant) -> bool {
        let current = self.source.and_then(|source| room.streams().get(usize::from(source)));
        current.is_none_or(|stream| now.saturating_duration_since(stream.last) >= SILENT)
    }

    /// Sees the stream of that packet from now on.
    fn follow(&mut self, room: &Room, kept: Kept<'_>, header: Header, now: Instant) {
        (self.source, self.since) = (Some(kept.mapping.stream), Some(now));
        (self.wanted, self.asked) = (None, None);
        let Some(sent) = self.sent else { return };
        let stream = room.streams().get(usize::from(kept.mapping.stream));
        let clock = f64::from(stream.map_or(90_000, |stream| stream.clock()));
        let moment = stream.and_then(|stream| room.moment(stream, header.timestamp, now));
        // By the publisher's clock, if it has told that of both streams; or else as they come.
        let passed = match sent.moment.zip(moment) {
            Some((before, moment)) => moment.saturating_duration_since(before),
            None => now.saturating_duration_since(sent.at),
        };
        let units = ((passed.as_secs_f64() * clock) as u32).max(1);
        self.first = sent.sequence + 1;
        self.sequence_offset = (self.first as u16).wrapping_sub(kept.mapping.sequence);
        self.timestamp_offset = sent.timestamp.wrapping_add(units).wrapping_sub(kept.mapping.timestamp);
    }

    /// A sequence number with the times that numbers wrapped; `None` of one from before the first, of which no session can know.
    fn extend(&self, sequence: u16) -> Option<u64> {
        let Some(Sent { sequence: highest, .. }) = self.sent else { return Some(sequence.into()) };
        let ahead = i64::from(sequence.wrapping_sub(highest as u16) as i16);
        highest.checked_add_signed(ahead)
    }
}
