//! What a capture costs the server that it watches, what it costs the machine, and what it loses: `expressway dump`
//! beside tcpdump and xdpdump, and `expressway top`, which counts without copying.
//!
//! The hooks run where packets pass, so their cost is in the CPU of the server and of its NAPI thread. The reader's
//! cost is that of its process, which runs on the load generator's core. Files go to `/dev/null`, so no disk is
//! measured. xdpdump has no filter and no configurable buffer, and only sees received packets.

use std::collections::BTreeMap;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use expressway_lab::Role;
use serde::Serialize;

use super::gateway::{self, client_core};
use super::{Better, Kind, Metric, Outcome, Run, Table};
use crate::cpu::{self, Account};
use crate::load::{Counted, Load, Running};
use crate::peers::Program;
use crate::process::Logged;
use crate::scenario::{Bed, Case, Form, Parameter, Value, text};
use crate::server::{IO, MTU, SERVER, Server, UDP_SEGMENTATION, UDP_SEND, WORKERS};
use crate::{BenchError, Tools, profile};

/// The kind.
pub(crate) struct Capture;

/// Readers that are not ours, and the Debian packages that have them.
const READERS: [(&str, &str); 2] = [("tcpdump", "tcpdump"), ("xdpdump", "xdp-tools")];

/// What no packet of a lab matches: an address for documentation (RFC 5737).
const NOTHING: &str = "host 203.0.113.1";

static PARAMETERS: [Parameter; 14] = [
    SERVER,
    IO,
    UDP_SEND,
    WORKERS,
    Parameter::new("body", Form::Bytes(1, 1 << 30), Value::Count(1 << 20)),
    Parameter::new("connections", Form::Count(1, 20_000), Value::Count(4)),
    Parameter::new("streams", Form::Count(1, 128), Value::Count(8)),
    UDP_SEGMENTATION,
    MTU,
    // What captures on the server's interface.
    Parameter::required("reader", Form::Choice(&["none", "dump", "top", "tcpdump", "xdpdump"])),
    // Which packets its filter takes.
    Parameter::new("matches", Form::Choice(&["nothing", "all"]), text("all")),
    // Octets of each packet; 0: all.
    Parameter::new("snaplen", Form::Count(0, 65_535), Value::Count(128)),
    // Memory of its buffers in all.
    Parameter::new("buffer", Form::Bytes(1 << 20, 1 << 30), Value::Count(16 << 20)),
    // Whether requests come, or nothing passes.
    Parameter::new("traffic", Form::Choice(&["requests", "none"]), text("requests")),
];

static METRICS: [Metric; 6] = [
    Metric::new("gbit_per_cpu_second", "Gbit/CPU-s", "Gbit", Better::Higher, 2),
    Metric::new("reader_percent", "reader's CPU", "%", Better::Lower, 2),
    Metric::new("lost_percent", "lost", "%", Better::Lower, 3),
    Metric::new("captured_per_second", "captured", "1/s", Better::Neither, 0),
    Metric::new("gbit_per_second", "Gbit/s", "Gbit/s", Better::Higher, 2),
    Metric::new("napi_share_percent", "NAPI share", "%", Better::Neither, 0),
];

static TABLE: Table = Table { name: "capture", parameters: &PARAMETERS, metrics: &METRICS };

impl Kind for Capture {
    fn table(&self) -> &'static Table {
        &TABLE
    }

    fn check(&self, case: &Case) -> Result<(), String> {
        match (case.text("reader"), case.text("matches")) {
            ("xdpdump", "nothing") => Err("matches: xdpdump has no filter".into()),
            ("top", "nothing") => Err("matches: top counts everything".into()),
            ("xdpdump", _) if case.text("io") == "udp" => {
                Err("io: xdpdump captures at an XDP program; not \"udp\"".into())
            }
            ("none", _) if case.text("traffic") == "none" => {
                Err("traffic: with no reader either, there is nothing to measure".into())
            }
            _ => Ok(()),
        }
    }

    fn refuses(&self, bed: Bed) -> Option<&'static str> {
        (bed != Bed::Lab).then_some("readers run beside the server and see its packets in a lab only")
    }

    fn lacks(&self, tools: &Tools, case: &Case) -> Option<String> {
        let name = case.text("reader");
        let Some((_, package)) = READERS.iter().find(|(reader, _)| *reader == name) else {
            return gateway::lacks(tools, case);
        };
        let missing = version(name).is_none();
        missing
            .then(|| format!("{name}: no such program; on Debian: apt-get install {package}"))
            .or_else(|| gateway::lacks(tools, case))
    }

    fn program(&self, _: &Tools, case: &Case) -> Option<(String, Program)> {
        let name = case.text("reader");
        let why = match name {
            "tcpdump" => {
                "Its ring of packets that the kernel fills (TPACKET_V3), as large as the others' buffers; no names."
            }
            "xdpdump" => "At the program's entry, as it does by default; its buffer cannot be sized.",
            _ => return None,
        };
        Some((name.to_owned(), Program { version: version(name)?, why: why.into() }))
    }

    fn measure(&self, run: &Run<'_>) -> Result<Outcome, BenchError> {
        let case = run.case;
        run.tools.write_body(case.count("body"))?;
        let server = Server::start(run)?;
        let napi = run.server_napi(case.count("workers") as usize)?;
        let mut reader = Reader::start(run)?;
        let recording = run.sample(server.id(), &napi)?;
        let mut running = match case.text("traffic") {
            "none" => None,
            _ => Some(Running::start(run, case.text("server"), &load(run), client_core(case))?),
        };
        if let Some(running) = &mut running {
            running.wait_until_measuring()?;
        }
        let before = (server.account(&napi)?, reader.cpu()?);
        let counted = match &mut running {
            Some(running) => Some(running.counted()?),
            None => {
                sleep(Duration::from_secs_f64(run.effort.seconds));
                None
            }
        };
        let (cpu, read_ns) = (server.account(&napi)?.since(before.0), reader.cpu()?.saturating_sub(before.1));
        profile::finish(recording)?;
        // It has captured the warm-up too: rates are of all that it captured, over all that passed.
        let captured = reader.end()?;
        let is_empty = captured.is_some_and(|captured| captured.packets == 0);
        if is_empty && counted.is_some() && case.text("matches") == "all" {
            return Err(run.load_failed("reader", "captured none of the traffic"));
        }
        let read_ns = reader.process.is_some().then_some(read_ns);
        let values = values(run, counted.as_ref(), cpu, read_ns, captured.as_ref());
        let detail = serde_json::json!({
            "load": load(run), "counted": counted, "server_cpu": cpu, "reader_ns": read_ns, "captured": captured,
            "obtained": server.obtained(),
        });
        Ok(Outcome { values, detail })
    }
}

fn load(run: &Run<'_>) -> Load {
    let case = run.case;
    Load {
        connections: case.count("connections") as usize,
        streams: case.count("streams") as usize,
        rate: 0.0,
        range: 0,
        body: case.count("body"),
        handshakes: false,
        warmup: run.effort.warmup,
        seconds: run.effort.seconds,
    }
}

fn values(
    run: &Run<'_>,
    counted: Option<&Counted>,
    cpu: Account,
    read_ns: Option<u64>,
    captured: Option<&Captured>,
) -> BTreeMap<&'static str, f64> {
    let seconds = counted.map_or(run.effort.seconds, |counted| counted.seconds);
    let mut values = BTreeMap::new();
    if let Some(counted) = counted {
        let (bits, charged) = (counted.bytes as f64 * 8.0, cpu.charged_ns() as f64);
        values.insert("gbit_per_cpu_second", bits / charged);
        values.insert("gbit_per_second", bits * 1e-9 / seconds);
        values.insert("napi_share_percent", 100.0 * cpu.napi_ns as f64 / charged);
    }
    if let Some(read_ns) = read_ns {
        values.insert("reader_percent", read_ns as f64 / (seconds * 1e7));
    }
    let Some(captured) = captured else { return values };
    if counted.is_some() && run.case.text("matches") == "all" {
        values.insert("lost_percent", captured.lost_percent());
        values.insert("captured_per_second", captured.packets as f64 / (seconds + run.effort.warmup));
    }
    values
}

/// A program that captures, if the case has one.
struct Reader {
    process: Option<Logged>,
    /// It has packets, and says how many.
    captures: bool,
}

impl Reader {
    /// Starts it on the load generator's core and waits until it is attached.
    fn start(run: &Run<'_>) -> Result<Self, BenchError> {
        let Some(command) = command(run.tools, run.case, Role::Server.interface()) else {
            return Ok(Self { process: None, captures: false });
        };
        let (core, log) = (client_core(run.case), run.tools.work.join("reader"));
        let process = Logged::start(run.lab, Role::Server, core..core + 1, log, &command, [])?;
        let mut process = process.named(run.case.text("reader"));
        // `top` says nothing before its first sample.
        process.wait_until("listening", Duration::from_millis(2), &|process| {
            let said = process.all_said();
            Ok(said.contains("listening on") || said.contains(r#""present":true"#))
        })?;
        // It goes on without hooks of AF_XDP that the kernel refuses. What they cost would be measured as nothing.
        match blind(&process.all_said()) {
            Some(line) if run.case.text("io") != "udp" => Err(run.load_failed("reader", &line)),
            _ => Ok(Self { process: Some(process), captures: run.case.text("reader") != "top" }),
        }
    }

    /// Nanoseconds that it has run.
    fn cpu(&self) -> Result<u64, BenchError> {
        self.process.as_ref().map_or(Ok(0), |process| cpu::of_tree(process.id()))
    }

    /// Ends it and reads what it says that it captured.
    fn end(&mut self) -> Result<Option<Captured>, BenchError> {
        let Some(process) = &mut self.process else { return Ok(None) };
        process.end_running()?;
        if !self.captures {
            return Ok(None);
        }
        let said = process.all_said();
        Captured::of(&said)
            .map(Some)
            .ok_or_else(|| process.failed("does not say how many packets it captured"))
    }
}

/// What `dump` says that it does not capture.
fn blind(said: &str) -> Option<String> {
    let blind = ["not captured", "not counted", "a security policy of this kernel refuses such programs"];
    said.lines().map(str::trim).find(|line| blind.iter().any(|words| line.contains(words))).map(str::to_owned)
}

/// The reader's command line; `None` for none.
fn command(tools: &Tools, case: &Case, interface: &str) -> Option<Vec<String>> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let (snaplen, buffer) = (case.count("snaplen").to_string(), case.count("buffer") >> 10);
    let expressway = tools.expressway.display().to_string();
    let mut words: Vec<String> = match case.text("reader") {
        "top" => {
            let words = ["top", "--json", "--interval", "1s", "-i", interface].map(str::to_owned);
            return Some([expressway].into_iter().chain(words).collect());
        }
        "dump" => vec![expressway, "dump".into(), "-B".into(), (buffer / cores).max(64).to_string()],
        // As root to the end: what it becomes otherwise differs by distribution.
        "tcpdump" => ["tcpdump", "-n", "-Z", "root", "-B", &buffer.to_string()].map(str::to_owned).to_vec(),
        "xdpdump" => vec!["xdpdump".into()],
        _ => return None,
    };
    words.extend(["-i", interface, "-s", &snaplen, "-w", "/dev/null"].map(str::to_owned));
    if case.text("matches") == "nothing" {
        words.push(NOTHING.into());
    }
    Some(words)
}

/// A program's version as it prints it.
fn version(program: &str) -> Option<String> {
    let output = Command::new(program).arg("--version").output().ok()?;
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    said.lines().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned)
}

/// What a reader says at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct Captured {
    packets: u64,
    lost: u64,
}

impl Captured {
    /// Phrases behind the number of packets that it had, and behind those that it had not.
    const HAD: [&str; 2] = [" packets captured", " packet captured"];
    const LOST: [&str; 6] = [
        " lost",
        " missed by the hooks",
        " packets dropped by kernel",
        " packet dropped by kernel",
        " packets dropped by perf ring",
        " packet dropped by perf ring",
    ];

    fn of(said: &str) -> Option<Self> {
        let numbers = |phrases: &[&str]| {
            let found: Vec<u64> = phrases.iter().filter_map(|phrase| number_before(said, phrase)).collect();
            (!found.is_empty()).then(|| found.iter().sum())
        };
        Some(Self { packets: numbers(&Self::HAD)?, lost: numbers(&Self::LOST)? })
    }

    fn lost_percent(self) -> f64 {
        100.0 * self.lost as f64 / (self.packets + self.lost).max(1) as f64
    }
}

/// The number that stands in front of a phrase where it is used last.
fn number_before(text: &str, phrase: &str) -> Option<u64> {
    let (before, _) = text.rsplit_once(phrase)?;
    before.rsplit(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capture_without_its_hooks_is_no_measurement() {
        let refused = "server0: program redirect (id 7): fentry: Operation not permitted; a security policy of this kernel \
            refuses such programs, even to root";
        assert_eq!(blind(&format!("{refused}\nlistening on server0\n")).as_deref(), Some(refused));
        assert_eq!(
            blind("listening on server0, link-type EN10MB (Ethernet), snapshot length 128 bytes\n"),
            None
        );
    }

    #[test]
    fn each_readers_last_words_are_understood() {
        let dump = "listening on server0, link-type EN10MB (Ethernet), snapshot length 128 bytes\n\
            90 packets captured, 10 lost, 5 missed by the hooks; 120 seen, 100 of them by the filter\n";
        assert_eq!(Captured::of(dump), Some(Captured { packets: 90, lost: 15 }));
        let quiet = "0 packets captured, 0 lost; 4096 seen, 0 of them by the filter\n";
        assert_eq!(Captured::of(quiet), Some(Captured { packets: 0, lost: 0 }));
        let tcpdump = "tcpdump: listening on server0, link-type EN10MB (Ethernet), snapshot length 128 bytes\n\
            1 packet captured\n12 packets received by filter\n11 packets dropped by kernel\n3 packets dropped by interface\n";
        assert_eq!(Captured::of(tcpdump), Some(Captured { packets: 1, lost: 11 }));
        let xdpdump = "listening on server0, ingress XDP program ID 7 func xdp, capture mode entry, capture size 128 bytes\n\
            59 packets captured\n41 packets dropped by perf ring\n";
        let captured = Captured::of(xdpdump).unwrap();
        assert_eq!(captured, Captured { packets: 59, lost: 41 });
        assert!((captured.lost_percent() - 41.0).abs() < 1e-9);
        for wrong in ["", "packets captured", "many packets captured, 0 lost", "7 packets captured"] {
            assert_eq!(Captured::of(wrong), None, "{wrong}");
        }
    }
}
