//! The highest rate that `expressway recv` receives with almost no loss, found by trials, and latency and CPU at that rate.

use std::ops::Range;

use super::receive::{Trial, trial};
use super::{Better, Kind, Metric, Outcome, Run, Table};
use crate::BenchError;
use crate::scenario::{Form, Parameter, Value, text};

/// The kind.
pub(crate) struct ReceiveLimit;

/// The lowest rate that is tried, in datagrams a second.
const LOWEST: f64 = 25_000.0;
/// The ratio between neighbouring rates: the precision of the result.
const STEP: f64 = 1.09;
/// Rates that may be tried: up to 6.2 million.
const RATES: usize = 65;
/// The share of datagrams that may be lost. Without any, stalls of the machine would decide.
const LOSS: f64 = 1e-2;
/// The share of a rate that the generator must send for the rate to count as offered.
const OFFERED: f64 = 0.995;

static PARAMETERS: [Parameter; 5] = [
    Parameter::new("io", Form::Choice(&["copy", "generic", "udp", "zerocopy"]), text("udp")),
    Parameter::new("wait", Form::Choice(&["interrupt", "busy-poll", "spin"]), text("interrupt")),
    Parameter::new("size", Form::Bytes(24, 1472), Value::Count(64)),
    Parameter::new("sender", Form::Choice(&["udp", "copy", "live"]), text("live")),
    Parameter::new("flows", Form::Count(1, 1 << 20), Value::Count(1)),
];

static METRICS: [Metric; 8] = [
    Metric::new("limit_kpps", "highest rate", "kpps", Better::Higher, 0),
    Metric::new("p50_us", "p50 there", "us", Better::Lower, 1),
    Metric::new("mean_us", "mean there", "us", Better::Lower, 1),
    Metric::new("p99_us", "p99 there", "us", Better::Lower, 1),
    Metric::new("ns_per_datagram", "CPU a datagram there", "ns", Better::Lower, 0),
    Metric::new("cpu_percent", "CPU there", "%", Better::Neither, 1),
    Metric::new("sender_bound", "limited by the sender", "", Better::Neither, 0),
    Metric::new("trials", "trials", "", Better::Neither, 0),
];

static TABLE: Table = Table { name: "receive-limit", parameters: &PARAMETERS, metrics: &METRICS };

/// How a trial of a rate went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// Everything arrived.
    Taken,
    /// The receiver lost some.
    Lost,
    /// The sender could not offer it.
    NotOffered,
}

impl Kind for ReceiveLimit {
    fn table(&self) -> &'static Table {
        &TABLE
    }

    fn measure(&self, run: &Run<'_>) -> Result<Outcome, BenchError> {
        let (mut best, mut log, mut bound) = (None, Vec::new(), false);
        let found = search(0..RATES, |index| {
            let rate = rate(index);
            let trial = trial(run, rate)?;
            let verdict = judge(&trial);
            log.push(serde_json::json!({ "rate": rate, "verdict": format!("{verdict:?}"), "detail": trial.detail() }));
            match verdict {
                Verdict::Taken => best = Some(trial),
                verdict => bound = verdict == Verdict::NotOffered,
            }
            Ok::<_, BenchError>(verdict == Verdict::Taken)
        })?;
        let Some((index, trial)) = found.zip(best) else {
            let problem = format!("not even {LOWEST} datagrams a second were offered and received");
            return Err(run.load_failed("io", problem));
        };
        let mut values = trial.values().unwrap_or_default();
        values.retain(|key, _| METRICS.iter().any(|metric| metric.key == *key));
        values.insert("limit_kpps", rate(index) as f64 / 1000.0);
        values.insert("sender_bound", f64::from(u8::from(bound || index + 1 == RATES)));
        values.insert("trials", log.len() as f64);
        Ok(Outcome { values, detail: serde_json::json!({ "trials": log }) })
    }
}

/// The rate of an index, in datagrams a second.
fn rate(index: usize) -> u64 {
    (LOWEST * STEP.powi(index as i32)).round() as u64
}

fn judge(trial: &Trial) -> Verdict {
    // If nothing arrived, all was lost.
    let Some(values) = trial.values() else { return Verdict::Lost };
    // What the device's full ring refused counts as lost by the receiver.
    if values["lost_percent"] > 100.0 * LOSS {
        Verdict::Lost
    } else if values["offered_percent"] < 100.0 * OFFERED {
        Verdict::NotOffered
    } else {
        Verdict::Taken
    }
}

/// Bisects for the highest index that passes, given that all below it pass; `None` if none does.
fn search<E>(
    mut range: Range<usize>,
    mut passes: impl FnMut(usize) -> Result<bool, E>,
) -> Result<Option<usize>, E> {
    let mut found = None;
    while !range.is_empty() {
        let middle = range.start + range.len() / 2;
        if passes(middle)? {
            found = Some(middle);
            range.start = middle + 1;
        } else {
            range.end = middle;
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_search_finds_the_last_that_passes() {
        for last in [None, Some(0), Some(1), Some(31), Some(63), Some(64)] {
            let mut trials = 0;
            let found = search(0..RATES, |index| {
                trials += 1;
                Ok::<_, ()>(last.is_some_and(|last| index <= last))
            });
            assert_eq!(found, Ok(last));
            assert!(trials <= 7, "{trials}");
        }
    }
}
