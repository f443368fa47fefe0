//! What the kernel does with a packet at its earliest places: the baseline programs of the XDP paper (`expressway drop`), and
//! the packet filters that drop a little later.

use std::collections::BTreeMap;
use std::process::Output;
use std::thread::sleep;
use std::time::{Duration, Instant};

use expressway_lab::{Lab, Role};
use serde_json::Value as Json;

use super::packet_io::address;
use super::{Better, Kind, Metric, Outcome, Run};
use crate::command::Command;
use crate::scenario::{Case, Form, Parameter, Value, text};
use crate::{BenchError, Tools, cpu, io_error, profile};

/// The kind.
pub(crate) struct Xdp;

/// How long a program may take to be on its interface.
const ATTACH_LIMIT: Duration = Duration::from_secs(10);

static PARAMETERS: [Parameter; 4] = [
    Parameter::required(
        "way",
        Form::Choice(&["drop", "touch", "count", "pass", "tx", "iptables-raw", "nftables-raw"]),
    ),
    Parameter::new("size", Form::Bytes(24, 1472), Value::Count(24)),
    // Packets a second that are offered; more than any one core takes where nothing else is said.
    Parameter::new("rate", Form::Count(1, 100_000_000), Value::Count(20_000_000)),
    Parameter::new("mode", Form::Choice(&["native", "generic"]), text("native")),
];

static METRICS: [Metric; 4] = [
    Metric::new("ns_per_packet", "CPU a packet", "ns", Better::Lower, 0),
    Metric::new("mpps", "rate", "Mpps", Better::Higher, 3),
    Metric::new("offered_mpps", "offered", "Mpps", Better::Neither, 3),
    Metric::new("cpu_percent", "CPU", "%", Better::Neither, 1),
];

impl Kind for Xdp {
    fn name(&self) -> &'static str {
        "xdp"
    }

    fn parameters(&self) -> &'static [Parameter] {
        &PARAMETERS
    }

    fn metrics(&self) -> &'static [Metric] {
        &METRICS
    }

    fn lacks(&self, _: &Tools, case: &Case) -> Option<String> {
        let program = filter_program(case.text("way"))?;
        let there = std::process::Command::new(program).arg("--version").output();
        there
            .is_err()
            .then(|| format!("{program}: cannot be run (on Debian: apt-get install iptables nftables)"))
    }

    /// CPU is that of the NAPI thread of the interface, in which all of them run.
    fn measure(&self, run: &Run<'_>) -> Result<Outcome, BenchError> {
        let way = run.case.text("way");
        make_neighbour_permanent(run.lab)?;
        let mut program = match filter_program(way) {
            Some(_) => {
                add_filter(run.lab, way)?;
                None
            }
            None => Some(attach(run, way)?),
        };
        let napi = run.server_napi(1)?;
        let threads: Vec<u32> = napi.iter().copied().collect();
        let Some(first) = threads.first() else {
            return Err(BenchError::Missing(format!("{}: no NAPI thread", Role::Server.interface())));
        };
        let recording = run.sample(*first, &napi)?;
        let before = (cpu::of_threads(&napi), received(run.lab)?);
        let sent: Json = generate(run)?.report()?;
        let (cpu_ns, packets) = (cpu::of_threads(&napi) - before.0, received(run.lab)? - before.1);
        profile::finish(recording)?;
        let counted: Option<Json> = match program.as_mut() {
            Some(program) => {
                program.interrupt()?;
                Some(program.report()?)
            }
            None => None,
        };
        // A program's own count; a filter's packets are those that the interface received.
        let packets = counted.as_ref().and_then(|one| one["packets"].as_u64()).unwrap_or(packets);
        let seconds = sent["seconds"].as_f64().unwrap_or(run.effort.seconds);
        if packets == 0 {
            let problem = "no packet arrived".to_owned();
            return Err(BenchError::Load { contestant: way.into(), problem });
        }
        let values = BTreeMap::from([
            ("ns_per_packet", cpu_ns as f64 / packets as f64),
            ("mpps", packets as f64 / seconds / 1e6),
            ("offered_mpps", sent["sent"].as_f64().unwrap_or(0.0) / seconds / 1e6),
            ("cpu_percent", cpu_ns as f64 / (seconds * 1e7)),
        ]);
        let detail =
            serde_json::json!({ "sent": sent, "counted": counted, "packets": packets, "napi_ns": cpu_ns });
        Ok(Outcome { values, detail })
    }
}

/// Live frames: the cheapest packets that a veth gets, so that the sender is not the limit.
fn generate(run: &Run<'_>) -> Result<Command, BenchError> {
    let mut arguments = vec!["gen".to_owned(), "udp".into(), "--json".into()];
    for (option, value) in [
        ("--to", address(run.lab, Role::Server)),
        ("--io", "live".to_owned()),
        ("--rate", run.case.count("rate").to_string()),
        ("--size", run.case.count("size").to_string()),
        ("--seconds", run.effort.seconds.to_string()),
    ] {
        arguments.extend([option.to_owned(), value]);
    }
    Command::start(run.lab, run.tools, Role::Client, &arguments)
}

fn attach(run: &Run<'_>, action: &str) -> Result<Command, BenchError> {
    let interface = Role::Server.interface();
    let arguments = ["drop", "-i", interface, "--action", action, "--json"];
    let mut arguments = arguments.map(str::to_owned).to_vec();
    if run.case.text("mode") == "generic" {
        arguments.push("--generic".into());
    }
    let program = Command::start(run.lab, run.tools, Role::Server, &arguments)?;
    let began = Instant::now();
    // With --json it says nothing before its report.
    while !shown(run.lab, Role::Server, "ip", &["link", "show", "dev", interface])?.contains("xdp") {
        if began.elapsed() > ATTACH_LIMIT {
            return Err(program.failed("no program on the interface"));
        }
        sleep(Duration::from_millis(10));
    }
    Ok(program)
}

/// The program of a packet filter; `None` for what is no filter's.
fn filter_program(way: &str) -> Option<&'static str> {
    match way {
        "iptables-raw" => Some("iptables"),
        "nftables-raw" => Some("nft"),
        _ => None,
    }
}

/// Drops UDP at the first hook that each has, before connection tracking. It goes with the lab.
fn add_filter(lab: &Lab, way: &str) -> Result<(), BenchError> {
    if way == "iptables-raw" {
        return shown(
            lab,
            Role::Server,
            "iptables",
            &["-t", "raw", "-A", "PREROUTING", "-p", "udp", "-j", "DROP"],
        )
        .map(drop);
    }
    let chain = "add chain ip bench first { type filter hook prerouting priority -300 ; }";
    for command in ["add table ip bench", chain, "add rule ip bench first meta l4proto udp drop"] {
        shown(lab, Role::Server, "nft", &[command])?;
    }
    Ok(())
}

/// The generator's frames need the server's hardware address, which a program that drops everything will not tell.
fn make_neighbour_permanent(lab: &Lab) -> Result<(), BenchError> {
    let (server, client) = (Role::Server.interface(), Role::Client.interface());
    let address = lab.addresses(Role::Server).ipv4.to_string();
    let hardware = shown(lab, Role::Server, "cat", &[&format!("/sys/class/net/{server}/address")])?;
    let entry =
        ["neighbour", "replace", &address, "lladdr", hardware.trim(), "dev", client, "nud", "permanent"];
    shown(lab, Role::Client, "ip", &entry).map(drop)
}

/// Packets that the server's interface has received, those that a program dropped included.
fn received(lab: &Lab) -> Result<u64, BenchError> {
    let file = format!("/sys/class/net/{}/statistics/rx_packets", Role::Server.interface());
    let text = shown(lab, Role::Server, "cat", &[&file])?;
    text.trim().parse().map_err(|error| BenchError::Missing(format!("{file}: {error}")))
}

/// Runs a program in a namespace and gives its output.
fn shown(lab: &Lab, role: Role, program: &str, arguments: &[&str]) -> Result<String, BenchError> {
    let output: Output = lab.command(role, program).args(arguments).output().map_err(io_error(program))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    Err(BenchError::Missing(format!("{program} {}: {said}", arguments.join(" "))))
}
