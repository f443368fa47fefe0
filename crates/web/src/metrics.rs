//! Counters as plain atomics, and the uniform way to read them.

/// Whether a value only grows or is a level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Monotonic since start.
    Counter,
    /// A current level.
    Gauge,
}

/// One value with its name (Prometheus spelling, without prefix) and its meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metric {
    /// Name, such as `block_cache_hits_total`.
    pub name: &'static str,
    /// One sentence for `# HELP`.
    pub help: &'static str,
    /// Counter or gauge.
    pub kind: Kind,
    /// The value at the time of reading.
    pub value: u64,
}

/// Declares a struct of atomic counters with `fields()`; the doc comment of each field is its help text.
#[macro_export]
macro_rules! counters {
    ($(#[$meta:meta])* $vis:vis struct $name:ident { $($help:literal $field:ident,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Default)]
        $vis struct $name { $(#[doc = $help] $vis $field: std::sync::atomic::AtomicU64,)* }

        impl $name {
            /// Every counter with its name (suffixed `_total`), help text and current value.
            $vis fn fields(&self) -> impl Iterator<Item = $crate::metrics::Metric> + use<> {
                [$($crate::metrics::Metric {
                    name: concat!(stringify!($field), "_total"),
                    help: $help,
                    kind: $crate::metrics::Kind::Counter,
                    value: self.$field.load(std::sync::atomic::Ordering::Relaxed),
                },)*].into_iter()
            }
        }
    };
}
pub use counters;

/// Adds one to a counter.
pub fn count(counter: &std::sync::atomic::AtomicU64) {
    counter.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
}
