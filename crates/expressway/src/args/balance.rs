//! The command line of `expressway balance`.

use std::path::PathBuf;

use clap::Args;

/// Sends the packets of each service to its nodes, which answer clients directly. Runs until SIGTERM or SIGINT.
/// SIGHUP reloads the file: established flows stay on their nodes unless these were removed; an invalid file changes nothing.
/// SIGUSR1 prints statistics. Prints `ready interface=IFACE mode=MODE` for each interface once it is balancing.
#[derive(Args, Clone)]
pub(crate) struct Balance {
    /// Configuration file (TOML)
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
    /// Check the configuration, then exit
    #[arg(long)]
    pub(crate) check: bool,
    /// Detach a foreign XDP program from the interfaces first
    #[arg(long)]
    pub(crate) replace: bool,
    /// Print JSON: a line once it is balancing, statistics on SIGUSR1 and on exit
    #[arg(long)]
    pub(crate) json: bool,
}
