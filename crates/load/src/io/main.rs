//! `expressway-io`: packet I/O by itself, for the benchmarks. It echoes, sends, counts, or measures round trips, with one
//! method of packet I/O and one way of waiting. It has one thread; its caller gives it a core.
//!
//! It prints `ready` when it listens, and one JSON document when it is done.

mod ask;
mod backend;
mod frames;
mod ping;
mod role;
mod subscribe;
mod transact;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use expressway_dataplane::{UdpSend, WaitStrategy};
use expressway_wire::MacAddr;
use frames::Fate;

/// Packet I/O by itself.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    /// Sends back what comes, until it is killed.
    Echo {
        #[command(flatten)]
        path: PathArguments,
    },
    /// Counts what comes.
    Sink {
        #[command(flatten)]
        path: PathArguments,
        /// Seconds.
        #[arg(long, default_value_t = 2.0)]
        seconds: f64,
    },
    /// Sends as fast as it can.
    Send {
        #[command(flatten)]
        path: PathArguments,
        /// Where to.
        #[arg(long)]
        to: SocketAddr,
        /// Bytes of a payload.
        #[arg(long, default_value_t = 64)]
        size: usize,
        /// Seconds.
        #[arg(long, default_value_t = 2.0)]
        seconds: f64,
    },
    /// Subscribes many times to a fan-out of generated datagrams without framing, and measures their latency.
    Subscribe {
        /// Where to.
        #[arg(long)]
        to: SocketAddr,
        /// Subscribers.
        #[arg(long, default_value_t = 1)]
        subscribers: usize,
        /// Bytes of each datagram, 24 at least.
        #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u16).range(24..))]
        size: u16,
        /// Seconds from the first datagram on that are not counted.
        #[arg(long, default_value_t = 1.0)]
        warmup: f64,
        /// Seconds that are.
        #[arg(long, default_value_t = 2.0)]
        seconds: f64,
        /// Seconds to wait for what was due in that time.
        #[arg(long, default_value_t = 2.0)]
        drain: f64,
    },
    /// Sends back what comes by a plain kernel socket that it never sleeps on, until it is killed.
    Answer {
        /// Address and port of its own.
        #[arg(long)]
        listen: SocketAddr,
    },
    /// Answers each byte on TCP connections by one, until it is killed.
    Server {
        /// Address and port of its own.
        #[arg(long)]
        listen: SocketAddr,
    },
    /// Counts transactions of one byte there and one back, on TCP connections that stay.
    Transact {
        /// Where to.
        #[arg(long)]
        to: SocketAddr,
        /// Connections.
        #[arg(long, default_value_t = 32)]
        connections: usize,
        /// Seconds from when all are connected that are not counted.
        #[arg(long, default_value_t = 0.5)]
        warmup: f64,
        /// Seconds that are.
        #[arg(long, default_value_t = 2.0)]
        seconds: f64,
    },
    /// Takes whole frames by AF_XDP in copy mode, on queue 0, and drops them, until SIGINT.
    Drop {
        #[command(flatten)]
        taken: Taken,
    },
    /// The same, and sends them back out of the interface with their hardware addresses swapped.
    Back {
        #[command(flatten)]
        taken: Taken,
    },
    /// Sends whole frames by AF_XDP in copy mode from queue 0, as fast as it can, until SIGINT.
    Flood {
        /// Interface.
        #[arg(long)]
        interface: String,
        /// Source of the datagrams.
        #[arg(long)]
        from: SocketAddr,
        /// Their destination.
        #[arg(long)]
        to: SocketAddr,
        /// Hardware address of the next hop.
        #[arg(long)]
        to_mac: MacAddr,
        /// Bytes of a payload.
        #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(..=1472))]
        size: u16,
    },
    /// Measures round trips, one question at a time.
    Ask {
        #[command(flatten)]
        path: PathArguments,
        /// Where to.
        #[arg(long)]
        to: SocketAddr,
        /// Bytes of a payload, 8 at least.
        #[arg(long, default_value_t = 64)]
        size: usize,
        /// Microseconds between an answer and the next question.
        #[arg(long, default_value_t = 100)]
        pause: u64,
        /// Seconds.
        #[arg(long, default_value_t = 2.0)]
        seconds: f64,
    },
    /// The same by a plain kernel socket that it never sleeps on.
    Ping {
        /// Where to.
        #[arg(long)]
        to: SocketAddr,
        /// Bytes of a payload, 8 at least.
        #[arg(long, default_value_t = 64)]
        size: usize,
        /// Microseconds between an answer and the next question.
        #[arg(long, default_value_t = 100)]
        pause: u64,
        /// Seconds.
        #[arg(long, default_value_t = 2.0)]
        seconds: f64,
    },
}

/// Which frames are taken.
#[derive(clap::Args)]
struct Taken {
    /// Interface.
    #[arg(long)]
    interface: String,
    /// Address and port that they are for.
    #[arg(long)]
    address: SocketAddr,
}

/// How packets move, and how to wait for them.
#[derive(clap::Args)]
struct PathArguments {
    /// Address and port of its own.
    #[arg(long)]
    listen: SocketAddr,
    /// Interface for AF_XDP; without it, kernel UDP.
    #[arg(long)]
    interface: Option<String>,
    /// AF_XDP in zero-copy, or not at all, in place of copy mode.
    #[arg(long, requires = "interface")]
    zero_copy: bool,
    /// How kernel UDP sends.
    #[arg(long, default_value_t)]
    sending: UdpSend,
    /// Receive by kernel UDP without GRO.
    #[arg(long)]
    no_gro: bool,
    /// How to wait.
    #[arg(long, default_value_t)]
    wait: WaitStrategy,
}

fn main() -> ExitCode {
    let result = match Arguments::parse().role {
        Role::Echo { path } => role::run(&path, role::Echo::default()).map(|_| None),
        Role::Sink { path, seconds } => {
            role::run(&path, role::Sink::new(Duration::from_secs_f64(seconds))).map(Some)
        }
        Role::Send { path, to, size, seconds } => {
            role::run(&path, role::Send::new(path.listen, to, size, Duration::from_secs_f64(seconds)))
                .map(Some)
        }
        Role::Subscribe { to, subscribers, size, warmup, seconds, drain } => {
            let [warmup, seconds, drain] = [warmup, seconds, drain].map(Duration::from_secs_f64);
            let size = usize::from(size);
            subscribe::run(&subscribe::Subscribe { to, subscribers, size, warmup, seconds, drain }).map(Some)
        }
        Role::Drop { taken } => frames::take(&taken.interface, taken.address, Fate::Drop).map(|()| None),
        Role::Back { taken } => frames::take(&taken.interface, taken.address, Fate::Back).map(|()| None),
        Role::Flood { interface, from, to, to_mac, size } => {
            frames::send(&interface, (from, to), to_mac, usize::from(size)).map(|()| None)
        }
        Role::Answer { listen } => ping::answer(listen).map(|never| match never {}),
        Role::Server { listen } => transact::serve(listen).map(|never| match never {}),
        Role::Transact { to, connections, warmup, seconds } => {
            let [warmup, seconds] = [warmup, seconds].map(Duration::from_secs_f64);
            transact::run(&transact::Transact { to, connections, warmup, seconds }).map(Some)
        }
        Role::Ask { path, to, size, pause, seconds } => {
            let (pause, seconds) = (Duration::from_micros(pause), Duration::from_secs_f64(seconds));
            let ask = ask::Ask::new((path.listen, to), size, pause, seconds);
            role::run_with(&path, ask, |ask, _| ask.trips().document()).map(Some)
        }
        Role::Ping { to, size, pause, seconds } => {
            ping::run(to, size, Duration::from_micros(pause), Duration::from_secs_f64(seconds)).map(Some)
        }
    };
    match result {
        Ok(report) => {
            if let Some(report) = report {
                println!("{report}");
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("expressway-io: {error}");
            ExitCode::FAILURE
        }
    }
}
