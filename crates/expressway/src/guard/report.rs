//! What the filter did: lines for people, a document, metrics.

use std::fmt::Write;

use expressway_edge::guard::Status;
use expressway_edge::interfaces::Interfaces;
use expressway_gateway::metrics::Sample;

/// A line for each interface.
pub(super) fn ready(interfaces: &Interfaces) -> String {
    let line = |(name, mode): (&str, expressway_xbpf::AttachMode)| {
        format!("ready interface={name} mode={}\n", mode.name())
    };
    interfaces.attached().map(line).collect()
}

/// One JSON document.
pub(super) fn document(status: &Status) -> String {
    // A struct of numbers and texts always is one.
    serde_json::to_string(status).unwrap_or_default() + "\n"
}

/// Reasons that were met, and all rules.
pub(super) fn lines(status: &Status) -> String {
    let mut text = String::new();
    for reason in status.reasons.iter().filter(|reason| reason.packets > 0) {
        let dry = if status.dry_run && reason.verdict == "drop" { " (dry run: passed)" } else { "" };
        let _ = writeln!(
            text,
            "{} {}: {} packets, {} bytes{dry}",
            reason.verdict, reason.reason, reason.packets, reason.bytes
        );
    }
    for rule in &status.rules {
        let _ = writeln!(
            text,
            "rule {}: {} packets, {} dropped, {} bytes, {} dropped",
            rule.rule, rule.packets, rule.dropped_packets, rule.bytes, rule.dropped_bytes
        );
    }
    let _ = writeln!(text, "buckets {}, bans {}", status.buckets, status.bans);
    text
}

/// The same for `/metrics`.
pub(super) fn samples(status: &Status, out: &mut Vec<Sample>) {
    for reason in &status.reasons {
        let of = [
            ("guard_packets", "Packets that the filter judged, by verdict and reason.", reason.packets),
            ("guard_bytes", "Bytes of packets that the filter judged, by verdict and reason.", reason.bytes),
        ];
        for (name, help, value) in of {
            let sample = Sample::counter(name, help, value).label("verdict", reason.verdict);
            out.push(sample.label("reason", reason.reason));
        }
    }
    for rule in &status.rules {
        let of = [
            ("guard_rule_packets", "Packets that a rule was the first to match.", rule.packets),
            ("guard_rule_bytes", "Bytes of packets that a rule was the first to match.", rule.bytes),
            ("guard_rule_dropped_packets", "Packets that a rule dropped.", rule.dropped_packets),
            ("guard_rule_dropped_bytes", "Bytes of packets that a rule dropped.", rule.dropped_bytes),
        ];
        for (name, help, value) in of {
            out.push(Sample::counter(name, help, value).label("rule", rule.rule.clone()));
        }
    }
    for interface in &status.interfaces {
        let help = "1 while the filter is on the interface.";
        let sample = Sample::gauge("guard_attached", help, interface.mode.is_some().into());
        out.push(sample.label("interface", interface.interface.clone()));
    }
    let gauges = [
        ("guard_dry_run", "1 if packets that would be dropped pass.", u64::from(status.dry_run)),
        ("guard_allowed_entries", "Entries of allow lists.", status.allowed as u64),
        ("guard_blocked_entries", "Entries of block lists.", status.blocked as u64),
        ("guard_buckets", "Buckets of limits in use.", status.buckets as u64),
        ("guard_bans", "Sources that are banned.", status.bans as u64),
    ];
    out.extend(gauges.map(|(name, help, value)| Sample::gauge(name, help, value)));
    for (table, value) in [("buckets", status.bucket_overflows), ("bans", status.ban_overflows)] {
        let help = "Packets for which a table of the filter had no room.";
        out.push(Sample::counter("guard_table_full", help, value).label("table", table));
    }
}
