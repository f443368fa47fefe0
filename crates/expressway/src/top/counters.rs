//! The counters and gauges of a metrics page (Prometheus text format 0.0.4): what moves, and how fast.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::short;

/// Samples by series: name and labels as they stand.
type Samples = BTreeMap<String, f64>;

/// The newest sample, with the one before.
pub(super) struct View {
    now: Samples,
    before: Samples,
    taken: Instant,
    interval: Duration,
}

fn read(text: &str) -> Result<Samples, String> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|(index, line)| {
            let sample =
                line.rsplit_once(' ').and_then(|(series, value)| Some((series, value.parse().ok()?)));
            let (series, value) = sample.ok_or_else(|| {
                let text: String = line.chars().take(80).collect();
                format!("line {} of /metrics is no sample: `{text}`", index + 1)
            })?;
            Ok((series.to_owned(), value))
        })
        .collect()
}

/// Whether a series only grows, by its name.
fn is_counter(series: &str) -> bool {
    series.split('{').next().is_some_and(|name| name.ends_with("_total"))
}

impl View {
    /// The first sample.
    pub(super) fn of(text: &str) -> Result<Self, String> {
        let now = read(text)?;
        Ok(Self { before: now.clone(), now, taken: Instant::now(), interval: Duration::ZERO })
    }

    /// The next one.
    pub(super) fn update(&mut self, text: &str) -> Result<(), String> {
        let now = read(text)?;
        self.interval = self.taken.elapsed();
        self.taken = Instant::now();
        self.before = std::mem::replace(&mut self.now, now);
        Ok(())
    }

    fn rate(&self, series: &str, value: f64) -> Option<f64> {
        let before = self.before.get(series).copied().unwrap_or_default();
        is_counter(series).then(|| (value - before).max(0.0) / self.interval.as_secs_f64())
    }

    /// For people: counters that moved, the fastest first, and gauges that are not zero.
    pub(super) fn lines(&self, admin: SocketAddr) -> Vec<String> {
        let mut moving: Vec<(&String, f64, f64)> = Vec::new();
        let mut gauges = Vec::new();
        for (series, value) in &self.now {
            match self.rate(series, *value) {
                Some(rate) if rate > 0.0 => moving.push((series, *value, rate)),
                None if *value != 0.0 => gauges.push(format!("{:>10} {:>10}  {series}", short(*value), "")),
                _ => {}
            }
        }
        moving.sort_by(|one, other| other.2.total_cmp(&one.2).then(one.0.cmp(other.0)));
        let mut lines = vec![
            format!("process {admin}  {} series, {} moving", self.now.len(), moving.len()),
            String::new(),
            format!("{:>10} {:>10}  SERIES", "VALUE", "PER SECOND"),
        ];
        lines.extend(
            moving
                .iter()
                .map(|(series, value, rate)| format!("{:>10} {:>10}  {series}", short(*value), short(*rate))),
        );
        lines.extend(gauges);
        lines
    }

    /// For programs: every series.
    pub(super) fn document(&self, admin: SocketAddr) -> Value {
        let series: Vec<Value> = self
            .now
            .iter()
            .map(|(series, value)| json!({"series": series, "value": value, "per_second": self.rate(series, *value)}))
            .collect();
        json!({"admin": admin, "interval_seconds": self.interval.as_secs_f64(), "series": series})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_that_move_are_shown_with_their_rate() {
        let mut view = View::of("# HELP a\na_total{x=\"1 2\"} 5\nb_total 7\nc 3\nd 0\n").unwrap();
        view.update("a_total{x=\"1 2\"} 25\nb_total 7\nc 4\nd 0\n").unwrap();
        view.interval = Duration::from_secs(2);
        let lines = view.lines("127.0.0.1:9180".parse().unwrap());
        assert!(lines[0].ends_with("4 series, 1 moving"), "{}", lines[0]);
        assert_eq!(lines[3].split_whitespace().collect::<Vec<_>>(), ["25", "10", "a_total{x=\"1", "2\"}"]);
        assert!(lines[4].ends_with("  c") && lines.len() == 5, "{lines:?}");
        let document = view.document("127.0.0.1:9180".parse().unwrap());
        assert_eq!(document["series"][1], json!({"series": "b_total", "value": 7.0, "per_second": 0.0}));
        assert_eq!(document["series"][2]["per_second"], Value::Null);
    }

    #[test]
    fn what_is_no_sample_is_named() {
        let error = View::of("a 1\n<html>\n").err().unwrap();
        assert_eq!(error, "line 2 of /metrics is no sample: `<html>`");
    }
}
