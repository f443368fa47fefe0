//! What a room sends: packets and reports to receivers, feedback to its publisher.

use std::time::{Duration, Instant};

use expressway_netio::slice::Slice;
use expressway_netio::{Flow, IoError, PacketIo};

use super::reports::Block;
use super::room::{Progress, Room};
use crate::srtp::rtcp;

/// Packets that go to a receiver before another one's turn: a GSO message has at most 64.
const BURST: usize = 64;
/// Between reports to the publisher, before they are spread (RFC 3550, section 6.2, with the reduced minimum).
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// Silence after which a stream is left out of reports.
const SILENT: Duration = Duration::from_secs(5);

impl Room {
    /// Sends what receivers and the publisher are to have, as far as time and room go.
    ///
    /// # Errors
    /// What stops packet I/O.
    pub fn transmit(
        &mut self,
        io: &mut dyn PacketIo,
        slice: &mut Slice,
        now: Instant,
    ) -> Result<Progress, IoError> {
        self.transmit_feedback(io, now)?;
        while self.has_news() {
            let number = self.turn;
            match self.transmit_to(number, io)? {
                Progress::Blocked => return Ok(Progress::Blocked),
                Progress::Done => self.idle += 1,
                Progress::More => self.idle = 0,
            }
            self.turn = (number + 1) % self.receivers.len();
            if slice.spend() && self.has_news() {
                return Ok(Progress::More);
            }
        }
        Ok(Progress::Done)
    }

    /// One burst to a receiver. [`Progress::Done`]: it has everything.
    fn transmit_to(&mut self, number: usize, io: &mut dyn PacketIo) -> Result<Progress, IoError> {
        self.transmit_reports(number, io)?;
        let (receiver, history) = (&mut self.receivers[number], &self.history);
        let Some(from) = self.config.from.filter(|_| receiver.is_behind(history)) else {
            return Ok(Progress::Done);
        };
        let flow = Flow::new(from, receiver.output.address);
        let segment = receiver.longest(history, BURST);
        if segment == 0 {
            return Ok(Progress::Done);
        }
        let segment = segment + receiver.overhead();
        if segment > io.max_payload(&flow) {
            receiver.counters.dropped_too_long += receiver.skip(history);
            return Ok(Progress::Done);
        }
        let mut left = BURST;
        let sent = io.transmit(&flow, segment, &mut |slot| {
            if left == 0 {
                return 0;
            }
            left -= 1;
            receiver.write_next(history, slot)
        })?;
        Ok(match (sent.blocked, receiver.is_behind(history)) {
            (true, _) => Progress::Blocked,
            (false, true) => Progress::More,
            (false, false) => Progress::Done,
        })
    }

    /// Sender reports that a receiver has not got. One that finds no room is left to the next.
    fn transmit_reports(&mut self, number: usize, io: &mut dyn PacketIo) -> Result<(), IoError> {
        let receiver = &mut self.receivers[number];
        let Some(to) = receiver.rtcp() else { return Ok(()) };
        let own = self.config.from.and_then(|from| receiver.output.rtcp.address(from));
        let Some(own) = own else { return Ok(()) };
        for (index, stream) in self.streams.iter().enumerate() {
            let Some(report) = stream.report.filter(|report| report.number != receiver.reported[index])
            else {
                continue;
            };
            receiver.reported[index] = report.number;
            let ssrc = receiver.ssrc(index as u8, stream.ssrc);
            let timestamp = match receiver.output.ssrc {
                Some(_) => stream.rewrite_timestamp(report.rtp),
                None => report.rtp,
            };
            let report = self.reporter.sender_report(ssrc, timestamp, &report);
            io.send(&Flow::new(own, to), &rtcp(&mut receiver.srtp, report))?;
        }
        Ok(())
    }

    /// What the publisher is to hear. What finds no room is lost, as on the way.
    fn transmit_feedback(&mut self, io: &mut dyn PacketIo, now: Instant) -> Result<(), IoError> {
        let Some((own, to)) = self.publisher_rtcp() else { return Ok(()) };
        let flow = Flow::new(own, to);
        for (number, stream) in self.streams.iter_mut().enumerate() {
            let sequences = stream.missing.poll(now);
            if !sequences.is_empty() {
                self.counters.nacked += sequences.len() as u64;
                let nack = self.reporter.nack(stream.ssrc, &sequences);
                io.send(&flow, &rtcp(&mut self.srtp, nack))?;
            }
            if self.keyframes[number].poll(self.config.keyframe_interval, now) {
                self.counters.keyframes_asked += 1;
                let request = self.reporter.keyframe_request(stream.ssrc);
                io.send(&flow, &rtcp(&mut self.srtp, request))?;
            }
        }
        if self.next_report <= now {
            self.next_report = now + self.spread(REPORT_INTERVAL);
            let blocks: Vec<Block> = self
                .streams
                .iter_mut()
                .filter(|stream| now.saturating_duration_since(stream.last) < SILENT)
                .map(|stream| Block {
                    ssrc: stream.ssrc,
                    loss: stream.reception.report(),
                    last_report: stream.report.map_or((0, 0), |report| {
                        let since = now.saturating_duration_since(report.at).as_secs_f64() * 65_536.0;
                        ((report.ntp >> 16) as u32, since as u32)
                    }),
                })
                .collect();
            if !blocks.is_empty() {
                self.counters.reports += 1;
                let report = self.reporter.receiver_report(&blocks);
                io.send(&flow, &rtcp(&mut self.srtp, report))?;
            }
        }
        Ok(())
    }

    /// An interval of 0.5 to 1.5 times this one (RFC 3550, section 6.3.1).
    fn spread(&mut self, interval: Duration) -> Duration {
        // Xorshift (Marsaglia, 2003): chance is enough.
        self.random |= 1;
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        interval / 2 + interval * (self.random >> 48) as u32 / 65_536
    }
}
