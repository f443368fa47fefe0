//! Compares two raw runs of the same scenarios, an old and a new one: what became better, and what became worse.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;

use crate::kind::Better;
use crate::raw::{Described, RawRun, Run};
use crate::report::{point_in_words, ratios};
use crate::scenario::{Side, Value};
use crate::statistic::{Estimate, ROUNDS_FOR_A_VERDICT, ratio_of_medians};

/// What has become of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The interval excludes no change, for the better.
    Better,
    /// The interval excludes no change, for the worse.
    Worse,
    /// The interval includes no change.
    NoChangeShown,
    /// One of the runs has too few rounds for an interval.
    TooFewRounds,
    /// The scenario says that it varies from run to run.
    Varies,
}

/// One contestant at one point in both runs.
#[derive(Clone, Debug, Serialize)]
pub struct Change {
    /// The scenario.
    pub scenario: String,
    /// The point.
    pub point: BTreeMap<String, Value>,
    /// Who: none of the peers, whose changes are not ours.
    pub contestant: String,
    /// Of what: the headline.
    pub metric: String,
    /// The contestant that the figure is a ratio to in both runs: the machine's speed is then in both sides of it.
    pub to: Option<String>,
    /// New by old: the median of the ratio.
    pub ratio: f64,
    /// Its interval.
    pub interval: (f64, f64),
    /// What that means.
    pub verdict: Verdict,
}

/// Everything that is in both runs.
pub fn compare(old: &RawRun, new: &RawRun) -> Vec<Change> {
    let mut changes = Vec::new();
    for scenario in &new.scenarios {
        let mut seen: Vec<(&BTreeMap<String, Value>, &str)> = Vec::new();
        for run in new.runs.iter().filter(|run| run.scenario == scenario.about.name) {
            let key = (&run.point, run.contestant.as_str());
            if !seen.contains(&key) {
                seen.push(key);
                changes.extend(change(scenario, old, new, key));
            }
        }
    }
    changes
}

fn change(
    scenario: &Described,
    old: &RawRun,
    new: &RawRun,
    (point, name): (&BTreeMap<String, Value>, &str),
) -> Option<Change> {
    let contestant = scenario.contestants.iter().find(|contestant| contestant.name == name)?;
    let metric =
        scenario.metric(&scenario.about.headline).filter(|metric| metric.better != Better::Neither)?;
    // The same name may have come to stand for something else.
    let before = old.scenarios.iter().find(|before| before.about.name == scenario.about.name)?;
    let same = before.contestants.contains(contestant) && before.settings == scenario.settings;
    if contestant.side == Side::Peer || !same || before.metric(&metric.key).is_none() {
        return None;
    }
    let runs = |raw: &'_ RawRun, name: &str| -> Vec<Run> {
        let wanted =
            |run: &&Run| run.scenario == scenario.about.name && run.point == *point && run.contestant == name;
        raw.runs.iter().filter(wanted).cloned().collect()
    };
    let values = |raw: &RawRun, to: Option<&str>| -> Vec<f64> {
        let runs_of_it = runs(raw, name);
        match to {
            Some(to) => {
                let others = runs(raw, to);
                ratios(
                    &runs_of_it.iter().collect::<Vec<_>>(),
                    &others.iter().collect::<Vec<_>>(),
                    &metric.key,
                )
            }
            None => runs_of_it.iter().filter_map(|run| run.values.get(&metric.key).copied()).collect(),
        }
    };
    let in_both = |to: &&str| !values(old, Some(to)).is_empty() && !values(new, Some(to)).is_empty();
    let to = scenario.about.base.as_deref().filter(|base| *base != name).filter(in_both);
    let (before, after) = (values(old, to), values(new, to));
    if before.is_empty() || after.is_empty() {
        return None;
    }
    let ratio = ratio_of_medians(&after, &before);
    Some(Change {
        scenario: scenario.about.name.clone(),
        point: point.clone(),
        contestant: name.to_owned(),
        metric: metric.key.clone(),
        to: to.map(str::to_owned),
        ratio: ratio.mid,
        interval: (ratio.low, ratio.high),
        verdict: if contestant.varies { Verdict::Varies } else { verdict(&ratio, metric.better) },
    })
}

fn verdict(ratio: &Estimate, better: Better) -> Verdict {
    if ratio.count < ROUNDS_FOR_A_VERDICT {
        return Verdict::TooFewRounds;
    }
    if ratio.includes(1.0) {
        return Verdict::NoChangeShown;
    }
    if (ratio.low > 1.0) == (better == Better::Higher) { Verdict::Better } else { Verdict::Worse }
}

/// The changes as a Markdown table, the worse ones first, after a warning where the machines differ.
pub fn changes_as_text(old: &RawRun, new: &RawRun, changes: &[Change]) -> String {
    let mut text = String::new();
    let machines = |raw: &RawRun| -> Vec<(String, String, usize)> {
        raw.environments.iter().map(|one| (one.cpu.clone(), one.kernel.clone(), one.cores)).collect()
    };
    if machines(old) != machines(new) {
        text.push_str("The two runs are from different machines or kernels.\n\n");
    }
    text.push_str("| scenario | | metric | new / old | |\n|---|---|---|---|---|\n");
    for (verdict, words) in [
        (Verdict::Worse, "worse"),
        (Verdict::Better, "better"),
        (Verdict::NoChangeShown, "no change shown"),
        (Verdict::TooFewRounds, "too few rounds to say"),
        (Verdict::Varies, "varies from run to run: not judged"),
    ] {
        for change in changes.iter().filter(|change| change.verdict == verdict) {
            let point = point_in_words(&change.point);
            let to = change.to.as_deref().map(|to| format!(" relative to {to}")).unwrap_or_default();
            let (low, high) = change.interval;
            let _ = writeln!(
                text,
                "| {} {point} | {} | {}{to} | {:.3} ({low:.3} to {high:.3}) | {words} |",
                change.scenario, change.contestant, change.metric, change.ratio
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixture::raw;

    fn verdicts(old: &RawRun, new: &RawRun) -> Vec<(String, Verdict)> {
        compare(old, new).into_iter().map(|change| (change.contestant, change.verdict)).collect()
    }

    #[test]
    fn a_slower_program_is_a_regression_and_a_slower_machine_is_none() {
        let old = raw(&[[1.0, 2.0, 3.0]; 6]);
        let half_speed = raw(&[[0.5, 1.0, 1.5]; 6]);
        let unchanged = [("b".to_owned(), Verdict::NoChangeShown), ("c".to_owned(), Verdict::NoChangeShown)];
        assert_eq!(
            verdicts(&old, &half_speed),
            unchanged,
            "a, the base, fell too; it is a peer and not listed"
        );
        let worse = raw(&[[1.0, 1.8, 3.3]; 6]);
        assert_eq!(
            verdicts(&old, &worse),
            [("b".to_owned(), Verdict::Worse), ("c".to_owned(), Verdict::Better)]
        );
        let text = changes_as_text(&old, &worse, &compare(&old, &worse));
        let line =
            "| trial body 1 KiB | b | gbit_per_cpu_second relative to a | 0.900 (0.900 to 0.900) | worse |";
        assert!(text.contains(line), "{text}");
        assert!(text.find("| worse |") < text.find("| better |"));
    }

    #[test]
    fn what_varies_from_run_to_run_is_told_and_not_judged() {
        let [mut old, mut new] = [[1.0, 2.0, 3.0], [1.0, 2.0, 1.5]].map(|values| raw(&[values; 6]));
        for run in [&mut old, &mut new] {
            run.scenarios[0].contestants[2].varies = true;
        }
        let changes = compare(&old, &new);
        assert_eq!((changes[1].contestant.as_str(), changes[1].verdict), ("c", Verdict::Varies));
        let text = changes_as_text(&old, &new, &changes);
        assert!(text.contains("0.500 (0.500 to 0.500) | varies from run to run: not judged |"), "{text}");
    }

    #[test]
    fn noise_is_no_change_and_few_rounds_say_nothing() {
        let old = raw(&[
            [1.0, 2.0, 3.0],
            [1.0, 1.6, 3.0],
            [1.0, 2.4, 3.0],
            [1.0, 2.1, 3.0],
            [1.0, 1.9, 3.0],
            [1.0, 2.0, 3.0],
        ]);
        let new = raw(&[
            [1.0, 1.9, 3.0],
            [1.0, 1.5, 3.0],
            [1.0, 2.5, 3.0],
            [1.0, 1.8, 3.0],
            [1.0, 2.2, 3.0],
            [1.0, 1.7, 3.0],
        ]);
        assert_eq!(verdicts(&old, &new)[0].1, Verdict::NoChangeShown);
        assert_eq!(verdicts(&old, &raw(&[[1.0, 0.1, 3.0]; 5]))[0].1, Verdict::TooFewRounds);
    }

    #[test]
    fn without_the_base_figures_themselves_are_compared_and_other_machines_are_said() {
        let mut old = raw(&[[1.0, 2.0, 3.0]; 6]);
        old.runs.retain(|run| run.contestant != "a");
        old.environments[0].cpu = "another".into();
        let new = raw(&[[1.0, 1.0, 3.0]; 6]);
        let changes = compare(&old, &new);
        assert_eq!((changes[0].to.as_deref(), changes[0].verdict), (None, Verdict::Worse));
        assert!(
            changes_as_text(&old, &new, &changes).starts_with("The two runs are from different machines")
        );
        let mut other = new.clone();
        other.scenarios[0].settings.insert("streams".into(), Value::Count(1));
        assert!(compare(&other, &new).is_empty(), "another setting is another measurement");
    }
}
