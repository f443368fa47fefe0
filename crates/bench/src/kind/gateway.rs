//! HTTP servers under load: CPU per gigabit and per request, capacity, and latency.

use std::collections::BTreeMap;
use std::time::Duration;

use expressway_lab::{LabConfig, Offload, Role};

use super::{Better, Kind, Metric, Outcome, Run, Table, pinned_lab};
use crate::cpu::Account;
use crate::load::{Counted, Load, Running};
use crate::scenario::{Bed, Case, Form, Parameter, Value};
use crate::server::{
    self, CONTENT, IO, MTU, PROTOCOL, SERVER, Server, UDP_SEGMENTATION, UDP_SEND, WORKERS, is_tcp,
};
use crate::{BenchError, CLIENT_CORE, Tools, h2load, offload, peers, profile};

/// The kind.
pub(crate) struct Gateway;

static PARAMETERS: [Parameter; 13] = [
    SERVER,
    PROTOCOL,
    CONTENT,
    IO,
    UDP_SEND,
    WORKERS,
    // Bytes of the file; caching servers hold it in memory.
    Parameter::new("body", Form::Bytes(1, 1 << 30), Value::Count(1 << 20)),
    // 0: whole files; otherwise consecutive ranges of this many bytes.
    Parameter::new("range", Form::Bytes(0, 1 << 30), Value::Count(0)),
    Parameter::new("connections", Form::Count(1, 20_000), Value::Count(4)),
    Parameter::new("streams", Form::Count(1, 128), Value::Count(8)),
    // Total requests a second; 0: a closed loop.
    Parameter::new("rate", Form::Number(0.0), Value::Number(0.0)),
    UDP_SEGMENTATION,
    MTU,
];

static METRICS: [Metric; 13] = [
    Metric::new("gbit_per_cpu_second", "Gbit/CPU-s", "Gbit", Better::Higher, 2),
    Metric::new("us_per_request", "CPU a request", "us", Better::Lower, 2),
    Metric::new("cpu_percent", "CPU", "%", Better::Lower, 1),
    Metric::new("gbit_per_second", "Gbit/s", "Gbit/s", Better::Higher, 2),
    Metric::new("requests_per_second", "requests/s", "1/s", Better::Higher, 0),
    Metric::new("latency_p50_us", "p50", "us", Better::Lower, 0),
    Metric::new("latency_p99_us", "p99", "us", Better::Lower, 0),
    Metric::new("latency_p999_us", "p99.9", "us", Better::Lower, 0),
    Metric::new("napi_share_percent", "NAPI share", "%", Better::Neither, 0),
    Metric::new("bytes_per_datagram", "B/datagram", "B", Better::Neither, 0),
    Metric::new("client_cpu_percent", "client CPU", "%", Better::Neither, 0),
    // In place of times and rates on beds whose clock counts instructions.
    Metric::new("instructions_per_byte", "instructions a byte", "", Better::Lower, 2),
    Metric::new("instructions_per_datagram", "instructions a datagram", "", Better::Neither, 0),
];

static TABLE: Table = Table { name: "gateway", parameters: &PARAMETERS, metrics: &METRICS };

impl Kind for Gateway {
    fn table(&self) -> &'static Table {
        &TABLE
    }

    fn check(&self, case: &Case) -> Result<(), String> {
        let (range, body) = (case.count("range"), case.count("body"));
        if range > body {
            return Err(format!("range is {range} B of a body of {body}"));
        }
        if is_tcp(case) && (range > 0 || case.number("rate") > 0.0) {
            return Err("range and rate: not supported by h2load; use protocol h3".into());
        }
        Ok(())
    }

    fn measure(&self, run: &Run<'_>) -> Result<Outcome, BenchError> {
        let case = run.case;
        let load = Load {
            connections: case.count("connections") as usize,
            streams: case.count("streams") as usize,
            rate: case.number("rate"),
            range: case.count("range"),
            body: case.count("body"),
            handshakes: false,
            warmup: run.effort.warmup,
            seconds: run.effort.seconds,
        };
        let loaded = Loaded::measure(run, &load)?;
        let counted = &loaded.counted;
        if counted.requests == 0 {
            return Err(run.load_failed("server", "no request completed during measurement; run longer"));
        }
        let (charged, seconds) = (loaded.cpu.charged_ns() as f64, counted.seconds);
        if run.tools.bed.counts_instructions() {
            return Ok(Outcome { values: instructions(counted, &loaded.cpu), detail: loaded.detail() });
        }
        let mut values = BTreeMap::from([
            ("gbit_per_cpu_second", counted.bytes as f64 * 8.0 / charged),
            ("us_per_request", charged / 1000.0 / counted.requests as f64),
            ("cpu_percent", charged / (seconds * 1e7)),
            ("gbit_per_second", counted.bytes as f64 * 8e-9 / seconds),
            ("requests_per_second", counted.requests as f64 / seconds),
            ("latency_p50_us", counted.latency_us_p50 as f64),
            ("latency_p99_us", counted.latency_us_p99 as f64),
            ("latency_p999_us", counted.latency_us_p999 as f64),
            ("napi_share_percent", 100.0 * loaded.cpu.napi_ns as f64 / charged),
            ("bytes_per_datagram", counted.datagram_bytes as f64 / counted.datagrams.max(1) as f64),
            ("client_cpu_percent", counted.client_ns as f64 / (seconds * 1e7)),
        ]);
        if is_tcp(case) {
            // What h2load does not report.
            let unknown =
                |key: &str| ["latency", "bytes_per_datagram", "client"].iter().any(|it| key.starts_with(it));
            values.retain(|key, _| !unknown(key));
        }
        Ok(Outcome { values, detail: loaded.detail() })
    }
}

/// Cost of a served byte on a bed where a nanosecond is an instruction.
fn instructions(counted: &Counted, cpu: &Account) -> BTreeMap<&'static str, f64> {
    let (charged, datagrams) = (cpu.charged_ns() as f64, counted.datagrams.max(1) as f64);
    BTreeMap::from([
        ("instructions_per_byte", charged / counted.bytes.max(1) as f64),
        ("instructions_per_datagram", charged / datagrams),
        ("napi_share_percent", 100.0 * cpu.napi_ns as f64 / charged),
        ("bytes_per_datagram", counted.datagram_bytes as f64 / datagrams),
    ])
}

/// The lab of a server: a queue for each worker.
pub(crate) fn lab(case: &Case) -> LabConfig {
    let on = case.text("udp_segmentation") == "on";
    LabConfig {
        udp_segmentation: if on { Offload::On } else { Offload::Off },
        queues: case.count("workers") as u32,
        mtu: case.count("mtu") as u32,
        client_napi_core: Some(client_core(case)),
        ..pinned_lab()
    }
}

/// The core after the server's; the one core of a machine that has no more.
pub(crate) fn client_core(case: &Case) -> usize {
    own_core(case).min(std::thread::available_parallelism().map_or(1, usize::from) - 1)
}

fn own_core(case: &Case) -> usize {
    CLIENT_CORE.max(case.count("workers") as usize)
}

/// What this machine lacks for a server: its program, or cores for all workers and the load.
pub(crate) fn lacks(tools: &Tools, case: &Case) -> Option<String> {
    let (need, whose) = match tools.bed {
        Bed::Nics => (case.count("workers") as usize, "all of them for the server"),
        _ => (own_core(case) + 1, "one of them for the load"),
    };
    let have = std::thread::available_parallelism().map_or(1, usize::from);
    // Where instructions are counted, both may share one.
    if need > have && !tools.bed.counts_instructions() {
        return Some(format!("needs {need} cores, {whose}; this machine has {have}"));
    }
    let ranges = case.0.get("range").is_some_and(|range| *range != Value::Count(0));
    let lacking = if is_tcp(case) { h2load::lacks() } else { None };
    lacking.or_else(|| peers::lacks(case.text("server"), ranges, server::content(case), tools))
}

/// Whether a server may attach an XDP program.
pub(crate) fn needs_xdp(case: &Case) -> bool {
    case.text("server") == "expressway" && case.text("io") != "udp"
}

/// Fails if zero-copy was required and the server reports another mode.
fn check_obtained(case: &Case, obtained: Option<&str>) -> Result<(), BenchError> {
    let wanted = case.text("io");
    if wanted != "zerocopy" || obtained == Some(wanted) {
        return Ok(());
    }
    let problem = format!("zero-copy was required but it reports io={}", obtained.unwrap_or("nothing"));
    Err(BenchError::Server { contestant: case.text("server").into(), problem })
}

/// A server under load: the counts and its CPU.
pub(crate) struct Loaded {
    pub(crate) load: Load,
    pub(crate) counted: Counted,
    pub(crate) cpu: Account,
    pub(crate) started_in: f64,
    offloads: BTreeMap<String, bool>,
    obtained: Option<String>,
}

impl Loaded {
    /// Starts the server and the load, and takes the server's account while the load counts.
    pub(crate) fn measure(run: &Run<'_>, load: &Load) -> Result<Self, BenchError> {
        run.tools.write_body(load.body)?;
        let _origin = server::origin(run, Duration::ZERO)?;
        let server = Server::start(run)?;
        let napi = run.server_napi(run.case.count("workers") as usize)?;
        let offloads = offload::of(run.lab, Role::Server)?;
        let name = run.case.text("server");
        let obtained = server.obtained();
        check_obtained(run.case, obtained.as_deref())?;
        let recording = run.sample(server.id(), &napi)?;
        let mut running = Running::start(run, name, load, client_core(run.case))?;
        running.wait_until_measuring()?;
        let before = server.account(&napi)?;
        let counted = running.counted()?;
        let cpu = server.account(&napi)?.since(before);
        profile::finish(recording)?;
        let started_in = server.started_in.as_secs_f64();
        Ok(Self { load: load.clone(), counted, cpu, started_in, offloads, obtained })
    }

    /// All of it, for the raw file.
    pub(crate) fn detail(&self) -> serde_json::Value {
        serde_json::json!({
            "load": self.load,
            "counted": self.counted,
            "server_cpu": self.cpu,
            "started_in_seconds": self.started_in,
            "server_offloads": self.offloads,
            "obtained": self.obtained,
        })
    }
}
