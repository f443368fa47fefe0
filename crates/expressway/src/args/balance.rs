//! The command line of `expressway balance`.

use std::path::PathBuf;

use clap::Args;

/// Sends the packets of services to their nodes, which answer clients directly, until SIGTERM or SIGINT.
/// SIGHUP reloads the file, and moves no established flow but from nodes that are gone; an invalid file changes nothing.
/// SIGUSR1 prints statistics. Prints `ready interface=IFACE mode=MODE` for each interface once it balances.
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
    /// Print JSON: a line when it balances, statistics on SIGUSR1 and at the end
    #[arg(long)]
    pub(crate) json: bool,
}
