//! A client that does what bytes say. A step is four bytes and a payload: what and how often, an argument, and the length
//! of the payload.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use expressway_relay::moq::application::PROTOCOL;

use super::packet::{self, ACK, CRYPTO, NEW_CONNECTION_ID, STREAM, varint};
use super::server::{LOCAL, Server};

/// Bits of the first byte of an input.
mod manner {
    /// The client says its first words by script too.
    pub(super) const RAW: u8 = 1;
    /// As many frames as fit go into a packet.
    pub(super) const PACKED: u8 = 2;
    /// The worker takes a turn for each datagram.
    pub(super) const EAGER: u8 = 4;
}

/// The longest datagram of a script.
const LONGEST: usize = 1200;

/// Datagrams and bytes of an input at most, so that none takes long by its length alone.
const MAX_DATAGRAMS: usize = 4096;
const MAX_BYTES: usize = 1 << 20;

/// Turns of an input in which nothing comes: each costs the worker something, and the client nothing.
const MAX_IDLE_TURNS: usize = 64;

/// Datagrams that come in one turn.
const TRAIN: usize = 16;

/// The first packet number of a script: beyond those of the handshake.
const FIRST_NUMBER: u32 = 1000;

/// The control stream of a client.
const CONTROL: u64 = 2;

const CLIENT_ID: [u8; 8] = *b"scripted";

/// What a client speaks above QUIC, which two of the steps are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Speaks {
    /// Requests, and frames on the control stream.
    Http3,
    /// Answers on streams that the server has opened, and the stream that says which room is wanted.
    Moq,
}

pub(super) struct Script<'a> {
    server: &'a mut Server,
    speaks: Speaks,
    manner: u8,
    /// The connection, as the server calls it.
    dcid: Vec<u8>,
    address: SocketAddr,
    number: u32,
    key_phase: bool,
    /// How far each stream and each packet number space's CRYPTO has been written.
    offsets: BTreeMap<u64, u64>,
    next_request: u64,
    next_id: u64,
    /// The newest packet that the server has sent.
    newest: u64,
    /// Frames of the packet in the making, and datagrams of the train.
    frames: Vec<u8>,
    train: Vec<(Vec<u8>, SocketAddr)>,
    datagrams: usize,
    bytes: usize,
    idle_turns: usize,
}

impl<'a> Script<'a> {
    /// A client whose handshake is over, unless its manner is raw.
    pub(super) fn new(speaks: Speaks, manner: u8, server: &'a mut Server) -> Self {
        let mut script = Self {
            server,
            speaks,
            manner,
            dcid: vec![0xaa; 16],
            address: ([198, 51, 100, 7], 50_000).into(),
            number: FIRST_NUMBER,
            key_phase: false,
            offsets: BTreeMap::new(),
            next_request: 0,
            next_id: 1,
            newest: 0,
            frames: Vec::new(),
            train: Vec::new(),
            datagrams: 0,
            bytes: 0,
            idle_turns: 0,
        };
        if manner & manner::RAW == 0 {
            script.shake_hands();
        }
        script
    }

    /// A real client's handshake, which is then forgotten but for what the server calls the connection.
    fn shake_hands(&mut self) {
        let mut config = quiche::Config::new(quiche::PROTOCOL_VERSION).expect("a TLS context");
        let protocols: &[&[u8]] = match self.speaks {
            Speaks::Http3 => quiche::h3::APPLICATION_PROTOCOL,
            Speaks::Moq => &[PROTOCOL.as_bytes()],
        };
        config.set_application_protos(protocols).expect("a protocol's name");
        if self.speaks == Speaks::Moq {
            config.set_initial_max_stream_data_bidi_remote(16 << 10);
            config.set_initial_max_streams_bidi(64);
        }
        config.verify_peer(false);
        config.set_max_idle_timeout(30_000);
        config.set_initial_max_data(64 << 10);
        config.set_initial_max_stream_data_bidi_local(16 << 10);
        config.set_initial_max_stream_data_uni(16 << 10);
        config.set_initial_max_streams_uni(8);
        config.set_active_connection_id_limit(4);
        let id = quiche::ConnectionId::from_ref(&CLIENT_ID);
        let mut client =
            quiche::connect(Some("edge.example"), &id, self.address, LOCAL, &mut config).expect("a client");
        let mut packet = [0; LONGEST];
        for _ in 0..8 {
            let mut flight = Vec::new();
            while let Ok((length, _)) = client.send(&mut packet) {
                flight.push((packet[..length].to_vec(), self.address));
            }
            if flight.is_empty() && client.is_established() {
                break;
            }
            let sent = self.server.receive(flight);
            self.notice(&sent);
            for mut datagram in sent {
                let datagram = packet::unpadded(&mut datagram);
                let _ = client.recv(datagram, quiche::RecvInfo { from: LOCAL, to: self.address });
            }
        }
        let error = client.local_error().or(client.peer_error());
        assert!(client.is_established() && error.is_none(), "the handshake failed: {error:?}");
        self.dcid = client.destination_id().to_vec();
    }

    fn notice(&mut self, sent: &[Vec<u8>]) {
        let numbers = sent.iter().filter_map(|datagram| packet::number_of(datagram, CLIENT_ID.len()));
        self.newest = numbers.fold(self.newest, u64::max);
    }

    pub(super) fn run(mut self, mut steps: &[u8]) {
        while let Some((&[what, argument, high, low], rest)) = steps.split_first_chunk() {
            let length = usize::from(u16::from_be_bytes([high, low])).min(rest.len());
            let (payload, rest) = rest.split_at(length);
            steps = rest;
            for copy in 0..1u64 << (what >> 4).min(11) {
                if self.is_exhausted() {
                    break;
                }
                self.step(what & 0xf, argument, payload, copy);
            }
        }
        self.end_packet();
        self.send_train();
    }

    fn is_exhausted(&self) -> bool {
        self.datagrams >= MAX_DATAGRAMS || self.bytes >= MAX_BYTES
    }

    fn step(&mut self, what: u8, argument: u8, payload: &[u8], copy: u64) {
        let chosen = u64::from(argument) + copy;
        match what {
            0 => self.send(payload[..payload.len().min(LONGEST)].to_vec()),
            1 => self.frame(&payload[..payload.len().min(LONGEST)]),
            2 | 3 => self.stream(4 * chosen, payload, what == 3),
            4 | 5 if self.speaks == Speaks::Moq => {
                let first = if what == 4 { 1 } else { 2 };
                self.stream(first + 4 * (chosen & 0x7f), payload, argument & 0x80 != 0);
            }
            4 => self.request(payload),
            5 => self.stream(2 + 4 * chosen, payload, argument & 0x80 != 0),
            6 if self.speaks == Speaks::Moq => self.stream(CONTROL, payload, argument != 0),
            6 => self.control(payload),
            7 => self.acknowledge(chosen, payload),
            8 => self.acknowledge(self.newest, &[0, self.newest.min(255) as u8]),
            9 | 10 => self.handshake_packet(what - 9, argument, copy, payload),
            11 => self.crypto(u64::from(argument) << 6 | copy << (argument & 7), payload),
            12 => {
                self.end_packet();
                self.address.set_port(50_000 + u16::from(argument) + copy as u16);
            }
            13 => {
                self.end_packet();
                self.key_phase = !self.key_phase;
                self.number = self.number.wrapping_add(argument.into());
            }
            14 => self.new_connection_id(argument),
            _ => {
                self.end_packet();
                self.send_train();
                if self.idle_turns < MAX_IDLE_TURNS {
                    self.idle_turns += 1;
                    self.server.turn();
                }
            }
        }
    }

    /// Puts a frame into the packet in the making.
    fn frame(&mut self, frame: &[u8]) {
        if self.frames.len() + frame.len() > LONGEST - 40 {
            self.end_packet();
        }
        self.frames.extend_from_slice(frame);
        if self.manner & manner::PACKED == 0 {
            self.end_packet();
        }
    }

    fn end_packet(&mut self) {
        if !self.frames.is_empty() {
            let frames = std::mem::take(&mut self.frames);
            let packet = packet::short(&self.dcid, self.number, self.key_phase, &frames);
            self.number = self.number.wrapping_add(1);
            self.send(packet);
        }
    }

    fn send(&mut self, datagram: Vec<u8>) {
        self.datagrams += 1;
        self.bytes += datagram.len();
        self.train.push((datagram, self.address));
        if self.train.len() >= TRAIN || self.manner & manner::EAGER != 0 {
            self.send_train();
        }
    }

    fn send_train(&mut self) {
        if !self.train.is_empty() {
            let sent = self.server.receive(std::mem::take(&mut self.train));
            self.notice(&sent);
        }
    }

    /// Goes on with a stream, in as many frames as that takes.
    fn stream(&mut self, id: u64, data: &[u8], fin: bool) {
        let mut pieces = data.chunks(LONGEST - 80).peekable();
        if pieces.peek().is_none() {
            return self.stream_frame(id, &[], fin);
        }
        while let Some(piece) = pieces.next() {
            self.stream_frame(id, piece, fin && pieces.peek().is_none());
        }
    }

    fn stream_frame(&mut self, id: u64, data: &[u8], fin: bool) {
        let offset = self.offsets.entry(id).or_default();
        // With offset and length.
        let mut frame = vec![STREAM | 6 | u8::from(fin)];
        [id, *offset, data.len() as u64].into_iter().for_each(|value| varint(value, &mut frame));
        frame.extend_from_slice(data);
        *offset += data.len() as u64;
        self.frame(&frame);
    }

    /// The next request, of these field lines.
    fn request(&mut self, lines: &[u8]) {
        let mut frames = Vec::new();
        varint(1, &mut frames);
        varint(2 + lines.len() as u64, &mut frames);
        frames.extend_from_slice(&[0, 0]);
        frames.extend_from_slice(lines);
        let id = self.next_request;
        self.next_request += 4;
        self.stream(id, &frames, true);
    }

    /// Frames on the control stream, which begins with SETTINGS.
    fn control(&mut self, frames: &[u8]) {
        if !self.offsets.contains_key(&CONTROL) {
            self.stream(CONTROL, &[0, 4, 0], false);
        }
        self.stream(CONTROL, frames, false);
    }

    /// An ACK with as many ranges as the payload has pairs of gap and length.
    fn acknowledge(&mut self, largest: u64, ranges: &[u8]) {
        let mut pairs = ranges.chunks_exact(2);
        let first = pairs.next().map_or(0, |pair| pair[1]);
        let mut frame = vec![ACK];
        [largest, 0, pairs.len() as u64, first.into()]
            .into_iter()
            .for_each(|value| varint(value, &mut frame));
        pairs.flatten().for_each(|value| varint(u64::from(*value), &mut frame));
        self.frame(&frame[..frame.len().min(LONGEST - 40)]);
    }

    /// An Initial of one of the connections that `argument` and `copy` name, or a Handshake packet of ours.
    fn handshake_packet(&mut self, kind: u8, argument: u8, copy: u64, frames: &[u8]) {
        self.end_packet();
        let mut id = [argument; 8];
        id[6..].copy_from_slice(&(copy as u16).to_be_bytes());
        let frames = &frames[..frames.len().min(LONGEST - 100)];
        let packet = match kind {
            0 => packet::long(0, &id, &CLIENT_ID, copy as u32, frames),
            _ => packet::long(2, &self.dcid, &CLIENT_ID, self.number, frames),
        };
        self.number = self.number.wrapping_add(1);
        self.send(packet);
    }

    /// CRYPTO at an offset: of the handshake that is still to come, if the manner is raw.
    fn crypto(&mut self, offset: u64, data: &[u8]) {
        let data = &data[..data.len().min(LONGEST - 120)];
        let mut frame = vec![CRYPTO];
        varint(offset, &mut frame);
        varint(data.len() as u64, &mut frame);
        frame.extend_from_slice(data);
        if self.manner & manner::RAW == 0 {
            return self.frame(&frame);
        }
        let packet = packet::long(0, &[0xcc; 8], &CLIENT_ID, self.number, &frame);
        self.number = self.number.wrapping_add(1);
        self.send(packet);
    }

    /// Another ID of the client's, retiring those below `retire`.
    fn new_connection_id(&mut self, retire: u8) {
        let number = self.next_id;
        self.next_id += 1;
        let mut frame = vec![NEW_CONNECTION_ID];
        varint(number, &mut frame);
        varint(number.min(retire.into()), &mut frame);
        frame.push(8);
        frame.extend_from_slice(&number.to_be_bytes());
        frame.extend_from_slice(&[number as u8; 16]);
        self.frame(&frame);
    }
}
