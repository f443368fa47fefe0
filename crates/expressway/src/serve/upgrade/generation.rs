//! This process among those before it, as the admin listener shows it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use expressway_metrics::{Registry, Sample};
use serde_json::{Value, json};

use super::attempt::UpgradeState;
use super::inheritance::Living;

/// See the module. Clones are the same.
#[derive(Clone)]
pub(crate) struct Generation {
    number: u64,
    started: (Instant, SystemTime),
    elders: Arc<Vec<Living>>,
}

impl Generation {
    pub(crate) fn new(succession: &UpgradeState) -> Self {
        let started = (Instant::now(), SystemTime::now());
        Self { number: succession.generation, started, elders: Arc::clone(&succession.elders) }
    }

    /// For `/generations`: this process, and those before it that had connections when it began.
    pub(crate) fn document(&self) -> Value {
        let older: Vec<Value> = self
            .elders
            .iter()
            .map(|living| {
                json!({
                    "generation": living.elder.generation,
                    "pid": living.elder.pid,
                    "has_ended": living.is_gone(),
                    "forwarded": living.counts.sent.load(Ordering::Relaxed),
                    "dropped": living.counts.dropped.load(Ordering::Relaxed),
                })
            })
            .collect();
        json!({
            "generation": self.number,
            "pid": std::process::id(),
            "age_seconds": self.started.0.elapsed().as_secs(),
            "older": older,
        })
    }

    /// Registers the same as metrics.
    pub(crate) fn register(&self, registry: &Registry) {
        let own = self.clone();
        registry.register(move |out: &mut Vec<Sample>| {
            let started = own.started.1.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            out.push(Sample::gauge(
                "generation",
                "1 for a process that was started, one more with each upgrade.",
                own.number,
            ));
            out.push(Sample::gauge(
                "started_seconds",
                "Unix time at which the process began to serve.",
                started,
            ));
            let living = own.elders.iter().filter(|living| !living.is_gone()).count() as u64;
            out.push(Sample::gauge(
                "older_processes",
                "Processes before this one that still have connections.",
                living,
            ));
        });
    }
}
