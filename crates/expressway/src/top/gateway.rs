//! A gateway: its addresses and the path of each, its workers with their connections and rates, as its metrics page
//! tells.

use std::collections::BTreeMap;

use expressway_settings::admin::Address;
use serde::Serialize;
use serde_json::Value;

use super::counters::{self, Series};
use super::drops::{self, ProcessDrop};
use super::short;

/// Bits of a byte.
const BITS: f64 = 8.0;

/// What a gateway does now. Rates are a second's.
#[derive(Debug, Default, PartialEq, Serialize)]
pub(super) struct Gateway {
    version: String,
    /// 1 while the agent is there; none where none is used.
    #[serde(skip_serializing_if = "Option::is_none")]
    agent_connected: Option<bool>,
    listen: Vec<Listen>,
    queues: Vec<Queue>,
    step_downs: Vec<StepDown>,
    memory: Memory,
    workers: Vec<Worker>,
    drops: Vec<ProcessDrop>,
}

/// What clients make it hold, in bytes.
#[derive(Debug, Default, PartialEq, Serialize)]
struct Memory {
    all: f64,
    cached_blocks: f64,
    pinned_blocks: f64,
    responses: f64,
    requests: f64,
    /// Of all but the block cache.
    budget: f64,
    open_files: f64,
}

impl Memory {
    /// Adds a series of the page, if it is one of those shown.
    fn add(&mut self, series: &Series<'_>) {
        match series.name {
            "memory_bytes" => self.all = series.value,
            "block_cache_bytes" => self.cached_blocks = series.value,
            "file_block_pinned_bytes" => self.pinned_blocks = series.value,
            "response_bytes" => self.responses += series.value,
            "request_bytes" => self.requests += series.value,
            "memory_budget_bytes" => self.budget = series.value,
            "open_files" => self.open_files = series.value,
            _ => {}
        }
    }

    fn line(&self) -> String {
        format!(
            "memory {}  cache {}  blocks beside it {}  responses {}  requests {}  beside the cache at most {}  open files {}",
            short(self.all),
            short(self.cached_blocks),
            short(self.pinned_blocks),
            short(self.responses),
            short(self.requests),
            short(self.budget),
            short(self.open_files),
        )
    }
}

/// An address and the I/O mode that it obtained.
#[derive(Debug, PartialEq, Serialize)]
struct Listen {
    address: String,
    io: String,
}

/// How a queue with an AF_XDP socket moves packets.
#[derive(Debug, PartialEq, Serialize)]
struct Queue {
    interface: String,
    queue: String,
    attach: String,
    receive: String,
    transmit: String,
}

/// A way that was not obtained or was given up. No queue: all of them.
#[derive(Debug, PartialEq, Serialize)]
struct StepDown {
    interface: String,
    queue: String,
    from: String,
    to: String,
    reason: String,
}

/// A worker, or all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
struct Worker {
    worker: u64,
    connections: f64,
    handshaking: f64,
    handshakes_per_second: f64,
    requests_per_second: f64,
    received_bits_per_second: f64,
    sent_bits_per_second: f64,
    /// Datagrams received by AF_XDP, and so on.
    received_xsk_per_second: f64,
    received_kernel_per_second: f64,
    sent_xsk_per_second: f64,
    sent_kernel_per_second: f64,
    dropped_per_second: f64,
    turns_per_second: f64,
    /// Of these, those that took more than [`LONG`].
    long_turns_per_second: f64,
    /// Since the start.
    longest_turn_seconds: f64,
}

/// The bound that a turn should keep to, as the page names it.
const LONG: &str = "0.001";

impl Worker {
    /// Adds a series of the page, if it is one of those shown.
    fn add(&mut self, series: &Series<'_>) {
        let rate = series.rate.unwrap_or_default();
        match series.name {
            "connections" => self.connections += series.value,
            "handshaking" => self.handshaking += series.value,
            "connections_established_total" => self.handshakes_per_second += rate,
            "requests_total" => self.requests_per_second += rate,
            "bytes_received_total" => self.received_bits_per_second += rate * BITS,
            "bytes_sent_total" => self.sent_bits_per_second += rate * BITS,
            "rx_xsk_packets_total" => self.received_xsk_per_second += rate,
            "rx_kernel_packets_total" => self.received_kernel_per_second += rate,
            "tx_xsk_packets_total" => self.sent_xsk_per_second += rate,
            "tx_kernel_packets_total" => self.sent_kernel_per_second += rate,
            "worker_turn_seconds_count" | "tcp_turn_seconds_count" => {
                self.turns_per_second += rate;
                self.long_turns_per_second += rate;
            }
            "worker_turn_seconds_bucket" | "tcp_turn_seconds_bucket"
                if series.label("le").as_deref() == Some(LONG) =>
            {
                self.long_turns_per_second -= rate;
            }
            "worker_turn_longest_seconds" | "tcp_turn_longest_seconds" => {
                self.longest_turn_seconds = self.longest_turn_seconds.max(series.value);
            }
            _ if drops::counts(series) => self.dropped_per_second += rate,
            _ => {}
        }
    }

    fn line(&self, name: &str) -> String {
        format!(
            "{name:>6} {:>7} {:>8} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>7} {:>9} {:>6}",
            short(self.connections),
            short(self.requests_per_second),
            short(self.received_bits_per_second),
            short(self.sent_bits_per_second),
            short(self.received_xsk_per_second),
            short(self.sent_xsk_per_second),
            short(self.received_kernel_per_second),
            short(self.sent_kernel_per_second),
            short(self.dropped_per_second),
            format!("{:.3}ms", self.longest_turn_seconds * 1e3),
            self.long_share(),
        )
    }

    /// How many of a hundred turns were long.
    fn long_share(&self) -> String {
        if self.turns_per_second <= 0.0 {
            return "-".to_owned();
        }
        format!("{:.2}%", 100.0 * self.long_turns_per_second.max(0.0) / self.turns_per_second)
    }
}

impl Gateway {
    /// The gateway whose page that is; `None` for another process.
    pub(super) fn of(view: &counters::View) -> Option<Self> {
        let mut gateway = Self::default();
        let mut workers: BTreeMap<u64, Worker> = BTreeMap::new();
        let mut is_one = false;
        for series in view.series() {
            let label = |name: &str| series.label(name).unwrap_or_default();
            if let Some(worker) = series.label("worker").and_then(|number| number.parse().ok()) {
                is_one |= series.name == "connections";
                workers.entry(worker).or_insert(Worker { worker, ..Worker::default() }).add(&series);
            }
            gateway.memory.add(&series);
            match series.name {
                "info" => gateway.version = label("version"),
                "agent_connected" => gateway.agent_connected = Some(series.value != 0.0),
                "listen" => gateway.listen.push(Listen { address: label("address"), io: label("io") }),
                "io_mode_info" => gateway.queues.push(Queue {
                    interface: label("interface"),
                    queue: label("queue"),
                    attach: label("attach"),
                    receive: label("receive"),
                    transmit: label("transmit"),
                }),
                "io_step_down_info" => gateway.step_downs.push(StepDown {
                    interface: label("interface"),
                    queue: label("queue"),
                    from: label("from"),
                    to: label("to"),
                    reason: label("reason"),
                }),
                _ => {}
            }
        }
        gateway.workers = workers.into_values().collect();
        gateway.drops = drops::of(view);
        is_one.then_some(gateway)
    }

    /// All workers together.
    fn sum(&self, view: &counters::View) -> Worker {
        let mut sum = Worker::default();
        view.series().filter(|series| series.label("worker").is_some()).for_each(|series| sum.add(&series));
        sum
    }

    /// For people: the whole, the paths, the workers.
    pub(super) fn lines(&self, view: &counters::View, admin: &Address) -> Vec<String> {
        let sum = self.sum(view);
        let mut lines = vec![format!(
            "serve {admin}  version {}  connections {} ({} in handshake)  handshakes {}/s",
            self.version,
            short(sum.connections),
            short(sum.handshaking),
            short(sum.handshakes_per_second),
        )];
        lines.extend(self.listen.iter().map(|one| format!("listen {}  io {}", one.address, one.io)));
        lines.extend(self.queues.iter().map(|one| {
            let Queue { interface, queue, attach, receive, transmit } = one;
            format!("{interface} queue {queue}  {attach}  receive {receive}  transmit {transmit}")
        }));
        lines.extend(self.step_downs.iter().map(|one| {
            let queue = if one.queue.is_empty() { String::new() } else { format!(" queue {}", one.queue) };
            format!("{}{queue}  step down from {} to {}: {}", one.interface, one.from, one.to, one.reason)
        }));
        lines.push(self.memory.line());
        if self.agent_connected == Some(false) {
            lines.push("agent  disconnected: everything it provided keeps working".to_owned());
        }
        lines.extend(drops::lines(&self.drops));
        lines.push(String::new());
        let (rx, tx) = ("RX/s", "TX/s");
        lines.push(format!("{:>42} {:>9} {:>9} {:>9} {:>9}", "", "AF_XDP", "AF_XDP", "KERNEL", "KERNEL"));
        lines.push(format!(
            "{:>6} {:>7} {:>8} {:>9} {:>9} {rx:>9} {tx:>9} {rx:>9} {tx:>9} {:>7} {:>9} {:>6}",
            "WORKER", "CONN", "REQ/s", "IN bit/s", "OUT bit/s", "DROP/s", "MAX TURN", ">1ms"
        ));
        lines.extend(self.workers.iter().map(|one| one.line(&one.worker.to_string())));
        if self.workers.len() > 1 {
            lines.push(sum.line("all"));
        }
        lines
    }

    /// For programs.
    pub(super) fn document(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A page after `seconds` of steady work of two workers.
    fn page(seconds: u32) -> String {
        let mut page = String::from(
            "expressway_info{version=\"1.2.3\",workers=\"2\"} 1\n\
             expressway_agent_connected 0\n\
             expressway_listen{address=\"192.0.2.1:443\",io=\"copy\"} 1\n\
             expressway_io_mode_info{interface=\"eth0\",queue=\"0\",attach=\"native\",receive=\"copy\",transmit=\"gso\"} 1\n\
             expressway_io_step_down_info{interface=\"eth0\",queue=\"\",from=\"zerocopy\",to=\"copy\",reason=\"a \\\"no\\\"\"} 1\n",
        );
        for worker in 0..2 {
            for (name, a_second) in [
                ("connections_established", 3),
                ("requests", 20),
                ("bytes_received", 1000),
                ("bytes_sent", 125_000),
                ("rx_xsk_packets", 5),
                ("tx_kernel_packets", 7),
                ("dropped_malformed", 1),
                ("dropped_checksum", 1),
            ] {
                let value = a_second * seconds * (worker + 1);
                page += &format!("expressway_{name}_total{{worker=\"{worker}\"}} {value}\n");
            }
            page += &format!("expressway_connections{{worker=\"{worker}\"}} {}\n", 10 + worker);
            for (bound, a_second) in [("0.0005", 70), ("0.001", 75), ("0.0025", 79), ("+Inf", 80)] {
                page += &format!(
                    "expressway_worker_turn_seconds_bucket{{worker=\"{worker}\",le=\"{bound}\"}} {}\n",
                    a_second * seconds
                );
            }
            page +=
                &format!("expressway_worker_turn_seconds_count{{worker=\"{worker}\"}} {}\n", 80 * seconds);
            page += &format!("expressway_worker_turn_longest_seconds{{worker=\"{worker}\"}} 0.00{worker}5\n");
            page += &format!("expressway_response_bytes{{worker=\"{worker}\"}} {}\n", 3000 * (worker + 1));
        }
        page += &format!("expressway_tcp_refused_total{{worker=\"0\",reason=\"flood\"}} {}\n", 2 * seconds);
        page += &format!("expressway_drops_total{{layer=\"tcp\",reason=\"flood\"}} {}\n", 2 * seconds);
        page += &format!("expressway_drops_total{{layer=\"udp\",reason=\"checksum\"}} {}\n", 3 * seconds);
        page += "expressway_drops_total{layer=\"quic\",reason=\"draining\"} 0\n";
        page + "expressway_memory_bytes 5000000\nexpressway_memory_budget_bytes 64000000\nexpressway_open_files 7\n"
    }

    #[test]
    fn workers_paths_and_rates_are_shown() {
        let mut view = counters::View::of(&page(1)).unwrap();
        view.apply(&page(3), Duration::from_secs(2)).unwrap();
        let gateway = Gateway::of(&view).unwrap();
        let second = gateway.workers[1];
        assert_eq!((second.worker, second.connections, second.handshakes_per_second), (1, 11.0, 6.0));
        assert_eq!((second.requests_per_second, second.sent_bits_per_second), (40.0, 2_000_000.0));
        assert_eq!((second.received_xsk_per_second, second.sent_kernel_per_second), (10.0, 14.0));
        assert_eq!(second.dropped_per_second, 4.0, "of every reason");
        assert_eq!(gateway.workers[0].dropped_per_second, 4.0, "and refusals");
        assert_eq!(gateway.document()["drops"][1]["reason"], "flood");
        assert_eq!((second.turns_per_second, second.long_turns_per_second), (80.0, 5.0));
        assert_eq!(second.longest_turn_seconds, 0.0015);
        let lines = gateway.lines(&view, &"127.0.0.1:9180".parse().unwrap());
        assert_eq!(
            lines[..6],
            [
                "serve 127.0.0.1:9180  version 1.2.3  connections 21 (0 in handshake)  handshakes 9/s",
                "listen 192.0.2.1:443  io copy",
                "eth0 queue 0  native  receive copy  transmit gso",
                "eth0  step down from zerocopy to copy: a \"no\"",
                "memory 5.00M  cache 0  blocks beside it 0  responses 9000  requests 0  beside the cache at most 64.0M  \
                 open files 7",
                "agent  disconnected: everything it provided keeps working",
            ]
        );
        assert_eq!(lines[6..9], ["drops udp/checksum  3/s  9 in all", "drops tcp/flood  2/s  6 in all", ""]);
        let all: Vec<&str> = lines.last().unwrap().split_whitespace().collect();
        assert_eq!(all, ["all", "21", "60", "24.0k", "3.00M", "15", "0", "0", "21", "8", "1.500ms", "6.25%"]);
        assert_eq!(gateway.document()["workers"][0]["requests_per_second"], 20.0);
    }

    #[test]
    fn another_process_is_none() {
        let view = counters::View::of("expressway_fanout_subscribers 3\n").unwrap();
        assert_eq!(Gateway::of(&view), None);
    }
}
