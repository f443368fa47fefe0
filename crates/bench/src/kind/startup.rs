//! A server's start and reload times, and its memory without connections.

use std::collections::BTreeMap;
use std::time::Instant;

use super::{Better, Kind, Metric, Outcome, Run, Table, gateway};
use crate::BenchError;
use crate::load::Probe;
use crate::scenario::{Form, Parameter, text};
use crate::server::{IO, MTU, SERVER, Server, UDP_SEGMENTATION, UDP_SEND, WORKERS};

/// The kind.
pub(crate) struct Startup;

static PARAMETERS: [Parameter; 7] = [
    SERVER,
    IO,
    UDP_SEND,
    WORKERS,
    UDP_SEGMENTATION,
    MTU,
    // Whether SIGHUP makes it reload its certificate.
    Parameter::new("reload", Form::Choice(&["no", "sighup"]), text("no")),
];

static METRICS: [Metric; 4] = [
    Metric::new("listening_ms", "start to listening", "ms", Better::Lower, 1),
    Metric::new("reload_ms", "SIGHUP to new certificate", "ms", Better::Lower, 1),
    Metric::new("refused", "refused during the reload", "", Better::Lower, 0),
    Metric::new("memory_bytes", "memory at rest", "B", Better::Lower, 0),
];

static TABLE: Table = Table { name: "startup", parameters: &PARAMETERS, metrics: &METRICS };

impl Kind for Startup {
    fn table(&self) -> &'static Table {
        &TABLE
    }

    /// For a client the reload is over when a new connection gets the new certificate. Connections are made one after another
    /// until one does, so the figure includes a handshake.
    fn measure(&self, run: &Run<'_>) -> Result<Outcome, BenchError> {
        run.tools.make_certificates()?;
        let server = Server::start(run)?;
        let memory = server.memory()?;
        let mut values = BTreeMap::from([
            ("listening_ms", server.started_in.as_secs_f64() * 1e3),
            ("memory_bytes", memory as f64),
        ]);
        if run.case.text("reload") == "sighup" {
            let mut probe = Probe::start(run, run.case.text("server"), gateway::client_core(run.case))?;
            probe.wait_until_connected()?;
            run.tools.make_certificates()?;
            let began = Instant::now();
            server.reload()?;
            let refused = probe.wait_for_new_certificate()?;
            values.insert("reload_ms", began.elapsed().as_secs_f64() * 1e3);
            values.insert("refused", refused as f64);
        }
        Ok(Outcome { values, detail: serde_json::Value::Null })
    }
}
