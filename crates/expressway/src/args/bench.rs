//! What `expressway bench` is told.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use clap::builder::TypedValueParser;
use clap::{Args, Subcommand};
use expressway_bench::Bed;

/// Runs benchmark scenarios in a lab of their own: all, or those named. Needs root. Every run is one JSON
/// line in DIR/raw.jsonl; the table shows medians of runs in alternating order.
#[derive(Args)]
pub(crate) struct Bench {
    #[command(subcommand)]
    pub(crate) command: Option<BenchCommand>,
    /// Scenarios to run: names of --list, or paths of files; all when none is named
    #[arg(value_name = "SCENARIO")]
    pub(crate) scenarios: Vec<String>,
    /// List the scenarios
    #[arg(long)]
    pub(crate) list: bool,
    /// Folder for the raw file, reports and scratch files
    #[arg(long, value_name = "DIR", default_value = "target/bench", global = true)]
    pub(crate) out: PathBuf,
    /// Print the raw lines as one JSON document instead of tables
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Compare two raw files; exit code 1 when something of ours has become worse beyond its interval
    #[arg(long, num_args = 2, value_names = ["OLD", "NEW"], conflicts_with = "scenarios")]
    pub(crate) compare: Option<Vec<PathBuf>>,
    /// What the tour has of each scenario: fewer contestants and points, shorter runs
    #[arg(long)]
    pub(crate) tour: bool,
    /// Run each contestant once more, sampled by perf, and draw flame graphs into DIR/profiles
    #[arg(long)]
    pub(crate) profile: bool,
    /// Rounds in place of the scenario's; each contestant runs once in each
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1000).map(|n| n as usize))]
    pub(crate) rounds: Option<usize>,
    /// Seconds of each run in place of the scenario's
    #[arg(long, value_parser = seconds)]
    pub(crate) seconds: Option<f64>,
    /// Only this contestant, by the name that tables show; may be given several times
    #[arg(long = "server", value_name = "NAME")]
    pub(crate) servers: Vec<String>,
    /// Only bodies of this size; may be given several times
    #[arg(long = "body", value_name = "BYTES")]
    pub(crate) bodies: Vec<String>,
    /// Other values of a parameter; may be given several times
    #[arg(long = "set", value_name = "KEY=VALUE[,VALUE]")]
    pub(crate) settings: Vec<String>,
    /// Folder of the peers' programs
    #[arg(long, value_name = "DIR", default_value = "target/peers")]
    pub(crate) peers: PathBuf,
    /// An nginx binary with HTTP/3 in place of the one among the peers
    #[arg(long, value_name = "FILE")]
    pub(crate) nginx: Option<PathBuf>,
    /// Where scenarios run: lab (a veth), guest (an emulated machine whose virtio-net does zero-copy: ratios only), or
    /// guest-icount (the same, counting instructions), or nics (as --end says); without names, all scenarios that are for it
    #[arg(long, value_name = "BED", default_value = "lab", value_parser = bed)]
    pub(crate) bed: Bed,
    /// Folder of what starts guests, scripts/guest of the repository
    #[arg(long, value_name = "DIR", default_value = "scripts/guest")]
    pub(crate) guest: PathBuf,
    /// Seconds after which a guest is ended
    #[arg(long, value_name = "SECONDS", default_value_t = 3600, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) guest_deadline: u64,
    /// Inside a guest: the interfaces of the server and the client
    #[arg(long, hide = true, value_name = "SERVER,CLIENT", value_delimiter = ',', num_args = 1)]
    pub(crate) devices: Vec<String>,
    /// Inside a guest: where raw lines go
    #[arg(long, hide = true, value_name = "FILE")]
    pub(crate) raw: Option<PathBuf>,
    /// Measure on given NICs, with the load from `expressway bench end` at this control address of another host
    #[arg(long, value_name = "ADDR:PORT", requires_all = ["token", "interface"])]
    pub(crate) end: Option<SocketAddr>,
    /// With --end: the file of the secret that both ends have
    #[arg(long, value_name = "FILE", requires = "end")]
    pub(crate) token: Option<PathBuf>,
    /// With --end: the interface of this host that is measured; as it is found
    #[arg(long, value_name = "IFACE", requires = "end")]
    pub(crate) interface: Option<String>,
    /// With --end: the address of that interface, where it has several
    #[arg(long, value_name = "IPV4", requires = "end")]
    pub(crate) address: Option<Ipv4Addr>,
    /// With --end: allow XDP programs on the interface, for the time of a run; some scenarios' programs take all its packets
    #[arg(long, requires = "end")]
    pub(crate) xdp: bool,
    /// With --end: allow UDP segmentation of the interface to be switched, for the time of a run
    #[arg(long, requires = "end")]
    pub(crate) offloads: bool,
}

/// What is made of raw files.
#[derive(Subcommand)]
pub(crate) enum BenchCommand {
    /// Write report.md and report.html, from raw files alone
    Report(BenchReport),
    /// Be the far end of benchmarks on NICs between two hosts: start load programs for who has the token
    End(BenchEnd),
    /// From a measured run and your traffic to cores and money, with what that assumes
    Calculate(BenchCalculate),
}

/// The far end: only the suite's own load programs, one near end at a time, and nothing outlives its connection.
#[derive(Args)]
pub(crate) struct BenchEnd {
    /// The control address to listen on; one address of this host, not all of them
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) listen: SocketAddr,
    /// The file of the secret that both ends have, 32 bytes at least, readable by its owner alone
    #[arg(long, value_name = "FILE")]
    pub(crate) token: PathBuf,
    /// The interface that load goes over; as it is found
    #[arg(long, value_name = "IFACE")]
    pub(crate) interface: String,
    /// The address of that interface, where it has several; load goes to its network only
    #[arg(long, value_name = "IPV4")]
    pub(crate) address: Option<Ipv4Addr>,
    /// The core of load programs
    #[arg(long, value_name = "CORE", default_value_t = 0)]
    pub(crate) core: usize,
    /// Allow load programs that put an XDP program on the interface, or frames past the kernel
    #[arg(long)]
    pub(crate) xdp: bool,
}

/// A run, traffic and prices.
#[derive(Args)]
pub(crate) struct BenchCalculate {
    /// A raw file with a scenario that measures what a gigabit costs, such as `gateway`
    #[arg(value_name = "RAW")]
    pub(crate) raw: PathBuf,
    /// Gbit/s of bodies to serve
    #[arg(long, value_name = "GBIT", value_parser = positive)]
    pub(crate) gbps: f64,
    /// Hours at that rate
    #[arg(long, value_name = "HOURS", value_parser = positive)]
    pub(crate) hours: f64,
    /// What a core costs an hour
    #[arg(long, value_name = "MONEY", value_parser = positive)]
    pub(crate) core_cost: f64,
    /// How much of a core may be used, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 100, value_parser = clap::value_parser!(u8).range(1..=100))]
    pub(crate) utilisation: u8,
    /// Whom to compare with, by the name that tables show; the scenario's base where it is not given
    #[arg(long, value_name = "NAME")]
    pub(crate) from: Option<String>,
}

/// Which raw files, and where to.
#[derive(Args)]
pub(crate) struct BenchReport {
    /// Raw files; together they have each scenario once
    #[arg(value_name = "RAW", required = true)]
    pub(crate) raw: Vec<PathBuf>,
    /// The report's title
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
