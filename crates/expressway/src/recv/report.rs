//! What `expressway recv` prints: that it is ready, progress, and the report at the end, as text or JSON.

use std::fmt::Write;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use expressway_dataplane::DataPath;
use expressway_feed::receive::{Latency, Track, Watch};
use expressway_netio::xsk::LendReport;
use serde_json::{Value, json};

use super::{Outcome, losses, options, sequence};
use crate::args::Recv as Arguments;
use crate::fail::Failure;
use crate::metrics::counters_document;

/// Percentiles that are told.
const PERCENTILES: [(&str, f64); 6] =
    [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999), ("p99.99", 0.9999), ("max", 1.0)];
/// Widest bar of the histogram, in characters.
const BAR: usize = 50;
/// First bucket of the histogram, in nanoseconds; each next one is twice as wide.
const FIRST_BUCKET: u64 = 250;

/// Says that datagrams may come, one line an address; in the log where standard output is for the report.
pub(super) fn ready(arguments: &Arguments, path: &DataPath) -> Result<(), Failure> {
    let mode = path.mode().to_string();
    let stamps = match options::timestamps(arguments) {
        false => "none",
        true if mode == "udp" => "kernel",
        true if path.stamps() => "xdp",
        true => "none",
    };
    for listen in arguments.addresses() {
        let line = format!("ready listen={listen} io={mode} stamps={stamps}");
        if arguments.json {
            tracing::info!("{line}");
        } else {
            crate::print(&format!("{line}\n"))?;
        }
    }
    Ok(())
}

/// A line a second on a terminal, none elsewhere.
pub(super) struct Progress {
    shown: bool,
    last: (Instant, u64, u64),
}

impl Progress {
    pub(super) fn new() -> Self {
        Self { shown: std::io::stderr().is_terminal(), last: (Instant::now(), 0, 0) }
    }

    pub(super) fn show(&mut self, watch: &Watch) {
        if !self.shown {
            return;
        }
        let (counters, now) = (watch.counters(), Instant::now());
        let (then, datagrams, bytes) = self.last;
        let seconds = now.saturating_duration_since(then).as_secs_f64();
        let rate = |value: u64| value as f64 / seconds;
        eprintln!(
            "{} datagrams, {:.0}/s, {:.1} Mbit/s",
            counters.datagrams,
            rate(counters.datagrams - datagrams),
            rate(counters.bytes - bytes) * 8e-6
        );
        self.last = (now, counters.datagrams, counters.bytes);
    }
}

/// Prints the report.
pub(super) fn print(
    arguments: &Arguments,
    path: &DataPath,
    outcome: &Outcome,
    elapsed: Duration,
) -> Result<(), Failure> {
    if arguments.json {
        crate::print(&format!("{}\n", document(arguments, path, outcome, elapsed)))
    } else {
        crate::print(&text(arguments, path, outcome, elapsed))
    }
}

/// Datagrams and payload bits a second, from the first datagram to the last; `None` of fewer than two moments.
fn rates(outcome: &Outcome) -> Option<(f64, f64)> {
    let seconds = outcome.span?.as_secs_f64();
    let counters = &outcome.counters;
    (seconds > 0.0).then(|| (counters.datagrams as f64 / seconds, counters.bytes as f64 * 8.0 / seconds))
}

fn document(arguments: &Arguments, path: &DataPath, outcome: &Outcome, elapsed: Duration) -> Value {
    let Outcome { counters, io, worker, span, .. } = outcome;
    let rates = rates(outcome);
    let interfaces: Vec<Value> = path
        .queue_modes()
        .into_iter()
        .map(|(name, attach, queues)| {
            let queues: Vec<Value> = queues
                .iter()
                .map(|queue| json!({"queue": queue.queue, "receive": queue.receive.to_string()}))
                .collect();
            json!({"interface": name, "attach": attach.name(), "queues": queues})
        })
        .collect();
    let pages: Vec<Value> = path
        .pages()
        .into_iter()
        .map(|(interface, queue, backing)| json!({"interface": interface, "queue": queue, "pages": backing.to_string()}))
        .collect();
    json!({
        "listen": arguments.addresses(),
        "io": path.mode().to_string(),
        "wait": arguments.wait.to_string(),
        "interfaces": interfaces,
        "memory": pages,
        "step_downs": path.step_downs(),
        "elapsed_seconds": elapsed.as_secs_f64(),
        "span_seconds": span.map(|span| span.as_secs_f64()),
        "datagrams": counters.datagrams,
        "bytes": counters.bytes,
        "datagrams_per_second": rates.map(|(datagrams, _)| datagrams),
        "bits_per_second": rates.map(|(_, bits)| bits),
        "by": {"af_xdp": io.rx_xsk_packets, "kernel": io.rx_kernel_packets},
        "stamped": {
            "nic": counters.stamped_nic,
            "xdp": counters.stamped_xdp,
            "kernel": counters.stamped_kernel,
            "none": counters.unstamped(),
        },
        "losses": losses::of(path, counters, io),
        "fill_ring_empty": io.xdp_fill_ring_empty,
        "echo": arguments.echo.then(|| json!({"sent": counters.echoed, "dropped": counters.dropped_echo})),
        "turns": {"all": worker.turns, "with_datagrams": counters.batches, "sleeps": worker.sleeps,
            "system_calls": io.rx_syscalls},
        "sequence": sequence::document(arguments, &outcome.sink, outcome.replies.as_ref()),
        "broadcast": outcome.sink.output.ring().map(|ring| counters_document(ring.stats().fields())),
        "lend": outcome.lent.as_ref().map(lend_document),
        "latency": outcome.sink.latency.as_deref().map(latency_document),
        "error": outcome.result.as_ref().err().map(ToString::to_string),
    })
}

/// What readers in other processes were lent, and the readers.
fn lend_document(report: &LendReport) -> Value {
    let LendReport { given, arrivals, not_lent } = report;
    counters_document(given.fields().into_iter().chain(arrivals.fields()).chain(not_lent.fields()))
}

/// Every track that has something, with what it is called.
pub(super) fn tracks(latency: &Latency) -> Vec<(String, &Track)> {
    let callback = latency.callback().into_iter();
    let mut tracks: Vec<(String, &Track)> =
        callback.map(|(stamp, track)| (format!("from {stamp} stamp to callback"), track)).collect();
    tracks.push(("from due time to callback (wire to wire)".to_owned(), latency.wire()));
    tracks.retain(|(_, track)| !track.is_empty());
    tracks
}

fn latency_document(latency: &Latency) -> Value {
    let callback = latency.callback().into_iter().filter(|(_, track)| !track.is_empty());
    let callback: serde_json::Map<String, Value> =
        callback.map(|(stamp, track)| (stamp.to_owned(), track_document(track))).collect();
    let wire = (!latency.wire().is_empty()).then(|| track_document(latency.wire()));
    json!({"unit": "ns", "callback": callback, "wire": wire})
}

fn track_document(track: &Track) -> Value {
    let histogram = track.histogram();
    let percentiles: serde_json::Map<String, Value> = PERCENTILES
        .iter()
        .map(|(name, quantile)| ((*name).to_owned(), histogram.value_at_quantile(*quantile).into()))
        .collect();
    json!({
        "count": histogram.len(),
        "implausible": track.implausible,
        "min": histogram.min(),
        "mean": histogram.mean(),
        "deviation": histogram.stdev(),
        "percentiles": percentiles,
        // Upper bound and count of each bucket.
        "histogram": buckets(track),
    })
}

/// Upper bound in nanoseconds and count of each bucket, from the first that has something to the last.
fn buckets(track: &Track) -> Vec<(u64, u64)> {
    let histogram = track.histogram();
    if histogram.is_empty() {
        return Vec::new();
    }
    let all = histogram.iter_log(FIRST_BUCKET, 2.0);
    all.map(|step| (step.value_iterated_to() + 1, step.count_since_last_iteration()))
        .skip_while(|(_, count)| *count == 0)
        .collect()
}

fn text(arguments: &Arguments, path: &DataPath, outcome: &Outcome, elapsed: Duration) -> String {
    let Outcome { counters, io, .. } = outcome;
    let mut out = format!(
        "received {} datagrams, {} bytes in {:.1} s",
        counters.datagrams,
        counters.bytes,
        elapsed.as_secs_f64()
    );
    if let Some((datagrams, bits)) = rates(outcome) {
        let _ = write!(out, ": {datagrams:.0}/s, {:.3} Mbit/s", bits * 1e-6);
    }
    let _ = writeln!(out, "\n  by AF_XDP {}, by kernel sockets {}", io.rx_xsk_packets, io.rx_kernel_packets);
    let _ = writeln!(
        out,
        "  stamped by NIC {}, by XDP {}, by the kernel {}, not stamped {}",
        counters.stamped_nic,
        counters.stamped_xdp,
        counters.stamped_kernel,
        counters.unstamped()
    );
    if counters.echoed + counters.dropped_echo > 0 {
        let _ = writeln!(out, "  echoed {}, not echoed {}", counters.echoed, counters.dropped_echo);
    }
    for step in path.step_downs() {
        let _ = writeln!(out, "  auto: {step}");
    }
    let losses = losses::of(path, counters, io);
    let mut lost = losses.iter().filter(|(_, count)| **count > 0).peekable();
    if lost.peek().is_none() {
        out += "  lost: none known\n";
    }
    for (reason, count) in lost {
        let _ = writeln!(out, "  lost: {count} {reason}");
    }
    if io.xdp_fill_ring_empty > 0 {
        let _ = writeln!(out, "  fill ring found empty {} times", io.xdp_fill_ring_empty);
    }
    sequence::text(&mut out, &sequence::document(arguments, &outcome.sink, outcome.replies.as_ref()));
    if let Some(ring) = outcome.sink.output.ring() {
        let stats = ring.stats();
        let _ = writeln!(
            out,
            "broadcast: {} records, {} too long; {} readers connected, {} refused",
            stats.records, stats.dropped_long, stats.readers_accepted, stats.readers_refused
        );
    }
    if let Some(LendReport { given, arrivals, not_lent }) = &outcome.lent {
        let _ = writeln!(
            out,
            "lend: {} packets lent, {} beyond a quota, {} by kernel sockets, {} in several frames; {} readers connected, \
             {} refused, {} dismissed",
            given.lent,
            given.dropped_quota,
            not_lent.not_lent_kernel,
            not_lent.not_lent_multi_frame,
            arrivals.readers_accepted,
            arrivals.readers_refused,
            arrivals.readers_dismissed
        );
    }
    if let Some(latency) = &outcome.sink.latency {
        let tracks = tracks(latency);
        if tracks.is_empty() {
            out += "latency: no timestamps and no probes from `expressway gen` received\n";
        }
        for (name, track) in tracks {
            track_text(&mut out, &name, track);
        }
    }
    out
}

fn track_text(out: &mut String, name: &str, track: &Track) {
    let histogram = track.histogram();
    let microseconds = |nanoseconds: f64| nanoseconds / 1000.0;
    let _ = write!(out, "latency {name}, µs, of {} datagrams", histogram.len());
    if track.implausible > 0 {
        let _ = write!(out, " ({} excluded: clocks not synchronised)", track.implausible);
    }
    if histogram.is_empty() {
        out.push('\n');
        return;
    }
    let _ = write!(
        out,
        "\n  min {:.2}  mean {:.2}",
        microseconds(histogram.min() as f64),
        microseconds(histogram.mean())
    );
    for (name, quantile) in PERCENTILES {
        let _ = write!(out, "  {name} {:.2}", microseconds(histogram.value_at_quantile(quantile) as f64));
    }
    out.push('\n');
    let buckets = buckets(track);
    let most = buckets.iter().map(|(_, count)| *count).max().unwrap_or(1);
    for (end, count) in &buckets {
        // One character at least for what is there at all.
        let bar = (*count as usize * BAR).div_ceil(most as usize);
        let _ = writeln!(out, "  < {:>10.2} {:<BAR$} {count}", microseconds(*end as f64), "#".repeat(bar));
    }
}
