//! The command line of `expressway top`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use expressway_settings::{Size, Span};

use super::AdminPeer;

/// With -i: shows the traffic of an interface, AF_XDP included, by flow, host, port and QUIC connection, with rates over 2, 10
/// and 40 seconds. Also shows drops by reason, the rings of all AF_XDP sockets, and the CPUs. Needs root. Press h for the keys.
///
/// Without -i: polls the admin listener of a running process. It shows the subscribers of a fan-out, furthest behind first; the
/// packet paths and workers of a gateway; the reasons, lists and rules of a filter; the services and nodes of a balancer; the
/// interfaces of a router. For all but fan-outs, it also shows the counters that change.
///
/// On a terminal it uses the whole screen until q or SIGINT; otherwise it prints each sample.
#[derive(Args)]
pub(crate) struct Top {
    /// Interface to watch
    #[arg(short, long, value_name = "IFACE")]
    pub(crate) interface: Option<String>,
    #[command(flatten)]
    pub(crate) peer: AdminPeer,
    /// Time between samples; without -i, rates are computed over it
    #[arg(long, value_name = "DURATION", default_value = "1s")]
    pub(crate) interval: Span,
    /// Show a single sample after one interval, then exit
    #[arg(long)]
    pub(crate) once: bool,
    /// Print each sample as one JSON document per line
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) flows: TopFlows,
}

/// Of interfaces.
#[derive(Args)]
pub(crate) struct TopFlows {
    /// Record samples to FILE
    #[arg(long, value_name = "FILE", requires = "interface")]
    pub(crate) record: Option<PathBuf>,
    /// Maximum size of FILE
    #[arg(long, value_name = "SIZE", default_value = "1GiB", requires = "record")]
    pub(crate) record_size: Size,
    /// Replay the samples recorded in FILE
    #[arg(long, value_name = "FILE", conflicts_with = "interface")]
    pub(crate) replay: Option<PathBuf>,
    /// What each row stands for
    #[arg(long, value_enum, default_value_t = TopBy::Flow)]
    pub(crate) by: TopBy,
    /// Show only rows that match all of these words: udp, 443, 192.0.2.0/24, !tcp, part of a connection ID
    #[arg(long, value_name = "WORDS")]
    pub(crate) filter: Option<String>,
    /// Maximum number of rows to print
    #[arg(long, value_name = "N", default_value = "100", value_parser = clap::value_parser!(u32).range(1..=16_384))]
    pub(crate) rows: u32,
    /// Length in bytes of the connection IDs that QUIC servers on this host issue; 0: ignore connection IDs
    #[arg(long, value_name = "N", default_value = "16", value_parser = clap::value_parser!(u32).range(0..=20))]
    pub(crate) cid_length: u32,
    /// UDP port of a QUIC server on this host; may be repeated. On other ports, QUIC is recognised by its handshake
    #[arg(long, value_name = "PORT", default_values_t = [443, 8443])]
    pub(crate) quic_port: Vec<u16>,
}

/// What a row stands for.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum TopBy {
    /// Two addresses and ports
    Flow,
    /// A remote address
    Host,
    /// A local port
    Port,
    /// A QUIC connection, across address changes
    Connection,
}
