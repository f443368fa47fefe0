//! One picture of all ratios with their intervals: what a report opens with.

use std::fmt::Write as _;

use super::analysis::{self, Point};
use super::plot::escape;
use super::standing::{Ratio, Standing, State, counted, standings};
use crate::raw::{Described, RawRun};

const STYLE: &str = include_str!("style.css");

const WIDTH: f64 = 1000.0;
/// Left and right of the scale: labels, and who was compared.
const LEFT: f64 = 330.0;
const RIGHT: f64 = 640.0;
const ROW: f64 = 18.0;
const HEAD: f64 = 30.0;

/// Where the scale may have a line.
const TICKS: [f64; 13] = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0];

/// The picture as a file of its own, for a page that cannot contain it; `None` if there is nothing to compare.
pub fn picture(raw: &RawRun) -> Option<String> {
    let scenarios: Vec<(&Described, Vec<Point<'_>>)> =
        raw.scenarios.iter().map(|scenario| (scenario, analysis::points(scenario, raw))).collect();
    let svg = draw(&standings(&scenarios), false)?;
    // A background of its own: it may be shown where the page's is the other one.
    let style = format!("<style>{STYLE}svg{{background:var(--back)}}</style>");
    let (head, rest) = svg.split_once('>')?;
    Some(format!("{head} xmlns=\"http://www.w3.org/2000/svg\">{style}{rest}\n"))
}

/// The picture of these; with links to the sections of a page, or without.
pub(crate) fn draw(standings: &[Standing<'_>], is_linked: bool) -> Option<String> {
    let compared = || standings.iter().filter_map(|one| one.ratio.as_ref());
    let low = compared().map(|ratio| ratio.value.low).fold(1.0, f64::min);
    let high = compared().map(|ratio| ratio.value.high).fold(1.0, f64::max);
    compared().next()?;
    // Whole steps of the scale, so that nothing touches its ends.
    let first = TICKS.iter().rev().find(|tick| **tick < low).copied().unwrap_or(TICKS[0]);
    let last = TICKS.iter().find(|tick| **tick > high).copied().unwrap_or(TICKS[TICKS.len() - 1]);
    let scale = Scale { first, last };
    let groups = State::ALL
        .map(|state| (state, standings.iter().filter(move |one| one.state == state && one.ratio.is_some())));
    let mut body = String::new();
    let mut y = 26.0;
    for (state, group) in groups {
        let mut group = group.peekable();
        if group.peek().is_none() {
            continue;
        }
        let _ =
            write!(body, "<text x=\"8\" y=\"{:.1}\" font-weight=\"600\">{}</text>", y + 16.0, state.words());
        y += HEAD;
        for one in group {
            row(&mut body, one, &scale, y, is_linked);
            y += ROW;
        }
    }
    let height = y + 26.0;
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {height:.0}\" class=\"picture\" role=\"img\"><title>Ratios of ours to the others. {}</title>",
        escape(&counted(standings))
    );
    for tick in TICKS.iter().filter(|tick| (first..=last).contains(*tick)) {
        let (x, class) = (scale.x(*tick), if *tick == 1.0 { "whisker" } else { "grid" });
        let _ = write!(
            svg,
            "<path class=\"{class}\" d=\"M{x:.1} 18V{:.1}\"/><text class=\"axis\" x=\"{x:.1}\" y=\"12\" text-anchor=\"middle\">{tick}</text>\
             <text class=\"axis\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{tick}</text>",
            height - 20.0,
            height - 6.0,
        );
    }
    svg.push_str(&body);
    svg.push_str("</svg>");
    Some(svg)
}

fn row(svg: &mut String, one: &Standing<'_>, scale: &Scale, top: f64, is_linked: bool) {
    let Some(Ratio { ours, other, value }) = &one.ratio else { return };
    let colour = match one.state {
        State::Behind => 8,
        State::Ahead => 7,
        State::Level | State::Undecided => 0,
    };
    let middle = top + ROW / 2.0;
    let label = format!(
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
        LEFT - 10.0,
        middle + 4.0,
        escape(&one.label)
    );
    let _ = match is_linked {
        true => write!(svg, "<a href=\"#{}\">{label}</a>", escape(one.scenario)),
        false => write!(svg, "{label}"),
    };
    let [low, mid, high] = [value.low, value.mid, value.high].map(|ratio| scale.x(ratio));
    let _ = write!(
        svg,
        "<path class=\"line s{colour}\" d=\"M{low:.1} {middle:.1}H{high:.1}\"/>\
         <circle class=\"c{colour}\" cx=\"{mid:.1}\" cy=\"{middle:.1}\" r=\"4\"/>\
         <text x=\"{:.1}\" y=\"{:.1}\">{:.2}  {} / {}</text>",
        RIGHT + 10.0,
        middle + 4.0,
        value.mid,
        escape(ours),
        escape(other),
    );
}

/// A logarithmic scale: twice as much and half as much are as far from 1.
struct Scale {
    first: f64,
    last: f64,
}

impl Scale {
    fn x(&self, ratio: f64) -> f64 {
        let share = (ratio / self.first).ln() / (self.last / self.first).ln();
        LEFT + share.clamp(0.0, 1.0) * (RIGHT - LEFT)
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture;
    use super::*;

    fn drawn(rounds: &[[f64; 3]], is_linked: bool) -> Option<String> {
        let raw = fixture::raw(rounds);
        let scenarios: Vec<_> =
            raw.scenarios.iter().map(|scenario| (scenario, analysis::points(scenario, &raw))).collect();
        draw(&standings(&scenarios), is_linked)
    }

    #[test]
    fn a_ratio_is_where_the_scale_says() {
        // Ours is half: the scale goes from 0.2 to 2, and 0.5 is at log(2.5)/log(10) of it.
        let svg = drawn(&[[1.0, 2.0, 4.0]; 6], true).unwrap();
        assert!(svg.contains("<circle class=\"c7\" cx=\"453.4\""), "{svg}");
        assert!(svg.contains(">0.50  c / b</text>") && svg.contains("<a href=\"#trial\">"), "{svg}");
        assert!(svg.contains(">Ours leads</text>") && !svg.contains(">Undecided"), "{svg}");
        assert!(svg.contains("<path class=\"whisker\" d=\"M546.7 18"), "1 has a line of its own: {svg}");
        let svg = drawn(&[[4.0, 2.0, 1.0]; 6], false).unwrap();
        assert!(
            svg.contains("<circle class=\"c8\"") && svg.contains(">4.00  c / a<") && !svg.contains("<a "),
            "{svg}"
        );
    }

    #[test]
    fn whatever_the_ratio_it_is_within_the_picture() {
        for ours in [1e-9, 1e9] {
            let svg = drawn(&[[1.0, 2.0, ours]; 6], false).unwrap();
            let x: f64 = svg.split("cx=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap();
            assert!((LEFT..=RIGHT).contains(&x), "{x}");
        }
        assert_eq!(drawn(&[[0.0, 0.0, 0.0]; 6], false), None);
    }

    #[test]
    fn the_file_is_whole_and_follows_the_scheme() {
        let file = picture(&fixture::raw(&[[1.0, 2.0, 4.0]; 6])).unwrap();
        assert!(file.starts_with("<svg viewBox") && file.ends_with("</svg>\n"));
        assert!(
            file.contains("xmlns=\"http://www.w3.org/2000/svg\"")
                && file.contains("prefers-color-scheme: dark")
        );
        assert_eq!(picture(&RawRun::default()), None);
    }
}
