//! The report for people, 80 columns wide.

use std::fmt::Write;

use super::Report;
use super::outlook::Outlook;
use expressway_dataplane::findings::Finding;

/// Columns of a terminal.
const WIDTH: usize = 80;
/// Where the text of a line begins.
const TEXT: usize = 20;

/// The whole report.
pub(super) fn text(report: &Report) -> String {
    let mut out = String::new();
    section(&mut out, "Host", &report.host);
    for interface in &report.interfaces {
        section(&mut out, &interface.name, &interface.findings);
        for outlook in &interface.modes {
            mode(&mut out, outlook);
        }
    }
    for fixed in &report.fixed {
        let state = if fixed.error.is_none() { "fixed" } else { "failed" };
        let detail = fixed.error.as_deref().map_or_else(String::new, |error| format!(": {error}"));
        item(&mut out, state, "", &format!("{}{detail}", fixed.command));
    }
    let summary = match report.problems() {
        0 => "No problems found.".to_owned(),
        1 => "1 problem found; the command after `$` fixes it.".to_owned(),
        several => format!("{several} problems found; the commands after `$` fix them."),
    };
    out.push('\n');
    if report.interfaces.iter().flat_map(|interface| &interface.modes).any(|mode| mode.works.is_none()) {
        wrapped(
            &mut out,
            "Modes marked `try` are advertised by the driver but not verified: use --probe.",
            0,
        );
    }
    let _ = writeln!(out, "{summary}");
    out
}

fn section(out: &mut String, title: &str, findings: &[Finding]) {
    if !out.is_empty() {
        out.push('\n');
    }
    let _ = writeln!(out, "{title}");
    for finding in findings {
        item(out, finding.severity.word(), finding.check, &finding.text);
        if let Some(fix) = &finding.fix {
            command(out, &fix.command);
        }
    }
}

fn mode(out: &mut String, outlook: &Outlook) {
    let word = match outlook.works {
        Some(true) => "yes",
        Some(false) => "no",
        None => "try",
    };
    let way = match (&outlook.receive, &outlook.transmit) {
        (Some(receive), Some(transmit)) => format!("receive {receive}, transmit {transmit}"),
        _ => String::new(),
    };
    let between = if way.is_empty() || outlook.reason.is_empty() { "" } else { "; " };
    item(out, word, &outlook.mode, &format!("{way}{between}{}", outlook.reason));
    for step in &outlook.step_downs {
        let queue = step.queue.map_or_else(String::new, |queue| format!("queue {queue}: "));
        wrapped(out, &format!("{queue}{} steps down to {}: {}", step.from, step.to, step.reason), TEXT + 2);
    }
}

/// One line: a word, a name, and text that goes on below itself.
fn item(out: &mut String, word: &str, name: &str, text: &str) {
    let _ = write!(out, "  {word:<6}{name:<12}");
    let mut lines = wrap(text, WIDTH - TEXT).into_iter();
    let _ = writeln!(out, "{}", lines.next().unwrap_or_default());
    for line in lines {
        let _ = writeln!(out, "{:TEXT$}{line}", "");
    }
}

fn wrapped(out: &mut String, text: &str, indent: usize) {
    for line in wrap(text, WIDTH - indent) {
        let _ = writeln!(out, "{:indent$}{line}", "");
    }
}

/// A command to copy; a long one goes on behind a backslash.
fn command(out: &mut String, text: &str) {
    const INDENT: usize = 8;
    let lines = wrap(text, WIDTH - INDENT - 4);
    let last = lines.len().saturating_sub(1);
    for (number, line) in lines.iter().enumerate() {
        let start = if number == 0 { "$ " } else { "  " };
        let end = if number == last { "" } else { " \\" };
        let _ = writeln!(out, "{:INDENT$}{start}{line}{end}", "");
    }
}

/// Breaks at spaces; a word longer than a line is broken where the line ends.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in text.split_whitespace() {
        let mut word: Vec<char> = word.chars().collect();
        while line.chars().count() + usize::from(!line.is_empty()) + word.len() > width {
            if !line.is_empty() {
                lines.push(std::mem::take(&mut line));
            } else {
                let rest = word.split_off(width);
                lines.push(word.into_iter().collect());
                word = rest;
            }
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.extend(word);
    }
    lines.push(line);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_broken_at_spaces_and_long_words_where_the_line_ends() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("onetwothree x", 4), ["onet", "woth", "ree", "x"]);
        assert_eq!(wrap("", 4), [""]);
        for width in 1..30 {
            let lines = wrap("a bb ccc dddd eeeee ffffff-ggggggg", width);
            assert!(lines.iter().all(|line| line.chars().count() <= width), "{width}: {lines:?}");
        }
    }

    #[test]
    fn a_long_command_can_still_be_copied() {
        let mut out = String::new();
        command(&mut out, &"word ".repeat(40));
        assert!(out.lines().all(|line| line.len() <= WIDTH), "{out}");
        let joined = out.replace("\\\n", "").replace('$', "");
        assert_eq!(joined.split_whitespace().count(), 40);
        assert!(out.trim_end().lines().rev().skip(1).all(|line| line.ends_with('\\')), "{out}");
    }
}
