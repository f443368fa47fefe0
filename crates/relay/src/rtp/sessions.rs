//! The interface of a room to WebRTC sessions, which publish into it and receive from it without RTP over UDP of
//! their own.

use std::time::{Duration, Instant};

use super::header::Header;
use super::history::History;
use super::room::{PublisherId, Room};
use super::stream::{SenderReport, Stream};

/// How far a wall clock may be from what packets say before it is believed no more.
const APART: f64 = 10.0;

impl Room {
    /// A session wants to publish. It may unless somebody does; then it has the room until it has been silent for long.
    pub fn offer_session(&mut self, session: u64, now: Instant) -> bool {
        self.publishes(PublisherId::Session(session), None, now)
    }

    /// Whether that session publishes.
    pub fn is_published_by(&self, session: u64) -> bool {
        self.publisher.is_some_and(|publisher| publisher.id == PublisherId::Session(session))
    }

    /// A packet of a session that publishes, with the payload type that its codec has in this room, of a layer if it has some. Extensions and CSRCs are left behind:
    /// what they mean was agreed with that session alone.
    pub fn handle_session(
        &mut self,
        session: u64,
        (header, marker): (Header, bool),
        layer: Option<&str>,
        payload: &[u8],
        now: Instant,
    ) {
        if 12 + payload.len() > self.history.longest() {
            self.counters.dropped_too_long += 1;
            return;
        }
        if !self.publishes(PublisherId::Session(session), None, now) {
            return;
        }
        let mut packet = std::mem::take(&mut self.scratch);
        packet.clear();
        packet.extend_from_slice(&[0x80, u8::from(marker) << 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        header.write(&mut packet);
        packet.extend_from_slice(payload);
        self.keep(header, layer, &packet, now);
        self.scratch = packet;
    }

    /// What a session that publishes says of one of its streams.
    pub fn handle_session_report(&mut self, session: u64, ssrc: u32, report: SenderReport) {
        if !self.is_published_by(session) {
            return;
        }
        if let Some(stream) = self.streams.iter_mut().find(|stream| stream.ssrc == ssrc) {
            if stream.report.is_some_and(|last| last.ntp == report.ntp) {
                return;
            }
            stream.note_report(report);
            self.wall_clock.get_or_insert((report.ntp, report.at));
        }
    }

    /// A session publishes no more: another may at once.
    pub fn end_session(&mut self, session: u64) {
        if self.is_published_by(session) {
            self.publisher = None;
            // Its streams are over too: successors go on with their numbers.
            self.streams.iter_mut().for_each(|stream| stream.end(self.config.publisher_timeout, self.epoch));
        }
    }

    /// The streams of the publisher.
    pub fn streams(&self) -> &[Stream] {
        &self.streams
    }

    /// The last packets.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// A session that saw, or waited for, some streams now sees others.
    pub fn watch(&mut self, before: impl Iterator<Item = u8>, now: impl Iterator<Item = u8>) {
        now.for_each(|stream| self.streams[usize::from(stream)].watchers += 1);
        before.for_each(|stream| self.streams[usize::from(stream)].watchers -= 1);
    }

    /// Whether somebody receives a stream of the publisher, so that what is lost of it is worth asking for.
    pub fn is_watched(&self, ssrc: u32) -> bool {
        let stream = self.streams.iter().find(|stream| stream.ssrc == ssrc);
        stream.is_none_or(|stream| stream.layer.is_none() || stream.watchers > 0)
            || !self.receivers.is_empty()
    }

    /// A session that receives needs a key frame of a stream.
    pub fn want_session_keyframe(&mut self, stream: u8) {
        if let Some(requests) = self.keyframes.get_mut(usize::from(stream)) {
            self.counters.keyframes_wanted += 1;
            requests.want();
        }
    }

    /// The SSRC of a stream that a session which publishes is to send a key frame of now.
    pub fn poll_session_keyframe(&mut self, now: Instant) -> Option<u32> {
        if !matches!(self.publisher?.id, PublisherId::Session(_)) {
            return None;
        }
        let interval = self.config.keyframe_interval;
        let mut requests = self.keyframes.iter_mut().zip(&self.streams);
        let ssrc =
            requests.find_map(|(requests, stream)| requests.poll(interval, now).then_some(stream.ssrc))?;
        self.counters.keyframes_asked += 1;
        Some(ssrc)
    }

    /// When, by the publisher's wall clock, the moment of an RTP timestamp was, as seen here; `None` before its first report.
    /// Sound and pictures keep together by it.
    pub fn moment(&self, stream: &Stream, timestamp: u32, now: Instant) -> Option<Instant> {
        let (base, at) = self.wall_clock?;
        let report = stream.report?;
        let since_report =
            f64::from(timestamp.wrapping_sub(report.rtp) as i32) / f64::from(stream.clock().max(1));
        // NTP timestamps have 32 bits of fraction (RFC 5905, section 6).
        let since_base = report.ntp.wrapping_sub(base) as i64 as f64 / 4_294_967_296.0 + since_report;
        let moment = if since_base < 0.0 {
            at.checked_sub(Duration::try_from_secs_f64(-since_base).ok()?)?
        } else {
            at.checked_add(Duration::try_from_secs_f64(since_base).ok()?)?
        };
        let apart = moment.max(now).saturating_duration_since(moment.min(now));
        (apart.as_secs_f64() < APART).then_some(moment)
    }
}
