//! A balancer: services and their nodes, as its metrics page tells.

use std::collections::BTreeMap;

use expressway_settings::admin::Address;
use serde::Serialize;
use serde_json::Value;

use super::counters;
use super::short;

/// Bits of a byte.
const BITS: f64 = 8.0;

/// What a balancer does now. Rates are a second's.
#[derive(Debug, Default, PartialEq, Serialize)]
pub(super) struct Balance {
    nodes: Vec<Node>,
}

/// A node of a service.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
struct Node {
    service: String,
    node: String,
    up: bool,
    flows: f64,
    flows_per_second: f64,
    packets_per_second: f64,
    bits_per_second: f64,
    dropped_per_second: f64,
}

impl Balance {
    /// The balancer whose page that is; `None` for another process.
    pub(super) fn of(view: &counters::View) -> Option<Self> {
        let mut nodes: BTreeMap<(String, String), Node> = BTreeMap::new();
        for series in view.series().filter(|series| series.name.starts_with("balance_node_")) {
            let label = |name: &str| series.label(name).unwrap_or_default();
            let (service, node) = (label("service"), label("node"));
            let fresh = || Node { service: service.clone(), node: node.clone(), ..Node::default() };
            let row = nodes.entry((service.clone(), node.clone())).or_insert_with(fresh);
            let rate = series.rate.unwrap_or_default();
            match series.name {
                "balance_node_up" => row.up = series.value != 0.0,
                "balance_node_flows_active" => row.flows = series.value,
                "balance_node_flows_total" => row.flows_per_second = rate,
                "balance_node_packets_total" => row.packets_per_second = rate,
                "balance_node_bytes_total" => row.bits_per_second = rate * BITS,
                "balance_node_dropped_total" => row.dropped_per_second = rate,
                _ => {}
            }
        }
        (!nodes.is_empty()).then(|| Self { nodes: nodes.into_values().collect() })
    }

    /// For people: a service after another, the busiest node of each first.
    pub(super) fn lines(&self, admin: &Address) -> Vec<String> {
        let mut services: BTreeMap<&str, Vec<&Node>> = BTreeMap::new();
        for node in &self.nodes {
            services.entry(&node.service).or_default().push(node);
        }
        let up = self.nodes.iter().filter(|node| node.up).count();
        let mut lines = vec![format!(
            "balance {admin}  services {}  nodes {}, {up} up",
            services.len(),
            self.nodes.len()
        )];
        for (service, mut nodes) in services {
            nodes.sort_by(|a, b| b.packets_per_second.total_cmp(&a.packets_per_second));
            let sum = |of: fn(&Node) -> f64| nodes.iter().map(|node| of(node)).sum::<f64>();
            lines.push(String::new());
            lines.push(format!(
                "{service}  {} packets/s, {} bit/s  flows {}",
                short(sum(|node| node.packets_per_second)),
                short(sum(|node| node.bits_per_second)),
                short(sum(|node| node.flows)),
            ));
            lines.push(format!(
                "{:<5} {:>9} {:>9} {:>9} {:>9} {:>9}  NODE",
                "STATE", "PACKET/s", "BIT/s", "FLOWS", "FLOW/s", "DROP/s"
            ));
            lines.extend(nodes.into_iter().map(Node::line));
        }
        lines
    }

    /// For programs.
    pub(super) fn document(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }
}

impl Node {
    fn line(&self) -> String {
        format!(
            "{:<5} {:>9} {:>9} {:>9} {:>9} {:>9}  {}",
            if self.up { "up" } else { "DOWN" },
            short(self.packets_per_second),
            short(self.bits_per_second),
            short(self.flows),
            short(self.flows_per_second),
            short(self.dropped_per_second),
            self.node,
        )
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A page after `seconds` of steady traffic.
    fn page(seconds: u32) -> String {
        let mut page = String::new();
        for (node, up, rate) in [("192.0.2.21", 1, 10), ("192.0.2.22", 0, 0), ("192.0.2.23", 1, 500)] {
            let labels = format!("{{service=\"video\",node=\"{node}\"}}");
            page += &format!("expressway_balance_node_up{labels} {up}\n");
            page += &format!("expressway_balance_node_flows_active{labels} {rate}\n");
            page += &format!("expressway_balance_node_packets_total{labels} {}\n", rate * seconds);
            page += &format!("expressway_balance_node_bytes_total{labels} {}\n", rate * seconds * 1000);
        }
        page
    }

    #[test]
    fn the_busiest_node_of_a_service_comes_first() {
        let mut view = counters::View::of(&page(1)).unwrap();
        view.apply(&page(3), Duration::from_secs(2)).unwrap();
        let balance = Balance::of(&view).unwrap();
        let lines = balance.lines(&"127.0.0.1:9180".parse().unwrap());
        assert_eq!(lines[0], "balance 127.0.0.1:9180  services 1  nodes 3, 2 up");
        assert_eq!(lines[2], "video  510 packets/s, 4.08M bit/s  flows 510");
        let nodes: Vec<&str> =
            lines[4..].iter().map(|line| line.split_whitespace().last().unwrap()).collect();
        assert_eq!(nodes, ["192.0.2.23", "192.0.2.21", "192.0.2.22"]);
        assert!(lines[6].starts_with("DOWN"));
        assert_eq!(balance.document()["nodes"][0]["bits_per_second"], 80_000.0);
        assert_eq!(Balance::of(&counters::View::of("x 1\n").unwrap()), None);
    }
}
