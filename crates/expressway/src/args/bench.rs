//! What `expressway bench` is told.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use clap::builder::TypedValueParser;
use clap::{Args, Subcommand};
use expressway_bench::Bed;

/// Runs benchmark scenarios in their own lab: all of them, or those named. Needs root. Every run is one JSON
/// line in DIR/raw.jsonl; the table shows medians of runs in alternating order.
#[derive(Args)]
pub(crate) struct Bench {
    #[command(subcommand)]
    pub(crate) command: Option<BenchCommand>,
    /// Scenarios to run: names from --list, or file paths [default: all]
    #[arg(value_name = "SCENARIO")]
    pub(crate) scenarios: Vec<String>,
    /// List the scenarios
    #[arg(long)]
    pub(crate) list: bool,
    /// Directory for the raw file, reports and scratch files
    #[arg(long, value_name = "DIR", default_value = "target/bench", global = true)]
    pub(crate) out: PathBuf,
    /// Print the raw lines as one JSON document instead of tables
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Compare two raw files; exits with 1 if an Expressway result got worse by more than its interval
    #[arg(long, num_args = 2, value_names = ["OLD", "NEW"], conflicts_with = "scenarios")]
    pub(crate) compare: Option<Vec<PathBuf>>,
    /// Run the short version of each scenario: fewer contestants and points, shorter runs
    #[arg(long)]
    pub(crate) tour: bool,
    /// Run each contestant once more under perf and write flame graphs to DIR/profiles
    #[arg(long)]
    pub(crate) profile: bool,
    /// Number of rounds, overriding the scenario's; each contestant runs once per round
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1000).map(|n| n as usize))]
    pub(crate) rounds: Option<usize>,
    /// Seconds per run, overriding the scenario's
    #[arg(long, value_parser = seconds)]
    pub(crate) seconds: Option<f64>,
    /// Run only this contestant, by its name in the tables; may be repeated
    #[arg(long = "server", value_name = "NAME")]
    pub(crate) servers: Vec<String>,
    /// Run only bodies of this size; may be repeated
    #[arg(long = "body", value_name = "BYTES")]
    pub(crate) bodies: Vec<String>,
    /// Override the values of a parameter; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE[,VALUE]")]
    pub(crate) settings: Vec<String>,
    /// Directory of the peers' programs
    #[arg(long, value_name = "DIR", default_value = "target/peers")]
    pub(crate) peers: PathBuf,
    /// An nginx binary with HTTP/3 to use instead of the one in the --peers directory
    #[arg(long, value_name = "FILE")]
    pub(crate) nginx: Option<PathBuf>,
    /// Where scenarios run: lab (a veth), guest (an emulated machine whose virtio-net does zero-copy: ratios only),
    /// guest-icount (the same, counting instructions), or nics (see --end); by default all scenarios that support it
    #[arg(long, value_name = "BED", default_value = "lab", value_parser = bed)]
    pub(crate) bed: Bed,
    /// Directory of the guest runner, scripts/guest in the repository
    #[arg(long, value_name = "DIR", default_value = "scripts/guest")]
    pub(crate) guest: PathBuf,
    /// Seconds after which a guest is stopped
    #[arg(long, value_name = "SECONDS", default_value_t = 3600, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) guest_deadline: u64,
    /// Inside a guest: the interfaces of the server and the client
    #[arg(long, hide = true, value_name = "SERVER,CLIENT", value_delimiter = ',', num_args = 1)]
    pub(crate) devices: Vec<String>,
    /// Inside a guest: where to write raw lines
    #[arg(long, hide = true, value_name = "FILE")]
    pub(crate) raw: Option<PathBuf>,
    /// Measure on real NICs, with load from `expressway bench end` at this control address on another host
    #[arg(long, value_name = "ADDR:PORT", requires_all = ["token", "interface"])]
    pub(crate) end: Option<SocketAddr>,
    /// With --end: file with the secret shared by both ends
    #[arg(long, value_name = "FILE", requires = "end")]
    pub(crate) token: Option<PathBuf>,
    /// With --end: the interface of this host to measure; its settings are not changed
    #[arg(long, value_name = "IFACE", requires = "end")]
    pub(crate) interface: Option<String>,
    /// With --end: the address of that interface, if it has several
    #[arg(long, value_name = "IPV4", requires = "end")]
    pub(crate) address: Option<Ipv4Addr>,
    /// With --end: allow XDP programs on the interface during runs; in some scenarios they take all its packets
    #[arg(long, requires = "end")]
    pub(crate) xdp: bool,
    /// With --end: allow toggling the interface's UDP segmentation during runs
    #[arg(long, requires = "end")]
    pub(crate) offloads: bool,
}

/// What is made of raw files.
#[derive(Subcommand)]
pub(crate) enum BenchCommand {
    /// Write report.md, its picture ratios.svg, and report.html, from raw files alone
    Report(BenchReport),
    /// Run the far end of benchmarks between two hosts: start load programs for holders of the token
    End(BenchEnd),
    /// Estimate cores and cost for your traffic from a measured run, and state the assumptions
    Calculate(BenchCalculate),
}

/// The far end: runs only the suite's own load programs, for one near end at a time; nothing outlives the connection.
#[derive(Args)]
pub(crate) struct BenchEnd {
    /// Control address to listen on; one specific address of this host
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) listen: SocketAddr,
    /// File with the secret shared by both ends, at least 32 bytes, readable by its owner only
    #[arg(long, value_name = "FILE")]
    pub(crate) token: PathBuf,
    /// Interface to send load over; its settings are not changed
    #[arg(long, value_name = "IFACE")]
    pub(crate) interface: String,
    /// Address of that interface, if it has several; load goes to its network only
    #[arg(long, value_name = "IPV4")]
    pub(crate) address: Option<Ipv4Addr>,
    /// Core for load programs
    #[arg(long, value_name = "CORE", default_value_t = 0)]
    pub(crate) core: usize,
    /// Allow load programs that attach an XDP program to the interface or send frames that bypass the kernel
    #[arg(long)]
    pub(crate) xdp: bool,
}

/// A run, traffic and prices.
#[derive(Args)]
pub(crate) struct BenchCalculate {
    /// Raw file with a scenario that measures the cost of a gigabit, such as `gateway`
    #[arg(value_name = "RAW")]
    pub(crate) raw: PathBuf,
    /// Gbit/s of bodies to serve
    #[arg(long, value_name = "GBIT", value_parser = positive)]
    pub(crate) gbps: f64,
    /// Hours at that rate
    #[arg(long, value_name = "HOURS", value_parser = positive)]
    pub(crate) hours: f64,
    /// Price of a core per hour
    #[arg(long, value_name = "MONEY", value_parser = positive)]
    pub(crate) core_cost: f64,
    /// Maximum utilisation of a core, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 100, value_parser = clap::value_parser!(u8).range(1..=100))]
    pub(crate) utilisation: u8,
    /// Contestant to compare with, by its name in the tables [default: the scenario's base]
    #[arg(long, value_name = "NAME")]
    pub(crate) from: Option<String>,
}

/// Which raw files, and where to.
#[derive(Args)]
pub(crate) struct BenchReport {
    /// Raw files; each scenario may occur in only one of them
    #[arg(value_name = "RAW", required = true)]
    pub(crate) raw: Vec<PathBuf>,
    /// Title of the report
    #[arg(long, default_value = "Benchmarks")]
    pub(crate) title: String,
}

fn bed(text: &str) -> Result<Bed, String> {
    let names: Vec<&str> = Bed::ALL.iter().map(|bed| bed.name()).collect();
    let found = Bed::ALL.into_iter().find(|bed| bed.name() == text);
    found.ok_or_else(|| format!("expected one of {}", names.join(", ")))
}

fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| "expected a number above 0".into())
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds.ok_or_else(|| "expected seconds from 0.1 to 3600".into())
}
