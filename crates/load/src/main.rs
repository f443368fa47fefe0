//! `expressway-load`: requests one path from one HTTP/3 server, over many connections and streams.
//!
//! It is a peer, not a part of the product. Its QUIC is quinn, so a benchmark never measures our engine against
//! itself. It has one thread, so a benchmark can give it one core. When the warm-up is over, it prints
//! `measuring`, so that its caller can read the server's CPU time at that moment. When it is done, it prints one
//! JSON document.

mod client;
mod count;
mod request;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant};

use clap::Parser;
use tokio::task::LocalSet;

use client::{Client, LoadError};
use count::Count;
use request::Requests;
use rustix::time::{ClockId, clock_gettime};

/// HTTP/3 load generator.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Address and port of the server.
    #[arg(long)]
    connect: SocketAddr,
    /// Host name for TLS and :authority.
    #[arg(long)]
    name: String,
    /// PEM file of the CA that signed the server's certificate.
    #[arg(long)]
    ca: PathBuf,
    /// Path to GET, with its leading slash.
    #[arg(long, default_value = "/")]
    path: String,
    /// Connections.
    #[arg(long, default_value_t = 1)]
    connections: usize,
    /// Requests at once on each connection; 0 holds idle connections open.
    #[arg(long, default_value_t = 1)]
    streams: usize,
    /// Requests a second in all, each due at its time whether or not others are done; 0: the next when one is done.
    /// Their times then count from when they were due.
    #[arg(long, default_value_t = 0.0)]
    rate: f64,
    /// Ask for ranges of so many bytes, one after the other through the file; 0 asks for all of it.
    #[arg(long, default_value_t = 0)]
    range: u64,
    /// Bytes of the file, for ranges.
    #[arg(long, default_value_t = 0)]
    length: u64,
    /// A new connection for each request, `--connections` of them at a time; times are of handshake and request.
    #[arg(long)]
    handshakes: bool,
    /// Connect again and again until the server's certificate is another one, and say so; nothing is counted.
    #[arg(long)]
    until_new_certificate: bool,
    /// Seconds before counting starts.
    #[arg(long, default_value_t = 1.0)]
    warmup: f64,
    /// Seconds to count.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
}

/// A certificate that has not changed for so long will not.
const PROBE_LIMIT: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("expressway-load: {error}");
            return ExitCode::FAILURE;
        }
    };
    match LocalSet::new().block_on(&runtime, run(arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("expressway-load: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: Arguments) -> Result<(), LoadError> {
    let Arguments { connections, .. } = arguments;
    let client = Client::new(&arguments.ca, arguments.connect, arguments.name, arguments.path, connections)?;
    let client = Rc::new(client);
    if arguments.until_new_certificate {
        return until_new_certificate(&client).await;
    }
    let count = Rc::new(Count::default());
    let requests = Rc::new(Requests::new(arguments.rate, arguments.range, arguments.length));
    let mut connections = Vec::new();
    let mut tasks = Vec::new();
    if arguments.handshakes {
        for _ in 0..arguments.connections {
            tasks.push(tokio::task::spawn_local(client::connect_forever(
                client.clone(),
                requests.clone(),
                count.clone(),
            )));
        }
    } else {
        for _ in 0..arguments.connections {
            connections.push(client.connect().await?);
        }
    }
    requests.start(Instant::now());
    // Stream by stream over all connections, so that an open loop spreads evenly.
    for _ in 0..arguments.streams {
        for connection in &connections {
            tasks.push(tokio::task::spawn_local(
                connection.clone().ask_forever(requests.clone(), count.clone()),
            ));
        }
    }
    tokio::time::sleep(Duration::from_secs_f64(arguments.warmup)).await;
    println!("measuring");
    let received = || {
        let open = client::udp_received(&connections);
        let closed = count.udp_received();
        (open.0 + closed.0, open.1 + closed.1)
    };
    let (started, cpu, before) = (Instant::now(), cpu_time(), received());
    count.start();
    tokio::time::sleep(Duration::from_secs_f64(arguments.seconds)).await;
    let (elapsed, cpu, after) = (started.elapsed(), cpu_time() - cpu, received());
    let report = count.report(elapsed, arguments.connections, (after.0 - before.0, after.1 - before.1), cpu);
    for task in tasks {
        task.abort();
    }
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}

/// Says `connected` after the first handshake, and how many failed when one had another certificate.
async fn until_new_certificate(client: &Client) -> Result<(), LoadError> {
    let first = client.connect().await?.certificate();
    println!("connected");
    let end = Instant::now() + PROBE_LIMIT;
    let mut refused = 0u64;
    while Instant::now() < end {
        match client.connect().await {
            Ok(connection) if connection.certificate() != first => {
                println!("{}", serde_json::json!({ "refused": refused }));
                return Ok(());
            }
            Ok(connection) => connection.close(),
            Err(_) => refused += 1,
        }
    }
    Err(LoadError::SameCertificate(PROBE_LIMIT.as_secs()))
}

/// Nanoseconds that this process has run, user and kernel.
fn cpu_time() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
