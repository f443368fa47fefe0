//! HTTP request handling without a transport.
//!
//! A transport (HTTP/3 in `expressway-gateway`, others over TCP) turns what it received into a
//! [`RequestHead`], hands it to a [`Handler`] and polls the [`Exchange`] that comes back: first for one
//! [`ResponseHead`], then for body chunks, which are reference-counted slices and never copied again here.
//!
//! Nothing in this crate blocks the thread that polls. What cannot be answered at once is finished by a
//! small pool of reader threads, which calls [`Wake::wake`] when polling again makes sense. There is no
//! async runtime, no socket and no notion of packets or streams.
//!
//! * [`Sites`] maps a request's host to a site; it is immutable and swapped whole on reload.
//! * [`files`] serves a directory tree with nginx's semantics: conditions, ranges, precompressed siblings.
//! * [`blocks`] caches bytes of files and of cached objects in one budget.
//! * [`CompressOptions`] say which responses are compressed.
//! * [`access_log`] writes one line per request from its own thread.
//! * [`patience`] says which clients are too slow.
//! * [`expressway_metrics`] has the counters of caches, pool and log.
#![forbid(unsafe_code)]

pub mod access_log;
mod bearer;
pub mod blocks;
mod coding;
mod compress;
pub mod condition;
mod date;
mod exchange;
pub mod files;
mod handler;
mod log_limit;
mod media_type;
pub mod memory;
mod pace;
pub mod parts;
pub mod patience;
mod pipe;
pub mod range;
mod request;
mod request_body;
mod response;
mod scan;
mod sites;
mod target;
mod timer;
mod wake;

pub use bearer::bearer;
pub use compress::{CompressOptions, MAX_TYPES};
pub use date::date_header;
pub use exchange::{Exchange, ResponseSource};
pub use files::{is_blocking_reload, is_directive, is_playlist};
pub use handler::Handler;
pub use log_limit::LogLimit;
pub use pipe::{PipeReader, PipeWriter, pipe};
pub use request::{Protocol, RequestHead, Scheme};
pub use request_body::RequestBody;
pub use response::{BodyError, ResponseHead, Upstream};
pub use sites::{
    Cors, LimitRate, MAX_AUTHORITY, PathPattern, PathRule, PatternError, RateLimit, SiteConfig, SiteContent,
    SiteError, Sites, Template, TokenKey, TokenKeyError, TokenKeys, TokenRule,
};
pub use wake::{Notify, Wake};
