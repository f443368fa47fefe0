//! A peer on quiche's streams, which does what the test says.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::time::Instant;

use expressway_netio::sim::{Network, Node, SimIo};
use expressway_netio::{Flow, IoError, PacketIo};
use expressway_relay::moq::wire::{Announce, Answer, Group, Message, Subscribe, Wishes, write};

use super::world::SERVER;

pub(super) struct Peer {
    io: SimIo,
    pub(super) quic: quiche::Connection,
    /// What has come on streams.
    streams: BTreeMap<u64, Vec<u8>>,
    /// Streams that were ended by the relay.
    pub(super) ended: BTreeSet<u64>,
    /// Streams that it has reset, and the codes.
    pub(super) resets: BTreeMap<u64, u64>,
    /// What could not be sent yet.
    waiting: VecDeque<(u64, Vec<u8>, bool)>,
    next_request: u64,
    next_stream: u64,
    /// Nothing that comes is looked at, and nothing is said.
    pub(super) deaf: bool,
    /// Streams of groups are stopped as soon as something has come on them.
    pub(super) stops: bool,
    pub(super) stopped: u64,
    scratch: Vec<u8>,
}

impl Peer {
    pub(super) fn new(network: &Network, index: usize, protocol: &[u8]) -> Self {
        let local: SocketAddr = ([198, 51, 100, 7], 20_000 + index as u16).into();
        let mut config = quiche::Config::new(quiche::PROTOCOL_VERSION).unwrap();
        config.set_application_protos(&[protocol]).unwrap();
        config.verify_peer(false);
        config.set_max_idle_timeout(30_000);
        config.set_initial_max_data(1 << 30);
        config.set_initial_max_stream_data_bidi_local(1 << 24);
        config.set_initial_max_stream_data_bidi_remote(1 << 24);
        config.set_initial_max_stream_data_uni(1 << 24);
        config.set_max_stream_window(1 << 24);
        config.set_max_connection_window(1 << 30);
        config.set_initial_max_streams_bidi(5000);
        config.set_initial_max_streams_uni(100);
        config.set_max_send_udp_payload_size(1350);
        let id = [index as u8 + 1; 16];
        let id = quiche::ConnectionId::from_ref(&id);
        let server = SERVER.parse().unwrap();
        Self {
            io: network.endpoint(&[local]).unwrap(),
            quic: quiche::connect(Some("relay.example"), &id, local, server, &mut config).unwrap(),
            streams: BTreeMap::new(),
            ended: BTreeSet::new(),
            resets: BTreeMap::new(),
            waiting: VecDeque::new(),
            next_request: 0,
            next_stream: 2,
            deaf: false,
            stops: false,
            stopped: 0,
            scratch: vec![0; 64 << 10],
        }
    }

    /// What there is to know of it when a test fails.
    pub(super) fn state(&self) -> String {
        let lengths: Vec<_> = self.streams.iter().map(|(stream, octets)| (*stream, octets.len())).collect();
        let errors = (self.quic.peer_error(), self.quic.local_error(), self.quic.timeout());
        format!(
            "{:?} {errors:?} streams {lengths:?} ended {:?} waiting {}",
            self.quic.stats(),
            self.ended,
            self.waiting.len()
        )
    }

    /// What has come on a stream.
    pub(super) fn came(&self, stream: u64) -> &[u8] {
        self.streams.get(&stream).map_or(&[], Vec::as_slice)
    }

    /// The streams that something has come on, and that.
    pub(super) fn streams(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.streams.iter().map(|(stream, octets)| (*stream, octets.as_slice()))
    }

    /// Sends on a stream.
    pub(super) fn send(&mut self, stream: u64, octets: Vec<u8>, is_last: bool) {
        self.waiting.push_back((stream, octets, is_last));
    }

    /// Opens a stream in one direction, or two.
    pub(super) fn open(&mut self, is_request: bool) -> u64 {
        let next = if is_request { &mut self.next_request } else { &mut self.next_stream };
        *next += 4;
        *next - 4
    }

    pub(super) fn setup(&mut self) {
        let stream = self.open(false);
        self.send(stream, b"\x01\x0a\x01\x02\x07/studio".to_vec(), true);
    }

    /// Announces a broadcast to who has asked on stream 1.
    pub(super) fn announce(&mut self, path: &str) {
        let mut out = Vec::new();
        write::announce_ok(7, 1, &mut out);
        write::announce(&Announce { is_active: true, suffix: path, hops: Vec::new() }, &mut out);
        self.send(1, out, false);
    }

    /// Subscribes to a track of `cam`; the stream.
    pub(super) fn subscribe(&mut self, id: u64, track: &str, max_age: u64) -> u64 {
        let wishes = Wishes { priority: 1, max_age, start: None, end: None };
        let stream = self.open(true);
        self.send(stream, write::subscribe(id, "cam", track, wishes), false);
        stream
    }

    /// The newest subscription that the relay asks for, by its number, and its stream.
    pub(super) fn subscription(&self) -> Option<(u64, u64)> {
        let asked = self
            .streams
            .iter()
            .rev()
            .filter(|(stream, octets)| *stream & 3 == 1 && octets.first() == Some(&2));
        let mut asked =
            asked.filter_map(|(stream, octets)| Some((Subscribe::read(&octets[1..]).ok()?.0.id, *stream)));
        asked.next()
    }

    pub(super) fn asked(&self) -> Option<u64> {
        self.subscription().map(|(id, _)| id)
    }

    /// Answers on the stream of a subscription of the relay's.
    pub(super) fn answer(&mut self, stream: u64, answers: &[Answer], is_last: bool) {
        let mut out = Vec::new();
        answers.iter().for_each(|answer| answer.write(&mut out));
        self.send(stream, out, is_last);
    }

    /// Sends a group of one object.
    pub(super) fn group(&mut self, subscription: u64, sequence: u64, object: &[u8]) -> u64 {
        let stream = self.open(false);
        self.send(stream, group(subscription, sequence, object), true);
        stream
    }

    /// Numbers of groups that have come to their end, in the order of their streams.
    pub(super) fn groups(&self) -> Vec<u64> {
        let whole = self.streams.iter().filter(|(stream, _)| *stream & 3 == 3 && self.ended.contains(stream));
        let heads = whole.filter(|(_, octets)| octets.first() == Some(&0));
        heads.map(|(_, octets)| Group::read(&octets[1..]).unwrap().0.sequence).collect()
    }

    /// The stream that a group has come on.
    pub(super) fn stream_of(&self, number: u64) -> Option<u64> {
        let head = |octets: &[u8]| Group::read(octets.get(1..)?).ok().map(|(group, _)| group.sequence);
        let mut found =
            self.streams.iter().filter(|(stream, octets)| **stream & 3 == 3 && head(octets) == Some(number));
        found.next().map(|(stream, _)| *stream)
    }

    /// Answers that have come on a stream.
    pub(super) fn answers(&self, stream: u64) -> Vec<Answer> {
        let (mut octets, mut all) = (self.came(stream), Vec::new());
        while let Ok((answer, length)) = Answer::read(octets) {
            all.push(answer);
            octets = &octets[length..];
        }
        all
    }

    fn read(&mut self) {
        while let Some(stream) = self.quic.stream_readable_next() {
            if self.stops && stream & 3 == 3 {
                let _ = self.quic.stream_shutdown(stream, quiche::Shutdown::Read, 1);
                self.stopped += 1;
                continue;
            }
            loop {
                match self.quic.stream_recv(stream, &mut self.scratch) {
                    Ok((length, is_last)) => {
                        self.streams.entry(stream).or_default().extend_from_slice(&self.scratch[..length]);
                        if is_last {
                            self.ended.insert(stream);
                            break;
                        }
                    }
                    Err(quiche::Error::StreamReset(code)) => {
                        self.resets.insert(stream, code);
                        break;
                    }
                    Err(_) => break,
                }
            }
        }
    }

    fn write(&mut self) {
        for _ in 0..self.waiting.len() {
            let Some((stream, mut octets, is_last)) = self.waiting.pop_front() else { return };
            match self.quic.stream_send(stream, &octets, is_last) {
                Ok(taken) if taken == octets.len() => continue,
                Ok(taken) => drop(octets.drain(..taken)),
                Err(quiche::Error::Done | quiche::Error::StreamLimit) => {}
                Err(_) => continue,
            }
            self.waiting.push_back((stream, octets, is_last));
        }
    }
}

/// The stream of a group of one object.
pub(super) fn group(subscription: u64, sequence: u64, object: &[u8]) -> Vec<u8> {
    let mut out = write::group(Group { subscription, sequence });
    out.push(0);
    expressway_h3::varint::write(object.len() as u64, &mut out);
    out.extend_from_slice(object);
    out
}

impl Node for Peer {
    fn turn(&mut self, now: Instant) -> Result<bool, IoError> {
        let Self { io, quic, deaf, .. } = self;
        let received = io.receive(now, &mut |datagram| {
            if !*deaf {
                let info = quiche::RecvInfo { from: datagram.remote, to: datagram.local };
                let _ = quic.recv(datagram.payload, info);
            }
        })?;
        if self.deaf {
            return Ok(received > 0);
        }
        if self.quic.timeout_instant().is_some_and(|timeout| timeout <= now) {
            self.quic.on_timeout();
        }
        if self.quic.is_established() {
            self.read();
            self.write();
        }
        let (mut packet, mut sent) = ([0; 1350], 0);
        while let Ok((length, info)) = self.quic.send(&mut packet) {
            let mut source = Some(&packet[..length]);
            self.io.transmit(&Flow::new(info.from, info.to), length, &mut |slot| {
                source.take().map_or(0, |packet| {
                    slot.copy_from_slice(packet);
                    packet.len()
                })
            })?;
            self.io.flush(now)?;
            sent += 1;
        }
        Ok(received + sent > 0)
    }

    fn next_deadline(&mut self) -> Option<Instant> {
        if self.deaf { None } else { self.quic.timeout_instant() }
    }
}
