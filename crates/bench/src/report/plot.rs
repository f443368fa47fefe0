//! Plots as SVG: bars with intervals for a point, curves over a parameter. Colours are classes of the page's style, so
//! they follow the reader's dark or light scheme.

use std::fmt::Write as _;

use super::analysis::Point;
use super::words;
use crate::raw::{Described, Measured};
use crate::statistic::Estimate;

/// Colours that the style has.
pub(crate) const COLOURS: usize = 10;

const WIDTH: f64 = 720.0;
/// Left of the bars: names.
const NAMES: f64 = 200.0;
/// Right of the bars: figures.
const FIGURES: f64 = 130.0;
const ROW: f64 = 26.0;

/// The headline of each contestant at a point, as bars from 0 with their intervals.
pub(crate) fn bars(scenario: &Described, point: &Point<'_>) -> Option<String> {
    let metric =
        scenario.metric(&scenario.about.headline).filter(|metric| words::absolute(scenario, metric))?;
    let rows: Vec<(usize, &str, &Estimate)> = point
        .rows
        .iter()
        .filter_map(|row| {
            let estimate = row.values.get(metric.key.as_str()).filter(|estimate| estimate.mid.is_finite())?;
            Some((colour(scenario, &row.contestant.name), row.contestant.name.as_str(), estimate))
        })
        .collect();
    let most = rows.iter().map(|(_, _, estimate)| estimate.high).fold(0.0, f64::max);
    if rows.len() < 2 || most <= 0.0 {
        return None;
    }
    let height = ROW * rows.len() as f64 + 30.0;
    let x = |value: f64| NAMES + value / most * (WIDTH - NAMES - FIGURES);
    let mut svg = open(height, &format!("{}: {}", scenario.about.name, words::label(metric)));
    for (index, (colour, name, estimate)) in rows.iter().enumerate() {
        let top = ROW * index as f64 + 4.0;
        let middle = top + ROW / 2.0 - 2.0;
        let _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
             <rect class=\"c{colour}\" x=\"{NAMES}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\"/>\
             <path class=\"whisker\" d=\"M{:.1} {middle:.1}H{:.1}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\">{:.*}</text>",
            NAMES - 8.0,
            middle + 4.0,
            escape(name),
            x(estimate.mid) - NAMES,
            ROW - 6.0,
            x(estimate.low),
            x(estimate.high),
            x(estimate.high) + 8.0,
            middle + 4.0,
            metric.decimals,
            estimate.mid,
        );
    }
    let _ = write!(
        svg,
        "<text class=\"axis\" x=\"{NAMES}\" y=\"{:.1}\">{}</text></svg>",
        height - 8.0,
        escape(&explained(metric))
    );
    Some(svg)
}

/// A panel of curves: the points that differ in the curve's parameter only, by what is the same for them.
pub(crate) fn curves(scenario: &Described, points: &[Point<'_>]) -> Vec<(String, String)> {
    let Some(key) = scenario.about.curve.as_deref() else { return Vec::new() };
    let mut panels: Vec<(String, Vec<&Point<'_>>)> = Vec::new();
    for point in points.iter().filter(|point| point.at.get(key).and_then(|value| value.as_number()).is_some())
    {
        let mut rest = point.at.clone();
        rest.remove(key);
        let rest = words::point(&rest);
        match panels.iter_mut().find(|(known, _)| *known == rest) {
            Some((_, all)) => all.push(point),
            None => panels.push((rest, vec![point])),
        }
    }
    panels.into_iter().filter_map(|(rest, points)| Some((rest, panel(scenario, key, &points)?))).collect()
}

fn panel(scenario: &Described, key: &str, points: &[&Point<'_>]) -> Option<String> {
    let metric =
        scenario.metric(&scenario.about.headline).filter(|metric| words::absolute(scenario, metric))?;
    let series = series(scenario, metric, key, points);
    let all = || series.iter().flat_map(|(_, _, points)| points);
    let most = all().map(|(_, estimate)| estimate.high).fold(0.0, f64::max);
    let (first, last) =
        all().fold((f64::INFINITY, 0.0_f64), |(least, most), (x, _)| (least.min(*x), most.max(*x)));
    if most <= 0.0 || first >= last {
        return None;
    }
    // Wide ranges, such as 1 to 10,000 connections, on a logarithmic axis.
    let logarithmic = first > 0.0 && last / first >= 8.0;
    let scale = |value: f64| if logarithmic { value.ln() } else { value };
    let (left, right, top, bottom) = (70.0, WIDTH - 20.0, 10.0, 260.0);
    let x = |value: f64| left + (scale(value) - scale(first)) / (scale(last) - scale(first)) * (right - left);
    let y = |value: f64| bottom - value / most * (bottom - top);
    let legend = 18.0 * series.len() as f64;
    let mut svg = open(bottom + 50.0 + legend, &format!("{} by {key}", scenario.about.name));
    for step in 0..=4 {
        let value = most * f64::from(step) / 4.0;
        let _ = write!(
            svg,
            "<path class=\"grid\" d=\"M{left} {0:.1}H{right}\"/><text class=\"axis\" x=\"{1:.1}\" y=\"{2:.1}\" \
             text-anchor=\"end\">{3:.4$}</text>",
            y(value),
            left - 6.0,
            y(value) + 4.0,
            value,
            metric.decimals.min(2),
        );
    }
    let mut ticks: Vec<f64> = all().map(|(x, _)| *x).collect();
    ticks.sort_by(f64::total_cmp);
    ticks.dedup();
    for tick in ticks {
        let _ = write!(
            svg,
            "<text class=\"axis\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{tick}</text>",
            x(tick),
            bottom + 16.0
        );
    }
    for (index, (colour, name, points)) in series.iter().enumerate() {
        let line: Vec<String> =
            points.iter().map(|(at, e)| format!("{:.1},{:.1}", x(*at), y(e.mid))).collect();
        let _ = write!(svg, "<polyline class=\"line s{colour}\" points=\"{}\"/>", line.join(" "));
        for (at, estimate) in points {
            let _ = write!(
                svg,
                "<path class=\"interval s{colour}\" d=\"M{0:.1} {1:.1}V{2:.1}\"/><circle class=\"c{colour}\" cx=\"{0:.1}\" \
                 cy=\"{3:.1}\" r=\"3.5\"/>",
                x(*at),
                y(estimate.low),
                y(estimate.high),
                y(estimate.mid)
            );
        }
        let row = bottom + 52.0 + 18.0 * index as f64;
        let _ = write!(
            svg,
            "<rect class=\"c{colour}\" x=\"{left}\" y=\"{:.1}\" width=\"12\" height=\"12\"/><text x=\"{:.1}\" y=\"{row:.1}\">{}</text>",
            row - 10.0,
            left + 20.0,
            escape(name)
        );
    }
    let axis = format!("{} by {key}", explained(metric));
    let _ = write!(
        svg,
        "<text class=\"axis\" x=\"{left}\" y=\"{:.1}\">{}</text></svg>",
        bottom + 34.0,
        escape(&axis)
    );
    Some(svg)
}

type Series<'a> = (usize, &'a str, Vec<(f64, Estimate)>);

fn series<'a>(
    scenario: &'a Described,
    metric: &Measured,
    key: &str,
    points: &[&Point<'_>],
) -> Vec<Series<'a>> {
    let of = |name: &str| -> Vec<(f64, Estimate)> {
        let one = |point: &&Point<'_>| {
            let row = point.rows.iter().find(|row| row.contestant.name == name)?;
            let estimate = row.values.get(metric.key.as_str()).filter(|estimate| estimate.mid.is_finite())?;
            Some((point.at.get(key)?.as_number()?, *estimate))
        };
        let mut all: Vec<(f64, Estimate)> = points.iter().filter_map(one).collect();
        all.sort_by(|one, other| one.0.total_cmp(&other.0));
        all
    };
    let named = scenario.contestants.iter().map(|contestant| contestant.name.as_str());
    named
        .map(|name| (colour(scenario, name), name, of(name)))
        .filter(|(_, _, points)| !points.is_empty())
        .collect()
}

/// A contestant has one colour in all plots of its scenario.
fn colour(scenario: &Described, name: &str) -> usize {
    scenario.contestants.iter().position(|contestant| contestant.name == name).unwrap_or(0) % COLOURS
}

fn explained(metric: &Measured) -> String {
    let better = match metric.better {
        crate::kind::Better::Higher => " (more is better)",
        crate::kind::Better::Lower => " (less is better)",
        crate::kind::Better::Neither => "",
    };
    format!("{}{better}", words::label(metric))
}

fn open(height: f64, title: &str) -> String {
    format!("<svg viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\"><title>{}</title>", escape(title))
}

/// Text that stands for itself in HTML and SVG.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::{analysis, fixture};
    use super::*;
    use crate::scenario::Value;

    #[test]
    fn bars_are_as_long_as_their_figures() {
        let raw = fixture::raw(&[[1.0, 2.0, 4.0]; 6]);
        let points = analysis::points(&raw.scenarios[0], &raw);
        let svg = bars(&raw.scenarios[0], &points[0]).unwrap();
        let widths: Vec<&str> =
            svg.split("width=\"").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
        assert_eq!(widths, ["97.5", "195.0", "390.0"]);
        assert!(
            svg.contains("Gbit/CPU-s, Gbit (more is better)") || svg.contains("Gbit/CPU-s (more is better)"),
            "{svg}"
        );
    }

    #[test]
    fn a_curve_goes_through_its_points_in_order() {
        let mut raw = fixture::raw(&[[1.0, 2.0, 4.0]; 6]);
        raw.scenarios[0].about.curve = Some("connections".into());
        let mut runs = Vec::new();
        for (connections, factor) in [(1000, 0.5), (1, 1.0)] {
            runs.extend(raw.runs.iter().cloned().map(|mut run| {
                run.point = BTreeMap::from([("connections".to_owned(), Value::Count(connections))]);
                run.values.values_mut().for_each(|value| *value *= factor);
                run
            }));
        }
        raw.runs = runs;
        let points = analysis::points(&raw.scenarios[0], &raw);
        let panels = curves(&raw.scenarios[0], &points);
        assert_eq!(panels.len(), 1);
        assert!(panels[0].1.contains("points=\"70.0,10.0 700.0,135.0\""), "c falls to half: {}", panels[0].1);
        assert!(curves(&fixture::described(), &points).is_empty(), "no parameter to draw over");
    }
}
