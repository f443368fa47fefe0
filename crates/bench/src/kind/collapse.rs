//! Clients that request the same uncached object at once: how often the origin is asked, and what a client costs.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Better, Kind, Metric, Outcome, Run, Table, gateway};
use crate::BenchError;
use crate::load::{Load, Running};
use crate::origin::Origin;
use crate::scenario::{Form, Parameter, Value, text};
use crate::server::{IO, MTU, SERVER, Server, UDP_SEGMENTATION, UDP_SEND, WORKERS};

/// The kind.
pub(crate) struct Collapse;

static PARAMETERS: [Parameter; 11] = [
    SERVER,
    IO,
    UDP_SEND,
    WORKERS,
    UDP_SEGMENTATION,
    MTU,
    Parameter::new("protocol", Form::Choice(&["h2", "h1"]), text("h2")),
    Parameter::new("content", Form::Choice(&["cached"]), text("cached")),
    Parameter::new("body", Form::Bytes(1, 1 << 30), Value::Count(64 << 10)),
    Parameter::new("clients", Form::Count(1, 20_000), Value::Count(1000)),
    // Seconds that the origin takes to answer, within which all clients ask.
    Parameter::new("delay", Form::Count(0, 60), Value::Count(5)),
];

static METRICS: [Metric; 2] = [
    Metric::new("origin_requests", "origin requests", "", Better::Lower, 0),
    Metric::new("us_per_client", "CPU a client", "us", Better::Lower, 0),
];

static TABLE: Table = Table { name: "collapse", parameters: &PARAMETERS, metrics: &METRICS };

impl Kind for Collapse {
    fn table(&self) -> &'static Table {
        &TABLE
    }

    fn measure(&self, run: &Run<'_>) -> Result<Outcome, BenchError> {
        let case = run.case;
        let clients = case.count("clients");
        let load = Load {
            connections: clients as usize,
            streams: 1,
            rate: 0.0,
            range: 0,
            body: case.count("body"),
            handshakes: false,
            warmup: 0.0,
            seconds: 0.0,
        };
        run.tools.write_body(load.body)?;
        let delay = Duration::from_secs(case.count("delay"));
        let origin = Origin::start(run.lab, run.tools.root(), delay)?;
        let server = Server::start(run)?;
        let napi = run.server_napi(case.count("workers") as usize)?;
        let before = server.account(&napi)?;
        let mut running = Running::start(run, case.text("server"), &load, gateway::client_core(case))?;
        let counted = running.counted()?;
        let cpu = server.account(&napi)?.since(before);
        if counted.requests != clients {
            let problem = format!("{} of {clients} clients have an answer", counted.requests);
            return Err(run.load_failed("server", problem));
        }
        let values = BTreeMap::from([
            ("origin_requests", origin.requests() as f64),
            ("us_per_client", cpu.charged_ns() as f64 / 1000.0 / clients as f64),
        ]);
        Ok(Outcome { values, detail: serde_json::json!({ "counted": counted, "server_cpu": cpu }) })
    }
}
