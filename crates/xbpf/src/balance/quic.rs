//! How the balancing program reads QUIC connection IDs: configurations of draft-ietf-quic-load-balancers, and what AES-128
//! (FIPS 197) needs to be computed there, tables and expanded keys.

use std::fmt;

use crate::skeleton::balance::types::{balance_limit, balance_quic};

/// How the connection IDs of one rotation codepoint are read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct BalanceQuic {
    server_id_length: u8,
    length: u8,
    key: Option<[u8; 16]>,
}

/// The key is not printed.
impl fmt::Debug for BalanceQuic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BalanceQuic")
            .field("server_id_length", &self.server_id_length)
            .field("length", &self.length)
            .field("encrypted", &self.key.is_some())
            .finish()
    }
}

const SERVER_ID: u8 = balance_limit::BALANCE_SERVER_ID.0 as u8;
const NONCE: u8 = balance_limit::BALANCE_NONCE.0 as u8;
const BLOCK: u8 = balance_limit::BALANCE_AES_BLOCK.0 as u8;
/// Server ID and nonce together (section 5.3 of the draft).
const LENGTH: u8 = 19;
const COLUMNS: usize = 4;
const KEYS: usize = 44;
pub(crate) const QUIC_BYTES: usize = 204;

const _: () = {
    assert!(size_of::<balance_quic>() == QUIC_BYTES);
    assert!(std::mem::offset_of!(balance_quic, masks) == 4);
    assert!(std::mem::offset_of!(balance_quic, round_keys) == 28);
};

impl BalanceQuic {
    /// Server IDs of `length` bytes, 1 to 15, in clear; `None` for others.
    pub fn clear(length: u8) -> Option<Self> {
        let fits = (1..=SERVER_ID).contains(&length);
        fits.then(|| Self { server_id_length: length, length: length + NONCE, key: None })
    }

    /// Server IDs encrypted together with a nonce. `None` if one is too short (1 and 4 bytes), or both are longer than 19.
    pub fn encrypted(server_id_length: u8, nonce_length: u8, key: [u8; 16]) -> Option<Self> {
        let length = server_id_length.checked_add(nonce_length)?;
        let fits = server_id_length > 0 && nonce_length >= NONCE && length <= LENGTH;
        fits.then_some(Self { server_id_length, length, key: Some(key) })
    }

    /// As `struct balance_quic`.
    pub(crate) fn bytes(&self) -> [u8; QUIC_BYTES] {
        let mut bytes = [0; QUIC_BYTES];
        bytes[..3].copy_from_slice(&[self.server_id_length, self.length, self.key.is_some().into()]);
        let Some(key) = &self.key else { return bytes };
        let keys = if self.length == BLOCK { inverse(&expanded(key)) } else { expanded(key) };
        let words = masks(self.length).into_iter().chain(keys);
        for (place, word) in bytes[4..].chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }
}

/// Which bits of ten bytes are the left half's of `length` bytes, and which the right one's (section 5.4.2.3 of the draft,
/// step 2).
fn masks(length: u8) -> [u32; 6] {
    let half = usize::from(length).div_ceil(2);
    let mut halves = [[0u8; 12]; 2];
    halves.iter_mut().for_each(|half_mask| half_mask[..half].fill(0xff));
    if length % 2 == 1 {
        halves[0][half - 1] = 0xf0;
        halves[1][0] = 0x0f;
    }
    let mut words = [0; 6];
    for (word, bytes) in words.iter_mut().zip(halves.as_flattened().as_chunks::<4>().0) {
        *word = u32::from_be_bytes(*bytes);
    }
    words
}

/// The product in GF(2^8) modulo x^8 + x^4 + x^3 + x + 1 (FIPS 197, section 4.2).
const fn product(mut a: u8, mut b: u8) -> u8 {
    let mut product = 0;
    while b != 0 {
        if b & 1 != 0 {
            product ^= a;
        }
        a = (a << 1) ^ if a & 0x80 != 0 { 0x1b } else { 0 };
        b >>= 1;
    }
    product
}

/// The S-box (FIPS 197, section 5.1.1): walks through all non-zero elements by their generator 3, and their inverses by 0xf6.
const fn s_box() -> [u8; 256] {
    let mut table = [0x63; 256];
    let (mut element, mut inverse) = (1u8, 1u8);
    loop {
        let turns = inverse.rotate_left(1) ^ inverse.rotate_left(2) ^ inverse.rotate_left(3);
        table[element as usize] = inverse ^ turns ^ inverse.rotate_left(4) ^ 0x63;
        element = product(element, 3);
        inverse = product(inverse, 0xf6);
        if element == 1 {
            return table;
        }
    }
}

const fn inverse_box() -> [u8; 256] {
    let (forth, mut back) = (s_box(), [0; 256]);
    let mut byte = 0;
    while byte < 256 {
        back[forth[byte] as usize] = byte as u8;
        byte += 1;
    }
    back
}

const S_BOX: [u8; 256] = s_box();
const INVERSE_BOX: [u8; 256] = inverse_box();

/// What MixColumns makes of a byte in the first row.
fn mixed(byte: u8) -> u32 {
    u32::from_be_bytes([2, 1, 1, 3].map(|factor| product(byte, factor)))
}

/// What InvMixColumns makes of it.
fn unmixed(byte: u8) -> u32 {
    u32::from_be_bytes([14, 9, 13, 11].map(|factor| product(byte, factor)))
}

/// `aes_columns` and `aes_bytes` of the program.
pub(crate) fn tables() -> ([u32; 512], [u8; 512]) {
    let (mut columns, mut bytes) = ([0; 512], [0; 512]);
    for (index, (forth, back)) in S_BOX.into_iter().zip(INVERSE_BOX).enumerate() {
        columns[index] = mixed(forth);
        columns[256 + index] = unmixed(back);
    }
    bytes[..256].copy_from_slice(&S_BOX);
    bytes[256..].copy_from_slice(&INVERSE_BOX);
    (columns, bytes)
}

/// The key schedule (FIPS 197, section 5.2).
fn expanded(key: &[u8; 16]) -> [u32; KEYS] {
    let mut words = [0; KEYS];
    for (word, bytes) in words.iter_mut().zip(key.as_chunks::<4>().0) {
        *word = u32::from_be_bytes(*bytes);
    }
    let mut constant = 1;
    for index in COLUMNS..KEYS {
        let mut word = words[index - 1];
        if index % COLUMNS == 0 {
            let substituted = word.rotate_left(8).to_be_bytes().map(|byte| S_BOX[usize::from(byte)]);
            word = u32::from_be_bytes(substituted) ^ u32::from(constant) << 24;
            constant = product(constant, 2);
        }
        words[index] = words[index - COLUMNS] ^ word;
    }
    words
}

/// Round keys of the equivalent inverse cipher (FIPS 197, section 5.3.5), columns in the order that the program takes them.
fn inverse(keys: &[u32; KEYS]) -> [u32; KEYS] {
    let last = KEYS / COLUMNS - 1;
    let mut turned = [0; KEYS];
    for (round, place) in turned.chunks_exact_mut(COLUMNS).enumerate() {
        let from = &keys[COLUMNS * (last - round)..][..COLUMNS];
        for (column, word) in [0, 3, 2, 1].into_iter().zip(place) {
            let [a, b, c, d] = from[column].to_be_bytes();
            *word = match round {
                0 => from[column],
                _ if round == last => from[column],
                _ => {
                    unmixed(a)
                        ^ unmixed(b).rotate_right(8)
                        ^ unmixed(c).rotate_right(16)
                        ^ unmixed(d).rotate_right(24)
                }
            };
        }
    }
    turned
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FIPS 197, appendix A.1.
    #[test]
    fn keys_are_expanded_as_in_the_standards_example() {
        let key = 0x2b7e_1516_28ae_d2a6_abf7_1588_09cf_4f3c_u128.to_be_bytes();
        let words = expanded(&key);
        assert_eq!(words[4..8], [0xa0fa_fe17, 0x8854_2cb1, 0x23a3_3939, 0x2a6c_7605]);
        assert_eq!(words[40..], [0xd014_f9a8, 0xc9ee_2589, 0xe13f_0cc8, 0xb663_0ca6]);
    }

    /// FIPS 197, figures 7 and 14.
    #[test]
    fn substitution_is_the_standards() {
        assert_eq!(S_BOX[..4], [0x63, 0x7c, 0x77, 0x7b]);
        assert_eq!((S_BOX[0x53], S_BOX[0xff]), (0xed, 0x16));
        assert_eq!((INVERSE_BOX[0], INVERSE_BOX[0xff]), (0x52, 0x7d));
        assert!((0..256).all(|byte| usize::from(INVERSE_BOX[usize::from(S_BOX[byte])]) == byte));
    }

    #[test]
    fn halves_share_the_middle_of_odd_lengths() {
        assert_eq!(masks(7), [0xffff_fff0, 0, 0, 0x0fff_ffff, 0, 0]);
        assert_eq!(masks(12), [0xffff_ffff, 0xffff_0000, 0, 0xffff_ffff, 0xffff_0000, 0]);
        assert_eq!(masks(19)[..3], [0xffff_ffff, 0xffff_ffff, 0xfff0_0000]);
        assert_eq!(masks(19)[3..], [0x0fff_ffff, 0xffff_ffff, 0xffff_0000]);
    }

    #[test]
    fn lengths_have_the_drafts_bounds() {
        let key = [0; 16];
        assert!(BalanceQuic::clear(0).is_none() && BalanceQuic::clear(16).is_none());
        for (server, nonce) in [(0, 8), (4, 3), (15, 5), (200, 100)] {
            assert_eq!(BalanceQuic::encrypted(server, nonce, key), None, "{server} {nonce}");
        }
        let most = BalanceQuic::encrypted(15, 4, [0xaa; 16]).unwrap();
        assert!(!format!("{most:?}").contains("170"), "the key is not printed");
    }
}
