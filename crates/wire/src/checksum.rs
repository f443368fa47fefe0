//! The Internet checksum (RFC 1071): whole, over a pseudo-header only, and incremental (RFC 1624).
//!
//! [`Sum`] is an unfinished one's complement sum in host order. [`sum`] is the loop over every payload byte.
//! Everything else is a handful of additions.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// How much of the UDP checksum a builder computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ChecksumMode {
    /// Over pseudo-header, header and payload. A result of 0 is sent as 0xffff (RFC 768).
    #[default]
    Full,
    /// The pseudo-header's sum, not complemented: what a device that finishes the checksum expects in the
    /// field (`CHECKSUM_PARTIAL`, Linux `include/linux/skbuff.h`; `XDP_TXMD_FLAGS_CHECKSUM`).
    PseudoOnly,
    /// 0, no checksum. IPv4 only.
    None,
}

/// What a verified UDP checksum turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChecksumState {
    /// Present and right.
    Valid,
    /// Absent: 0 on IPv4 (RFC 768).
    Absent,
}

/// Bytes that one turn of the wide loop takes: four 64-bit lanes for the low halves of its words and four
/// for the high halves. LLVM keeps them in vector registers on any 64-bit target; of the widths tried with
/// SSE2 only, this is the fastest that needs no carry.
const BLOCK: usize = 32;

/// The one's complement sum of `data` as 16-bit words in network order, folded to 16 bits, not complemented.
/// An odd last byte is padded with zero.
#[inline]
pub fn sum(data: &[u8]) -> u16 {
    // The sum is the same in either byte order but for a swap at the end (RFC 1071, section 2(B)), so words
    // are added as they lie in memory.
    let (blocks, rest) = data.as_chunks::<BLOCK>();
    let mut total = sum_blocks(blocks);
    let (words, rest) = rest.as_chunks::<4>();
    for word in words {
        total += u64::from(u32::from_ne_bytes(*word));
    }
    let (words, rest) = rest.as_chunks::<2>();
    for word in words {
        total += u64::from(u16::from_ne_bytes(*word));
    }
    if let [last] = rest {
        total += u64::from(u16::from_ne_bytes([*last, 0]));
    }
    u16::from_be(fold(total))
}

/// Adds 32-bit words in 64-bit lanes, which cannot overflow below 2^32 additions a lane.
#[inline]
fn sum_blocks(blocks: &[[u8; BLOCK]]) -> u64 {
    let mut low = [0u64; BLOCK / 8];
    let mut high = [0u64; BLOCK / 8];
    for block in blocks {
        let words = block.as_chunks::<8>().0;
        for ((low, high), word) in low.iter_mut().zip(&mut high).zip(words) {
            let word = u64::from_ne_bytes(*word);
            *low += word & 0xffff_ffff;
            *high += word >> 32;
        }
    }
    low.iter().sum::<u64>() + high.iter().sum::<u64>()
}

/// Folds a sum to 16 bits with end-around carry.
#[inline]
const fn fold(sum: u64) -> u16 {
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    sum as u16
}

/// An unfinished one's complement sum of 16-bit words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum(u64);

impl Sum {
    /// The empty sum.
    pub const fn new() -> Self {
        Self(0)
    }

    /// Adds one word.
    #[inline]
    #[must_use]
    pub const fn word(self, word: u16) -> Self {
        Self(self.0 + word as u64)
    }

    /// Adds another sum.
    #[inline]
    #[must_use]
    pub const fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }

    /// Adds bytes that start at an even offset; an odd last byte is padded, so only the last call may be odd.
    #[inline]
    #[must_use]
    pub fn bytes(self, data: &[u8]) -> Self {
        self.word(sum(data))
    }

    /// Adds the words of an IPv4 address.
    #[inline]
    #[must_use]
    pub fn ipv4(self, address: Ipv4Addr) -> Self {
        let bits = address.to_bits();
        Self(self.0 + u64::from(bits >> 16) + u64::from(bits & 0xffff))
    }

    /// Adds the words of an IPv6 address.
    #[inline]
    #[must_use]
    pub fn ipv6(self, address: Ipv6Addr) -> Self {
        Self(self.0 + address.segments().iter().map(|word| u64::from(*word)).sum::<u64>())
    }

    /// Adds the words of an address of either family.
    #[inline]
    #[must_use]
    pub fn ip(self, address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => self.ipv4(address),
            IpAddr::V6(address) => self.ipv6(address),
        }
    }

    /// The sum folded to 16 bits, not complemented.
    #[inline]
    pub const fn folded(self) -> u16 {
        fold(self.0)
    }

    /// The checksum: the complement of the folded sum.
    #[inline]
    pub const fn checksum(self) -> u16 {
        !fold(self.0)
    }

    /// The checksum as UDP sends it: 0, which would mean "absent", becomes 0xffff (RFC 768; RFC 8200,
    /// section 8.1).
    #[inline]
    pub const fn udp_checksum(self) -> u16 {
        match self.checksum() {
            0 => 0xffff,
            checksum => checksum,
        }
    }

    /// Whether a sum taken over data that includes its checksum field says that the data is intact.
    #[inline]
    pub const fn is_intact(self) -> bool {
        fold(self.0) == 0xffff
    }
}

/// The sum of the pseudo-header (RFC 768 for IPv4; RFC 8200, section 8.1 for IPv6) of a packet whose
/// transport header and payload are `length` bytes.
#[inline]
pub fn pseudo_header(source: IpAddr, destination: IpAddr, protocol: u8, length: u32) -> Sum {
    let sum = Sum::new().ip(source).ip(destination).word(u16::from(protocol));
    sum.word((length >> 16) as u16).word(length as u16)
}

/// `checksum` after one word under it changed from `old` to `new` (RFC 1624, equation 3).
#[inline]
#[must_use]
pub const fn update(checksum: u16, old: u16, new: u16) -> u16 {
    !fold(!checksum as u64 + !old as u64 + new as u64)
}

/// `checksum` after bytes under it that start at an even offset changed from `old` to `new`, which are of
/// the same length (RFC 1624, equation 3).
#[inline]
#[must_use]
pub fn update_bytes(checksum: u16, old: &[u8], new: &[u8]) -> u16 {
    debug_assert_eq!(old.len(), new.len(), "an incremental update keeps the length");
    update(checksum, sum(old), sum(new))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    /// RFC 1071 as it is written, word by word.
    fn reference(data: &[u8]) -> u16 {
        let mut total = 0u32;
        for pair in data.chunks(2) {
            total += u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
            total = (total & 0xffff) + (total >> 16);
        }
        total as u16
    }

    #[test]
    fn rfc1071_example() {
        let data = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(sum(&data), 0xddf2);
        assert_eq!(Sum::new().bytes(&data).checksum(), !0xddf2);
    }

    #[test]
    fn all_ones_of_every_length_match_the_reference() {
        let data = [0xff; 300];
        for length in 0..data.len() {
            assert_eq!(sum(&data[..length]), reference(&data[..length]), "length {length}");
        }
    }

    #[test]
    fn rfc1624_example() {
        // Section 4: the case in which RFC 1141's equation gives the wrong zero.
        assert_eq!(update(0xdd2f, 0x5555, 0x3285), 0x0000);
    }

    proptest! {
        #[test]
        fn sum_matches_the_reference(data in prop::collection::vec(any::<u8>(), 0..2000), skip in 0usize..9) {
            let data = &data[skip.min(data.len())..];
            prop_assert_eq!(sum(data), reference(data));
        }

        #[test]
        fn incremental_update_equals_recomputation(
            mut data in prop::collection::vec(any::<u8>(), 4..200), at in any::<prop::sample::Index>(), new in any::<[u8; 2]>(),
        ) {
            data.push(1); // An all-zero sum has two representations; keep away from it.
            let at = at.index(data.len() - 1) & !1;
            let before = Sum::new().bytes(&data).checksum();
            let old: Vec<u8> = data[at..at + 2].to_vec();
            data[at..at + 2].copy_from_slice(&new);
            let after = Sum::new().bytes(&data).checksum();
            prop_assert_eq!(update_bytes(before, &old, &new), after);
        }
    }
}
