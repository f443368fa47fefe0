//! Prefixed integers (RFC 9204, section 4.1.1; RFC 7541, section 5.1).

/// The integer of an N-bit prefix at the front of `input`, whose bytes are taken. `None` if it is cut short
/// or longer than 62 bits.
#[inline]
pub(super) fn read(input: &mut &[u8], bits: u32) -> Option<u64> {
    let (first, mut rest) = input.split_first()?;
    let full = (1u64 << bits) - 1;
    let mut value = u64::from(*first) & full;
    if value == full {
        let mut shift = 0;
        loop {
            let (byte, after) = rest.split_first()?;
            rest = after;
            // Nine groups of seven bits hold all values, and any that do not fit have a tenth or a high bit.
            if shift > 56 {
                return None;
            }
            value += u64::from(byte & 0x7f) << shift;
            if value >> 62 != 0 {
                return None;
            }
            if byte & 0x80 == 0 {
                break;
            }
            shift += 7;
        }
    }
    *input = rest;
    Some(value)
}

/// Appends `value` behind `flags` in the first byte, which leave an N-bit prefix.
#[inline]
pub(super) fn write(mut value: u64, flags: u8, bits: u32, out: &mut Vec<u8>) {
    let full = (1u64 << bits) - 1;
    if value < full {
        out.push(flags | value as u8);
        return;
    }
    out.push(flags | full as u8);
    value -= full;
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_examples_of_rfc_7541_appendix_c_1() {
        for (value, bits, bytes) in [(10, 5, &[0x0a][..]), (1337, 5, &[0x1f, 0x9a, 0x0a]), (42, 8, &[0x2a])] {
            let mut out = Vec::new();
            write(value, 0, bits, &mut out);
            assert_eq!(out, bytes);
            let mut input = bytes;
            assert_eq!(read(&mut input, bits), Some(value));
            assert!(input.is_empty());
        }
    }

    #[test]
    fn integers_that_are_cut_or_too_large_are_refused() {
        for bytes in [&[][..], &[0xff], &[0xff, 0x80], &[0xff; 11]] {
            assert_eq!(read(&mut &bytes[..], 8), None, "{bytes:?}");
        }
        // 2^62 and a bit more; zeros behind it that would be harmless are too long all the same.
        let over = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f];
        assert_eq!(read(&mut &over[..], 8), None);
        let padded = [0x1f, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x00];
        assert_eq!(read(&mut &padded[..], 5), None);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(value in 0u64..1 << 62, bits in 1u32..=8) {
            let mut out = Vec::new();
            write(value, 0, bits, &mut out);
            let mut input = out.as_slice();
            prop_assert_eq!(read(&mut input, bits), Some(value));
            prop_assert!(input.is_empty());
        }
    }
}
