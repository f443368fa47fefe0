//! Measurements as raw lines, and the table made from them.

use std::fmt::Write as _;

use serde::Serialize;

use crate::load::{Counted, Load};

/// One run of one contestant.
#[derive(Clone, Debug, Serialize)]
pub struct Measurement {
    /// Who.
    pub contestant: String,
    /// Body size, bytes.
    pub body: u64,
    /// `tx-udp-segmentation` of the server's interface: `on` or `off`.
    pub udp_segmentation: String,
    /// Round, from 0.
    pub round: usize,
    /// CPU of the server's processes while counting, nanoseconds.
    pub server_process_ns: u64,
    /// CPU of the NAPI thread of the server's interface, nanoseconds.
    pub server_napi_ns: u64,
    /// What was asked.
    pub load: Load,
    /// What came.
    pub counted: Counted,
}

impl Measurement {
    /// Server CPU, nanoseconds.
    pub fn server_ns(&self) -> u64 {
        self.server_process_ns + self.server_napi_ns
    }

    /// Gigabits of bodies for each second of server CPU.
    pub fn gbit_per_cpu_second(&self) -> f64 {
        self.counted.bytes as f64 * 8.0 / self.server_ns() as f64
    }

    /// Microseconds of server CPU a request.
    pub fn us_per_request(&self) -> f64 {
        self.server_ns() as f64 / 1000.0 / self.counted.requests as f64
    }

    /// Mean UDP payload of the datagrams that the client received.
    pub fn mean_datagram(&self) -> f64 {
        self.counted.datagram_bytes as f64 / self.counted.datagrams.max(1) as f64
    }
}

/// A Markdown table of medians, one block for each offload state and body size. The ratio is to the first
/// contestant of the block, run by run: its median over the rounds and the quartiles around it. Runs of a round
/// follow each other at once, so that a machine whose speed changes from minute to minute changes both sides of
/// a ratio.
pub fn table(measurements: &[Measurement]) -> String {
    let mut text = String::new();
    for (offload, body) in distinct(measurements, |m| (m.udp_segmentation.clone(), m.body)) {
        let block: Vec<&Measurement> =
            measurements.iter().filter(|m| m.udp_segmentation == offload && m.body == body).collect();
        let _ = writeln!(text, "\nbody {body} B, tx-udp-segmentation {offload}\n");
        text.push_str(
            "| server | Gbit/CPU-s | ratio | quartiles | µs CPU/request | Gbit/s | NAPI share | B/datagram | runs |\n",
        );
        text.push_str("|---|---|---|---|---|---|---|---|---|\n");
        let names = distinct_of(&block, |m| m.contestant.clone());
        let runs_of = |name: &String| -> Vec<&Measurement> {
            block.iter().filter(|m| m.contestant == *name).copied().collect()
        };
        let base = names.first().map(runs_of).unwrap_or_default();
        for name in &names {
            let runs = runs_of(name);
            let ratios = ratios(&runs, &base);
            let _ = writeln!(
                text,
                "| {name} | {:.2} | {:.2} | {:.2} to {:.2} | {:.2} | {:.2} | {:.0} % | {:.0} | {} |",
                median(&runs, Measurement::gbit_per_cpu_second),
                quantile(&ratios, 0.5),
                quantile(&ratios, 0.25),
                quantile(&ratios, 0.75),
                median(&runs, Measurement::us_per_request),
                median(&runs, |m| m.counted.bytes as f64 * 8e-9 / m.counted.seconds),
                100.0 * median(&runs, |m| m.server_napi_ns as f64 / m.server_ns() as f64),
                median(&runs, Measurement::mean_datagram),
                runs.len(),
            );
        }
    }
    text
}

fn distinct<K: PartialEq>(measurements: &[Measurement], key: impl Fn(&Measurement) -> K) -> Vec<K> {
    distinct_of(&measurements.iter().collect::<Vec<_>>(), key)
}

fn distinct_of<K: PartialEq>(measurements: &[&Measurement], key: impl Fn(&Measurement) -> K) -> Vec<K> {
    let mut keys = Vec::new();
    for measurement in measurements {
        let key = key(measurement);
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    keys
}

/// What `runs` gave for each second of server CPU, by what `base` gave in the same round; sorted.
fn ratios(runs: &[&Measurement], base: &[&Measurement]) -> Vec<f64> {
    let mut ratios: Vec<f64> = runs
        .iter()
        .filter_map(|run| {
            let other = base.iter().find(|other| other.round == run.round)?;
            Some(run.gbit_per_cpu_second() / other.gbit_per_cpu_second())
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    ratios
}

fn median(runs: &[&Measurement], value: impl Fn(&Measurement) -> f64) -> f64 {
    let mut values: Vec<f64> = runs.iter().map(|run| value(run)).collect();
    values.sort_by(f64::total_cmp);
    quantile(&values, 0.5)
}

/// The `part` quantile of sorted values, between neighbours in proportion; NaN of none.
fn quantile(values: &[f64], part: f64) -> f64 {
    let Some(last) = values.len().checked_sub(1) else { return f64::NAN };
    let place = part * last as f64;
    let (low, high) = (values[place.floor() as usize], values[place.ceil() as usize]);
    low + (high - low) * place.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(contestant: &str, round: usize, server_process_ns: u64) -> Measurement {
        Measurement {
            contestant: contestant.into(),
            body: 1024,
            udp_segmentation: "off".into(),
            round,
            server_process_ns,
            server_napi_ns: 0,
            load: Load { path: "/".into(), connections: 1, streams: 1, warmup: 0.0, seconds: 1.0 },
            counted: Counted {
                seconds: 1.0,
                requests: 1000,
                bytes: 1_000_000_000,
                errors: 0,
                last_error: None,
                datagrams: 10,
                datagram_bytes: 14_000,
                latency_us_p50: 1,
                latency_us_p99: 1,
            },
        }
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        // The machine becomes four times slower after the first round; b is always twice as good.
        let runs = [
            run("a", 0, 1_000_000_000),
            run("b", 0, 500_000_000),
            run("b", 1, 2_000_000_000),
            run("a", 1, 4_000_000_000),
            run("a", 2, 4_000_000_000),
            run("b", 2, 2_000_000_000),
        ];
        let table = table(&runs);
        assert!(
            table.contains("| a | 2.00 | 1.00 | 1.00 to 1.00 | 4000.00 | 8.00 | 0 % | 1400 | 3 |"),
            "{table}"
        );
        assert!(table.contains("| b | 4.00 | 2.00 | 2.00 to 2.00 | 2000.00 |"), "{table}");
    }

    #[test]
    fn quantiles_lie_between_neighbours() {
        assert_eq!(quantile(&[1.0, 2.0, 3.0, 5.0], 0.5), 2.5);
        assert_eq!(quantile(&[1.0, 2.0, 3.0], 0.25), 1.5);
        assert!(quantile(&[], 0.5).is_nan());
    }
}
