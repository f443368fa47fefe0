//! The oracle of cost: an input of n bytes may cost at most `a·n + b`, counted and not timed.
//!
//! What is measured is what a stranger's bytes cause: steps (basic blocks entered), allocations, bytes allocated, and the
//! most memory held at a time. n counts the bytes that the stranger sends, not those that the fuzzer needs to describe them.
//!
//! Bounds are found by `cargo run --bin corpus costs`, which prints for each target how near its corpus comes: the most that
//! ordinary inputs cost a byte, and apart from that whatever their length is, times four or so. A square shows at a few
//! hundred members whatever the factor, and the factor leaves room for another compiler's blocks.

use std::sync::{Mutex, PoisonError};

use crate::meter::{self, NOVELTY_COUNT};

/// What something has cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Basic blocks entered.
    pub steps: u64,
    /// Calls of the allocator, those that enlarge included.
    pub allocations: u64,
    /// Bytes asked of the allocator.
    pub bytes: u64,
    /// The most bytes held at a time, beyond what was held before.
    pub peak: u64,
}

/// What an input of n bytes may cost: for each kind of cost `(a, b)`, at most `a·n + b`.
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    /// See [`Cost::steps`].
    pub steps: (u64, u64),
    /// See [`Cost::allocations`].
    pub allocations: (u64, u64),
    /// See [`Cost::bytes`].
    pub bytes: (u64, u64),
    /// See [`Cost::peak`].
    pub peak: (u64, u64),
}

/// An account that was settled.
#[derive(Clone, Copy, Debug)]
pub struct Settled {
    /// Bytes of input.
    pub size: u64,
    /// Their cost.
    pub cost: Cost,
    /// What they were allowed.
    pub bound: Bound,
}

/// The last accounts settled, for whoever prints them.
static SETTLED: Mutex<Vec<Settled>> = Mutex::new(Vec::new());

/// More are not kept.
const MAX_SETTLED: usize = 64;

/// What several pieces of input have cost together.
#[derive(Debug, Default)]
pub struct Account {
    size: u64,
    cost: Cost,
    /// Bytes that what was measured has left behind, or freed of others.
    grown: i64,
}

impl Account {
    /// Runs what a piece of input of `size` bytes causes. Whatever is done outside is not counted.
    pub fn run<T>(&mut self, size: usize, action: impl FnOnce() -> T) -> T {
        meter::begin_peak();
        let (memory, steps) = (meter::memory(), meter::steps());
        let result = action();
        let (steps_after, after) = (meter::steps(), meter::memory());
        self.size += size as u64;
        self.cost.steps += steps_after - steps;
        self.cost.allocations += after.allocations - memory.allocations;
        self.cost.bytes += after.bytes - memory.bytes;
        let peak = self.grown.saturating_add_unsigned(after.peak.saturating_sub(memory.live));
        self.cost.peak = self.cost.peak.max(u64::try_from(peak).unwrap_or(0));
        self.grown += after.live.cast_signed() - memory.live.cast_signed();
        result
    }

    /// What has been measured so far.
    pub fn cost(&self) -> Cost {
        self.cost
    }

    /// Panics if it was more than `bound` allows.
    pub fn settle(self, bound: &Bound) {
        let settled = Settled { size: self.size, cost: self.cost, bound: *bound };
        for (kind, (_, cost, _)) in settled.kinds().into_iter().enumerate() {
            report_share(kind, cost, settled.limit(kind));
        }
        let mut kept = SETTLED.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < MAX_SETTLED {
            kept.push(settled);
        }
        drop(kept);
        let excess: Vec<_> = (0..settled.kinds().len()).filter_map(|kind| settled.excess(kind)).collect();
        assert!(excess.is_empty(), "an input of {} bytes cost {}", self.size, excess.join("; "));
    }
}

impl Settled {
    /// Name, cost and bound of each kind of cost.
    pub fn kinds(&self) -> [(&'static str, u64, (u64, u64)); 4] {
        let Self { cost, bound, .. } = self;
        [
            ("steps", cost.steps, bound.steps),
            ("allocations", cost.allocations, bound.allocations),
            ("bytes allocated", cost.bytes, bound.bytes),
            ("bytes held", cost.peak, bound.peak),
        ]
    }

    /// The most that a kind of cost may be.
    pub fn limit(&self, kind: usize) -> u64 {
        let (_, _, (a, b)) = self.kinds()[kind];
        a * self.size + b
    }

    fn excess(&self, kind: usize) -> Option<String> {
        let (name, cost, (a, b)) = self.kinds()[kind];
        let limit = self.limit(kind);
        (cost > limit).then(|| format!("{cost} {name}, where {a} a byte and {b} are allowed, {limit} in all"))
    }
}

/// Runs what an input of `size` bytes causes, and panics if it costs more than `bound` allows.
pub fn hold<T>(bound: &Bound, size: usize, action: impl FnOnce() -> T) -> T {
    let mut account = Account::default();
    let result = account.run(size, action);
    account.settle(bound);
    result
}

/// The accounts settled since this was called last.
pub fn take_settled() -> Vec<Settled> {
    std::mem::take(&mut SETTLED.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Whether this build counts steps.
pub fn counts_steps() -> bool {
    let mut account = Account::default();
    account.run(0, || std::hint::black_box([1u8, 2, 3].as_slice()).iter().map(std::hint::black_box).max());
    account.cost.steps > 0
}

/// Has an input kept that comes nearer to a bound than all before it, by an eighth of an octave, over the eight octaves
/// below the bound. So the fuzzer climbs towards cost as it does towards coverage.
fn report_share(kind: usize, cost: u64, limit: u64) {
    const EACH: usize = NOVELTY_COUNT / 4;
    let octaves = (cost.max(1) as f64 / limit.max(1) as f64).log2();
    let number = (octaves + 8.0) * EACH as f64 / 8.0;
    if number >= 0.0 {
        meter::report_novelty(kind * EACH + (number as usize).min(EACH - 1));
    }
}
