//! Memory that clients pin, counted from allocation until it is freed, and limited.
//!
//! ```text
//!   Memory   the process: blocks of files outside the cache, and what connections own
//!     ▲        one by one: a block · in steps of 64 KiB: the rest
//!   Ledger   a worker
//!     ▲
//!   Account  a connection: what it owns, and the blocks that it keeps from being freed
//! ```
//!
//! A connection may hold an eighth of what the process has left (a dynamic threshold; Choudhury and Hahne, 1998), and
//! never more than its own limit. Connections that use all they may therefore leave room for new ones: n of them end up
//! holding n/(n+8) of the budget, and one more may hold an eighth of the rest.
//!
//! Ledgers report to the process in steps, so that handling a packet touches nothing shared.
//!
//! A slice of 300 bytes keeps a whole block of 256 KiB in memory, so a block counts in full for the response that holds
//! it. Blocks of which the client uses little may take a quarter of what its connection may have; beyond that, pieces
//! are copied or read individually. For a response, at most 16 times as many bytes are read in blocks as its client has
//! received; otherwise holding little would cost much reading. Timeouts are checked in sweeps over connections with
//! something in flight, at most every two seconds: a clock reading, a list or a timer per request would burden
//! well-behaved requests. Requests for which a connection has no room wait unread in QUIC, bounded by flow control.

mod account;
mod reservation;

use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

pub use account::{Account, Charge};
pub(crate) use account::{Pin, Sliced};
pub(crate) use reservation::Reservation;

use expressway_metrics::Metric;

/// A connection may hold this part of what the process has left.
const SHARE: usize = 8;

/// What a connection may hold however little is left, in octets: a few packets, so that each gets on.
const LEAST: usize = 16 << 10;

/// What it may hold when nothing is left.
const LAST: usize = 4 << 10;

/// Octets that a worker's ledger may be ahead of the process's sum.
const STEP: usize = 64 << 10;

/// File descriptors that a connection's requests may hold however few are left.
const LEAST_FILES: usize = 4;

/// What the process pins for its clients, and its limits. Shared by all workers; survives reloads.
#[derive(Debug)]
pub struct Memory {
    /// Octets for all that lies outside the block cache.
    budget: usize,
    /// Octets of blocks that are referenced by anybody: cache, exchanges, transports.
    blocks: AtomicUsize,
    /// Of these, the ones in the cache.
    cached: AtomicUsize,
    /// Bytes of buffers kept for reuse.
    spare: AtomicUsize,
    /// Octets that connections own, as far as ledgers have told.
    owned: AtomicIsize,
    /// Octets of compressors.
    compressors: AtomicUsize,
    /// Files open for exchanges and in the cache of open files.
    files: AtomicUsize,
    /// Files that may be open.
    max_files: AtomicUsize,
    ledgers: Mutex<Vec<Arc<Ledger>>>,
}

/// What the connections of one worker pin.
#[derive(Debug)]
pub struct Ledger {
    memory: Arc<Memory>,
    owned: AtomicUsize,
    /// What of `owned` the process's sum has.
    told: AtomicUsize,
    /// Octets of blocks on their way to clients.
    sliced: AtomicUsize,
    /// What of `owned` are requests.
    requests: AtomicUsize,
}

/// Levels of a ledger, in octets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Levels {
    /// Response data that clients have not acknowledged, copies and slices of blocks.
    pub responses: usize,
    /// Requests: what the transport has of them, partial header sections, and what is kept while they are answered.
    pub requests: usize,
    /// All that is owned: the requests and the copies.
    pub owned: usize,
}

impl Memory {
    /// A budget of so many octets for all that lies outside the block cache.
    pub fn new(budget: usize) -> Arc<Self> {
        Arc::new(Self {
            budget,
            blocks: AtomicUsize::new(0),
            cached: AtomicUsize::new(0),
            spare: AtomicUsize::new(0),
            owned: AtomicIsize::new(0),
            compressors: AtomicUsize::new(0),
            files: AtomicUsize::new(0),
            max_files: AtomicUsize::new(usize::MAX),
            ledgers: Mutex::default(),
        })
    }

    /// A ledger for one worker.
    pub fn ledger(self: &Arc<Self>) -> Arc<Ledger> {
        let ledger = Arc::new(Ledger {
            memory: Arc::clone(self),
            owned: AtomicUsize::new(0),
            told: AtomicUsize::new(0),
            sliced: AtomicUsize::new(0),
            requests: AtomicUsize::new(0),
        });
        self.ledgers.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&ledger));
        ledger
    }

    /// Octets for all that lies outside the block cache.
    pub fn budget(&self) -> usize {
        self.budget
    }

    /// Octets in use outside the block cache; behind by 64 KiB a worker at most.
    pub fn used(&self) -> usize {
        let owned = usize::try_from(self.owned.load(Ordering::Relaxed)).unwrap_or(0);
        self.pinned() + self.spare.load(Ordering::Relaxed) + self.compressors() + owned
    }

    fn compressors(&self) -> usize {
        self.compressors.load(Ordering::Relaxed)
    }

    /// Octets of blocks that somebody holds and the cache does not.
    fn pinned(&self) -> usize {
        self.blocks.load(Ordering::Relaxed).saturating_sub(self.cached.load(Ordering::Relaxed))
    }

    /// Octets that one connection may hold now.
    pub fn share(&self) -> usize {
        match self.budget.saturating_sub(self.used()) {
            0 => LAST,
            left => (left / SHARE).max(LEAST),
        }
    }

    /// How much of the budget is left, of 1.
    pub fn left(&self) -> f64 {
        self.budget.saturating_sub(self.used()) as f64 / self.budget.max(1) as f64
    }

    /// Limits the files that may be open, including those of the open-file cache.
    pub fn limit_files(&self, most: usize) {
        self.max_files.store(most, Ordering::Relaxed);
    }

    /// Files that the requests of one connection may have open now.
    pub fn file_share(&self) -> usize {
        let most = self.max_files.load(Ordering::Relaxed);
        (most.saturating_sub(self.files.load(Ordering::Relaxed)) / SHARE).max(LEAST_FILES)
    }

    /// Octets in all: blocks, cached or not, free buffers, and what connections own.
    pub fn total(&self) -> usize {
        let ledgers = self.ledgers.lock().unwrap_or_else(PoisonError::into_inner);
        let owned: usize = ledgers.iter().map(|ledger| ledger.owned.load(Ordering::Relaxed)).sum();
        self.blocks.load(Ordering::Relaxed) + self.spare.load(Ordering::Relaxed) + self.compressors() + owned
    }

    pub(crate) fn add_block(&self, octets: usize) {
        self.blocks.fetch_add(octets, Ordering::Relaxed);
    }

    pub(crate) fn remove_block(&self, octets: usize) {
        self.blocks.fetch_sub(octets, Ordering::Relaxed);
    }

    pub(crate) fn add_cached(&self, octets: usize) {
        self.cached.fetch_add(octets, Ordering::Relaxed);
    }

    pub(crate) fn remove_cached(&self, octets: usize) {
        self.cached.fetch_sub(octets, Ordering::Relaxed);
    }

    pub(crate) fn add_spare(&self, octets: usize) {
        self.spare.fetch_add(octets, Ordering::Relaxed);
    }

    pub(crate) fn remove_spare(&self, octets: usize) {
        self.spare.fetch_sub(octets, Ordering::Relaxed);
    }

    pub(crate) fn add_file(&self) {
        self.files.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn remove_file(&self) {
        self.files.fetch_sub(1, Ordering::Relaxed);
    }

    /// The gauges of the metrics page.
    pub(crate) fn metrics(&self) -> impl Iterator<Item = Metric> + use<> {
        let gauge = |name, help, value: usize| Metric::gauge(name, help, value as u64);
        let most = self.max_files.load(Ordering::Relaxed);
        let blocks = self.blocks.load(Ordering::Relaxed);
        [
            gauge(
                "memory_bytes",
                "Bytes used by file blocks, compressors, responses and requests together.",
                self.total(),
            ),
            gauge("memory_budget_bytes", "Bytes they may use outside the block cache.", self.budget),
            gauge(
                "memory_share_bytes",
                "Bytes that one connection may currently hold, at most its own limit.",
                self.share(),
            ),
            gauge("file_block_bytes", "Bytes of file blocks that are cached or held by responses.", blocks),
            gauge("file_block_pinned_bytes", "Of these, bytes held only by responses.", self.pinned()),
            gauge(
                "file_block_spare_bytes",
                "Bytes of buffers kept for reuse.",
                self.spare.load(Ordering::Relaxed),
            ),
            gauge("compressor_bytes", "Bytes used by compressors, at most.", self.compressors()),
            gauge(
                "open_files",
                "Open files, for responses or in the open-file cache.",
                self.files.load(Ordering::Relaxed),
            ),
            gauge(
                "open_files_limit",
                "Limit on open files; 0: no known limit.",
                if most == usize::MAX { 0 } else { most },
            ),
        ]
        .into_iter()
    }
}

impl Ledger {
    /// The process's sum.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// What the worker's connections hold now.
    pub fn levels(&self) -> Levels {
        let load = |level: &AtomicUsize| level.load(Ordering::Relaxed);
        let (owned, requests) = (load(&self.owned), load(&self.requests));
        Levels { responses: load(&self.sliced) + owned.saturating_sub(requests), requests, owned }
    }

    fn own(&self, octets: usize) {
        let owned = self.owned.fetch_add(octets, Ordering::Relaxed) + octets;
        self.tell(owned);
    }

    fn disown(&self, octets: usize) {
        let owned = self.owned.fetch_sub(octets, Ordering::Relaxed) - octets;
        self.tell(owned);
    }

    /// Brings the process's sum up to date if it is off by much.
    #[inline]
    fn tell(&self, owned: usize) {
        if owned.abs_diff(self.told.load(Ordering::Relaxed)) >= STEP {
            let told = self.told.swap(owned, Ordering::Relaxed);
            self.memory.owned.fetch_add(owned as isize - told as isize, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_who_take_all_they_may_leave_a_share_to_the_next() {
        const BUDGET: usize = 64 << 20;
        let memory = Memory::new(BUDGET);
        let ledger = memory.ledger();
        let mut hogs = Vec::new();
        for number in 1..=50_usize {
            hogs.push((Account::new(&ledger, usize::MAX, usize::MAX), Vec::new()));
            // Each takes whatever it may, in pieces reported to the process's total; what is acknowledged of
            // the others is returned until they hold no more than they may.
            for _ in 0..20 {
                for (account, held) in &mut hogs {
                    account.follow();
                    while account.room() > STEP {
                        held.push(account.charge(STEP));
                    }
                    while account.used() > account.limit() {
                        held.pop();
                    }
                }
            }
            let expected = BUDGET / (SHARE + number);
            let share = memory.share();
            assert!(
                share.abs_diff(expected) <= expected / 10 + STEP,
                "{number} leave {share}, not {expected}"
            );
        }
        assert!(memory.used() <= BUDGET, "{} are used", memory.used());
        assert_eq!(memory.total(), memory.used());
        drop(hogs);
        assert_eq!((memory.total(), ledger.levels()), (0, Levels::default()));
        assert!(memory.used() < STEP);
    }

    #[test]
    fn what_is_left_in_the_end_is_enough_to_get_on() {
        let memory = Memory::new(1 << 20);
        let account = Account::new(&memory.ledger(), usize::MAX, usize::MAX);
        let all = account.charge(1 << 20);
        account.follow();
        assert_eq!(memory.share(), LAST);
        let other = Account::new(&memory.ledger(), usize::MAX, usize::MAX);
        other.follow();
        assert!(other.room() > 0);
        drop(all);
        account.follow();
        let room = account.room();
        assert!(((1 << 20) / SHARE / 4 * 3..(1 << 20) / SHARE).contains(&room), "{room}");
    }

    #[test]
    fn the_share_of_files_follows_what_is_left() {
        let memory = Memory::new(1 << 20);
        memory.limit_files(800);
        assert_eq!(memory.file_share(), 100);
        (0..400).for_each(|_| memory.add_file());
        assert_eq!(memory.file_share(), 50);
        (0..400).for_each(|_| memory.add_file());
        assert_eq!(memory.file_share(), LEAST_FILES);
    }
}
