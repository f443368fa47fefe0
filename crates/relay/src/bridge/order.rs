//! Packets of a stream in the order of their sequence numbers.
//!
//! Packets stay in the room's history; here are only numbers. A packet that is missing is waited for as long as it may be late or sent
//! again, and no more than [`WINDOW`] packets wait behind it, or as many as the caller allows if those are fewer.

use std::time::{Duration, Instant};

use crate::rtp::history::Position;

/// Packets that wait behind one that is missing at most: of 1,200 bytes each, 100 ms of 50 Mbit/s.
pub const WINDOW: u16 = 512;
/// Packets by which one may come too late (`MAX_DROPOUT` of RFC 3550, appendix A.1, the other way): of those further behind the sender has
/// begun anew.
const BEHIND: u16 = 3000;
/// After so long without any other, packets that seem late are those of a sender that has begun anew.
const STUCK: Duration = Duration::from_secs(1);

/// What is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// This packet.
    Packet(Position),
    /// So many packets do not come any more; then what is behind them. After a jump nobody knows how many: 1.
    Lost(u16),
    /// Nothing yet.
    Wait,
}

/// How a packet has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It is the next, or will be.
    InTime,
    /// It was given up.
    Late,
}

/// How far a stream is.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    /// The next number.
    next: u16,
    /// Behind the highest number that has come.
    end: u16,
    /// Packets before this place are not of this run of numbers.
    floor: Position,
    /// Since when the next one is missing.
    missing_since: Option<Instant>,
    /// When a packet last came in time.
    last: Instant,
    /// Packets were lost that nobody has been told of.
    has_lost: bool,
}

impl Order {
    /// Begins with a packet.
    pub fn new(sequence: u16, position: Position, now: Instant) -> Self {
        let (next, end, floor) = (sequence, sequence.wrapping_add(1), position);
        Self { next, end, floor, missing_since: None, last: now, has_lost: false }
    }

    /// A packet has come, which is at `position`.
    pub fn note(&mut self, sequence: u16, position: Position, now: Instant) -> Arrival {
        let (ahead, behind) = (sequence.wrapping_sub(self.next), self.next.wrapping_sub(sequence));
        let is_stuck = now.saturating_duration_since(self.last) > STUCK;
        if ahead < WINDOW {
            let waiting = self.end.wrapping_sub(self.next);
            self.end = self.next.wrapping_add(waiting.max(ahead + 1));
        } else if behind <= BEHIND && !is_stuck {
            return Arrival::Late;
        } else {
            *self = Self { has_lost: true, ..Self::new(sequence, position, now) };
        }
        self.last = now;
        Arrival::InTime
    }

    /// What is next, for a packet that is waited for as long as `patience`, and while no more than `most` others wait behind it. `find` says
    /// where the packet of a number is.
    pub fn next(
        &mut self,
        find: impl Fn(u16) -> Option<Position>,
        (most, patience): (usize, Duration),
        now: Instant,
    ) -> Next {
        if std::mem::take(&mut self.has_lost) {
            return Next::Lost(1);
        }
        if self.next == self.end {
            return Next::Wait;
        }
        let find = |sequence: u16| find(sequence).filter(|position| *position >= self.floor);
        if let Some(position) = find(self.next) {
            self.next = self.next.wrapping_add(1);
            self.missing_since = None;
            return Next::Packet(position);
        }
        let since = *self.missing_since.get_or_insert(now);
        let is_full = usize::from(self.end.wrapping_sub(self.next)) >= most.min(WINDOW.into());
        if !is_full && now.saturating_duration_since(since) < patience {
            return Next::Wait;
        }
        // Each number is passed once.
        let first = self.next;
        while self.next != self.end && find(self.next).is_none() {
            self.next = self.next.wrapping_add(1);
        }
        self.missing_since = None;
        Next::Lost(self.next.wrapping_sub(first))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const PATIENCE: Duration = Duration::from_millis(100);

    /// Numbers that have come, each with its place.
    struct Bed {
        order: Option<Order>,
        most: usize,
        kept: BTreeMap<u16, Position>,
        head: Position,
        /// Numbers, and how many were lost between.
        taken: Vec<Result<u16, u16>>,
    }

    impl Default for Bed {
        fn default() -> Self {
            let (order, kept, taken) = (None, BTreeMap::new(), Vec::new());
            Self { order, most: usize::MAX, kept, head: 0, taken }
        }
    }

    impl Bed {
        fn come(&mut self, sequence: u16, now: Instant) -> Arrival {
            let position = self.head;
            self.head += 1;
            self.kept.insert(sequence, position);
            let arrival = match &mut self.order {
                Some(order) => order.note(sequence, position, now),
                None => {
                    self.order = Some(Order::new(sequence, position, now));
                    Arrival::InTime
                }
            };
            self.take(now);
            arrival
        }

        fn take(&mut self, now: Instant) {
            let Some(order) = &mut self.order else { return };
            let by_place: BTreeMap<_, _> = self.kept.iter().map(|(number, at)| (*at, *number)).collect();
            loop {
                match order.next(|number| self.kept.get(&number).copied(), (self.most, PATIENCE), now) {
                    Next::Packet(position) => self.taken.push(Ok(by_place[&position])),
                    Next::Lost(count) => self.taken.push(Err(count)),
                    Next::Wait => break,
                }
            }
        }
    }

    #[test]
    fn what_is_missing_is_waited_for_and_then_lost() {
        let (mut bed, start) = (Bed::default(), Instant::now());
        for number in [65_534, 65_535, 1, 2] {
            bed.come(number, start);
        }
        assert_eq!(bed.taken, [Ok(65_534), Ok(65_535)]);
        bed.come(0, start + PATIENCE / 2);
        assert_eq!(bed.taken.len(), 5, "it was only late");
        bed.come(5, start + PATIENCE);
        bed.come(6, start + PATIENCE * 3 / 2);
        assert_eq!(bed.taken.len(), 5);
        bed.take(start + PATIENCE * 2);
        assert_eq!(bed.taken[5..], [Err(2), Ok(5), Ok(6)]);
        assert_eq!(bed.come(4, start + PATIENCE * 2), Arrival::Late);
        assert_eq!(bed.taken.len(), 8, "it was given up");
    }

    #[test]
    fn no_more_than_a_window_waits() {
        let (mut bed, start) = (Bed::default(), Instant::now());
        bed.come(0, start);
        (2..WINDOW).for_each(|number| _ = bed.come(number, start));
        assert_eq!(bed.taken.len(), 1);
        bed.come(WINDOW, start);
        assert_eq!(bed.taken.len(), 1 + 1 + usize::from(WINDOW) - 1);
    }

    #[test]
    fn no_more_waits_than_a_short_history_keeps() {
        let (mut bed, start) = (Bed { most: 8, ..Bed::default() }, Instant::now());
        bed.come(0, start);
        (2..8).for_each(|number| _ = bed.come(number, start));
        assert_eq!(bed.taken, [Ok(0)]);
        bed.come(8, start);
        assert_eq!(bed.taken[..3], [Ok(0), Err(1), Ok(2)]);
        assert_eq!(bed.taken.len(), 2 + 7);
    }

    #[test]
    fn a_sender_that_begins_anew_is_followed_and_nothing_old_comes_again() {
        let (mut bed, start) = (Bed::default(), Instant::now());
        (1000..1010).for_each(|number| _ = bed.come(number, start));
        bed.come(20_000, start);
        assert_eq!(bed.taken[10..], [Err(1), Ok(20_000)]);
        // Back to numbers that are kept from before.
        bed.come(1005, start);
        assert_eq!(bed.taken[12..], [Err(1), Ok(1005)], "1006 is the former one's");
        // A little back: late at first.
        assert_eq!(bed.come(900, start), Arrival::Late);
        let later = start + STUCK + PATIENCE;
        assert_eq!(bed.come(901, later), Arrival::InTime);
        assert_eq!(bed.taken[14..], [Err(1), Ok(901)]);
    }

    proptest! {
        #[test]
        fn what_comes_within_the_window_is_in_order_and_whole(
            first in any::<u16>(),
            count in 1..400u16,
            swaps in prop::collection::vec((any::<prop::sample::Index>(), 0..20usize), 0..60),
        ) {
            // The first stays: what was before it is nobody's.
            let mut numbers: Vec<u16> = (1..count).map(|number| first.wrapping_add(number)).collect();
            for (at, distance) in swaps {
                if !numbers.is_empty() {
                    let at = at.index(numbers.len());
                    let other = (at + distance).min(numbers.len() - 1);
                    numbers.swap(at, other);
                }
            }
            let (mut bed, now) = (Bed::default(), Instant::now());
            bed.come(first, now);
            for number in numbers {
                prop_assert_eq!(bed.come(number, now), Arrival::InTime);
            }
            let wanted: Vec<_> = (0..count).map(|number| Ok(first.wrapping_add(number))).collect();
            prop_assert_eq!(bed.taken, wanted);
        }
    }
}
