//! Counters in reports, and the data path's metrics, for every command that has an admin listener.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use expressway_dataplane::DataPath;
use expressway_gateway::quic::Shared;
use expressway_keys::{Refusal, Report};
use expressway_metrics::{Histogram, Metric, Registry, Sample, Value};
use expressway_netio::stats::{StatsCell, TURN_BOUNDS, TurnTimes};
use expressway_observe::drops::{DropReason, REASONS};

/// Counters as a JSON object, in reports.
pub(crate) fn counters_document(fields: impl IntoIterator<Item = Metric>) -> serde_json::Value {
    fields.into_iter().map(|field| (field.name, field.value)).collect()
}

/// Everything that a process dropped, by layer and reason: sums of the samples that are there.
pub(crate) fn drops(out: &mut Vec<Sample>) {
    let mut sums = vec![None; REASONS.len()];
    for sample in out.iter() {
        let reason = DropReason::of_sample(&sample.name, &sample.labels);
        if let (Some(reason), Value::Number(value)) = (reason, &sample.value) {
            let index = REASONS.iter().position(|one| one == reason);
            *sums[index.expect("a reason of the list")].get_or_insert(0) += value;
        }
    }
    let help = "Packets, connections and requests dropped, by layer and reason.";
    out.extend(REASONS.iter().zip(sums).filter_map(|(reason, sum)| {
        let sample = Sample::counter("drops", help, sum?);
        Some(sample.label("layer", reason.layer.name()).label("reason", reason.name))
    }));
}

/// The data path: modes, programs, interfaces opened again.
pub(crate) fn data_path(path: &Mutex<DataPath>, out: &mut Vec<Sample>) {
    let path = path.lock().unwrap_or_else(PoisonError::into_inner);
    for (address, mode) in path.modes() {
        out.push(
            Sample::gauge("listen", "Always 1; a listen address and the I/O mode it obtained.", 1)
                .label("address", address.to_string())
                .label("io", mode.to_string()),
        );
    }
    for (interface, attach, queues) in path.queue_modes() {
        for queue in queues {
            out.push(
                Sample::gauge(
                    "io_mode_info",
                    "Always 1; how a queue with an AF_XDP socket currently moves packets.",
                    1,
                )
                .label("interface", interface.to_owned())
                .label("queue", queue.queue.to_string())
                .label("attach", attach.name())
                .label("receive", queue.receive.to_string())
                .label("transmit", queue.transmit.to_string()),
            );
        }
    }
    for step in path.step_downs() {
        out.push(
            Sample::gauge(
                "io_step_down_info",
                "Always 1; a mode that was unavailable or abandoned, with the reason. No queue label: all queues.",
                1,
            )
            .label("interface", step.interface)
            .label("queue", step.queue.map_or_else(String::new, |queue| queue.to_string()))
            .label("from", step.from)
            .label("to", step.to)
            .label("reason", step.reason),
        );
    }
    for (interface, cause, count) in path.reopened() {
        out.push(
            Sample::counter(
                "io_reattach",
                "Times that an interface's XDP program and AF_XDP sockets were reopened, by reason.",
                count,
            )
            .label("interface", interface)
            .label("reason", cause.to_string()),
        );
    }
    if let Some(connected) = path.agent_connected() {
        out.push(Sample::gauge(
            "agent_connected",
            "1 while the agent is connected; without it, what it provided keeps working.",
            connected.into(),
        ));
    }
    if let Some((reconnects, failures)) = path.agent_tries() {
        let help = "Attempts to reconnect to the agent, by outcome.";
        for (outcome, count) in [("connected", reconnects), ("failed", failures)] {
            out.push(Sample::counter("agent_reconnect", help, count).label("outcome", outcome));
        }
    }
    for (interface, counters) in path.counters() {
        for (counter, value) in counters.iter() {
            out.push(
                Sample::counter(
                    "xdp_packets",
                    "Packets seen by the XDP program, by verdict and reason.",
                    value,
                )
                .label("interface", interface.clone())
                .label("verdict", counter.verdict().name())
                .label("reason", counter.name()),
            );
        }
    }
}

/// The counters of one worker's QUIC endpoint.
pub(crate) fn quic(shared: &Shared, worker: usize, out: &mut Vec<Sample>) {
    let sample = |metric: Metric| Sample::from(metric).label("worker", worker.to_string());
    out.extend(shared.stats(Some(worker)).fields().map(sample));
}

/// Registers what belongs to one worker.
pub(crate) fn register_worker(registry: &Registry, worker: usize, cell: Arc<StatsCell>) {
    registry.register(move |out: &mut Vec<Sample>| {
        let sample = |metric: Metric| Sample::from(metric).label("worker", worker.to_string());
        out.extend(cell.io().fields().map(sample));
        out.extend(cell.worker().fields().map(sample));
        let all = (
            "worker_turn_seconds",
            "Worker turns by duration, including time that the kernel took from the worker.",
        );
        let longest = ("worker_turn_longest_seconds", "Longest worker turn since start.");
        out.extend(turn_samples(worker, &cell.turns(), all, longest));
    });
}

/// How long a worker's turns took, all of them and the longest, each with its name and help text.
fn turn_samples(
    worker: usize,
    turns: &TurnTimes,
    all: (&'static str, &'static str),
    longest: (&'static str, &'static str),
) -> [Sample; 2] {
    let (buckets, sum) = (turns.buckets.to_vec(), Duration::from_nanos(turns.sum));
    let histogram = Histogram { bounds: &TURN_BOUNDS, buckets, sum };
    [
        Sample::histogram(all.0, all.1, histogram),
        Sample::time(longest.0, longest.1, Duration::from_nanos(turns.longest)),
    ]
    .map(|sample| sample.label("worker", worker.to_string()))
}

/// What a document of shared keys is, and what became of its file.
pub(crate) fn shared_keys(report: &Report, out: &mut Vec<Sample>) {
    let help = "Version of the shared keys in use: usually the Unix time at which they were made.";
    out.push(Sample::gauge("shared_keys_version", help, report.version));
    let help =
        "1 if the shared keys in use are those of the file when it was last read; 0 if it was refused.";
    out.push(Sample::gauge("shared_keys_good", help, report.is_good.into()));
    let help = "Documents of shared keys accepted since the start, including the first.";
    out.push(Sample::counter("shared_keys_taken", help, report.taken));
    let help = "Times that the file of the shared keys was read and refused.";
    for (reason, count) in Refusal::REASONS.into_iter().zip(report.refused) {
        out.push(Sample::counter("shared_keys_refused", help, count).label("reason", reason));
    }
}

/// Registers what the workers of TCP count.
pub(crate) fn register_tcp(registry: &Registry, workers: Vec<Arc<expressway_tcp::Stats>>) {
    registry.register(move |out: &mut Vec<Sample>| {
        for (worker, stats) in workers.iter().enumerate() {
            let sample = |metric: Metric| {
                let mut sample = Sample::from(metric);
                sample.labels.insert(0, ("worker", worker.to_string()));
                sample
            };
            out.extend(stats.fields().into_iter().map(sample));
            let all = (
                "tcp_turn_seconds",
                "Turns of TCP connections' tasks by duration, including time that the kernel took from the worker.",
            );
            let longest = ("tcp_turn_longest_seconds", "Longest turn of a TCP connection's task since start.");
            out.extend(turn_samples(worker, &stats.turns(), all, longest));
        }
    });
}
