//! The command line. What is described here is also the man page's text.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use clap_complete::{Shell, generate_to};
use expressway_dataplane::IoMode;

use crate::fail::Failure;

mod admin;
mod balance;
mod bench;
mod drop;
mod dump;
mod fanout;
mod forward;
pub(crate) mod generate;
mod guard;
mod keys;
mod lab;
mod qlog;
mod recv;
mod relay;
mod top;
mod trace;

pub(crate) use admin::{AdminListener, AdminPeer};
pub(crate) use balance::Balance;
pub(crate) use bench::{Bench, BenchCalculate, BenchCommand, BenchEnd, BenchReport};
pub(crate) use drop::Drop;
pub(crate) use dump::{Directions, Dump, Extcap, PayloadType, Text, XdpPoint};
pub(crate) use fanout::{Fanout, FanoutMode};
pub(crate) use forward::Forward;
pub(crate) use guard::Guard;
pub(crate) use keys::{KeysArguments, KeysCommand, KeysNew, KeysRotate, KeysShow, KeysVerify};
pub(crate) use lab::{LabArguments, LabCommand};
pub(crate) use qlog::Qlog;
pub(crate) use recv::{Recv, Sequence};
pub(crate) use relay::Relay;
pub(crate) use top::{Top, TopBy};
pub(crate) use trace::Trace;

/// HTTP/3 gateway and UDP data plane for Linux on XDP and AF_XDP
#[derive(Parser)]
#[command(name = "expressway", version, max_term_width = 100)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) logging: Logging,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Keeps these out of the options of each command.
const LOGGING: &str = "Logging";

/// Logs go to standard error.
#[derive(Args)]
pub(crate) struct Logging {
    /// Log level: error, warn, info, debug or trace, optionally per module (info,expressway_netio=debug);
    /// default info, error for doctor, top and trace
    #[arg(long, global = true, value_name = "FILTER", help_heading = LOGGING)]
    pub(crate) log_level: Option<String>,
    /// Log format
    #[arg(long, global = true, value_enum, default_value_t = LogFormat::Text, help_heading = LOGGING)]
    pub(crate) log_format: LogFormat,
}

/// How log lines look.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum LogFormat {
    /// Human-readable
    Text,
    /// One JSON object per line
    Json,
}

/// What to do.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Serve HTTP/3, HTTP/2 and HTTP/1.1 from files, a cache and origins, over AF_XDP or kernel sockets
    Serve(Serve),
    /// Replace a running `serve` with the binary on disk, without losing a connection
    Upgrade(Upgrade),
    /// Prepare interfaces and sockets for unprivileged processes, according to a policy
    Agent(Agent),
    /// Create a development CA and a leaf certificate signed by it
    Cert(Cert),
    /// Make, rotate and check the keys that several servers share
    Keys(KeysArguments),
    /// Receive UDP datagrams, count them and measure latency
    Recv(Box<Recv>),
    /// Send one UDP feed to many TCP, TLS and WebSocket subscribers
    Fanout(Box<Fanout>),
    /// Relay live media over UDP: RTP, WebRTC or plain datagrams from one publisher to many receivers
    Relay(Relay),
    /// Send datagrams on a schedule and report how well it was kept
    Gen(GenArguments),
    /// Capture packets like tcpdump, including those that bypass the kernel through XDP and AF_XDP
    Dump(Box<Dump>),
    /// Show the live traffic of an interface, AF_XDP included, or the statistics of a running process
    Top(Box<Top>),
    /// Follow requests through a running gateway, hop by hop: how long each step takes
    ///
    /// The steps of a request over HTTP/3: datagram received, taken by the worker, decrypted, request head complete, handler,
    /// response head, first packets built, given to the kernel, completed, acknowledged. Over TCP, the last step is giving the
    /// response to the kernel. Shows how long each step took, and a time line of the slowest request; on a terminal, while the
    /// trace runs. SIGINT ends the trace and shows the result so far.
    ///
    /// Needs the process's admin listener (`listen` of `[admin]`). Shows client addresses and URLs, but no bodies and no other
    /// header fields.
    Trace(Trace),
    /// Write the qlog of one connection of a running gateway
    ///
    /// Waits for the first datagram of a matching connection, and records that connection from then on, until it closes or reaches a
    /// limit. The file can be opened by qvis and other qlog tools; its last event says why the recording ended. SIGINT ends the
    /// recording and keeps the file.
    ///
    /// Needs the process's admin listener (`listen` of `[admin]`).
    Qlog(Qlog),
    /// Filter floods in XDP: allow and block lists, rules and rate limits that change while traffic flows
    Guard(Guard),
    /// Route between interfaces in XDP using the kernel's tables, and copy UDP feeds to receivers
    Forward(Forward),
    /// Balance services across nodes at layer 4, in XDP
    Balance(Balance),
    /// Drop, pass, count, touch, return or redirect all packets of an interface in XDP, and print per-core rates
    ///
    /// This affects all traffic of the interface: with drop, touch, tx and redirect the kernel no longer receives anything,
    /// ARP and SSH included. The program is detached on SIGINT, on SIGTERM, and whenever the process ends.
    /// Prints `ready interface=IFACE action=ACTION mode=MODE` once it is attached.
    Drop(Drop),
    /// Report which packet I/O modes this host supports, what prevents others, and how to fix it
    Doctor(Doctor),
    /// Create, enter and remove a two-namespace veth test bed
    Lab(LabArguments),
    /// Measure gateways side by side on this machine
    Bench(Box<Bench>),
    /// Start the next process of a server
    #[command(hide = true)]
    Launch(Launch),
    /// Write the manual pages
    #[command(hide = true)]
    Man(OutputFolder),
    /// Write the completions of bash, zsh and fish
    #[command(hide = true)]
    Completions(OutputFolder),
}

/// Serves until SIGTERM or SIGINT, then gives open connections up to `[server] drain` to finish.
/// SIGHUP reloads sites, files and certificates; an invalid configuration is rejected and changes nothing.
/// Prints `ready listen=ADDR io=MODE workers=N` for each address once it is serving.
#[derive(Args)]
pub(crate) struct Serve {
    /// Directory to serve to this machine only (localhost), with a development certificate
    #[arg(value_name = "DIR", required_unless_present = "config", conflicts_with = "config")]
    pub(crate) directory: Option<PathBuf>,
    /// Configuration file (TOML)
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Address to serve DIR at; may be repeated [default: port 8443 on localhost]
    #[arg(long, value_name = "ADDR", requires = "directory")]
    pub(crate) listen: Vec<SocketAddr>,
    /// Check the configuration and the files it refers to, print it with all defaults, then exit
    #[arg(long)]
    pub(crate) check: bool,
    /// Packet I/O mode, overrides `[io] mode`: auto, zerocopy, copy, hybrid, generic or udp
    #[arg(long, value_name = "MODE")]
    pub(crate) io: Option<IoMode>,
    /// Detach a foreign XDP program from the interface first
    #[arg(long)]
    pub(crate) replace: bool,
    /// Socket of an `expressway agent` that does the privileged set-up, overrides `[io] agent`
    #[arg(long, value_name = "PATH")]
    pub(crate) agent: Option<PathBuf>,
    /// Take over from the process at the other end of standard input
    #[arg(long, hide = true, conflicts_with = "check")]
    pub(crate) take_over: bool,
}

/// Asks a running `expressway serve` to start the binary on disk with the same arguments. The new process takes over the sockets and
/// all new connections; the old one finishes its own for up to `[server] upgrade_drain`. Prints `generation=N pid=PID` once the
/// new process is serving. If that fails (invalid configuration, not ready within `[server] upgrade_timeout`), the old process
/// keeps serving, and the command prints the reason and exits with 1. SIGUSR2 also starts an upgrade, and its outcome is logged.
#[derive(Args)]
pub(crate) struct Upgrade {
    #[command(flatten)]
    pub(crate) peer: AdminPeer,
}

/// Starts the next process for a server that is not allowed to.
#[derive(Args)]
pub(crate) struct Launch {
    /// The server's command line
    #[arg(last = true, required = true)]
    pub(crate) words: Vec<OsString>,
}

/// Runs privileged, in the network namespace of the interfaces it manages: attaches XDP programs, binds
/// AF_XDP and UDP sockets, and passes them over a unix socket to unprivileged processes (`--agent`).
/// The policy file says which users may use which addresses, interfaces and queues, and how much memory. The agent
/// reclaims a client's resources when its connection ends. Prints `ready agent=PATH` once it is listening.
#[derive(Args)]
pub(crate) struct Agent {
    /// Policy file (TOML)
    #[arg(long, value_name = "FILE", required_unless_present = "own")]
    pub(crate) config: Option<PathBuf>,
    /// Check the policy, then exit
    #[arg(long)]
    pub(crate) check: bool,
    /// Serve the single client at the other end of standard input, which may use these addresses
    #[arg(long, hide = true, value_name = "ADDR", conflicts_with = "config", num_args = 1..)]
    pub(crate) own: Option<Vec<std::net::SocketAddr>>,
    /// Let that client replace foreign XDP programs
    #[arg(long, hide = true, requires = "own")]
    pub(crate) own_replace: bool,
}

/// Writes ca.pem, cert.pem (the leaf and the CA) and key.pem. An existing CA in the directory (ca.pem and
/// ca-key.pem) is reused to sign further leaves; existing leaf files are replaced.
#[derive(Args)]
pub(crate) struct Cert {
    /// Host name or address for the certificate; may be repeated
    #[arg(long = "host", value_name = "NAME", required_unless_present = "ech")]
    pub(crate) hosts: Vec<String>,
    /// Write a key for Encrypted Client Hello instead, and print `ech=` for the HTTPS record; observers see NAME instead
    /// of the host
    #[arg(long, value_name = "NAME", conflicts_with = "hosts")]
    pub(crate) ech: Option<String>,
    /// Output directory; created if missing
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// Validity of the leaf in days, at most 397 (browsers accept no more)
    #[arg(long, default_value_t = 90, value_parser = clap::value_parser!(u16).range(1..=397))]
    pub(crate) days: u16,
    /// Print the names of the written files as one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// Generates traffic.
#[derive(Args)]
pub(crate) struct GenArguments {
    #[command(subcommand)]
    pub(crate) kind: generate::Kind,
}

/// Checks the kernel, privileges, limits and interfaces. Changes nothing without --fix or --probe.
/// Names a command to fix each problem. The exit code is 1 if a problem remains, otherwise 0.
#[derive(Args)]
pub(crate) struct Doctor {
    /// Check only this interface; may be repeated
    #[arg(short, long = "interface", value_name = "IFACE")]
    pub(crate) interfaces: Vec<String>,
    /// Try each I/O mode: attach the XDP program, bind sockets, send a probe frame, then undo everything. Other traffic
    /// passes; some drivers reset the link
    #[arg(long)]
    pub(crate) probe: bool,
    /// Fix settings that harm QUIC and can be reverted: UDP hashed without ports, GRO that merges or chains datagrams,
    /// VLAN tags stripped from frames
    #[arg(long, conflicts_with = "agent")]
    pub(crate) fix: bool,
    /// Check the interfaces of the expressway agent at this socket, and try modes with what it provides
    #[arg(long, value_name = "PATH")]
    pub(crate) agent: Option<PathBuf>,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// Where to write what comes of the command line's description.
#[derive(Args)]
pub(crate) struct OutputFolder {
    /// Output directory; created if missing
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
}

/// Writes one page per command, from the same source as `--help`.
pub(crate) fn man(arguments: &OutputFolder) -> Result<std::process::ExitCode, Failure> {
    arguments.write(|out| clap_mangen::generate_to(Arguments::command(), out))
}

/// Writes `expressway.bash`, `_expressway` (zsh) and `expressway.fish`.
pub(crate) fn completions(arguments: &OutputFolder) -> Result<std::process::ExitCode, Failure> {
    arguments.write(|out| {
        let mut command = Arguments::command();
        [Shell::Bash, Shell::Zsh, Shell::Fish]
            .iter()
            .try_for_each(|shell| generate_to(*shell, &mut command, "expressway", out).map(drop))
    })
}

impl OutputFolder {
    fn write(
        &self,
        write: impl FnOnce(&Path) -> std::io::Result<()>,
    ) -> Result<std::process::ExitCode, Failure> {
        let failed = |error| Failure::run_time(format!("{}: {error}", self.out.display()));
        std::fs::create_dir_all(&self.out).map_err(failed)?;
        write(&self.out).map_err(failed)?;
        Ok(std::process::ExitCode::SUCCESS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }
}
