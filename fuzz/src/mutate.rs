//! Mutations that look for cost: whatever is quadratic needs many members, and random bytes seldom make many.

/// Bytes that separate members in what strangers send.
const SEPARATORS: &[u8] = b",;/.&=:- \n\r\"%#\0";

/// A small generator (xorshift64*), so that a mutation is a function of its seed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let word = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d);
        ((u128::from(word) * end.max(1) as u128) >> 64) as usize
    }
}

/// Mutates `data[..size]` in place, and returns its new size, `data.len()` at most. A third of the time it repeats a member;
/// else `fallback` does as it likes.
pub fn mutate(
    data: &mut [u8],
    size: usize,
    seed: u32,
    fallback: impl FnOnce(&mut [u8], usize) -> usize,
) -> usize {
    let mut random = Random(u64::from(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    random.below(1);
    if size == 0 || size >= data.len() || random.below(3) > 0 {
        return fallback(data, size);
    }
    let (start, end) = member(&data[..size], &mut random);
    let room = (data.len() - size) / (end - start);
    // As often a few as very many.
    let most = 1 << random.below(17);
    let times = (1 + random.below(most)).min(room);
    if times == 0 {
        return fallback(data, size);
    }
    let counts = random.below(3) == 0;
    repeat(data, size, (start, end), times, counts.then(|| start + random.below(end - start)))
}

/// What is repeated: bytes up to a separator and that, or any few.
fn member(data: &[u8], random: &mut Random) -> (usize, usize) {
    let at = random.below(data.len());
    if random.below(2) == 0 {
        let separator = SEPARATORS[random.below(SEPARATORS.len())];
        let found = |byte: &u8| *byte == separator;
        let start = data[..at].iter().rposition(found).map_or(0, |before| before + 1);
        if let Some(length) = data[start..].iter().position(found) {
            return (start, start + length + 1);
        }
    }
    let most = 1 << random.below(8);
    let length = 1 + random.below(most);
    (at, (at + length).min(data.len()))
}

/// Inserts `data[start..end]` so many times behind itself. `counter`: a byte of it that is one more in each copy.
fn repeat(
    data: &mut [u8],
    size: usize,
    (start, end): (usize, usize),
    times: usize,
    counter: Option<usize>,
) -> usize {
    let length = end - start;
    data.copy_within(end..size, end + length * times);
    for copy in 1..=times {
        let to = start + length * copy;
        data.copy_within(start..end, to);
        if let Some(counter) = counter {
            data[to + counter - start] = data[counter].wrapping_add(copy as u8);
        }
    }
    size + length * times
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_repeated_in_place() {
        let mut data = *b"a,b,c...........";
        assert_eq!(repeat(&mut data, 5, (2, 4), 3, None), 11);
        assert_eq!(&data[..11], b"a,b,b,b,b,c");
        let mut data = *b"x1y.....";
        assert_eq!(repeat(&mut data, 3, (0, 2), 2, Some(1)), 7);
        assert_eq!(&data[..7], b"x1x2x3y");
    }

    #[test]
    fn a_mutation_stays_within_its_room_and_repeats_by_its_seed() {
        let (mut longest, mut repeated) = (0, 0);
        for seed in 0..5000 {
            let run = || {
                let mut data = [b'.'; 4096];
                data[..12].copy_from_slice(b"a: \"b\", \"c\";");
                let size = mutate(&mut data, 12, seed, |_, size| size);
                assert!(data[size..].iter().all(|byte| *byte == b'.'));
                data[..size].to_vec()
            };
            let made = run();
            assert_eq!(made, run());
            longest = longest.max(made.len());
            repeated += usize::from(made.len() > 12);
        }
        assert!(longest > 4000 && repeated > 1000, "{longest} {repeated}");
    }
}
