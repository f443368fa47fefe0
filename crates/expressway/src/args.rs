//! The command line. What is described here is also the man page's text.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use expressway_dataplane::IoMode;
use expressway_settings::Span;

use crate::fail::Failure;
use crate::lab::LabCommand;

mod bench;
mod fanout;
mod recv;

pub(crate) use bench::{Bench, BenchCalculate, BenchCommand, BenchEnd, BenchReport};
pub(crate) use fanout::{Fanout, FanoutMode};
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

/// Asks the admin listener of a running process again and again. Of a fan-out it shows the subscribers, those
/// furthest behind first; of a gateway its paths and workers; of both and of others the counters that move. On a terminal it takes the whole screen until
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
}
