//! What `expressway fanout` prints and shows: ready lines, statistics, metrics.

use std::fmt::Write;
use std::net::SocketAddr;

use expressway_feed::fanout::{Fanout, Protocol, Statistics, SubscriberStatistics};
use expressway_metrics::Sample;
use expressway_netio::IoStats;
use serde_json::{Value, json};

use super::mode::Mode;
use crate::fail::Failure;
use crate::metrics::counters_document;
use crate::notify;

/// Says that subscribers may come, one line an address.
pub(super) fn ready(
    as_json: bool,
    feed: SocketAddr,
    mode: Mode,
    io: &str,
    fanout: &Fanout,
    threads: usize,
) -> Result<(), Failure> {
    let mut lines = String::new();
    let mode = mode.name();
    for one in fanout.listen() {
        let (protocol, address) = (one.protocol.name(), one.address);
        if as_json {
            let ready = json!({"udp": feed, "protocol": protocol, "address": address, "mode": mode,
                "io": io, "threads": threads});
            lines += &format!("{}\n", json!({ "ready": ready }));
        } else {
            lines +=
                &format!("ready udp={feed} {protocol}={address} mode={mode} io={io} threads={threads}\n");
        }
    }
    notify::ready(&lines)
}

/// Prints statistics, as one line of JSON or as a table.
pub(super) fn print(as_json: bool, statistics: &Statistics) -> Result<(), Failure> {
    if as_json {
        crate::print(&format!("{}\n", document(statistics)))
    } else {
        crate::print(&table(statistics))
    }
}

pub(super) fn document(statistics: &Statistics) -> Value {
    let disconnects: serde_json::Map<String, Value> = statistics
        .disconnects
        .iter()
        .map(|(reason, count)| (reason.name().to_owned(), (*count).into()))
        .collect();
    json!({"statistics": {
        "uptime_seconds": statistics.uptime.as_secs_f64(),
        "mode": Mode::of(statistics.in_kernel).name(),
        "handshakes": statistics.handshakes,
        "counters": counters_document(statistics.counters.iter().copied()),
        "disconnects": disconnects,
        "subscribers": statistics.subscribers.iter().map(subscriber).collect::<Vec<_>>(),
    }})
}

fn subscriber(one: &SubscriberStatistics) -> Value {
    json!({
        "id": one.id,
        "peer": one.peer,
        "protocol": one.protocol.name(),
        "thread": one.thread,
        "age_seconds": one.age.as_secs_f64(),
        "sends": one.sends,
        "bytes": one.bytes,
        "datagrams": one.frames,
        "gaps": one.gaps,
        "skipped": one.skipped,
        "lag_bytes": one.lag_bytes,
        "lag_datagrams": one.lag_frames,
        "half_closed": one.half_closed,
        "rtt_seconds": one.rtt.map(|rtt| rtt.as_secs_f64()),
        "retransmits": one.retransmits,
        "unsent_bytes": one.unsent_bytes,
    })
}

fn table(statistics: &Statistics) -> String {
    let mut out = format!(
        "uptime {:.1} s, {} subscribers\n",
        statistics.uptime.as_secs_f64(),
        statistics.subscribers.len()
    );
    for counter in statistics.counters.iter().filter(|counter| counter.value != 0) {
        let _ = writeln!(out, "  {:<28} {}", counter.name, counter.value);
    }
    for (reason, count) in statistics.disconnects.iter().filter(|(_, count)| *count != 0) {
        let _ = writeln!(out, "  disconnected: {:<14} {count}", reason.name());
    }
    if !statistics.subscribers.is_empty() {
        out += "      id protocol      bytes  datagrams   lag bytes    gaps  skipped   rtt µs  peer\n";
    }
    for one in &statistics.subscribers {
        let rtt = one.rtt.map_or_else(|| "-".to_owned(), |rtt| rtt.as_micros().to_string());
        let _ = writeln!(
            out,
            "{:>8} {:<5} {:>13} {:>10} {:>11} {:>7} {:>8} {rtt:>8}  {}",
            one.id,
            one.protocol.name(),
            one.bytes,
            one.frames,
            one.lag_bytes,
            one.gaps,
            one.skipped,
            one.peer,
        );
    }
    out
}

/// The metrics page.
pub(super) fn samples(statistics: &Statistics, io: &IoStats, out: &mut Vec<Sample>) {
    out.push(
        Sample::gauge("info", "Always 1; its labels describe the process.", 1)
            .label("version", env!("CARGO_PKG_VERSION")),
    );
    out.extend(io.fields().map(|field| Sample::counter(field.name, field.help, field.value)));
    for counter in &statistics.counters {
        out.push(Sample::counter(format!("fanout_{}", counter.name), counter.help, counter.value));
    }
    for (reason, count) in &statistics.disconnects {
        let help = "Subscribers disconnected, by reason.";
        out.push(Sample::counter("fanout_disconnects", help, *count).label("reason", reason.name()));
    }
    let help = "Handshakes in progress.";
    out.push(Sample::gauge("fanout_handshakes", help, statistics.handshakes as u64));
    subscriber_samples(&statistics.subscribers, out);
}

/// Subscribers together: a page has as many lines with a thousand of them as with one. Each by itself is on the page
/// `/subscribers`.
fn subscriber_samples(all: &[SubscriberStatistics], out: &mut Vec<Sample>) {
    for protocol in Protocol::ALL {
        let count = all.iter().filter(|one| one.protocol == protocol).count() as u64;
        out.push(
            Sample::gauge("fanout_subscribers", "Current subscribers.", count)
                .label("protocol", protocol.name()),
        );
    }
    let half_closed = all.iter().filter(|one| one.half_closed).count() as u64;
    let help = "Subscribers that have closed their side of the connection.";
    out.push(Sample::gauge("fanout_subscribers_half_closed", help, half_closed));
    let behind = all.iter().filter(|one| one.lag_bytes != 0).count() as u64;
    let help = "Subscribers whose sockets have not accepted everything yet.";
    out.push(Sample::gauge("fanout_subscribers_behind", help, behind));
    type Field = fn(&SubscriberStatistics) -> u64;
    let spread: [(&str, &str, &str, Field); 5] = [
        (
            "fanout_lag_bytes",
            "fanout_lag_bytes_max",
            "Bytes not yet accepted by subscribers' sockets: the total, and the maximum of one subscriber.",
            |one| one.lag_bytes,
        ),
        (
            "fanout_lag_datagrams",
            "fanout_lag_datagrams_max",
            "Datagrams not yet accepted by subscribers' sockets: the total, and the maximum of one subscriber.",
            |one| one.lag_frames,
        ),
        (
            "fanout_rtt_microseconds_sum",
            "fanout_rtt_microseconds_max",
            "Smoothed round-trip times of subscribers' connections: the sum, and the maximum.",
            |one| one.rtt.map_or(0, |rtt| rtt.as_micros() as u64),
        ),
        (
            "fanout_retransmits",
            "fanout_retransmits_max",
            "Segments retransmitted to current subscribers: the total, and the maximum of one subscriber.",
            |one| one.retransmits.unwrap_or(0),
        ),
        (
            "fanout_unsent_bytes",
            "fanout_unsent_bytes_max",
            "Bytes accepted by the kernel and not yet sent: the total, and the maximum of one subscriber.",
            |one| one.unsent_bytes.unwrap_or(0),
        ),
    ];
    for (sum_name, max_name, help, field) in spread {
        let (sum, max) = all.iter().map(field).fold((0u64, 0), |(sum, max), one| (sum + one, one.max(max)));
        out.push(Sample::gauge(sum_name, help, sum));
        out.push(Sample::gauge(max_name, help, max));
    }
}
