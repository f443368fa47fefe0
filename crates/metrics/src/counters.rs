//! Counters: declared by one macro, written by one thread or several, read by others.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

/// Declares a struct of numbers and lists its fields with their documentation, so that a counter cannot be added without
/// showing on the metrics page. Its fields are all of `u64` and [`Gauge`], which makes it a [`CounterSet`], or all of
/// `AtomicU64`, for counters that several threads count in.
#[macro_export]
macro_rules! counters {
    (
        $(#[doc = $doc:literal])*
        $vis:vis struct $name:ident { $( $(#[doc = $help:literal])+ $field_vis:vis $field:ident: AtomicU64, )* }
    ) => {
        $(#[doc = $doc])*
        #[derive(Debug, Default)]
        $vis struct $name { $( $(#[doc = $help])+ $field_vis $field: std::sync::atomic::AtomicU64, )* }

        impl $name {
            /// Every counter with its name and what it counts, in the order of declaration.
            $vis fn fields(&self) -> [$crate::Metric; [$(stringify!($field)),*].len()] {
                [$($crate::Metric {
                    name: stringify!($field),
                    help: concat!($($help),+).trim_ascii(),
                    kind: $crate::Kind::Counter,
                    label: None,
                    value: self.$field.load(std::sync::atomic::Ordering::Relaxed),
                }),*]
            }
        }
    };
    (
        $(#[doc = $doc:literal])*
        pub struct $name:ident { $( $(#[doc = $help:literal])+ pub $field:ident: $kind:ident, )* }
    ) => {
        $(#[doc = $doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name { $( $(#[doc = $help])+ pub $field: u64, )* }

        impl $name {
            /// Every number with its name and what it counts, in the order of declaration.
            pub fn fields(&self) -> [$crate::Metric; [$(stringify!($field)),*].len()] {
                [$($crate::Metric {
                    name: stringify!($field),
                    help: concat!($($help),+).trim_ascii(),
                    kind: $crate::counters!(@kind $kind),
                    label: None,
                    value: self.$field,
                }),*]
            }
        }

        impl $crate::CounterSet for $name {
            fn each(&mut self, visit: &mut dyn FnMut(&mut u64)) {
                $(visit(&mut self.$field);)*
            }
        }

        impl std::ops::AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                $(self.$field = self.$field.wrapping_add(other.$field);)*
            }
        }
    };
    (@kind u64) => { $crate::Kind::Counter };
    (@kind Gauge) => { $crate::Kind::Gauge };
}

/// A field of [`counters!`](crate::counters!) that goes up and down.
pub type Gauge = u64;

/// What a value means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows; the page adds `_total` to its name.
    Counter,
    /// Goes up and down.
    Gauge,
    /// How often something took how long, by buckets. No [`Metric`] is of this kind.
    Histogram,
}

/// One number of a layer, without what tells its owner from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Name in snake case, without prefix and `_total`.
    pub name: &'static str,
    /// One sentence of what it counts.
    pub help: &'static str,
    /// Counter or gauge.
    pub kind: Kind,
    /// What tells it from others of its name.
    pub label: Option<(&'static str, &'static str)>,
    /// The value at the time of reading.
    pub value: u64,
}

impl Metric {
    /// A level, without a label.
    pub fn gauge(name: &'static str, help: &'static str, value: u64) -> Self {
        Self { name, help, kind: Kind::Gauge, label: None, value }
    }
}

/// Adds one to a counter.
pub fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
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

#[cfg(test)]
#[allow(unreachable_pub)] // The structs that it declares are public.
mod tests {
    use super::*;

    counters! {
        /// Of one thread.
        pub struct Own {
            /// Things that are there
            /// now.
            pub there: Gauge,
            /// Things that came.
            pub came: u64,
        }
    }

    #[test]
    fn fields_carry_names_help_kinds_and_values() {
        let [there, came] = Own { there: 3, came: 9 }.fields();
        assert_eq!(there, Metric::gauge("there", "Things that are there now.", 3));
        assert_eq!((came.name, came.kind, came.value), ("came", Kind::Counter, 9));
    }

    #[test]
    fn what_was_stored_is_loaded_and_adds_up_field_by_field() {
        let own = Own { there: 1, came: 2 };
        let published = Published::default();
        assert_eq!(published.load(), Own::default());
        published.store(&own);
        let mut sum = published.load();
        sum += own;
        assert_eq!(sum, Own { there: 2, came: 4 });
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
        count(&shared.came);
        count(&shared.came);
        let Metric { name, help, kind, value, .. } = shared.fields()[0];
        assert_eq!((name, help, kind, value), ("came", "Things that came.", Kind::Counter, 2));
    }
}
