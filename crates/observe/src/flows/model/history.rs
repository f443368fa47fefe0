//! Forty seconds of counts in slots of about one second.

use std::collections::VecDeque;
use std::ops::AddAssign;

use super::Window;
use crate::flows::sample::Paths;

/// A slot is full once it has lasted so many nanoseconds: a second, less what a timer may be early.
const SLOT: u64 = 950_000_000;
const SECOND: u64 = 1_000_000_000;
/// Slots kept: those of the longest window, even if each is as short as it may be, and the current one.
const SLOTS: u64 = 44;

/// Both directions' counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Traffic {
    pub(super) received: Paths,
    pub(super) sent: Paths,
    /// By the kernel's stack, of these.
    pub(super) dropped: u64,
}

impl Traffic {
    pub(super) fn bytes(&self) -> u64 {
        self.received.all().bytes.saturating_add(self.sent.all().bytes)
    }

    pub(super) fn is_zero(&self) -> bool {
        *self == Self::default()
    }

    pub(super) fn without(&self, other: &Self) -> Self {
        Self {
            received: self.received.without(&other.received),
            sent: self.sent.without(&other.sent),
            dropped: self.dropped.saturating_sub(other.dropped),
        }
    }
}

impl AddAssign for Traffic {
    fn add_assign(&mut self, other: Self) {
        self.received += other.received;
        self.sent += other.sent;
        self.dropped += other.dropped;
    }
}

/// How long each slot lasted.
#[derive(Clone, Debug, Default)]
pub(super) struct Clock {
    /// The last one is the current slot.
    lengths: VecDeque<u64>,
    /// The number of the current slot.
    slot: u64,
}

impl Clock {
    /// Time has passed; what it brought belongs to [`Clock::slot`].
    pub(super) fn advance(&mut self, elapsed: u64) {
        match self.lengths.back_mut() {
            Some(length) if *length < SLOT => *length = length.saturating_add(elapsed),
            _ => {
                self.lengths.push_back(elapsed);
                self.slot += 1;
                if self.lengths.len() as u64 > SLOTS {
                    self.lengths.pop_front();
                }
            }
        }
    }

    /// The current slot.
    pub(super) fn slot(&self) -> u64 {
        self.slot
    }

    /// The first slot of a window, and how many seconds there are from its beginning to now.
    pub(super) fn first(&self, window: Window) -> (u64, f64) {
        let wanted = window.seconds() * SECOND;
        let (mut first, mut length) = (self.slot + 1, 0u64);
        for slot in self.lengths.iter().rev() {
            // Half a slot more is nearer than half a slot less.
            if length > 0 && length.saturating_add(slot / 2) > wanted {
                break;
            }
            first -= 1;
            length = length.saturating_add(*slot);
        }
        (first, length.max(1) as f64 / SECOND as f64)
    }
}

/// Counts by slot; slots without any are left out.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    slots: VecDeque<(u64, Traffic)>,
}

impl History {
    pub(super) fn add(&mut self, slot: u64, traffic: &Traffic) {
        while self.slots.front().is_some_and(|(first, _)| first + SLOTS <= slot) {
            self.slots.pop_front();
        }
        match self.slots.back_mut() {
            Some((last, sum)) if *last == slot => *sum += *traffic,
            _ => self.slots.push_back((slot, *traffic)),
        }
    }

    /// What came in this slot and later.
    pub(super) fn since(&self, first: u64) -> Traffic {
        let mut sum = Traffic::default();
        for (_, traffic) in self.slots.iter().rev().take_while(|(slot, _)| *slot >= first) {
            sum += *traffic;
        }
        sum
    }
}
