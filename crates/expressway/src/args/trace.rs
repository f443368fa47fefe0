//! The command line of `expressway trace`.

use std::path::PathBuf;

use clap::Args;
use expressway_observe::trace::MAX_SECONDS;

use super::AdminPeer;

/// See [`super::Command::Trace`].
#[derive(Args)]
pub(crate) struct Trace {
    #[command(flatten)]
    pub(crate) peer: AdminPeer,
    /// Only this client: an address, or address and port
    #[arg(long, value_name = "ADDR[:PORT]")]
    pub(crate) client: Option<String>,
    /// Only connections with a server-issued connection ID that begins with this, in hexadecimal
    #[arg(long, value_name = "ID")]
    pub(crate) connection: Option<String>,
    /// How long to trace
    #[arg(
        long, value_name = "S", default_value = "10",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_SECONDS))
    )]
    pub(crate) seconds: u32,
    /// Follow one request in N, and record packets only while such a request is in progress
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) sample: u32,
    /// Show the slowest request whose method and URL contain this, instead of the slowest of all
    #[arg(long, value_name = "TEXT")]
    pub(crate) request: Option<String>,
    /// Print one JSON document at the end
    #[arg(long)]
    pub(crate) json: bool,
    /// Write the trace for Perfetto and chrome://tracing
    #[arg(long, value_name = "FILE")]
    pub(crate) chrome: Option<PathBuf>,
}
