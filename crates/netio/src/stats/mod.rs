//! Counters that one worker owns and others read.
//!
//! The worker counts in plain integers and copies them into a [`StatsCell`] now and then; a metrics page
//! reads the cell from any thread. Both sides only touch relaxed atomics: the worker never waits, and a
//! reader sees each counter whole, though not all of one instant.

use std::sync::atomic::{AtomicU64, Ordering};

/// Declares a struct of `u64` counters and lists its fields with their documentation, so that a counter
/// cannot be added without showing on the metrics page.
#[macro_export]
macro_rules! counters {
    (
        $(#[doc = $doc:literal])*
        pub struct $name:ident { $( $(#[doc = $help:literal])+ pub $field:ident: u64, )* }
    ) => {
        $(#[doc = $doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name { $( $(#[doc = $help])+ pub $field: u64, )* }

        impl $name {
            /// How many counters there are.
            pub const COUNT: usize = [$(stringify!($field)),*].len();

            /// Every counter with its name and what it counts, in the order of declaration.
            pub fn fields(&self) -> [$crate::stats::StatField; Self::COUNT] {
                [$($crate::stats::StatField {
                    name: stringify!($field),
                    help: concat!($($help),+).trim_ascii(),
                    value: self.$field,
                }),*]
            }

            /// The values alone, in the order of declaration.
            pub fn values(&self) -> [u64; Self::COUNT] {
                [$(self.$field),*]
            }

            /// The struct whose [`Self::values`] are `values`.
            pub fn from_values(values: [u64; Self::COUNT]) -> Self {
                let [$($field),*] = values;
                Self { $($field),* }
            }
        }

        impl std::ops::AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                $(self.$field += other.$field;)*
            }
        }
    };
}
pub use counters;

mod io;
mod times;
mod worker;

pub use io::IoStats;
pub use times::{TURN_BOUNDS, TurnTimes};
pub use worker::WorkerStats;

/// One counter of a statistics struct, as a metrics page shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatField {
    /// The field's name.
    pub name: &'static str,
    /// One sentence of what it counts, from the field's documentation.
    pub help: &'static str,
    /// Its value.
    pub value: u64,
}

/// What one worker last published of its counters; shared by `Arc` with whoever shows them.
#[derive(Debug)]
pub struct StatsCell {
    io: [AtomicU64; IoStats::COUNT],
    worker: [AtomicU64; WorkerStats::COUNT],
    turns: [AtomicU64; TurnTimes::COUNT],
}

impl Default for StatsCell {
    fn default() -> Self {
        Self {
            io: std::array::from_fn(|_| AtomicU64::new(0)),
            worker: std::array::from_fn(|_| AtomicU64::new(0)),
            turns: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }
}

impl StatsCell {
    /// A cell whose counters are all 0.
    pub fn new() -> Self {
        Self::default()
    }

    /// Publishes. Called by the owning worker.
    pub fn store(&self, io: &IoStats, worker: &WorkerStats) {
        store_all(&self.io, io.values());
        store_all(&self.worker, worker.values());
    }

    /// Publishes how long turns took, likewise.
    pub fn store_turns(&self, turns: &TurnTimes) {
        store_all(&self.turns, turns.values());
    }

    /// The backend's counters as last published, at most a tenth of a second old.
    pub fn io(&self) -> IoStats {
        IoStats::from_values(load_all(&self.io))
    }

    /// The worker's own counters as last published.
    pub fn worker(&self) -> WorkerStats {
        WorkerStats::from_values(load_all(&self.worker))
    }

    /// How long turns took, as last published.
    pub fn turns(&self) -> TurnTimes {
        TurnTimes::from_values(load_all(&self.turns))
    }
}

fn store_all<const N: usize>(cells: &[AtomicU64; N], values: [u64; N]) {
    for (cell, value) in cells.iter().zip(values) {
        cell.store(value, Ordering::Relaxed);
    }
}

fn load_all<const N: usize>(cells: &[AtomicU64; N]) -> [u64; N] {
    std::array::from_fn(|index| cells[index].load(Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_carry_names_help_and_values() {
        let stats = IoStats { rx_xsk_packets: 3, tx_fallback_socket: 9, ..IoStats::default() };
        let fields = stats.fields();
        assert_eq!(fields[0].name, "rx_xsk_packets");
        assert_eq!(fields[0].help, "Datagrams handed to the service, by AF_XDP.");
        assert_eq!(fields[0].value, 3);
        let last = fields.iter().find(|field| field.name == "tx_fallback_socket").expect("is a field");
        assert_eq!(last.value, 9);
        assert!(fields.iter().all(|field| !field.help.is_empty()));
    }

    #[test]
    fn the_cell_gives_back_what_was_stored() {
        let mut next = 0;
        let io = IoStats::from_values(std::array::from_fn(|_| {
            next += 1;
            next
        }));
        let worker = WorkerStats { turns: 7, sleeps: 5, ..WorkerStats::default() };
        let cell = StatsCell::new();
        let mut turns = TurnTimes::default();
        turns.record(std::time::Duration::from_micros(70));
        cell.store(&io, &worker);
        cell.store_turns(&turns);
        assert_eq!(cell.io(), io);
        assert_eq!(cell.worker(), worker);
        assert_eq!(cell.turns(), turns);
    }

    #[test]
    fn counters_add_up_field_by_field() {
        let mut sum = IoStats { tx_syscalls: 2, ..IoStats::default() };
        sum += IoStats { tx_syscalls: 3, rx_syscalls: 1, ..IoStats::default() };
        assert_eq!(sum, IoStats { tx_syscalls: 5, rx_syscalls: 1, ..IoStats::default() });
    }
}
