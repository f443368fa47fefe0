//! A peer that does what bytes say. A step is four bytes and a payload: what and how often, an argument, and the length of the payload.

use std::net::SocketAddr;
use std::time::Duration;

use expressway_relay::webrtc::answer::Role;

use super::peer::{Peer, rtp, sctp, srtcp, srtp};
use super::plain::TAP;
use super::server::{Server, feed, media};

/// Bits of the first byte of an input.
mod manner {
    /// ICE is done, and DTLS is by script.
    pub(super) const RAW: u8 = 1;
    /// It receives; else it publishes.
    pub(super) const PLAY: u8 = 2;
    /// It has data channels.
    pub(super) const DATA: u8 = 4;
    /// The worker takes a turn for each datagram.
    pub(super) const EAGER: u8 = 8;
    /// Its own SCTP, ICE and RTCP go on.
    pub(super) const LIVE: u8 = 16;
}

/// The longest datagram of a script.
const LONGEST: usize = 1200;

/// Datagrams and bytes of an input at most, so that none takes long by its length alone.
const MAX_DATAGRAMS: usize = 4096;
const MAX_BYTES: usize = 1 << 20;

/// Turns of an input in which nothing comes: each costs the worker something, and the peer nothing.
const MAX_IDLE_TURNS: usize = 64;

/// How far time goes on in a step, for each of its argument.
const TICK: Duration = Duration::from_millis(10);

/// Datagrams that come in one turn.
const TRAIN: usize = 16;

pub(super) struct Script {
    server: Server,
    peer: Peer,
    manner: u8,
    /// Numbers of the next packets of RTP, of RTCP, of the feed, of DTLS.
    sequence: u16,
    control: u32,
    fed: u16,
    record: u64,
    /// The stream that the session sends, and the number of its newest packet.
    heard: (u32, u16),
    train: Vec<(Vec<u8>, SocketAddr, SocketAddr)>,
    datagrams: usize,
    bytes: usize,
    idle_turns: usize,
}

impl Script {
    /// A peer with a session.
    pub(super) fn new(manner: u8) -> Self {
        let mut server = Server::new();
        let role = if manner & manner::PLAY == 0 { Role::Publish } else { Role::Play };
        let has = (manner & manner::RAW == 0, manner & manner::DATA != 0);
        let peer = Peer::new(&mut server, role, has);
        TAP.with_borrow_mut(|tap| tap.is_deaf = manner & manner::LIVE == 0);
        Self {
            server,
            peer,
            manner,
            sequence: 100,
            control: 1,
            fed: 100,
            record: 100,
            heard: (0, 0),
            train: Vec::new(),
            datagrams: 0,
            bytes: 0,
            idle_turns: 0,
        }
    }

    pub(super) fn run(mut self, mut steps: &[u8]) {
        while let Some((&[what, argument, high, low], rest)) = steps.split_first_chunk() {
            let length = usize::from(u16::from_be_bytes([high, low])).min(rest.len());
            let (payload, rest) = rest.split_at(length);
            steps = rest;
            for copy in 0..1u16 << (what >> 4).min(11) {
                if self.datagrams >= MAX_DATAGRAMS || self.bytes >= MAX_BYTES {
                    break;
                }
                self.step(what & 0xf, argument, &payload[..payload.len().min(LONGEST)], copy);
            }
        }
        self.send_train();
        self.server.finish();
    }

    fn step(&mut self, what: u8, argument: u8, payload: &[u8], copy: u16) {
        match what {
            0 => self.send(payload.to_vec()),
            1 => self.inject(|tap| sctp(tap, payload)),
            2 => self.inject(|_| payload.to_vec()),
            3 => self.publish(argument, payload),
            4 => self.report(argument, payload),
            5 => self.control(payload.to_vec()),
            6 => {
                let request = self.peer.request(true, payload);
                self.send_from(request, u16::from(argument) + copy);
            }
            7 => self.live(),
            8 => self.data(argument, payload, copy),
            9 => self.feed(argument, payload),
            10 => self.dtls(20 + (argument >> 1 & 7), u16::from(argument & 1), payload),
            11 => self.fragment(argument, payload, copy),
            12 => self.send_from(payload.to_vec(), 1 + u16::from(argument) + copy),
            13 => self.wait(TICK * u32::from(argument)),
            14 => {
                let request = self.peer.request(false, payload);
                self.send_from(request, u16::from(argument) + copy);
            }
            _ => self.wait(Duration::ZERO),
        }
    }

    fn send(&mut self, datagram: Vec<u8>) {
        self.send_from(datagram, 0);
    }

    /// From an address of the peer's host: its own, or another.
    fn send_from(&mut self, datagram: Vec<u8>, port: u16) {
        let mut address = self.peer.address;
        address.set_port(address.port().wrapping_add(port));
        self.push(datagram, address, media());
    }

    fn push(&mut self, datagram: Vec<u8>, from: SocketAddr, to: SocketAddr) {
        self.datagrams += 1;
        self.bytes += datagram.len();
        self.train.push((datagram, from, to));
        if self.train.len() >= TRAIN || self.manner & manner::EAGER != 0 {
            self.send_train();
        }
    }

    fn send_train(&mut self) {
        let sent = self.server.receive(std::mem::take(&mut self.train));
        for (_, datagram) in sent {
            // RTP, and no RTCP (RFC 5761, section 4).
            if datagram.len() >= 12 && datagram[0] >> 6 == 2 && !(64..96).contains(&(datagram[1] & 0x7f)) {
                let ssrc = u32::from_be_bytes([datagram[8], datagram[9], datagram[10], datagram[11]]);
                self.heard = (ssrc, u16::from_be_bytes([datagram[2], datagram[3]]));
            }
            if self.manner & manner::LIVE != 0 {
                self.peer.receive(&datagram, self.server.now);
            }
        }
        if !self.server.has_session() {
            // Nobody hears the rest.
            self.datagrams = self.datagrams.max(MAX_DATAGRAMS - 64);
        }
    }

    /// The peer's own turn.
    fn live(&mut self) {
        for datagram in self.peer.turn(self.server.now) {
            self.send(datagram);
        }
    }

    /// Says within DTLS what is made of the association's tag.
    fn inject(&mut self, make: impl FnOnce(u32) -> Vec<u8>) {
        TAP.with_borrow_mut(|tap| {
            let data = make(tap.tag);
            tap.inject.push_back(data);
        });
        self.live();
    }

    /// RTP of what it publishes, or of another stream, a little or much later than the one before.
    fn publish(&mut self, argument: u8, rest: &[u8]) {
        let jump = if argument & 0x80 == 0 { 1 } else { 1 << (argument >> 4 & 7) };
        self.sequence = self.sequence.wrapping_add(jump);
        let ssrc = self.peer.ssrc.wrapping_add(u32::from(argument & 7));
        let extension = if argument & 8 == 0 { 0 } else { 0x10 };
        let packet = rtp((extension, self.peer.payload_type), self.sequence, ssrc, rest);
        self.send(srtp(packet));
    }

    /// RTCP feedback on what the session sends, behind an empty report. Packets that are missed are counted from the newest back.
    fn report(&mut self, argument: u8, rest: &[u8]) {
        let (media, newest) = self.heard;
        let (kind, format) = (205 + (argument >> 5 & 1), argument & 0x1f);
        let mut rest = rest.to_vec();
        rest.resize(rest.len().next_multiple_of(4), 0);
        if (kind, format) == (205, 1) {
            for entry in rest.chunks_exact_mut(4) {
                let number = newest.wrapping_sub(u16::from_be_bytes([entry[0], entry[1]]));
                entry[..2].copy_from_slice(&number.to_be_bytes());
            }
        }
        let own = self.peer.ssrc.to_be_bytes();
        let words = (2 + rest.len() / 4) as u16;
        let head = [0x80 | format, kind];
        let packet =
            [&[0x80, 201, 0, 1][..], &own, &head, &words.to_be_bytes(), &own, &media.to_be_bytes(), &rest];
        self.control(packet.concat());
    }

    fn control(&mut self, packet: Vec<u8>) {
        self.control += 1;
        self.send(srtcp(packet, self.control));
    }

    /// DATA of SCTP: flags, how far ahead its number is, and what is in it.
    fn data(&mut self, stream: u8, payload: &[u8], copy: u16) {
        let Some((&[flags, high, low], data)) = payload.split_first_chunk() else { return };
        let next = TAP.with_borrow(|tap| tap.next);
        let number = next.wrapping_add(u16::from_be_bytes([high, low]).into()).wrapping_add(copy.into());
        let mut chunk = vec![0, flags];
        chunk.extend_from_slice(&(16 + data.len() as u16).to_be_bytes());
        chunk.extend_from_slice(&number.to_be_bytes());
        chunk.extend_from_slice(&u16::from(stream).to_be_bytes());
        chunk.extend_from_slice(&copy.to_be_bytes());
        chunk.extend_from_slice(&53u32.to_be_bytes());
        chunk.extend_from_slice(data);
        chunk.resize(chunk.len().next_multiple_of(4), 0);
        self.inject(|tag| sctp(tag, &chunk));
    }

    /// A packet of the room's own publisher.
    fn feed(&mut self, jump: u8, payload: &[u8]) {
        self.fed = self.fed.wrapping_add(1 + u16::from(jump));
        let packet = rtp((0, 96), self.fed, 9, payload);
        let from = SocketAddr::new("192.0.2.8".parse().expect("an address"), 6000);
        self.push(packet, from, feed());
    }

    /// A record of DTLS 1.2 (RFC 6347, section 4.1).
    fn dtls(&mut self, kind: u8, epoch: u16, fragment: &[u8]) {
        self.record += 1;
        let mut record = vec![kind, 0xfe, 0xfd];
        record.extend_from_slice(&epoch.to_be_bytes());
        record.extend_from_slice(&self.record.to_be_bytes()[2..]);
        record.extend_from_slice(&(fragment.len() as u16).to_be_bytes());
        record.extend_from_slice(fragment);
        self.send(record);
    }

    /// A fragment of a ClientHello of up to 15 KiB, each copy behind the one before (RFC 6347, section 4.2.2).
    fn fragment(&mut self, argument: u8, payload: &[u8], copy: u16) {
        let three = |value: usize| [(value >> 16) as u8, (value >> 8) as u8, value as u8];
        let (message, length) = (u16::from(argument & 0xf), usize::from(argument >> 4) << 10);
        let mut fragment = vec![1];
        fragment.extend_from_slice(&three(length));
        fragment.extend_from_slice(&message.to_be_bytes());
        fragment.extend_from_slice(&three(usize::from(copy) * payload.len()));
        fragment.extend_from_slice(&three(payload.len()));
        fragment.extend_from_slice(payload);
        self.dtls(22, 0, &fragment);
    }

    /// Time goes on, and the worker looks at it.
    fn wait(&mut self, time: Duration) {
        self.send_train();
        if self.idle_turns < MAX_IDLE_TURNS {
            self.idle_turns += 1;
            self.server.now += time;
            if self.manner & manner::LIVE != 0 {
                self.live();
            }
            self.send_train();
        }
    }
}
