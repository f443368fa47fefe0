//! `expressway bench`: measured comparisons on this machine.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use expressway_bench::{
    BenchError, Contestant, Gateway, Idle, Measurement, PacketIo, Run, Tools, medians, table,
};

use crate::args::Bench;
use crate::fail::Failure;

/// What can be run, with one line on each.
const SCENARIOS: [(&str, &str); 4] = [
    (
        "gateway",
        "server CPU of HTTP/3 gateways, 1 MiB bodies and 1 KiB requests, UDP segmentation off and on",
    ),
    ("idle", "memory of 10,000 idle established connections"),
    ("io", "CPU of a datagram by each way to send and to receive"),
    ("waiting", "round-trip time and CPU by each way to wait"),
];

/// Runs the scenarios named, or all.
pub(crate) fn run(arguments: &Bench) -> Result<ExitCode, Failure> {
    if arguments.list {
        for (name, what) in SCENARIOS {
            println!("{name:10} {what}");
        }
        return Ok(ExitCode::SUCCESS);
    }
    let known = |name: &str| SCENARIOS.iter().any(|(scenario, _)| *scenario == name);
    if let Some(unknown) = arguments.scenarios.iter().find(|name| !known(name)) {
        return Err(Failure::usage(format!("bench: no scenario `{unknown}`; see `expressway bench --list`")));
    }
    let wanted = |name: &str| arguments.scenarios.is_empty() || arguments.scenarios.iter().any(|s| s == name);
    let tools = tools(arguments)?;
    let mut raw = RawFile::create(&arguments.out)?;
    raw.write(&serde_json::json!({ "environment": environment() }))?;
    if wanted("gateway") {
        gateway(arguments, &tools, &mut raw)?;
    }
    if wanted("idle") {
        let memory = Idle::default().run(&tools).map_err(failure)?;
        raw.write(&serde_json::json!({ "idle": memory }))?;
        if !arguments.json {
            println!(
                "\nidle: {} connections, {} B each ({})",
                memory.connections, memory.each, memory.contestant
            );
        }
    }
    let packet_io = PacketIo { rounds: arguments.rounds, seconds: arguments.seconds };
    if wanted("io") {
        runs("io", arguments, &mut raw, |each| packet_io.io(&tools, each))?;
    }
    if wanted("waiting") {
        runs("waiting", arguments, &mut raw, |each| packet_io.waiting(&tools, each))?;
    }
    if arguments.json {
        println!("{}", serde_json::Value::Array(raw.lines));
    }
    Ok(ExitCode::SUCCESS)
}

fn gateway(arguments: &Bench, tools: &Tools, raw: &mut RawFile) -> Result<(), Failure> {
    let mut scenario = Gateway { rounds: arguments.rounds, seconds: arguments.seconds, ..Gateway::default() };
    if tools.nginx.is_none() {
        tracing::warn!("no nginx with HTTP/3 (give --nginx FILE; `make bench` builds one): left out");
        scenario.contestants.retain(|contestant| *contestant != Contestant::Nginx);
    }
    if !arguments.servers.is_empty() {
        let names: Vec<String> = scenario.contestants.iter().map(Contestant::name).collect();
        if let Some(unknown) = arguments.servers.iter().find(|server| !names.contains(server)) {
            return Err(Failure::usage(format!("--server {unknown}: known are {}", names.join(", "))));
        }
        scenario.contestants.retain(|contestant| arguments.servers.contains(&contestant.name()));
    }
    if !arguments.bodies.is_empty() {
        scenario.bodies = arguments.bodies.clone();
    }
    let mut measurements: Vec<Measurement> = Vec::new();
    let mut write_error = None;
    let result = scenario.run(tools, |measurement| {
        tracing::info!(
            server = measurement.contestant,
            body = measurement.body,
            udp_segmentation = measurement.udp_segmentation,
            round = measurement.round,
            gbit_per_cpu_second = format!("{:.2}", measurement.gbit_per_cpu_second()),
            us_per_request = format!("{:.2}", measurement.us_per_request()),
        );
        let line = serde_json::json!({ "gateway": measurement });
        write_error = write_error.take().or(raw.write(&line).err());
        measurements.push(measurement.clone());
    });
    if !arguments.json {
        println!("{}", table(&measurements));
    }
    result.map_err(failure)?;
    write_error.map_or(Ok(()), Err)
}

/// Runs a scenario of packet I/O: each run a line of the raw file, and the medians as a table.
fn runs(
    scenario: &str,
    arguments: &Bench,
    raw: &mut RawFile,
    run: impl FnOnce(&mut dyn FnMut(&Run)) -> Result<(), BenchError>,
) -> Result<(), Failure> {
    let mut all: Vec<Run> = Vec::new();
    let mut write_error = None;
    let result = run(&mut |one| {
        tracing::info!(scenario, run = %serde_json::json!(one));
        write_error = write_error.take().or(raw.write(&serde_json::json!({ scenario: one })).err());
        all.push(one.clone());
    });
    if !arguments.json {
        println!("\n{scenario}:\n{}", medians(&all));
    }
    result.map_err(failure)?;
    write_error.map_or(Ok(()), Err)
}

/// The raw file: one JSON document a line, flushed line by line.
struct RawFile {
    path: PathBuf,
    file: File,
    lines: Vec<serde_json::Value>,
}

impl RawFile {
    fn create(folder: &Path) -> Result<Self, Failure> {
        let failed = |path: &Path, error| Failure::run_time(format!("{}: {error}", path.display()));
        std::fs::create_dir_all(folder).map_err(|error| failed(folder, error))?;
        let path = folder.join("raw.jsonl");
        let file = File::create(&path).map_err(|error| failed(&path, error))?;
        Ok(Self { path, file, lines: Vec::new() })
    }

    fn write(&mut self, line: &serde_json::Value) -> Result<(), Failure> {
        self.lines.push(line.clone());
        writeln!(self.file, "{line}")
            .map_err(|error| Failure::run_time(format!("{}: {error}", self.path.display())))
    }
}

/// What a reader must know of the machine to judge the figures. The commit comes from the environment, as the
/// binary may run anywhere.
fn environment() -> serde_json::Value {
    let read = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("");
    serde_json::json!({
        "version": env!("CARGO_PKG_VERSION"),
        "commit": std::env::var("EXPRESSWAY_COMMIT").unwrap_or_else(|_| "unknown".into()),
        "command": std::env::args().collect::<Vec<_>>().join(" "),
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
        "cpu": model.trim_start_matches([' ', '\t', ':']),
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
    })
}

fn tools(arguments: &Bench) -> Result<Tools, Failure> {
    let expressway =
        std::env::current_exe().map_err(|error| Failure::run_time(format!("own path: {error}")))?;
    let load = expressway.with_file_name("expressway-load");
    if !load.exists() {
        return Err(Failure::run_time(format!(
            "{}: missing; build it with `cargo build --release -p expressway-load`",
            load.display()
        )));
    }
    let io = expressway.with_file_name("expressway-io");
    let nginx = arguments.nginx.clone();
    if let Some(nginx) = nginx.as_ref().filter(|nginx| !nginx.exists()) {
        return Err(Failure::usage(format!("--nginx {}: no such file", nginx.display())));
    }
    let work = std::path::absolute(arguments.out.join("work"))
        .map_err(|error| Failure::run_time(format!("{}: {error}", arguments.out.display())))?;
    Ok(Tools { expressway, load, io, nginx, work })
}

fn failure(error: BenchError) -> Failure {
    Failure::run_time(format!("bench: {error}"))
}
