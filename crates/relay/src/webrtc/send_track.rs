//! What a session that receives sees of a room: one stream of sound and one of pictures, whose numbers and timestamps go on whichever of
//! the room's streams they are from.

use std::time::{Duration, Instant};

use str0m::media::{Mid, Pt};
use str0m::rtp::{RtpWrite, SeqNo, Ssrc};
use str0m::{Rtc, rtp};

use super::payloads::Payloads;
use crate::config::Kind;
use crate::rtp::Room;
use crate::rtp::header::Header;
use crate::rtp::history::Position;

/// Silence of a stream after which another of its kind takes its place.
const SILENT: Duration = Duration::from_secs(1);

/// A stream that a session receives.
#[derive(Debug)]
pub(super) struct SendTrack {
    kind: Kind,
    pub(super) mid: Mid,
    ssrc: Ssrc,
    /// Payload types of the room, and what the session calls them.
    types: Vec<(u8, Pt)>,
    /// The room's stream that it sees.
    pub(super) source: Option<u8>,
    sequence_offset: u16,
    timestamp_offset: u32,
    /// The highest number that was sent, with the times that numbers wrapped, its timestamp, and when that was.
    sent: Option<(u64, u32, Instant)>,
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// It goes.
    Yes,
    /// It goes, and the stream is new to the session, which can show nothing of it before a key frame.
    First,
    /// It is of another kind or stream.
    No,
    /// The session cannot play it.
    Codec,
}

impl SendTrack {
    pub(super) fn new(kind: Kind, mid: Mid, ssrc: Ssrc, types: Vec<(u8, Pt)>) -> Self {
        Self { kind, mid, ssrc, types, source: None, sequence_offset: 0, timestamp_offset: 0, sent: None }
    }

    /// The payload type of its kind for which there is no word in the session's answer.
    fn payload_type(&self, room: u8) -> Option<Pt> {
        self.types.iter().find(|(own, _)| *own == room).map(|(_, pt)| *pt)
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
        let codec = room.config().codecs[usize::from(header.payload_type)];
        if codec.is_none_or(|codec| codec.kind() != self.kind) {
            return Written::No;
        }
        let Some(pt) = self.payload_type(header.payload_type) else { return Written::Codec };
        let number = kept.note.stream;
        let is_first = self.source != Some(number);
        if is_first && !self.follow(room, number, (kept.note.sequence, kept.note.timestamp), now) {
            return Written::No;
        }
        let Some(sequence) = self.extend(kept.note.sequence.wrapping_add(self.sequence_offset)) else {
            return Written::No;
        };
        let timestamp = kept.note.timestamp.wrapping_add(self.timestamp_offset);
        if self.sent.is_none_or(|(highest, ..)| highest < sequence) {
            self.sent = Some((sequence, timestamp, now));
        }
        let Some(payload) = payloads.payload(room.history(), position) else { return Written::No };
        let stream = room.streams().get(usize::from(number));
        let moment = stream.and_then(|stream| room.moment(stream, header.timestamp, now)).unwrap_or(now);
        let marker = kept.bytes[1] & 0x80 != 0;
        let mut api = rtc.direct_api();
        let Some(stream) = api.stream_tx(&self.ssrc) else { return Written::No };
        let packet = RtpWrite::new(pt, SeqNo::from(sequence), timestamp, moment, payload)
            .marker(marker)
            .ext_vals(rtp::ExtensionValues::default())
            .nackable(true);
        stream.write_rtp(packet);
        if is_first { Written::First } else { Written::Yes }
    }

    /// Sees that stream of the room from now on, unless the one that it sees goes on.
    fn follow(&mut self, room: &Room, number: u8, (sequence, timestamp): (u16, u32), now: Instant) -> bool {
        let current = self.source.and_then(|source| room.streams().get(usize::from(source)));
        if current.is_some_and(|stream| now.saturating_duration_since(stream.last) < SILENT) {
            return false;
        }
        self.source = Some(number);
        if let Some((highest, last, at)) = self.sent {
            let clock = room.streams().get(usize::from(number)).map_or(90_000, |stream| stream.clock());
            let silent = now.saturating_duration_since(at).as_secs_f64() * f64::from(clock);
            let next = last.wrapping_add((silent as u32).max(1));
            self.sequence_offset = (highest as u16).wrapping_add(1).wrapping_sub(sequence);
            self.timestamp_offset = next.wrapping_sub(timestamp);
        }
        true
    }

    /// A sequence number with the times that numbers wrapped; `None` of one from before the first, of which no session can know.
    fn extend(&self, sequence: u16) -> Option<u64> {
        let Some((highest, ..)) = self.sent else { return Some(sequence.into()) };
        let ahead = i64::from(sequence.wrapping_sub(highest as u16) as i16);
        highest.checked_add_signed(ahead)
    }
}
