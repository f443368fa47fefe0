//! Packets sent and received under a master key.

use std::time::{SystemTime, UNIX_EPOCH};

use super::cipher::{Cipher, PacketIndex};
use super::keys::Keys;
use super::window::Window;
use crate::rtp::header::is_rtcp;
use crate::rtp::room::STREAMS;

/// SSRCs that are known at a time: those of a room, of RTP and of RTCP.
const SSRCS: usize = 2 * STREAMS;
/// Octets of RTCP in the clear: its first header and SSRC (RFC 3711, section 3.4).
const RTCP_CLEAR: usize = 8;
/// Octets of the index of RTCP, and the bit that says that it is encrypted.
const RTCP_INDEX: usize = 4;
const ENCRYPTED: u32 = 1 << 31;

/// Why a packet is not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejected {
    /// It is none, or was not sealed with this key.
    Forged,
    /// It came before, or is too old to tell.
    Replayed,
}

/// The indices of some streams; a new one takes the place of the one that was used longest ago.
#[derive(Debug, Default)]
struct Windows(Vec<(u32, Window)>);

impl Windows {
    fn find(&self, ssrc: u32) -> Option<&Window> {
        self.0.iter().find(|(one, _)| *one == ssrc).map(|(_, window)| window)
    }

    fn note(&mut self, ssrc: u32, index: u64) {
        match self.0.iter().position(|(one, _)| *one == ssrc) {
            Some(place) => {
                self.0[place].1.note(index);
                self.0[..=place].rotate_right(1);
            }
            None => {
                self.0.truncate(SSRCS - 1);
                self.0.insert(0, (ssrc, Window::new(index)));
            }
        }
    }
}

/// What comes under a key.
#[derive(Debug)]
pub struct Inbound {
    tag: usize,
    is_gcm: bool,
    rtp: (Cipher, Windows),
    rtcp: (Cipher, Windows),
}

impl Inbound {
    /// Nothing has come yet.
    pub fn new(keys: &Keys) -> Self {
        Self {
            tag: keys.profile.tag(),
            is_gcm: is_gcm(keys),
            rtp: (Cipher::rtp(keys), Windows::default()),
            rtcp: (Cipher::rtcp(keys), Windows::default()),
        }
    }

    /// Opens a packet where it stands, and says how long it is then.
    ///
    /// # Errors
    /// It is not to be believed.
    pub fn open(&mut self, packet: &mut [u8]) -> Result<usize, Rejected> {
        if is_rtcp(packet) { self.open_rtcp(packet) } else { self.open_rtp(packet) }
    }

    fn open_rtp(&mut self, packet: &mut [u8]) -> Result<usize, Rejected> {
        let length = packet.len().checked_sub(self.tag).ok_or(Rejected::Forged)?;
        let (packet, tag) = packet.split_at_mut(length);
        let (clear, sequence, ssrc) = read_rtp(packet).ok_or(Rejected::Forged)?;
        let (cipher, windows) = &mut self.rtp;
        let window = windows.find(ssrc);
        let index = window.map_or(u64::from(sequence), |window| window.index(sequence));
        if window.is_some_and(|window| !window.is_new(index)) {
            return Err(Rejected::Replayed);
        }
        let roc = rollover(index);
        let about = PacketIndex { ssrc, index, trailer: if self.is_gcm { &[] } else { &roc } };
        if !cipher.open(packet, clear, about, tag) {
            return Err(Rejected::Forged);
        }
        windows.note(ssrc, index);
        Ok(length)
    }

    /// The index stands before the tag of counter mode, and behind that of GCM (RFC 7714, section 9.4).
    fn open_rtcp(&mut self, packet: &mut [u8]) -> Result<usize, Rejected> {
        let length = packet.len().checked_sub(self.tag + RTCP_INDEX).ok_or(Rejected::Forged)?;
        if length < RTCP_CLEAR {
            return Err(Rejected::Forged);
        }
        let (packet, rest) = packet.split_at_mut(length);
        let (word, tag) = match self.is_gcm {
            true => rest.split_at(self.tag),
            false => rest.split_at(RTCP_INDEX),
        };
        let (word, tag) = if self.is_gcm { (tag, word) } else { (word, tag) };
        let word: [u8; RTCP_INDEX] = word.try_into().map_err(|_| Rejected::Forged)?;
        let value = u32::from_be_bytes(word);
        let ssrc = u32::from_be_bytes([packet[4], packet[5], packet[6], packet[7]]);
        let index = u64::from(value & !ENCRYPTED);
        let (cipher, windows) = &mut self.rtcp;
        // What is sent in the clear is nobody's here.
        if value & ENCRYPTED == 0 {
            return Err(Rejected::Forged);
        }
        if windows.find(ssrc).is_some_and(|window| !window.is_new(index)) {
            return Err(Rejected::Replayed);
        }
        if !cipher.open(packet, RTCP_CLEAR, PacketIndex { ssrc, index, trailer: &word }, tag) {
            return Err(Rejected::Forged);
        }
        windows.note(ssrc, index);
        Ok(length)
    }
}

/// What is sent under a key.
#[derive(Debug)]
pub struct Outbound {
    tag: usize,
    is_gcm: bool,
    rtp: (Cipher, Windows),
    rtcp: Cipher,
    /// The index of the next RTCP packet.
    next: u32,
}

/// Where indices of RTCP begin: keys outlive processes, and no index may be used twice with one key (RFC 3711, section 9.1). So
/// they go on from the clock, at four reports a second at most in the long run, and have room for as many again.
fn first_rtcp_index() -> u32 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    ((now.as_millis() / 250) & 0x3fff_ffff) as u32
}

impl Outbound {
    /// Nothing was sent yet.
    pub fn new(keys: &Keys) -> Self {
        Self {
            tag: keys.profile.tag(),
            is_gcm: is_gcm(keys),
            rtp: (Cipher::rtp(keys), Windows::default()),
            rtcp: Cipher::rtcp(keys),
            next: first_rtcp_index(),
        }
    }

    /// Octets that a packet of RTP grows by.
    pub fn overhead(&self) -> usize {
        self.tag
    }

    /// Seals an RTP packet of that length, behind which there is room for [`Self::overhead`]. One that is sent again is the same again.
    /// Says how long it is then; 0: it cannot be sent.
    pub fn seal(&mut self, slot: &mut [u8], length: usize) -> usize {
        let Some((packet, rest)) = slot.split_at_mut_checked(length) else { return 0 };
        let (Some(tag), Some((clear, sequence, ssrc))) = (rest.get_mut(..self.tag), read_rtp(packet)) else {
            return 0;
        };
        let (cipher, windows) = &mut self.rtp;
        let index = windows.find(ssrc).map_or(u64::from(sequence), |window| window.index(sequence));
        let roc = rollover(index);
        let about = PacketIndex { ssrc, index, trailer: if self.is_gcm { &[] } else { &roc } };
        if cipher.seal(packet, clear, about, tag).is_err() {
            return 0;
        }
        windows.note(ssrc, index);
        length + self.tag
    }

    /// Seals an RTCP packet. Empty: it cannot be sent.
    pub fn seal_rtcp(&mut self, mut packet: Vec<u8>) -> Vec<u8> {
        let length = packet.len();
        // Indices may not be used twice: 31 bits last for decades of reports.
        if length < RTCP_CLEAR || self.next & ENCRYPTED != 0 {
            return Vec::new();
        }
        let ssrc = u32::from_be_bytes([packet[4], packet[5], packet[6], packet[7]]);
        let word = (self.next | ENCRYPTED).to_be_bytes();
        let about = PacketIndex { ssrc, index: u64::from(self.next), trailer: &word };
        let mut tag = [0; 16];
        let tag = &mut tag[..self.tag];
        if self.rtcp.seal(&mut packet, RTCP_CLEAR, about, tag).is_err() {
            return Vec::new();
        }
        self.next += 1;
        let (first, second): (&[u8], &[u8]) = if self.is_gcm { (tag, &word) } else { (&word, tag) };
        packet.extend_from_slice(first);
        packet.extend_from_slice(second);
        packet
    }
}

fn is_gcm(keys: &Keys) -> bool {
    keys.profile == super::Profile::AeadAes128Gcm
}

/// The times that numbers wrapped (ROC).
fn rollover(index: u64) -> [u8; 4] {
    ((index >> 16) as u32).to_be_bytes()
}

/// Octets in the clear, sequence number and SSRC (RFC 3550, sections 5.1 and 5.3.1).
fn read_rtp(packet: &[u8]) -> Option<(usize, u16, u32)> {
    let &[first, _, high, low, _, _, _, _, a, b, c, d, ..] = packet else { return None };
    let mut clear = 12 + 4 * usize::from(first & 0xf);
    if first & 0x10 != 0 {
        let words = packet.get(clear + 2..clear + 4)?;
        clear += 4 + 4 * usize::from(u16::from_be_bytes([words[0], words[1]]));
    }
    (first >> 6 == 2 && clear <= packet.len()).then_some((
        clear,
        u16::from_be_bytes([high, low]),
        u32::from_be_bytes([a, b, c, d]),
    ))
}

#[cfg(test)]
mod tests {
    use super::super::Profile;
    use super::*;
    use crate::rtp::header::{Header, packet};

    fn keys(profile: Profile) -> Keys {
        let material: Vec<u8> = (0..profile.material() as u8).collect();
        Keys::new(profile, &material).unwrap()
    }

    fn rtp(sequence: u16) -> Vec<u8> {
        packet(Header { payload_type: 96, sequence, timestamp: 7, ssrc: 0xdead_beef }, b"media")
    }

    fn sealed(out: &mut Outbound, mut packet: Vec<u8>) -> Vec<u8> {
        let length = packet.len();
        packet.resize(length + out.overhead(), 0);
        assert_eq!(out.seal(&mut packet, length), packet.len());
        packet
    }

    #[test]
    fn what_was_sealed_is_opened_once_and_nothing_else() {
        for (_, profile) in Profile::NAMES {
            let keys = keys(profile);
            let (mut out, mut incoming) = (Outbound::new(&keys), Inbound::new(&keys));
            for number in 0..70_000u32 {
                let sequence = (number + 65_000) as u16;
                if number % 1000 != 0 && !(530..540).contains(&number) {
                    continue;
                }
                let packet = sealed(&mut out, rtp(sequence));
                assert_ne!(&packet[12..17], b"media");
                assert_eq!(sealed(&mut out, rtp(sequence)), packet, "sent again, it is the same");
                for index in 0..packet.len() {
                    let mut changed = packet.clone();
                    changed[index] ^= 1;
                    assert!(incoming.open(&mut changed).is_err(), "octet {index}");
                }
                let mut opened = packet.clone();
                assert_eq!(incoming.open(&mut opened), Ok(17));
                assert_eq!(opened[..17], rtp(sequence));
                assert_eq!(incoming.open(&mut packet.clone()), Err(Rejected::Replayed));
            }
        }
    }

    #[test]
    fn rtcp_is_sealed_and_opened() {
        for (_, profile) in Profile::NAMES {
            let keys = keys(profile);
            let (mut out, mut incoming) = (Outbound::new(&keys), Inbound::new(&keys));
            let report = vec![0x80, 201, 0, 2, 1, 2, 3, 4, 5, 6, 7, 8];
            for _ in 0..3 {
                let packet = out.seal_rtcp(report.clone());
                assert_eq!(packet[..8], report[..8]);
                assert_ne!(packet[8..12], report[8..]);
                for index in 0..packet.len() {
                    let mut changed = packet.clone();
                    changed[index] ^= 1;
                    assert!(incoming.open(&mut changed).is_err(), "octet {index}");
                }
                let mut opened = packet.clone();
                assert_eq!(incoming.open(&mut opened), Ok(12));
                assert_eq!(opened[..12], report);
                assert_eq!(incoming.open(&mut packet.clone()), Err(Rejected::Replayed));
            }
        }
    }

    #[test]
    fn what_is_cut_is_refused() {
        for (_, profile) in Profile::NAMES {
            let keys = keys(profile);
            let packet = sealed(&mut Outbound::new(&keys), rtp(1));
            let report = Outbound::new(&keys).seal_rtcp(vec![0x80, 201, 0, 1, 1, 2, 3, 4]);
            for whole in [packet, report] {
                for length in 0..whole.len() {
                    let mut cut = whole[..length].to_vec();
                    assert_eq!(Inbound::new(&keys).open(&mut cut), Err(Rejected::Forged), "{length}");
                }
            }
            assert_eq!(Outbound::new(&keys).seal(&mut rtp(1), 17), 0, "no room for the tag");
            assert!(Outbound::new(&keys).seal_rtcp(vec![0x80, 201, 0, 0]).is_empty());
        }
    }

    #[test]
    fn streams_are_bounded_and_only_those_of_the_key_count() {
        let keys = keys(Profile::AesCm128HmacSha1_80);
        let (mut out, mut incoming) = (Outbound::new(&keys), Inbound::new(&keys));
        for ssrc in 0..100 {
            let header = Header { payload_type: 96, sequence: 1, timestamp: 0, ssrc };
            let mut packet = sealed(&mut out, packet(header, b"x"));
            let mut forged = packet.clone();
            *forged.last_mut().unwrap() ^= 1;
            assert_eq!(incoming.open(&mut forged), Err(Rejected::Forged));
            assert!(incoming.open(&mut packet).is_ok());
        }
        assert_eq!((incoming.rtp.1.0.len(), out.rtp.1.0.len()), (SSRCS, SSRCS));
    }
}
