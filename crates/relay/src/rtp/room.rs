//! A room: one publisher, its streams, the history, and the receivers.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use expressway_netio::slice::Slice;
use expressway_netio::{Flow, IoError, PacketIo};
use rtcp_types::{Compound, Fir, Nack, Packet, Pli, RtcpParseError};

use super::header::{Header, is_rtcp};
use super::history::{History, Note};
use super::keyframe::KeyframeRequests;
use super::receiver::{Quality, Receiver};
use super::reports::{BLOCKS, Block, Reporter};
use super::stream::{SenderReport, Stream};
use crate::config::{self, Output, Payload};
use crate::status::{ReceiverGauges, RoomCounters, RoomGauges};

/// Streams (SSRCs) of a publisher: sound and pictures in a few layers, and what repairs them.
pub const STREAMS: usize = 16;
/// Packets that go to a receiver before another one's turn: a GSO message has at most 64.
const BURST: usize = 64;
/// Packets that one RTCP datagram may ask for.
const NACKS_A_DATAGRAM: usize = 512;
/// Between reports to the publisher, before they are spread (RFC 3550, section 6.2, with the reduced minimum).
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// Silence after which a stream is left out of reports.
const SILENT: Duration = Duration::from_secs(5);

/// What came of sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Everybody has everything.
    Done,
    /// Time is up.
    More,
    /// There is no room to send from.
    Blocked,
}

/// Who publishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// Whoever sends RTP from there.
    Address(SocketAddr),
    /// A WebRTC session.
    Session(u64),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Publisher {
    pub(super) source: Source,
    /// Where its RTCP comes from, once some came.
    rtcp: Option<SocketAddr>,
    last: Instant,
}

/// A room.
#[derive(Debug)]
pub struct Room {
    pub(super) config: config::Room,
    /// When times begin.
    pub(super) epoch: Instant,
    reporter: Reporter,
    pub(super) publisher: Option<Publisher>,
    pub(super) streams: Vec<Stream>,
    pub(super) keyframes: [KeyframeRequests; STREAMS],
    pub(super) history: History,
    receivers: Vec<Receiver>,
    /// Receivers by where their RTCP comes from.
    by_rtcp: HashMap<SocketAddr, usize>,
    /// The receiver whose turn is next.
    turn: usize,
    /// Receivers in a row that had everything since there was something new.
    idle: usize,
    next_report: Instant,
    /// A wall clock of the publisher, as an NTP timestamp, and when that was.
    pub(super) wall_clock: Option<(u64, Instant)>,
    /// A packet of a session while it is written.
    pub(super) scratch: Vec<u8>,
    /// The state of a generator of chance.
    random: u64,
    /// What is counted.
    pub counters: RoomCounters,
}

impl Room {
    /// A room in which nobody publishes yet.
    pub fn new(config: config::Room, now: Instant) -> Self {
        let random = RandomState::new().build_hasher().finish();
        let history = History::new(config.history, config.longest);
        let receivers: Vec<Receiver> =
            config.outputs.iter().map(|output| Receiver::new(output.clone(), &history)).collect();
        Self {
            by_rtcp: by_rtcp(&receivers),
            epoch: now,
            reporter: Reporter { ssrc: random as u32, cname: format!("{random:016x}") },
            publisher: None,
            streams: Vec::new(),
            keyframes: Default::default(),
            history,
            receivers,
            turn: 0,
            idle: 0,
            next_report: now,
            wall_clock: None,
            scratch: Vec::new(),
            random,
            counters: RoomCounters::default(),
            config,
        }
    }

    /// What it is to be.
    pub fn config(&self) -> &config::Room {
        &self.config
    }

    /// Its receivers.
    pub fn receivers(&self) -> &[Receiver] {
        &self.receivers
    }

    /// Sends to these receivers from now on. Those that were there before, with the same changes, go on where they were: for each
    /// one its index before.
    pub fn set_outputs(&mut self, outputs: Vec<Output>) -> Vec<Option<usize>> {
        let mut before: HashMap<SocketAddr, (usize, Receiver)> = std::mem::take(&mut self.receivers)
            .into_iter()
            .enumerate()
            .map(|(index, receiver)| (receiver.output.address, (index, receiver)))
            .collect();
        let mut stay = Vec::with_capacity(outputs.len());
        for output in &outputs {
            let same = before.remove(&output.address).filter(|(_, receiver)| receiver.output == *output);
            let (index, receiver) = match same {
                Some((index, receiver)) => (Some(index), receiver),
                None => (None, Receiver::new(output.clone(), &self.history)),
            };
            stay.push(index);
            self.receivers.push(receiver);
        }
        self.by_rtcp = by_rtcp(&self.receivers);
        self.config.outputs = outputs;
        (self.turn, self.idle) = (0, 0);
        stay
    }

    /// A datagram for the room has come, from `remote` to `local`.
    pub fn handle_datagram(&mut self, datagram: &[u8], remote: SocketAddr, local: SocketAddr, now: Instant) {
        if self.config.payload == Payload::Any {
            return self.handle_any(datagram, remote, local, now);
        }
        if is_rtcp(datagram) {
            return self.handle_rtcp(datagram, remote, now);
        }
        match Header::parse(datagram).filter(|_| Some(local) == self.config.input) {
            Some(header) => self.handle_rtp(header, datagram, remote, now),
            None => self.counters.dropped_malformed += 1,
        }
    }

    fn handle_any(&mut self, datagram: &[u8], remote: SocketAddr, local: SocketAddr, now: Instant) {
        if datagram.is_empty() || Some(local) != self.config.input {
            self.counters.dropped_malformed += 1;
        } else if datagram.len() > self.history.longest() {
            self.counters.dropped_too_long += 1;
        } else if self.publishes(Source::Address(remote), None, now) {
            self.history.push(datagram, Note::default());
            self.kept(datagram);
        }
    }

    fn kept(&mut self, datagram: &[u8]) {
        self.idle = 0;
        self.counters.packets += 1;
        self.counters.bytes += datagram.len() as u64;
    }

    /// Whether `source` is the publisher, or becomes it. A publisher of before with another port is known by its SSRC.
    pub(super) fn publishes(&mut self, source: Source, ssrc: Option<u32>, now: Instant) -> bool {
        match &mut self.publisher {
            Some(publisher) if publisher.source == source => {
                publisher.last = now;
                return true;
            }
            Some(publisher)
                if now.saturating_duration_since(publisher.last) < self.config.publisher_timeout =>
            {
                // A NAT that forgot it.
                if let (Source::Address(before), Source::Address(remote)) = (publisher.source, source)
                    && before.ip() == remote.ip()
                    && self.streams.iter().any(|stream| Some(stream.ssrc) == ssrc)
                {
                    *publisher = Publisher { source, rtcp: None, last: now };
                    return true;
                }
                self.counters.dropped_second_publisher += 1;
                return false;
            }
            _ => {}
        }
        if let Source::Address(remote) = source
            && !self.config.allow.is_empty()
            && !self.config.allow.iter().any(|net| net.contains(&remote.ip()))
        {
            self.counters.dropped_not_allowed += 1;
            return false;
        }
        self.publisher = Some(Publisher { source, rtcp: None, last: now });
        self.wall_clock = None;
        self.counters.publishers += 1;
        true
    }

    fn handle_rtp(&mut self, header: Header, datagram: &[u8], remote: SocketAddr, now: Instant) {
        if datagram.len() > self.history.longest() {
            self.counters.dropped_too_long += 1;
            return;
        }
        if !self.publishes(Source::Address(remote), Some(header.ssrc), now) {
            return;
        }
        self.keep(header, datagram, now);
    }

    pub(super) fn keep(&mut self, header: Header, packet: &[u8], now: Instant) {
        let Some(number) = self.stream(header, now) else {
            self.counters.dropped_ssrc += 1;
            return;
        };
        let times = (self.epoch, now);
        match self.streams[number].keep((header, packet), number as u8, &mut self.history, times) {
            Ok(_) => self.kept(packet),
            Err(_) => self.counters.dropped_duplicate += 1,
        }
    }

    /// The stream of a packet: its SSRC's, or a new one's, in the place of one that ended and had the same payload type, or else any.
    fn stream(&mut self, header: Header, now: Instant) -> Option<usize> {
        if let Some(number) = self.streams.iter().position(|stream| stream.ssrc == header.ssrc) {
            return Some(number);
        }
        let clock = self.config.clocks[usize::from(header.payload_type)];
        let has_ended =
            |stream: &Stream| now.saturating_duration_since(stream.last) >= self.config.publisher_timeout;
        let mut ended = self.streams.iter().enumerate().filter(|(_, stream)| has_ended(stream));
        let alike = ended.clone().find(|(_, stream)| stream.payload_type == header.payload_type);
        let heir = match alike {
            None if self.streams.len() < STREAMS => None,
            None => Some(ended.next()?.0),
            Some((number, _)) => Some(number),
        };
        match heir {
            Some(number) => {
                self.streams[number].succeed(header, clock, self.epoch, now);
                self.keyframes[number] = KeyframeRequests::default();
                Some(number)
            }
            None => {
                self.streams.push(Stream::new(header, clock, &self.history, self.epoch, now));
                Some(self.streams.len() - 1)
            }
        }
    }

    fn handle_rtcp(&mut self, datagram: &[u8], remote: SocketAddr, now: Instant) {
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

    /// When [`Self::handle_timeout`] is due: the publisher falls silent, or is to hear something though nothing comes.
    pub fn deadline(&self, now: Instant) -> Option<Instant> {
        let publisher = self.publisher?;
        let silent = publisher.last + self.config.publisher_timeout;
        let keyframes =
            self.keyframes.iter().filter_map(|one| one.deadline(self.config.keyframe_interval, now));
        if let Source::Session(_) = publisher.source {
            return keyframes.chain([silent]).min();
        }
        if self.publisher_rtcp().is_none() {
            return Some(silent);
        }
        let missing = self.streams.iter().filter_map(|stream| stream.missing.deadline());
        missing.chain(keyframes).chain([self.next_report, silent]).min()
    }

    /// A publisher that has been silent for long is none any more. [`Self::transmit`] follows.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.publisher = self.publisher.filter(|publisher| {
            now.saturating_duration_since(publisher.last) < self.config.publisher_timeout
        });
    }

    /// Whether there may be something for a receiver.
    pub fn has_news(&self) -> bool {
        self.idle < self.receivers.len()
    }

    fn publisher_address(&self) -> Option<SocketAddr> {
        match self.publisher?.source {
            Source::Address(address) => Some(address),
            Source::Session(_) => None,
        }
    }

    fn publisher_rtcp(&self) -> Option<(SocketAddr, SocketAddr)> {
        let (publisher, address) = (self.publisher?, self.publisher_address()?);
        let (input, from) = (self.config.input?, self.config.from?);
        let own = SocketAddr::new(from.ip(), self.config.rtcp.address(input)?.port());
        // A group's members are told by all of what one received.
        let group = input.ip().is_multicast().then(|| self.config.rtcp.address(input));
        let to = group.flatten().or(publisher.rtcp).or_else(|| self.config.rtcp.address(address))?;
        Some((own, to))
    }

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
            io.send(&Flow::new(own, to), &self.reporter.sender_report(ssrc, timestamp, &report))?;
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
                io.send(&flow, &self.reporter.nack(stream.ssrc, &sequences))?;
            }
            if self.keyframes[number].poll(self.config.keyframe_interval, now) {
                self.counters.keyframes_asked += 1;
                io.send(&flow, &self.reporter.keyframe_request(stream.ssrc))?;
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
                io.send(&flow, &self.reporter.receiver_report(&blocks))?;
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

    /// What the room is like now.
    pub fn gauges(&self, now: Instant) -> RoomGauges {
        let jitter = |stream: &Stream| {
            let clock = self.config.clocks[usize::from(stream.payload_type)];
            u64::from(stream.reception.jitter()) * 1_000_000 / u64::from(clock)
        };
        let timeout = self.config.publisher_timeout;
        let publishing =
            self.publisher.is_some_and(|publisher| now.saturating_duration_since(publisher.last) < timeout);
        let live =
            || self.streams.iter().filter(|stream| now.saturating_duration_since(stream.last) < timeout);
        RoomGauges {
            publishing: publishing.into(),
            streams: live().count() as u64,
            lost: self.streams.iter().map(|stream| stream.reception.lost()).sum(),
            jitter_microseconds: live().map(jitter).max().unwrap_or(0),
        }
    }
}

fn by_rtcp(receivers: &[Receiver]) -> HashMap<SocketAddr, usize> {
    let address = |(index, receiver): (usize, &Receiver)| Some((receiver.rtcp()?, index));
    receivers.iter().enumerate().filter_map(address).collect()
}

impl Receiver {
    /// What it last said.
    pub fn gauges(&self) -> ReceiverGauges {
        let quality = self.quality;
        ReceiverGauges {
            lost: quality.lost.into(),
            fraction_lost: quality.fraction_lost.into(),
            jitter: quality.jitter.into(),
            round_trip_microseconds: quality.round_trip.map_or(0, |time| time.as_micros() as u64),
        }
    }
}
