//! Packets a second by core.

use std::fmt::Write;
use std::time::Instant;

use expressway_xbpf::{Action, Baseline, BaselineCounts};
use serde_json::{Value, json};

/// Counters at a time.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    at: Instant,
    /// By core; for a program that does not count, empty.
    cores: Vec<BaselineCounts>,
    /// What the interface itself counted as received.
    received: u64,
}

impl Reading {
    /// The counters now.
    pub(super) fn take(baseline: &Baseline, action: Action, interface: &str) -> Result<Self, String> {
        let cores = match action.counts() {
            true => baseline.by_cpu().map_err(|error| error.to_string())?,
            false => Vec::new(),
        };
        let table =
            std::fs::read_to_string("/proc/net/dev").map_err(|error| format!("/proc/net/dev: {error}"))?;
        Ok(Self { at: Instant::now(), cores, received: received(&table, interface).unwrap_or(0) })
    }

    fn total(&self) -> BaselineCounts {
        self.cores.iter().fold(BaselineCounts::default(), |sum, one| sum + *one)
    }

    /// What was counted from `earlier` to now, and seconds between.
    fn since(&self, earlier: &Self) -> (Self, f64) {
        let cores = self.cores.iter().zip(&earlier.cores).map(|(now, then)| now.since(*then)).collect();
        let received = self.received.saturating_sub(earlier.received);
        let seconds = self.at.saturating_duration_since(earlier.at).as_secs_f64();
        (Self { at: self.at, cores, received }, seconds)
    }
}

/// Packets that an interface has received, from the text of /proc/net/dev.
fn received(table: &str, interface: &str) -> Option<u64> {
    let fields = table.lines().find_map(|line| line.trim().strip_prefix(interface)?.strip_prefix(':'))?;
    fields.split_whitespace().nth(1)?.parse().ok()
}

/// Rates from the start on.
pub(super) struct Rates {
    first: Reading,
    last: Reading,
    seconds: u64,
    /// The best full second.
    peak: f64,
}

fn rate(count: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}

impl Rates {
    /// Counts from `first` on.
    pub(super) fn new(first: Reading) -> Self {
        Self { last: first.clone(), first, seconds: 0, peak: 0.0 }
    }

    /// Takes the next reading in, and gives its line.
    pub(super) fn second(&mut self, reading: Reading) -> String {
        let (grown, seconds) = reading.since(&self.last);
        self.last = reading;
        self.seconds += 1;
        // A part of a second at the end says little.
        if seconds >= 0.5 {
            self.peak = self.peak.max(rate(packets(&grown), seconds));
        }
        line(&format!("{:>4} s", self.seconds), &grown, seconds)
    }

    /// The line of the whole time.
    pub(super) fn summary(&self) -> String {
        let (grown, seconds) = self.last.since(&self.first);
        let mut out = line("mean  ", &grown, seconds);
        let _ =
            writeln!(out, "total  {} packets in {seconds:.3} s, peak {:.0}/s", packets(&grown), self.peak);
        out
    }

    /// The same as JSON.
    pub(super) fn document(&self) -> Value {
        let (grown, seconds) = self.last.since(&self.first);
        let total = grown.total();
        let cores: Vec<Value> = (0..)
            .zip(&grown.cores)
            .filter(|(_, one)| one.packets + one.sent + one.refused > 0)
            .map(|(core, one): (u32, _)| {
                json!({"core": core, "packets": one.packets, "pps": rate(one.packets, seconds),
                    "short": one.short_frames, "sent": one.sent, "refused": one.refused})
            })
            .collect();
        json!({
            "seconds": seconds,
            "packets": packets(&grown),
            "pps": rate(packets(&grown), seconds),
            "peak_pps": self.peak,
            "short": total.short_frames,
            "sent": total.sent,
            "refused": total.refused,
            "received": grown.received,
            "cores": cores,
        })
    }
}

/// What the program counted, or for one that does not count the interface.
fn packets(grown: &Reading) -> u64 {
    if grown.cores.is_empty() { grown.received } else { grown.total().packets }
}

fn line(name: &str, grown: &Reading, seconds: f64) -> String {
    let mut out = format!("{name} {:>12.0}/s", rate(packets(grown), seconds));
    for (core, one) in grown.cores.iter().enumerate().filter(|(_, one)| one.packets > 0) {
        let _ = write!(out, "  core {core}: {:.0}", rate(one.packets, seconds));
    }
    let total = grown.total();
    for (word, count) in [("short", total.short_frames), ("sent", total.sent), ("refused", total.refused)] {
        if count > 0 {
            let _ = write!(out, "  {word} {:.0}", rate(count, seconds));
        }
    }
    out.push('\n');
    out
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn reading(start: Instant, milliseconds: u64, cores: &[u64]) -> Reading {
        let counts = |packets: &u64| BaselineCounts { packets: *packets, ..BaselineCounts::default() };
        let at = start + Duration::from_millis(milliseconds);
        Reading { at, cores: cores.iter().map(counts).collect(), received: cores.iter().sum::<u64>() + 7 }
    }

    #[test]
    fn rates_are_by_core_and_second() {
        let start = Instant::now();
        let mut rates = Rates::new(reading(start, 0, &[100, 0, 50]));
        let line = rates.second(reading(start, 1000, &[1100, 0, 550]));
        assert_eq!(
            line.split_whitespace().collect::<Vec<_>>().join(" "),
            "1 s 1500/s core 0: 1000 core 2: 500"
        );
        rates.second(reading(start, 2000, &[4100, 0, 550]));
        // A short last part counts in the mean, and is no peak.
        rates.second(reading(start, 2010, &[5100, 0, 550]));
        let document = rates.document();
        assert_eq!((document["packets"].as_u64(), document["peak_pps"].as_f64()), (Some(5500), Some(3000.0)));
        assert_eq!(document["cores"].as_array().map(Vec::len), Some(2));
        assert_eq!(document["cores"][1]["core"], 2);
        assert!(
            rates.summary().contains("total  5500 packets in 2.010 s, peak 3000/s"),
            "{}",
            rates.summary()
        );
    }

    #[test]
    fn a_program_that_does_not_count_has_the_interface_s_counter() {
        let start = Instant::now();
        let mut rates = Rates::new(Reading { received: 10, ..reading(start, 0, &[]) });
        assert!(rates.second(Reading { received: 510, ..reading(start, 1000, &[]) }).contains(" 500/s"));
        assert_eq!(rates.document()["packets"], 500);
    }

    #[test]
    fn the_interface_s_counter_is_found_by_its_whole_name() {
        let table =
            "Inter-|   Receive\n face |bytes    packets errs\n  eth10: 5 6 0\n   eth1:    1234     42    0\n";
        assert_eq!(received(table, "eth1"), Some(42));
        assert_eq!(received(table, "eth10"), Some(6));
        assert_eq!(received(table, "eth"), None);
        assert_eq!(received("", "eth1"), None);
    }
}
