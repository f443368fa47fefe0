//! Sorted ranges of numbers, bounded in count, each with a value.

use std::collections::VecDeque;

/// The numbers from `first` up to, not including, `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range<T> {
    pub(crate) first: u64,
    pub(crate) end: u64,
    pub(crate) what: T,
}

/// Ranges that do not overlap, in order.
#[derive(Debug)]
pub(crate) struct Ranges<T> {
    ranges: VecDeque<Range<T>>,
}

impl<T> Default for Ranges<T> {
    fn default() -> Self {
        Self { ranges: VecDeque::new() }
    }
}

impl<T: Copy> Ranges<T> {
    pub(crate) fn len(&self) -> usize {
        self.ranges.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.ranges.clear();
    }

    pub(crate) fn front(&self) -> Option<&Range<T>> {
        self.ranges.front()
    }

    pub(crate) fn pop_front(&mut self) -> Option<Range<T>> {
        self.ranges.pop_front()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Range<T>> {
        self.ranges.iter()
    }

    /// Adds a range behind all others. Where there are `most` already and it adjoins the last, that is made
    /// longer instead.
    pub(crate) fn push(&mut self, first: u64, end: u64, what: T, most: usize) {
        debug_assert!(first < end && self.ranges.back().is_none_or(|last| last.end <= first));
        let full = self.ranges.len() >= most;
        match self.ranges.back_mut() {
            Some(last) if full && last.end == first => last.end = end,
            _ => self.ranges.push_back(Range { first, end, what }),
        }
    }

    /// Takes what lies below `limit` off the first range. The part taken.
    pub(crate) fn cut_front(&mut self, limit: u64) -> Option<Range<T>> {
        let front = self.ranges.front_mut()?;
        if front.end <= limit {
            return self.ranges.pop_front();
        }
        let part = Range { end: limit, ..*front };
        front.first = limit;
        (part.first < part.end).then_some(part)
    }

    /// Takes one number out. What was known of it; `None` if it is in no range.
    pub(crate) fn remove(&mut self, number: u64) -> Option<T> {
        let index = self.ranges.partition_point(|range| range.end <= number);
        let range = self.ranges.get_mut(index).filter(|range| range.first <= number)?;
        let what = range.what;
        let behind = Range { first: number + 1, ..*range };
        range.end = number;
        let (before_is_left, behind_is_left) = (range.first < number, behind.first < behind.end);
        match (before_is_left, behind_is_left) {
            (true, true) => self.ranges.insert(index + 1, behind),
            (true, false) => {}
            (false, true) => self.ranges[index] = behind,
            (false, false) => {
                self.ranges.remove(index);
            }
        }
        Some(what)
    }

    /// The first numbers that are both in a range and in `first..end`.
    pub(crate) fn overlap(&self, first: u64, end: u64) -> Option<(u64, u64)> {
        let index = self.ranges.partition_point(|range| range.end <= first);
        let range = self.ranges.get(index).filter(|range| range.first < end)?;
        Some((range.first.max(first), range.end.min(end)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(ranges: &Ranges<()>) -> Vec<(u64, u64)> {
        ranges.iter().map(|range| (range.first, range.end)).collect()
    }

    #[test]
    fn numbers_are_taken_out_at_both_ends_and_in_the_middle() {
        let mut ranges = Ranges::default();
        ranges.push(10, 20, (), 9);
        ranges.push(30, 31, (), 9);
        for number in [10, 19, 15, 30, 15, 9, 20] {
            let there = (10..20).contains(&number) || number == 30;
            let first_time = pairs(&ranges).iter().any(|(first, end)| (*first..*end).contains(&number));
            assert_eq!(ranges.remove(number).is_some(), there && first_time, "{number}");
        }
        assert_eq!(pairs(&ranges), [(11, 15), (16, 19)]);
        assert_eq!(ranges.overlap(0, 11), None);
        assert_eq!(ranges.overlap(14, 18), Some((14, 15)));
        assert_eq!(ranges.overlap(15, 18), Some((16, 18)));
    }

    #[test]
    fn the_count_is_bounded_by_growing_the_last() {
        let mut ranges = Ranges::default();
        for first in 0..5 {
            ranges.push(first, first + 1, (), 2);
        }
        assert_eq!(pairs(&ranges), [(0, 1), (1, 5)]);
        assert_eq!(ranges.cut_front(9).map(|range| range.end), Some(1));
        assert_eq!(ranges.cut_front(3).map(|range| (range.first, range.end)), Some((1, 3)));
        assert_eq!(pairs(&ranges), [(3, 5)]);
        assert_eq!(ranges.cut_front(3), None);
    }
}
