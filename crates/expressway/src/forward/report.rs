//! What `expressway forward` prints and shows: ready lines, statistics, metrics.

use std::collections::HashSet;

use expressway_edge::forward::{FeedReport, InterfaceReport, Router, Statistics};
use expressway_metrics::Sample;
use expressway_xbpf::forward::ForwardCounts;
use serde_json::json;

use crate::fail::Failure;
use crate::notify;

/// Says that packets are forwarded, one line a device.
pub(super) fn ready(as_json: bool, router: &Router) -> Result<(), Failure> {
    let mut lines = String::new();
    for (name, mode) in router.devices() {
        let mode = mode.map_or("none", |mode| mode.name());
        lines += &match as_json {
            true => format!("{}\n", json!({ "ready": { "interface": name, "mode": mode } })),
            false => format!("ready interface={name} mode={mode}\n"),
        };
    }
    notify::ready(&lines)
}

/// Prints statistics, as one line of JSON or as a table.
pub(super) fn print(as_json: bool, statistics: &Statistics) -> Result<(), Failure> {
    match as_json {
        true => crate::print(&format!("{}\n", statistics.document())),
        false => crate::print(&statistics.to_string()),
    }
}

/// The metrics.
pub(super) fn samples(statistics: &Statistics, out: &mut Vec<Sample>) {
    for interface in &statistics.interfaces {
        packets(&interface.name, &interface.counts, out);
    }
    packets("", &statistics.others, out);
    for interface in &statistics.interfaces {
        bytes(interface, out);
    }
    let mut devices = HashSet::new();
    // VLANs share their device.
    for interface in statistics.interfaces.iter().filter(|one| devices.insert(&one.device)) {
        egress(interface, out);
    }
    statistics.feeds.iter().for_each(|feed| feed_samples(feed, out));
}

fn packets(interface: &str, counts: &ForwardCounts, out: &mut Vec<Sample>) {
    let help = "Packets seen by the router, by incoming interface, verdict and reason.";
    out.extend(counts.iter().map(|(counter, packets)| {
        Sample::counter("forward_packets", help, packets)
            .label("interface", interface)
            .label("verdict", counter.verdict().name())
            .label("reason", counter.name())
    }));
}

fn bytes(interface: &InterfaceReport, out: &mut Vec<Sample>) {
    let help = "Bytes of forwarded and replicated packets, by incoming interface.";
    let sample = Sample::counter("forward_bytes", help, interface.counts.sent_bytes);
    out.push(sample.label("interface", interface.name.as_str()));
}

fn egress(interface: &InterfaceReport, out: &mut Vec<Sample>) {
    let help = "Frames that XDP programs gave a device to send, by whether it accepted them.";
    let (Some(egress), Some(device)) = (interface.egress, &interface.device) else { return };
    for (result, frames) in [("sent", egress.sent), ("refused", egress.refused)] {
        let sample = Sample::counter("forward_egress", help, frames);
        out.push(sample.label("device", device.as_str()).label("result", result));
    }
}

fn feed_samples(feed: &FeedReport, out: &mut Vec<Sample>) {
    let listen = feed.listen.to_string();
    let help = "Datagrams of a feed that were copied.";
    out.push(
        Sample::counter("forward_feed_datagrams", help, feed.counts.packets).label("listen", listen.as_str()),
    );
    for receiver in &feed.receivers {
        let label = |sample: Sample| {
            sample.label("listen", listen.as_str()).label("receiver", receiver.address.to_string())
        };
        let help = "Copies of a feed's datagrams, by receiver.";
        out.push(label(Sample::counter("forward_copies", help, receiver.counts.packets)));
        let help = "1 while the receiver of a feed can be reached.";
        let reached = u64::from(receiver.problem.is_none());
        out.push(label(Sample::gauge("forward_receiver_reached", help, reached)));
    }
}
