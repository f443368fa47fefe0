//! A client that is nothing but Initial packets (RFC 9001, section 5.2 and appendix A), to say in them what no client says.

use boring::hash::hmac_sha256;
use boring::symm::{Cipher, decrypt_aead, encrypt, encrypt_aead};

const SALT: [u8; 20] = [
    0x38, 0x76, 0x2c, 0xf7, 0xf5, 0x59, 0x34, 0xb3, 0x4d, 0x17, 0x9a, 0xe6, 0xa4, 0xc8, 0x0c, 0xad, 0xcc,
    0xbb, 0x7f, 0x0a,
];
const TAG: usize = 16;
/// The client's own ID.
pub const SCID: [u8; 8] = [9; 8];

/// The keys of one direction.
struct Keys {
    key: Vec<u8>,
    iv: Vec<u8>,
    mask: Vec<u8>,
}

impl Keys {
    fn new(dcid: &[u8], label: &str) -> Self {
        let initial = hmac_sha256(&SALT, dcid).unwrap();
        let secret = expand(&initial, label, 32);
        let [key, iv, mask] = [("quic key", 16), ("quic iv", 12), ("quic hp", 16)]
            .map(|(label, size)| expand(&secret, label, size));
        Self { key, iv, mask }
    }

    fn nonce(&self, number: u8) -> Vec<u8> {
        let mut nonce = self.iv.clone();
        nonce[11] ^= number;
        nonce
    }

    /// Masks the first byte and the packet number of `length` bytes at `at`.
    fn protect(&self, packet: &mut [u8], at: usize, length: impl Fn(u8) -> usize) {
        let mask = encrypt(Cipher::aes_128_ecb(), &self.mask, None, &packet[at + 4..at + 20]).unwrap();
        packet[0] ^= mask[0] & 0xf;
        let length = length(packet[0]);
        for (byte, mask) in packet[at..at + length].iter_mut().zip(&mask[1..]) {
            *byte ^= mask;
        }
    }
}

/// HKDF-Expand-Label of up to 32 bytes (RFC 8446, section 7.1).
fn expand(secret: &[u8], label: &str, length: u8) -> Vec<u8> {
    let label = format!("tls13 {label}");
    let info = [&[0, length, label.len() as u8], label.as_bytes(), &[0, 1]].concat();
    hmac_sha256(secret, &info).unwrap()[..usize::from(length)].to_vec()
}

/// Datagrams of 1200 bytes, each an Initial packet with such frames, to the ID that the client has made up.
pub fn seal(dcid: [u8; 8], packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let keys = Keys::new(&dcid, "client in");
    let seal = |(number, frames): (u8, &Vec<u8>)| {
        let head = [&[0xc3, 0, 0, 0, 1, 8][..], &dcid, &[8], &SCID, &[0]].concat();
        // An empty packet is to stay one.
        let size = if frames.is_empty() { 0 } else { 1200 - head.len() - 2 - 4 - TAG };
        let mut payload = frames.clone();
        payload.resize(size, 0);
        let length = (4 + payload.len() + TAG) as u16 | 0x4000;
        let mut packet = [&head[..], &length.to_be_bytes(), &[0, 0, 0, number]].concat();
        let at = packet.len() - 4;
        let mut tag = [0; TAG];
        let cipher = Cipher::aes_128_gcm();
        let sealed =
            encrypt_aead(cipher, &keys.key, Some(&keys.nonce(number)), &packet, &payload, &mut tag).unwrap();
        packet.extend(sealed);
        packet.extend(tag);
        packet.resize(1200, 0);
        keys.protect(&mut packet, at, |_| 4);
        packet
    };
    (0..).zip(packets).map(seal).collect()
}

/// The frames of the Initial packet that a server's datagram begins with.
fn open(datagram: &[u8], dcid: &[u8], label: &str) -> Option<Vec<u8>> {
    let keys = Keys::new(dcid, label);
    let mut packet = datagram.to_vec();
    if packet[0] & 0xf0 != 0xc0 {
        return None;
    }
    let mut at = 5;
    for _ in 0..2 {
        at += 1 + usize::from(packet[at]);
    }
    // No token.
    assert_eq!(packet[at], 0);
    let (length, size) = number(&packet[at + 1..]);
    at += 1 + size;
    keys.protect(&mut packet, at, |first| usize::from(first & 3) + 1);
    let start = at + usize::from(packet[0] & 3) + 1;
    let end = at + length as usize;
    let (head, sealed) = (&packet[..start], &packet[start..end - TAG]);
    let nonce = keys.nonce(packet[start - 1]);
    let cipher = Cipher::aes_128_gcm();
    Some(decrypt_aead(cipher, &keys.key, Some(&nonce), head, sealed, &packet[end - TAG..end]).unwrap())
}

/// The code of a CONNECTION_CLOSE of QUIC's in the Initial packet that a server's datagram begins with.
pub fn close_code(dcid: [u8; 8], datagram: &[u8]) -> Option<u64> {
    let frames = open(datagram, &dcid, "server in")?;
    let at = frames.iter().position(|kind| *kind != 0)?;
    (frames[at] == 0x1c).then(|| number(&frames[at + 1..]).0)
}

/// What is in the CRYPTO frames of a client's first datagrams.
pub fn hello_of(datagrams: &[Vec<u8>]) -> Vec<u8> {
    let mut hello = Vec::new();
    for datagram in datagrams {
        let dcid = &datagram[6..6 + usize::from(datagram[5])];
        let frames = open(datagram, dcid, "client in").unwrap();
        let mut rest = &frames[..];
        while let Some(kind) = rest.first() {
            if *kind == 0 {
                rest = &rest[1..];
                continue;
            }
            assert_eq!(*kind, 6);
            let (offset, size) = number(&rest[1..]);
            let (length, more) = number(&rest[1 + size..]);
            let (start, offset, length) = (1 + size + more, offset as usize, length as usize);
            hello.resize(hello.len().max(offset + length), 0);
            hello[offset..offset + length].copy_from_slice(&rest[start..start + length]);
            rest = &rest[start + length..];
        }
    }
    hello
}

/// CRYPTO frames with these bytes, each of a packet.
pub fn crypto(hello: &[u8]) -> Vec<Vec<u8>> {
    let frame = |(index, part): (usize, &[u8])| {
        [&[6][..], &varint((index * 1100) as u64), &varint(part.len() as u64), part].concat()
    };
    hello.chunks(1100).enumerate().map(frame).collect()
}

/// A variable-length integer, and its length (RFC 9000, section 16).
pub fn number(bytes: &[u8]) -> (u64, usize) {
    let size = 1 << (bytes[0] >> 6);
    let first = u64::from(bytes[0] & 0x3f);
    (bytes[1..size].iter().fold(first, |value, byte| value << 8 | u64::from(*byte)), size)
}

pub fn varint(value: u64) -> Vec<u8> {
    match value {
        0..0x40 => vec![value as u8],
        0x40..0x4000 => (value as u16 | 0x4000).to_be_bytes().to_vec(),
        _ => (value | 3 << 62).to_be_bytes().to_vec(),
    }
}

/// A ClientHello, taken apart.
#[derive(Clone)]
pub struct Hello {
    /// Version, random, session ID.
    head: Vec<u8>,
    pub ciphers: Vec<u8>,
    pub compressions: Vec<u8>,
    pub extensions: Vec<(u16, Vec<u8>)>,
}

impl Hello {
    pub fn parse(bytes: &[u8]) -> Self {
        let mut at = 4 + 2 + 32;
        at += 1 + usize::from(bytes[at]);
        let head = bytes[4..at].to_vec();
        let two = |at: usize| usize::from(u16::from_be_bytes([bytes[at], bytes[at + 1]]));
        let ciphers = bytes[at + 2..at + 2 + two(at)].to_vec();
        at += 2 + ciphers.len();
        let compressions = bytes[at + 1..at + 1 + usize::from(bytes[at])].to_vec();
        at += 1 + compressions.len() + 2;
        let mut extensions = Vec::new();
        while at < bytes.len() {
            extensions.push((two(at) as u16, bytes[at + 4..at + 4 + two(at + 2)].to_vec()));
            at += 4 + two(at + 2);
        }
        Self { head, ciphers, compressions, extensions }
    }

    pub fn write(&self) -> Vec<u8> {
        let two = |length: usize| (length as u16).to_be_bytes();
        let extension =
            |(id, value): &(u16, Vec<u8>)| [&id.to_be_bytes()[..], &two(value.len()), value].concat();
        let extensions: Vec<u8> = self.extensions.iter().flat_map(extension).collect();
        let body = [
            &self.head[..],
            &two(self.ciphers.len()),
            &self.ciphers,
            &[self.compressions.len() as u8],
            &self.compressions,
            &two(extensions.len()),
            &extensions,
        ]
        .concat();
        [&[1, 0], &two(body.len())[..], &body].concat()
    }

    /// With another value of an extension, or without it.
    pub fn with(mut self, id: u16, value: Option<&[u8]>) -> Self {
        let at = self.extensions.iter().position(|(other, _)| *other == id).unwrap();
        match value {
            Some(value) => self.extensions[at].1 = value.to_vec(),
            None => drop(self.extensions.remove(at)),
        }
        self
    }

    pub fn extension(&self, id: u16) -> &[u8] {
        &self.extensions.iter().find(|(other, _)| *other == id).unwrap().1
    }
}
