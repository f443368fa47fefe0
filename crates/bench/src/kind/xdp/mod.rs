//! Packets dropped, passed, sent back or forwarded at the kernel's earliest hooks: by our programs (`expressway drop`, the
//! baseline programs of the XDP paper), and by others. Each contestant is a file in `peers/packets`.
//!
//! A file has the contestant's commands, the program that keeps running if there is one, its requirements, and
//! why it is the best of its type. Where packets end (dropped, passed, returned, forwarded, or sent by the
//! contestant itself) is a parameter, and the same for all contestants. So the crate's AF_XDP sockets are
//! measured beside testpmd's on the same veth, as files.
//!
//! ```text
//!  client namespace, core 1            server namespace, core 0
//!  gen --io live ─▶ client0 ═════════▶ server0 ─▶ NAPI thread: program or filter ─▶ dropped, or up to the kernel
//!                   client0 ◀═════════ server0 ◀─┤ back
//!  XDP drop, counts ◀─ client1 ◀══════ server1 ◀─┘ through
//! ```
//!
//! Live frames have no socket buffer, so a program is not charged for one, and the kernel path makes its own,
//! as it would behind a NIC. Forwarded packets count where they arrive. The far end's NAPI threads run before
//! the generator on the core that they share (SCHED_FIFO), as softirqs would. Otherwise its ring would overflow
//! during the generator's turn, and the loss would be an artefact of the bed. Passed packets are addressed to
//! another host's MAC, so they end at the start of the IP layer, and no closed port answers with ICMP. The
//! second link, addresses, sysctls and filters are made inside the lab's namespaces, and disappear with them.
//! On two cores, a poller such as testpmd shares its core with the NAPI thread that feeds it; its file says so.

mod attack;
mod bed;
mod latency;
mod nics;
mod prog_run;
mod service;
mod tables;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::thread::sleep;
use std::time::{Duration, Instant};

use expressway_lab::{LabConfig, Role};
use serde_json::Value as Json;

use super::{Better, Kind, Metric, Outcome, Run, Table, pinned_lab};
use crate::packet_path::{NAMES, PacketPath};
use crate::peers::Program;
use crate::process::Logged;
use crate::scenario::{Bed, Case, Form, Parameter, Value, text};
use crate::{BenchError, CLIENT_CORE, SERVER_CORE, Tools, cpu, io_error, profile};
pub(crate) use attack::Attack;
use bed::{End, VethBed};
pub(crate) use latency::XdpLatency;
use nics::Hosts;
pub(crate) use prog_run::ProgRun;

/// The kind.
pub(crate) struct Xdp;

/// CPU of the interface's NAPI threads, in nanoseconds, from which packets are taken to be arriving: more than a stray one
/// costs.
const FIRST_WORK: u64 = 100_000;

/// Polling interval.
const LOOK: Duration = Duration::from_millis(1);

/// The packet path.
const WAY: Parameter = Parameter::required("way", Form::Choice(NAMES));
/// What is measured with nothing at the interface.
const NO_PROGRAM: &str = "no program";
/// Of ours: the program.
const ACTION: Parameter =
    Parameter::new("action", Form::Choice(&["drop", "touch", "count", "pass", "tx"]), text("drop"));

static PARAMETERS: [Parameter; 17] = [
    WAY,
    ACTION,
    // Where frames end: at the interface or a filter; in the kernel, which finds that they are for another host; back out of
    // the same interface; out of another one. With `sent`, the path itself sends them.
    Parameter::new("end", Form::Choice(&["dropped", "passed", "back", "through", "sent"]), text("dropped")),
    // Bytes of UDP payload.
    Parameter::new("size", Form::Bytes(24, 1472), Value::Count(24)),
    // Packets a second offered by each generator; by default more than a core can take.
    Parameter::new("rate", Form::Count(1, 100_000_000), Value::Count(20_000_000)),
    // Flows differ in the source port, unless sources or destinations do.
    Parameter::new("flows", Form::Count(1, 15_536), Value::Count(1)),
    // Queues, each with a NAPI thread on its own core.
    Parameter::new("cores", Form::Count(1, 64), Value::Count(1)),
    // One generator on the client's core, or one on each core, whose frames stay on that core.
    Parameter::new("generators", Form::Choice(&["apart", "beside"]), text("apart")),
    // Of ours, and of nothing: a program, or none, that is measured first in the same run and subtracted.
    Parameter::new("less", Form::Choice(&["nothing", NO_PROGRAM, "pass", "count"]), text("nothing")),
    // Repetitions of the XDP program by BPF_PROG_TEST_RUN, before packets are sent.
    Parameter::new("test_runs", Form::Count(0, 1_000_000_000), Value::Count(0)),
    tables::RULES,
    tables::PREFIXES,
    tables::ROUTES,
    tables::SOURCES,
    tables::DESTINATIONS,
    service::SERVICES,
    service::NODES,
];

static METRICS: [Metric; 7] = [
    Metric::new("ns_per_packet", "CPU a packet", "ns", Better::Lower, 0),
    Metric::new("mpps", "rate", "Mpps", Better::Higher, 3),
    Metric::new("offered_mpps", "offered", "Mpps", Better::Neither, 3),
    Metric::new("lost_percent", "lost", "%", Better::Neither, 1),
    Metric::new("cpu_percent", "CPU", "%", Better::Lower, 1),
    Metric::new("added_ns", "over what is subtracted", "ns", Better::Lower, 1),
    Metric::new("program_ns", "the program alone", "ns", Better::Lower, 0),
];

static TABLE: Table = Table { name: "xdp", parameters: &PARAMETERS, metrics: &METRICS };

impl Kind for Xdp {
    fn table(&self) -> &'static Table {
        &TABLE
    }

    fn check(&self, case: &Case) -> Result<(), String> {
        if case.count("cores") > 1 && case.text("generators") == "apart" {
            return Err("one generator sends to one queue: several cores need generators = \"beside\"".into());
        }
        if case.text("end") == "sent" && (case.text("less") != "nothing" || case.count("test_runs") > 0) {
            return Err(
                "`less` and `test_runs` need a program that receives frames, but `end` is \"sent\"".into()
            );
        }
        match (case.text("less"), case.text("way")) {
            ("nothing", _) | (_, "expressway") | (NO_PROGRAM, "kernel") => {}
            (_, way) => return Err(format!("`less` needs way \"expressway\", not \"{way}\"")),
        }
        service::check(case)?;
        if case.count("destinations") > 1 && case.text("end") != "through" {
            return Err("`destinations` are behind the second link: they need end = \"through\"".into());
        }
        Ok(())
    }

    fn lab(&self, case: &Case) -> LabConfig {
        LabConfig { queues: case.count("cores") as u32, ..pinned_lab() }
    }

    fn needs_xdp(&self, case: &Case) -> bool {
        case.text("way") != "kernel"
    }

    fn takes_all(&self, case: &Case) -> bool {
        self.needs_xdp(case) && !matches!(case.text("action"), "pass" | "count")
    }

    fn lacks(&self, tools: &Tools, case: &Case) -> Option<String> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let wanted = case.count("cores") as usize;
        if wanted > cores {
            return Some(format!("{wanted} cores: this machine has {cores}"));
        }
        if case.count("test_runs") > 0
            && std::process::Command::new("bpftool").arg("version").output().is_err()
        {
            return Some("bpftool: no such program; on Debian: apt-get install bpftool".into());
        }
        match tools.bed {
            Bed::Nics => nics::lacks(case).or_else(|| lacks(case)),
            _ => lacks(case),
        }
    }

    fn program(&self, tools: &Tools, case: &Case) -> Option<(String, Program)> {
        program(tools, case)
    }

    fn measure(&self, run: &Run<'_>) -> Result<Outcome, BenchError> {
        let case = run.case;
        let path = PacketPath::named(case.text("way"))?;
        if let Some(nics) = run.nics {
            let hosts = Hosts::make(run, nics)?;
            return floods(run, &path, &|action| hosts.start(&path, action), &mut |path, action| {
                hosts.flood(path, action)
            });
        }
        let end = End::named(case.text("end"));
        let bed = VethBed::make(run, end, case.count("cores") as usize)?;
        bed.prepare(&path)?;
        if end == End::Sent {
            let sent = send(run, &bed, &path)?;
            return Ok(Outcome { values: sent.values(), detail: sent.detail });
        }
        let start = |action: &str| bed.start(&path, action);
        floods(run, &path, &start, &mut |path, action| flood(run, &bed, path, action))
    }
}

/// Measures a path: optionally its program alone and with the program to subtract, then the path itself.
fn floods(
    run: &Run<'_>,
    path: &PacketPath,
    start: &dyn Fn(&str) -> Result<Option<Logged>, BenchError>,
    flood: &mut dyn FnMut(&PacketPath, &str) -> Result<Flood, BenchError>,
) -> Result<Outcome, BenchError> {
    let case = run.case;
    let program_ns = match case.count("test_runs") {
        0 => None,
        times => {
            let mut process = start(case.text("action"))?;
            let each = test_run(run, times)?;
            if let Some(process) = &mut process {
                process.end()?;
            }
            Some(each)
        }
    };
    let less = match case.text("less") {
        "nothing" => None,
        NO_PROGRAM => Some(flood(&PacketPath::named("kernel")?, "")?),
        action => Some(flood(path, action)?),
    };
    let flood = flood(path, case.text("action"))?;
    let mut values = flood.values();
    values.extend(less.as_ref().map(|less| ("added_ns", flood.each() - less.each())));
    values.extend(program_ns.map(|each| ("program_ns", each)));
    let detail = serde_json::json!({ "flood": flood.detail, "less": less.map(|less| less.detail) });
    Ok(Outcome { values, detail })
}

/// What this machine lacks for a case's path.
fn lacks(case: &Case) -> Option<String> {
    match PacketPath::named(case.text("way")) {
        Ok(path) => path.lacks(),
        Err(error) => Some(error.to_string()),
    }
}

/// The program of a case's path.
fn program(tools: &Tools, case: &Case) -> Option<(String, Program)> {
    let way = case.text("way");
    Some((way.to_owned(), PacketPath::named(way).ok()?.program(tools)?))
}

/// The result of sending to a path.
struct Flood {
    seconds: f64,
    /// Packets that reached the link, taken by its ring or not.
    offered: u64,
    /// Packets that reached their end.
    packets: u64,
    napi_ns: u64,
    busy: Busy,
    detail: Json,
}

impl Flood {
    /// Nanoseconds of CPU a packet.
    fn each(&self) -> f64 {
        (self.napi_ns + self.busy.process_ns) as f64 / self.packets as f64
    }

    fn values(&self) -> BTreeMap<&'static str, f64> {
        let offered = self.offered.max(1) as f64;
        let polling = self.busy.process_ns as f64 / self.busy.time.as_nanos().max(1) as f64;
        BTreeMap::from([
            ("ns_per_packet", self.each()),
            ("mpps", self.packets as f64 / self.seconds / 1e6),
            ("offered_mpps", offered / self.seconds / 1e6),
            ("lost_percent", 100.0 * (1.0 - self.packets as f64 / offered).max(0.0)),
            ("cpu_percent", 100.0 * polling + self.napi_ns as f64 / (self.seconds * 1e7)),
        ])
    }
}

/// Sends frames to a prepared path. CPU is that of its process, if any, and of the interface's NAPI threads, in which the
/// kernel processes the packets.
fn flood(run: &Run<'_>, bed: &VethBed<'_>, path: &PacketPath, action: &str) -> Result<Flood, BenchError> {
    let mut process = bed.start(path, action)?;
    let sink = bed.sink()?;
    let cores = run.case.count("cores") as usize;
    let napi = run.server_napi(cores)?;
    if run.case.text("generators") == "beside" {
        // Otherwise a generator fills the ring early in its time slice and wastes the rest.
        cpu::run_first(&napi)?;
    }
    let Some(first) = napi.iter().next() else {
        return Err(BenchError::Missing(format!("{}: no NAPI thread", Role::Server.interface())));
    };
    let measured = process.as_ref().map_or(*first, |process| process.id());
    let recording = run.sample(measured, &napi)?;
    let before = (cpu::of_threads(&napi), bed::received(run.lab, Role::Server)?);
    let generators = start_generators(run, bed, path)?;
    let (sent, busy) = watch(generators, process.as_ref(), &napi)?;
    let after = (cpu::of_threads(&napi), bed::received(run.lab, Role::Server)?);
    profile::finish(recording)?;
    let said = process.as_mut().map(Logged::end_running).transpose()?;
    let received = after.1 - before.1;
    let packets = match (sink, path.count.as_deref()) {
        (Some(sink), _) => sink.packets()?,
        (None, Some(mark)) => number_after(said.as_deref().unwrap_or_default(), mark).ok_or_else(|| {
            let problem = format!("did not print `{mark}`");
            BenchError::Server { contestant: run.case.text("way").into(), problem }
        })?,
        (None, None) => received,
    };
    if packets == 0 {
        let said = said.unwrap_or_default();
        return Err(run.load_failed("way", format!("no packet arrived: {}", said.trim())));
    }
    let number = |key: &str| sent.iter().filter_map(|one| one[key].as_u64()).sum::<u64>();
    let seconds = sent.iter().filter_map(|one| one["seconds"].as_f64()).fold(0.0, f64::max);
    let napi_ns = after.0 - before.0;
    Ok(Flood {
        seconds: if seconds > 0.0 { seconds } else { run.effort.seconds },
        offered: number("sent") + number("refused"),
        packets,
        napi_ns,
        detail: serde_json::json!({ "sent": sent, "received": received, "packets": packets,
            "process_ns": busy.process_ns, "napi_ns": napi_ns, "busy_seconds": busy.time.as_secs_f64() }),
        busy,
    })
}

/// Lets a path's program send as fast as it can, and counts what the other end's interface receives. CPU is that of its
/// process and of its interface's NAPI threads, which have no part in sending on a veth.
fn send(run: &Run<'_>, bed: &VethBed<'_>, path: &PacketPath) -> Result<Flood, BenchError> {
    // It keeps the other end from answering.
    let _sink = bed.sink()?;
    let Some(process) = bed.start(path, run.case.text("action"))? else {
        let problem = "has no process that can send".into();
        return Err(BenchError::Server { contestant: run.case.text("way").into(), problem });
    };
    let napi = run.server_napi(run.case.count("cores") as usize)?;
    sleep(Duration::from_secs_f64(run.effort.warmup));
    let recording = run.sample(process.id(), &napi)?;
    let now = || -> Result<_, BenchError> {
        Ok((
            bed::received(run.lab, Role::Client)?,
            cpu::of_tree(process.id())?,
            cpu::of_threads(&napi),
            Instant::now(),
        ))
    };
    let before = now()?;
    sleep(Duration::from_secs_f64(run.effort.seconds));
    let after = now()?;
    profile::finish(recording)?;
    let (packets, process_ns, napi_ns) = (after.0 - before.0, after.1 - before.1, after.2 - before.2);
    if packets == 0 {
        return Err(run.load_failed("way", "no packet arrived"));
    }
    let time = after.3 - before.3;
    Ok(Flood {
        seconds: time.as_secs_f64(),
        offered: packets,
        packets,
        napi_ns,
        busy: Busy { time, process_ns },
        detail: serde_json::json!({ "packets": packets, "process_ns": process_ns, "napi_ns": napi_ns }),
    })
}

/// The time in which packets arrived, and the path's CPU in it: one that polls uses as much before and after.
struct Busy {
    time: Duration,
    process_ns: u64,
}

/// Waits for the generators' reports.
fn watch(
    mut generators: Vec<Logged>,
    process: Option<&Logged>,
    napi: &BTreeSet<u32>,
) -> Result<(Vec<Json>, Busy), BenchError> {
    let used = || process.map_or(Ok(0), |process| cpu::of_tree(process.id()));
    let idle = cpu::of_threads(napi);
    while cpu::of_threads(napi) < idle + FIRST_WORK && generators[0].is_running()? {
        sleep(LOOK);
    }
    let (began, before) = (Instant::now(), used()?);
    for generator in &mut generators {
        generator.wait_for_output()?;
    }
    let busy = Busy { time: began.elapsed(), process_ns: used()? - before };
    let reports = generators.iter_mut().map(Logged::report).collect::<Result<_, _>>()?;
    Ok((reports, busy))
}

/// Starts a generator on the client's core, or one on each core.
fn start_generators(run: &Run<'_>, bed: &VethBed<'_>, path: &PacketPath) -> Result<Vec<Logged>, BenchError> {
    let case = run.case;
    let cores = match case.text("generators") {
        "beside" => SERVER_CORE..SERVER_CORE + case.count("cores") as usize,
        _ => CLIENT_CORE..CLIENT_CORE + 1,
    };
    let mut options = vec![
        ("--rate", case.count("rate").to_string()),
        ("--size", case.count("size").to_string()),
        ("--seconds", run.effort.seconds.to_string()),
    ];
    let sources = case.count("sources");
    let mut flows = case.count("flows").max(sources);
    if sources > 1 {
        // Beside them there is the one that all runs have.
        let others = tables::lines(tables::sources(sources - 1));
        options.push(("--source-file", prog_run::write(&run.tools.work, "sources.txt", others.as_bytes())?));
    }
    if case.count("destinations") > 1 {
        let to = tables::destinations(case.count("routes"), case.count("destinations"));
        flows = flows.max(to.len() as u64);
        let to = tables::lines(to);
        options.push(("--to-file", prog_run::write(&run.tools.work, "destinations.txt", to.as_bytes())?));
    }
    options.push(("--flows", flows.to_string()));
    cores.map(|core| bed.generate(path, core, &options)).collect()
}

/// The last number after a mark.
fn number_after(text: &str, mark: &str) -> Option<u64> {
    let (_, rest) = text.rsplit_once(mark)?;
    rest.split_whitespace().next()?.parse().ok()
}

/// Nanoseconds of the program on the server's interface per frame, by BPF_PROG_TEST_RUN: the kernel runs it repeatedly on one
/// cached frame, without a driver.
fn test_run(run: &Run<'_>, times: u64) -> Result<f64, BenchError> {
    let interface = run.lab.interface(Role::Server);
    let program = bed::program_on(run.lab, Role::Server, interface)?.ok_or_else(|| {
        BenchError::Missing(format!("{interface}: no XDP program that BPF_PROG_TEST_RUN could run"))
    })?;
    let file = run.tools.work.join("frame");
    let written = std::fs::File::create(&file).and_then(|mut file| file.write_all(&frame(run.case)));
    written.map_err(io_error(file.display().to_string()))?;
    let (program, times, file) = (program.to_string(), times.to_string(), file.display().to_string());
    let arguments = ["--json", "prog", "run", "id", &program, "data_in", &file, "repeat", &times];
    let ran: Json = bed::json(run.lab, Role::Server, "bpftool", &arguments)?;
    let each = ran["duration"].as_f64();
    each.ok_or_else(|| BenchError::Missing(format!("bpftool prog run: no duration in {ran}")))
}

/// A UDP frame of a case's size, as a program sees one.
fn frame(case: &Case) -> Vec<u8> {
    let payload = case.count("size") as u16;
    let mut frame = vec![0; 12];
    frame.extend([0x08, 0x00, 0x45, 0]);
    frame.extend((28 + payload).to_be_bytes());
    frame.extend([0, 0, 0, 0, 64, 17, 0, 0, 198, 18, 0, 2, 198, 18, 0, 1]);
    frame.extend([50_000u16, bed::PORT, 8 + payload, 0].map(u16::to_be_bytes).concat());
    frame.resize(42 + usize::from(payload), 0);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_of_packets_that_arrived() {
        let flood = Flood {
            seconds: 2.0,
            offered: 1000,
            packets: 800,
            napi_ns: 60_000,
            busy: Busy { time: Duration::from_secs(1), process_ns: 20_000 },
            detail: Json::Null,
        };
        let values = flood.values();
        assert_eq!((values["ns_per_packet"], values["mpps"]), (100.0, 0.0004));
        assert_eq!(values["offered_mpps"], 0.0005);
        assert!((values["lost_percent"] - 20.0).abs() < 1e-9);
        assert!((values["cpu_percent"] - 0.005).abs() < 1e-9);
    }

    #[test]
    fn the_last_count_is_taken() {
        let text = "RX-packets: 3  RX-dropped: 1\n RX-packets: 46937          RX-dropped: 5\n";
        assert_eq!(number_after(text, "RX-packets:"), Some(46_937));
        assert_eq!(number_after(text, "TX-packets:"), None);
        assert_eq!(number_after("RX-packets: many", "RX-packets:"), None);
    }

    #[test]
    fn several_cores_need_several_generators_and_less_is_of_ours() {
        let case = |changes: &[(&str, Value)]| {
            let mut all: BTreeMap<String, Value> =
                PARAMETERS.iter().filter_map(|p| Some((p.key.to_owned(), p.default.clone()?))).collect();
            all.insert("way".into(), text("expressway"));
            all.extend(changes.iter().map(|(key, value)| ((*key).to_owned(), value.clone())));
            Xdp.check(&Case(all))
        };
        assert_eq!(case(&[("cores", Value::Count(2)), ("generators", text("beside"))]), Ok(()));
        assert!(case(&[("cores", Value::Count(2))]).unwrap_err().contains("\"beside\""));
        assert!(case(&[("way", text("kernel")), ("less", text("pass"))]).unwrap_err().contains("\"kernel\""));
        assert_eq!(case(&[("way", text("kernel")), ("less", text(NO_PROGRAM))]), Ok(()));
        assert!(case(&[("destinations", Value::Count(2))]).unwrap_err().contains("\"through\""));
        assert_eq!(case(&[("destinations", Value::Count(2)), ("end", text("through"))]), Ok(()));
    }

    #[test]
    fn a_test_run_gets_a_whole_frame() {
        let case = Case([("size".to_owned(), Value::Count(24))].into());
        let frame = frame(&case);
        assert_eq!((frame.len(), frame[23], &frame[36..38]), (66, 17, &bed::PORT.to_be_bytes()[..]));
    }
}
