//! A real peer of a session, and what can be sent in its name.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use expressway_relay::webrtc::answer::Role;
use expressway_relay::webrtc::fuzzing::{certificate, provider};
use str0m::change::SdpAnswer;
use str0m::media::{Direction, MediaKind, Mid};
use str0m::net::{Protocol, Receive};
use str0m::{Candidate, Event, Input, Output, Rtc};

use super::plain::{TAG, TAP, Tap, tapped};
use super::server::{Server, media};

/// How long a peer may take to connect, in steps of its clock.
const ROUNDS: usize = 1000;
const ROUND: Duration = Duration::from_millis(5);

/// The cookie of STUN, and its attributes (RFC 8489, RFC 8445).
const COOKIE: [u8; 4] = [0x21, 0x12, 0xa4, 0x42];
const USERNAME: u16 = 6;
const MESSAGE_INTEGRITY: u16 = 8;
const PRIORITY: u16 = 0x24;
const USE_CANDIDATE: u16 = 0x25;
const FINGERPRINT: u16 = 0x8028;
const ICE_CONTROLLING: u16 = 0x802a;

pub(super) struct Peer {
    rtc: Rtc,
    pub(super) address: SocketAddr,
    /// Username and password of a request to the session.
    username: String,
    password: String,
    /// What it publishes, and the payload type.
    pub(super) ssrc: u32,
    pub(super) payload_type: u8,
    is_connected: bool,
    has_channel: bool,
    out: Vec<Vec<u8>>,
}

impl Peer {
    /// One whose session is in a room. Without `has_dtls`, ICE is all that it has done.
    pub(super) fn new(server: &mut Server, role: Role, (has_dtls, has_data): (bool, bool)) -> Self {
        TAP.set(Tap::default());
        let address = SocketAddr::new("192.0.2.9".parse().expect("an address"), 5000);
        let mut rtc = Rtc::builder()
            .set_crypto_provider(Arc::new(tapped()))
            .set_dtls_cert(certificate().expect("a certificate"))
            .set_rtp_mode(true)
            .clear_codecs()
            .enable_vp8(true)
            .build(server.now);
        rtc.add_local_candidate(Candidate::host(address, "udp").expect("a candidate"));
        let mut change = rtc.sdp_api();
        let direction = if role == Role::Publish { Direction::SendOnly } else { Direction::RecvOnly };
        let mid = change.add_media(MediaKind::Video, direction, None, None, None);
        if has_data {
            change.add_channel("all".into());
        }
        let (offer, pending) = change.apply().expect("an offer");
        let offer = offer.to_sdp_string();
        let sdp = server.join(&offer, role, address);
        let word = |sdp: &str, start: &str| -> String {
            let found = sdp.lines().find_map(|line| line.trim_end().strip_prefix(start));
            found.expect("a line of SDP").into()
        };
        let [theirs, own] = [&sdp, &offer].map(|sdp| word(sdp, "a=ice-ufrag:"));
        let password = word(&sdp, "a=ice-pwd:");
        let answer = SdpAnswer::from_sdp_string(&sdp).expect("an answer");
        rtc.sdp_api().accept_answer(pending, answer).expect("an answer to the offer");
        let (ssrc, payload_type) = published(&mut rtc, mid);
        let mut peer = Self {
            rtc,
            address,
            username: format!("{theirs}:{own}"),
            password,
            ssrc,
            payload_type,
            is_connected: false,
            has_channel: !has_data,
            out: Vec::new(),
        };
        if has_dtls {
            peer.connect(server);
        } else {
            let request = peer.request(true, &[]);
            server.receive([(request, address, media())]);
        }
        peer
    }

    fn connect(&mut self, server: &mut Server) {
        for _ in 0..ROUNDS {
            let out = self.turn(server.now);
            let datagrams = out.into_iter().map(|datagram| (datagram, self.address, media()));
            let sent = server.receive(datagrams);
            sent.iter().for_each(|(_, datagram)| self.receive(datagram, server.now));
            if self.is_connected && self.has_channel {
                return;
            }
            server.now += ROUND;
        }
        panic!("the session never was: {} {}", self.is_connected, self.has_channel);
    }

    /// What it says by itself, and what was injected.
    pub(super) fn turn(&mut self, now: Instant) -> Vec<Vec<u8>> {
        let _ = self.rtc.handle_input(Input::Timeout(now));
        self.poll();
        std::mem::take(&mut self.out)
    }

    /// It hears a datagram of the session.
    pub(super) fn receive(&mut self, datagram: &[u8], now: Instant) {
        let local = self.address;
        if let Ok(received) = Receive::new(Protocol::Udp, media(), local, datagram) {
            let _ = self.rtc.handle_input(Input::Receive(now, received));
            self.poll();
        }
    }

    fn poll(&mut self) {
        while let Ok(output) = self.rtc.poll_output() {
            match output {
                Output::Timeout(_) => break,
                Output::Transmit(transmit) => self.out.push(transmit.contents.to_vec()),
                Output::Event(Event::Connected) => self.is_connected = true,
                Output::Event(Event::ChannelOpen(..)) => self.has_channel = true,
                Output::Event(_) => {}
            }
        }
    }

    /// A request of ICE (RFC 8445, section 7.2.2) with these attributes besides, whose password is right or wrong.
    pub(super) fn request(&self, is_right: bool, attributes: &[u8]) -> Vec<u8> {
        let mut message = vec![0, 1, 0, 0];
        message.extend_from_slice(&COOKIE);
        message.extend_from_slice(&[7; 12]);
        put(&mut message, USERNAME, self.username.as_bytes());
        put(&mut message, PRIORITY, &[110, 0, 0, 255]);
        put(&mut message, ICE_CONTROLLING, &[1; 8]);
        put(&mut message, USE_CANDIDATE, &[]);
        message.extend_from_slice(attributes);
        message.resize(message.len().next_multiple_of(4), 0);
        let password = if is_right { self.password.as_bytes() } else { b"another password" };
        length(&mut message, 4 + 20);
        let integrity = provider().sha1_hmac_provider.sha1_hmac(password, &[&message]);
        put(&mut message, MESSAGE_INTEGRITY, &integrity);
        length(&mut message, 4 + 4);
        let print = crc32(&message) ^ 0x5354_554e;
        put(&mut message, FINGERPRINT, &print.to_be_bytes());
        message
    }
}

/// SSRC and payload type of what a peer publishes, if it does.
fn published(rtc: &mut Rtc, mid: Mid) -> (u32, u8) {
    let payload_type = rtc.media(mid).and_then(|media| media.remote_pts().first().map(|pt| **pt));
    let ssrc = rtc.direct_api().stream_tx_by_mid(mid, None).map(|stream| *stream.ssrc());
    (ssrc.unwrap_or(1), payload_type.unwrap_or(96))
}

/// Appends an attribute.
fn put(message: &mut Vec<u8>, kind: u16, value: &[u8]) {
    message.extend_from_slice(&kind.to_be_bytes());
    message.extend_from_slice(&(value.len() as u16).to_be_bytes());
    message.extend_from_slice(value);
    message.resize(message.len().next_multiple_of(4), 0);
}

/// The length that a message says, with so much that is still to come.
fn length(message: &mut [u8], more: usize) {
    let length = (message.len() - 20 + more) as u16;
    message[2..4].copy_from_slice(&length.to_be_bytes());
}

fn crc(data: &[u8], polynomial: u32) -> u32 {
    !data.iter().fold(!0u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (polynomial & 0u32.wrapping_sub(crc & 1)))
    })
}

fn crc32(data: &[u8]) -> u32 {
    crc(data, 0xedb8_8320)
}

/// A packet of SCTP with these chunks (RFC 9260, section 3).
pub(super) fn sctp(tag: u32, chunks: &[u8]) -> Vec<u8> {
    let mut packet =
        [&5000u16.to_be_bytes()[..], &5000u16.to_be_bytes(), &tag.to_be_bytes(), &[0; 4], chunks].concat();
    // CRC-32C (appendix A).
    let sum = crc(&packet, 0x82f6_3b78);
    packet[8..12].copy_from_slice(&sum.to_le_bytes());
    packet
}

/// A packet of RTP, with octets behind its fixed header.
pub(super) fn rtp((flags, kind): (u8, u8), sequence: u16, ssrc: u32, rest: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x80 | flags, kind];
    packet.extend_from_slice(&sequence.to_be_bytes());
    packet.extend_from_slice(&(u32::from(sequence) * 3000).to_be_bytes());
    packet.extend_from_slice(&ssrc.to_be_bytes());
    packet.extend_from_slice(rest);
    packet
}

/// A packet of SRTP, as it is without encryption.
pub(super) fn srtp(mut packet: Vec<u8>) -> Vec<u8> {
    packet.resize(packet.len() + TAG, 0);
    packet
}

/// The same of RTCP, with its number.
pub(super) fn srtcp(packet: Vec<u8>, number: u32) -> Vec<u8> {
    let mut packet = srtp(packet);
    packet.extend_from_slice(&(0x8000_0000 | number).to_be_bytes());
    packet
}
