//! Counters: declared by one macro, counted by one thread and read by others.
//!
//! A worker counts in plain integers and copies them into a [`Published`] now and then; a metrics page reads that
//! from any thread. Threads that count together do so in a struct of atomics. Either way readers and writers only
//! touch relaxed atomics: nobody waits, and a reader sees each counter whole, though not all of one instant.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

/// Declares a struct of `u64` counters ([`CounterSet`]), or of `AtomicU64` that several threads count in, and lists its
/// fields with their documentation, so that a counter cannot be added without showing on the metrics page.
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
            /// Every counter with its name and what it counts, in the order of declaration.
            pub fn fields(&self) -> [$crate::stats::StatField; [$(stringify!($field)),*].len()] {
                [$($crate::stats::StatField {
                    name: stringify!($field),
                    help: concat!($($help),+).trim_ascii(),
                    value: self.$field,
                }),*]
            }
        }

        impl $crate::stats::CounterSet for $name {
            fn each(&mut self, visit: &mut dyn FnMut(&mut u64)) {
                $(visit(&mut self.$field);)*
            }
        }

        impl std::ops::AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                $(self.$field += other.$field;)*
            }
        }
    };
    (
        $(#[doc = $doc:literal])*
        $vis:vis struct $name:ident { $( $(#[doc = $help:literal])+ $field_vis:vis $field:ident: AtomicU64, )* }
    ) => {
        $(#[doc = $doc])*
        #[derive(Debug, Default)]
        $vis struct $name { $( $(#[doc = $help])+ $field_vis $field: std::sync::atomic::AtomicU64, )* }

        impl $name {
            /// Every counter with its name and what it counts, in the order of declaration.
            $vis fn fields(&self) -> [$crate::stats::StatField; [$(stringify!($field)),*].len()] {
                [$($crate::stats::StatField {
                    name: stringify!($field),
                    help: concat!($($help),+).trim_ascii(),
                    value: self.$field.load(std::sync::atomic::Ordering::Relaxed),
                }),*]
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

/// A struct of counters whose number and order are fixed.
pub trait CounterSet: Copy + Default {
    /// Visits every counter, in the order of declaration.
    fn each(&mut self, visit: &mut dyn FnMut(&mut u64));
}

/// What one thread last published of its counters; shared by `Arc` with whoever shows them.
#[derive(Debug)]
pub struct Published<S> {
    cells: Box<[AtomicU64]>,
    of: PhantomData<fn() -> S>,
}

impl<S: CounterSet> Default for Published<S> {
    fn default() -> Self {
        let mut cells = Vec::new();
        S::default().each(&mut |value| cells.push(AtomicU64::new(*value)));
        Self { cells: cells.into(), of: PhantomData }
    }
}

impl<S: CounterSet> Published<S> {
    /// Publishes. Called by the owning thread.
    pub fn store(&self, counters: &S) {
        let mut cells = self.cells.iter();
        { *counters }.each(&mut |value| {
            if let Some(cell) = cells.next() {
                cell.store(*value, Ordering::Relaxed);
            }
        });
    }

    /// The counters as last published.
    pub fn load(&self) -> S {
        let (mut counters, mut cells) = (S::default(), self.cells.iter());
        counters.each(&mut |value| *value = cells.next().map_or(0, |cell| cell.load(Ordering::Relaxed)));
        counters
    }
}

/// What one worker last published of its counters, at most a tenth of a second old.
#[derive(Debug, Default)]
pub struct StatsCell {
    io: Published<IoStats>,
    worker: Published<WorkerStats>,
    turns: Published<TurnTimes>,
}

impl StatsCell {
    /// Publishes. Called by the owning worker.
    pub fn store(&self, io: &IoStats, worker: &WorkerStats, turns: &TurnTimes) {
        self.io.store(io);
        self.worker.store(worker);
        self.turns.store(turns);
    }

    /// The backend's counters.
    pub fn io(&self) -> IoStats {
        self.io.load()
    }

    /// The worker's own counters.
    pub fn worker(&self) -> WorkerStats {
        self.worker.load()
    }

    /// How long turns took.
    pub fn turns(&self) -> TurnTimes {
        self.turns.load()
    }
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
    fn what_was_stored_is_loaded() {
        let (mut io, mut next) = (IoStats::default(), 0);
        io.each(&mut |value| {
            next += 1;
            *value = next;
        });
        assert_eq!((io.rx_xsk_packets, io.rx_xsk_bytes, io.fields().len() as u64), (1, 2, next));
        let worker = WorkerStats { turns: 7, sleeps: 5, ..WorkerStats::default() };
        let cell = StatsCell::default();
        let mut turns = TurnTimes::default();
        turns.record(std::time::Duration::from_micros(70));
        cell.store(&io, &worker, &turns);
        assert_eq!((cell.io(), cell.worker(), cell.turns()), (io, worker, turns));
    }

    #[test]
    fn counters_of_several_threads_have_fields_too() {
        counters! {
            /// Counted together.
            struct Shared {
                /// Things that came.
                came: AtomicU64,
            }
        }
        let shared = Shared::default();
        shared.came.fetch_add(2, Ordering::Relaxed);
        let StatField { name, help, value } = shared.fields()[0];
        assert_eq!((name, help, value), ("came", "Things that came.", 2));
    }

    #[test]
    fn counters_add_up_field_by_field() {
        let mut sum = IoStats { tx_syscalls: 2, ..IoStats::default() };
        sum += IoStats { tx_syscalls: 3, rx_syscalls: 1, ..IoStats::default() };
        assert_eq!(sum, IoStats { tx_syscalls: 5, rx_syscalls: 1, ..IoStats::default() });
    }
}
