//! What the filter did: lines for people, a document, metrics.

use std::fmt::Write;
use std::net::IpAddr;
use std::time::Duration;

use expressway_edge::guard::Status;
use expressway_edge::interfaces::Interfaces;
use expressway_metrics::Sample;

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

/// Bans that a document has at most.
pub(super) const BANS: usize = 10_000;

/// Who is banned, and for how many seconds yet.
pub(super) fn bans(bans: &[(IpAddr, Duration)]) -> String {
    let some = &bans[..bans.len().min(BANS)];
    let one = |(source, left): &(IpAddr, Duration)| {
        let source = if source.is_ipv4() { source.to_string() } else { format!("{source}/64") };
        serde_json::json!({"source": source, "seconds": left.as_secs_f64().ceil()})
    };
    let bans = serde_json::json!({
        "bans": some.iter().map(one).collect::<Vec<_>>(),
        "complete": some.len() == bans.len(),
    });
    format!("{bans}\n")
}

/// Reasons that were met, and all rules.
pub(super) fn lines(status: &Status) -> String {
    let mut text = String::new();
    for reason in status.reasons.iter().filter(|reason| reason.packets > 0) {
        let dry = if status.dry_run && reason.verdict != "pass" { " (dry run: passed)" } else { "" };
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
    if status.unknown_ids + status.tokens > 0 {
        let (ids, tokens) = (status.unknown_ids, status.tokens);
        let _ =
            writeln!(text, "quic: {ids} packets with unknown connection IDs passed, {tokens} valid tokens");
    }
    let _ = writeln!(text, "buckets {}, bans {}", status.buckets, status.bans);
    if let Some(learn) = &status.learn {
        let attack = if learn.attack { ", attack" } else { "" };
        let _ = writeln!(text, "learned {}, candidates {}{attack}", learn.learned, learn.candidates);
    }
    if let Some(capture) = status.capture {
        let lost: u64 = status.sampling.iter().map(|one| one.lost).sum::<u64>() + capture.unwritten;
        let _ = writeln!(text, "capture: {} packets written, {lost} lost", capture.written);
    }
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
        ("guard_dry_run", "1 in dry-run mode: nothing is dropped.", u64::from(status.dry_run)),
        ("guard_allowed_entries", "Entries of allow lists.", status.allowed as u64),
        ("guard_blocked_entries", "Entries of block lists.", status.blocked as u64),
        ("guard_buckets", "Buckets of limits in use.", status.buckets as u64),
        ("guard_bans", "Sources that are banned.", status.bans as u64),
    ];
    out.extend(gauges.map(|(name, help, value)| Sample::gauge(name, help, value)));
    let help = "QUIC packets passed on with connection IDs that no server issued.";
    out.push(Sample::counter("guard_quic_unknown_ids", help, status.unknown_ids));
    let help = "QUIC Initial packets with a valid token.";
    out.push(Sample::counter("guard_quic_tokens", help, status.tokens));
    for (table, value) in [("buckets", status.bucket_overflows), ("bans", status.ban_overflows)] {
        let help = "Packets for which a table of the filter had no room.";
        out.push(Sample::counter("guard_table_full", help, value).label("table", table));
    }
    capture(status, out);
    learn(status, out);
    for list in &status.lists {
        let of = [
            Some(Sample::gauge("guard_list_entries", "Entries of a list.", list.entries as u64)),
            list.age_seconds.map(|age| {
                let help = "Seconds since a list was read, or known to be current.";
                Sample::gauge("guard_list_age_seconds", help, age)
            }),
            Some(Sample::counter(
                "guard_list_failures",
                "Times that a list could not be read or was refused.",
                list.failures,
            )),
        ];
        for sample in of.into_iter().flatten() {
            out.push(sample.label("list", list.list).label("source", list.source.clone()));
        }
    }
}

fn learn(status: &Status, out: &mut Vec<Sample>) {
    let Some(learn) = &status.learn else { return };
    let gauges = [
        ("guard_attack", "1 while there is an attack: learned sources are preferred.", learn.attack.into()),
        ("guard_learned", "Sources that are preferred in an attack.", learn.learned as u64),
        ("guard_candidates", "Sources that are not preferred yet.", learn.candidates as u64),
        ("guard_learned_unsaved", "1 if learned sources could not be written.", learn.error.is_some().into()),
    ];
    out.extend(gauges.map(|(name, help, value)| Sample::gauge(name, help, value)));
    let counters = [
        ("guard_proofs", "Source addresses validated (TCP or QUIC Retry).", learn.proofs),
        ("guard_learned_added", "Sources that were learned.", learn.added),
        ("guard_learned_late", "New sources not learned because an attack was in progress.", learn.late),
        ("guard_learned_full", "Sources not learned because the table was full.", learn.full),
    ];
    out.extend(counters.map(|(name, help, value)| Sample::counter(name, help, value)));
}

fn capture(status: &Status, out: &mut Vec<Sample>) {
    for one in &status.sampling {
        let of = [
            ("guard_sampled", "Samples of dropped packets that were taken.", one.taken),
            (
                "guard_samples_limited",
                "Samples of dropped packets that the rate limit left out.",
                one.limited,
            ),
            ("guard_samples_lost", "Samples of dropped packets that buffers had no room for.", one.lost),
        ];
        for (name, help, value) in of {
            out.push(Sample::counter(name, help, value).label("reason", one.reason));
        }
    }
    let Some(capture) = status.capture else { return };
    let help = "Samples of dropped packets that were written to files.";
    out.push(Sample::counter("guard_capture_written", help, capture.written));
    let help = "Samples of dropped packets that could not be written.";
    out.push(Sample::counter("guard_capture_unwritten", help, capture.unwritten));
    let help = "1 while samples cannot be written.";
    out.push(Sample::gauge("guard_capture_failing", help, capture.failing.into()));
}
