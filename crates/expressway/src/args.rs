//! The command line. What is described here is also the man page's text.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use clap::builder::TypedValueParser;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use expressway_bench::Bed;
use expressway_feed::fanout::{Cidr, Framing, SlowClient, StartPolicy};
use expressway_gateway::config::{IoMode, Size, Span};

use crate::fail::Failure;
use crate::lab::LabCommand;

mod recv;

pub(crate) use recv::{Recv, Sequence};

/// HTTP/3 gateway and UDP data plane for Linux on XDP and AF_XDP
#[derive(Parser)]
#[command(name = "expressway", version, max_term_width = 100)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) logging: Logging,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Logs go to standard error.
#[derive(Args)]
pub(crate) struct Logging {
    /// What to log: error, warn, info, debug or trace, also by module (info,expressway_netio=debug);
    /// info if not given, and error for doctor
    #[arg(long, global = true, value_name = "FILTER")]
    pub(crate) log_level: Option<String>,
    /// How to log
    #[arg(long, global = true, value_enum, default_value_t = LogFormat::Text)]
    pub(crate) log_format: LogFormat,
}

/// How log lines look.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people
    Text,
    /// One JSON object a line
    Json,
}

/// What to do.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Serve HTTP/3 from files, over AF_XDP or kernel UDP
    Serve(Serve),
    /// Prepare interfaces and sockets for processes without privilege, by a policy
    Agent(Agent),
    /// Send one UDP feed to many TCP, TLS and WebSocket subscribers
    Fanout(Box<Fanout>),
    /// Show what a running process does: the subscribers of a fan-out, the counters of others
    Top(Top),
    /// Receive UDP datagrams, count them and measure their latency
    Recv(Box<Recv>),
    /// Send datagrams on a schedule, and say how well it was kept
    Gen(GenArguments),
    /// Drop, pass, count, touch, return or redirect all packets of an interface by XDP, and print rates by core
    ///
    /// All traffic of the interface is subject to it: with drop, touch, tx and redirect the kernel gets nothing any more,
    /// ARP and SSH included. SIGINT and SIGTERM take the program off; so does the end of the process, whatever ended it.
    /// Prints `ready interface=IFACE action=ACTION mode=MODE` once it is attached.
    Drop(crate::baseline::Drop),
    /// Make a development CA and a leaf certificate signed by it
    Cert(Cert),
    /// Make, enter and remove a two-namespace veth test bed
    Lab(LabArguments),
    /// Say what packet I/O this host gives, what is in the way, and what mends it
    Doctor(Doctor),
    /// Measure gateways side by side on this machine
    Bench(Box<Bench>),
    /// Write the manual pages
    #[command(hide = true)]
    Man(Man),
}

/// Serves HTTP/3 until SIGTERM or SIGINT, which finish open connections for up to `[server] drain`.
/// SIGHUP reloads sites, files and certificates; a bad new configuration changes nothing.
/// Prints `ready listen=ADDR io=MODE workers=N` for each address once it serves.
#[derive(Args)]
pub(crate) struct Serve {
    /// Configuration file (TOML)
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
    /// Check the configuration and the files that it names, then exit
    #[arg(long)]
    pub(crate) check: bool,
    /// How packets move, over `[io] mode`: auto, zerocopy, copy, hybrid, generic or udp
    #[arg(long, value_name = "MODE")]
    pub(crate) io: Option<IoMode>,
    /// Detach a foreign XDP program from the interface first
    #[arg(long)]
    pub(crate) replace: bool,
    /// Socket of an `expressway agent` that prepares what takes privilege, over `[io] agent`
    #[arg(long, value_name = "PATH")]
    pub(crate) agent: Option<PathBuf>,
}

/// Runs with privilege, in the network namespace whose interfaces it is about: attaches XDP programs, binds
/// AF_XDP and UDP sockets, and passes them over a unix socket to processes without any privilege (`--agent`).
/// The policy file says which users may have which addresses, interfaces, queues and how much memory. What a
/// client has ends with its connection. Prints `ready agent=PATH` once it listens.
#[derive(Args)]
pub(crate) struct Agent {
    /// Policy file (TOML)
    #[arg(long, value_name = "FILE", required_unless_present = "own")]
    pub(crate) config: Option<PathBuf>,
    /// Check the policy, then exit
    #[arg(long)]
    pub(crate) check: bool,
    /// Serve the one client at the other end of standard input, which may have these addresses
    #[arg(long, hide = true, value_name = "ADDR", conflicts_with = "config", num_args = 1..)]
    pub(crate) own: Option<Vec<std::net::SocketAddr>>,
    /// Let that client replace foreign XDP programs
    #[arg(long, hide = true, requires = "own")]
    pub(crate) own_replace: bool,
}

/// Sends what comes to a UDP address or multicast group to every subscriber, until SIGTERM or SIGINT. Subscribers
/// connect at any time. A slow one never delays the others, and never gets a part of a datagram for a whole one.
/// Prints `ready udp=ADDR PROTOCOL=ADDR mode=MODE io=IO threads=N` for each address once it serves. SIGUSR1
/// prints statistics.
#[derive(Args)]
pub(crate) struct Fanout {
    /// Where the feed comes to: an address of this machine, or a multicast group
    #[arg(long, value_name = "ADDR")]
    pub(crate) udp: SocketAddr,
    /// Where TCP subscribers connect; may be given several times
    #[arg(long, value_name = "ADDR")]
    pub(crate) tcp: Vec<SocketAddr>,
    /// Where TLS subscribers connect
    #[arg(long, value_name = "ADDR", requires = "certificate")]
    pub(crate) tls: Vec<SocketAddr>,
    /// Where WebSocket subscribers connect: the feed at /feed, a page with a live example at /
    #[arg(long, value_name = "ADDR")]
    pub(crate) ws: Vec<SocketAddr>,
    /// Where WebSocket subscribers connect by TLS
    #[arg(long, value_name = "ADDR", requires = "certificate")]
    pub(crate) wss: Vec<SocketAddr>,
    /// Certificate chain of --tls and --wss (PEM)
    #[arg(long, value_name = "FILE", requires = "private_key")]
    pub(crate) certificate: Option<PathBuf>,
    /// Its private key (PEM)
    #[arg(long, value_name = "FILE", requires = "certificate")]
    pub(crate) private_key: Option<PathBuf>,
    /// Interface that the feed comes by: to join the multicast group on [default: that of the route to the group], or to
    /// take a unicast feed at, with --mode kernel [default: the one that has the address]
    #[arg(long, value_name = "IFACE")]
    pub(crate) interface: Option<String>,
    /// Only datagrams from this address; may be given several times. A multicast group is joined for these
    /// sources alone
    #[arg(long, value_name = "ADDR")]
    pub(crate) source: Vec<IpAddr>,
    /// Who forwards: user (this process), kernel (BPF programs; plain TCP subscribers only, takes privilege), or auto,
    /// which says what it chose and why
    #[arg(long, value_name = "MODE", default_value = "auto")]
    pub(crate) mode: FanoutMode,
    /// How the feed is received: udp, or as with `serve` auto, zerocopy, copy, hybrid or generic. Multicast groups are
    /// received by udp
    #[arg(long, value_name = "MODE", default_value = "udp")]
    pub(crate) io: IoMode,
    /// Detach a foreign XDP program from the interface first
    #[arg(long)]
    pub(crate) replace: bool,
    /// Socket of an `expressway agent` that prepares what takes privilege, in its network namespace: the feed is received
    /// there, subscribers connect here
    #[arg(long, value_name = "PATH")]
    pub(crate) agent: Option<PathBuf>,
    /// What stands before each datagram in TCP and TLS streams: none, len16 or len32 (its length in network order)
    #[arg(long, value_name = "FRAMING", default_value = "none")]
    pub(crate) framing: Framing,
    /// What becomes of a slow subscriber: drop (it jumps to the newest datagram) or disconnect
    /// [default: drop; disconnect with framing none]
    #[arg(long, value_name = "POLICY")]
    pub(crate) slow_client: Option<SlowClient>,
    /// Bytes that a subscriber may be behind before it is slow
    #[arg(long, value_name = "SIZE", default_value = "4MiB")]
    pub(crate) max_lag: Size,
    /// How old the oldest datagram that a subscriber waits for may be before it is slow
    #[arg(long, value_name = "DURATION", default_value = "1s")]
    pub(crate) max_age: Span,
    /// A subscriber that takes nothing for so long is disconnected
    #[arg(long, value_name = "DURATION", default_value = "30s")]
    pub(crate) stall: Span,
    /// Send buffer of each subscriber in the kernel (SO_SNDBUF)
    #[arg(long, value_name = "SIZE", default_value = "256KiB")]
    pub(crate) send_buffer: Size,
    /// Bytes of the feed that are retained; at least twice --max-lag
    #[arg(long, value_name = "SIZE", default_value = "16MiB")]
    pub(crate) ring: Size,
    /// Where subscribers start: next, last:N, snapshot, or ask (the first line that they send says which of those)
    #[arg(long, value_name = "START", default_value = "next")]
    pub(crate) start: StartPolicy,
    /// A datagram that begins with these bytes is a snapshot, of which the newest is kept
    #[arg(long, value_name = "HEX")]
    pub(crate) snapshot_prefix: Option<Hex>,
    /// Who may subscribe, as ADDRESS or ADDRESS/PREFIX; may be given several times [default: everybody]
    #[arg(long, value_name = "CIDR")]
    pub(crate) allow: Vec<Cidr>,
    /// A web origin besides the server's own whose pages may subscribe (https://host), or *
    #[arg(long, value_name = "ORIGIN")]
    pub(crate) origin: Vec<String>,
    /// Subscribers at once
    #[arg(long, value_name = "N", default_value_t = 4096)]
    pub(crate) max_subscribers: usize,
    /// How long TLS and WebSocket handshakes, and the line of --start ask, may take
    #[arg(long, value_name = "DURATION", default_value = "10s")]
    pub(crate) handshake_timeout: Span,
    /// Receive buffer of the UDP socket (SO_RCVBUF)
    #[arg(long, value_name = "SIZE", default_value = "4MiB")]
    pub(crate) receive_buffer: Size,
    /// Threads that send; the first also receives
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) threads: usize,
    /// Address of /metrics, /subscribers and /healthz
    #[arg(long, value_name = "ADDR")]
    pub(crate) admin: Option<SocketAddr>,
    /// Print ready lines and statistics as JSON, one document a line; statistics also at the end
    #[arg(long)]
    pub(crate) json: bool,
}

/// Asks the admin listener of a running process again and again. Of a fan-out it shows the subscribers, those
/// furthest behind first; of other processes the counters that move. On a terminal it takes the whole screen until
/// SIGINT; elsewhere it prints each sample.
#[derive(Args)]
pub(crate) struct Top {
    /// Admin listener of the process
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9180")]
    pub(crate) admin: SocketAddr,
    /// Time between samples; rates are of this time
    #[arg(long, value_name = "DURATION", default_value = "1s")]
    pub(crate) interval: Span,
    /// Show one sample, after one interval, and exit
    #[arg(long)]
    pub(crate) once: bool,
    /// Print each sample as one JSON document a line
    #[arg(long)]
    pub(crate) json: bool,
    /// Not in this version
    #[arg(short, long, value_name = "IFACE", hide = true)]
    pub(crate) interface: Option<String>,
}

/// Who forwards datagrams to subscribers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum FanoutMode {
    /// Whoever does it best here.
    Auto,
    /// This process.
    User,
    /// BPF programs in the kernel.
    Kernel,
}

impl FromStr for FanoutMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "user" => Ok(Self::User),
            "kernel" => Ok(Self::Kernel),
            _ => Err(format!("`{text}` is none of auto, user, kernel")),
        }
    }
}

/// Bytes in hexadecimal.
#[derive(Clone)]
pub(crate) struct Hex(pub(crate) Vec<u8>);

impl FromStr for Hex {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let pairs = text.as_bytes().chunks(2);
        let byte = |pair: &[u8]| match pair {
            [_, _] => std::str::from_utf8(pair).ok().and_then(|pair| u8::from_str_radix(pair, 16).ok()),
            _ => None,
        };
        let digits = text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let bytes: Option<Vec<u8>> = pairs.map(byte).collect();
        bytes.filter(|_| digits).map(Self).ok_or_else(|| format!("`{text}` is no bytes in hexadecimal"))
    }
}

/// Writes ca.pem, cert.pem (the leaf and the CA) and key.pem. An existing CA in the folder (ca.pem and
/// ca-key.pem) signs further leaves; existing leaf files are replaced.
#[derive(Args)]
pub(crate) struct Cert {
    /// Host name or address that the certificate is for; may be given several times
    #[arg(long = "host", value_name = "NAME", required = true)]
    pub(crate) hosts: Vec<String>,
    /// Folder to write to; made if it is missing
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// Days that the leaf is valid, at most 397 (browsers accept no more)
    #[arg(long, default_value_t = 90, value_parser = clap::value_parser!(u16).range(1..=397))]
    pub(crate) days: u16,
    /// Print the files written as one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// Generates traffic.
#[derive(Args)]
pub(crate) struct GenArguments {
    #[command(subcommand)]
    pub(crate) kind: crate::generate::Kind,
}

/// The lab is two network namespaces, `server` and `client`, joined by a multi-queue veth. Nothing in it
/// reaches a real network.
#[derive(Args)]
pub(crate) struct LabArguments {
    #[command(subcommand)]
    pub(crate) command: LabCommand,
}

/// Looks at the kernel, privileges, limits and interfaces and changes nothing, unless told by --fix or --probe.
/// Each problem comes with the command that mends it. The exit code is 1 when a problem is left, else 0.
#[derive(Args)]
pub(crate) struct Doctor {
    /// Only this interface; may be given several times
    #[arg(short, long = "interface", value_name = "IFACE")]
    pub(crate) interfaces: Vec<String>,
    /// Try each I/O mode for real: attach the XDP program, bind sockets, send a probe frame, and take all of it off
    /// again. Other traffic passes; some drivers restart the link
    #[arg(long)]
    pub(crate) probe: bool,
    /// Mend what harms QUIC and can be undone: UDP hashed without ports, GRO that merges or chains datagrams,
    /// VLAN tags taken out of frames
    #[arg(long, conflicts_with = "agent")]
    pub(crate) fix: bool,
    /// Look at the interfaces of the expressway agent at this socket, and try modes by what it gives
    #[arg(long, value_name = "PATH")]
    pub(crate) agent: Option<PathBuf>,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

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
    /// With --end: allow XDP programs on the interface, for the time of a run
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

/// Where to write the manual pages.
#[derive(Args)]
pub(crate) struct Man {
    /// Folder to write to; made if it is missing
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
}

/// Writes one page a command, from the same source as `--help`.
pub(crate) fn man(arguments: &Man) -> Result<std::process::ExitCode, Failure> {
    let out = &arguments.out;
    std::fs::create_dir_all(out).map_err(|error| Failure::run_time(format!("{}: {error}", out.display())))?;
    clap_mangen::generate_to(Arguments::command(), out)
        .map_err(|error| Failure::run_time(format!("{}: {error}", out.display())))?;
    Ok(std::process::ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn hexadecimal_is_whole_bytes() {
        assert_eq!("00ffA5".parse::<Hex>().map(|hex| hex.0), Ok(vec![0, 0xff, 0xa5]));
        for bad in ["0", "0g", "+1", "\u{e9}"] {
            assert!(bad.parse::<Hex>().is_err(), "{bad}");
        }
    }
}
