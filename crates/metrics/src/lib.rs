//! Counters and the page that shows them. Every layer declares its counters by [`counters!`] and knows nothing of the page;
//! whoever wires the layers registers a [`Collector`] with a [`Registry`], which asks it at each scrape.
//!
//! A thread of its own counts in plain integers and copies them into a [`Published`] now and then; a scrape reads that.
//! Threads that count together do so in a struct of atomics. Either way readers and writers only touch relaxed atomics:
//! nobody waits, and a reader sees each counter whole, though not all of one instant.
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
