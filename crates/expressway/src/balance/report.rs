//! What a balancer prints and publishes.

use std::fmt::Write;

use expressway_edge::balance::{Balancer, ServiceStatus, Status};
use expressway_metrics::Sample;
use expressway_xbpf::BalanceTraffic;
use serde_json::{Value, json};

use crate::fail::Failure;
use crate::notify;

/// Says that packets are balanced, one line an interface.
pub(super) fn ready(as_json: bool, balancer: &Balancer) -> Result<(), Failure> {
    let mut lines = String::new();
    for (interface, mode) in balancer.interfaces() {
        lines += &match as_json {
            true => format!("{}\n", json!({"ready": {"interface": interface, "mode": mode.name()}})),
            false => format!("ready interface={interface} mode={}\n", mode.name()),
        };
    }
    notify::ready(&lines)
}

/// Everything as one JSON document.
pub(super) fn document(status: &Status) -> Value {
    serde_json::to_value(status).unwrap_or_default()
}

/// Prints statistics, as one line of JSON or as a table.
pub(super) fn print(as_json: bool, status: &Status) -> Result<(), Failure> {
    if as_json {
        return crate::print(&format!("{}\n", document(status)));
    }
    let mut out = String::new();
    for service in &status.services {
        let _ = writeln!(out, "{}: {}", service.name, traffic(&service.traffic));
        for node in &service.nodes {
            let _ = write!(
                out,
                "  {:<39} {:<8} weight {:<4} {} flows, {}",
                node.address.to_string(),
                node.state,
                node.weight,
                node.flows,
                traffic(&node.traffic)
            );
            if let Some(problem) = &node.problem {
                let _ = write!(out, " ({problem})");
            }
            out.push('\n');
        }
    }
    for (counter, packets) in status.packets.iter().filter(|(_, packets)| *packets > 0) {
        let _ = writeln!(out, "{counter} {packets}");
    }
    crate::print(&out)
}

fn traffic(traffic: &BalanceTraffic) -> String {
    let mut out = format!(
        "{} packets, {} bytes, {} flows begun, {} dropped",
        traffic.packets,
        traffic.bytes,
        traffic.flows,
        traffic.lost()
    );
    for (number, what) in [
        (traffic.moved_down, "moved from a node that is down"),
        (traffic.moved_gone, "moved from one that is gone"),
    ] {
        if number > 0 {
            let _ = write!(out, ", {number} {what}");
        }
    }
    out
}

/// For `/metrics`.
pub(super) fn samples(status: &Status, out: &mut Vec<Sample>) {
    for (counter, packets) in status.packets.iter() {
        let help = "Packets seen by the balancing program, by verdict and reason.";
        out.push(
            Sample::counter("balance_packets", help, packets)
                .label("verdict", counter.verdict())
                .label("reason", counter.name()),
        );
    }
    for service in &status.services {
        for node in &service.nodes {
            let label = |sample: Sample| {
                sample.label("service", service.name.clone()).label("node", node.address.to_string())
            };
            let counters = [
                ("balance_node_packets", "Packets sent to a node.", node.traffic.packets),
                ("balance_node_bytes", "Bytes of IP packets sent to a node.", node.traffic.bytes),
                ("balance_node_flows", "Flows that began at a node.", node.traffic.flows),
                ("balance_node_dropped", "Packets for a node that were dropped.", node.traffic.lost()),
                (
                    "balance_node_flows_established",
                    "Flows that became established at a node.",
                    node.traffic.established,
                ),
                (
                    "balance_node_packets_by_id",
                    "Packets sent to a node because of their QUIC connection ID.",
                    node.traffic.by_id,
                ),
            ];
            out.extend(counters.map(|(name, help, value)| label(Sample::counter(name, help, value))));
            for (reason, value) in
                [("node_down", node.traffic.moved_down), ("node_gone", node.traffic.moved_gone)]
            {
                let help = "Established flows that moved to a node from another, by the state of that one.";
                out.push(
                    label(Sample::counter("balance_node_flows_moved", help, value)).label("reason", reason),
                );
            }
            let gauges = [
                ("balance_node_flows_active", "Established flows of a node that are not idle.", node.flows),
                ("balance_node_up", "1 while a node gets new flows.", (node.state == "up").into()),
                ("balance_node_ring", "Entries of the service's ring that belong to a node.", node.ring),
            ];
            out.extend(gauges.map(|(name, help, value)| label(Sample::gauge(name, help, value.into()))));
        }
        service_samples(service, out);
    }
}

fn service_samples(service: &ServiceStatus, out: &mut Vec<Sample>) {
    let label = |sample: Sample| sample.label("service", service.name.clone());
    let traffic = &service.traffic;
    let counters = [
        ("balance_service_packets", "Packets of a service that were sent to nodes.", traffic.packets),
        ("balance_service_bytes", "Bytes of IP packets that were sent to a service's nodes.", traffic.bytes),
        ("balance_service_flows", "Flows of a service that began.", traffic.flows),
        ("balance_service_dropped", "Packets of a service that were dropped.", traffic.lost()),
    ];
    out.extend(counters.map(|(name, help, value)| label(Sample::counter(name, help, value))));
    let help = "Established flows of a service that are not idle.";
    out.push(label(Sample::gauge("balance_service_flows_active", help, service.flows.into())));
    for (reason, packets) in BalanceTraffic::DROPS.into_iter().zip(traffic.dropped) {
        let help = "Packets of a service that were dropped, by reason.";
        out.push(
            label(Sample::counter("balance_service_drops", help, packets)).label("reason", reason.name()),
        );
    }
}
