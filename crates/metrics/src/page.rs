//! The metrics page: samples from every layer, in the Prometheus text format (version 0.0.4). Nothing is counted here.

use std::borrow::Cow;
use std::fmt::Write;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use crate::{Kind, Metric};

/// Prefix of each metric's name.
const PREFIX: &str = "expressway_";

/// Content type of the page.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A sample's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A number.
    Number(u64),
    /// A time, shown in seconds.
    Time(Duration),
    /// Times by their length.
    Histogram(Histogram),
}

/// Times by their length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    /// The upper bound of each bucket but the last, ascending.
    pub bounds: &'static [Duration],
    /// How many were in each bucket by itself; one more than there are bounds.
    pub buckets: Vec<u64>,
    /// All of them together.
    pub sum: Duration,
}

/// One value at the time of a scrape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Name without the `expressway_` prefix and without `_total`.
    pub name: Cow<'static, str>,
    /// One line of help.
    pub help: &'static str,
    /// Counter or gauge.
    pub kind: Kind,
    /// Label names and values.
    pub labels: Vec<(&'static str, String)>,
    /// The value.
    pub value: Value,
}

impl Sample {
    /// A counter without labels.
    pub fn counter(name: impl Into<Cow<'static, str>>, help: &'static str, value: u64) -> Self {
        let (name, value) = (name.into(), Value::Number(value));
        Self { name, help, kind: Kind::Counter, labels: Vec::new(), value }
    }

    /// A gauge without labels.
    pub fn gauge(name: impl Into<Cow<'static, str>>, help: &'static str, value: u64) -> Self {
        let (name, value) = (name.into(), Value::Number(value));
        Self { name, help, kind: Kind::Gauge, labels: Vec::new(), value }
    }

    /// A gauge of a time without labels. Its name ends in `_seconds`.
    pub fn time(name: &'static str, help: &'static str, time: Duration) -> Self {
        let (name, value) = (name.into(), Value::Time(time));
        Self { name, help, kind: Kind::Gauge, labels: Vec::new(), value }
    }

    /// A histogram without labels. Its name ends in `_seconds`.
    pub fn histogram(name: &'static str, help: &'static str, histogram: Histogram) -> Self {
        let (name, value) = (name.into(), Value::Histogram(histogram));
        Self { name, help, kind: Kind::Histogram, labels: Vec::new(), value }
    }

    /// The same with one more label.
    #[must_use]
    pub fn label(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.labels.push((name, value.into()));
        self
    }
}

impl From<Metric> for Sample {
    fn from(metric: Metric) -> Self {
        Self {
            name: metric.name.into(),
            help: metric.help,
            kind: metric.kind,
            labels: metric.label.into_iter().map(|(name, value)| (name, value.to_owned())).collect(),
            value: Value::Number(metric.value),
        }
    }
}

/// Something that has samples to show when it is asked.
pub trait Collector: Send + Sync {
    /// Appends the current samples. Called from the admin thread; must not block on a worker.
    fn samples(&self, out: &mut Vec<Sample>);
}

impl<F: Fn(&mut Vec<Sample>) + Send + Sync> Collector for F {
    fn samples(&self, out: &mut Vec<Sample>) {
        self(out);
    }
}

/// All collectors of a process.
#[derive(Clone, Default)]
pub struct Registry {
    collectors: Arc<RwLock<Vec<Box<dyn Collector>>>>,
    summary: Option<fn(&mut Vec<Sample>)>,
}

impl Registry {
    /// An empty one, whose pages end with what `summary` appends to everybody's samples.
    #[must_use]
    pub fn with_summary(summary: fn(&mut Vec<Sample>)) -> Self {
        Self { collectors: Arc::default(), summary: Some(summary) }
    }

    /// Adds a source for the life of the process.
    pub fn register(&self, source: impl Collector + 'static) {
        self.collectors.write().unwrap_or_else(|poisoned| poisoned.into_inner()).push(Box::new(source));
    }

    /// The page, families in the order of their first sample.
    pub fn page(&self) -> String {
        render(&self.samples())
    }

    /// What there is now.
    pub fn samples(&self) -> Vec<Sample> {
        let mut samples = Vec::new();
        for source in self.collectors.read().unwrap_or_else(|poisoned| poisoned.into_inner()).iter() {
            source.samples(&mut samples);
        }
        if let Some(summary) = self.summary {
            summary(&mut samples);
        }
        samples
    }
}

fn render(samples: &[Sample]) -> String {
    let mut families: Vec<(&str, Vec<&Sample>)> = Vec::new();
    for sample in samples {
        match families.iter_mut().find(|(name, _)| *name == sample.name) {
            Some((_, members)) => members.push(sample),
            None => families.push((&sample.name, vec![sample])),
        }
    }
    let mut page = String::with_capacity(samples.len() * 96);
    for (name, members) in families {
        let (suffix, kind) = match members[0].kind {
            Kind::Counter => ("_total", "counter"),
            Kind::Gauge => ("", "gauge"),
            Kind::Histogram => ("", "histogram"),
        };
        page.push_str(&format!("# HELP {PREFIX}{name}{suffix} {}\n", escape(members[0].help, false)));
        page.push_str(&format!("# TYPE {PREFIX}{name}{suffix} {kind}\n"));
        for sample in members {
            let mut line = |suffix: &str, bound: Option<&str>, value: &dyn std::fmt::Display| {
                let _ = write!(page, "{PREFIX}{name}{suffix}");
                let labels = sample.labels.iter().map(|(label, value)| (*label, value.as_str()));
                let mut opening = '{';
                for (label, value) in labels.chain(bound.map(|bound| ("le", bound))) {
                    let _ = write!(page, "{opening}{label}=\"{}\"", escape(value, true));
                    opening = ',';
                }
                let closing = if opening == ',' { "}" } else { "" };
                let _ = writeln!(page, "{closing} {value}");
            };
            match &sample.value {
                Value::Number(value) => line(suffix, None, value),
                Value::Time(time) => line(suffix, None, &time.as_secs_f64()),
                Value::Histogram(histogram) => {
                    let bounds = histogram.bounds.iter().map(|bound| bound.as_secs_f64().to_string());
                    let mut count = 0;
                    for (bound, bucket) in bounds.chain(["+Inf".to_owned()]).zip(&histogram.buckets) {
                        count += bucket;
                        line("_bucket", Some(&bound), &count);
                    }
                    line("_sum", None, &histogram.sum.as_secs_f64());
                    line("_count", None, &count);
                }
            }
        }
    }
    page
}

fn escape(text: &str, quotes: bool) -> String {
    let text = text.replace('\\', "\\\\").replace('\n', "\\n");
    if quotes { text.replace('"', "\\\"") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_has_its_buckets_cumulated() {
        const BOUNDS: &[Duration] = &[Duration::from_micros(50), Duration::from_millis(1)];
        let histogram =
            Histogram { bounds: BOUNDS, buckets: vec![3, 0, 2], sum: Duration::from_micros(7500) };
        let samples = [
            Sample::histogram("turn_seconds", "Turns.", histogram).label("worker", "0"),
            Sample::time("longest_seconds", "The longest.", Duration::from_micros(3700)),
        ];
        assert_eq!(
            render(&samples),
            "# HELP expressway_turn_seconds Turns.\n\
             # TYPE expressway_turn_seconds histogram\n\
             expressway_turn_seconds_bucket{worker=\"0\",le=\"0.00005\"} 3\n\
             expressway_turn_seconds_bucket{worker=\"0\",le=\"0.001\"} 3\n\
             expressway_turn_seconds_bucket{worker=\"0\",le=\"+Inf\"} 5\n\
             expressway_turn_seconds_sum{worker=\"0\"} 0.0075\n\
             expressway_turn_seconds_count{worker=\"0\"} 5\n\
             # HELP expressway_longest_seconds The longest.\n\
             # TYPE expressway_longest_seconds gauge\n\
             expressway_longest_seconds 0.0037\n"
        );
    }

    #[test]
    fn families_are_grouped_and_labels_escaped() {
        let registry = Registry::default();
        registry.register(|out: &mut Vec<Sample>| {
            out.push(Sample::counter("rx_packets", "Datagrams received.", 7).label("worker", "0"));
            out.push(Sample::gauge("connections", "Open connections.", 2));
        });
        registry.register(|out: &mut Vec<Sample>| {
            out.push(Sample::counter("rx_packets", "Datagrams received.", 8).label("worker", "a\"b\\c\n"));
        });
        assert_eq!(
            registry.page(),
            "# HELP expressway_rx_packets_total Datagrams received.\n\
             # TYPE expressway_rx_packets_total counter\n\
             expressway_rx_packets_total{worker=\"0\"} 7\n\
             expressway_rx_packets_total{worker=\"a\\\"b\\\\c\\n\"} 8\n\
             # HELP expressway_connections Open connections.\n\
             # TYPE expressway_connections gauge\n\
             expressway_connections 2\n"
        );
    }
}
