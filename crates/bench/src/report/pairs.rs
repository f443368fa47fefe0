//! Contestants compared with one of them, point by point.

use std::collections::BTreeMap;

use super::analysis::{points, ratios};
use crate::raw::{Described, RawRun};
use crate::scenario::Value;
use crate::statistic::{Estimate, estimate};

/// A contestant beside another.
pub(crate) struct Pairs<'a> {
    pub(crate) name: &'a str,
    /// Its own figure.
    pub(crate) own: Estimate,
    /// The other's.
    pub(crate) from: Estimate,
    /// Its own by the other's, within rounds.
    pub(crate) ratio: Estimate,
}

/// All contestants of a scenario beside `from` at each point where that one has runs.
pub(crate) fn pairs<'a>(
    scenario: &'a Described,
    raw: &'a RawRun,
    metric: &str,
    from: &str,
) -> Vec<(&'a BTreeMap<String, Value>, Vec<Pairs<'a>>)> {
    let mut all = Vec::new();
    for point in points(scenario, raw) {
        let Some(other) = point.rows.iter().find(|row| row.contestant.name == from) else { continue };
        let Some(other_value) = other.values.get(metric) else { continue };
        let one = |row: &super::analysis::Row<'a>| {
            let ratios = ratios(&row.runs, &other.runs, metric);
            (!ratios.is_empty()).then(|| Pairs {
                name: &row.contestant.name,
                own: row.values[metric],
                from: *other_value,
                ratio: estimate(&ratios),
            })
        };
        all.push((point.at, point.rows.iter().filter_map(one).collect()));
    }
    all
}
