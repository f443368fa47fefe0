//! The metrics page: samples from every layer, in the Prometheus text format (version 0.0.4).
//!
//! Layers keep their own counters and know nothing of this page. Whoever wires them registers a
//! [`Source`], which is asked at each scrape; nothing is counted here.

use std::fmt::Write;
use std::sync::{Arc, RwLock};

/// Prefix of each metric's name.
const PREFIX: &str = "expressway_";

/// Content type of the page.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What a sample's value means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows; the page adds `_total` to its name.
    Counter,
    /// Goes up and down.
    Gauge,
}

/// One value at the time of a scrape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Name without the `expressway_` prefix and without `_total`.
    pub name: &'static str,
    /// One line of help.
    pub help: &'static str,
    /// Counter or gauge.
    pub kind: Kind,
    /// Label names and values.
    pub labels: Vec<(&'static str, String)>,
    /// The value.
    pub value: u64,
}

impl Sample {
    /// A counter without labels.
    pub fn counter(name: &'static str, help: &'static str, value: u64) -> Self {
        Self { name, help, kind: Kind::Counter, labels: Vec::new(), value }
    }

    /// A gauge without labels.
    pub fn gauge(name: &'static str, help: &'static str, value: u64) -> Self {
        Self { name, help, kind: Kind::Gauge, labels: Vec::new(), value }
    }

    /// The same with one more label.
    pub fn label(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.labels.push((name, value.into()));
        self
    }
}

/// Something that has samples to show when it is asked.
pub trait Source: Send + Sync {
    /// Appends the current samples. Called from the admin thread; must not block on a worker.
    fn samples(&self, out: &mut Vec<Sample>);
}

impl<F: Fn(&mut Vec<Sample>) + Send + Sync> Source for F {
    fn samples(&self, out: &mut Vec<Sample>) {
        self(out);
    }
}

/// All sources of a process.
#[derive(Clone, Default)]
pub struct Registry {
    sources: Arc<RwLock<Vec<Box<dyn Source>>>>,
}

impl Registry {
    /// Adds a source for the life of the process.
    pub fn register(&self, source: impl Source + 'static) {
        self.sources.write().unwrap_or_else(|poisoned| poisoned.into_inner()).push(Box::new(source));
    }

    /// The page, families in the order of their first sample.
    pub fn page(&self) -> String {
        let mut samples = Vec::new();
        for source in self.sources.read().unwrap_or_else(|poisoned| poisoned.into_inner()).iter() {
            source.samples(&mut samples);
        }
        render(&samples)
    }
}

fn render(samples: &[Sample]) -> String {
    let mut families: Vec<(&str, Vec<&Sample>)> = Vec::new();
    for sample in samples {
        match families.iter_mut().find(|(name, _)| *name == sample.name) {
            Some((_, members)) => members.push(sample),
            None => families.push((sample.name, vec![sample])),
        }
    }
    let mut page = String::with_capacity(samples.len() * 96);
    for (name, members) in families {
        let (suffix, kind) = match members[0].kind {
            Kind::Counter => ("_total", "counter"),
            Kind::Gauge => ("", "gauge"),
        };
        page.push_str(&format!("# HELP {PREFIX}{name}{suffix} {}\n", escape(members[0].help, false)));
        page.push_str(&format!("# TYPE {PREFIX}{name}{suffix} {kind}\n"));
        for sample in members {
            let _ = write!(page, "{PREFIX}{name}{suffix}");
            for (index, (label, value)) in sample.labels.iter().enumerate() {
                let opening = if index == 0 { '{' } else { ',' };
                let _ = write!(page, "{opening}{label}=\"{}\"", escape(value, true));
            }
            let closing = if sample.labels.is_empty() { "" } else { "}" };
            let _ = writeln!(page, "{closing} {}", sample.value);
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
