//! The metadata that the redirect program writes in front of a received packet: `struct redirect_metadata` in
//! `bpf/include/redirect_shared.h`, which defines the layout.

use crate::io::{Hints, TimeSource, Timestamp, VlanHint};

/// Bytes of the description.
pub(super) const METADATA_LEN: usize = 32;
/// `REDIRECT_METADATA_VERSION`.
const VERSION: u16 = 1;
/// Where the cookie lies.
const COOKIE: std::ops::Range<usize> = 24..28;
/// `enum redirect_valid`.
const DEVICE_TIME: u16 = 1;
const PROGRAM_TIME: u16 = 2;
const HASH: u16 = 4;
const VLAN: u16 = 8;

/// Reads a description, and unmakes it: the frame is used again, and a packet that goes undescribed then must not
/// be taken for this one. Nothing is known where version or cookie are not the program's.
pub(super) fn take(area: &mut [u8; METADATA_LEN], cookie: u32) -> Hints {
    let half = |at: usize| u16::from_ne_bytes([area[at], area[at + 1]]);
    let word = |at: usize| u32::from_ne_bytes([area[at], area[at + 1], area[at + 2], area[at + 3]]);
    if half(20) != VERSION || word(COOKIE.start) != cookie {
        return Hints::default();
    }
    let valid = half(22);
    let nanoseconds = u64::from(word(0)) | u64::from(word(4)) << 32;
    let nanoseconds = if cfg!(target_endian = "big") { nanoseconds.rotate_left(32) } else { nanoseconds };
    let source = match valid {
        _ if valid & DEVICE_TIME != 0 => Some(TimeSource::Device),
        _ if valid & PROGRAM_TIME != 0 => Some(TimeSource::Program),
        _ => None,
    };
    let hints = Hints {
        timestamp: source.map(|source| Timestamp { nanoseconds, source }),
        hash: (valid & HASH != 0).then(|| word(8)),
        vlan: (valid & VLAN != 0).then(|| VlanHint { protocol: u16::from_be(half(16)), tag: half(18) }),
    };
    area[COOKIE].copy_from_slice(&(!cookie).to_ne_bytes());
    hints
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn area(valid: u16) -> [u8; METADATA_LEN] {
        let mut area = [0; METADATA_LEN];
        area[..8].copy_from_slice(&0x0102_0304_0506_0708_u64.to_ne_bytes());
        area[8..12].copy_from_slice(&0xdead_beef_u32.to_ne_bytes());
        area[16..18].copy_from_slice(&0x8100_u16.to_be_bytes());
        area[18..20].copy_from_slice(&0x2007_u16.to_ne_bytes());
        area[20..22].copy_from_slice(&VERSION.to_ne_bytes());
        area[22..24].copy_from_slice(&valid.to_ne_bytes());
        area[COOKIE].copy_from_slice(&77_u32.to_ne_bytes());
        area
    }

    #[test]
    fn each_field_counts_where_its_bit_is_set() {
        assert_eq!(take(&mut area(0), 77), Hints::default());
        let all = take(&mut area(DEVICE_TIME | HASH | VLAN), 77);
        let timestamp = Timestamp { nanoseconds: 0x0102_0304_0506_0708, source: TimeSource::Device };
        assert_eq!(all.timestamp, Some(timestamp));
        assert_eq!(all.hash, Some(0xdead_beef));
        let vlan = all.vlan.unwrap();
        assert_eq!((vlan.protocol, vlan.id()), (0x8100, 7));
        let program = take(&mut area(PROGRAM_TIME), 77);
        assert_eq!(program.timestamp.unwrap().source, TimeSource::Program);
        assert_eq!((program.hash, program.vlan), (None, None));
    }

    #[test]
    fn a_description_counts_once_and_only_with_its_cookie() {
        let mut once = area(HASH);
        assert_eq!(take(&mut once, 78), Hints::default(), "another program's");
        assert!(take(&mut once, 77).hash.is_some());
        assert_eq!(take(&mut once, 77), Hints::default(), "taken");
        let mut newer = area(HASH);
        newer[20..22].copy_from_slice(&2_u16.to_ne_bytes());
        assert_eq!(take(&mut newer, 77), Hints::default(), "another version");
    }
}
