//! Memory of idle connections.

use std::collections::BTreeMap;

use super::{Better, Kind, Metric, Outcome, Run, Table, gateway};
use crate::BenchError;
use crate::load::{Load, Running};
use crate::scenario::{Form, Parameter, Value};
use crate::server::{IO, MTU, SERVER, Server, UDP_SEGMENTATION, UDP_SEND, WORKERS};

/// The kind.
pub(crate) struct Idle;

static PARAMETERS: [Parameter; 7] = [
    SERVER,
    IO,
    UDP_SEND,
    WORKERS,
    UDP_SEGMENTATION,
    MTU,
    // The load generator uses one socket for all.
    Parameter::new("connections", Form::Count(1, 100_000), Value::Count(10_000)),
];

static METRICS: [Metric; 3] = [
    Metric::new("bytes_per_connection", "memory a connection", "B", Better::Lower, 0),
    Metric::new("bytes_before", "memory before", "B", Better::Lower, 0),
    Metric::new("bytes_after", "memory with all", "B", Better::Lower, 0),
];

static TABLE: Table = Table { name: "idle", parameters: &PARAMETERS, metrics: &METRICS };

impl Kind for Idle {
    fn table(&self) -> &'static Table {
        &TABLE
    }

    /// Opens the connections one after the other, lets them settle and reads the server's memory.
    fn measure(&self, run: &Run<'_>) -> Result<Outcome, BenchError> {
        let connections = run.case.count("connections");
        let load = Load {
            connections: connections as usize,
            streams: 0,
            rate: 0.0,
            range: 0,
            body: 1024,
            handshakes: false,
            warmup: run.effort.warmup,
            seconds: run.effort.seconds,
        };
        run.tools.write_body(load.body)?;
        let server = Server::start(run)?;
        let before = server.memory()?;
        let core = gateway::client_core(run.case);
        let mut running = Running::start(run, run.case.text("server"), &load, core)?;
        running.wait_until_measuring()?;
        let after = server.memory()?;
        running.counted()?;
        let values = BTreeMap::from([
            ("bytes_per_connection", after.saturating_sub(before) as f64 / connections as f64),
            ("bytes_before", before as f64),
            ("bytes_after", after as f64),
        ]);
        Ok(Outcome { values, detail: serde_json::json!({ "load": load }) })
    }
}
