//! The state that a balancer reports.

use std::net::{IpAddr, SocketAddr};

use serde::Serialize;
use serde_json::{Map, Value, json};

use expressway_xbpf::{BalanceCounts, BalanceTraffic};

/// A node.
#[derive(Clone, Debug, Serialize)]
pub struct NodeStatus {
    /// Its address.
    pub address: IpAddr,
    /// `up`, `draining` or `down`.
    pub state: &'static str,
    /// Its weight.
    pub weight: u32,
    /// How it is reached.
    pub method: String,
    /// Entries of the service's ring.
    pub ring: u32,
    /// The interface that leads to it; absent while the way is not known.
    pub interface: Option<String>,
    /// Why the last check failed, or why nothing can be sent to it.
    pub problem: Option<String>,
    /// Checks made, and how many failed; absent without checks.
    pub checks: Option<(u64, u64)>,
    /// Established flows that are not idle.
    pub flows: u32,
    /// What it was sent.
    #[serde(flatten, serialize_with = "traffic")]
    pub traffic: BalanceTraffic,
}

/// A service.
#[derive(Clone, Debug, Serialize)]
pub struct ServiceStatus {
    /// Its name.
    pub name: String,
    /// Where it is reached.
    pub listen: Vec<SocketAddr>,
    /// Its protocol.
    pub protocol: String,
    /// Established flows of all its nodes.
    pub flows: u32,
    /// What it was sent.
    #[serde(flatten, serialize_with = "traffic")]
    pub traffic: BalanceTraffic,
    /// Its nodes.
    pub nodes: Vec<NodeStatus>,
}

/// Everything.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// Interfaces with the program, and how it is attached there.
    pub interfaces: Vec<(String, &'static str)>,
    /// Packets by what became of them.
    #[serde(serialize_with = "counts")]
    pub packets: BalanceCounts,
    /// The services.
    pub services: Vec<ServiceStatus>,
}

fn traffic<S: serde::Serializer>(traffic: &BalanceTraffic, serializer: S) -> Result<S::Ok, S::Error> {
    let reasons = BalanceTraffic::DROPS.into_iter().zip(traffic.dropped);
    let reasons: Map<String, Value> =
        reasons.map(|(reason, packets)| (reason.name().to_owned(), json!(packets))).collect();
    json!({
        "packets": traffic.packets,
        "bytes": traffic.bytes,
        "flows_begun": traffic.flows,
        "flows_established": traffic.established,
        "flows_moved": { "node_down": traffic.moved_down, "node_gone": traffic.moved_gone },
        "packets_by_id": traffic.by_id,
        "dropped": traffic.lost(),
        "answered_too_big": traffic.answered,
        "dropped_by_reason": reasons,
    })
    .serialize(serializer)
}

fn counts<S: serde::Serializer>(counts: &BalanceCounts, serializer: S) -> Result<S::Ok, S::Error> {
    let mut verdicts = Map::new();
    for (counter, packets) in counts.iter() {
        let reasons = verdicts.entry(counter.verdict()).or_insert_with(|| json!({}));
        reasons[counter.name()] = json!(packets);
    }
    Value::Object(verdicts).serialize(serializer)
}
