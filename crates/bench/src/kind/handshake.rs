//! CPU per new connection: handshake, one small request, close.

use std::collections::BTreeMap;

use super::{Better, Kind, Metric, Outcome, Run, Table, gateway};
use crate::BenchError;
use crate::load::Load;
use crate::scenario::{Form, Parameter, Value};
use crate::server::{IO, MTU, SERVER, UDP_SEGMENTATION, UDP_SEND, WORKERS};

/// The kind.
pub(crate) struct Handshake;

static PARAMETERS: [Parameter; 8] = [
    SERVER,
    IO,
    UDP_SEND,
    WORKERS,
    UDP_SEGMENTATION,
    MTU,
    Parameter::new("body", Form::Bytes(1, 1 << 20), Value::Count(1024)),
    // Concurrent handshakes.
    Parameter::new("at_once", Form::Count(1, 1024), Value::Count(8)),
];

static METRICS: [Metric; 6] = [
    Metric::new("us_per_handshake", "CPU a connection", "us", Better::Lower, 0),
    Metric::new("handshakes_per_second", "connections/s", "1/s", Better::Higher, 0),
    Metric::new("latency_p50_us", "p50", "us", Better::Lower, 0),
    Metric::new("latency_p99_us", "p99", "us", Better::Lower, 0),
    Metric::new("napi_share_percent", "NAPI share", "%", Better::Neither, 0),
    Metric::new("client_cpu_percent", "client CPU", "%", Better::Neither, 0),
];

static TABLE: Table = Table { name: "handshake", parameters: &PARAMETERS, metrics: &METRICS };

impl Kind for Handshake {
    fn table(&self) -> &'static Table {
        &TABLE
    }

    fn measure(&self, run: &Run<'_>) -> Result<Outcome, BenchError> {
        let load = Load {
            connections: run.case.count("at_once") as usize,
            streams: 1,
            rate: 0.0,
            range: 0,
            body: run.case.count("body"),
            handshakes: true,
            warmup: run.effort.warmup,
            seconds: run.effort.seconds,
        };
        let loaded = gateway::Loaded::measure(run, &load)?;
        let counted = &loaded.counted;
        if counted.handshakes == 0 {
            return Err(run.load_failed("server", "no handshake completed during measurement; run longer"));
        }
        let (charged, each) = (loaded.cpu.charged_ns() as f64, counted.handshakes as f64);
        let values = BTreeMap::from([
            ("us_per_handshake", charged / 1000.0 / each),
            ("handshakes_per_second", each / counted.seconds),
            ("latency_p50_us", counted.latency_us_p50 as f64),
            ("latency_p99_us", counted.latency_us_p99 as f64),
            ("napi_share_percent", 100.0 * loaded.cpu.napi_ns as f64 / charged),
            ("client_cpu_percent", counted.client_ns as f64 / (counted.seconds * 1e7)),
        ]);
        Ok(Outcome { values, detail: loaded.detail() })
    }
}
