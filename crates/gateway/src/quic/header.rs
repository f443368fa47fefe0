//! The fields of a QUIC packet that do not depend on the version (RFC 8999), and those of version 1 that decide how a
//! packet is handled before any key is known. Nothing is copied or allocated.

use super::cid::{CID_LENGTH, Cid, MAX_CID_LENGTH};

/// QUIC version 1 (RFC 9000).
pub const VERSION_1: u32 = 1;

/// The kinds of long-header packets of version 1 (RFC 9000, section 17.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LongType {
    /// Opens a connection; carries a token.
    Initial,
    /// Early data.
    ZeroRtt,
    /// The rest of the handshake.
    Handshake,
    /// Only servers send it.
    Retry,
}

/// What the first packet of a datagram is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header<'a> {
    /// A short header; its connection ID is one of ours by length.
    Short {
        /// Destination connection ID.
        dcid: Cid,
    },
    /// A long header of a version that this server speaks.
    Long {
        /// Kind of packet.
        kind: LongType,
        /// Destination connection ID, up to 20 bytes.
        dcid: &'a [u8],
        /// Source connection ID, up to 20 bytes.
        scid: &'a [u8],
        /// Token of an Initial; empty otherwise.
        token: &'a [u8],
    },
    /// A long header of another version.
    OtherVersion {
        /// The version that the client asked for; never 0.
        version: u32,
        /// Destination connection ID, up to 255 bytes.
        dcid: &'a [u8],
        /// Source connection ID, up to 255 bytes.
        scid: &'a [u8],
    },
}

/// Why a datagram is no QUIC packet for a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// It ends within the header.
    #[error("the packet header is truncated")]
    Truncated,
    /// The fixed bit is 0, or a connection ID is longer than version 1 allows.
    #[error("not a QUIC version 1 packet header")]
    Invalid,
    /// Version Negotiation and Retry are sent by servers only.
    #[error("a packet type that only servers send")]
    ServerOnly,
}

/// Reads the header of the first packet in `datagram`.
pub fn parse(datagram: &[u8]) -> Result<Header<'_>, HeaderError> {
    let first = *datagram.first().ok_or(HeaderError::Truncated)?;
    if first & 0x80 == 0 {
        if first & 0x40 == 0 {
            return Err(HeaderError::Invalid);
        }
        let dcid = datagram.get(1..1 + CID_LENGTH).and_then(Cid::from_slice);
        return Ok(Header::Short { dcid: dcid.ok_or(HeaderError::Truncated)? });
    }
    let mut rest = Cursor(&datagram[1..]);
    let version = u32::from_be_bytes(rest.take(4)?.try_into().map_err(|_| HeaderError::Truncated)?);
    let length = usize::from(rest.take(1)?[0]);
    let dcid = rest.take(length)?;
    let length = usize::from(rest.take(1)?[0]);
    let scid = rest.take(length)?;
    match version {
        0 => return Err(HeaderError::ServerOnly),
        VERSION_1 => {}
        _ => return Ok(Header::OtherVersion { version, dcid, scid }),
    }
    if first & 0x40 == 0 || dcid.len() > MAX_CID_LENGTH || scid.len() > MAX_CID_LENGTH {
        return Err(HeaderError::Invalid);
    }
    let kind = match (first >> 4) & 0b11 {
        0 => LongType::Initial,
        1 => LongType::ZeroRtt,
        2 => LongType::Handshake,
        _ => return Err(HeaderError::ServerOnly),
    };
    let token = if kind == LongType::Initial {
        let length = rest.varint()?;
        rest.take(usize::try_from(length).map_err(|_| HeaderError::Truncated)?)?
    } else {
        &[]
    };
    Ok(Header::Long { kind, dcid, scid, token })
}

struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], HeaderError> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(HeaderError::Truncated)?;
        self.0 = rest;
        Ok(taken)
    }

    /// A variable-length integer (RFC 9000, section 16).
    fn varint(&mut self) -> Result<u64, HeaderError> {
        let first = *self.0.first().ok_or(HeaderError::Truncated)?;
        let bytes = self.take(1 << (first >> 6))?;
        Ok(bytes[1..].iter().fold(u64::from(first & 0x3f), |value, byte| value << 8 | u64::from(*byte)))
    }
}

/// Writes a Version Negotiation packet that offers version 1 (RFC 9000, section 17.2.1), answering a
/// packet with these connection IDs. Returns its length, or `None` if `out` is too small.
pub fn write_version_negotiation(out: &mut [u8], dcid: &[u8], scid: &[u8], random: u8) -> Option<usize> {
    // A reserved version (RFC 9000, section 15) keeps clients from relying on the list being short.
    const GREASE: u32 = 0x1a2a_3a4a;
    let length = 1 + 4 + 1 + scid.len() + 1 + dcid.len() + 8;
    let out = out.get_mut(..length)?;
    out[0] = 0x80 | random;
    out[1..5].fill(0);
    let mut at = 5;
    for cid in [scid, dcid] {
        out[at] = u8::try_from(cid.len()).ok()?;
        out[at + 1..at + 1 + cid.len()].copy_from_slice(cid);
        at += 1 + cid.len();
    }
    out[at..at + 4].copy_from_slice(&GREASE.to_be_bytes());
    out[at + 4..at + 8].copy_from_slice(&VERSION_1.to_be_bytes());
    Some(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn initial(version: u32, dcid: &[u8], scid: &[u8], token: &[u8]) -> Vec<u8> {
        let mut packet = vec![0xc0];
        packet.extend(version.to_be_bytes());
        for cid in [dcid, scid] {
            packet.push(cid.len() as u8);
            packet.extend(cid);
        }
        packet.push(token.len() as u8);
        packet.extend(token);
        packet.extend([0x44, 0x50]);
        packet
    }

    #[test]
    fn an_initial_gives_ids_and_token() {
        let packet = initial(1, &[1; 8], &[2; 4], b"tok");
        let header = parse(&packet).unwrap();
        assert_eq!(
            header,
            Header::Long { kind: LongType::Initial, dcid: &[1; 8], scid: &[2; 4], token: b"tok" }
        );
    }

    #[test]
    fn every_truncation_is_an_error_and_no_panic() {
        let packet = initial(1, &[1; 20], &[2; 20], &[3; 30]);
        for length in 0..packet.len() - 2 {
            assert_eq!(parse(&packet[..length]), Err(HeaderError::Truncated), "at {length}");
        }
        assert_eq!(parse(&[0x40; 16]), Err(HeaderError::Truncated));
        assert!(parse(&[0x40; 17]).is_ok());
    }

    #[test]
    fn other_versions_keep_long_ids_and_version_1_refuses_them() {
        let packet = initial(0x0a0a_0a0a, &[1; 40], &[2; 30], b"");
        assert!(matches!(parse(&packet), Ok(Header::OtherVersion { version: 0x0a0a_0a0a, .. })));
        assert_eq!(parse(&initial(1, &[1; 21], &[], b"")), Err(HeaderError::Invalid));
        assert_eq!(parse(&initial(0, &[1; 8], &[], b"")), Err(HeaderError::ServerOnly));
    }

    #[test]
    fn version_negotiation_swaps_the_ids() {
        let mut out = [0; 600];
        let length = write_version_negotiation(&mut out, &[1; 8], &[2; 5], 0x55).unwrap();
        assert_eq!(&out[1..5], &[0; 4]);
        assert_eq!(out[5], 5);
        assert_eq!(&out[6..11], &[2; 5]);
        assert_eq!(out[11], 8);
        assert_eq!(&out[12..20], &[1; 8]);
        assert_eq!(&out[length - 4..length], &1u32.to_be_bytes());
        assert_eq!(write_version_negotiation(&mut out[..10], &[1; 8], &[2; 5], 0), None);
    }
}
