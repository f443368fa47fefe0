//! UDP receive by `expressway recv` at an offered rate: how long from when a datagram was due to the program's callback, how
//! many arrive, and what one costs.

use std::collections::BTreeMap;

use expressway_lab::Role;
use serde_json::Value as Json;

use super::packet_io::address;
use super::{Better, Kind, Metric, Outcome, Run};
use crate::command::Command;
use crate::scenario::{Bed, Form, Parameter, Value, text};
use crate::{BenchError, profile};

/// The kind.
pub(crate) struct Receive;

static PARAMETERS: [Parameter; 6] = [
    Parameter::new("io", Form::Choice(&["copy", "generic", "udp", "zerocopy"]), text("udp")),
    Parameter::new("wait", Form::Choice(&["interrupt", "busy-poll", "spin"]), text("interrupt")),
    // Datagrams a second.
    Parameter::required("rate", Form::Count(1, 100_000_000)),
    // The header that datagrams are measured by takes 24 bytes.
    Parameter::new("size", Form::Bytes(24, 1472), Value::Count(64)),
    // They differ in the source port.
    Parameter::new("flows", Form::Count(1, 1024), Value::Count(1)),
    // How the generator sends.
    Parameter::new("sender", Form::Choice(&["udp", "copy", "live"]), text("udp")),
];

static METRICS: [Metric; 8] = [
    Metric::new("p50_us", "p50", "us", Better::Lower, 1),
    Metric::new("p99_us", "p99", "us", Better::Lower, 1),
    Metric::new("p999_us", "p99.9", "us", Better::Lower, 1),
    Metric::new("mean_us", "mean", "us", Better::Lower, 1),
    Metric::new("received_kpps", "received", "kpps", Better::Higher, 1),
    Metric::new("lost_percent", "lost", "%", Better::Lower, 2),
    Metric::new("ns_per_datagram", "CPU a datagram", "ns", Better::Lower, 0),
    Metric::new("cpu_percent", "CPU", "%", Better::Lower, 1),
];

impl Kind for Receive {
    fn name(&self) -> &'static str {
        "receive"
    }

    fn parameters(&self) -> &'static [Parameter] {
        &PARAMETERS
    }

    fn metrics(&self) -> &'static [Metric] {
        &METRICS
    }

    fn refuses(&self, bed: Bed) -> Option<&'static str> {
        (bed == Bed::Nics).then_some(
            "it measures one way from host to host, whose clocks differ; what goes there and back can be measured",
        )
    }

    fn measure(&self, run: &Run<'_>) -> Result<Outcome, BenchError> {
        let case = run.case;
        let to = address(run.lab, Role::Server);
        let arguments = ["recv", "--listen", &to, "--io", case.text("io"), "--wait", case.text("wait")];
        let mut arguments = arguments.map(str::to_owned).to_vec();
        arguments.extend(["--latency".into(), "--json".into()]);
        let mut receiver = Command::start(run.lab, run.tools, Role::Server, &arguments)?;
        receiver.wait_until_log_has("ready listen=")?;
        let napi = run.server_napi(1)?;
        let recording = run.sample(receiver.id(), &napi)?;
        let before = receiver.account(&napi)?;
        let generate = [
            ("--to", to),
            ("--rate", case.count("rate").to_string()),
            ("--size", case.count("size").to_string()),
            ("--flows", case.count("flows").to_string()),
            ("--seconds", run.effort.seconds.to_string()),
            ("--io", case.text("sender").to_owned()),
            ("--send", "sendmmsg".to_owned()),
            ("--linger", "100ms".to_owned()),
        ];
        let mut arguments = vec!["gen".to_owned(), "udp".into(), "--json".into()];
        arguments.extend(generate.into_iter().flat_map(|(option, value)| [option.to_owned(), value]));
        let sent: Json = Command::start(run.lab, run.tools, Role::Client, &arguments)?.report()?;
        let cpu = receiver.account(&napi)?.since(before);
        profile::finish(recording)?;
        receiver.interrupt()?;
        let received: Json = receiver.report()?;
        let values = values(&sent, &received, cpu.charged_ns(), run.effort.seconds).ok_or_else(|| {
            BenchError::Load { contestant: case.text("io").into(), problem: "nothing arrived".into() }
        })?;
        // The histogram's buckets are the bulk of the report and in no table.
        let mut received = received;
        if let Some(wire) = received.pointer_mut("/latency/wire").and_then(Json::as_object_mut) {
            wire.remove("histogram");
        }
        let detail = serde_json::json!({ "sent": sent, "received": received, "server_cpu": cpu });
        Ok(Outcome { values, detail })
    }
}

/// `None` where no datagram with the generator's header arrived.
fn values(sent: &Json, received: &Json, cpu_ns: u64, seconds: f64) -> Option<BTreeMap<&'static str, f64>> {
    let number = |document: &Json, at: &str| document.pointer(at).and_then(Json::as_f64);
    let us = |at: &str| number(received, &format!("/latency/wire/{at}")).map(|ns| ns / 1000.0);
    let datagrams = number(received, "/datagrams").filter(|datagrams| *datagrams > 0.0)?;
    let all = number(sent, "/sent").filter(|sent| *sent > 0.0)?;
    Some(BTreeMap::from([
        ("p50_us", us("percentiles/p50")?),
        ("p99_us", us("percentiles/p99")?),
        ("p999_us", us("percentiles/p99.9")?),
        ("mean_us", us("mean")?),
        ("received_kpps", datagrams / number(sent, "/seconds").unwrap_or(seconds) / 1000.0),
        ("lost_percent", 100.0 * (all - datagrams).max(0.0) / all),
        ("ns_per_datagram", cpu_ns as f64 / datagrams),
        ("cpu_percent", cpu_ns as f64 / (seconds * 1e7)),
    ]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_come_from_both_reports() {
        let sent = serde_json::json!({ "sent": 1000, "seconds": 2.0 });
        let received = serde_json::json!({
            "datagrams": 900,
            "latency": { "wire": { "mean": 6000.0, "percentiles": { "p50": 5000, "p99": 9000, "p99.9": 20000 } } },
        });
        let values = values(&sent, &received, 1_800_000, 2.0).unwrap();
        assert_eq!((values["p50_us"], values["p99_us"], values["mean_us"]), (5.0, 9.0, 6.0));
        assert_eq!((values["lost_percent"], values["ns_per_datagram"]), (10.0, 2000.0));
        assert_eq!(values["received_kpps"], 0.45);
        let nothing = serde_json::json!({ "datagrams": 0, "latency": null });
        assert!(super::values(&sent, &nothing, 1, 2.0).is_none());
    }
}
