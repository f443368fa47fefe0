//! The command line of `expressway drop`.

use clap::Args;
use expressway_xbpf::Action;

/// Which program goes where.
#[derive(Args)]
pub(crate) struct Drop {
    /// Interface to attach the program to
    #[arg(short, long, value_name = "IFACE")]
    pub(crate) interface: String,
    /// What to do with each packet: drop; pass (uncounted: the cost of having a program); count (and pass); touch (reads
    /// the Ethernet header, then drops); tx (swaps MACs, sends it back; to a veth only while its peer has an XDP program);
    /// redirect (swaps MACs, sends it out on --to)
    #[arg(long, value_name = "ACTION", default_value = "drop")]
    pub(crate) action: Action,
    /// Interface that redirect sends to, through a DEVMAP
    #[arg(long, value_name = "IFACE", required_if_eq("action", "redirect"))]
    pub(crate) to: Option<String>,
    /// Use generic XDP, in the network stack on socket buffers, instead of the driver
    #[arg(long)]
    pub(crate) generic: bool,
    /// Detach a foreign XDP program from the interface first
    #[arg(long)]
    pub(crate) replace: bool,
    /// Exit after this many seconds [default: on a signal]
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) seconds: Option<u64>,
    /// Print one JSON document at the end instead of lines
    #[arg(long)]
    pub(crate) json: bool,
}
