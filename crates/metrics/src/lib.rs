//! Counters, and the page that shows them. Every layer declares its counters with [`counters!`] and knows nothing of the
//! page. The code that wires the layers registers a [`Collector`] with a [`Registry`], which calls it at each scrape.
//!
//! A thread that counts alone uses plain integers, and copies them into a [`Published`] now and then, which a scrape reads.
//! Threads that count together share a struct of atomics. Either way, readers and writers only touch relaxed atomics.
//! Nobody waits. A reader sees each counter whole, but not all counters at the same instant.
//!
//! ```
//! use expressway_metrics::{Registry, Sample, counters};
//!
//! counters! {
//!     /// What came.
//!     pub struct Arrivals {
//!         /// Datagrams received.
//!         pub datagrams: u64,
//!     }
//! }
//!
//! let registry = Registry::default();
//! let arrivals = Arrivals { datagrams: 3 };
//! registry.register(move |out: &mut Vec<Sample>| out.extend(arrivals.fields().map(Sample::from)));
//! assert!(registry.page().ends_with("expressway_datagrams_total 3\n"));
//! ```
#![forbid(unsafe_code)]

mod counters;
mod page;
mod times;

pub use counters::{CounterSet, Gauge, Kind, Metric, Published, count};
pub use page::{CONTENT_TYPE, Collector, Histogram, Registry, Sample, Value};
pub use times::{TIME_BOUNDS, Times};
