//! RTCP that a room receives: reports from its publisher, and reports and requests from receivers.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rtcp_types::{Compound, Fir, Nack, Packet, Pli, RtcpParseError};

use super::receiver::Quality;
use super::reports::BLOCKS;
use super::room::{Room, STREAMS};
use super::stream::SenderReport;

/// Packets that one RTCP datagram may ask for.
const NACKS_A_DATAGRAM: usize = 512;

impl Room {
    pub(super) fn handle_rtcp(&mut self, datagram: &[u8], remote: SocketAddr, now: Instant) {
        let receiver = self.by_rtcp.get(&remote).copied();
        let from_publisher =
            receiver.is_none() && self.publisher_address().is_some_and(|address| address.ip() == remote.ip());
        if receiver.is_none() && !from_publisher {
            self.counters.dropped_rtcp_stranger += 1;
            return;
        }
        let Ok(compound) = Compound::parse(datagram) else {
            self.counters.dropped_rtcp_malformed += 1;
            return;
        };
        let mut nacks = 0;
        for packet in compound {
            let result = match (packet, receiver) {
                (Ok(packet), Some(receiver)) => self.handle_feedback(&packet, receiver, &mut nacks, now),
                (Ok(packet), None) => {
                    self.handle_report(&packet, remote, now);
                    Ok(())
                }
                (Err(error), _) => Err(error),
            };
            if result.is_err() {
                self.counters.dropped_rtcp_malformed += 1;
                return;
            }
        }
    }

    /// A packet of the publisher's RTCP.
    fn handle_report(&mut self, packet: &Packet<'_>, remote: SocketAddr, now: Instant) {
        match packet {
            Packet::Sr(sender) => {
                let Some(stream) = self.streams.iter_mut().find(|stream| stream.ssrc == sender.ssrc()) else {
                    return;
                };
                self.idle = 0;
                stream.note_report(SenderReport {
                    ntp: sender.ntp_timestamp(),
                    rtp: sender.rtp_timestamp(),
                    packets: sender.packet_count(),
                    octets: sender.octet_count(),
                    at: now,
                    number: 0,
                });
                self.wall_clock.get_or_insert((sender.ntp_timestamp(), now));
                if let Some(publisher) = &mut self.publisher {
                    publisher.rtcp = Some(remote);
                }
            }
            Packet::Bye(bye) => {
                let long_ago = now.checked_sub(self.config.publisher_timeout).unwrap_or(self.epoch);
                let mut left =
                    self.streams.iter_mut().filter(|stream| stream.last > long_ago).collect::<Vec<_>>();
                for ssrc in bye.ssrcs() {
                    left.iter_mut()
                        .filter(|stream| stream.ssrc == ssrc)
                        .for_each(|stream| stream.last = long_ago);
                }
                left.retain(|stream| stream.last > long_ago);
                // Another may publish at once.
                if left.is_empty() {
                    self.publisher = None;
                }
            }
            _ => {}
        }
    }

    /// A packet of a receiver's RTCP.
    fn handle_feedback(
        &mut self,
        packet: &Packet<'_>,
        receiver: usize,
        nacks: &mut usize,
        now: Instant,
    ) -> Result<(), RtcpParseError> {
        match packet {
            Packet::Rr(report) => self.assess(receiver, report.report_blocks(), now),
            Packet::Sr(report) => self.assess(receiver, report.report_blocks(), now),
            Packet::TransportFeedback(feedback) => {
                // Others, such as those on congestion, are for who sends to them: nothing is adapted here.
                if let Ok(nack) = feedback.parse_fci::<Nack<'_>>() {
                    self.answer(receiver, feedback.media_ssrc(), &nack, nacks);
                }
            }
            Packet::PayloadFeedback(feedback) => {
                if feedback.parse_fci::<Pli<'_>>().is_ok() {
                    self.want_keyframe(receiver, feedback.media_ssrc());
                } else if let Ok(fir) = feedback.parse_fci::<Fir<'_>>() {
                    fir.entries().take(STREAMS).for_each(|entry| self.want_keyframe(receiver, entry.ssrc()));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The stream that a receiver sees under that SSRC.
    fn seen(&self, receiver: usize, ssrc: u32) -> Option<usize> {
        let receiver = &self.receivers[receiver];
        (0..self.streams.len())
            .find(|number| receiver.ssrc(*number as u8, self.streams[*number].ssrc) == ssrc)
    }

    fn assess<'a>(
        &mut self,
        receiver: usize,
        blocks: impl Iterator<Item = rtcp_types::ReportBlock<'a>>,
        now: Instant,
    ) {
        let mut worst: Option<Quality> = None;
        for block in blocks.take(BLOCKS) {
            let Some(number) = self.seen(receiver, block.ssrc()) else { continue };
            let quality = Quality {
                fraction_lost: block.fraction_lost(),
                lost: block.cumulative_lost(),
                jitter: block.interarrival_jitter(),
                round_trip: self.streams[number].report.and_then(|report| {
                    let is_last = block.last_sender_report_timestamp() == (report.ntp >> 16) as u32;
                    let there = Duration::from_secs_f64(
                        f64::from(block.delay_since_last_sender_report_timestamp()) / 65_536.0,
                    );
                    let since = now.saturating_duration_since(report.at);
                    is_last.then(|| since.checked_sub(there)).flatten()
                }),
            };
            if worst.is_none_or(|worst| worst.fraction_lost <= quality.fraction_lost) {
                worst = Some(quality);
            }
        }
        if let Some(quality) = worst {
            self.receivers[receiver].quality = quality;
        }
    }

    fn answer(&mut self, receiver: usize, ssrc: u32, nack: &Nack<'_>, nacks: &mut usize) {
        let Some(number) = self.seen(receiver, ssrc) else { return };
        self.idle = 0;
        let (stream, receiver) = (&self.streams[number], &mut self.receivers[receiver]);
        receiver.counters.nacks += 1;
        for sequence in nack.entries() {
            if *nacks == NACKS_A_DATAGRAM {
                receiver.counters.repairs_refused += 1;
                return;
            }
            *nacks += 1;
            // What is not there is asked for by the gap that it left.
            let position = match receiver.output.ssrc {
                Some(_) => stream.find_rewritten(sequence, &self.history),
                None => stream.find(sequence, &self.history),
            };
            receiver.ask(position);
        }
    }

    fn want_keyframe(&mut self, receiver: usize, ssrc: u32) {
        if let Some(number) = self.seen(receiver, ssrc) {
            self.counters.keyframes_wanted += 1;
            self.keyframes[number].want();
        }
    }
}
