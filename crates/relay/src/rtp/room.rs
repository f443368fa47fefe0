//! A room: one publisher, its streams, the history, and the receivers.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::SocketAddr;
use std::time::Instant;

use super::header::{Header, is_rtcp};
use super::history::{History, RtpMapping};
use super::keyframe::KeyframeRequests;
use super::receiver::Receiver;
use super::reports::Reporter;
use super::stream::Stream;
use crate::config::{self, Output, Payload};
use crate::srtp::{Inbound, Outbound, Rejected, pair};
use crate::status::{ReceiverGauges, RoomCounters, RoomGauges};

/// Streams (SSRCs) of a publisher: sound and pictures in a few layers, and what repairs them.
pub const STREAMS: usize = 16;

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
pub(super) enum PublisherId {
    /// Whoever sends RTP from there.
    Address(SocketAddr),
    /// A WebRTC session.
    Session(u64),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Publisher {
    pub(super) id: PublisherId,
    /// Where its RTCP comes from, once some came.
    pub(super) rtcp: Option<SocketAddr>,
    last: Instant,
}

/// A room.
#[derive(Debug)]
pub struct Room {
    pub(super) config: config::Room,
    /// When times begin.
    pub(super) epoch: Instant,
    pub(super) reporter: Reporter,
    pub(super) publisher: Option<Publisher>,
    pub(super) streams: Vec<Stream>,
    pub(super) keyframes: [KeyframeRequests; STREAMS],
    pub(super) history: History,
    pub(super) receivers: Vec<Receiver>,
    /// What the publisher's packets are opened with, and what is for it sealed.
    pub(super) srtp: Option<(Inbound, Outbound)>,
    /// Receivers by where their RTCP comes from.
    pub(super) by_rtcp: HashMap<SocketAddr, usize>,
    /// The receiver whose turn is next.
    pub(super) turn: usize,
    /// Receivers in a row that had everything since there was something new.
    pub(super) idle: usize,
    pub(super) next_report: Instant,
    /// A wall clock of the publisher, as an NTP timestamp, and when that was.
    pub(super) wall_clock: Option<(u64, Instant)>,
    /// A packet of a session while it is written.
    pub(super) scratch: Vec<u8>,
    /// The state of a generator of chance.
    pub(super) random: u64,
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
            srtp: config.srtp.as_ref().map(pair),
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
        let receiver = is_rtcp(datagram).then(|| self.by_rtcp.get(&remote).copied()).flatten();
        let mut opened = std::mem::take(&mut self.scratch);
        let srtp = match receiver {
            Some(receiver) => &mut self.receivers[receiver].srtp,
            None => &mut self.srtp,
        };
        let result = srtp.as_mut().map(|(inbound, _)| {
            opened.clear();
            opened.extend_from_slice(datagram);
            inbound.open(&mut opened)
        });
        match result {
            None => self.handle_opened(datagram, remote, local, now),
            Some(Ok(length)) => self.handle_opened(&opened[..length], remote, local, now),
            Some(Err(Rejected::Forged)) => self.counters.dropped_srtp += 1,
            Some(Err(Rejected::Replayed)) => self.counters.dropped_replay += 1,
        }
        self.scratch = opened;
    }

    fn handle_opened(&mut self, datagram: &[u8], remote: SocketAddr, local: SocketAddr, now: Instant) {
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
        } else if self.publishes(PublisherId::Address(remote), None, now) {
            self.history.push(datagram, RtpMapping::default());
            self.kept(datagram);
        }
    }

    fn kept(&mut self, datagram: &[u8]) {
        self.idle = 0;
        self.counters.packets += 1;
        self.counters.bytes += datagram.len() as u64;
    }

    /// Whether `id` is the publisher, or becomes it. The former publisher at another port is recognised by its SSRC.
    pub(super) fn publishes(&mut self, id: PublisherId, ssrc: Option<u32>, now: Instant) -> bool {
        match &mut self.publisher {
            Some(publisher) if publisher.id == id => {
                publisher.last = now;
                return true;
            }
            Some(publisher)
                if now.saturating_duration_since(publisher.last) < self.config.publisher_timeout =>
            {
                // A NAT that forgot it.
                if let (PublisherId::Address(before), PublisherId::Address(remote)) = (publisher.id, id)
                    && before.ip() == remote.ip()
                    && self.streams.iter().any(|stream| Some(stream.ssrc) == ssrc)
                {
                    *publisher = Publisher { id, rtcp: None, last: now };
                    return true;
                }
                self.counters.dropped_second_publisher += 1;
                return false;
            }
            _ => {}
        }
        if let PublisherId::Address(remote) = id
            && !self.config.allow.is_empty()
            && !self.config.allow.iter().any(|net| net.contains(&remote.ip()))
        {
            self.counters.dropped_not_allowed += 1;
            return false;
        }
        self.publisher = Some(Publisher { id, rtcp: None, last: now });
        self.wall_clock = None;
        self.counters.publishers += 1;
        true
    }

    fn handle_rtp(&mut self, header: Header, datagram: &[u8], remote: SocketAddr, now: Instant) {
        if datagram.len() > self.history.longest() {
            self.counters.dropped_too_long += 1;
            return;
        }
        if !self.publishes(PublisherId::Address(remote), Some(header.ssrc), now) {
            return;
        }
        self.keep(header, None, datagram, now);
    }

    /// Keeps a packet of the publisher, of a layer of its simulcast if it has some.
    pub(super) fn keep(&mut self, header: Header, layer: Option<&str>, packet: &[u8], now: Instant) {
        let Some(number) = self.stream(header, layer, now) else {
            self.counters.dropped_ssrc += 1;
            return;
        };
        let times = (self.epoch, now);
        match self.streams[number].keep((header, packet), number as u8, &mut self.history, times) {
            Ok(_) => self.kept(packet),
            Err(_) => self.counters.dropped_duplicate += 1,
        }
    }

    /// The stream of a packet: its SSRC's, or a new one's, in the place of one that ended and had the same payload type and layer, or
    /// else any.
    fn stream(&mut self, header: Header, layer: Option<&str>, now: Instant) -> Option<usize> {
        if let Some(number) = self.streams.iter().position(|stream| stream.ssrc == header.ssrc) {
            return Some(number);
        }
        let clock = self.config.clocks[usize::from(header.payload_type)];
        let has_ended =
            |stream: &Stream| now.saturating_duration_since(stream.last) >= self.config.publisher_timeout;
        let mut ended = self.streams.iter().enumerate().filter(|(_, stream)| has_ended(stream));
        let alike = ended.clone().find(|(_, stream)| {
            stream.payload_type == header.payload_type && stream.layer.as_deref() == layer
        });
        let heir = match alike {
            None if self.streams.len() < STREAMS => None,
            None => Some(ended.next()?.0),
            Some((number, _)) => Some(number),
        };
        let number = match heir {
            Some(number) => {
                self.streams[number].succeed(header, clock, self.epoch, now);
                self.keyframes[number] = KeyframeRequests::default();
                number
            }
            None => {
                self.streams.push(Stream::new(header, clock, &self.history, self.epoch, now));
                self.streams.len() - 1
            }
        };
        self.streams[number].layer = layer.map(Into::into);
        Some(number)
    }

    /// When [`Self::handle_timeout`] is due: the publisher falls silent, or is to hear something though nothing comes.
    pub fn deadline(&self, now: Instant) -> Option<Instant> {
        let publisher = self.publisher?;
        let silent = publisher.last + self.config.publisher_timeout;
        let keyframes =
            self.keyframes.iter().filter_map(|one| one.deadline(self.config.keyframe_interval, now));
        if let PublisherId::Session(_) = publisher.id {
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

    /// Somebody publishes, or was heard from not long ago.
    pub fn has_publisher(&self) -> bool {
        self.publisher.is_some()
    }

    /// Whether the publisher can be asked for lost packets.
    pub fn can_ask_publisher(&self) -> bool {
        let is_session =
            self.publisher.is_some_and(|publisher| matches!(publisher.id, PublisherId::Session(_)));
        is_session || self.publisher_rtcp().is_some()
    }

    pub(super) fn publisher_address(&self) -> Option<SocketAddr> {
        match self.publisher?.id {
            PublisherId::Address(address) => Some(address),
            PublisherId::Session(_) => None,
        }
    }

    pub(super) fn publisher_rtcp(&self) -> Option<(SocketAddr, SocketAddr)> {
        let (publisher, address) = (self.publisher?, self.publisher_address()?);
        let (input, from) = (self.config.input?, self.config.from?);
        let own = SocketAddr::new(from.ip(), self.config.rtcp.address(input)?.port());
        // A group's members are told by all of what one received.
        let group = input.ip().is_multicast().then(|| self.config.rtcp.address(input));
        let to = group.flatten().or(publisher.rtcp).or_else(|| self.config.rtcp.address(address))?;
        Some((own, to))
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
