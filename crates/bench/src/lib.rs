//! The benchmark suite: contestants side by side on one machine, in one run, alternating.
//!
//! A [`Scenario`] is a file that says what is compared; a kind is the code that measures. [`run`] starts built binaries
//! as processes inside a lab (`expressway-lab`), loads them with a client that is not ours, and reads what they cost from
//! the scheduler. It links nothing of what it measures. Every run is one JSON line in the raw file; reports are made
//! from raw files alone, and begin with the points where a peer or the kernel path leads.
//!
//! The order of contestants alternates from round to round, each run has a new lab, and ratios are taken within a round.
//! Drift of the machine therefore affects all contestants alike.
//!
//! The server has the first cores, and its interface's NAPI threads share them. The client and its NAPI thread have the
//! next. Server CPU is the scheduler's account of the server's processes and of those NAPI threads, so the server pays
//! for its own kernel work and for nobody else's.
//!
//! # Scenarios and kinds
//!
//! A kind (`gateway`, `handshake`, `packet-io`, …) is a trait object with a name, its parameters, its metrics
//! and `measure`. A scenario names a kind, and says for each parameter whether it is fixed, swept or part of a
//! contestant. A file may put any parameter in any of the three places, so a new comparison (by connections,
//! by cores, by a peer) needs no code. Parameters have a form (count, size, choice), so an error in a file is
//! one line with file, line and key. Files are embedded in the binary, and can also be read from a path.
//!
//! Peers are files too: how each is started, its best known configuration, and why that is the best. A kind
//! may measure one of its cases before the rounds of a point, if the work of the others depends on what the
//! machine can currently do. Random arrivals, for example, keep the C loop busy for a given share of the time,
//! because a fixed rate is idleness on one machine and overload on the next.
//!
//! # Raw format and statistics
//!
//! All kinds use one raw format. A run is a case and numbers by metric. The scenario's line describes each
//! metric: its unit, and which direction is better. Reports, comparison and calculator know metrics and not
//! kinds, and read only the raw file. Titles, claims and published figures are copied into it when it is made.
//!
//! Intervals are percentile bootstraps of the median, from a seeded generator, so a report is the same file
//! every time. The leader of a point is named only if the interval of its ratio to each other contestant
//! excludes 1, and there are enough rounds for such an interval. Otherwise, contestants that cannot be
//! distinguished are named together. A published figure is shown beside ours as agreement, weaker, stronger,
//! not shown or contradicted, but never as a pass mark, because the hardware differs. A missing peer and a
//! failed run are lines in the raw file and in the report. The rest is measured, and the exit code is 1.
//!
//! # Load and accounts
//!
//! The load generator runs closed loops for capacity, and an open loop (`rate`) for cost and latency at equal
//! work, where latency counts from the moment at which a request was due. The NAPI thread of the server's
//! interface is accounted separately. The client's receive work has a NAPI thread on the other core. For this, a
//! lab turns TCP segmentation off at the sending end. With it, packets on a veth bypass the receiver's NAPI
//! instance, and the sender's core does the receiving inside its send calls, and pays for it
//! (`veth_skb_is_eligible_for_gro`). The load generator's socket buffer exceeds what flow control allows in
//! flight, so a client that falls behind slows the server down and loses nothing.

mod calculate;
mod client;
mod compare;
mod cpu;
mod environment;
mod fanout_mode;
mod guest;
mod h2load;
mod kind;
mod load;
mod nics;
mod offload;
mod origin;
mod packet_path;
mod peers;
mod process;
mod profile;
mod published;
mod raw;
mod report;
mod runner;
mod scenario;
mod server;
mod statistic;
mod task;
mod tools;

use std::path::PathBuf;

pub use calculate::{Need, Traffic, calculate, needs_as_text};
pub use compare::{Change, Verdict, changes_as_text, compare};
pub use environment::Environment;
pub use fanout_mode::{FanoutVerdict, fanout_verdict};
pub use guest::{Emulated, Guest};
pub use kind::Better;
pub use nics::{Allowed, EndOptions, Hosts, Nic, Nics, Token, serve_end};
pub use peers::Program;
pub use profile::lacks as profile_lacks;
pub use published::Figure;
pub use raw::{Absent, Described, Line, Measured, RawFile, RawRun, Run};
pub use report::{MADE_BY, PICTURE, html, markdown, picture, tables};
pub use runner::{Tally, remove_leftovers, run};
pub use scenario::{About, BUILT_IN, Bed, Beside, Contestant, Effort, Scenario, Side, Value, expand, find};
pub use statistic::{Estimate, ROUNDS_FOR_A_VERDICT, estimate, median, ratio_of_medians};
pub use tools::Tools;

/// The first core of the server and of its NAPI threads.
pub const SERVER_CORE: usize = 0;

/// The first core of the client and of its NAPI thread, where there are two.
pub const CLIENT_CORE: usize = 1;

/// The first core of a side. On a machine of one core both have that.
pub(crate) fn core_of(side: expressway_lab::Role) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let wanted = if side == expressway_lab::Role::Server { SERVER_CORE } else { CLIENT_CORE };
    wanted.min(cores - 1)
}

/// Host name that servers are asked for.
pub const HOST: &str = "bench.test";

/// Why a scenario could not be run, or a raw file not be read.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The lab could not be made or used.
    #[error(transparent)]
    Lab(#[from] expressway_lab::LabError),
    /// A file or process of the benchmark's own.
    #[error("{0}: {1}")]
    Io(String, #[source] std::io::Error),
    /// A server did not become ready, or ended.
    #[error("{contestant}: {problem}")]
    Server {
        /// Which one.
        contestant: String,
        /// What happened, with the end of its log.
        problem: String,
    },
    /// The load generator failed, or requests did.
    #[error("{contestant}: load: {problem}")]
    Load {
        /// What was loaded.
        contestant: String,
        /// What happened.
        problem: String,
    },
    /// The far end refused something, or its program failed.
    #[error("far end {end}: {problem}")]
    Far {
        /// Its control address.
        end: std::net::SocketAddr,
        /// What happened.
        problem: String,
    },
    /// The far end cannot be talked to any more.
    #[error("connection to far end {end} lost: {problem}")]
    FarLost {
        /// Its control address.
        end: std::net::SocketAddr,
        /// What happened.
        problem: String,
    },
    /// A raw file cannot be read.
    #[error("{}{}: {problem}", file.display(), place(*line))]
    Raw {
        /// The file.
        file: PathBuf,
        /// The line, from 1; 0 when the file as a whole is meant.
        line: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// A signal ended it.
    #[error("interrupted by a signal; results so far are in the raw file")]
    Interrupted,
    /// The machine lacks something that the scenario needs.
    #[error("{0}")]
    Missing(String),
}

fn place(line: usize) -> String {
    if line == 0 { String::new() } else { format!(":{line}") }
}

pub(crate) fn io_error(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> BenchError {
    let what = what.into();
    move |error| BenchError::Io(what, error)
}
