//! Packet indices (RFC 3711, section 3.3.1): a sequence number extended by the number of wraps, and which indices
//! were seen before.

/// Packets behind the latest that may still come, once (RFC 3711, section 3.3.2: 64 at least). Repairs come late.
const WIDTH: u64 = 1024;
const WORDS: usize = (WIDTH / 64) as usize;

/// The indices of a stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    highest: u64,
    /// Those that came, one bit each, by the index modulo the width.
    seen: [u64; WORDS],
}

impl Window {
    /// Of a stream whose first packet has that index.
    pub(super) fn new(index: u64) -> Self {
        let mut window = Self { highest: index, seen: [0; WORDS] };
        window.set(index);
        window
    }

    /// The index of a sequence number: the one next to the highest.
    pub(super) fn index(&self, sequence: u16) -> u64 {
        let ahead = i64::from(sequence.wrapping_sub(self.highest as u16) as i16);
        // None is before the first wrap.
        self.highest.checked_add_signed(ahead).unwrap_or(u64::from(sequence))
    }

    /// Whether a packet of that index may come: it is not too old, and none came.
    pub(super) fn is_new(&self, index: u64) -> bool {
        let (word, bit) = place(index);
        index > self.highest || self.highest - index < WIDTH && self.seen[word] & bit == 0
    }

    /// It has come.
    pub(super) fn note(&mut self, index: u64) {
        for skipped in self.highest + 1..=index.min(self.highest + WIDTH) {
            let (word, bit) = place(skipped);
            self.seen[word] &= !bit;
        }
        if index > self.highest + WIDTH {
            self.seen = [0; WORDS];
        }
        self.highest = self.highest.max(index);
        self.set(index);
    }

    fn set(&mut self, index: u64) {
        let (word, bit) = place(index);
        self.seen[word] |= bit;
    }
}

fn place(index: u64) -> (usize, u64) {
    ((index % WIDTH / 64) as usize, 1 << (index % 64))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_wrap() {
        let mut window = Window::new(65_530);
        assert_eq!(window.index(65_535), 65_535);
        assert_eq!(window.index(3), 65_539);
        window.note(65_539);
        assert_eq!((window.index(65_535), window.index(4)), (65_535, 65_540));
        assert_eq!(Window::new(2).index(65_535), 65_535, "there is nothing before the first");
    }

    proptest! {
        #[test]
        fn each_comes_once_and_none_too_late(steps in prop::collection::vec(0u64..3000, 1..200)) {
            let mut window = Window::new(5000);
            let mut came = std::collections::HashSet::from([5000u64]);
            let mut highest = 5000u64;
            for step in steps {
                let index = (highest + step).saturating_sub(1500);
                let expected = !came.contains(&index) && index + WIDTH > highest;
                prop_assert_eq!(window.is_new(index), expected, "{} of {}", index, highest);
                if expected {
                    window.note(index);
                    came.insert(index);
                    highest = highest.max(index);
                }
            }
        }
    }
}
