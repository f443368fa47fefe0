//! QUIC: what is visible in every version (RFC 8999), and in versions 1 and 2 without keys (RFC 9000, section 17; RFC
//! 9369).

use std::fmt::Write;

use data_encoding::HEXLOWER_PERMISSIVE as HEX;

use super::conversation::{Conversations, Known, Pair};
use super::line::Bytes;

const LONG: u8 = 0x80;
const FIXED: u8 = 0x40;

/// Connection IDs of versions 1 and 2 are no longer.
const LONGEST_CID: usize = 20;

/// Packets of a datagram that are shown.
const SHOWN: usize = 8;

const V1: u32 = 1;
const V2: u32 = 0x6b33_43cf;

/// Appends what a datagram says; false if it does not look like QUIC. `likely`: a short header is believed.
pub(super) fn print(
    datagram: Bytes<'_>,
    pair: Pair,
    conversations: &mut Conversations,
    likely: bool,
    out: &mut String,
) -> bool {
    let Some(first) = datagram.u8(0) else { return false };
    if first & LONG == 0 {
        let cid = match conversations.find(pair) {
            Some(Known::Quic { cid }) => Some(usize::from(cid)),
            _ if likely => None,
            _ => return false,
        };
        // With the bit greased (RFC 9287) only a known conversation tells.
        if cid.is_none() && first & FIXED == 0 {
            return false;
        }
        out.push_str("QUIC ");
        short(datagram, cid, out);
        return true;
    }
    let Some(header) = LongHeader::parse(datagram) else { return false };
    if !header.is_plausible() {
        return false;
    }
    // Who is called so from now on.
    conversations.learn(pair.reverse(), Known::Quic { cid: header.source.len() as u8 });
    if conversations.find(pair).is_none() {
        conversations.learn(pair, Known::Quic { cid: header.destination.len() as u8 });
    }
    out.push_str("QUIC ");
    coalesced(datagram, header.destination.len(), out);
    true
}

/// The packets of a datagram, one after another.
fn coalesced(datagram: Bytes<'_>, cid: usize, out: &mut String) {
    let mut rest = datagram;
    for number in 0.. {
        let Some(first) = rest.u8(0) else { return };
        if number > 0 {
            // Some senders fill a datagram up.
            if first == 0 {
                let _ = write!(out, " | padding {}", rest.len());
                return;
            }
            out.push_str(" | ");
        }
        if number == SHOWN {
            out.push('…');
            return;
        }
        if first & LONG == 0 {
            short(rest, Some(cid), out);
            return;
        }
        let Some(header) = LongHeader::parse(rest) else {
            out.push_str("[truncated]");
            return;
        };
        match header.print(number == 0, out) {
            Some(length) if length < rest.len() => rest = rest.behind(length),
            _ => return,
        }
    }
}

/// A short header (RFC 9000, section 17.3.1): all but the connection ID and the spin bit is encrypted.
fn short(packet: Bytes<'_>, cid: Option<usize>, out: &mut String) {
    out.push_str("1-RTT");
    let Some(first) = packet.u8(0) else { return };
    if let Some(cid) = cid.filter(|cid| *cid > 0).and_then(|cid| packet.captured().get(1..1 + cid)) {
        let _ = write!(out, " dcid {}", HEX.encode_display(cid));
    }
    if first & 0x20 != 0 {
        out.push_str(" spin");
    }
}

/// A long header (RFC 8999, section 5.1).
struct LongHeader<'a> {
    first: u8,
    version: u32,
    destination: &'a [u8],
    source: &'a [u8],
    /// What follows the connection IDs.
    rest: Bytes<'a>,
    /// Its offset.
    offset: usize,
}

impl<'a> LongHeader<'a> {
    fn parse(packet: Bytes<'a>) -> Option<Self> {
        let (first, version) = (packet.u8(0)?, packet.u32(1)?);
        let length = usize::from(packet.u8(5)?);
        let destination = packet.captured().get(6..6 + length)?;
        let at = 6 + length;
        let length = usize::from(packet.u8(at)?);
        let source = packet.captured().get(at + 1..at + 1 + length)?;
        let offset = at + 1 + length;
        Some(Self { first, version, destination, source, rest: packet.behind(offset), offset })
    }

    /// Whether it is one of a version that exists: other protocols have first octets like these.
    fn is_plausible(&self) -> bool {
        let known = match self.version {
            0 => self.rest.len().is_multiple_of(4) && self.rest.len() > 0,
            V1 | V2 => self.first & FIXED != 0,
            // Drafts, and those that are reserved for greasing (RFC 9000, section 15).
            version => version >> 8 == 0xff_0000 || version & 0x0f0f_0f0f == 0x0a0a_0a0a,
        };
        known && self.destination.len() <= LONGEST_CID && self.source.len() <= LONGEST_CID
    }

    /// The type, in the numbers of version 1.
    fn kind(&self) -> u8 {
        let kind = self.first >> 4 & 3;
        // Version 2 counts from Retry (RFC 9369, section 3.2).
        if self.version == V2 { kind.wrapping_sub(1) & 3 } else { kind }
    }

    /// Appends the packet and returns its length, unless it takes the rest of the datagram.
    fn print(&self, with_version: bool, out: &mut String) -> Option<usize> {
        let version = match self.version {
            _ if !with_version => String::new(),
            0 => String::new(),
            V1 => "v1 ".to_owned(),
            V2 => "v2 ".to_owned(),
            draft if draft >> 8 == 0xff_0000 => format!("draft-{} ", draft & 0xff),
            other => format!("version {other:#010x} "),
        };
        out.push_str(&version);
        if self.version == 0 {
            out.push_str("Version Negotiation");
        } else {
            out.push_str(["Initial", "0-RTT", "Handshake", "Retry"][usize::from(self.kind())]);
        }
        if with_version {
            let _ = write!(out, " dcid {} scid {}", Id(self.destination), Id(self.source));
        }
        match (self.version, self.kind()) {
            (0, _) => {
                out.push_str(" versions");
                let versions = self.rest.captured().chunks_exact(4);
                for version in versions.take(SHOWN) {
                    let _ = write!(out, " {}", HEX.encode_display(version));
                }
                None
            }
            // A token, and a tag of sixteen octets.
            (_, 3) => {
                let _ = write!(out, " token {}", self.rest.len().saturating_sub(16));
                None
            }
            (_, kind) => {
                let mut rest = self.rest;
                let mut offset = self.offset;
                if kind == 0 {
                    let (token, behind) = varint(rest)?;
                    if token > 0 {
                        let _ = write!(out, " token {token}");
                    }
                    let header = behind.checked_add(usize::try_from(token).ok()?)?;
                    (rest, offset) = (rest.behind(header), offset.checked_add(header)?);
                }
                let (length, behind) = varint(rest)?;
                let length = usize::try_from(length).ok()?;
                if !with_version || length + behind < rest.len() {
                    let _ = write!(out, " ({length})");
                }
                offset.checked_add(behind)?.checked_add(length)
            }
        }
    }
}

/// A variable-length integer (RFC 9000, section 16) and the octets that it takes.
fn varint(bytes: Bytes<'_>) -> Option<(u64, usize)> {
    let length = 1 << (bytes.u8(0)? >> 6);
    let octets = bytes.captured().get(..length)?;
    let value =
        octets[1..].iter().fold(u64::from(octets[0] & 0x3f), |value, octet| value << 8 | u64::from(*octet));
    Some((value, length))
}

/// A connection ID, which may have no octets.
struct Id<'a>(&'a [u8]);

impl std::fmt::Display for Id<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_empty() { f.write_str("-") } else { write!(f, "{}", HEX.encode_display(self.0)) }
    }
}
