//! What a datagram costs by each way to send and to receive it.

use std::collections::{BTreeMap, BTreeSet};

use expressway_lab::{Lab, Role};
use serde::{Deserialize, Serialize};

use super::{Better, Kind, Metric, Outcome, Run};
use crate::io_process::IoProcess;
use crate::scenario::{Case, Form, Parameter, Value, text};
use crate::{BenchError, Tools, profile};

/// The kind.
pub(crate) struct PacketIo;

/// The port that both ends use.
const PORT: u16 = 4433;

/// How much longer the other end runs than the measured one, seconds.
const LONGER: f64 = 2.0;

static PARAMETERS: [Parameter; 4] = [
    Parameter::required("direction", Form::Choice(&["transmit", "receive"])),
    Parameter::required(
        "way",
        Form::Choice(&["af-xdp-copy", "gso", "sendmmsg", "sendmsg", "gro", "recvmmsg"]),
    ),
    Parameter::new("size", Form::Bytes(1, 1472), Value::Count(64)),
    Parameter::new("sender", Form::Choice(&["af-xdp-copy", "gso", "sendmmsg"]), text("af-xdp-copy")),
];

static METRICS: [Metric; 5] = [
    Metric::new("ns_per_packet", "CPU a packet", "ns", Better::Lower, 0),
    Metric::new("mpps", "rate", "Mpps", Better::Higher, 3),
    Metric::new("process_ns_per_packet", "of the process", "ns", Better::Neither, 0),
    Metric::new("napi_ns_per_packet", "of the NAPI thread", "ns", Better::Neither, 0),
    Metric::new("express_percent", "by AF_XDP", "%", Better::Neither, 0),
];

/// What an `expressway-io` that moved packets reports.
#[derive(Deserialize, Serialize)]
struct Moved {
    seconds: f64,
    cpu_ns: u64,
    received: u64,
    received_express: u64,
    sent: u64,
    sent_express: u64,
}

impl Kind for PacketIo {
    fn name(&self) -> &'static str {
        "packet-io"
    }

    fn parameters(&self) -> &'static [Parameter] {
        &PARAMETERS
    }

    fn metrics(&self) -> &'static [Metric] {
        &METRICS
    }

    fn check(&self, case: &Case) -> Result<(), String> {
        let (direction, way) = (case.text("direction"), case.text("way"));
        match (direction, way) {
            ("transmit", "gro" | "recvmmsg") | ("receive", "gso" | "sendmmsg" | "sendmsg") => {
                Err(format!("`{way}` is no way to {direction}"))
            }
            _ => Ok(()),
        }
    }

    fn lacks(&self, tools: &Tools, _: &Case) -> Option<String> {
        IoProcess::lacks(tools)
    }

    fn measure(&self, run: &Run<'_>) -> Result<Outcome, BenchError> {
        match run.case.text("direction") {
            "transmit" => transmit(run),
            _ => receive(run),
        }
    }
}

fn transmit(run: &Run<'_>) -> Result<Outcome, BenchError> {
    // A sink that takes them off the wire; without one every datagram would be answered by an ICMP error.
    let sink = moving("sink", run.lab, Role::Client, "af-xdp-copy", run.effort.seconds + LONGER);
    let mut sink = IoProcess::start(run.lab, run.tools, Role::Client, &sink)?;
    sink.wait_ready()?;
    let mut command = moving("send", run.lab, Role::Server, run.case.text("way"), run.effort.seconds);
    command.extend(["--to".into(), address(run.lab, Role::Client)]);
    command.extend(["--size".into(), run.case.count("size").to_string()]);
    let mut sender = IoProcess::start(run.lab, run.tools, Role::Server, &command)?;
    sender.wait_ready()?;
    let recording = run.sample(sender.id(), &BTreeSet::new())?;
    let moved: Moved = sender.report()?;
    profile::finish(recording)?;
    // A veth's receive work is the other end's; what this end's NAPI thread does is not sending.
    Ok(outcome(&moved, (moved.sent, moved.sent_express), 0))
}

fn receive(run: &Run<'_>) -> Result<Outcome, BenchError> {
    let command = moving("sink", run.lab, Role::Server, run.case.text("way"), run.effort.seconds);
    let mut sink = IoProcess::start(run.lab, run.tools, Role::Server, &command)?;
    sink.wait_ready()?;
    let threads: BTreeSet<u32> = run.server_napi(1)?;
    let before = sink.account(&threads)?;
    let seconds = run.effort.seconds + LONGER;
    let mut command = moving("send", run.lab, Role::Client, run.case.text("sender"), seconds);
    command.extend(["--to".into(), address(run.lab, Role::Server)]);
    command.extend(["--size".into(), run.case.count("size").to_string()]);
    let mut sender = IoProcess::start(run.lab, run.tools, Role::Client, &command)?;
    sender.wait_ready()?;
    let recording = run.sample(sink.id(), &threads)?;
    let moved: Moved = sink.report()?;
    let napi = sink.account(&threads)?.since(before).napi_ns;
    profile::finish(recording)?;
    Ok(outcome(&moved, (moved.received, moved.received_express), napi))
}

fn outcome(moved: &Moved, (packets, express): (u64, u64), napi_ns: u64) -> Outcome {
    let each = packets.max(1) as f64;
    let values = BTreeMap::from([
        ("ns_per_packet", (moved.cpu_ns + napi_ns) as f64 / each),
        ("mpps", packets as f64 / moved.seconds / 1e6),
        ("process_ns_per_packet", moved.cpu_ns as f64 / each),
        ("napi_ns_per_packet", napi_ns as f64 / each),
        ("express_percent", 100.0 * express as f64 / each),
    ]);
    Outcome { values, detail: serde_json::json!({ "moved": moved, "napi_ns": napi_ns }) }
}

/// The arguments of a role that moves packets for so many seconds.
fn moving(role: &str, lab: &Lab, side: Role, way: &str, seconds: f64) -> Vec<String> {
    let mut arguments = vec![role.to_owned(), "--listen".into(), address(lab, side)];
    let way: &[&str] = match way {
        "af-xdp-copy" => &["--interface", side.interface()],
        "recvmmsg" => &["--no-gro"],
        "gro" => &[],
        sending => &["--sending", sending],
    };
    arguments.extend(way.iter().map(|one| (*one).to_owned()));
    arguments.extend(["--seconds".into(), seconds.to_string()]);
    arguments
}

pub(super) fn address(lab: &Lab, side: Role) -> String {
    format!("{}:{PORT}", lab.addresses(side).ipv4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_pays_for_its_process_and_its_napi_thread() {
        let moved =
            Moved { seconds: 2.0, cpu_ns: 900, received: 10, received_express: 5, sent: 0, sent_express: 0 };
        let outcome = outcome(&moved, (moved.received, moved.received_express), 100);
        assert_eq!(outcome.values["ns_per_packet"], 100.0);
        assert_eq!(outcome.values["napi_ns_per_packet"], 10.0);
        assert_eq!(outcome.values["express_percent"], 50.0);
        assert_eq!(outcome.values["mpps"], 5e-6);
    }
}
