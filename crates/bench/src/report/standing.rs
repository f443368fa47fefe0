//! How ours stands to the others at each point of all scenarios, by one ratio each.

use super::analysis::{Leaders, Point, Row, ratios};
use super::words;
use crate::kind::Better;
use crate::raw::{Described, Measured};
use crate::statistic::{Estimate, estimate};

/// What "ours" and the ratio mean, for readers of a report.
pub(crate) const EXPLAINED: &str = "\"Ours\" means XDP or AF_XDP: our own gateway on kernel sockets counts as the kernel path. \
    Where packet I/O is not what is compared, as with the fan-out, it means our program. A ratio is the best of ours by the best of \
    the others, of CPU, time, memory or loss, and the inverse for rates: below 1, ours is ahead.";

/// Who leads at a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// A peer or the kernel path.
    Behind,
    /// Ours and others cannot be told apart.
    Level,
    /// Ours.
    Ahead,
    /// There are too few rounds to say.
    Undecided,
}

impl State {
    /// Those where others lead come first.
    pub(crate) const ALL: [Self; 4] = [Self::Behind, Self::Level, Self::Ahead, Self::Undecided];

    /// In words.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Behind => "A peer or the kernel path leads",
            Self::Level => "No clear winner between ours and the others",
            Self::Ahead => "Ours leads",
            Self::Undecided => "Undecided: too few rounds",
        }
    }
}

/// A point, and what there is to say of it.
pub(crate) struct Standing<'a> {
    pub(crate) state: State,
    pub(crate) scenario: &'a str,
    /// Scenario and point.
    pub(crate) label: String,
    /// Who leads, or cannot be told apart.
    pub(crate) leaders: String,
    /// Best of ours by best of the others, below 1 where ours is ahead; `None` if one of them has no figure.
    pub(crate) ratio: Option<Ratio<'a>>,
}

/// Two contestants compared.
pub(crate) struct Ratio<'a> {
    pub(crate) ours: &'a str,
    pub(crate) other: &'a str,
    pub(crate) value: Estimate,
}

/// All points where there is something to decide, others' leads first, in the order of the scenarios.
pub(crate) fn standings<'a>(scenarios: &[(&'a Described, Vec<Point<'a>>)]) -> Vec<Standing<'a>> {
    let mut all: Vec<Standing<'a>> = scenarios
        .iter()
        .flat_map(|(scenario, points)| points.iter().filter_map(|point| standing(scenario, point)))
        .collect();
    all.sort_by_key(|one| State::ALL.iter().position(|state| *state == one.state));
    all
}

fn standing<'a>(scenario: &'a Described, point: &Point<'a>) -> Option<Standing<'a>> {
    let state = match &point.leaders {
        Leaders::Alone => return None,
        Leaders::TooFewRounds => State::Undecided,
        leaders if leaders.only_ours() => State::Ahead,
        leaders if leaders.any_ours() => State::Level,
        _ => State::Behind,
    };
    let at = words::point(point.at);
    let name = scenario.about.name.as_str();
    let names: Vec<&str> = point.leaders.all().iter().map(|one| one.name.as_str()).collect();
    Some(Standing {
        state,
        scenario: name,
        label: if at.is_empty() { name.to_owned() } else { format!("{name}, {at}") },
        leaders: names.join(", "),
        ratio: scenario.metric(&scenario.about.headline).and_then(|metric| ratio(metric, point)),
    })
}

fn ratio<'a>(metric: &Measured, point: &Point<'a>) -> Option<Ratio<'a>> {
    let best = |is_ours: bool| -> Option<&Row<'a>> {
        let of = point.rows.iter().filter(|row| row.contestant.side.is_ours() == is_ours);
        let value = |row: &&Row<'a>| row.values.get(metric.key.as_str()).map(|value| value.mid);
        let known = of.filter(|row| value(row).is_some_and(f64::is_finite));
        known.min_by(|one, other| {
            let (one, other) = (value(one), value(other));
            let order = one.unwrap_or(f64::NAN).total_cmp(&other.unwrap_or(f64::NAN));
            if metric.better == Better::Higher { order.reverse() } else { order }
        })
    };
    let (ours, other) = (best(true)?, best(false)?);
    let ratios = match metric.better {
        Better::Higher => ratios(&other.runs, &ours.runs, &metric.key),
        _ => ratios(&ours.runs, &other.runs, &metric.key),
    };
    // Nothing lost by both, for instance, has no ratio.
    let value = (!ratios.is_empty()).then(|| estimate(&ratios)).filter(|value| value.low > 0.0)?;
    Some(Ratio { ours: &ours.contestant.name, other: &other.contestant.name, value })
}

/// How many points are in each state, such as `A peer or the kernel path leads: 2. Ours leads: 7.`
pub(crate) fn counted(standings: &[Standing<'_>]) -> String {
    let count = |state: State| standings.iter().filter(|one| one.state == state).count();
    let told = State::ALL.into_iter().filter(|state| count(*state) > 0);
    told.map(|state| format!("{}: {}.", state.words(), count(state))).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::super::{analysis, fixture};
    use super::*;
    use crate::raw::RawRun;
    use crate::scenario::Side;

    fn with<T>(raw: &RawRun, check: impl FnOnce(&[Standing<'_>]) -> T) -> T {
        let scenarios: Vec<_> =
            raw.scenarios.iter().map(|scenario| (scenario, analysis::points(scenario, raw))).collect();
        check(&standings(&scenarios))
    }

    #[test]
    fn the_best_of_ours_is_compared_with_the_best_of_the_others() {
        // More is better: a, a peer, has 3, b, the kernel path, 2, and c, ours, 1.
        let mut raw = fixture::raw(&[[3.0, 2.0, 1.0]; 6]);
        with(&raw, |all| {
            let [one] = all else { panic!("one point") };
            assert_eq!(
                (one.state, one.label.as_str(), one.leaders.as_str()),
                (State::Behind, "trial, body 1 KiB", "a")
            );
            let ratio = one.ratio.as_ref().unwrap();
            assert_eq!((ratio.ours, ratio.other, ratio.value.mid), ("c", "a", 3.0));
            assert_eq!(counted(all), "A peer or the kernel path leads: 1.");
        });
        raw.scenarios[0].metrics[0].better = Better::Lower;
        with(&raw, |all| {
            assert_eq!(all[0].state, State::Ahead);
            let ratio = all[0].ratio.as_ref().unwrap();
            assert_eq!((ratio.ours, ratio.other, ratio.value.mid), ("c", "b", 0.5));
        });
    }

    #[test]
    fn without_ours_without_a_figure_or_with_few_rounds_there_is_less_to_say() {
        let mut raw = fixture::raw(&[[3.0, 2.0, 1.0]; 6]);
        raw.scenarios[0].contestants[2].side = Side::Peer;
        with(&raw, |all| assert!(all[0].state == State::Behind && all[0].ratio.is_none()));
        let nothing = fixture::raw(&[[0.0, 0.0, 0.0]; 6]);
        with(&nothing, |all| assert!(all[0].ratio.is_none(), "0 by 0"));
        let few = fixture::raw(&[[1.0, 2.0, 3.0]; 2]);
        with(&few, |all| assert_eq!((all[0].state, all[0].leaders.as_str()), (State::Undecided, "")));
    }

    #[test]
    fn where_others_lead_comes_first() {
        let mut raw = fixture::raw(&[[1.0, 2.0, 3.0]; 6]);
        let mut behind = fixture::raw(&[[3.0, 2.0, 1.0]; 6]);
        behind.scenarios[0].about.name = "later".into();
        behind.runs.iter_mut().for_each(|run| run.scenario = "later".into());
        raw.scenarios.append(&mut behind.scenarios);
        raw.runs.append(&mut behind.runs);
        with(&raw, |all| {
            assert_eq!(all.iter().map(|one| one.scenario).collect::<Vec<_>>(), ["later", "trial"]);
            assert_eq!(counted(all), "A peer or the kernel path leads: 1. Ours leads: 1.");
        });
    }
}
