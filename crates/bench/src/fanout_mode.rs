//! Which mode of `expressway fanout` the measurements of a machine favour.

use std::collections::BTreeMap;

use crate::Environment;
use crate::raw::{Described, RawRun};
use crate::report::pairs;
use crate::scenario::Value;
use crate::statistic::{Estimate, ROUNDS_FOR_A_VERDICT};

/// What decides, by metric.
const DECIDES: [(&str, &str); 2] = [("mean_us", "mean latency"), ("cpu_us_per_delivery", "CPU a delivery")];

/// Whether the kernel is to forward, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FanoutVerdict {
    /// The measurements favour forwarding in the kernel.
    pub kernel: bool,
    /// The figures that say so, or what there are none of.
    pub reason: String,
}

/// The kernel beside the process at one point of a scenario, by one metric.
struct Beside<'a> {
    scenario: &'a str,
    subscribers: u64,
    metric: &'a str,
    /// The kernel's figure by the process's within rounds.
    ratio: Estimate,
}

/// What raw files of scenarios of the kind `fanout` say for up to so many subscribers.
///
/// All points count that were measured for no more subscribers than that, and those of the next larger number, whatever the
/// scenario: who knows how the feed comes measures that pattern only. The kernel is favoured if it is shown better (the
/// interval of the ratio excludes 1) by latency or CPU at one of them, and worse by neither at any.
pub fn fanout_verdict(raw: &RawRun, subscribers: u64) -> FanoutVerdict {
    let of = |kernel, reason| FanoutVerdict { kernel, reason };
    if let Some(difference) = raw.environments.iter().find_map(Environment::difference) {
        return of(false, format!("what was measured is of {difference}"));
    }
    let scenarios = raw.scenarios.iter().filter(|scenario| scenario.kind == "fanout");
    let mut measured: Vec<Beside<'_>> = scenarios.flat_map(|scenario| beside(scenario, raw)).collect();
    let numbers = || measured.iter().map(|one| one.subscribers);
    let Some(up_to) = numbers().filter(|number| *number >= subscribers).min() else {
        return of(
            false,
            numbers().max().map_or_else(
                || format!("both modes were not measured beside each other in {ROUNDS_FOR_A_VERDICT} rounds"),
                |most| format!("it was measured for up to {most} subscribers only"),
            ),
        );
    };
    measured.retain(|one| one.subscribers <= up_to);
    let shown = |is: fn(&Estimate) -> bool| {
        measured.iter().find(|one| is(&one.ratio)).map(|one| {
            let Beside { scenario, subscribers, metric, ratio } = one;
            let plural = if *subscribers == 1 { "" } else { "s" };
            format!(
                "the kernel takes {:.2} ({:.2} to {:.2}) of the process's {metric} at {subscribers} \
                 subscriber{plural} ({scenario})",
                ratio.mid, ratio.low, ratio.high
            )
        })
    };
    match (shown(|ratio| ratio.low > 1.0), shown(|ratio| ratio.high < 1.0)) {
        (Some(worse), _) => of(false, worse),
        (None, Some(better)) => of(true, better),
        (None, None) => of(false, format!("no difference was shown for up to {up_to} subscribers")),
    }
}

/// Both sides at the points of a scenario where each has enough rounds.
fn beside<'a>(scenario: &'a Described, raw: &'a RawRun) -> Vec<Beside<'a>> {
    let name = |forwarder: &str| {
        let is = |value: &Value| matches!(value, Value::Text(text) if text == forwarder);
        let found = scenario.contestants.iter().find(|one| one.parameters.get("forwarder").is_some_and(is));
        found.map(|one| one.name.as_str())
    };
    let (Some(kernel), Some(user)) = (name("kernel"), name("user")) else { return Vec::new() };
    let mut all = Vec::new();
    for (key, metric) in DECIDES {
        for (point, pairs) in pairs(scenario, raw, key, user) {
            let pair = pairs.into_iter().find(|pair| pair.name == kernel);
            let pair = pair.filter(|pair| pair.ratio.count >= ROUNDS_FOR_A_VERDICT);
            if let (Some(pair), Some(subscribers)) = (pair, count(point, &scenario.settings)) {
                all.push(Beside { scenario: &scenario.about.name, subscribers, metric, ratio: pair.ratio });
            }
        }
    }
    all
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
    use crate::raw::Run;
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
        assert!(!fanout_verdict(&other, 1).kernel);
    }
}
