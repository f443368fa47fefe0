//! Which mode of `expressway fanout` the measurements of a machine favour.

use std::collections::BTreeMap;

use crate::Environment;
use crate::raw::{Described, RawRun, Run};
use crate::report::{Point, points, ratios};
use crate::scenario::Value;
use crate::statistic::{Estimate, ROUNDS_FOR_A_VERDICT, estimate, median};

/// What decides, by metric.
const DECIDES: [(&str, &str); 2] = [("mean_us", "mean latency"), ("cpu_us_per_delivery", "CPU a delivery")];

/// What may not become more, whatever is saved.
const HARM: [(&str, &str); 2] = [("lost_percent", "per cent not delivered"), ("torn", "torn streams")];

/// By how much the kernel may be worse as far as rounds can tell: what this process can lose is little, and what the kernel
/// can lose is not.
const TOLERATED: f64 = 1.1;

/// Whether the kernel is to forward, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FanoutVerdict {
    /// The measurements favour forwarding in the kernel.
    pub kernel: bool,
    /// The figures that say so, or what there are none of.
    pub reason: String,
}

/// The kernel beside the process at one point of a scenario.
struct Beside<'a> {
    scenario: &'a str,
    subscribers: u64,
    /// The kernel's figures by the process's within rounds, as in [`DECIDES`]; or why the point speaks against the kernel.
    ratios: Result<[Estimate; 2], String>,
}

/// What raw files of scenarios of the kind `fanout` say for up to so many subscribers.
///
/// All points count that were measured for no more subscribers than that, and those of the next larger number, whatever the
/// scenario: who knows how the feed comes measures that pattern only. The kernel is favoured if by latency or CPU it is shown
/// better at one of them (the interval of the ratio is below 1), and at none worse by more than a tenth as far as the interval
/// reaches; if it delivers as much; and if both have run in six rounds or more.
pub fn fanout_verdict(raw: &RawRun, subscribers: u64) -> FanoutVerdict {
    let of = |kernel, reason| FanoutVerdict { kernel, reason };
    if let Some(difference) = raw.environments.iter().find_map(Environment::difference) {
        return of(false, format!("measured on {difference}"));
    }
    // What ran in a guest says nothing of this machine.
    let here = raw.scenarios.iter().filter(|one| one.kind == "fanout" && one.emulated.is_none());
    let mut measured: Vec<Beside<'_>> = here.flat_map(|scenario| beside(scenario, raw)).collect();
    let numbers = || measured.iter().map(|one| one.subscribers);
    let Some(up_to) = numbers().filter(|number| *number >= subscribers).min() else {
        let most = numbers().max().map(|most| format!("measured for up to {most} subscribers only"));
        return of(false, most.unwrap_or_else(|| "the two modes were not measured side by side".into()));
    };
    measured.retain(|one| one.subscribers <= up_to);
    let at = |one: &Beside<'_>| {
        let plural = if one.subscribers == 1 { "" } else { "s" };
        format!("at {} subscriber{plural} ({})", one.subscribers, one.scenario)
    };
    if let Some((one, problem)) = measured.iter().find_map(|one| Some((one, one.ratios.as_ref().err()?))) {
        return of(false, format!("{problem} {}", at(one)));
    }
    let shown = |is: fn(&Estimate) -> bool| {
        measured.iter().find_map(|one| {
            let ratios = one.ratios.as_ref().ok()?;
            let (ratio, (_, metric)) = ratios.iter().zip(DECIDES).find(|(ratio, _)| is(ratio))?;
            let Estimate { low, mid, high, .. } = ratio;
            let place = at(one);
            Some(format!(
                "the kernel takes {mid:.2} ({low:.2} to {high:.2}) of the process's {metric} {place}"
            ))
        })
    };
    match (shown(|ratio| ratio.high > TOLERATED), shown(|ratio| ratio.high < 1.0)) {
        (Some(worse), _) => of(false, worse),
        (None, Some(better)) => of(true, better),
        (None, None) => of(false, format!("no difference shown for up to {up_to} subscribers")),
    }
}

/// Both sides at the points of a scenario.
fn beside<'a>(scenario: &'a Described, raw: &'a RawRun) -> Vec<Beside<'a>> {
    let name = |forwarder: &str| {
        let is = |value: &Value| matches!(value, Value::Text(text) if text == forwarder);
        let found = scenario.contestants.iter().find(|one| one.parameters.get("forwarder").is_some_and(is));
        found.map(|one| one.name.as_str())
    };
    let (Some(kernel), Some(user)) = (name("kernel"), name("user")) else { return Vec::new() };
    let one = |point: Point<'a>| {
        let subscribers = count(point.at, &scenario.settings)?;
        let ratios = compared(&point, kernel, user);
        Some(Beside { scenario: &scenario.about.name, subscribers, ratios })
    };
    points(scenario, raw).into_iter().filter_map(one).collect()
}

/// The kernel's figures by the process's at a point.
fn compared(point: &Point<'_>, kernel: &str, user: &str) -> Result<[Estimate; 2], String> {
    let runs = |name: &str| -> &[&Run] {
        point.rows.iter().find(|row| row.contestant.name == name).map_or(&[], |row| &row.runs)
    };
    let (kernel, user) = (runs(kernel), runs(user));
    for (metric, what) in HARM {
        let of = |runs: &[&Run]| {
            median(&runs.iter().filter_map(|run| run.values.get(metric).copied()).collect::<Vec<f64>>())
        };
        if of(kernel) > of(user) {
            return Err(format!("the kernel has {:.2} {what}, the process {:.2},", of(kernel), of(user)));
        }
    }
    let ratio = |(metric, _): (&str, &str)| {
        let ratios = ratios(kernel, user, metric);
        (ratios.len() >= ROUNDS_FOR_A_VERDICT).then(|| estimate(&ratios))
    };
    let [latency, cpu] = DECIDES.map(ratio);
    match (latency, cpu) {
        (Some(latency), Some(cpu)) => Ok([latency, cpu]),
        _ => Err(format!("fewer than {ROUNDS_FOR_A_VERDICT} rounds with both modes")),
    }
}

/// The subscribers of a point.
fn count(point: &BTreeMap<String, Value>, settings: &BTreeMap<String, Value>) -> Option<u64> {
    match point.get("subscribers").or_else(|| settings.get("subscribers"))? {
        Value::Count(count) => Some(*count),
        Value::Number(_) | Value::Text(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixture;
    use crate::scenario::text;

    /// Runs of both modes on this machine: for each number of subscribers the kernel's latency and CPU by the process's.
    fn raw(points: &[(u64, f64, f64)], rounds: usize) -> RawRun {
        let mut raw = fixture::raw(&[]);
        raw.environments[0] = Environment::of_this_machine();
        let scenario = &mut raw.scenarios[0];
        scenario.kind = "fanout".into();
        for (metric, (key, _)) in scenario.metrics.iter_mut().zip(DECIDES) {
            metric.key = key.into();
        }
        scenario.contestants.truncate(2);
        for (contestant, forwarder) in scenario.contestants.iter_mut().zip(["user", "kernel"]) {
            contestant.name = format!("by {forwarder}");
            contestant.parameters = [("forwarder".to_owned(), text(forwarder))].into();
        }
        for (subscribers, latency, cpu) in points {
            for round in 0..rounds {
                // They differ by a few per cent from round to round, as rounds do.
                let noise = 1.0 + 0.02 * (round as f64 - 2.5);
                for (contestant, mean, cost) in
                    [("by user", 50.0, 9.0), ("by kernel", 50.0 * latency * noise, 9.0 * cpu * noise)]
                {
                    raw.runs.push(Run {
                        scenario: "trial".into(),
                        point: [("subscribers".to_owned(), Value::Count(*subscribers))].into(),
                        contestant: contestant.into(),
                        round,
                        values: [("mean_us".to_owned(), mean), ("cpu_us_per_delivery".to_owned(), cost)]
                            .into(),
                        detail: serde_json::Value::Null,
                    });
                }
            }
        }
        raw
    }

    #[test]
    fn the_kernel_is_taken_where_it_is_better_and_nowhere_worse() {
        let measured = raw(&[(1, 0.98, 0.6), (8, 1.0, 0.97), (64, 1.4, 1.3)], 6);
        let alone = fanout_verdict(&measured, 1);
        assert!(alone.kernel && alone.reason.contains("CPU a delivery at 1 subscriber (trial)"), "{alone:?}");
        assert!(fanout_verdict(&measured, 8).kernel);
        // Up to nine are more than eight, and what is known of more is what 64 took.
        let nine = fanout_verdict(&measured, 9);
        assert!(
            !nine.kernel && nine.reason.contains("1.40") && nine.reason.contains("at 64 subscribers"),
            "{nine:?}"
        );
        let many = fanout_verdict(&measured, 65);
        assert!(!many.kernel && many.reason.contains("up to 64 subscribers only"), "{many:?}");
    }

    #[test]
    fn better_by_one_and_worse_by_the_other_is_not_better() {
        let dearer = fanout_verdict(&raw(&[(1, 0.5, 1.2)], 6), 1);
        assert!(!dearer.kernel && dearer.reason.contains("takes 1.20"), "{dearer:?}");
        let alike = fanout_verdict(&raw(&[(1, 1.0, 0.98)], 6), 1);
        assert!(!alike.kernel && alike.reason.contains("no difference"), "{alike:?}");
        let maybe = fanout_verdict(&raw(&[(1, 1.08, 0.5)], 6), 1);
        assert!(
            !maybe.kernel && maybe.reason.contains("mean latency"),
            "it may be a seventh worse: {maybe:?}"
        );
    }

    #[test]
    fn what_is_not_delivered_and_rounds_that_failed_speak_against_it() {
        let good = raw(&[(1, 0.5, 0.5), (8, 0.5, 0.5)], 6);
        assert!(fanout_verdict(&good, 8).kernel);
        for (metric, what) in HARM {
            let mut lossy = good.clone();
            for run in lossy.runs.iter_mut().filter(|run| run.contestant == "by kernel") {
                run.values.insert(metric.into(), 3.0);
            }
            for run in lossy.runs.iter_mut().filter(|run| run.contestant == "by user") {
                run.values.insert(metric.into(), 0.0);
            }
            let verdict = fanout_verdict(&lossy, 8);
            assert!(!verdict.kernel && verdict.reason.contains(what), "{verdict:?}");
        }
        // Of the second point one round is missing, or all of the kernel's.
        for gone in [|run: &Run| run.round == 5, |run: &Run| run.contestant == "by kernel"] {
            let mut failed = good.clone();
            failed.runs.retain(|run| run.point["subscribers"] == Value::Count(1) || !gone(run));
            assert!(fanout_verdict(&failed, 1).kernel);
            let verdict = fanout_verdict(&failed, 8);
            assert!(
                !verdict.kernel && verdict.reason.contains("6 rounds with both modes at 8 subscribers"),
                "{verdict:?}"
            );
        }
    }

    #[test]
    fn one_scenario_of_several_that_is_against_it_decides() {
        let mut both = raw(&[(1, 0.5, 0.5)], 6);
        let other = raw(&[(1, 1.5, 1.5)], 6);
        both.scenarios.extend(other.scenarios);
        both.scenarios[1].about.name = "bursts".into();
        both.runs.extend(other.runs.into_iter().map(|run| Run { scenario: "bursts".into(), ..run }));
        let verdict = fanout_verdict(&both, 1);
        assert!(!verdict.kernel && verdict.reason.contains("(bursts)"), "{verdict:?}");
    }

    #[test]
    fn too_few_rounds_and_other_machines_decide_nothing() {
        let few = fanout_verdict(&raw(&[(1, 0.5, 0.5)], ROUNDS_FOR_A_VERDICT - 1), 1);
        assert!(!few.kernel && few.reason.contains("6 rounds"), "{few:?}");
        let mut other = raw(&[(1, 0.5, 0.5)], 6);
        other.environments[0].kernel = "5.4.0".into();
        let verdict = fanout_verdict(&other, 1);
        assert!(!verdict.kernel && verdict.reason.contains("Linux 5.4.0"), "{verdict:?}");
        other.scenarios.clear();
        other.environments[0] = Environment::of_this_machine();
        let nothing = fanout_verdict(&other, 1);
        assert!(!nothing.kernel && nothing.reason.contains("not measured side by side"), "{nothing:?}");
    }
}
