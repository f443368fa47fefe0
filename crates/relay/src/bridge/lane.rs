//! A lane: the stream of a publisher that a track is made of.

use std::time::{Duration, Instant};

use rtp_types::RtpPacket;

use super::clock::Clock;
use super::frames::{Assembler, Decoding, Fault, Frame, Packet};
use super::order::{Arrival, Next, Order};
use crate::config::{Codec, Kind};
use crate::moq::local::{HEAD, LocalTrack};
use crate::rtp::Room;
use crate::rtp::history::Position;
use crate::rtp::stream::Stream;
use crate::status::BridgeCounters;

/// How long a missing packet is waited for that the publisher can be asked for: the time of two requests.
const REPAIRED: Duration = Duration::from_millis(200);
/// The same of one that can only be late.
const REORDERED: Duration = Duration::from_millis(30);
/// Between two wishes for a key frame, which the room collapses with those of others.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// A lane.
#[derive(Debug)]
pub(super) struct Lane {
    /// The stream in the room, and its SSRC.
    pub(super) stream: u8,
    pub(super) ssrc: u32,
    order: Order,
    assembler: Assembler,
    /// `None`: no frame has come.
    clock: Option<Clock>,
    /// What its frames are decoded as, once a key frame has said that.
    pub(super) decoding: Option<Decoding>,
    /// Where they go, once there is a broadcast.
    pub(super) track: Option<LocalTrack>,
    /// Packets are missing between two frames.
    has_gap: bool,
    /// Frames are of no use before the next key frame.
    needs_key: bool,
    /// When to ask for one.
    ask_at: Instant,
}

/// A packet of the room's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrived {
    /// Its stream.
    pub(super) stream: u8,
    /// Its SSRC.
    pub(super) ssrc: u32,
    /// Its number.
    pub(super) sequence: u16,
    /// Where it is.
    pub(super) position: Position,
}

/// A frame for a track, its time on the broadcast's clock.
#[derive(Debug)]
pub(super) struct Timed {
    pub(super) frame: Frame,
    pub(super) time: u64,
}

impl Lane {
    /// Begins with a packet; `None`: no frames are made of that codec.
    pub(super) fn new(codec: Codec, arrived: Arrived, longest: usize, now: Instant) -> Option<Self> {
        Some(Self {
            stream: arrived.stream,
            ssrc: arrived.ssrc,
            order: Order::new(arrived.sequence, arrived.position, now),
            assembler: Assembler::new(codec, longest)?,
            clock: None,
            decoding: None,
            track: None,
            has_gap: false,
            needs_key: true,
            ask_at: now,
        })
    }

    /// Goes on with another stream, or another SSRC of the same, from a packet on. The track stays. A frame that was coming is lost.
    pub(super) fn change(&mut self, arrived: Arrived, counters: &mut BridgeCounters, now: Instant) {
        self.stream = arrived.stream;
        self.ssrc = arrived.ssrc;
        self.order = Order::new(arrived.sequence, arrived.position, now);
        self.clock = None;
        self.has_gap = false;
        self.lose(now);
        counters.frames_lost += u64::from(self.assembler.is_within());
        self.assembler.restart();
    }

    pub(super) fn codec(&self) -> Codec {
        self.assembler.codec()
    }

    pub(super) fn kind(&self) -> Kind {
        self.codec().kind()
    }

    /// A packet of its stream has come.
    pub(super) fn note(&mut self, arrived: Arrived, counters: &mut BridgeCounters, now: Instant) {
        if self.order.note(arrived.sequence, arrived.position, now) == Arrival::Late {
            counters.dropped_late += 1;
        }
    }

    /// The next frames, of one packet; `None`: there is no packet to take.
    pub(super) fn next(
        &mut self,
        room: &Room,
        counters: &mut BridgeCounters,
        now: Instant,
    ) -> Option<[Option<Result<Frame, Fault>>; 2]> {
        let (stream, history) = (room.streams().get(usize::from(self.stream))?, room.history());
        let patience = if room.can_ask_publisher() { REPAIRED } else { REORDERED };
        // Packets of all streams share the history: what waits is not to be overwritten.
        let most = history.capacity() / 2;
        match self.order.next(|sequence| stream.find(sequence, history), (most, patience), now) {
            Next::Wait => None,
            Next::Lost(count) => {
                // What refers to a frame that is lost as a whole is of no use either.
                match self.kind() {
                    Kind::Audio => counters.frames_lost += u64::from(count),
                    Kind::Video => self.has_gap = !self.assembler.is_within(),
                }
                self.lose(now);
                self.assembler.lose();
                Some([None, None])
            }
            Next::Packet(position) => {
                let packet = history.at(position).and_then(|kept| RtpPacket::parse(kept.bytes).ok())?;
                let codec = room.config().codecs[usize::from(packet.payload_type())];
                if codec != Some(self.codec()) {
                    counters.dropped_codec += 1;
                    return Some([None, None]);
                }
                // Padding that probes for bandwidth.
                if packet.payload().is_empty() {
                    return Some([None, None]);
                }
                Some(self.assembler.push(Packet {
                    payload: packet.payload(),
                    timestamp: packet.timestamp(),
                    marker: packet.marker_bit(),
                }))
            }
        }
    }

    /// What a frame is to its track: the frame with its time, or nothing.
    pub(super) fn judge(
        &mut self,
        made: Result<Frame, Fault>,
        (room, epoch): (&Room, Instant),
        counters: &mut BridgeCounters,
        now: Instant,
    ) -> Option<Timed> {
        let has_gap = std::mem::take(&mut self.has_gap);
        let frame = match made {
            // There was one between, at least.
            Ok(frame) if has_gap => {
                counters.frames_lost += 1;
                frame
            }
            Ok(frame) => frame,
            Err(fault) => {
                match fault {
                    Fault::Lost => counters.frames_lost += 1,
                    Fault::Malformed => counters.dropped_malformed += 1,
                    Fault::TooLong => counters.dropped_too_long += 1,
                    Fault::NoParameters => counters.dropped_no_parameters += 1,
                }
                self.lose(now);
                return None;
            }
        };
        if self.needs_key && !frame.is_key {
            counters.frames_lost += 1;
            return None;
        }
        let stream = room.streams().get(usize::from(self.stream))?;
        let time = self.time(&frame, stream, (room, epoch), now);
        self.needs_key = false;
        Some(Timed { frame, time })
    }

    /// Sound needs no key frames: a group of it has one frame.
    fn lose(&mut self, now: Instant) {
        if self.kind() == Kind::Audio {
            return;
        }
        if let Some(track) = &mut self.track {
            track.end_group();
        }
        if !std::mem::replace(&mut self.needs_key, true) {
            self.ask_at = now;
        }
    }

    fn time(&mut self, frame: &Frame, stream: &Stream, (room, epoch): (&Room, Instant), now: Instant) -> u64 {
        let since = |moment: Instant| match moment.checked_duration_since(epoch) {
            Some(after) => after.as_micros() as i64,
            None => -(epoch.saturating_duration_since(moment).as_micros() as i64),
        };
        // Only a new group may be elsewhere: within one, players take differences as they are.
        let known = |frame: &Frame| {
            let moment = room.moment(stream, frame.timestamp, now);
            let report = moment.and(stream.report).map_or(0, |report| report.number);
            (since(moment.unwrap_or(now)), report)
        };
        match &mut self.clock {
            Some(clock) => {
                let time = clock.time(frame.timestamp);
                if !frame.is_key {
                    return time;
                }
                let (moment, report) = known(frame);
                clock.correct(moment, report)
            }
            None => {
                let (moment, report) = known(frame);
                let clock = self.clock.insert(Clock::new(stream.clock(), frame.timestamp, moment, report));
                clock.time(frame.timestamp)
            }
        }
    }

    /// Writes a frame to the track. A track that takes no more of a group begins with the next key frame.
    pub(super) fn write(&mut self, timed: Timed, counters: &mut BridgeCounters, now: Instant) {
        let Timed { frame, time } = timed;
        let bytes = (frame.octets.len() - HEAD) as u64;
        let is_written = self.track.as_mut().is_some_and(|track| {
            (!frame.is_key || track.begin(now)) && track.write_frame(time, frame.octets)
        });
        if !is_written {
            counters.dropped_unpublished += 1;
            self.lose(now);
            return;
        }
        counters.frames += 1;
        counters.bytes += bytes;
        counters.groups += u64::from(frame.is_key);
        if self.kind() == Kind::Audio
            && let Some(track) = &mut self.track
        {
            track.end_group();
        }
    }

    /// Whether a key frame is to be asked for now; then it counts as asked.
    pub(super) fn poll_key(&mut self, now: Instant) -> bool {
        let is_due = self.needs_key && self.kind() == Kind::Video && self.ask_at <= now;
        if is_due {
            self.ask_at = now + ASK_AGAIN;
        }
        is_due
    }

    /// Its decoding has changed.
    pub(super) fn poll_decoding(&mut self) -> bool {
        if self.kind() == Kind::Audio && self.decoding.is_some() {
            return false;
        }
        let decoding = self.assembler.decoding();
        let has_changed = decoding.is_some() && decoding != self.decoding;
        if has_changed {
            self.decoding = decoding;
        }
        has_changed
    }

    /// There is no broadcast for it now: what comes is passed over, up to a key frame for the next.
    pub(super) fn detach(&mut self) {
        self.track = None;
        self.needs_key = true;
    }
}
