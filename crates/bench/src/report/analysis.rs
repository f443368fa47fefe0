//! What the runs of a scenario show: medians, ratios within rounds, leaders, and the comparison with published
//! figures.

use std::collections::BTreeMap;

use crate::kind::Better;
use crate::raw::{Described, Measured, RawRun, Run};
use crate::scenario::{Beside, Contestant, Value};
use crate::statistic::{Estimate, ROUNDS_FOR_A_VERDICT, estimate};

/// The results at one point of a scenario's sweep.
pub(crate) struct Point<'a> {
    pub(crate) at: &'a BTreeMap<String, Value>,
    pub(crate) rows: Vec<Row<'a>>,
    pub(crate) leaders: Leaders<'a>,
}

/// The results of one contestant.
pub(crate) struct Row<'a> {
    pub(crate) contestant: &'a Contestant,
    pub(crate) runs: Vec<&'a Run>,
    /// By metric; those that its runs have.
    pub(crate) values: BTreeMap<&'a str, Estimate>,
    /// Of the headline to the base's, within rounds.
    pub(crate) ratio: Option<Estimate>,
}

/// Who leads by the headline.
#[derive(Debug, PartialEq)]
pub(crate) enum Leaders<'a> {
    /// This one: the interval of its ratio to each other excludes 1.
    One(&'a Contestant),
    /// These cannot be told apart, best median first; whoever is not named is behind them.
    Together(Vec<&'a Contestant>),
    /// There are too few rounds to say.
    TooFewRounds,
    /// There is nobody to compare with, or nothing to decide by.
    Alone,
}

/// How a published figure and ours stand to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judgement {
    /// Our interval meets the published range.
    Agrees,
    /// The same direction, less of it.
    Weaker,
    /// The same direction, more of it.
    Stronger,
    /// Our interval includes no difference.
    NotShown,
    /// The opposite direction.
    Contradicted,
    /// Too few rounds for an interval.
    TooFewRounds,
    /// Absolute figures of other hardware: nothing to judge.
    Context,
}

/// A published figure with ours.
pub(crate) struct Compared<'a> {
    pub(crate) beside: &'a Beside,
    pub(crate) at: &'a BTreeMap<String, Value>,
    pub(crate) ours: Estimate,
    pub(crate) unit: &'a str,
    pub(crate) judgement: Judgement,
}

/// All points of a scenario with results, in the order of the runs.
pub(crate) fn points<'a>(scenario: &'a Described, raw: &'a RawRun) -> Vec<Point<'a>> {
    let runs: Vec<&Run> = raw.runs.iter().filter(|run| run.scenario == scenario.about.name).collect();
    let mut ats: Vec<&BTreeMap<String, Value>> = Vec::new();
    for run in &runs {
        if !ats.contains(&&run.point) {
            ats.push(&run.point);
        }
    }
    ats.into_iter()
        .map(|at| point(scenario, at, runs.iter().filter(|run| run.point == *at).copied()))
        .collect()
}

fn point<'a>(
    scenario: &'a Described,
    at: &'a BTreeMap<String, Value>,
    runs: impl Iterator<Item = &'a Run>,
) -> Point<'a> {
    let runs: Vec<&Run> = runs.collect();
    let of =
        |name: &str| -> Vec<&'a Run> { runs.iter().filter(|run| run.contestant == name).copied().collect() };
    let base = scenario.about.base.as_deref().map(of).unwrap_or_default();
    let row = |contestant: &'a Contestant| {
        let runs = of(&contestant.name);
        let values = scenario.metrics.iter().filter_map(|metric| {
            let values: Vec<f64> =
                runs.iter().filter_map(|run| run.values.get(&metric.key).copied()).collect();
            (!values.is_empty()).then(|| (metric.key.as_str(), estimate(&values)))
        });
        let ratios = ratios(&runs, &base, &scenario.about.headline);
        let ratio = (!ratios.is_empty()).then(|| estimate(&ratios));
        Row { contestant, values: values.collect(), ratio, runs }
    };
    let rows: Vec<Row<'a>> =
        scenario.contestants.iter().map(row).filter(|row| !row.runs.is_empty()).collect();
    let leaders = leaders(&rows, scenario.metric(&scenario.about.headline));
    Point { at, rows, leaders }
}

/// A metric of `over` by that of `under` in the same round: runs of a round follow each other at once, so that a machine
/// whose speed changes from minute to minute changes both sides of a ratio.
pub(crate) fn ratios(over: &[&Run], under: &[&Run], metric: &str) -> Vec<f64> {
    let ratio = |run: &&Run| {
        let other = under.iter().find(|other| other.round == run.round)?;
        let ratio = run.values.get(metric)? / other.values.get(metric)?;
        ratio.is_finite().then_some(ratio)
    };
    over.iter().filter_map(ratio).collect()
}

fn leaders<'a>(rows: &[Row<'a>], headline: Option<&Measured>) -> Leaders<'a> {
    let Some(headline) = headline.filter(|metric| metric.better != Better::Neither && rows.len() > 1) else {
        return Leaders::Alone;
    };
    let mut ranked: Vec<(&Row<'a>, f64)> =
        rows.iter().filter_map(|row| Some((row, row.values.get(headline.key.as_str())?.mid))).collect();
    ranked.sort_by(|one, other| match headline.better {
        Better::Higher => other.1.total_cmp(&one.1),
        _ => one.1.total_cmp(&other.1),
    });
    let Some(((best, _), others)) = ranked.split_first() else { return Leaders::Alone };
    let mut together = vec![best.contestant];
    for (other, _) in others {
        let ratios = ratios(&best.runs, &other.runs, &headline.key);
        if ratios.len() < ROUNDS_FOR_A_VERDICT {
            return Leaders::TooFewRounds;
        }
        if estimate(&ratios).includes(1.0) {
            together.push(other.contestant);
        }
    }
    if together.len() == 1 { Leaders::One(best.contestant) } else { Leaders::Together(together) }
}

impl<'a> Leaders<'a> {
    /// Those that lead; none where that cannot be said.
    pub(crate) fn all(&self) -> &[&'a Contestant] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Together(all) => all,
            Self::TooFewRounds | Self::Alone => &[],
        }
    }

    /// Whether all of them are ours.
    pub(crate) fn only_ours(&self) -> bool {
        !self.all().is_empty() && self.all().iter().all(|contestant| contestant.side.is_ours())
    }

    /// Whether one of them is ours.
    pub(crate) fn any_ours(&self) -> bool {
        self.all().iter().any(|contestant| contestant.side.is_ours())
    }
}

/// The published figures of a scenario beside ours, at each point that they are about.
pub(crate) fn compared<'a>(scenario: &'a Described, points: &[Point<'a>]) -> Vec<Compared<'a>> {
    let mut all = Vec::new();
    for beside in &scenario.beside {
        for point in points
            .iter()
            .filter(|point| beside.at.iter().all(|(key, value)| point.at.get(key) == Some(value)))
        {
            all.extend(compare(scenario, beside, point));
        }
    }
    all
}

fn compare<'a>(scenario: &'a Described, beside: &'a Beside, point: &Point<'a>) -> Option<Compared<'a>> {
    let runs = |name: &str| point.rows.iter().find(|row| row.contestant.name == name).map(|row| &row.runs);
    let metric = scenario.metric(&beside.metric)?;
    let ours = match &beside.to {
        Some(to) => ratios(runs(&beside.contestant)?, runs(to)?, &beside.metric),
        None => runs(&beside.contestant)?
            .iter()
            .filter_map(|run| run.values.get(&beside.metric).copied())
            .collect(),
    };
    if ours.is_empty() {
        return None;
    }
    let ours = estimate(&ours);
    let judgement = match beside.figure.is_ratio() {
        true if ours.count < ROUNDS_FOR_A_VERDICT => Judgement::TooFewRounds,
        true => judge(&ours, (beside.figure.low, beside.figure.high)),
        false => Judgement::Context,
    };
    Some(Compared { beside, at: point.at, ours, unit: &metric.unit, judgement })
}

fn judge(ours: &Estimate, (low, high): (f64, f64)) -> Judgement {
    if ours.low <= high && ours.high >= low {
        return Judgement::Agrees;
    }
    if ours.includes(1.0) {
        return Judgement::NotShown;
    }
    let published_below = high < 1.0;
    let ours_below = ours.high < 1.0;
    if published_below != ours_below {
        return Judgement::Contradicted;
    }
    let further = if ours_below { ours.high < low } else { ours.low > high };
    if further { Judgement::Stronger } else { Judgement::Weaker }
}

impl Judgement {
    /// In words.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Agrees => "agrees",
            Self::Weaker => "same direction, weaker here",
            Self::Stronger => "same direction, stronger here",
            Self::NotShown => "no difference shown here",
            Self::Contradicted => "contradicted here",
            Self::TooFewRounds => "too few rounds to say",
            Self::Context => "other hardware: context only",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{described, raw};
    use super::*;

    #[test]
    fn ratios_are_taken_within_a_round_and_the_leader_named() {
        // The machine becomes four times slower after the first rounds; b is always twice as good, c ties with b.
        let rounds: Vec<[f64; 3]> = (0..6)
            .map(|round| if round < 2 { [1.0, 2.0, 2.1] } else { [0.25, 0.5, 0.45 + 0.02 * round as f64] })
            .collect();
        let raw = raw(&rounds);
        let points = points(&raw.scenarios[0], &raw);
        let ratio = points[0].rows[1].ratio.unwrap();
        assert_eq!((ratio.low, ratio.mid, ratio.high), (2.0, 2.0, 2.0));
        let names: Vec<&str> = points[0].leaders.all().iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["c", "b"]);
        assert!(points[0].leaders.any_ours() && !points[0].leaders.only_ours());
    }

    #[test]
    fn a_leader_needs_rounds() {
        let clear = |rounds| raw(&vec![[1.0, 2.0, 3.0]; rounds]);
        let few = clear(ROUNDS_FOR_A_VERDICT - 1);
        assert_eq!(points(&few.scenarios[0], &few)[0].leaders, Leaders::TooFewRounds);
        let enough = clear(ROUNDS_FOR_A_VERDICT);
        let points = points(&enough.scenarios[0], &enough);
        assert!(matches!(points[0].leaders, Leaders::One(one) if one.name == "c"), "{:?}", points[0].leaders);
    }

    #[test]
    fn the_least_leads_where_less_is_better() {
        let mut raw = raw(&[[1.0, 2.0, 3.0]; 6]);
        raw.scenarios[0].metrics[0].better = Better::Lower;
        let points = points(&raw.scenarios[0], &raw);
        assert!(matches!(points[0].leaders, Leaders::One(one) if one.name == "a"));
    }

    #[test]
    fn published_ratios_are_judged_by_interval_and_direction() {
        let ours = |low, high| Estimate { low, mid: low, high, count: 6 };
        let half = (0.5, 0.5);
        assert_eq!(judge(&ours(0.4, 0.6), half), Judgement::Agrees);
        assert_eq!(judge(&ours(0.7, 0.9), half), Judgement::Weaker);
        assert_eq!(judge(&ours(0.2, 0.4), half), Judgement::Stronger);
        assert_eq!(judge(&ours(0.9, 1.1), half), Judgement::NotShown);
        assert_eq!(judge(&ours(1.1, 1.3), half), Judgement::Contradicted);
        assert_eq!(judge(&ours(1.1, 1.2), (1.29, 1.29)), Judgement::Weaker);
        assert_eq!(judge(&ours(1.4, 1.5), (1.29, 1.29)), Judgement::Stronger);
        assert_eq!(judge(&ours(0.4, 0.5), (1.29, 1.29)), Judgement::Contradicted);
    }

    #[test]
    fn a_published_ratio_stands_beside_ours_in_its_direction() {
        let raw = raw(&[[1.0, 2.0, 3.0]; 6]);
        let scenario = described();
        let points = points(&raw.scenarios[0], &raw);
        let compared = compared(&scenario, &points);
        assert_eq!(compared.len(), 1);
        assert_eq!((compared[0].ours.mid, compared[0].judgement), (0.5, Judgement::Agrees));
        let few = super::super::fixture::raw(&[[1.0, 2.0, 3.0]; 5]);
        let compared = super::compared(&scenario, &super::points(&few.scenarios[0], &few));
        assert_eq!(compared[0].judgement, Judgement::TooFewRounds);
    }
}
