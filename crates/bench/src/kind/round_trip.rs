//! Round trips between two programs with the same packet I/O, each on its own core.

use std::collections::{BTreeMap, BTreeSet};

use expressway_lab::{LabConfig, Role};

use super::packet_io::address;
use super::waiting::Asked;
use super::{Better, Kind, Metric, Outcome, Run, Table, pinned_lab};
use crate::scenario::{Case, Form, Parameter, Value, text};
use crate::{BenchError, Tools, profile};

/// The kind.
pub(crate) struct RoundTrip;

static PARAMETERS: [Parameter; 5] = [
    // `socket` is a bare kernel socket, polled in a loop; the others run our worker.
    Parameter::required("way", Form::Choice(&["af-xdp-copy", "socket", "udp"])),
    Parameter::new("wait", Form::Choice(&["interrupt", "busy-poll", "spin"]), text("spin")),
    // Where a veth receives packets: within the sender's call, on its core (the default of a veth), or in a NAPI thread on
    // the receiver's core.
    Parameter::new("napi", Form::Choice(&["inline", "thread"]), text("inline")),
    Parameter::new("size", Form::Bytes(8, 1472), Value::Count(64)),
    // Microseconds between a reply and the next request.
    Parameter::new("pause", Form::Count(0, 1_000_000), Value::Count(10)),
];

static METRICS: [Metric; 4] = [
    Metric::new("p50_us", "p50", "us", Better::Lower, 2),
    Metric::new("p99_us", "p99", "us", Better::Lower, 2),
    Metric::new("lost_percent", "lost", "%", Better::Lower, 2),
    Metric::new("kilo_trips", "round trips", "thousands", Better::Neither, 0),
];

static TABLE: Table = Table { name: "round-trip", parameters: &PARAMETERS, metrics: &METRICS };

impl Kind for RoundTrip {
    fn table(&self) -> &'static Table {
        &TABLE
    }

    fn check(&self, case: &Case) -> Result<(), String> {
        match (case.text("way"), case.text("wait")) {
            ("socket", "interrupt" | "busy-poll") => Err("way `socket` spins: `wait` must be `spin`".into()),
            _ => Ok(()),
        }
    }

    fn lab(&self, case: &Case) -> LabConfig {
        if case.text("napi") == "thread" { pinned_lab() } else { LabConfig::default() }
    }

    fn lacks(&self, tools: &Tools, _: &Case) -> Option<String> {
        tools.lack_io()
    }

    fn measure(&self, run: &Run<'_>) -> Result<Outcome, BenchError> {
        let mut echo = run.start_io(Role::Server, &end(run, Role::Server))?;
        echo.wait_ready()?;
        let threads = if run.case.text("napi") == "thread" { run.server_napi(1)? } else { BTreeSet::new() };
        let recording = run.sample(echo.id(), &threads)?;
        let mut ask = run.start_io(Role::Client, &end(run, Role::Client))?;
        if run.case.text("way") != "socket" {
            ask.wait_ready()?;
        }
        let asked: Asked = ask.report()?;
        profile::finish(recording)?;
        asked.check(run.case.text("way"))?;
        let values = BTreeMap::from([
            ("p50_us", asked.p50_ns as f64 / 1000.0),
            ("p99_us", asked.p99_ns as f64 / 1000.0),
            ("lost_percent", asked.lost_percent()),
            ("kilo_trips", asked.round_trips as f64 / 1000.0),
        ]);
        Ok(Outcome { values, detail: serde_json::json!({ "asked": asked }) })
    }
}

/// The arguments of one end.
fn end(run: &Run<'_>, side: Role) -> Vec<String> {
    let case = run.case;
    let plain = case.text("way") == "socket";
    let mut arguments = match (side, plain) {
        (Role::Server, true) => vec!["answer".to_owned()],
        (Role::Server, false) => vec!["echo".to_owned()],
        (Role::Client, true) => vec!["ping".to_owned()],
        (Role::Client, false) => vec!["ask".to_owned()],
    };
    if !(plain && side == Role::Client) {
        arguments.extend(["--listen".into(), address(run.lab, side)]);
    }
    if !plain {
        arguments.extend(["--wait".into(), case.text("wait").into(), "--sending".into(), "sendmsg".into()]);
    }
    if case.text("way") == "af-xdp-copy" {
        arguments.extend(["--interface".into(), side.interface().into()]);
    }
    if side == Role::Client {
        arguments.extend(["--to".into(), address(run.lab, Role::Server)]);
        for key in ["size", "pause"] {
            arguments.extend([format!("--{key}"), case.count(key).to_string()]);
        }
        arguments.extend(["--seconds".into(), run.effort.seconds.to_string()]);
    }
    arguments
}
