//! Retry packets (RFC 9000, section 17.2.5) as the program makes them: what of their integrity tag does not depend on the packet.
//!
//! The tag is AES-128-GCM over a pseudo-packet and no text, with a key and a nonce that everybody knows (RFC 9001, section
//! 5.8). So what the cipher does is two constants, and the rest, GHASH, is products by one of them: the table has the
//! product of each value of each half of a byte at each place of a block.

use super::tables::GuardRate;
use crate::skeleton::guard::types::guard_ghash;

/// The key be0c690b9f66575a1d766b54e368c84e applied to a block of zeros.
const HASH_KEY: u128 = 0x7295_6a45_4ffa_ff54_85a1_3a12_44d0_1d47;

/// The same key applied to the nonce 461599d35d632bf2239825bb and a counter of 1.
const MASK: u128 = 0x555e_4b74_9355_6eea_af75_d35b_d7fb_a5d8;

/// When an Initial packet without a token is answered by Retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuardRetry {
    /// Always.
    Always,
    /// When there are more than so many.
    Above(GuardRate),
}

impl GuardRetry {
    /// `retry_cost` and `retry_burst`.
    pub(super) fn times(self) -> (u64, u64) {
        match self {
            Self::Always => (0, 0),
            Self::Above(rate) => rate.times(),
        }
    }
}

/// Words in the order of a block's bytes.
fn words(block: u128) -> [u64; 2] {
    let bytes = block.to_be_bytes();
    let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|byte| bytes[at + byte]));
    [word(0), word(8)]
}

/// `retry_mask`.
pub(super) fn mask() -> [u64; 2] {
    words(MASK)
}

/// Fills in `ghash`: of each byte of a block the high halves, then the low ones.
pub(super) fn fill(table: &mut [guard_ghash]) {
    for (index, entry) in table.iter_mut().enumerate() {
        let (place, half, value) = (index / 32, index / 16 % 2, index as u128 % 16);
        let byte = if half == 0 { value << 4 } else { value };
        entry.words = words(product(byte << (8 * (15 - place)), HASH_KEY));
    }
}

/// In GF(2^128) as GCM has it (NIST SP 800-38D, section 6.3): the highest bit is the constant term.
fn product(left: u128, right: u128) -> u128 {
    let (mut sum, mut shifted) = (0, right);
    for bit in (0..128).rev() {
        if left >> bit & 1 == 1 {
            sum ^= shifted;
        }
        shifted = shifted >> 1 ^ if shifted & 1 == 1 { 0xe1 << 120 } else { 0 };
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tag by the table, as the program takes it.
    fn tag(pseudo: &[u8]) -> [u8; 16] {
        let mut table = vec![guard_ghash::default(); 512];
        fill(&mut table);
        let mut blocks: Vec<[u8; 16]> = pseudo
            .chunks(16)
            .map(|chunk| std::array::from_fn(|at| chunk.get(at).copied().unwrap_or(0)))
            .collect();
        blocks.push((u128::from(pseudo.len() as u64 * 8) << 64).to_be_bytes());
        let mut hash = [0u8; 16];
        for block in blocks {
            let mut next = [0u64; 2];
            for (place, byte) in hash.iter().zip(block).map(|(one, other)| one ^ other).enumerate() {
                let (high, low) = (usize::from(byte >> 4), usize::from(byte & 15));
                for entry in [&table[place * 32 + high], &table[place * 32 + 16 + low]] {
                    next = [next[0] ^ entry.words[0], next[1] ^ entry.words[1]];
                }
            }
            hash = next.map(u64::to_ne_bytes).concat().try_into().unwrap();
        }
        let mask = mask().map(u64::to_ne_bytes).concat();
        std::array::from_fn(|at| hash[at] ^ mask[at])
    }

    /// RFC 9001, appendix A.4.
    #[test]
    fn the_tag_is_that_of_the_rfcs_retry() {
        let pseudo: &[u8] = b"\x08\x83\x94\xc8\xf0\x3e\x51\x57\x08\
            \xff\0\0\0\x01\0\x08\xf0\x67\xa5\x50\x2a\x42\x62\xb5token";
        let expected: u128 = 0x04a2_65ba_2eff_4d82_9058_fb3f_0f24_96ba;
        assert_eq!(tag(pseudo), expected.to_be_bytes());
    }

    #[test]
    fn a_product_by_one_changes_nothing() {
        assert_eq!(product(HASH_KEY, 1 << 127), HASH_KEY);
        assert_eq!(product(MASK, HASH_KEY), product(HASH_KEY, MASK));
    }
}
