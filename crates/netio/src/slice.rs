//! How much of a turn each kind of work may take, so that no turn is long.
//!
//! Work comes in pieces that cannot be divided: a datagram, a timer, a request. Code that does several pieces checks
//! between two whether the slice is used up, and leaves the rest for the next turn. The first piece is always done, so
//! there is progress however small the slices are.

use std::time::{Duration, Instant};

/// The size of a turn's slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SliceLimit {
    /// What a turn takes together, by the monotonic clock.
    Time(Duration),
    /// Pieces in each slice: for tests and simulations that are to repeat to the letter.
    Pieces(u32),
}

/// The shares of a turn, one after the other, in eighths. What one leaves the next may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Share {
    Datagrams = 3,
    Messages = 4,
    Timers = 5,
    Transmit = 8,
}

/// One of several takes this part of a turn, in eighths.
const PART: u32 = 3;

/// What is left of a slice.
#[derive(Clone, Debug)]
pub struct Slice {
    limit: SliceLimit,
    /// By the clock: when the turn began, when the slice ends, what the clock last said.
    began: Instant,
    end: Instant,
    clock: Instant,
    pieces: u32,
    spent: bool,
}

impl Slice {
    /// The slices of a turn that begins at `now`, the first of them begun.
    pub(crate) fn begin(limit: SliceLimit, now: Instant) -> Self {
        let mut slice = Self { limit, began: now, end: now, clock: now, pieces: 0, spent: false };
        slice.enter(Share::Datagrams);
        slice
    }

    /// A slice by itself, for work outside a turn.
    pub fn alone(limit: SliceLimit) -> Self {
        let mut slice = Self::begin(limit, Instant::now());
        slice.enter(Share::Transmit);
        slice
    }

    /// Begins the next one.
    pub(crate) fn enter(&mut self, share: Share) {
        self.spent = false;
        match self.limit {
            SliceLimit::Time(time) => self.end = self.began + time * share as u32 / Share::Transmit as u32,
            SliceLimit::Pieces(pieces) => self.pieces = pieces,
        }
    }

    /// A piece was done. True: the slice is spent, and the rest is for the next turn.
    #[inline]
    pub fn spend(&mut self) -> bool {
        match self.limit {
            SliceLimit::Time(_) => self.spend_until(Instant::now()),
            SliceLimit::Pieces(_) => self.spend_until(self.clock),
        }
    }

    /// As [`Self::spend`], for who has just looked at the clock.
    #[inline]
    pub fn spend_until(&mut self, now: Instant) -> bool {
        self.clock = now;
        self.pieces = self.pieces.saturating_sub(1);
        self.spent |= match self.limit {
            SliceLimit::Time(_) => now >= self.end,
            SliceLimit::Pieces(_) => self.pieces == 0,
        };
        self.spent
    }

    /// Looks at the clock and spends nothing.
    pub fn look(&mut self) -> Instant {
        if matches!(self.limit, SliceLimit::Time(_)) {
            self.clock = Instant::now();
        }
        self.clock
    }

    /// What the clock last said.
    pub fn clock(&self) -> Instant {
        self.clock
    }

    /// What [`Self::spend`] said last.
    #[inline]
    pub fn is_spent(&self) -> bool {
        self.spent
    }

    /// The part of this slice that one of several may take; [`Self::rejoin`] follows.
    #[inline]
    pub fn part(&self) -> Self {
        let mut part = self.clone();
        part.spent = false;
        match self.limit {
            SliceLimit::Time(time) => {
                part.end = self.end.min(self.clock + time * PART / Share::Transmit as u32);
            }
            SliceLimit::Pieces(pieces) => part.pieces = pieces,
        }
        part
    }

    /// Takes in the time that a part has taken.
    #[inline]
    pub fn rejoin(&mut self, part: &Self) {
        self.clock = part.clock;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_of_pieces_has_so_many() {
        let mut slice = Slice::begin(SliceLimit::Pieces(2), Instant::now());
        assert!(!slice.spend());
        assert!(slice.spend() && slice.is_spent());
        slice.enter(Share::Timers);
        assert!(!slice.is_spent() && !slice.spend());
        let mut part = slice.part();
        assert!(!part.spend() && part.spend(), "a part is counted by itself");
        slice.rejoin(&part);
        assert!(!slice.is_spent() && slice.spend());
        let mut none = Slice::begin(SliceLimit::Pieces(0), Instant::now());
        assert!(none.spend());
    }

    #[test]
    fn shares_follow_one_another_and_take_what_is_left() {
        let (start, time) = (Instant::now(), Duration::from_micros(800));
        let at = |microseconds| start + Duration::from_micros(microseconds);
        let mut slice = Slice::begin(SliceLimit::Time(time), start);
        assert!(!slice.spend_until(at(299)));
        assert!(slice.spend_until(at(300)));
        assert!(slice.spend_until(at(0)), "once spent it stays so");
        slice.enter(Share::Messages);
        assert!(!slice.spend_until(at(399)));
        slice.enter(Share::Transmit);
        let mut part = slice.part();
        assert!(!part.spend_until(at(698)));
        assert!(part.spend_until(at(699)), "three eighths of the turn");
        slice.rejoin(&part);
        let mut last = slice.part();
        assert!(!last.spend_until(at(799)));
        assert!(last.spend_until(at(800)), "no longer than the whole");
        assert!(!slice.is_spent() && slice.spend_until(at(800)));
    }
}
