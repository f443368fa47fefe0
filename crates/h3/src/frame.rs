//! Frame types and headers (RFC 9114, section 7).

use crate::varint;

/// DATA.
pub const DATA: u64 = 0x00;
/// HEADERS.
pub const HEADERS: u64 = 0x01;
/// CANCEL_PUSH.
pub const CANCEL_PUSH: u64 = 0x03;
/// SETTINGS.
pub const SETTINGS: u64 = 0x04;
/// PUSH_PROMISE; only servers send it.
pub const PUSH_PROMISE: u64 = 0x05;
/// GOAWAY.
pub const GOAWAY: u64 = 0x07;
/// MAX_PUSH_ID.
pub const MAX_PUSH_ID: u64 = 0x0d;
/// PRIORITY_UPDATE of a request stream (RFC 9218, section 7.2).
pub const PRIORITY_UPDATE: u64 = 0xf0700;
/// PRIORITY_UPDATE of a push stream.
pub const PRIORITY_UPDATE_PUSH: u64 = 0xf0701;

/// Types that HTTP/2 used and HTTP/3 forbids (RFC 9114, section 7.2.8).
pub const fn is_http2(kind: u64) -> bool {
    matches!(kind, 0x02 | 0x06 | 0x08 | 0x09)
}

/// Appends the header of a frame with `length` bytes of payload.
#[inline]
pub fn write_header(kind: u64, length: u64, out: &mut Vec<u8>) {
    varint::write(kind, out);
    varint::write(length, out);
}

/// Appends a frame whose payload `write` appends, of less than 16 KiB if its header is to stay short.
#[inline]
pub fn write(kind: u64, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    varint::write(kind, out);
    // Nearly every header section needs two bytes for its length, so the place is kept; a longer one moves.
    let place = out.len();
    out.extend_from_slice(&[0x40, 0]);
    write(out);
    let length = out.len() - place - 2;
    match u16::try_from(length) {
        Ok(short) if short < 1 << 14 => {
            out[place..place + 2].copy_from_slice(&(short | 1 << 14).to_be_bytes());
        }
        _ => {
            let long = (length as u64 | 3 << 62).to_be_bytes();
            out.splice(place..place + 2, long);
        }
    }
}

/// Appends a GOAWAY frame: streams from `first_refused` on are not processed (RFC 9114, section 5.2).
pub fn write_goaway(first_refused: u64, out: &mut Vec<u8>) {
    write(GOAWAY, out, |out| varint::write(first_refused, out));
}

/// A reserved number that means nothing (RFC 9114, section 7.2.8), for frames, settings and stream types.
pub const fn reserved(seed: u32) -> u64 {
    0x1f * seed as u64 + 0x21
}

#[cfg(test)]
pub(crate) mod testing {
    /// What a peer sends that sends these frames: type and payload.
    pub(crate) fn stream(frames: &[(u64, &[u8])]) -> Vec<u8> {
        let mut out = Vec::new();
        for (kind, payload) in frames {
            super::write_header(*kind, payload.len() as u64, &mut out);
            out.extend_from_slice(payload);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_has_its_length_whatever_it_is() {
        for length in [0, 1, 63, 64, 16_383, 16_384, 70_000] {
            let mut out = vec![7];
            write(HEADERS, &mut out, |out| out.resize(out.len() + length, 9));
            let (kind, one) = varint::read(&out[1..]).unwrap();
            let (stated, two) = varint::read(&out[1 + one..]).unwrap();
            assert_eq!((kind, stated), (HEADERS, length as u64));
            assert_eq!(out[1 + one + two..], vec![9; length]);
        }
    }

    #[test]
    fn reserved_numbers_are_of_the_reserved_form() {
        for seed in [0, 1, 77, u32::MAX] {
            assert_eq!((reserved(seed) - 0x21) % 0x1f, 0);
            assert!(reserved(seed) <= varint::MAX);
        }
    }
}
