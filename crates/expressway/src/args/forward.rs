//! The command line of `expressway forward`.

use std::path::PathBuf;

use clap::Args;

/// Routes packets in XDP using the kernel's own tables, and copies UDP feeds to receivers. The kernel gets the packets that XDP
/// cannot forward: those for this host, without a route or a known neighbour, with an expired TTL, too large, or with IP options.
///
/// Forwarded packets bypass netfilter, NAT, tc and IPsec. The kernel must forward as well: `sysctl -w
/// net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1`.
///
/// Prints `ready interface=IFACE mode=MODE` for each device once it is forwarding. SIGHUP rereads the file; an error
/// leaves everything as it was. Statistics are printed on SIGUSR1 and on exit. Needs root.
#[derive(Args, Clone)]
pub(crate) struct Forward {
    /// Configuration file (TOML)
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
    /// Check the configuration, then exit
    #[arg(long)]
    pub(crate) check: bool,
    /// Replace foreign XDP programs that were attached through netlink
    #[arg(long)]
    pub(crate) replace: bool,
    /// Print one JSON document per line: ready, then statistics
    #[arg(long)]
    pub(crate) json: bool,
}
