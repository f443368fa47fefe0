//! What `expressway fanout` prints and shows: ready lines, statistics, metrics.

use std::fmt::Write;
use std::net::SocketAddr;

use expressway_feed::fanout::{Fanout, Statistics, SubscriberStatistics};
use expressway_gateway::metrics::Sample;
use expressway_netio::IoStats;
use serde_json::{Value, json};

use crate::fail::Failure;

/// Says that subscribers may come, one line an address.
pub(super) fn ready(
    as_json: bool,
    feed: SocketAddr,
    io: &str,
    fanout: &Fanout,
    threads: usize,
) -> Result<(), Failure> {
    let mut lines = String::new();
    for one in fanout.listen() {
        let (protocol, address) = (one.protocol.name(), one.address);
        if as_json {
            let ready = json!({"udp": feed, "protocol": protocol, "address": address, "mode": "user",
                "io": io, "threads": threads});
            lines += &format!("{}\n", json!({ "ready": ready }));
        } else {
            lines += &format!("ready udp={feed} {protocol}={address} mode=user io={io} threads={threads}\n");
        }
    }
    crate::print(&lines)
}

/// Prints statistics, as one line of JSON or as a table.
pub(super) fn print(as_json: bool, statistics: &Statistics) -> Result<(), Failure> {
    if as_json {
        crate::print(&format!("{}\n", document(statistics)))
    } else {
        crate::print(&table(statistics))
    }
}

fn document(statistics: &Statistics) -> Value {
    let counters: serde_json::Map<String, Value> =
        statistics.counters.iter().map(|counter| (counter.name.to_owned(), counter.value.into())).collect();
    let disconnects: serde_json::Map<String, Value> = statistics
        .disconnects
        .iter()
        .map(|(reason, count)| (reason.name().to_owned(), (*count).into()))
        .collect();
    json!({"statistics": {
        "uptime_seconds": statistics.uptime.as_secs_f64(),
        "counters": counters,
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
        out.push(Sample::counter(counter.metric, counter.help, counter.value));
    }
    for (reason, count) in &statistics.disconnects {
        let help = "Subscribers disconnected, by reason.";
        out.push(Sample::counter("fanout_disconnects", help, *count).label("reason", reason.name()));
    }
    let count = statistics.subscribers.len() as u64;
    out.push(Sample::gauge("fanout_subscribers", "Subscribers now.", count));
    for one in &statistics.subscribers {
        subscriber_samples(one, out);
    }
}

fn subscriber_samples(one: &SubscriberStatistics, out: &mut Vec<Sample>) {
    let mut add = |sample: Sample| {
        let sample = sample.label("subscriber", one.id.to_string());
        out.push(sample.label("peer", one.peer.to_string()).label("protocol", one.protocol.name()));
    };
    let counters = [
        ("fanout_subscriber_sends", "Sends to a subscriber.", one.sends),
        ("fanout_subscriber_bytes", "Bytes that a subscriber's socket took.", one.bytes),
        ("fanout_subscriber_datagrams", "Datagrams that a subscriber's socket took.", one.frames),
        ("fanout_subscriber_gaps", "Times that a subscriber jumped over datagrams.", one.gaps),
        ("fanout_subscriber_skipped", "Datagrams that a subscriber jumped over.", one.skipped),
    ];
    for (name, help, value) in counters {
        add(Sample::counter(name, help, value));
    }
    let gauges = [
        (
            "fanout_subscriber_lag_bytes",
            "Bytes that a subscriber's socket has not taken yet.",
            Some(one.lag_bytes),
        ),
        (
            "fanout_subscriber_lag_datagrams",
            "Datagrams that a subscriber's socket has not taken yet.",
            Some(one.lag_frames),
        ),
        (
            "fanout_subscriber_rtt_microseconds",
            "Smoothed round-trip time of a subscriber's connection.",
            one.rtt.map(|rtt| rtt.as_micros() as u64),
        ),
        ("fanout_subscriber_retransmits", "Segments retransmitted to a subscriber.", one.retransmits),
        (
            "fanout_subscriber_unsent_bytes",
            "Bytes that the kernel has taken for a subscriber and not sent yet.",
            one.unsent_bytes,
        ),
    ];
    for (name, help, value) in gauges {
        if let Some(value) = value {
            add(Sample::gauge(name, help, value));
        }
    }
}
