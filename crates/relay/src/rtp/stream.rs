//! One stream of a room: what a publisher sends under one SSRC, and what receivers see under theirs.

use std::time::{Duration, Instant};

use super::header::Header;
use super::history::{History, Position, RtpMapping};
use super::missing::Missing;
use super::rate::Rate;
use super::reception::{Order, Reception};

/// What a sender report says of a stream (RFC 3550, section 6.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SenderReport {
    /// Wall clock, as an NTP timestamp.
    pub ntp: u64,
    /// The same instant by the stream's clock.
    pub rtp: u32,
    /// Packets sent.
    pub packets: u32,
    /// Payload bytes sent.
    pub octets: u32,
    /// When it came.
    pub at: Instant,
    /// Grows with each.
    pub number: u32,
}

/// A stream.
#[derive(Debug)]
pub struct Stream {
    /// The publisher's SSRC.
    pub ssrc: u32,
    /// The payload type of the last packet.
    pub payload_type: u8,
    /// What came.
    pub reception: Reception,
    /// What did not.
    pub missing: Missing,
    /// The publisher's last report.
    pub report: Option<SenderReport>,
    /// When the last packet came.
    pub last: Instant,
    /// The layer of its publisher's simulcast, by RID (RFC 8852); `None`: it is no such layer.
    pub layer: Option<Box<str>>,
    /// What it carries.
    pub rate: Rate,
    /// Sessions that see it, or wait for a key frame of it.
    pub watchers: u32,
    clock: u32,
    /// Where the packet of each number is kept, and one more; indexed by the number's low bits.
    positions: Box<[Position]>,
    /// What makes numbers and timestamps for receivers out of the publisher's.
    sequence_offset: u16,
    timestamp_offset: u32,
    /// The highest number sent and its timestamp, as receivers see them.
    sent: (u16, u32),
}

/// Why a packet is not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Duplicate;

impl Stream {
    /// Begins with a packet, which [`Self::keep`] then takes. `clock` is its payload's, in Hz.
    pub fn new(header: Header, clock: u32, history: &History, epoch: Instant, now: Instant) -> Self {
        Self {
            ssrc: header.ssrc,
            payload_type: header.payload_type,
            reception: Reception::new(header.sequence, transit(header.timestamp, clock, epoch, now)),
            missing: Missing::default(),
            report: None,
            last: now,
            layer: None,
            rate: Rate::new(now),
            watchers: 0,
            clock,
            positions: vec![0; history.capacity()].into(),
            sequence_offset: 0,
            timestamp_offset: 0,
            sent: (header.sequence.wrapping_sub(1), header.timestamp),
        }
    }

    /// Another SSRC goes on with this stream: receivers whose SSRC is not the publisher's see numbers and timestamps go on.
    pub fn succeed(&mut self, header: Header, clock: u32, epoch: Instant, now: Instant) {
        let (sequence, timestamp) = self.sent;
        let silent = now.saturating_duration_since(self.last);
        let timestamp = timestamp.wrapping_add(units(silent, clock));
        self.ssrc = header.ssrc;
        self.payload_type = header.payload_type;
        self.reception = Reception::new(header.sequence, transit(header.timestamp, clock, epoch, now));
        self.missing.clear();
        self.report = None;
        self.last = now;
        self.rate = Rate::new(now);
        self.clock = clock;
        self.positions.fill(0);
        self.sequence_offset = sequence.wrapping_add(1).wrapping_sub(header.sequence);
        self.timestamp_offset = timestamp.wrapping_sub(header.timestamp);
    }

    /// Keeps a packet of this SSRC in the history, whose bytes it parsed from.
    ///
    /// # Errors
    /// It has been kept already.
    pub fn keep(
        &mut self,
        (header, bytes): (Header, &[u8]),
        number: u8,
        history: &mut History,
        (epoch, now): (Instant, Instant),
    ) -> Result<Position, Duplicate> {
        let order = self.reception.order(header.sequence);
        match order {
            Order::Late if self.find(header.sequence, history).is_some() => return Err(Duplicate),
            Order::Late => self.missing.found(header.sequence),
            Order::Ahead { gap } => self.missing.note_gap(header.sequence, gap, now),
            Order::Restart => self.missing.clear(),
        }
        let sequence = header.sequence.wrapping_add(self.sequence_offset);
        let timestamp = header.timestamp.wrapping_add(self.timestamp_offset);
        if order != Order::Late {
            self.sent = (sequence, timestamp);
        }
        self.reception.count(header.sequence, transit(header.timestamp, self.clock, epoch, now));
        self.payload_type = header.payload_type;
        self.last = now;
        self.rate.count(bytes.len(), now);
        let position = history.push(bytes, RtpMapping { stream: number, sequence, timestamp });
        let slot = self.slot(header.sequence);
        self.positions[slot] = position + 1;
        Ok(position)
    }

    /// The publisher has said this of the stream. It is numbered here.
    pub fn note_report(&mut self, report: SenderReport) {
        let number = self.report.map_or(0, |report| report.number).wrapping_add(1).max(1);
        self.report = Some(SenderReport { number, ..report });
    }

    /// It is over: from now on another SSRC may go on with it, as after a silence of `timeout`.
    pub fn end(&mut self, timeout: Duration, epoch: Instant) {
        self.last = self.last.checked_sub(timeout).unwrap_or(epoch).min(self.last);
    }

    /// Its clock, in Hz.
    pub fn clock(&self) -> u32 {
        self.clock
    }

    /// Where the packet of that number is, if it is still kept.
    pub fn find(&self, sequence: u16, history: &History) -> Option<Position> {
        let position = self.positions[self.slot(sequence)].checked_sub(1)?;
        let kept = Header::parse(history.at(position)?.bytes)?;
        (kept.ssrc == self.ssrc && kept.sequence == sequence).then_some(position)
    }

    /// As [`Self::find`], by the number that receivers see.
    pub fn find_rewritten(&self, sequence: u16, history: &History) -> Option<Position> {
        self.find(sequence.wrapping_sub(self.sequence_offset), history)
    }

    /// The RTP timestamp of a report as receivers see it.
    pub fn rewrite_timestamp(&self, timestamp: u32) -> u32 {
        timestamp.wrapping_add(self.timestamp_offset)
    }

    fn slot(&self, sequence: u16) -> usize {
        usize::from(sequence) & (self.positions.len() - 1)
    }
}

/// Time of arrival less timestamp, in units of the clock.
fn transit(timestamp: u32, clock: u32, epoch: Instant, now: Instant) -> u32 {
    units(now.saturating_duration_since(epoch), clock).wrapping_sub(timestamp)
}

/// A span of time in units of a clock, modulo 2^32.
fn units(span: Duration, clock: u32) -> u32 {
    (span.as_nanos() * u128::from(clock) / 1_000_000_000) as u32
}

#[cfg(test)]
mod tests {
    use super::super::header::packet;
    use super::*;

    struct Bed {
        history: History,
        stream: Stream,
        epoch: Instant,
    }

    fn header(sequence: u16) -> Header {
        Header { payload_type: 96, sequence, timestamp: u32::from(sequence) * 3000, ssrc: 7 }
    }

    impl Bed {
        fn new(first: u16) -> Self {
            let (history, epoch) = (History::new(8, 100), Instant::now());
            let stream = Stream::new(header(first), 90_000, &history, epoch, epoch);
            Self { history, stream, epoch }
        }

        fn keep(&mut self, header: Header) -> Result<Position, Duplicate> {
            let bytes = packet(header, &header.sequence.to_be_bytes());
            self.stream.keep((header, &bytes), 0, &mut self.history, (self.epoch, self.epoch))
        }
    }

    #[test]
    fn packets_are_found_by_number_for_as_long_as_they_are_kept() {
        let mut bed = Bed::new(65_530);
        for number in 0..12u16 {
            bed.keep(header(65_530u16.wrapping_add(number))).unwrap();
        }
        for number in 0..12u16 {
            let sequence = 65_530u16.wrapping_add(number);
            let found = bed.stream.find(sequence, &bed.history);
            assert_eq!(found, (number >= 4).then_some(u64::from(number)), "{sequence}");
        }
        assert_eq!(bed.stream.find(100, &bed.history), None);
    }

    #[test]
    fn a_packet_that_comes_twice_is_kept_once() {
        let mut bed = Bed::new(1);
        bed.keep(header(1)).unwrap();
        bed.keep(header(3)).unwrap();
        assert_eq!(bed.keep(header(3)), Err(Duplicate));
        assert_eq!(bed.keep(header(1)), Err(Duplicate));
        assert!(bed.keep(header(2)).is_ok(), "late, and not there yet");
        assert_eq!(bed.stream.reception.lost(), 0);
        assert_eq!(bed.stream.missing.deadline(), None, "found");
    }

    #[test]
    fn a_successor_goes_on_where_the_stream_was() {
        let mut bed = Bed::new(10);
        bed.keep(header(10)).unwrap();
        bed.keep(header(11)).unwrap();
        let other = Header { payload_type: 96, sequence: 500, timestamp: 123_456, ssrc: 8 };
        let later = bed.epoch + Duration::from_secs(1);
        bed.stream.succeed(other, 90_000, bed.epoch, later);
        let bytes = packet(other, b"");
        let position = bed.stream.keep((other, &bytes), 0, &mut bed.history, (bed.epoch, later)).unwrap();
        let mapping = bed.history.at(position).unwrap().mapping;
        assert_eq!((mapping.sequence, mapping.timestamp), (12, 11 * 3000 + 90_000));
        assert_eq!(bed.stream.find(11, &bed.history), None, "its predecessor's");
        assert_eq!(bed.stream.find_rewritten(12, &bed.history), Some(position));
        assert_eq!(bed.stream.rewrite_timestamp(other.timestamp + 1), 11 * 3000 + 90_001);
    }
}
