//! A filter: reasons, rules, lists and tables, as its metrics page tells.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use expressway_settings::admin::Address;
use serde::Serialize;
use serde_json::Value;

use super::counters::{self, Series};
use super::short;

/// Bits of a byte.
const BITS: f64 = 8.0;

/// What a filter does now. Rates are a second's.
#[derive(Debug, Default, PartialEq, Serialize)]
pub(super) struct Guard {
    dry_run: bool,
    /// Whether there is an attack; none where nothing is learned.
    #[serde(skip_serializing_if = "Option::is_none")]
    attack: Option<bool>,
    interfaces: Vec<Interface>,
    tables: Tables,
    reasons: Vec<Reason>,
    rules: Vec<Rule>,
    lists: Vec<List>,
}

/// Whether the filter is on an interface.
#[derive(Debug, PartialEq, Serialize)]
struct Interface {
    interface: String,
    attached: bool,
}

/// Entries of tables.
#[derive(Debug, Default, PartialEq, Serialize)]
struct Tables {
    allowed: f64,
    blocked: f64,
    buckets: f64,
    bans: f64,
    learned: f64,
    candidates: f64,
    captured: f64,
    captured_per_second: f64,
    capture_lost: f64,
    /// Packets that a table had no room for.
    full_per_second: f64,
}

/// What became of packets, and why.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
struct Reason {
    verdict: String,
    reason: String,
    packets: f64,
    packets_per_second: f64,
    bits_per_second: f64,
}

/// A rule.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
struct Rule {
    rule: String,
    packets: f64,
    dropped: f64,
    packets_per_second: f64,
    bits_per_second: f64,
    dropped_per_second: f64,
}

/// A list in a file or with a server.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
struct List {
    list: String,
    source: String,
    entries: f64,
    age_seconds: Option<f64>,
    failures: f64,
}

/// What is put together of several series.
#[derive(Default)]
struct Rows {
    reasons: BTreeMap<(String, String), Reason>,
    rules: BTreeMap<String, Rule>,
    lists: BTreeMap<(String, String), List>,
}

impl Guard {
    /// The filter whose page that is; `None` for another process.
    pub(super) fn of(view: &counters::View) -> Option<Self> {
        let mut guard = Self::default();
        let mut rows = Rows::default();
        for series in view.series().filter(|series| series.name.starts_with("guard_")) {
            guard.add(&series);
            rows.add(&series);
        }
        guard.reasons = rows.reasons.into_values().collect();
        guard.rules = rows.rules.into_values().collect();
        guard.lists = rows.lists.into_values().collect();
        guard.sort();
        (!guard.reasons.is_empty()).then_some(guard)
    }

    /// What drops most comes first.
    fn sort(&mut self) {
        let order = |a: f64, b: f64| b.total_cmp(&a);
        self.reasons.sort_by(|a, b| {
            let drops = |one: &Reason| Reverse(one.verdict == "drop");
            drops(a)
                .cmp(&drops(b))
                .then(order(a.packets_per_second, b.packets_per_second))
                .then(order(a.packets, b.packets))
        });
        self.rules.sort_by(|a, b| {
            order(a.dropped_per_second, b.dropped_per_second)
                .then(order(a.packets_per_second, b.packets_per_second))
                .then(order(a.dropped, b.dropped))
                .then(order(a.packets, b.packets))
        });
    }

    /// Adds a series of the page, if it is of the whole filter.
    fn add(&mut self, series: &Series<'_>) {
        let (value, rate) = (series.value, series.rate.unwrap_or_default());
        let tables = &mut self.tables;
        match series.name {
            "guard_dry_run" => self.dry_run = value != 0.0,
            "guard_attack" => self.attack = Some(value != 0.0),
            "guard_attached" => self.interfaces.push(Interface {
                interface: series.label("interface").unwrap_or_default(),
                attached: value != 0.0,
            }),
            "guard_allowed_entries" => tables.allowed = value,
            "guard_blocked_entries" => tables.blocked = value,
            "guard_buckets" => tables.buckets = value,
            "guard_bans" => tables.bans = value,
            "guard_learned" => tables.learned = value,
            "guard_candidates" => tables.candidates = value,
            "guard_capture_written_total" => {
                (tables.captured, tables.captured_per_second) = (value, rate);
            }
            "guard_capture_unwritten_total" | "guard_samples_lost_total" => tables.capture_lost += value,
            "guard_table_full_total" => tables.full_per_second += rate,
            _ => {}
        }
    }

    fn rates(&self, drops: bool) -> (f64, f64) {
        let wanted = self.reasons.iter().filter(|one| !drops || one.verdict == "drop");
        wanted.fold((0.0, 0.0), |(packets, bits), one| {
            (packets + one.packets_per_second, bits + one.bits_per_second)
        })
    }

    /// For people: the whole, reasons, lists, rules.
    pub(super) fn lines(&self, admin: &Address) -> Vec<String> {
        let ((packets, bits), (dropped, dropped_bits)) = (self.rates(false), self.rates(true));
        let state = match (self.dry_run, self.attack) {
            (true, _) => "  DRY RUN: nothing is dropped",
            (false, Some(true)) => "  ATTACK",
            _ => "",
        };
        let mut lines = vec![format!(
            "guard {admin}  {} packets/s, {} bit/s  dropped {}/s, {} bit/s{state}",
            short(packets),
            short(bits),
            short(dropped),
            short(dropped_bits),
        )];
        let interfaces = self.interfaces.iter().map(|one| match one.attached {
            true => one.interface.clone(),
            false => format!("{} (NOT ON IT)", one.interface),
        });
        lines.push(format!("on {}", interfaces.collect::<Vec<_>>().join(" ")));
        let tables = &self.tables;
        let mut held = format!(
            "allowed {}  blocked {}  bans {}  buckets {}  without room {}/s",
            short(tables.allowed),
            short(tables.blocked),
            short(tables.bans),
            short(tables.buckets),
            short(tables.full_per_second),
        );
        if self.attack.is_some() {
            held += &format!("  learned {}+{}", short(tables.learned), short(tables.candidates));
        }
        lines.push(held);
        if tables.captured + tables.capture_lost > 0.0 {
            lines.push(format!(
                "captured {} ({}/s)  lost {}",
                short(tables.captured),
                short(tables.captured_per_second),
                short(tables.capture_lost),
            ));
        }
        lines.push(String::new());
        lines.push(format!("{:<24} {:>9} {:>9} {:>9}", "REASON", "PACKET/s", "BIT/s", "PACKETS"));
        lines.extend(self.reasons.iter().filter(|one| one.packets > 0.0).map(Reason::line));
        if !self.lists.is_empty() {
            lines.push(String::new());
            lines.push(format!("{:<5} {:>9} {:>9} {:>8}  SOURCE", "LIST", "ENTRIES", "AGE s", "FAILURES"));
            lines.extend(self.lists.iter().map(List::line));
        }
        if !self.rules.is_empty() {
            lines.push(String::new());
            lines.push(format!(
                "{:<24} {:>9} {:>9} {:>9} {:>9} {:>9}",
                "RULE", "PACKET/s", "BIT/s", "DROP/s", "PACKETS", "DROPPED"
            ));
            lines.extend(self.rules.iter().map(Rule::line));
        }
        lines
    }

    /// For programs.
    pub(super) fn document(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }
}

impl Rows {
    /// Adds a series of the page, if it is of a row.
    fn add(&mut self, series: &Series<'_>) {
        let label = |name: &str| series.label(name).unwrap_or_default();
        let (value, rate) = (series.value, series.rate.unwrap_or_default());
        match series.name {
            "guard_packets_total" | "guard_bytes_total" => {
                let (verdict, reason) = (label("verdict"), label("reason"));
                let fresh =
                    || Reason { verdict: verdict.clone(), reason: reason.clone(), ..Reason::default() };
                let row = self.reasons.entry((verdict.clone(), reason.clone())).or_insert_with(fresh);
                if series.name == "guard_bytes_total" {
                    row.bits_per_second = rate * BITS;
                } else {
                    (row.packets, row.packets_per_second) = (value, rate);
                }
            }
            name if name.starts_with("guard_rule_") => {
                let rule = label("rule");
                let row = self.rules.entry(rule.clone()).or_insert_with(|| Rule { rule, ..Rule::default() });
                match name {
                    "guard_rule_packets_total" => (row.packets, row.packets_per_second) = (value, rate),
                    "guard_rule_bytes_total" => row.bits_per_second = rate * BITS,
                    "guard_rule_dropped_packets_total" => {
                        (row.dropped, row.dropped_per_second) = (value, rate)
                    }
                    _ => {}
                }
            }
            name if name.starts_with("guard_list_") => {
                let (list, source) = (label("list"), label("source"));
                let fresh = || List { list: list.clone(), source: source.clone(), ..List::default() };
                let row = self.lists.entry((list.clone(), source.clone())).or_insert_with(fresh);
                match name {
                    "guard_list_entries" => row.entries = value,
                    "guard_list_age_seconds" => row.age_seconds = Some(value),
                    "guard_list_failures_total" => row.failures = value,
                    _ => {}
                }
            }
            _ => {}
        }
    }
}

impl Reason {
    fn line(&self) -> String {
        format!(
            "{:<24} {:>9} {:>9} {:>9}",
            format!("{} {}", self.verdict, self.reason),
            short(self.packets_per_second),
            short(self.bits_per_second),
            short(self.packets),
        )
    }
}

impl Rule {
    fn line(&self) -> String {
        // A name has any length; columns keep their places.
        let name: String = self.rule.chars().take(24).collect();
        format!(
            "{name:<24} {:>9} {:>9} {:>9} {:>9} {:>9}",
            short(self.packets_per_second),
            short(self.bits_per_second),
            short(self.dropped_per_second),
            short(self.packets),
            short(self.dropped),
        )
    }
}

impl List {
    fn line(&self) -> String {
        let age = self.age_seconds.map_or_else(|| "never".to_owned(), short);
        format!(
            "{:<5} {:>9} {age:>9} {:>8}  {}",
            self.list,
            short(self.entries),
            short(self.failures),
            self.source
        )
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A page after `seconds` of steady traffic.
    fn page(seconds: u32) -> String {
        let mut page = String::from(
            "expressway_guard_dry_run 0\nexpressway_guard_attack 1\nexpressway_guard_bans 3\n\
             expressway_guard_attached{interface=\"eth0\"} 1\nexpressway_guard_attached{interface=\"eth1\"} 0\n\
             expressway_guard_list_entries{list=\"block\",source=\"https://a/b\"} 12\n\
             expressway_guard_list_failures_total{list=\"block\",source=\"https://a/b\"} 2\n",
        );
        for (verdict, reason, rate) in
            [("pass", "default", 100), ("drop", "limit", 20), ("drop", "blocked", 30), ("drop", "address", 0)]
        {
            let labels = format!("{{verdict=\"{verdict}\",reason=\"{reason}\"}}");
            page += &format!("expressway_guard_packets_total{labels} {}\n", rate * seconds);
            page += &format!("expressway_guard_bytes_total{labels} {}\n", rate * seconds * 1000);
        }
        for (rule, matched, dropped) in [("idle", 0, 0), ("passes", 500, 0), ("drops", 40, 20)] {
            page +=
                &format!("expressway_guard_rule_packets_total{{rule=\"{rule}\"}} {}\n", matched * seconds);
            page += &format!(
                "expressway_guard_rule_dropped_packets_total{{rule=\"{rule}\"}} {}\n",
                dropped * seconds
            );
        }
        page
    }

    #[test]
    fn what_drops_most_comes_first() {
        let mut view = counters::View::of(&page(1)).unwrap();
        view.apply(&page(3), Duration::from_secs(2)).unwrap();
        let guard = Guard::of(&view).unwrap();
        let lines = guard.lines(&"127.0.0.1:9190".parse().unwrap());
        assert_eq!(
            lines[..3],
            [
                "guard 127.0.0.1:9190  150 packets/s, 1.20M bit/s  dropped 50/s, 400.0k bit/s  ATTACK",
                "on eth0 eth1 (NOT ON IT)",
                "allowed 0  blocked 0  bans 3  buckets 0  without room 0/s  learned 0+0",
            ]
        );
        let first: Vec<&str> = lines[4..].iter().map(|line| line.split("  ").next().unwrap()).collect();
        assert_eq!(
            first,
            [
                "REASON",
                "drop blocked",
                "drop limit",
                "pass default",
                "",
                "LIST",
                "block",
                "",
                "RULE",
                "drops",
                "passes",
                "idle",
            ]
        );
        assert!(lines[10].ends_with(" never        2  https://a/b"), "{}", lines[10]);
        assert!(lines.iter().all(|line| line.len() <= 90), "{lines:?}");
        let document = guard.document();
        assert_eq!(document["rules"][0]["dropped_per_second"], 20.0);
        assert_eq!(document["reasons"][0]["bits_per_second"], 240_000.0);
        assert_eq!(document["attack"], true);
    }

    #[test]
    fn another_process_is_none() {
        let view = counters::View::of("expressway_fanout_subscribers 3\n").unwrap();
        assert_eq!(Guard::of(&view), None);
    }
}
