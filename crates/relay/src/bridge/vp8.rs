//! VP8 in RTP (RFC 7741) to frames.

use super::frames::Malformed;

/// What a key frame has in front (RFC 6386, section 9.1): a tag, a start code, and its size.
const KEY_HEAD: usize = 10;
const START_CODE: [u8; 3] = [0x9d, 0x01, 0x2a];

/// A packet's payload without its descriptor (section 4.2), and whether a frame begins with it.
///
/// # Errors
/// It is none.
pub(super) fn parse(payload: &[u8]) -> Result<(&[u8], bool), Malformed> {
    let (&first, mut rest) = payload.split_first().ok_or(Malformed)?;
    let mut take = |count: usize| {
        let (taken, left) = rest.split_at_checked(count).ok_or(Malformed)?;
        rest = left;
        Ok(taken)
    };
    // X: there is an octet that says what else there is: I, L, T and K.
    if first & 0x80 != 0 {
        let kinds = take(1)?[0];
        // I, and M: a number of two octets.
        if kinds & 0x80 != 0 && take(1)?[0] & 0x80 != 0 {
            take(1)?;
        }
        if kinds & 0x40 != 0 {
            take(1)?;
        }
        if kinds & 0x30 != 0 {
            take(1)?;
        }
    }
    // S, and the number of the partition.
    let begins = first & 0x17 == 0x10;
    if rest.is_empty() { Err(Malformed) } else { Ok((rest, begins)) }
}

/// Width and height of a key frame; `None`: it is no key frame.
///
/// # Errors
/// It should be one, and is none.
pub(super) fn size(frame: &[u8]) -> Result<Option<(u16, u16)>, Malformed> {
    let first = *frame.first().ok_or(Malformed)?;
    if first & 1 != 0 {
        return Ok(None);
    }
    let head = frame.first_chunk::<KEY_HEAD>().ok_or(Malformed)?;
    if head[3..6] != START_CODE {
        return Err(Malformed);
    }
    // Two bits of each say how to scale.
    let side = |low: u8, high: u8| u16::from_le_bytes([low, high]) & 0x3fff;
    Ok(Some((side(head[6], head[7]), side(head[8], head[9]))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_passed_in_any_form() {
        for (descriptor, begins) in [
            (&[0x10][..], true),
            (&[0x00], false),
            (&[0x11], false),
            (&[0x90, 0x00], true),
            (&[0x90, 0x80, 0x11], true),
            (&[0x90, 0x80, 0x81, 0x11], true),
            (&[0x90, 0xe0, 0x81, 0x11, 7, 0x20], true),
            (&[0x80, 0xf0, 0x01, 7, 0x20], false),
        ] {
            let payload = [descriptor, b"xyz"].concat();
            assert_eq!(parse(&payload), Ok((&b"xyz"[..], begins)), "{descriptor:x?}");
            for length in 0..=descriptor.len() {
                assert_eq!(parse(&payload[..length]), Err(Malformed), "{length} of {descriptor:x?}");
            }
        }
    }

    #[test]
    fn a_key_frame_says_its_size() {
        let frame = [0x10, 0, 0, 0x9d, 0x01, 0x2a, 0x80, 0x42, 0xe0, 0x81];
        assert_eq!(size(&frame), Ok(Some((640, 480))));
        assert_eq!(size(&frame[..9]), Err(Malformed));
        assert_eq!(size(&[0x11]), Ok(None));
        assert_eq!(size(&[0x10, 0, 0, 1, 2, 3, 4, 5, 6, 7]), Err(Malformed));
    }
}
