//! A router: what came by each interface and what became of it, and the receivers of feeds, as its metrics page tells.

use std::collections::BTreeMap;

use expressway_settings::admin::Address;
use serde::Serialize;
use serde_json::Value;

use super::counters;
use super::short;

/// Bits of a byte.
const BITS: f64 = 8.0;

/// What a router does now. Rates are a second's.
#[derive(Debug, Default, PartialEq, Serialize)]
pub(super) struct Forward {
    interfaces: Vec<Interface>,
    receivers: Vec<Receiver>,
}

/// What came by an interface; the nameless one is of those that are no more.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
struct Interface {
    interface: String,
    /// By what became of packets.
    packets_per_second: BTreeMap<String, f64>,
    /// Of what was forwarded and copied.
    bits_per_second: f64,
    /// The reason that drops most.
    top_drop: Option<String>,
    #[serde(skip)]
    top_drop_rate: f64,
}

/// A receiver of a feed.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
struct Receiver {
    listen: String,
    receiver: String,
    reached: bool,
    copies_per_second: f64,
}

impl Forward {
    /// The router whose page that is; `None` for another process.
    pub(super) fn of(view: &counters::View) -> Option<Self> {
        let mut interfaces: BTreeMap<String, Interface> = BTreeMap::new();
        let mut receivers: BTreeMap<(String, String), Receiver> = BTreeMap::new();
        for series in view.series().filter(|series| series.name.starts_with("forward_")) {
            let label = |name: &str| series.label(name).unwrap_or_default();
            let rate = series.rate.unwrap_or_default();
            match series.name {
                "forward_packets_total" | "forward_bytes_total" => {
                    let interface = label("interface");
                    let fresh = || Interface { interface: interface.clone(), ..Interface::default() };
                    let row = interfaces.entry(interface.clone()).or_insert_with(fresh);
                    if series.name == "forward_bytes_total" {
                        row.bits_per_second = rate * BITS;
                    } else {
                        row.add(&label("verdict"), &label("reason"), rate);
                    }
                }
                "forward_copies_total" | "forward_receiver_reached" => {
                    let (listen, receiver) = (label("listen"), label("receiver"));
                    let fresh = || Receiver {
                        listen: listen.clone(),
                        receiver: receiver.clone(),
                        ..Receiver::default()
                    };
                    let row = receivers.entry((listen.clone(), receiver.clone())).or_insert_with(fresh);
                    if series.name == "forward_copies_total" {
                        row.copies_per_second = rate;
                    } else {
                        row.reached = series.value != 0.0;
                    }
                }
                _ => {}
            }
        }
        (!interfaces.is_empty()).then(|| Self {
            interfaces: interfaces.into_values().collect(),
            receivers: receivers.into_values().collect(),
        })
    }

    /// For people: interfaces, then receivers.
    pub(super) fn lines(&self, admin: &Address) -> Vec<String> {
        let sum = |verdict: &str| -> f64 {
            self.interfaces.iter().filter_map(|one| one.packets_per_second.get(verdict)).sum()
        };
        let verdicts: Vec<&String> = {
            let mut names: Vec<&String> =
                self.interfaces.iter().flat_map(|one| one.packets_per_second.keys()).collect();
            names.sort_unstable();
            names.dedup();
            names
        };
        let told: Vec<String> =
            verdicts.iter().map(|verdict| format!("{verdict} {}/s", short(sum(verdict)))).collect();
        let mut lines = vec![format!("forward {admin}  {}", told.join("  ")), String::new()];
        let titles: String =
            verdicts.iter().map(|verdict| format!(" {:>9}", format!("{verdict}/s"))).collect();
        lines.push(format!("{:<16}{} {:>9}  DROPS MOST", "INTERFACE", titles.to_uppercase(), "BIT/s"));
        for one in self.interfaces.iter().filter(|one| !one.interface.is_empty()) {
            let rates: String = verdicts
                .iter()
                .map(|verdict| {
                    format!(" {:>9}", short(one.packets_per_second.get(*verdict).copied().unwrap_or(0.0)))
                })
                .collect();
            let drop = one.top_drop.as_deref().unwrap_or("-");
            lines.push(format!("{:<16}{rates} {:>9}  {drop}", one.interface, short(one.bits_per_second)));
        }
        if !self.receivers.is_empty() {
            lines.push(String::new());
            lines.push(format!("{:<7} {:>9}  {:<24} RECEIVER", "STATE", "COPIES/s", "FEED"));
            lines.extend(self.receivers.iter().map(Receiver::line));
        }
        lines
    }

    /// For programs.
    pub(super) fn document(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }
}

impl Interface {
    fn add(&mut self, verdict: &str, reason: &str, rate: f64) {
        *self.packets_per_second.entry(verdict.to_owned()).or_default() += rate;
        if verdict == "drop" && rate > self.top_drop_rate {
            self.top_drop = Some(reason.to_owned());
            self.top_drop_rate = rate;
        }
    }
}

impl Receiver {
    fn line(&self) -> String {
        format!(
            "{:<7} {:>9}  {:<24} {}",
            if self.reached { "reached" } else { "LOST" },
            short(self.copies_per_second),
            self.listen,
            self.receiver,
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
        for (interface, verdict, reason, rate) in [
            ("eth0", "forward", "sent", 100),
            ("eth0", "drop", "ttl", 2),
            ("eth0", "drop", "no_route", 5),
            ("eth1", "pass", "local", 7),
            ("", "pass", "local", 1),
        ] {
            let labels = format!("{{interface=\"{interface}\",verdict=\"{verdict}\",reason=\"{reason}\"}}");
            page += &format!("expressway_forward_packets_total{labels} {}\n", rate * seconds);
        }
        page += &format!("expressway_forward_bytes_total{{interface=\"eth0\"}} {}\n", 1000 * seconds);
        let receiver = "{listen=\"239.1.1.1:7000\",receiver=\"192.0.2.9:7000\"}";
        page += &format!("expressway_forward_copies_total{receiver} {}\n", 3 * seconds);
        page + &format!("expressway_forward_receiver_reached{receiver} 0\n")
    }

    #[test]
    fn interfaces_and_receivers_have_rates() {
        let mut view = counters::View::of(&page(1)).unwrap();
        view.apply(&page(3), Duration::from_secs(2)).unwrap();
        let forward = Forward::of(&view).unwrap();
        let lines = forward.lines(&"127.0.0.1:9180".parse().unwrap());
        assert_eq!(lines[0], "forward 127.0.0.1:9180  drop 7/s  forward 100/s  pass 8/s");
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(&lines[3]), ["eth0", "7", "100", "0", "8000", "no_route"]);
        assert_eq!(words(&lines[4]), ["eth1", "0", "0", "7", "0", "-"]);
        assert_eq!(words(&lines[7]), ["LOST", "3", "239.1.1.1:7000", "192.0.2.9:7000"]);
        assert_eq!(forward.document()["interfaces"][1]["packets_per_second"]["drop"], 7.0);
        assert_eq!(Forward::of(&counters::View::of("x 1\n").unwrap()), None);
    }
}
