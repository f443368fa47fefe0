//! UDP receive by `expressway recv` at a given rate: latency from a datagram's due time to the callback, loss, and
//! CPU per datagram.

use std::collections::BTreeMap;

use expressway_lab::Role;
use rustix::process::Signal;
use serde_json::Value as Json;

use super::packet_io::address;
use super::{Better, Kind, Metric, Outcome, Run, Table};
use crate::cpu::Account;
use crate::scenario::{Bed, Form, Parameter, Value, text};
use crate::{BenchError, profile};

/// The kind.
pub(crate) struct Receive;

static PARAMETERS: [Parameter; 6] = [
    Parameter::new("io", Form::Choice(&["copy", "generic", "udp", "zerocopy"]), text("udp")),
    Parameter::new("wait", Form::Choice(&["interrupt", "busy-poll", "spin"]), text("interrupt")),
    // Datagrams a second.
    Parameter::required("rate", Form::Count(1, 100_000_000)),
    // The generator's header takes 24 bytes.
    Parameter::new("size", Form::Bytes(24, 1472), Value::Count(64)),
    // Flows differ in the source port.
    Parameter::new("flows", Form::Count(1, 1024), Value::Count(1)),
    // How the generator sends.
    Parameter::new("sender", Form::Choice(&["udp", "copy", "live"]), text("udp")),
];

static METRICS: [Metric; 13] = [
    Metric::new("p50_us", "p50", "us", Better::Lower, 1),
    Metric::new("p99_us", "p99", "us", Better::Lower, 1),
    Metric::new("p999_us", "p99.9", "us", Better::Lower, 1),
    Metric::new("mean_us", "mean", "us", Better::Lower, 1),
    Metric::new("received_kpps", "received", "kpps", Better::Higher, 1),
    Metric::new("lost_percent", "lost", "%", Better::Lower, 3),
    Metric::new("lost", "lost", "", Better::Lower, 0),
    Metric::new("ns_per_datagram", "CPU a datagram", "ns", Better::Lower, 0),
    Metric::new("process_ns_per_datagram", "of the process", "ns", Better::Neither, 0),
    Metric::new("napi_ns_per_datagram", "of the NAPI thread", "ns", Better::Neither, 0),
    Metric::new("cpu_percent", "CPU", "%", Better::Lower, 1),
    Metric::new("offered_percent", "offered share", "%", Better::Neither, 1),
    Metric::new("sender_late_us", "sender's p99 lateness", "us", Better::Neither, 1),
];

static TABLE: Table = Table { name: "receive", parameters: &PARAMETERS, metrics: &METRICS };

impl Kind for Receive {
    fn table(&self) -> &'static Table {
        &TABLE
    }

    fn refuses(&self, bed: Bed) -> Option<&'static str> {
        (bed == Bed::Nics)
            .then_some("it measures one-way latency, and the hosts' clocks differ; use a round-trip kind")
    }

    fn measure(&self, run: &Run<'_>) -> Result<Outcome, BenchError> {
        let trial = trial(run, run.case.count("rate"))?;
        let values = trial.values().ok_or_else(|| run.load_failed("io", "nothing arrived"))?;
        Ok(Outcome { values, detail: trial.detail() })
    }
}

/// What the two ends report for an offered rate.
pub(super) struct Trial {
    sent: Json,
    received: Json,
    cpu: Account,
    rate: f64,
}

/// Starts a receiver and offers it a rate.
pub(super) fn trial(run: &Run<'_>, rate: u64) -> Result<Trial, BenchError> {
    let case = run.case;
    let to = address(run.lab, Role::Server);
    let arguments = ["recv", "--listen", &to, "--io", case.text("io"), "--wait", case.text("wait")];
    let mut arguments = arguments.map(str::to_owned).to_vec();
    arguments.extend(["--latency".into(), "--json".into()]);
    let mut receiver = run.start_expressway(Role::Server, "receiver", &arguments)?;
    receiver.wait_until_log_has("ready listen=")?;
    let napi = run.server_napi(1)?;
    let recording = run.sample(receiver.id(), &napi)?;
    let before = receiver.account(&napi)?;
    let mut arguments = generate(&to, rate, case.count("size"), run.effort.seconds, case.text("sender"));
    arguments.extend(["--flows".to_owned(), case.count("flows").to_string()]);
    let sent: Json = run.start_expressway(Role::Client, "generator", &arguments)?.report()?;
    let cpu = receiver.account(&napi)?.since(before);
    profile::finish(recording)?;
    receiver.signal(Signal::INT)?;
    let mut received: Json = receiver.report()?;
    // No table shows the histograms, which are most of the report.
    if let Some(latency) = received.get_mut("latency").and_then(Json::as_object_mut) {
        latency.remove("callback");
        if let Some(wire) = latency.get_mut("wire").and_then(Json::as_object_mut) {
            wire.remove("histogram");
        }
    }
    Ok(Trial { sent, received, cpu, rate: rate as f64 })
}

/// The arguments of a generator that offers a rate for so many seconds.
pub(super) fn generate(to: &str, rate: u64, size: u64, seconds: f64, sender: &str) -> Vec<String> {
    let options = [
        ("--to", to.to_owned()),
        ("--rate", rate.to_string()),
        ("--size", size.to_string()),
        ("--seconds", seconds.to_string()),
        ("--io", sender.to_owned()),
        ("--send", "sendmmsg".to_owned()),
        ("--linger", "100ms".to_owned()),
    ];
    let mut arguments = vec!["gen".to_owned(), "udp".into(), "--json".into()];
    arguments.extend(options.into_iter().flat_map(|(option, value)| [option.to_owned(), value]));
    arguments
}

fn number(document: &Json, at: &str) -> Option<f64> {
    document.pointer(at).and_then(Json::as_f64)
}

/// Datagrams that a generator gave to the device, including those that found its ring full: the receiver has to empty it.
pub(super) fn handed(sent: &Json) -> f64 {
    number(sent, "/sent").unwrap_or(0.0) + number(sent, "/refused").unwrap_or(0.0)
}

/// The share of the rate that the generator offered, in percent.
pub(super) fn offered_percent(sent: &Json, rate: f64) -> f64 {
    100.0 * handed(sent) / (rate * number(sent, "/seconds").unwrap_or(f64::INFINITY)).max(1.0)
}

impl Trial {
    /// `None` where no datagram with the generator's header arrived.
    pub(super) fn values(&self) -> Option<BTreeMap<&'static str, f64>> {
        let Self { sent, received, cpu, rate } = self;
        let us = |at: &str| number(received, &format!("/latency/wire/{at}")).map(|ns| ns / 1000.0);
        let datagrams = number(received, "/datagrams").filter(|datagrams| *datagrams > 0.0)?;
        let (all, seconds) = (handed(sent), number(sent, "/seconds").filter(|seconds| *seconds > 0.0)?);
        let lost = (all - datagrams).max(0.0);
        let each = |nanoseconds: u64| nanoseconds as f64 / datagrams;
        Some(BTreeMap::from([
            ("p50_us", us("percentiles/p50")?),
            ("p99_us", us("percentiles/p99")?),
            ("p999_us", us("percentiles/p99.9")?),
            ("mean_us", us("mean")?),
            ("received_kpps", datagrams / seconds / 1000.0),
            ("lost_percent", 100.0 * lost / all.max(1.0)),
            ("lost", lost),
            ("ns_per_datagram", each(cpu.charged_ns())),
            ("process_ns_per_datagram", each(cpu.process_ns)),
            ("napi_ns_per_datagram", each(cpu.napi_ns)),
            ("cpu_percent", cpu.charged_ns() as f64 / (seconds * 1e7)),
            ("offered_percent", offered_percent(sent, *rate)),
            ("sender_late_us", number(sent, "/lateness_ns/p99").unwrap_or(0.0) / 1000.0),
        ]))
    }

    /// What the values were computed from.
    pub(super) fn detail(&self) -> Json {
        serde_json::json!({ "sent": self.sent, "received": self.received, "server_cpu": self.cpu })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(received: Json) -> Trial {
        let sent = serde_json::json!({
            "sent": 990, "refused": 10, "seconds": 2.0, "lateness_ns": { "p99": 3000 },
        });
        let cpu = Account { process_ns: 1_350_000, napi_ns: 450_000, ..Account::default() };
        Trial { sent, received, cpu, rate: 625.0 }
    }

    #[test]
    fn figures_come_from_both_reports() {
        let received = serde_json::json!({
            "datagrams": 900,
            "latency": { "wire": { "mean": 6000.0, "percentiles": { "p50": 5000, "p99": 9000, "p99.9": 20000 } } },
        });
        let values = trial(received).values().unwrap();
        assert_eq!((values["p50_us"], values["p99_us"], values["mean_us"]), (5.0, 9.0, 6.0));
        assert_eq!(
            (values["lost"], values["lost_percent"], values["ns_per_datagram"]),
            (100.0, 10.0, 2000.0)
        );
        assert_eq!((values["process_ns_per_datagram"], values["napi_ns_per_datagram"]), (1500.0, 500.0));
        assert_eq!((values["received_kpps"], values["cpu_percent"]), (0.45, 0.09));
        // The sender gave 1000 of 1250 datagrams to the device, and says how late.
        assert_eq!((values["offered_percent"], values["sender_late_us"]), (80.0, 3.0));
        assert_eq!(values.len(), METRICS.len());
        let nothing = serde_json::json!({ "datagrams": 0, "latency": null });
        assert!(trial(nothing).values().is_none());
    }
}
