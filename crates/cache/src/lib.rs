//! A shared HTTP cache in front of a handler (RFC 9111).
//!
//! ```text
//!   transport ─▶ CachedSite ─┬─ fresh, in memory ─────────────────────▶ answered at once, block by block
//!                            ├─ on disk ─▶ reader threads of the files ─▶ the same
//!                            └─ missing or stale ─▶ Fill: one fetch for all who wait ─▶ origin
//! ```
//!
//! * An object is a head (`object`) and blocks, which are those of the files' block cache
//!   ([`expressway_web::blocks`]): one budget, and a hit hands out slices of blocks as a file does.
//! * It is fetched in aligned slices where its origin gives ranges and a strong validator, which keeps slices of
//!   different versions apart (`fill`); otherwise whole.
//! * What fetches wait for, and who waits for them, is bounded; see [`CacheOptions`].
//! * The disk store (`disk`) is a log with checksums. `policy` is freshness, `bans` are purges of many.
//!
//! A hit costs no task and no lock that is held for long. Nothing here blocks the thread that polls.
//!
//! # Decisions
//!
//! Each request for a slice has `If-Range`, and a slice of another version is refused, so a body is one version or is broken off. A
//! fill holds its blocks for its readers, so that they depend on no eviction. The leader's answer goes to nobody else unless it may
//! be stored; who has waited in vain goes to the origin, a few at a time, and for a while the URL is not waited for. The disk is
//! read by the files' reader threads and written by one thread behind a bounded queue. Purges of many (prefix, surrogate key) are
//! bounded rules that objects on disk are checked against when they are next asked for.
#![forbid(unsafe_code)]

mod bans;
mod body;
mod codec;
mod directives;
mod disk;
mod exchange;
mod fill;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod heads;
mod key;
mod metrics;
mod object;
mod options;
mod policy;
mod purge;
mod relay;
mod respond;
mod site;
mod status;
mod throttle;

pub use metrics::CacheCounters;
pub use options::{CacheOptions, Query, SiteOptions};
pub use purge::{Purge, PurgeError, Purged, Target};
pub use site::{Cache, CachedSite};
