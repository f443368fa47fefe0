//! Packets and frames as a client writes them (RFC 9000, sections 17 and 19), without encryption.

/// Bytes behind a packet where its authentication tag would be. The engine takes any but a copy of the header.
const TAG: [u8; 16] = [0x5a; 16];

/// Payload that every Initial of a client is filled up to (section 14.1).
const INITIAL: usize = 1200;

/// Frame types.
pub(super) const CRYPTO: u8 = 0x06;
pub(super) const STREAM: u8 = 0x08;
pub(super) const ACK: u8 = 0x02;
pub(super) const NEW_CONNECTION_ID: u8 = 0x18;

/// Appends an integer of variable length, which is bounded to 62 bits.
pub(super) fn varint(value: u64, out: &mut Vec<u8>) {
    match value {
        0..0x40 => out.push(value as u8),
        0x40..0x4000 => out.extend_from_slice(&(0x4000 | value as u16).to_be_bytes()),
        0x4000..0x4000_0000 => out.extend_from_slice(&(0x8000_0000 | value as u32).to_be_bytes()),
        _ => out.extend_from_slice(&(0xc000_0000_0000_0000 | value).to_be_bytes()),
    }
}

/// A 1-RTT packet.
pub(super) fn short(dcid: &[u8], number: u32, key_phase: bool, frames: &[u8]) -> Vec<u8> {
    // Fixed bit, key phase, and a packet number of four bytes.
    let first = 0x43 | u8::from(key_phase) << 2;
    let mut packet = vec![first];
    packet.extend_from_slice(dcid);
    packet.extend_from_slice(&number.to_be_bytes());
    packet.extend_from_slice(frames);
    packet.extend_from_slice(&TAG);
    packet
}

/// A packet with a long header. `kind`: 0 for Initial, 1 for 0-RTT, 2 for Handshake.
pub(super) fn long(kind: u8, dcid: &[u8], scid: &[u8], number: u32, frames: &[u8]) -> Vec<u8> {
    let mut packet = vec![0xc3 | kind << 4, 0, 0, 0, 1];
    for id in [dcid, scid] {
        packet.push(id.len() as u8);
        packet.extend_from_slice(id);
    }
    if kind == 0 {
        varint(0, &mut packet);
    }
    let head = packet.len() + 2;
    let fill = if kind == 0 { INITIAL.saturating_sub(head + 4 + frames.len() + TAG.len()) } else { 0 };
    let length = 4 + frames.len() + fill + TAG.len();
    packet.extend_from_slice(&(0x4000 | length as u16).to_be_bytes());
    packet.extend_from_slice(&number.to_be_bytes());
    packet.extend_from_slice(frames);
    packet.resize(packet.len() + fill, 0);
    packet.extend_from_slice(&TAG);
    packet
}

/// A datagram of the server without the octets that pad it behind its last packet (RFC 9000, section 14.1). A real client takes
/// them for a packet that it cannot decrypt; one without encryption would believe them.
pub(super) fn unpadded(datagram: &mut [u8]) -> &mut [u8] {
    let mut end = 0;
    while let Some(length) = datagram.get(end..).and_then(long_length) {
        end += length;
    }
    let is_padded = end > 0 && datagram.get(end..).is_some_and(|rest| rest.iter().all(|byte| *byte == 0));
    if is_padded { &mut datagram[..end] } else { datagram }
}

/// The length of a long header packet that says its length (RFC 9000, section 17.2).
fn long_length(packet: &[u8]) -> Option<usize> {
    let first = *packet.first().filter(|first| **first & 0x80 != 0)?;
    let mut at = 5;
    for _ in 0..2 {
        at += 1 + usize::from(*packet.get(at)?);
    }
    // An Initial has a token.
    if first & 0x30 == 0 {
        let (token, size) = read_varint(packet.get(at..)?)?;
        at += size + usize::try_from(token).ok()?;
    }
    let (length, size) = read_varint(packet.get(at..)?)?;
    usize::try_from(length).ok()?.checked_add(at + size)
}

/// A number and its size (RFC 9000, section 16).
fn read_varint(octets: &[u8]) -> Option<(u64, usize)> {
    let size = 1 << (octets.first()? >> 6);
    let octets = octets.get(..size)?;
    let value = octets.iter().fold(0, |value: u64, octet| value << 8 | u64::from(*octet));
    Some((value & ((1 << (8 * size - 2)) - 1), size))
}

/// The number of a 1-RTT packet to a client whose IDs have `id_length` bytes.
pub(super) fn number_of(datagram: &[u8], id_length: usize) -> Option<u64> {
    let first = *datagram.first().filter(|first| **first & 0x80 == 0)?;
    let number = datagram.get(1 + id_length..1 + id_length + usize::from(first & 3) + 1)?;
    Some(number.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)))
}
