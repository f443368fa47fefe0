//! `expressway-load`: asks one HTTP/3 server for one path over many connections and streams.
//!
//! It is a peer, not a part of the product: its QUIC is quinn, so that a benchmark never measures our
//! engine against itself. One thread, so that a benchmark can give it one core. It prints `measuring` when
//! the warm-up is over, so that whoever started it can read the server's CPU time at that moment, and one
//! JSON document when it is done.

mod client;
mod count;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant};

use clap::Parser;
use tokio::task::LocalSet;

use client::{Client, LoadError};
use count::Count;

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
    /// Seconds before counting starts.
    #[arg(long, default_value_t = 1.0)]
    warmup: f64,
    /// Seconds to count.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
}

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
    let count = Rc::new(Count::default());
    let mut connections = Vec::with_capacity(arguments.connections);
    for _ in 0..arguments.connections {
        connections.push(client.connect().await?);
    }
    let mut tasks = Vec::new();
    for connection in &connections {
        for _ in 0..arguments.streams {
            tasks.push(tokio::task::spawn_local(connection.clone().ask_forever(count.clone())));
        }
    }
    tokio::time::sleep(Duration::from_secs_f64(arguments.warmup)).await;
    println!("measuring");
    let (started, before) = (Instant::now(), client::udp_received(&connections));
    count.start();
    tokio::time::sleep(Duration::from_secs_f64(arguments.seconds)).await;
    let (elapsed, after) = (started.elapsed(), client::udp_received(&connections));
    let report = count.report(elapsed, arguments.connections, after.0 - before.0, after.1 - before.1);
    for task in tasks {
        task.abort();
    }
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}
