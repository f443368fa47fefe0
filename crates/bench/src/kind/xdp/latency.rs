//! Latency of forwarding: from a packet's due time at one end, through the forwarder, to a receiver at the other.

use std::collections::BTreeMap;

use expressway_lab::Role;
use serde_json::Value as Json;

use super::bed::{End, FAR_ADDRESS, PORT, VethBed, start};
use super::tables::{PREFIXES, ROUTES, RULES};
use super::{ACTION, WAY, lacks, program};
use crate::kind::{Better, Kind, Metric, Outcome, Run, Table};
use crate::packet_path::PacketPath;
use crate::peers::Program;
use crate::process::Logged;
use crate::scenario::{Case, Form, Parameter, Value};
use crate::{BenchError, CLIENT_CORE, Tools, cpu, profile};

/// The kind.
pub(crate) struct XdpLatency;

static PARAMETERS: [Parameter; 7] = [
    WAY,
    ACTION,
    // Packets a second.
    Parameter::required("rate", Form::Count(1, 100_000_000)),
    // Bytes of UDP payload, 24 of which are the generator's header.
    Parameter::new("size", Form::Bytes(24, 1472), Value::Count(24)),
    RULES,
    PREFIXES,
    ROUTES,
];

static METRICS: [Metric; 7] = [
    Metric::new("p50_us", "p50", "us", Better::Lower, 1),
    Metric::new("p99_us", "p99", "us", Better::Lower, 1),
    Metric::new("max_us", "max", "us", Better::Lower, 0),
    Metric::new("mean_us", "mean", "us", Better::Lower, 1),
    Metric::new("arrival_us", "mean to the far interface", "us", Better::Lower, 1),
    Metric::new("lost_percent", "lost", "%", Better::Lower, 2),
    Metric::new("ns_per_packet", "CPU a packet", "ns", Better::Lower, 0),
];

static TABLE: Table = Table { name: "xdp-latency", parameters: &PARAMETERS, metrics: &METRICS };

impl Kind for XdpLatency {
    fn table(&self) -> &'static Table {
        &TABLE
    }

    fn lacks(&self, _: &Tools, case: &Case) -> Option<String> {
        lacks(case)
    }

    fn program(&self, tools: &Tools, case: &Case) -> Option<(String, Program)> {
        program(tools, case)
    }

    fn measure(&self, run: &Run<'_>) -> Result<Outcome, BenchError> {
        let case = run.case;
        let bed = VethBed::make(run, End::Through, 1)?;
        let path = PacketPath::named(case.text("way"))?;
        bed.prepare(&path)?;
        let mut forwarder = bed.start(&path, case.text("action"))?;
        let mut receiver = receive(run)?;
        bed.pin_far()?;
        cpu::run_first(&receiver.threads()?)?;
        let napi = run.server_napi(1)?;
        let used = |forwarder: Option<&Logged>| -> Result<u64, BenchError> {
            let process = forwarder.map_or(Ok(0), |process| cpu::of_tree(process.id()))?;
            Ok(process + cpu::of_threads(&napi))
        };
        let recording = match napi.iter().next() {
            Some(first) => run.sample(forwarder.as_ref().map_or(*first, |process| process.id()), &napi)?,
            None => None,
        };
        let before = used(forwarder.as_ref())?;
        let options = [
            ("--rate", case.count("rate").to_string()),
            ("--size", case.count("size").to_string()),
            ("--seconds", run.effort.seconds.to_string()),
        ];
        let sent: Json = bed.generate(&path, CLIENT_CORE, &options)?.report()?;
        let cpu_ns = used(forwarder.as_ref())? - before;
        profile::finish(recording)?;
        receiver.end()?;
        let mut received: Json = receiver.read()?;
        if let Some(forwarder) = &mut forwarder {
            forwarder.end()?;
        }
        let values = values(&sent, &received, cpu_ns)
            .ok_or_else(|| run.load_failed("way", "no packet arrived at the far end"))?;
        // No table shows the histogram, which is most of the report.
        if let Some(wire) = received.pointer_mut("/latency/wire").and_then(Json::as_object_mut) {
            wire.remove("histogram");
        }
        let detail = serde_json::json!({ "sent": sent, "received": received, "cpu_ns": cpu_ns });
        Ok(Outcome { values, detail })
    }
}

/// The receiver at the far end, the same for all: by AF_XDP, whose program stamps packets as they arrive.
fn receive(run: &Run<'_>) -> Result<Logged, BenchError> {
    let listen = format!("{FAR_ADDRESS}:{PORT}");
    let words = ["--log-level", "info", "recv", "--listen", &listen, "--io", "copy", "--latency", "--json"];
    let program = run.tools.expressway.display().to_string();
    let command: Vec<String> = std::iter::once(program).chain(words.map(str::to_owned)).collect();
    let mut receiver = start(run, Role::Client, CLIENT_CORE, "receiver", &command, &BTreeMap::new())?;
    receiver.wait_until_log_has("ready listen=")?;
    Ok(receiver)
}

/// `None` if no packet arrived.
fn values(sent: &Json, received: &Json, cpu_ns: u64) -> Option<BTreeMap<&'static str, f64>> {
    let number = |document: &Json, at: &str| document.pointer(at).and_then(Json::as_f64);
    let us = |at: &str| number(received, &format!("/latency/{at}")).map(|ns| ns / 1000.0);
    let packets = number(received, "/datagrams").filter(|packets| *packets > 0.0)?;
    let offered = number(sent, "/sent")? + number(sent, "/refused").unwrap_or(0.0);
    let mean = us("wire/mean")?;
    let mut values = BTreeMap::from([
        ("p50_us", us("wire/percentiles/p50")?),
        ("p99_us", us("wire/percentiles/p99")?),
        ("max_us", us("wire/percentiles/max")?),
        ("mean_us", mean),
        ("lost_percent", 100.0 * (1.0 - packets / offered.max(1.0)).max(0.0)),
        ("ns_per_packet", cpu_ns as f64 / packets),
    ]);
    // For the same packets: the mean minus the time from the XDP stamp to the callback.
    values.extend(us("callback/xdp/mean").map(|callback| ("arrival_us", mean - callback)));
    Some(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_come_from_both_reports() {
        let sent = serde_json::json!({ "sent": 900, "refused": 100 });
        let received = serde_json::json!({
            "datagrams": 500,
            "latency": {
                "wire": { "mean": 9000.0, "percentiles": { "p50": 8000, "p99": 20000, "max": 70000 } },
                "callback": { "xdp": { "mean": 5000.0 } },
            },
        });
        let values = values(&sent, &received, 100_000).unwrap();
        assert_eq!((values["p50_us"], values["p99_us"], values["max_us"]), (8.0, 20.0, 70.0));
        assert_eq!((values["mean_us"], values["arrival_us"]), (9.0, 4.0));
        assert_eq!((values["lost_percent"], values["ns_per_packet"]), (50.0, 200.0));
        let nothing = serde_json::json!({ "datagrams": 0, "latency": null });
        assert!(super::values(&sent, &nothing, 1).is_none());
    }
}
