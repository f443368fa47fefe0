//! Decoding of Huffman-coded strings (RFC 7541, section 5.2 and appendix B).
//!
//! The code is canonical: codes of one length are consecutive, in the order of their symbols. So the lengths
//! are the whole table, and everything else is computed from them.

/// The length of each symbol's code in bits; the last is EOS.
#[rustfmt::skip]
const LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28,
    28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6,
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5,
    6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23,
    21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25,
    19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
    30,
];

const EOS: u16 = 256;

/// The longest code.
const MAX_BITS: usize = 30;

/// Bits that are looked up at once: all letters and digits, and most of the rest of ASCII.
const FAST_BITS: usize = 9;

struct Tables {
    /// By the next bits: a symbol and the length of its code, or 0 for a longer one.
    fast: [(u8, u8); 1 << FAST_BITS],
    /// Of each length: the end of its codes, aligned left in 32 bits.
    end: [u64; MAX_BITS + 1],
    /// Of each length: what to add to a code to find its symbol among the sorted.
    offset: [i64; MAX_BITS + 1],
    /// Symbols by length, then by value.
    sorted: [u16; 257],
}

static TABLES: Tables = {
    let mut tables = Tables {
        fast: [(0, 0); 1 << FAST_BITS],
        end: [0; MAX_BITS + 1],
        offset: [0; MAX_BITS + 1],
        sorted: [0; 257],
    };
    let (mut code, mut rank, mut length) = (0u64, 0usize, 1usize);
    while length <= MAX_BITS {
        tables.offset[length] = rank as i64 - code as i64;
        let mut symbol = 0;
        while symbol < LENGTHS.len() {
            if LENGTHS[symbol] as usize == length {
                tables.sorted[rank] = symbol as u16;
                if length <= FAST_BITS {
                    let shift = FAST_BITS - length;
                    let mut tail = 0;
                    while tail < 1 << shift {
                        tables.fast[((code as usize) << shift) + tail] = (symbol as u8, length as u8);
                        tail += 1;
                    }
                }
                code += 1;
                rank += 1;
            }
            symbol += 1;
        }
        tables.end[length] = code << (32 - length);
        code <<= 1;
        length += 1;
    }
    tables
};

/// The most bytes that `length` coded bytes decode to: the shortest codes have 5 bits.
#[inline]
pub(super) const fn max_decoded(length: usize) -> usize {
    length * 8 / 5
}

/// Decodes `input` into the front of `out`, which holds [`max_decoded`] bytes at least, and returns the length.
/// `None` if it is not valid: EOS within, or padding that is not the beginning of EOS or a byte and more long.
pub(super) fn decode(input: &[u8], out: &mut [u8]) -> Option<usize> {
    let (mut window, mut bits, mut length) = (0u64, 0u32, 0usize);
    let mut input = input.iter();
    loop {
        while bits <= 56
            && let Some(byte) = input.next()
        {
            window |= u64::from(*byte) << (56 - bits);
            bits += 8;
        }
        let (symbol, size) = match TABLES.fast[(window >> (64 - FAST_BITS)) as usize] {
            (_, 0) => match long(window) {
                Some(found) => found,
                None => return is_padding(window, bits).then_some(length),
            },
            (symbol, size) => (symbol, u32::from(size)),
        };
        if size > bits {
            return is_padding(window, bits).then_some(length);
        }
        *out.get_mut(length)? = symbol;
        length += 1;
        window <<= size;
        bits -= size;
    }
}

/// The symbol of a code that is longer than the fast table's, and its length; `None` for EOS.
fn long(window: u64) -> Option<(u8, u32)> {
    let code = window >> 32;
    let length = (FAST_BITS + 1..=MAX_BITS).find(|length| code < TABLES.end[*length])?;
    let rank = (code >> (32 - length)) as i64 + TABLES.offset[length];
    let symbol = TABLES.sorted[usize::try_from(rank).ok()?];
    (symbol != EOS).then_some((symbol as u8, length as u32))
}

/// Whether the last `bits` bits may stand at the end.
fn is_padding(window: u64, bits: u32) -> bool {
    bits < 8 && (bits == 0 || window >> (64 - bits) == (1 << bits) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use octets::{Octets, OctetsMut};
    use proptest::prelude::*;

    fn ours(input: &[u8]) -> Option<Vec<u8>> {
        let mut out = vec![0; max_decoded(input.len())];
        let length = decode(input, &mut out)?;
        out.truncate(length);
        Some(out)
    }

    #[test]
    fn the_examples_of_rfc_7541_appendix_c() {
        for (text, coded) in [
            ("www.example.com", "f1e3c2e5f23a6ba0ab90f4ff"),
            ("no-cache", "a8eb10649cbf"),
            ("custom-key", "25a849e95ba97d7f"),
            ("302", "6402"),
            ("Mon, 21 Oct 2013 20:13:21 GMT", "d07abe941054d444a8200595040b8166e082a62d1bff"),
        ] {
            let bytes: Vec<u8> = (0..coded.len())
                .step_by(2)
                .map(|at| u8::from_str_radix(&coded[at..at + 2], 16).unwrap())
                .collect();
            assert_eq!(ours(&bytes).as_deref(), Some(text.as_bytes()));
        }
    }

    #[test]
    fn wrong_ends_are_refused() {
        assert_eq!(ours(&[]), Some(Vec::new()));
        assert_eq!(ours(&[0xff]), None, "a byte of padding");
        assert_eq!(ours(&[0b0000_0000]), None, "padding of zeros");
        assert_eq!(ours(&[0b0000_0111]), Some(b"0".to_vec()));
        assert_eq!(ours(&[0xff, 0xff, 0xff, 0xff]), None, "EOS");
        assert_eq!(ours(&[0xff, 0xff, 0xff, 0xfc, 0x07]), None, "EOS, then a zero");
    }

    proptest! {
        #[test]
        fn any_text_comes_back(text in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut coded = vec![0; text.len() * 4 + 8];
            let mut writer = OctetsMut::with_slice(&mut coded);
            writer.put_huffman_encoded::<false>(&text).unwrap();
            let length = writer.off();
            prop_assert_eq!(ours(&coded[..length]), Some(text));
        }

        #[test]
        fn any_input_decodes_as_another_decoder_has_it(input in prop::collection::vec(any::<u8>(), 0..60)) {
            let theirs = Octets::with_slice(&input).get_huffman_decoded().ok();
            let ours = ours(&input);
            prop_assert!(ours.is_none() || ours == theirs, "{ours:?} {theirs:?}");
        }
    }
}
