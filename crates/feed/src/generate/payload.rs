//! The content of payloads after the probe header.

use std::fmt;
use std::str::FromStr;

use expressway_netio::sim::Random;

/// What stands behind the probe header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pattern {
    /// Zeros.
    #[default]
    Zero,
    /// Bytes that a seed decides, the same in every datagram.
    Random,
    /// Each byte its own offset in the payload, modulo 256.
    Sequence,
}

impl Pattern {
    const NAMES: [(&'static str, Self); 3] =
        [("zero", Self::Zero), ("random", Self::Random), ("sequence", Self::Sequence)];
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(_, pattern)| pattern == self).map_or("", |(name, _)| name);
        f.write_str(name)
    }
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::NAMES.iter().find(|(name, _)| *name == text);
        found
            .map(|(_, pattern)| *pattern)
            .ok_or_else(|| format!("`{text}` is not one of zero, random, sequence"))
    }
}

/// The bytes of the longest payload; shorter ones are its beginning.
#[derive(Clone, Debug)]
pub struct Payload {
    bytes: Box<[u8]>,
}

impl Payload {
    /// `largest` bytes of a pattern.
    pub fn new(pattern: Pattern, largest: usize, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let bytes = match pattern {
            Pattern::Zero => vec![0; largest],
            Pattern::Random => {
                (0..largest.div_ceil(8)).flat_map(|_| random.next_u64().to_be_bytes()).take(largest).collect()
            }
            Pattern::Sequence => (0..largest).map(|offset| offset as u8).collect(),
        };
        Self { bytes: bytes.into() }
    }

    /// The bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_what_they_are_called() {
        assert_eq!(Payload::new(Pattern::Zero, 3, 1).bytes(), [0; 3]);
        let sequence = Payload::new(Pattern::Sequence, 258, 1);
        assert_eq!(
            (sequence.bytes()[..3].to_vec(), sequence.bytes()[256..].to_vec()),
            (vec![0, 1, 2], vec![0, 1])
        );
        let random = Payload::new(Pattern::Random, 1001, 1);
        assert_eq!(random.bytes(), Payload::new(Pattern::Random, 1001, 1).bytes());
        assert_ne!(random.bytes(), Payload::new(Pattern::Random, 1001, 2).bytes());
        assert_eq!(random.bytes().len(), 1001);
    }

    #[test]
    fn patterns_have_names() {
        for (name, pattern) in Pattern::NAMES {
            assert_eq!((name.parse(), pattern.to_string().as_str()), (Ok(pattern), name));
        }
        assert!("ones".parse::<Pattern>().is_err());
    }
}
