//! The report as Markdown.

use std::fmt::Write as _;

use super::analysis::{self, Compared, Judgement, Leaders, Point};
use super::words;
use crate::raw::{Described, RawRun};
use crate::scenario::Side;

/// A whole report. The title is the first line's.
pub fn markdown(raw: &RawRun, title: &str) -> String {
    let mut text = format!("# {title}\n");
    let scenarios: Vec<(&Described, Vec<Point<'_>>)> =
        raw.scenarios.iter().map(|scenario| (scenario, analysis::points(scenario, raw))).collect();
    first(&mut text, &scenarios);
    machine(&mut text, raw);
    for (scenario, points) in &scenarios {
        section(&mut text, raw, scenario, points);
    }
    absent(&mut text, raw);
    text
}

/// The tables of one scenario, for a terminal.
pub fn tables(raw: &RawRun, scenario: &str) -> String {
    let mut text = String::new();
    for scenario in raw.scenarios.iter().filter(|known| known.name == scenario) {
        for point in analysis::points(scenario, raw) {
            table(&mut text, scenario, &point);
        }
    }
    text
}

/// What is not in our favour, before anything else.
fn first(text: &mut String, scenarios: &[(&Described, Vec<Point<'_>>)]) {
    let mut groups: [(&str, Vec<String>); 4] = [
        ("A peer or the kernel path leads:", Vec::new()),
        ("No winner between ours by AF_XDP and the others:", Vec::new()),
        ("Ours by XDP or AF_XDP leads:", Vec::new()),
        ("Not decided, for want of rounds:", Vec::new()),
    ];
    for (scenario, points) in scenarios {
        for point in points {
            let group = match &point.leaders {
                Leaders::Alone => continue,
                Leaders::TooFewRounds => 3,
                leaders if leaders.only(Side::Express) => 2,
                leaders if leaders.any(Side::Express) => 1,
                _ => 0,
            };
            let names: Vec<&str> = point.leaders.all().iter().map(|one| one.name.as_str()).collect();
            let names = if names.is_empty() { String::new() } else { format!(": {}", names.join(", ")) };
            let at = words::point(point.at);
            let at = if at.is_empty() { String::new() } else { format!(", {at}") };
            groups[group].1.push(format!("{}{at}{names}", scenario.name));
        }
    }
    text.push_str("\n## First, where ours is not ahead\n");
    for (title, lines) in groups.iter().filter(|(_, lines)| !lines.is_empty()) {
        let _ = writeln!(text, "\n{title}\n");
        for line in lines {
            let _ = writeln!(text, "- {line}");
        }
    }
}

fn machine(text: &mut String, raw: &RawRun) {
    text.push_str("\n## The machine\n");
    for environment in &raw.environments {
        let _ = writeln!(text, "\n{}.\n", words::machine(environment));
        let _ = writeln!(text, "```\n{}\n```\n", environment.command);
        for circumstance in words::circumstances(environment) {
            let _ = writeln!(text, "- {circumstance}");
        }
        for (name, program) in &environment.programs {
            let _ = writeln!(text, "- {name}: `{}`. {}", program.version, program.why);
        }
    }
    text.push_str(
        "\nFigures are medians over rounds with 95 % bootstrap intervals. Contestants run in turn, A B C then C B A; ratios \
         are taken within rounds. A leader is named only where the interval of its ratio to every other excludes 1.\n",
    );
}

fn section(text: &mut String, raw: &RawRun, scenario: &Described, points: &[Point<'_>]) {
    let _ = writeln!(text, "\n## {}: {}\n", scenario.name, scenario.title);
    let _ = writeln!(text, "**Claim.** {}\n", scenario.claim.trim());
    let _ = writeln!(text, "**What is measured.** {}\n", unwrap(&scenario.measures));
    let _ = writeln!(text, "**What is held equal.** {}.\n", scenario.held_equal.join("; "));
    let effort = &scenario.effort;
    let _ = writeln!(
        text,
        "**Effort.** {} rounds of {} s after {} s of warm-up.",
        effort.rounds, effort.seconds, effort.warmup
    );
    for point in points {
        table(text, scenario, point);
    }
    if !scenario.reading.is_empty() {
        let _ = writeln!(text, "\n**Reading it.** {}", unwrap(&scenario.reading));
    }
    let compared = analysis::compared(scenario, points);
    if !compared.is_empty() {
        beside(text, &compared);
        if let Some(environment) = raw.environments.first() {
            let _ = writeln!(
                text,
                "\n**How this machine differs.** {}",
                words::bed_differs(scenario, environment)
            );
        }
    }
}

fn table(text: &mut String, scenario: &Described, point: &Point<'_>) {
    let at = words::point(point.at);
    if !at.is_empty() {
        let _ = writeln!(text, "\n{at}");
    }
    let metrics: Vec<_> = scenario
        .metrics
        .iter()
        .filter(|metric| point.rows.iter().any(|row| row.values.contains_key(metric.key.as_str())))
        .collect();
    let ratios = point.rows.iter().any(|row| row.ratio.is_some()) && point.rows.len() > 1;
    text.push_str("\n| |");
    for metric in &metrics {
        let _ = write!(text, " {} |", words::label(metric));
        if ratios && metric.key == scenario.headline {
            let _ = write!(text, " ratio to {} |", scenario.base.as_deref().unwrap_or(""));
        }
    }
    text.push_str(" runs |\n|---|");
    text.push_str(&"---|".repeat(metrics.len() + usize::from(ratios) + 1));
    text.push('\n');
    for row in &point.rows {
        let _ = write!(text, "| {} |", row.contestant.name);
        for metric in &metrics {
            let shown = match row.values.get(metric.key.as_str()) {
                // Intervals of what decides; medians of the rest keep the table readable.
                Some(estimate) if metric.key == scenario.headline => {
                    words::interval(estimate, metric.decimals)
                }
                Some(estimate) => format!("{:.*}", metric.decimals, estimate.mid),
                None => "–".into(),
            };
            let _ = write!(text, " {shown} |");
            if ratios && metric.key == scenario.headline {
                let ratio = row.ratio.as_ref().map_or("–".into(), |ratio| words::interval(ratio, 2));
                let _ = write!(text, " {ratio} |");
            }
        }
        let _ = writeln!(text, " {} |", row.runs.len());
    }
    let leaders = words::leaders(point);
    if !leaders.is_empty() {
        let _ = writeln!(text, "\n{leaders}");
    }
}

fn beside(text: &mut String, compared: &[Compared<'_>]) {
    text.push_str("\n| published | theirs | ours | ours by theirs | |\n|---|---|---|---|---|\n");
    for one in compared {
        let figure = &one.beside.figure;
        let _ = writeln!(
            text,
            "| {} ({}; {}) | {} | {}{} | {} | {} |",
            figure.says,
            figure.source,
            figure.bed,
            theirs(one),
            ours(one),
            note(&one.beside.note),
            by_theirs(one),
            one.judgement.words()
        );
    }
}

/// The published figure with its unit.
pub(super) fn theirs(one: &Compared<'_>) -> String {
    let figure = &one.beside.figure;
    let range = if figure.low == figure.high {
        figure.low.to_string()
    } else {
        format!("{} to {}", figure.low, figure.high)
    };
    if figure.is_ratio() { range } else { format!("{range} {}", words::unit(&figure.unit)) }
}

/// Ours: who, where, how much.
pub(super) fn ours(one: &Compared<'_>) -> String {
    let who = match &one.beside.to {
        Some(to) => format!("{} to {to}", one.beside.contestant),
        None => one.beside.contestant.clone(),
    };
    let at = words::point(one.at);
    let at = if at.is_empty() { String::new() } else { format!(", {at}") };
    let unit = if one.beside.to.is_some() { String::new() } else { format!(" {}", words::unit(one.unit)) };
    format!("{who}{at}: {}{unit}", words::interval(&one.ours, 2))
}

/// Our figure by theirs, where both are of one unit.
pub(super) fn by_theirs(one: &Compared<'_>) -> String {
    let figure = &one.beside.figure;
    let same = one.judgement != Judgement::Context || figure.unit == one.unit;
    if same { format!("{:.2}", one.ours.mid / (0.5 * (figure.low + figure.high))) } else { "–".into() }
}

fn note(note: &str) -> String {
    if note.is_empty() { String::new() } else { format!(". {note}") }
}

fn absent(text: &mut String, raw: &RawRun) {
    for (title, absent) in [("Who could not take part", &raw.missing), ("Runs that failed", &raw.failed)] {
        if absent.is_empty() {
            continue;
        }
        let _ = writeln!(text, "\n## {title}\n");
        let mut said = Vec::new();
        for one in absent {
            let line = format!("- {}, {}: {}", one.scenario, one.contestant, one.reason);
            if !said.contains(&line) {
                let _ = writeln!(text, "{line}");
                said.push(line);
            }
        }
    }
}

/// Text of a file with its line breaks taken out.
pub(super) fn unwrap(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::super::fixture;
    use super::*;
    use crate::raw::Absent;

    #[test]
    fn a_report_says_first_where_others_lead_and_has_tables_and_figures() {
        let mut raw = fixture::raw(&[[3.0, 2.0, 1.0]; 6]);
        let absent = Absent {
            scenario: "trial".into(),
            point: Default::default(),
            contestant: "d".into(),
            reason: "no such program".into(),
        };
        raw.missing = vec![absent.clone(), absent];
        let text = markdown(&raw, "Trials");
        let first = text.find("A peer or the kernel path leads:\n\n- trial, body 1 KiB: a").expect(&text);
        assert!(first < text.find("## The machine").unwrap());
        assert!(text.contains("| a | 3.00 (3.00 to 3.00) | 1.00 (1.00 to 1.00) | 1200 | 6 |"), "{text}");
        assert!(
            text.contains("a to b, body 1 KiB: 1.50 (1.50 to 1.50). A note. | 3.00 | contradicted here |"),
            "{text}"
        );
        assert!(text.contains("\na leads.\n"), "{text}");
        assert_eq!(text.matches("no such program").count(), 1);
        assert_eq!(text, markdown(&raw, "Trials"), "the same file each time");
    }

    #[test]
    fn ours_leading_is_said_so_and_few_rounds_are_not_decided() {
        let raw = fixture::raw(&[[1.0, 2.0, 3.0]; 6]);
        assert!(markdown(&raw, "t").contains("Ours by XDP or AF_XDP leads:\n\n- trial, body 1 KiB: c\n"));
        let raw = fixture::raw(&[[1.0, 2.0, 3.0]; 2]);
        let text = markdown(&raw, "t");
        assert!(
            text.contains("for want of rounds:\n\n- trial, body 1 KiB\n") && text.contains("too few rounds")
        );
        assert_eq!(tables(&raw, "trial").matches("| a |").count(), 1);
    }
}
