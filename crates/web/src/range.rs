//! The `range` header: byte ranges with nginx's reading of RFC 9110, 14.

use std::ops::Range;

use crate::scan::{last_position, looked_at, position};

/// What a `range` header asks of a representation of known length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ranges {
    /// The whole, as if there were no `range`: another unit, too many ranges, or ranges that together are
    /// longer than the whole.
    Whole,
    /// Nothing that exists, or not a range set: 416.
    Unsatisfiable,
    /// These, in the order asked for; at least one, none empty, each within the representation.
    Parts(Vec<Range<u64>>),
}

impl Ranges {
    /// Reads `value` for a representation of `length` octets, of which at most `max` ranges are served.
    ///
    /// Differences between RFC 9110 and nginx are settled as nginx does: a malformed set is 416, ranges are
    /// neither merged nor reordered, and a set that adds up to more than the whole is answered with the
    /// whole, which is what bounds the amplification of overlapping ranges.
    pub fn parse(value: &[u8], length: u64, max: usize) -> Self {
        let Some((unit, set)) = value.split_at_checked(6) else { return Self::Whole };
        if !unit.eq_ignore_ascii_case(b"bytes=") || set.is_empty() {
            return Self::Whole;
        }
        let mut parts = Vec::new();
        let mut total = 0_u64;
        for spec in set.split(|&b| b == b',') {
            let Some(range) = parse_spec(spec, length) else { return Self::Unsatisfiable };
            if range.start < range.end {
                total = total.saturating_add(range.end - range.start);
                if parts.len() == max {
                    return Self::Whole;
                }
                parts.push(range);
            } else if range.start == 0 {
                // Only `0-` or a suffix of an empty file gets here, or a last position before the first.
                return Self::Whole;
            }
        }
        match parts.len() {
            0 => Self::Unsatisfiable,
            _ if total > length => Self::Whole,
            _ => Self::Parts(parts),
        }
    }
}

/// Reads `first-last`, `first-` or `-suffix`; the result may be empty or inverted. `None` if malformed.
fn parse_spec(spec: &[u8], length: u64) -> Option<Range<u64>> {
    let spec = trim_spaces(spec);
    let dash = position(spec, |b| b == b'-')?;
    let (first, last) = (trim_end(&spec[..dash]), &spec[dash + 1..]);
    if first.is_empty() {
        // No space may stand between the dash and a suffix length.
        let suffix = parse_number(last)?;
        return Some(length.saturating_sub(suffix)..length);
    }
    let start = parse_number(first)?;
    let last = trim_spaces(last);
    if last.is_empty() {
        return Some(start..length);
    }
    let end = parse_number(last)?;
    Some(start..if end >= length { length } else { end + 1 })
}

fn parse_number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    looked_at(digits.len());
    digits.iter().try_fold(0_u64, |number, &digit| {
        let digit = char::from(digit).to_digit(10)?;
        number.checked_mul(10)?.checked_add(u64::from(digit)).filter(|&n| n <= i64::MAX as u64)
    })
}

fn trim_spaces(text: &[u8]) -> &[u8] {
    let start = position(text, |b| b != b' ').unwrap_or(text.len());
    trim_end(&text[start..])
}

fn trim_end(text: &[u8]) -> &[u8] {
    let end = last_position(text, |b| b != b' ').map_or(0, |last| last + 1);
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scan::assert_linear;
    use proptest::prelude::*;

    fn parts(ranges: &[(u64, u64)]) -> Ranges {
        Ranges::Parts(ranges.iter().map(|&(start, end)| start..end).collect())
    }

    #[test]
    fn reads_what_rfc_9110_shows() {
        for (value, expected) in [
            ("bytes=0-499", parts(&[(0, 500)])),
            ("bytes=500-999", parts(&[(500, 1000)])),
            ("bytes=-500", parts(&[(9500, 10000)])),
            ("bytes=9500-", parts(&[(9500, 10000)])),
            ("bytes=0-0,-1", parts(&[(0, 1), (9999, 10000)])),
            ("bytes=500-600,601-999", parts(&[(500, 601), (601, 1000)])),
            ("bytes=500-700, 601-999", parts(&[(500, 701), (601, 1000)])),
            ("BYTES=0-0", parts(&[(0, 1)])),
            ("bytes= 0 - 1 , 3-", parts(&[(0, 2), (3, 10000)])),
            ("bytes=0-99999", parts(&[(0, 10000)])),
            ("bytes=-99999", parts(&[(0, 10000)])),
            ("bytes=10000-,0-0", parts(&[(0, 1)])),
        ] {
            // `3-` with `0-1` stays below the whole, so no case is caught by the sum.
            assert_eq!(Ranges::parse(value.as_bytes(), 10_000, 9), expected, "{value}");
        }
    }

    #[test]
    fn unsatisfiable_and_malformed_sets_are_refused() {
        for value in [
            "bytes=10000-",
            "bytes=5-4",
            "bytes=a-b",
            "bytes=0",
            "bytes=0-1-2",
            "bytes=,",
            "bytes=0-1,",
            "bytes=- 5",
            "bytes=0x1-2",
            "bytes=99999999999999999999-",
            "bytes=0-99999999999999999999",
            "bytes=-",
        ] {
            assert_eq!(Ranges::parse(value.as_bytes(), 10_000, 9), Ranges::Unsatisfiable, "{value}");
        }
    }

    #[test]
    fn the_whole_answers_what_is_too_much_or_of_another_unit() {
        for value in ["", "bytes=", "items=0-5", "bytes 0-5", "bytes=0-,0-0", "bytes=0-0,1-1,2-2,3-3"] {
            assert_eq!(Ranges::parse(value.as_bytes(), 10_000, 3), Ranges::Whole, "{value}");
        }
        assert_eq!(Ranges::parse(b"bytes=0-", 0, 3), Ranges::Whole);
        assert_eq!(Ranges::parse(b"bytes=-5", 0, 3), Ranges::Whole);
        assert_eq!(Ranges::parse(b"bytes=1-", 0, 3), Ranges::Unsatisfiable);
    }

    #[test]
    fn a_set_is_read_once_whatever_is_in_it() {
        for spec in
            ["0-0,", "9-,", "99999999999999-,", "-1,", " 5 - 6 ,", "0-0 ", "   ", "9", "1-1,            "]
        {
            let set = |size: usize| format!("bytes={}0-0", spec.repeat(size / spec.len())).into_bytes();
            assert_linear(spec, 6, set, |set| {
                for max in [0, 200, usize::MAX] {
                    Ranges::parse(set, 100, max);
                }
            });
        }
    }

    proptest! {
        #[test]
        fn parts_stay_within_the_whole(value in "bytes=[0-9, -]{0,40}", length in 0_u64..200, max in 0_usize..5) {
            if let Ranges::Parts(parts) = Ranges::parse(value.as_bytes(), length, max) {
                prop_assert!(!parts.is_empty() && parts.len() <= max);
                prop_assert!(parts.iter().all(|part| part.start < part.end && part.end <= length));
                prop_assert!(parts.iter().map(|part| part.end - part.start).sum::<u64>() <= length);
            }
        }

        #[test]
        fn any_octets_are_read_without_panic(value in prop::collection::vec(any::<u8>(), 0..64), length: u64) {
            Ranges::parse(&[b"bytes=", &value[..]].concat(), length.min(i64::MAX as u64), 8);
        }

        #[test]
        fn a_plain_range_means_itself(first in 0_u64..1000, extra in 0_u64..1000) {
            let value = format!("bytes={first}-{}", first + extra);
            prop_assert_eq!(Ranges::parse(value.as_bytes(), 5000, 1), parts(&[(first, first + extra + 1)]));
        }
    }
}
