//! The command line of `expressway forward`.

use std::path::PathBuf;

use clap::Args;

/// Routes by the kernel's own tables, in XDP, and passes to the kernel what it cannot: packets to this host, without a
/// route or a known neighbour, at their last hop, too large, with options. Copies UDP feeds to receivers.
///
/// What is forwarded passes netfilter, NAT, tc and IPsec by. The kernel must forward as well: `sysctl -w
/// net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1`.
///
/// Prints `ready interface=IFACE mode=MODE` for each device once it forwards. SIGHUP reads the file again; an error leaves
/// everything as it was. SIGUSR1 prints statistics, as does the end. Needs root.
#[derive(Args, Clone)]
pub(crate) struct Forward {
    /// Configuration file (TOML)
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
    /// Check the file, then exit
    #[arg(long)]
    pub(crate) check: bool,
    /// Replace foreign XDP programs that were set through netlink
    #[arg(long)]
    pub(crate) replace: bool,
    /// Print one JSON document per line: ready, then statistics
    #[arg(long)]
    pub(crate) json: bool,
}
