//! What `expressway gen` says at the end.

use std::fmt::Write;
use std::time::Duration;

use expressway_feed::generate::{CaptureStats, Ended, Flows, Outcome, Tally};
use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

use crate::args::generate::Udp;
use crate::fail::Failure;

/// Share of datagrams that may be late in a schedule that was kept.
const LATE_SHARE: f64 = 0.01;

/// CPU time of this process.
pub(super) fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.max(0) as u64, time.tv_nsec as u32)
}

/// Everything about a run.
pub(super) struct Report<'a> {
    pub(super) arguments: &'a Udp,
    pub(super) flows: &'a Flows,
    pub(super) mode: &'a str,
    pub(super) interface: Option<&'a str>,
    pub(super) tally: Tally,
    pub(super) capture: Option<CaptureStats>,
    pub(super) cpu: Duration,
    pub(super) outcome: &'a Outcome,
}

impl Report<'_> {
    /// Why the schedule was not kept; nothing if it was.
    pub(super) fn problems(&self) -> Vec<String> {
        let (outcome, tally) = (self.outcome, &self.tally);
        let mut problems = Vec::new();
        if outcome.unsent > 0 {
            problems.push(format!("{} datagrams were due and not sent", outcome.unsent));
        }
        if tally.refused > 0 {
            problems.push(format!("{} were refused by the kernel or the device", tally.refused));
        }
        if tally.no_room > 0 {
            problems.push(format!("{} did not fit the socket buffer", tally.no_room));
        }
        if outcome.late as f64 > outcome.taken as f64 * LATE_SHARE {
            problems.push(format!(
                "{} ({:.1} %) were late by more than {:?}",
                outcome.late,
                100.0 * outcome.late as f64 / outcome.taken as f64,
                self.arguments.late
            ));
        }
        problems
    }

    /// Prints it.
    pub(super) fn print(&self) -> Result<(), Failure> {
        match self.arguments.json {
            true => crate::print(&format!("{}\n", self.document())),
            false => crate::print(&self.text()),
        }
    }

    /// A rate of `count` over the run.
    fn rate(&self, count: u64) -> f64 {
        let seconds = self.outcome.elapsed.as_secs_f64();
        if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
    }

    /// What the schedule asked for, in datagrams a second; of a capture, what it came to.
    fn offered_rate(&self) -> f64 {
        self.arguments.rate.map_or_else(|| self.rate(self.outcome.offered), |rate| rate.0)
    }

    fn document(&self) -> Value {
        let (outcome, tally) = (self.outcome, &self.tally);
        let problems = self.problems();
        let mut document = json!({
            "to": self.arguments.to,
            "io": self.mode,
            "interface": self.interface,
            "flows": self.flows.count(),
            "seconds": outcome.elapsed.as_secs_f64(),
            "ended": match outcome.ended {
                Ended::Done => "done",
                Ended::OutOfTime => "out_of_time",
                Ended::Stopped => "stopped",
            },
            "offered": outcome.offered,
            "offered_pps": self.offered_rate(),
            "sent": tally.sent,
            "sent_pps": self.rate(tally.sent),
            "sent_bytes": tally.bytes,
            "unsent": outcome.unsent,
            "refused": tally.refused,
            "no_room": tally.no_room,
            "full": tally.full,
            "fallback": tally.fallback,
            "calls": tally.calls,
            "late": outcome.late,
            "late_limit_ns": self.arguments.late.as_nanos() as u64,
            "lateness_ns": percentiles(&outcome.lateness),
            "cpu_seconds": self.cpu.as_secs_f64(),
            "kept": problems.is_empty(),
            "problems": problems,
        });
        if let Some(capture) = self.capture {
            document["capture"] = json!({"replayed": capture.replayed, "other": capture.other,
                "broken": capture.broken, "unfit": capture.unfit});
        }
        if let Some(echoes) = &outcome.echoes {
            let stats = echoes.stats();
            document["round_trip"] = json!({
                "received": stats.received,
                "lost": outcome.taken.saturating_sub(stats.received),
                "duplicates": stats.duplicates,
                "reordered": stats.reordered,
                "foreign": stats.foreign,
                "round_trip_ns": percentiles(echoes.round_trips()),
            });
        }
        document
    }

    fn text(&self) -> String {
        let (outcome, tally) = (self.outcome, &self.tally);
        let mut out = String::new();
        let by = self.interface.map_or(String::new(), |name| format!(" on {name}"));
        let _ = writeln!(
            out,
            "sent {} of {} datagrams in {:.3} s to {} by {}{by}, {} flows",
            tally.sent,
            outcome.offered,
            outcome.elapsed.as_secs_f64(),
            self.arguments.to,
            self.mode,
            self.flows.count(),
        );
        let _ = writeln!(
            out,
            "offered {:.0}/s, sent {:.0}/s, {:.3} Gbit/s of payload, {:.2} s of CPU",
            self.offered_rate(),
            self.rate(tally.sent),
            self.rate(tally.bytes) * 8e-9,
            self.cpu.as_secs_f64(),
        );
        let _ = writeln!(out, "lateness    {}", line(&outcome.lateness));
        let _ = writeln!(out, "late        {} by more than {:?}", outcome.late, self.arguments.late);
        for (name, count) in [
            ("not sent", outcome.unsent),
            ("refused", tally.refused),
            ("no room", tally.no_room),
            ("full", tally.full),
            ("fallback", tally.fallback),
        ] {
            if count > 0 {
                let _ = writeln!(out, "{name:<11} {count}");
            }
        }
        if let Some(capture) = self.capture {
            let CaptureStats { replayed, other, broken, unfit } = capture;
            let _ = writeln!(
                out,
                "capture     {replayed} replayed, {other} not UDP, {broken} malformed, {unfit} empty or too large"
            );
        }
        if let Some(echoes) = &outcome.echoes {
            let stats = echoes.stats();
            let _ = writeln!(out, "round trip  {}", line(echoes.round_trips()));
            let _ = writeln!(
                out,
                "came back   {}, lost {}, duplicates {}, reordered {}, foreign {}",
                stats.received,
                outcome.taken.saturating_sub(stats.received),
                stats.duplicates,
                stats.reordered,
                stats.foreign
            );
        }
        let problems = self.problems();
        match problems.is_empty() {
            true => out += "schedule    kept\n",
            false => {
                let _ = writeln!(out, "schedule    NOT kept: {}", problems.join("; "));
            }
        }
        out
    }
}

const QUANTILES: [(&str, f64); 5] =
    [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99_9", 0.999), ("p99_99", 0.9999)];

fn percentiles(histogram: &Histogram<u64>) -> Value {
    let mut values = serde_json::Map::new();
    values.insert("count".into(), histogram.len().into());
    values.insert("mean".into(), histogram.mean().into());
    for (name, quantile) in QUANTILES {
        values.insert(name.into(), histogram.value_at_quantile(quantile).into());
    }
    values.insert("max".into(), histogram.max().into());
    values.into()
}

/// Percentiles in microseconds.
fn line(histogram: &Histogram<u64>) -> String {
    let micro = |nanoseconds: u64| nanoseconds as f64 / 1e3;
    let at = |quantile| micro(histogram.value_at_quantile(quantile));
    format!(
        "p50 {:.1} µs, p90 {:.1}, p99 {:.1}, p99.9 {:.1}, max {:.1}",
        at(0.5),
        at(0.9),
        at(0.99),
        at(0.999),
        micro(histogram.max())
    )
}
