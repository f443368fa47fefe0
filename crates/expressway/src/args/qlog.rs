//! The command line of `expressway qlog`.

use std::path::PathBuf;

use clap::Args;
use expressway_observe::trace::MAX_SECONDS;
use expressway_settings::Size;

use super::AdminPeer;

/// See [`super::Command::Qlog`].
#[derive(Args)]
pub(crate) struct Qlog {
    #[command(flatten)]
    pub(crate) peer: AdminPeer,
    /// The client: an address, or address and port
    #[arg(long, value_name = "ADDR[:PORT]", required_unless_present = "connection")]
    pub(crate) client: Option<String>,
    /// The beginning of a connection ID that the server issued, in hexadecimal
    #[arg(long, value_name = "ID")]
    pub(crate) connection: Option<String>,
    /// How long to wait and to record
    #[arg(
        long, value_name = "S", default_value = "10",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_SECONDS))
    )]
    pub(crate) seconds: u32,
    /// Maximum size of the recording
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    pub(crate) size: Size,
    /// File to write; it must not exist yet, and only its owner can read it
    #[arg(short, long, value_name = "FILE")]
    pub(crate) write: PathBuf,
}
