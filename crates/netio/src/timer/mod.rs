//! Timers of one worker: a hierarchical wheel keyed by token.
//!
//! A token is a small dense number, as a slab gives them; it has at most one timer. Arming, moving and
//! cancelling cost O(1) and allocate only when a token larger than any before is armed. There is no clock
//! inside: time comes in with each call, so virtual time works.
//!
//! A timer never fires early. It fires late by less than one tick ([`TICK_NANOS`]) plus the time until the
//! worker looks.
//!
//! ```text
//! level 0   64 slots of 1 tick        the current block of 64 ticks
//! level 1   64 slots of 64 ticks      the current block of 4,096 ticks, less the slot we are in
//! ...
//! level 6   64 slots of 2^36 ticks    36 years in all
//! ```
//!
//! A timer sits at the level of the highest digit (base 64) in which its tick differs from the current
//! one; so whatever a level holds is due before everything in the levels above it. When the current tick
//! reaches a slot of an upper level, the slot's timers move down or fire.
//!
//! Moving a timer to a later time leaves it in its slot, because a connection does this with each packet. When that
//! slot is reached, the timer is moved to where it belongs by then.

use std::time::{Duration, Instant};

/// The wheel's resolution in nanoseconds, 2^18 (262 µs): a quarter of the 1 ms granularity that QUIC's loss
/// detection assumes (RFC 9002, section 6.1.2), so that rounding does not show there, and coarse enough that
/// the timers of connections served in one burst share a wake-up.
pub const TICK_NANOS: u64 = 1 << 18;

/// One more than the largest token. A worker has fewer connections than this; a larger token is a bug in
/// the caller, and the table is indexed by token.
pub const MAX_TOKENS: usize = 1 << 24;

const LEVELS: usize = 7;
const SLOTS: usize = 64;
const SLOT_BITS: u32 = 6;
/// The last tick that the wheel can hold, 36 years after its origin; later deadlines wait there.
const LAST_TICK: u64 = (1 << (SLOT_BITS * LEVELS as u32)) - 1;
const NIL: u32 = u32::MAX;
/// `Entry::slot` of a timer that is in no slot.
const UNLINKED: u16 = u16::MAX;
/// How many timers of an upper slot `next_deadline` looks at before it settles for the slot's beginning.
const EXACT_SCAN: usize = 16;
/// How many it puts where they belong meanwhile, before it does the same.
const SETTLED: usize = 256;

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Idle,
    Armed,
    /// Handed out by `expire`, neither taken nor armed or cancelled since.
    Fired,
}

#[derive(Clone, Copy)]
struct Entry {
    /// First tick at which the timer may fire.
    due: u64,
    /// The tick by which it was put into its slot, `<= due`.
    placed: u64,
    next: u32,
    previous: u32,
    slot: u16,
    state: State,
}

const VACANT: Entry =
    Entry { due: 0, placed: 0, next: NIL, previous: NIL, slot: UNLINKED, state: State::Idle };

/// Arms and fires timers with a resolution of a fraction of a millisecond.
pub struct TimerWheel {
    origin: Instant,
    /// Every slot that begins before this tick has been emptied.
    current: u64,
    entries: Vec<Entry>,
    heads: [u32; LEVELS * SLOTS],
    /// A bit for each slot that holds a timer, by level.
    occupied: [u64; LEVELS],
    armed: usize,
    /// Level and number of the slot that begins at `current`, if its emptying was interrupted. It comes before all others.
    interrupted: Option<(usize, usize)>,
}

impl std::fmt::Debug for TimerWheel {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("TimerWheel")
            .field("armed", &self.armed)
            .field("current", &self.current)
            .finish_non_exhaustive()
    }
}

impl TimerWheel {
    /// An empty wheel whose time begins at `origin`; earlier instants count as `origin`.
    pub fn new(origin: Instant) -> Self {
        Self::with_capacity(origin, 0)
    }

    /// An empty wheel that holds tokens below `tokens` without allocating.
    pub fn with_capacity(origin: Instant, tokens: usize) -> Self {
        Self {
            origin,
            current: 0,
            entries: vec![VACANT; tokens],
            heads: [NIL; LEVELS * SLOTS],
            occupied: [0; LEVELS],
            armed: 0,
            interrupted: None,
        }
    }

    /// How many timers are armed.
    pub fn len(&self) -> usize {
        self.armed
    }

    /// Whether no timer is armed.
    pub fn is_empty(&self) -> bool {
        self.armed == 0
    }

    /// Arms the timer of `token` to fire at `at`, or moves it there. An instant in the past fires with the
    /// next [`TimerWheel::expire`].
    ///
    /// # Panics
    ///
    /// When `token` is not below [`MAX_TOKENS`].
    pub fn arm(&mut self, token: usize, at: Instant) {
        assert!(token < MAX_TOKENS, "timer token {token} is not below {MAX_TOKENS}");
        if token >= self.entries.len() {
            self.entries.resize(token + 1, VACANT);
        }
        let due = self.tick_after(at).max(self.current);
        let entry = &mut self.entries[token];
        if entry.state == State::Armed {
            if due >= entry.placed {
                entry.due = due;
                return;
            }
            self.unlink(token);
        } else {
            entry.state = State::Armed;
            self.armed += 1;
        }
        self.entries[token].due = due;
        self.link(token);
    }

    /// Cancels the timer of `token`; no effect when there is none. Also takes back a timer that has expired
    /// in this turn but has not been handed to the service yet.
    pub fn cancel(&mut self, token: usize) {
        let Some(entry) = self.entries.get_mut(token) else { return };
        let state = std::mem::replace(&mut entry.state, State::Idle);
        if state == State::Armed {
            self.armed -= 1;
            self.unlink(token);
        }
    }

    /// Whether the timer of `token` is armed.
    pub fn is_armed(&self, token: usize) -> bool {
        self.entries.get(token).is_some_and(|entry| entry.state == State::Armed)
    }

    /// When to call [`TimerWheel::expire`] next: the instant at which the first timer fires, or an earlier
    /// one when that timer is one of many far away (then nothing fires and the next answer is closer).
    pub fn next_deadline(&mut self) -> Option<Instant> {
        if self.interrupted.is_some() {
            return Some(self.instant(self.current));
        }
        loop {
            let (level, slot, start) = self.first_slot()?;
            if let Some(tick) = self.earliest_in(level, slot, start) {
                return Some(self.instant(tick));
            }
        }
    }

    /// Takes out timers that are due at `now` and appends their tokens to `due`, in no particular order. Touches no more than
    /// `limit` timers (of which some may only come closer); true when it ended for that, so that more may be due.
    ///
    /// Before acting on a token, ask [`TimerWheel::take_fired`]: acting on one may have cancelled or armed
    /// another.
    pub fn expire(&mut self, now: Instant, due: &mut Vec<usize>, limit: usize) -> bool {
        let mut now = self.tick_before(now);
        let mut left = limit;
        loop {
            let (level, slot) = match self.interrupted.take() {
                Some(place) => {
                    // It was due then, and time may have gone back.
                    now = now.max(self.current);
                    place
                }
                None => match self.first_slot() {
                    Some((level, slot, start)) if start <= now => {
                        self.current = self.current.max(start);
                        (level, slot)
                    }
                    _ => break,
                },
            };
            if !self.empty_slot(level, slot, now, due, &mut left) {
                self.interrupted = Some((level, slot));
                return true;
            }
        }
        self.current = self.current.max(now);
        false
    }

    /// True, once, when the timer of `token` has expired and was neither cancelled nor armed since.
    pub fn take_fired(&mut self, token: usize) -> bool {
        let Some(entry) = self.entries.get_mut(token) else { return false };
        let fired = entry.state == State::Fired;
        if fired {
            entry.state = State::Idle;
        }
        fired
    }

    /// Fires what is due in a slot, and moves the rest to where it belongs as seen from `self.current`. False when `left`, the
    /// timers that may be touched, came to nothing before the slot was empty.
    fn empty_slot(
        &mut self,
        level: usize,
        slot: usize,
        now: u64,
        due: &mut Vec<usize>,
        left: &mut usize,
    ) -> bool {
        loop {
            let token = self.heads[level * SLOTS + slot];
            if token == NIL {
                return true;
            }
            let Some(rest) = left.checked_sub(1) else { return false };
            *left = rest;
            let token = token as usize;
            self.unlink(token);
            if self.entries[token].due <= now {
                self.entries[token].state = State::Fired;
                self.armed -= 1;
                due.push(token);
            } else {
                self.link(token);
            }
        }
    }

    /// The first tick that any timer of the slot is due at; or the slot's beginning, when it holds too many
    /// to look at. Timers met on the way that have moved out of the slot are put where they belong; `None`
    /// when that emptied it.
    fn earliest_in(&mut self, level: usize, slot: usize, start: u64) -> Option<u64> {
        let span = 1u64 << (SLOT_BITS * level as u32);
        let mut earliest = None;
        let (mut kept, mut settled) = (0, 0);
        let mut token = self.heads[level * SLOTS + slot];
        while token != NIL {
            let Entry { due, next, .. } = self.entries[token as usize];
            if due >= start + span && due > self.entries[token as usize].placed {
                if settled == SETTLED {
                    return Some(start);
                }
                settled += 1;
                self.unlink(token as usize);
                self.link(token as usize);
            } else {
                earliest = Some(earliest.map_or(due, |tick: u64| tick.min(due)));
                kept += 1;
                if span == 1 || kept == EXACT_SCAN {
                    return Some(if span == 1 { due } else { start });
                }
            }
            token = next;
        }
        earliest
    }

    /// The occupied slot that begins first, and the tick at which it does.
    fn first_slot(&self) -> Option<(usize, usize, u64)> {
        let level = self.occupied.iter().position(|&slots| slots != 0)?;
        // Slots before the current one are empty, so the lowest bit is the next in time.
        let slot = self.occupied[level].trailing_zeros();
        let shift = SLOT_BITS * level as u32;
        let block = self.current >> (shift + SLOT_BITS) << (shift + SLOT_BITS);
        Some((level, slot as usize, block | u64::from(slot) << shift))
    }

    fn link(&mut self, token: usize) {
        let due = self.entries[token].due;
        let differing = (self.current ^ due) | (SLOTS as u64 - 1);
        let level = (63 - differing.leading_zeros()) / SLOT_BITS;
        let slot = (due >> (level * SLOT_BITS)) as usize % SLOTS;
        let index = level as usize * SLOTS + slot;
        let head = std::mem::replace(&mut self.heads[index], token as u32);
        if head != NIL {
            self.entries[head as usize].previous = token as u32;
        }
        self.occupied[level as usize] |= 1 << slot;
        let entry = &mut self.entries[token];
        entry.placed = due;
        entry.next = head;
        entry.previous = NIL;
        entry.slot = index as u16;
    }

    fn unlink(&mut self, token: usize) {
        let Entry { next, previous, slot, .. } = self.entries[token];
        let index = usize::from(slot);
        if next != NIL {
            self.entries[next as usize].previous = previous;
        }
        if previous != NIL {
            self.entries[previous as usize].next = next;
        } else {
            self.heads[index] = next;
            if next == NIL {
                self.occupied[index / SLOTS] &= !(1 << (index % SLOTS));
            }
        }
        self.entries[token].slot = UNLINKED;
    }

    /// The first tick that begins at `at` or later.
    fn tick_after(&self, at: Instant) -> u64 {
        let nanos = at.saturating_duration_since(self.origin).as_nanos();
        u64::try_from(nanos.div_ceil(u128::from(TICK_NANOS))).map_or(LAST_TICK, |tick| tick.min(LAST_TICK))
    }

    /// The last tick that has begun at `now`.
    fn tick_before(&self, now: Instant) -> u64 {
        let nanos = now.saturating_duration_since(self.origin).as_nanos();
        u64::try_from(nanos / u128::from(TICK_NANOS)).map_or(LAST_TICK, |tick| tick.min(LAST_TICK))
    }

    fn instant(&self, tick: u64) -> Instant {
        self.origin + Duration::from_nanos(tick * TICK_NANOS)
    }
}

#[cfg(test)]
mod tests;
