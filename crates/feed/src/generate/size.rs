//! The lengths of payloads.

use std::fmt;
use std::str::FromStr;

use expressway_netio::sim::Random;
use expressway_netio::udp::MAX_PAYLOAD;

use crate::probe::Probe;

/// Lengths of UDP payloads, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// All alike.
    Fixed(usize),
    /// Any length from the first to the second, both included, all as likely.
    Range(usize, usize),
    /// "Simple IMIX": of twelve packets seven of 40 bytes, four of 576 and one of 1500, counted from the IPv4 header,
    /// in random order. 40 bytes would not hold the probe header; those have as many as do.
    Imix,
}

/// IPv4 and UDP header.
const HEADERS: usize = 28;
const IMIX_MIDDLE: usize = 576 - HEADERS;
const IMIX_LONG: usize = 1500 - HEADERS;

impl Sizes {
    /// A length.
    #[inline]
    pub fn draw(&self, random: &mut Random) -> usize {
        match *self {
            Self::Fixed(size) => size,
            Self::Range(least, most) => least + random.below((most - least + 1) as u64) as usize,
            Self::Imix => match random.below(12) {
                0..7 => Probe::LENGTH,
                7..11 => IMIX_MIDDLE,
                _ => IMIX_LONG,
            },
        }
    }

    /// The longest that is drawn.
    pub fn largest(&self) -> usize {
        match *self {
            Self::Fixed(size) | Self::Range(_, size) => size,
            Self::Imix => IMIX_LONG,
        }
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(size) => write!(f, "{size}"),
            Self::Range(least, most) => write!(f, "{least}-{most}"),
            Self::Imix => f.write_str("imix"),
        }
    }
}

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| {
            text.parse::<usize>()
                .map_err(|_| format!("`{text}` is not a size: use a number of bytes, MIN-MAX or imix"))
        };
        let sizes = match text.split_once('-') {
            _ if text == "imix" => return Ok(Self::Imix),
            Some((least, most)) => Self::Range(number(least)?, number(most)?),
            None => Self::Fixed(number(text)?),
        };
        let least = match sizes {
            Self::Fixed(size) | Self::Range(size, _) => size,
            Self::Imix => Probe::LENGTH,
        };
        if least < Probe::LENGTH {
            return Err(format!(
                "{least} bytes of payload are too few for the sequence number and timestamp, which need {}",
                Probe::LENGTH
            ));
        }
        if sizes.largest() > MAX_PAYLOAD {
            return Err(format!("{} bytes: a UDP payload has at most {MAX_PAYLOAD}", sizes.largest()));
        }
        if sizes.largest() < least {
            return Err(format!("`{text}`: the first size must be the smaller one"));
        }
        Ok(sizes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_they_are_written() {
        for (text, sizes) in
            [("64", Sizes::Fixed(64)), ("24-1472", Sizes::Range(24, 1472)), ("imix", Sizes::Imix)]
        {
            assert_eq!(text.parse(), Ok(sizes));
            assert_eq!(sizes.to_string(), text);
        }
        for (text, part) in [
            ("", "not a size"),
            ("1k", "not a size"),
            ("23", "need 24"),
            ("10-100", "need 24"),
            ("100-64", "smaller one"),
            ("65508", "at most 65507"),
            ("24-65508", "at most 65507"),
        ] {
            let error = text.parse::<Sizes>().unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn draws_stay_in_their_bounds_and_reach_them() {
        let mut random = Random::new(1);
        let drawn: Vec<usize> = (0..10_000).map(|_| Sizes::Range(30, 39).draw(&mut random)).collect();
        assert_eq!((drawn.iter().min(), drawn.iter().max()), (Some(&30), Some(&39)));
        assert_eq!(Sizes::Fixed(64).draw(&mut random), 64);
    }

    #[test]
    fn imix_has_its_shares() {
        let mut random = Random::new(1);
        let mut count = [0u32; 3];
        for _ in 0..120_000 {
            match Sizes::Imix.draw(&mut random) {
                24 => count[0] += 1,
                548 => count[1] += 1,
                1472 => count[2] += 1,
                other => panic!("{other}"),
            }
        }
        for (seen, expected) in count.into_iter().zip([70_000u32, 40_000, 10_000]) {
            assert!(seen.abs_diff(expected) < 1000, "{count:?}");
        }
    }
}
