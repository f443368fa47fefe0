//! A filter in XDP against floods: who always passes, who never does, what cannot be, and rules for the rest.
//!
//! The program (`bpf/guard.bpf.c`) decides; this module tells it what to decide by:
//!
//! - [`Config`] reads the file.
//! - [`list`] reads lists of prefixes, and [`Lists`] follows those that change.
//! - [`classifier`] compiles rules into sets.
//! - [`Filter`] joins these with the program: it puts it on the interfaces, changes it while traffic flows, and tells what
//!   it did.
//!
//! # Order
//!
//! 1. Sources on an allow list pass.
//! 2. Sources on a block list, and then those that are banned, are dropped.
//! 3. Packets that cannot be are dropped: headers that contradict themselves, TCP flags that exclude each other, sources
//!    that nobody has. Then fragments, if they are unwelcome, and what no QUIC client sends to a QUIC port, such as connection
//!    IDs that no server issued.
//! 4. QUIC clients that have no token yet, and SYNs of TCP, may be answered in the server's place, so that what goes on
//!    has a source that is known. Nothing is remembered of them.
//! 5. The first rule that matches decides: pass, drop, or a limit.
//! 6. Else the default.
//!
//! # Spoofed sources
//!
//! A limit by source has a bucket for each, in a table that does not push anybody out: when it is full, sources without a
//! bucket share one. Buckets that are full again are removed each second, so those of a flood whose sources come once are
//! gone soon. A ban follows from packets whose source nobody has checked, so who can forge a source can have it banned:
//! allow lists come first, and `ban` is for protocols whose sources are known.
//!
//! # Changes
//!
//! A reload reads everything anew, loads another program with its tables, and puts it in place of the first, so each
//! packet is judged by the one or the other whole. Anything wrong, in the file, a list or the kernel, leaves all as it
//! was. Bans go on, and buckets if the rules are the same.

mod capture;
pub mod classifier;
mod config;
mod filter;
mod learn;
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
    Connector, Kind as ListKind, Lists, Location as ListLocation, Settings as ListSettings,
    Source as ListSource, Taken as ListTaken, Url,
};
pub use payload::Pattern;
pub use quic::{Retry, UnknownIds};
pub use rule::{Action, Flags, Per, Protocol, Range, Rate, Rule};
pub use status::{
    CaptureStatus, InterfaceStatus, LearnStatus, ListStatus, ReasonStatus, RuleStatus, SamplingStatus, Status,
};
pub use tcp::SynCookies;
