//! Tests: what a peer that is past its handshake can cost.

use std::cell::RefCell;

use str0m::config::{DtlsCert, DtlsVersion};
use str0m::crypto::dtls::{DtlsImplError, DtlsInstance, DtlsOutput, DtlsProvider, ProtocolVersion};
use str0m::crypto::{CryptoError, CryptoProvider};

use super::*;

/// What the peer of a test sends and receives within DTLS.
#[derive(Default)]
struct Tap {
    /// To be sent besides.
    inject: VecDeque<Vec<u8>>,
    sent: Vec<Vec<u8>>,
    received: Vec<Vec<u8>>,
    /// The peer's own SCTP hears nothing more, of what it has not said.
    is_hidden: bool,
}

thread_local! {
    static TAP: RefCell<Tap> = RefCell::default();
}

#[derive(Debug)]
struct Tapped;

#[derive(Debug)]
struct TappedDtls(Box<dyn DtlsInstance>);

impl DtlsProvider for Tapped {
    fn generate_certificate(&self) -> Option<DtlsCert> {
        provider().dtls_provider.generate_certificate()
    }

    fn new_dtls(
        &self,
        certificate: &DtlsCert,
        now: Instant,
        version: DtlsVersion,
        mtu: Option<usize>,
    ) -> Result<Box<dyn DtlsInstance>, CryptoError> {
        let dtls = provider().dtls_provider.new_dtls(certificate, now, version, mtu)?;
        Ok(Box::new(TappedDtls(dtls)))
    }
}

impl DtlsInstance for TappedDtls {
    fn set_active(&mut self, active: bool) {
        self.0.set_active(active);
    }

    fn handle_packet(&mut self, packet: &[u8]) -> Result<(), DtlsImplError> {
        self.0.handle_packet(packet)
    }

    fn poll_output<'a>(&mut self, buffer: &'a mut [u8]) -> DtlsOutput<'a> {
        for data in TAP.with_borrow_mut(|tap| std::mem::take(&mut tap.inject)) {
            self.0.send_application_data(&data).unwrap();
        }
        let output = self.0.poll_output(buffer);
        let DtlsOutput::ApplicationData(data) = output else { return output };
        let is_hidden = TAP.with_borrow_mut(|tap| {
            tap.received.push(data.to_vec());
            tap.is_hidden
        });
        DtlsOutput::ApplicationData(if is_hidden { &[] } else { data })
    }

    fn handle_timeout(&mut self, now: Instant) -> Result<(), DtlsImplError> {
        self.0.handle_timeout(now)
    }

    fn send_application_data(&mut self, data: &[u8]) -> Result<(), DtlsImplError> {
        TAP.with_borrow_mut(|tap| tap.sent.push(data.to_vec()));
        self.0.send_application_data(data)
    }

    fn is_active(&self) -> bool {
        self.0.is_active()
    }

    fn protocol_version(&self) -> Option<ProtocolVersion> {
        self.0.protocol_version()
    }

    fn is_closing(&self) -> bool {
        self.0.is_closing()
    }

    fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    fn close(&mut self) -> Result<(), DtlsImplError> {
        self.0.close()
    }
}

fn tapped(port: u16, channel: Option<ChannelConfig>, now: Instant) -> Peer {
    let CryptoProvider { srtp_provider, sha1_hmac_provider, sha256_provider, .. } = *provider();
    let crypto =
        CryptoProvider { srtp_provider, sha1_hmac_provider, sha256_provider, dtls_provider: &Tapped };
    Peer::with_crypto(Arc::new(crypto), (port, Direction::RecvOnly), channel, &[], now)
}

/// CRC-32C (RFC 9260, appendix A).
fn crc32c(data: &[u8]) -> u32 {
    !data.iter().fold(!0u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0x82f6_3b78 * (crc & 1)))
    })
}

/// A packet of SCTP with these chunks.
fn packet(tag: u32, chunks: &[Vec<u8>]) -> Vec<u8> {
    let mut packet =
        [&5000u16.to_be_bytes()[..], &5000u16.to_be_bytes(), &tag.to_be_bytes(), &[0; 4]].concat();
    chunks.iter().for_each(|chunk| packet.extend_from_slice(chunk));
    let sum = crc32c(&packet);
    packet[8..12].copy_from_slice(&sum.to_le_bytes());
    packet
}

/// DATA of one octet, unordered, that is no whole message or one of its own.
fn data(tsn: u32, stream: u16, is_whole: bool) -> Vec<u8> {
    let flags = if is_whole { 7 } else { 4 };
    let mut chunk = vec![0, flags, 0, 17];
    chunk.extend_from_slice(&tsn.to_be_bytes());
    chunk.extend_from_slice(&stream.to_be_bytes());
    chunk.extend_from_slice(&[0, 0, 0, 0, 0, 53, b'x', 0, 0, 0]);
    chunk
}

/// A room with a publisher and a player that is tapped, both connected; and the player's tag and next TSN.
fn attacked(more: &str) -> (Bed, Peer, Peer, u32, u32) {
    TAP.take();
    let mut bed = Bed::new(1, more);
    let mut publisher = Peer::publisher(5000, bed.now);
    let label = ChannelConfig { label: "all".into(), ..Default::default() };
    let mut player = tapped(5001, Some(label), bed.now);
    bed.join(0, Role::Publish, &mut publisher).unwrap();
    bed.join(0, Role::Play, &mut player).unwrap();
    bed.run(&mut [&mut publisher, &mut player], 0, Duration::from_secs(2));
    assert!(publisher.is_connected && player.is_connected);
    let word = |packet: &[u8], at: usize| u32::from_be_bytes(packet[at..at + 4].try_into().unwrap());
    let sent = TAP.with_borrow_mut(|tap| {
        tap.is_hidden = true;
        tap.sent.clone()
    });
    let tag = sent.last().map_or(0, |packet| word(packet, 4));
    let tsns = sent.iter().filter(|packet| packet.get(12) == Some(&0)).map(|packet| word(packet, 16));
    let next = tsns.max().map_or(0, |tsn| tsn + 1);
    (bed, publisher, player, tag, next)
}

/// The cumulative TSN and the window of the last SACK that has come.
fn last_sack() -> (u32, u32) {
    let word = |packet: &[u8], at: usize| u32::from_be_bytes(packet[at..at + 4].try_into().unwrap());
    let received = TAP.with_borrow(|tap| tap.received.clone());
    let sack = received.iter().rev().find(|packet| packet.get(12) == Some(&3)).expect("a SACK");
    (word(sack, 16), word(sack, 20))
}

fn inject(bed: &mut Bed, publisher: &mut Peer, player: &mut Peer, packets: Vec<Vec<u8>>) {
    TAP.with_borrow_mut(|tap| tap.inject.extend(packets));
    bed.run(&mut [publisher, player], 0, Duration::from_millis(20));
    assert!(TAP.with_borrow(|tap| tap.inject.is_empty()));
}

#[test]
fn one_octet_messages_behind_a_gap_close_the_window() {
    for is_whole in [true, false] {
        let (mut bed, mut publisher, mut player, tag, next) = attacked("data = \"all\"");
        let full = last_sack().1;
        for round in 0..60u32 {
            let tsns = next + 1 + round * 50..next + 1 + (round + 1) * 50;
            let chunks: Vec<_> = tsns.map(|tsn| data(tsn, 0, is_whole)).collect();
            inject(&mut bed, &mut publisher, &mut player, vec![packet(tag, &chunks)]);
        }
        assert_eq!(last_sack(), (next - 1, 0), "3000 do not find room");
        let longest = TAP.with_borrow(|tap| tap.received.iter().map(Vec::len).max());
        assert!(longest.unwrap() < 1200);
        if is_whole {
            // The gap is closed, and it goes on.
            inject(&mut bed, &mut publisher, &mut player, vec![packet(tag, &[data(next, 0, true)])]);
            bed.run(&mut [&mut publisher, &mut player], 0, Duration::from_millis(500));
            assert_eq!(last_sack(), (next + 1024, full));
        }
        publish(&mut bed, &mut publisher, &mut player, 1..10);
        assert_eq!((player.packets.len(), bed.counters(0).ended_failed), (9, 0));
    }
}

#[test]
fn a_peer_has_few_streams() {
    let (mut bed, mut publisher, mut player, tag, next) = attacked("data = \"all\"");
    let chunks: Vec<_> = (0..70).map(|number| data(next + number, 1000 + number as u16, false)).collect();
    inject(&mut bed, &mut publisher, &mut player, vec![packet(tag, &chunks[..35])]);
    bed.run(&mut [&mut publisher, &mut player], 0, Duration::from_millis(500));
    assert_eq!(last_sack().0, next + 34);
    inject(&mut bed, &mut publisher, &mut player, vec![packet(tag, &chunks[35..])]);
    // There are 64, with that of its channel.
    bed.run(&mut [&mut publisher, &mut player], 0, Duration::from_millis(500));
    let counters = bed.counters(0);
    assert_eq!((counters.ended_left, bed.gauges(0).players, bed.gauges(0).publishers), (1, 0, 1));
}

#[test]
fn where_a_room_has_no_data_there_is_no_sctp() {
    let (mut bed, mut publisher, mut player, ..) = attacked("");
    assert!(player.open.is_empty());
    // INIT, of which there is no answer.
    let init = [&[1, 0, 0, 20][..], &[0, 0, 0, 7, 0, 16, 0, 0, 0, 16, 0, 16, 0, 0, 0, 1]].concat();
    inject(&mut bed, &mut publisher, &mut player, vec![packet(0, &[init])]);
    assert!(TAP.with_borrow(|tap| tap.received.is_empty()));
    publish(&mut bed, &mut publisher, &mut player, 1..10);
    assert_eq!(player.packets.len(), 9);
}
