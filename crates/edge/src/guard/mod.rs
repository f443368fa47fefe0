//! An XDP filter against floods: sources that always pass, sources that never do, impossible packets, and rules for the
//! rest.
//!
//! The program (`bpf/guard.bpf.c`) decides; this module gives it the criteria:
//!
//! - [`Config`] reads the file.
//! - [`list`] reads lists of prefixes, and [`Lists`] follows those that change.
//! - [`classifier`] compiles rules into sets.
//! - [`Filter`] connects these with the program: it attaches the program to the interfaces, changes it while traffic
//!   flows, and reports what it did.
//!
//! # Order
//!
//! 1. Sources on an allow list pass.
//! 2. Sources on a block list, and then those that are banned, are dropped.
//! 3. Impossible packets are dropped: contradictory headers or TCP flags, and invalid sources. So are fragments, if
//!    configured, and packets to a QUIC port that no QUIC client sends, such as those with connection IDs that no
//!    server issued.
//! 4. QUIC clients without a token, and TCP SYNs, may be answered on the server's behalf, so that only packets from
//!    verified sources go on. No state is kept for them.
//! 5. The first rule that matches decides: pass, drop, or a limit.
//! 6. Otherwise the default applies.
//!
//! # Spoofed sources
//!
//! A limit by source has a bucket for each source, in a table without eviction: when it is full, sources without a
//! bucket share some. Buckets that are full again are removed every second, so those of a flood with one-time sources
//! soon disappear. A ban is based on packets with unverified sources, so whoever can forge a source can have it banned.
//! Therefore allow lists take precedence, and `ban` is meant for protocols that verify sources.
//!
//! # Changes
//!
//! A reload reads everything again, loads another program with its own tables, and replaces the first one by it, so
//! each packet is judged entirely by the one or the other. Any error, in the file, a list or the kernel, leaves
//! everything as it was. Bans are kept, as are buckets if the rules are the same.

mod capture;
pub mod classifier;
mod config;
mod filter;
mod learn;
mod lines;
pub mod list;
mod lists;
mod payload;
mod quic;
mod rule;
mod sources;
mod status;
mod tcp;

pub use capture::{Capture, RuleNames};
pub use config::{Config, Fragments};
pub use filter::{Error, Filter};
pub use learn::{Attack, Learn, Unsaved};
pub use lists::{
    Connector, Kind as ListKind, ListSource, Lists, Location as ListLocation, Settings as ListSettings,
    Taken as ListTaken, Url,
};
pub use payload::Pattern;
pub use quic::{Retry, UnknownIds};
pub use rule::{Action, Flags, Per, Protocol, Range, Rate, Rule};
pub use status::{
    CaptureStatus, InterfaceStatus, LearnStatus, ListStatus, ReasonStatus, RuleStatus, SamplingStatus, Status,
};
pub use tcp::SynCookies;
