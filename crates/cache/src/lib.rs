//! A shared HTTP cache in front of a handler (RFC 9111).
//!
//! ```text
//!   transport ─▶ CachedSite ─┬─ fresh, in memory ─────────────────────▶ answered at once, block by block
//!                            ├─ on disk ─▶ reader threads of the files ─▶ the same
//!                            └─ missing or stale ─▶ Fill: one fetch for all who wait ─▶ origin
//! ```
//!
//! * An object is a head (`object`) and blocks. The blocks are in the same cache as those of files
//!   ([`expressway_web::blocks`]), with one budget, and a hit hands out slices of blocks as a file does.
//! * An object is fetched in aligned slices if its origin supports ranges and sends a strong validator, which keeps
//!   slices of different versions apart (`fill`); otherwise it is fetched whole.
//! * The number of fetches, and of requests that wait for them, is bounded; see [`CacheOptions`].
//! * The disk store (`disk`) is a log with checksums. `policy` decides about freshness; `bans` are purges of many
//!   objects.
//!
//! A hit needs no task, and no lock is held for long. Nothing here blocks the thread that polls.
//!
//! # Decisions
//!
//! Each request for a slice has `If-Range`, and a slice of another version is refused: a body has one version or is cut
//! short. A fill holds its blocks for its readers, so that eviction does not affect them. The response to the first
//! request is shared with those that wait only if it may be stored; otherwise they go to the origin, a few at a time,
//! and for a while no request waits for that URL. The disk is read by the files' reader threads and written by one
//! thread behind a bounded queue. Purges of many objects (prefix, surrogate key) are a bounded list of rules, against
//! which objects on disk are checked when they are next requested.
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
