//! Variable-length integers (RFC 9000, section 16).

/// The largest value.
pub const MAX: u64 = (1 << 62) - 1;

/// The most bytes that one takes.
pub const MAX_LEN: usize = 8;

/// The length of the integer that begins with `first`, in bytes.
#[inline]
pub const fn len_of(first: u8) -> usize {
    1 << (first >> 6)
}

/// The integer at the front of `input` and its length in bytes; `None` if there is not all of it.
#[inline]
pub fn read(input: &[u8]) -> Option<(u64, usize)> {
    let first = *input.first()?;
    let length = len_of(first);
    let bytes = input.get(1..length)?;
    let value = bytes.iter().fold(u64::from(first & 0x3f), |value, byte| value << 8 | u64::from(*byte));
    Some((value, length))
}

/// The integer that `input` consists of; `None` if it is anything else.
pub fn read_only(input: &[u8]) -> Option<u64> {
    read(input).filter(|(_, length)| *length == input.len()).map(|(value, _)| value)
}

/// Appends `value`, which is at most [`MAX`], in its shortest form.
#[inline]
pub fn write(value: u64, out: &mut Vec<u8>) {
    debug_assert!(value <= MAX);
    match value {
        0..=0x3f => out.push(value as u8),
        0x40..=0x3fff => out.extend_from_slice(&(value as u16 | 1 << 14).to_be_bytes()),
        0x4000..=0x3fff_ffff => out.extend_from_slice(&(value as u32 | 2 << 30).to_be_bytes()),
        _ => out.extend_from_slice(&(value & MAX | 3 << 62).to_be_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_rfc_9000_appendix_a_1() {
        for (bytes, value) in [
            (&[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c][..], 151_288_809_941_952_652),
            (&[0x9d, 0x7f, 0x3e, 0x7d], 494_878_333),
            (&[0x7b, 0xbd], 15_293),
            (&[0x25], 37),
        ] {
            assert_eq!(read(bytes), Some((value, bytes.len())));
            assert_eq!(read(&bytes[..bytes.len() - 1]), None);
            let mut out = Vec::new();
            write(value, &mut out);
            assert_eq!(out, bytes);
        }
        assert_eq!(read(&[0x40, 0x25]), Some((37, 2)));
        assert_eq!(read_only(&[0x25, 0]), None);
    }

    #[test]
    fn the_edges_of_each_length_come_back() {
        for value in [0, 0x3f, 0x40, 0x3fff, 0x4000, 0x3fff_ffff, 0x4000_0000, MAX] {
            let mut out = Vec::new();
            write(value, &mut out);
            assert_eq!(read_only(&out), Some(value));
        }
    }
}
