//! The command line of `expressway guard`.

use std::path::PathBuf;

use clap::Args;

/// Drops packets in XDP, before the stack and before AF_XDP, according to lists and rules; all others pass unchanged.
/// SIGHUP rereads the file and its lists and changes the filter at once; if anything is wrong, nothing changes. SIGUSR1
/// prints statistics. SIGTERM and SIGINT detach the program. With `pin = true` it keeps filtering after the process was killed,
/// until the next start takes over. Prints `ready interface=IFACE mode=MODE` for each interface once it is filtering.
#[derive(Args, Clone)]
pub(crate) struct Guard {
    /// Configuration file (TOML)
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
    /// Check the configuration and the lists that it names, then exit
    #[arg(long)]
    pub(crate) check: bool,
    /// Count the packets that would be dropped, but pass them; overrides `dry_run`
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Detach a foreign XDP program from the interfaces first
    #[arg(long)]
    pub(crate) replace: bool,
    /// Print statistics as one JSON document, on SIGUSR1 and on exit
    #[arg(long)]
    pub(crate) json: bool,
}
