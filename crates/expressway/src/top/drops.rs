//! What a process dropped, by layer and reason, as its metrics page tells: `drops_total`, of the one list of reasons.

use expressway_observe::drops::DropReason;
use serde::Serialize;

use super::counters::{Series, View};
use super::short;

/// Reasons that are shown to people: those that come fastest.
const SHOWN: usize = 12;

/// Drops for one reason.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct ProcessDrop {
    pub(super) layer: String,
    pub(super) reason: String,
    /// Since the process started.
    pub(super) count: f64,
    /// Over the last interval.
    pub(super) per_second: f64,
}

/// Those of a page that have happened, the fastest first.
pub(super) fn of(view: &View) -> Vec<ProcessDrop> {
    let mut drops: Vec<ProcessDrop> = view
        .series()
        .filter(|series| series.name == "drops_total" && series.value > 0.0)
        .map(|series| ProcessDrop {
            layer: series.label("layer").unwrap_or_default(),
            reason: series.label("reason").unwrap_or_default(),
            count: series.value,
            per_second: series.rate.filter(|rate| rate.is_finite()).unwrap_or_default(),
        })
        .collect();
    drops.sort_by(|one, other| {
        let key = |drop: &ProcessDrop| (drop.per_second, drop.count);
        let ((rate, count), (other_rate, other_count)) = (key(one), key(other));
        other_rate.total_cmp(&rate).then(other_count.total_cmp(&count))
    });
    drops
}

/// Whether a series counts drops, of whichever layer: then it is one of those that `drops_total` sums up.
pub(super) fn counts(series: &Series<'_>) -> bool {
    let is_labelled = |key: &str, value: &str| series.label(key).as_deref() == Some(value);
    let name = series.name.strip_suffix("_total");
    name.is_some_and(|name| DropReason::of_series(name, is_labelled).is_some())
}

/// For people.
pub(super) fn lines(drops: &[ProcessDrop]) -> Vec<String> {
    let mut lines: Vec<String> = drops
        .iter()
        .take(SHOWN)
        .map(|drop| {
            let ProcessDrop { layer, reason, count, per_second } = drop;
            format!("drops {layer}/{reason}  {}/s  {} in all", short(*per_second), short(*count))
        })
        .collect();
    if drops.len() > SHOWN {
        lines.push(format!("drops for {} other reasons", drops.len() - SHOWN));
    }
    lines
}
