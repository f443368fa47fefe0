//! From a measured run and a site's traffic to cores and cost.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;

use crate::raw::{Described, RawRun};
use crate::report::{Pairs, pairs, point_in_words};
use crate::scenario::Value;

/// The metric that cores are computed from.
const METRIC: &str = "gbit_per_cpu_second";

/// Somebody's traffic and prices.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Traffic {
    /// Gbit/s of bodies to serve.
    pub gbps: f64,
    /// Hours at that rate.
    pub hours: f64,
    /// What a core costs an hour, in any money.
    pub core_cost: f64,
    /// How much of a core may be used, 0 to 1: the rest is headroom that is paid for too.
    pub utilisation: f64,
}

/// What a contestant needs for the traffic.
#[derive(Clone, Debug, Serialize)]
pub struct Need {
    /// The scenario.
    pub scenario: String,
    /// The point.
    pub point: BTreeMap<String, Value>,
    /// Who.
    pub contestant: String,
    /// Cores, not rounded.
    pub cores: f64,
    /// Their interval.
    pub cores_interval: (f64, f64),
    /// What they cost.
    pub cost: f64,
    /// Less than the one compared with; negative is more.
    pub saved_cores: f64,
    /// The interval, by that of the ratio within rounds.
    pub saved_cores_interval: (f64, f64),
    /// The same in money.
    pub saved_cost: f64,
}

/// The needs at each point of each scenario that measures what a gigabit costs, compared with `from`, or with the
/// scenario's base.
///
/// # Errors
/// When no scenario does, or none has `from`.
pub fn calculate(raw: &RawRun, traffic: &Traffic, from: Option<&str>) -> Result<Vec<Need>, String> {
    let mut needs = Vec::new();
    let mut measured = Vec::new();
    for scenario in raw.scenarios.iter().filter(|scenario| scenario.metric(METRIC).is_some()) {
        measured.push(scenario.about.name.as_str());
        let Some(from) = from.or(scenario.about.base.as_deref()) else { continue };
        for (point, contestants) in pairs(scenario, raw, METRIC, from) {
            needs.extend(contestants.iter().map(|pairs| need(scenario, point, traffic, pairs)));
        }
    }
    match (measured.as_slice(), needs.is_empty()) {
        ([], _) => Err(format!("no scenario measures {METRIC}: run `gateway`")),
        (some, true) => Err(format!(
            "nothing to compare with in {}: give one of its contestants with --from",
            some.join(", ")
        )),
        _ => Ok(needs),
    }
}

fn need(scenario: &Described, point: &BTreeMap<String, Value>, traffic: &Traffic, pairs: &Pairs<'_>) -> Need {
    let cores = |gbit_per_cpu_second: f64| traffic.gbps / gbit_per_cpu_second / traffic.utilisation;
    let money = |cores: f64| cores * traffic.hours * traffic.core_cost;
    let of_from = cores(pairs.from.mid);
    // What is saved follows from the ratio of the same rounds, in which the machine's speed cancels out.
    let saved = |ratio: f64| of_from * (1.0 - 1.0 / ratio);
    Need {
        scenario: scenario.about.name.clone(),
        point: point.clone(),
        contestant: pairs.name.to_owned(),
        cores: cores(pairs.own.mid),
        cores_interval: (cores(pairs.own.high), cores(pairs.own.low)),
        cost: money(cores(pairs.own.mid)),
        saved_cores: saved(pairs.ratio.mid),
        saved_cores_interval: (saved(pairs.ratio.low), saved(pairs.ratio.high)),
        saved_cost: money(saved(pairs.ratio.mid)),
    }
}

/// The needs as Markdown, with what they assume.
pub fn needs_as_text(raw: &RawRun, traffic: &Traffic, from: Option<&str>, needs: &[Need]) -> String {
    let Traffic { gbps, hours, core_cost, utilisation } = traffic;
    let mut text = format!(
        "For {gbps} Gbit/s of bodies during {hours} hours, at {core_cost} per core and hour and {:.0} % utilisation:\n",
        utilisation * 100.0
    );
    let mut last = String::new();
    for need in needs {
        let place = format!("{} {}", need.scenario, point_in_words(&need.point));
        if place != last {
            let base = raw
                .scenarios
                .iter()
                .find(|one| one.about.name == need.scenario)
                .and_then(|one| one.about.base.as_deref());
            let _ = writeln!(
                text,
                "\n{}\n\n| | cores | cost | cores saved against {} | cost saved |\n|---|---|---|---|---|",
                place.trim_end(),
                from.or(base).unwrap_or("")
            );
            last = place;
        }
        let ((low, high), (least, most)) = (need.cores_interval, need.saved_cores_interval);
        let _ = writeln!(
            text,
            "| {} | {:.2} ({low:.2} to {high:.2}) | {:.2} | {:.2} ({least:.2} to {most:.2}) | {:.2} |",
            need.contestant, need.cores, need.cost, need.saved_cores, need.saved_cost
        );
    }
    text.push_str(
        "\nThis assumes bodies, clients and packet sizes like those of the run; cores and NICs like this machine's; CPU \
         proportional to traffic on any number of cores; cores paid for by the hour and in fractions; and no other costs. Cores \
         are for the given rate: size for your peak, and give the hours at it.\n",
    );
    if raw.environments.iter().any(|environment| environment.build != "release") {
        text.push_str("The run is of a debug build: these figures mean nothing.\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixture::raw;

    const TRAFFIC: Traffic = Traffic { gbps: 10.0, hours: 100.0, core_cost: 0.05, utilisation: 0.5 };

    #[test]
    fn cores_and_money_follow_from_the_run() {
        let raw = raw(&[[2.0, 4.0, 1.0]; 6]);
        let needs = calculate(&raw, &TRAFFIC, None).unwrap();
        let all: Vec<(&str, f64, f64, f64, f64)> = needs
            .iter()
            .map(|need| (need.contestant.as_str(), need.cores, need.cost, need.saved_cores, need.saved_cost))
            .collect();
        // 10 Gbit/s at 2 Gbit a CPU-second are 5 cores, 10 at half use; 10 × 100 × 0.05 = 50.
        assert_eq!(
            all,
            [("a", 10.0, 50.0, 0.0, 0.0), ("b", 5.0, 25.0, 5.0, 25.0), ("c", 20.0, 100.0, -10.0, -50.0)]
        );
        let text = needs_as_text(&raw, &TRAFFIC, None, &needs);
        assert!(text.contains("cores saved against a") && text.contains("This assumes"), "{text}");
        assert!(text.contains("| b | 5.00 (5.00 to 5.00) | 25.00 | 5.00 (5.00 to 5.00) | 25.00 |"), "{text}");
    }

    #[test]
    fn what_cannot_be_calculated_is_said() {
        let mut raw = raw(&[[2.0, 4.0, 1.0]; 6]);
        assert!(calculate(&raw, &TRAFFIC, Some("z")).unwrap_err().contains("--from"));
        assert!(calculate(&raw, &TRAFFIC, Some("b")).is_ok());
        raw.scenarios[0].metrics.clear();
        assert!(calculate(&raw, &TRAFFIC, None).unwrap_err().contains("run `gateway`"));
    }
}
