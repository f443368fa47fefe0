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
#![forbid(unsafe_code)]

mod bans;
mod body;
mod codec;
mod directives;
mod disk;
mod exchange;
mod fill;
mod gate;
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

pub use metrics::CacheCounters;
pub use options::{CacheOptions, Query, SiteOptions};
pub use purge::{Purge, PurgeError, Purged, Target};
pub use site::{Cache, CachedSite};
