//! WebTransport on the bytes of streams: settings of all dialects, heads of streams, error codes
//! (draft-ietf-webtrans-http3, drafts 2 to 14, and 15 without RESET_STREAM_AT).

use crate::{stream_type, varint};

/// What a server says so that any client takes it for one that speaks WebTransport, with one session at a time, and no limits beside
/// those of QUIC. A client looks for the setting of its own dialect:
///
/// ```text
///  0x08        ENABLE_CONNECT_PROTOCOL        RFC 9220
///  0x33        H3_DATAGRAM                    RFC 9297; 0xffd277 is that of its draft 4
///  0x2b603742  ENABLE_WEBTRANSPORT            draft 2 to 6: Chromium, aioquic; 0x2b603743 is the number of sessions beside it
///  0xc671706a  WEBTRANSPORT_MAX_SESSIONS      draft 7 to 12: Chromium, web-transport (moq-rs)
///  0x14e9cd29  WT_MAX_SESSIONS                draft 13 and 14: Safari 26.4
///  0x2b64      WT_INITIAL_MAX_STREAMS_UNI     the same, which Safari wants to see beside it
///  0x2b65      WT_INITIAL_MAX_STREAMS_BIDI
///  0x2b61      WT_INITIAL_MAX_DATA
///  0x2c7cf000  WT_ENABLED                     draft 15
/// ```
pub const SETTINGS: [(u64, u64); 11] = [
    (0x08, 1),
    (0x33, 1),
    (0xff_d277, 1),
    (0x2b60_3742, 1),
    (0x2b60_3743, 1),
    (0xc671_706a, 1),
    (0x14e9_cd29, 1),
    (INITIAL_MAX_STREAMS_UNI, crate::capsule::MAX_STREAMS),
    (INITIAL_MAX_STREAMS_BIDI, crate::capsule::MAX_STREAMS),
    (INITIAL_MAX_DATA, varint::MAX),
    (0x2c7c_f000, 1),
];

/// Streams in one direction that the other side may open in a session at first.
pub(crate) const INITIAL_MAX_STREAMS_UNI: u64 = 0x2b64;
/// Streams in both directions.
pub(crate) const INITIAL_MAX_STREAMS_BIDI: u64 = 0x2b65;
/// Bytes that it may send on all of them.
pub(crate) const INITIAL_MAX_DATA: u64 = 0x2b61;

/// Limits that a client sets for a session, in all from its beginning on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes on all streams.
    pub data: u64,
    /// Streams in both directions.
    pub bidirectional: u64,
    /// Streams in one direction.
    pub unidirectional: u64,
}

impl Limits {
    /// Whether the client wants sessions to have limits of their own: this side, which says so by [`SETTINGS`], keeps to them then.
    pub fn is_wanted(&self) -> bool {
        *self != Self::default()
    }
}

/// The signal at the beginning of a session's stream in both directions.
const STREAM: u64 = 0x41;

/// The first of the HTTP/3 codes that stand for the codes of sessions.
const FIRST_CODE: u64 = 0x52e4_a40f_a8db;

/// The HTTP/3 code that stands for a code of a session's stream: those of the reserved form (RFC 9114, section 8.1) are passed over.
pub const fn to_http3(code: u32) -> u64 {
    FIRST_CODE + code as u64 + code as u64 / 0x1e
}

/// Appends the head of a stream that this side opens in a session.
pub fn write_head(session: u64, is_bidirectional: bool, out: &mut Vec<u8>) {
    varint::write(if is_bidirectional { STREAM } else { stream_type::WEBTRANSPORT }, out);
    varint::write(session, out);
}

/// What a client's stream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It belongs to the session of that ID.
    Session(u64),
    /// Another of HTTP/3, which begins with the bytes that were read.
    Other,
}

/// The longest head: two integers.
const MAX_HEAD: usize = 2 * varint::MAX_LEN;
/// Bytes of the shortest head, which the first bytes of most streams are.
const SHORTEST: usize = 3;

/// Reads the head of a client's stream, and nothing behind it.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeadReader {
    bytes: [u8; MAX_HEAD],
    length: usize,
}

impl HeadReader {
    /// Bytes that are to be read next, 1 at least: not more than the head has if the stream is a session's.
    pub fn wanted(&self) -> usize {
        match self.length {
            0 => SHORTEST,
            length => self.needed().max(length + 1) - length,
        }
    }

    /// Bytes that the head has, as far as that is known.
    fn needed(&self) -> usize {
        let Some(first) = self.bytes.first().filter(|_| self.length > 0) else { return SHORTEST };
        let kind = varint::len_of(*first);
        let session = self.bytes.get(kind).filter(|_| self.length > kind);
        kind + session.map_or(1, |first| varint::len_of(*first))
    }

    /// Takes what was read.
    pub fn take(&mut self, read: &[u8]) {
        let end = (self.length + read.len()).min(MAX_HEAD);
        let count = end - self.length;
        self.bytes[self.length..end].copy_from_slice(&read[..count]);
        self.length = end;
    }

    /// What was read.
    pub fn read(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// What the stream is, once that is known.
    pub fn kind(&self, is_bidirectional: bool) -> Option<Kind> {
        let (kind, length) = varint::read(self.read())?;
        let session = if is_bidirectional { STREAM } else { stream_type::WEBTRANSPORT };
        if kind != session {
            return Some(Kind::Other);
        }
        varint::read(&self.read()[length..]).map(|(session, _)| Kind::Session(session))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn codes_pass_over_the_reserved_ones() {
        // draft-ietf-webtrans-http3-15, section 4.4.
        assert_eq!(to_http3(0), 0x52e4_a40f_a8db);
        assert_eq!(to_http3(0x1d), 0x52e4_a40f_a8f8);
        assert_eq!(to_http3(0x1e), 0x52e4_a40f_a8fa);
        assert_eq!(to_http3(u32::MAX), 0x52e5_ac98_3162);
        assert!((0..10_000).all(|code| !(to_http3(code) - 0x21).is_multiple_of(0x1f)));
    }

    /// Reads a head off `stream`, in pieces of `size` at most; how far it has read.
    fn read(stream: &[u8], is_bidirectional: bool, size: usize) -> (Option<Kind>, usize) {
        let (mut head, mut at) = (HeadReader::default(), 0);
        while head.kind(is_bidirectional).is_none() && at < stream.len() {
            let end = (at + head.wanted().min(size)).min(stream.len());
            head.take(&stream[at..end]);
            at = end;
        }
        assert_eq!(head.read(), &stream[..at]);
        (head.kind(is_bidirectional), at)
    }

    proptest! {
        #[test]
        fn a_head_is_read_and_nothing_behind_it(
            session in 0u64..=varint::MAX,
            is_bidirectional: bool,
            behind in prop::collection::vec(any::<u8>(), 0..20),
            size in 1usize..20,
        ) {
            let mut stream = Vec::new();
            write_head(session, is_bidirectional, &mut stream);
            let length = stream.len();
            prop_assert_eq!(read(&stream[..length - 1], is_bidirectional, size).0, None);
            stream.extend_from_slice(&behind);
            prop_assert_eq!(read(&stream, is_bidirectional, size), (Some(Kind::Session(session)), length));
            prop_assert_eq!(read(&stream, !is_bidirectional, size).0, Some(Kind::Other));
        }

        #[test]
        fn no_bytes_panic(stream in prop::collection::vec(any::<u8>(), 0..40), is_bidirectional: bool, size in 1usize..20) {
            let (kind, at) = read(&stream, is_bidirectional, size);
            prop_assert!(at <= MAX_HEAD && (kind.is_some() || at == stream.len()));
        }
    }

    #[test]
    fn integers_that_are_longer_than_they_need_be_are_read() {
        let head = [0xc0, 0, 0, 0, 0, 0, 0, 0x41, 0xc0, 0, 0, 0, 0, 0, 0, 4, 9];
        assert_eq!(read(&head, true, 20), (Some(Kind::Session(4)), 16));
        assert_eq!(read(&[0x40, 0x54, 0x40, 4, 9], false, 20), (Some(Kind::Session(4)), 4));
    }
}
