//! Benchmark scenarios: contestants side by side on one machine, in one run, alternating.
//!
//! A scenario starts built binaries as processes inside a lab (`expressway-lab`), loads them with a client
//! that is not ours (`load`), and reads what they cost from the scheduler (`cpu`). It links nothing of
//! what it measures. Every run is one JSON line in the raw file; tables are made from those lines alone.
//!
//! The server has one core and its interface's NAPI thread shares it; the client and its NAPI thread have the
//! other. Server CPU is the scheduler's account of the server's processes and of that NAPI thread, so that
//! it pays for its own kernel work and for nobody else's.

mod contestant;
mod cpu;
mod gateway;
mod idle;
mod load;
mod packet_io;
mod peer;
mod report;
mod server;

use std::path::PathBuf;

pub use contestant::Contestant;
pub use gateway::Gateway;
pub use idle::Idle;
pub use packet_io::{PacketIo, Run, medians};
pub use report::{Measurement, table};

/// The core of the server and of its NAPI thread.
pub const SERVER_CORE: usize = 0;

/// The core of the client and of its NAPI thread.
pub const CLIENT_CORE: usize = 1;

/// Host name that servers are asked for.
pub const HOST: &str = "bench.test";

/// What scenarios need to know of the machine.
#[derive(Clone, Debug)]
pub struct Tools {
    /// The `expressway` binary.
    pub expressway: PathBuf,
    /// The `expressway-load` binary.
    pub load: PathBuf,
    /// The `expressway-io` binary.
    pub io: PathBuf,
    /// An nginx with HTTP/3, if there is one.
    pub nginx: Option<PathBuf>,
    /// Scratch folder for files, certificates and configurations.
    pub work: PathBuf,
}

/// Why a scenario could not be run.
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
    /// The machine lacks something that the scenario needs.
    #[error("{0}")]
    Missing(String),
}

pub(crate) fn io_error(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> BenchError {
    let what = what.into();
    move |error| BenchError::Io(what, error)
}
