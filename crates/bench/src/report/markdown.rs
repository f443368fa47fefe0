//! The report as Markdown.

use std::fmt::Write as _;

use super::analysis::{self, Compared, Point};
use super::{claims, standing, words};
use crate::raw::{Absent, Described, RawRun};

/// What a made page says of itself.
pub const MADE_BY: &str = "<!-- Made by `expressway bench report` from raw files: do not edit. -->";

/// The file name of [`picture`](super::picture()), to which a page in Markdown links.
pub const PICTURE: &str = "ratios.svg";

/// A whole report.
pub fn markdown(raw: &RawRun, title: &str) -> String {
    let mut text = format!("{MADE_BY}\n\n# {title}\n");
    let scenarios: Vec<(&Described, Vec<Point<'_>>)> =
        raw.scenarios.iter().map(|scenario| (scenario, analysis::points(scenario, raw))).collect();
    first(&mut text, &scenarios);
    text.push_str(&claims::markdown(&scenarios));
    machine(&mut text, raw);
    for (scenario, points) in &scenarios {
        section(&mut text, raw, scenario, points);
    }
    absent(&mut text, "Contestants that could not run", &raw.missing);
    absent(&mut text, "Failed runs", &raw.failed);
    text
}

/// The tables of one scenario, for a terminal.
pub fn tables(raw: &RawRun, scenario: &str) -> String {
    let mut text = String::new();
    for scenario in raw.scenarios.iter().filter(|known| known.about.name == scenario) {
        for point in analysis::points(scenario, raw) {
            table(&mut text, scenario, &point);
        }
    }
    text
}

/// The picture, and in words what it does not have.
fn first(text: &mut String, scenarios: &[(&Described, Vec<Point<'_>>)]) {
    let standings = standing::standings(scenarios);
    if standings.is_empty() {
        return;
    }
    let counted = standing::counted(&standings);
    let _ = writeln!(text, "\n## Ours beside the others\n\n{counted}\n\n{}", standing::EXPLAINED);
    if standings.iter().any(|one| one.ratio.is_some()) {
        let _ = writeln!(text, "\n![Ratios of ours to the others. {counted}]({PICTURE})");
    }
    let rest: Vec<String> = standings
        .iter()
        .filter(|one| one.ratio.is_none())
        .map(|one| format!("- {}\n", words::standing(one)))
        .collect();
    if !rest.is_empty() {
        let _ = write!(text, "\nWithout a ratio:\n\n{}", rest.concat());
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
    let _ = writeln!(text, "\n{}", words::METHOD);
}

fn section(text: &mut String, raw: &RawRun, scenario: &Described, points: &[Point<'_>]) {
    let _ = writeln!(text, "\n## {}: {}\n", scenario.about.name, scenario.about.title);
    let _ = writeln!(text, "**Claim.** {}\n", scenario.about.claim.trim());
    let _ = writeln!(text, "**What is measured.** {}\n", words::unwrap(&scenario.about.measures));
    let _ = writeln!(text, "**Held equal.** {}.\n", scenario.about.held_equal.join("; "));
    if let Some(emulated) = words::emulated(scenario) {
        let _ = writeln!(text, "**Where.** {emulated}\n");
    }
    let settings = words::settings(scenario);
    if !settings.is_empty() {
        let _ = writeln!(text, "**Settings.** {settings}.\n");
    }
    if let Some(hosts) = raw.environments.first().and_then(|one| words::hosts(scenario, one)) {
        let _ = writeln!(text, "**Where.** {hosts}\n");
    }
    let _ = writeln!(text, "**Effort.** {}", words::effort(scenario));
    for point in points {
        table(text, scenario, point);
    }
    if !scenario.about.reading.is_empty() {
        let _ = writeln!(text, "\n**How to read it.** {}", words::unwrap(&scenario.about.reading));
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
    let table = words::table(scenario, point);
    let _ = writeln!(text, "\n| {} |\n|{}", table.head.join(" | "), "---|".repeat(table.head.len()));
    for row in &table.rows {
        let _ = writeln!(text, "| {} |", row.join(" | "));
    }
    let leaders = words::leaders(point);
    if !leaders.is_empty() {
        let _ = writeln!(text, "\n{leaders}");
    }
}

fn beside(text: &mut String, compared: &[Compared<'_>]) {
    text.push_str("\n| published | theirs | ours | ours / theirs | |\n|---|---|---|---|---|\n");
    for one in compared {
        let figure = &one.beside.figure;
        let _ = writeln!(
            text,
            "| {} ({}; {}) | {} | {}{} | {} | {} |",
            figure.says,
            figure.source,
            figure.bed,
            words::theirs(one),
            words::ours(one),
            note(&one.beside.note),
            words::by_theirs(one),
            one.judgement.words()
        );
    }
}

fn note(note: &str) -> String {
    if note.is_empty() { String::new() } else { format!(". {note}") }
}

fn absent(text: &mut String, title: &str, absent: &[Absent]) {
    let lines = words::absent(absent);
    if lines.is_empty() {
        return;
    }
    let _ = writeln!(text, "\n## {title}\n");
    for line in lines {
        let _ = writeln!(text, "- {line}");
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture;
    use super::*;
    use crate::scenario::Side;

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
        raw.scenarios[0].settings = [("udp_segmentation".to_owned(), crate::scenario::text("off"))].into();
        let text = markdown(&raw, "Trials");
        assert!(text.contains("**Settings.** udp_segmentation off.\n"), "{text}");
        let first = text.find("A peer or the kernel path leads: 1.\n").expect(&text);
        let picture = text
            .find("![Ratios of ours to the others. A peer or the kernel path leads: 1.](ratios.svg)")
            .expect(&text);
        assert!(first < picture && picture < text.find("## The machine").unwrap());
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
        assert!(markdown(&raw, "t").contains("\nOurs leads: 1.\n"));
        let mut raw = fixture::raw(&[[1.0, 3.0, 2.0]; 6]);
        assert!(markdown(&raw, "t").contains("\nA peer or the kernel path leads: 1.\n"));
        raw.scenarios[0].contestants[1].side = Side::Ours;
        assert!(markdown(&raw, "t").contains("\nOurs leads: 1.\n"));
        raw.scenarios[0].contestants[1].side = Side::Peer;
        raw.scenarios[0].contestants[2].side = Side::Peer;
        let text = markdown(&raw, "t");
        assert!(
            text.contains("\nWithout a ratio:\n\n- trial, body 1 KiB: b\n") && !text.contains("ratios.svg"),
            "{text}"
        );
        let raw = fixture::raw(&[[1.0, 2.0, 3.0]; 2]);
        let text = markdown(&raw, "t");
        assert!(
            text.contains("\nUndecided: too few rounds: 1.\n") && text.contains("No winner: too few rounds.")
        );
        assert_eq!(tables(&raw, "trial").matches("| a |").count(), 1);
    }
}
