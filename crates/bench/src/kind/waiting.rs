//! Round-trip time and CPU of an echo, by wait strategy.

use std::collections::BTreeMap;

use expressway_lab::Role;
use serde::{Deserialize, Serialize};

use super::packet_io::address;
use super::{Better, Kind, Metric, Outcome, Run, Table};
use crate::scenario::{Case, Form, Parameter, Value, text};
use crate::{BenchError, Tools, profile};

/// The kind.
pub(crate) struct Waiting;

static PARAMETERS: [Parameter; 4] = [
    Parameter::required("way", Form::Choice(&["af-xdp-copy", "udp"])),
    Parameter::new("wait", Form::Choice(&["interrupt", "busy-poll", "spin"]), text("interrupt")),
    Parameter::new("size", Form::Bytes(8, 1472), Value::Count(64)),
    // Microseconds between a reply and the next request.
    Parameter::new("pause", Form::Count(0, 1_000_000), Value::Count(100)),
];

static METRICS: [Metric; 4] = [
    Metric::new("p50_us", "p50", "us", Better::Lower, 1),
    Metric::new("p99_us", "p99", "us", Better::Lower, 1),
    Metric::new("cpu_percent", "CPU", "%", Better::Lower, 1),
    Metric::new("lost_percent", "lost", "%", Better::Lower, 2),
];

static TABLE: Table = Table { name: "waiting", parameters: &PARAMETERS, metrics: &METRICS };

/// The report of an `expressway-io` that measured round trips.
#[derive(Deserialize, Serialize)]
pub(super) struct Asked {
    pub(super) round_trips: u64,
    pub(super) lost: u64,
    pub(super) p50_ns: u64,
    pub(super) p99_ns: u64,
    pub(super) max_ns: u64,
}

impl Asked {
    /// Fails if no round trip completed.
    pub(super) fn check(&self, contestant: &str) -> Result<(), BenchError> {
        if self.round_trips > 0 {
            return Ok(());
        }
        let problem = format!("{} requests were lost and none was answered; run longer", self.lost);
        Err(BenchError::Load { contestant: contestant.to_owned(), problem })
    }

    /// The share of requests without a reply.
    pub(super) fn lost_percent(&self) -> f64 {
        100.0 * self.lost as f64 / (self.round_trips + self.lost).max(1) as f64
    }
}

impl Kind for Waiting {
    fn table(&self) -> &'static Table {
        &TABLE
    }

    fn lacks(&self, tools: &Tools, _: &Case) -> Option<String> {
        tools.lack_io()
    }

    fn measure(&self, run: &Run<'_>) -> Result<Outcome, BenchError> {
        let (way, wait) = (run.case.text("way"), run.case.text("wait"));
        let server = address(run.lab, Role::Server);
        let mut command = vec!["echo".to_owned(), "--listen".into(), server.clone()];
        if way == "af-xdp-copy" {
            command.extend(["--interface".into(), Role::Server.interface().into()]);
        }
        command.extend(["--wait".into(), wait.into()]);
        let mut echo = run.start_io(Role::Server, &command)?;
        echo.wait_ready()?;
        let threads = run.server_napi(1)?;
        let recording = run.sample(echo.id(), &threads)?;
        let before = echo.account(&threads)?;
        let ping = [
            "ping".to_owned(),
            "--to".into(),
            server,
            "--size".into(),
            run.case.count("size").to_string(),
            "--pause".into(),
            run.case.count("pause").to_string(),
            "--seconds".into(),
            run.effort.seconds.to_string(),
        ];
        let asked: Asked = run.start_io(Role::Client, &ping)?.report()?;
        let cpu = echo.account(&threads)?.since(before);
        profile::finish(recording)?;
        asked.check(&format!("{way} {wait}"))?;
        let values = BTreeMap::from([
            ("p50_us", asked.p50_ns as f64 / 1000.0),
            ("p99_us", asked.p99_ns as f64 / 1000.0),
            ("cpu_percent", cpu.charged_ns() as f64 / (run.effort.seconds * 1e7)),
            ("lost_percent", asked.lost_percent()),
        ]);
        Ok(Outcome { values, detail: serde_json::json!({ "asked": asked, "server_cpu": cpu }) })
    }
}
