//! Latency by percentile as a picture: one SVG file that needs nothing else.

use std::fmt::Write;
use std::path::Path;

use expressway_feed::receive::{Latency, Track};

use super::report;
use crate::fail::Failure;

/// Size of the picture, and what its margins take.
const SIZE: (f64, f64) = (860.0, 480.0);
const LEFT: f64 = 80.0;
const RIGHT: f64 = 30.0;
const TOP: f64 = 60.0;
const BOTTOM: f64 = 60.0;
/// Colours that differ by lightness too, readable on black and white.
const COLOURS: [&str; 4] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7"];

/// Writes the picture.
pub(super) fn write(file: &Path, latency: &Latency) -> Result<(), Failure> {
    std::fs::write(file, draw(&report::tracks(latency)))
        .map_err(|error| Failure::run_time(format!("--plot {}: {error}", file.display())))
}

/// Latency over percentile: both axes logarithmic, the percentile by how few datagrams took longer.
fn draw(tracks: &[(String, &Track)]) -> String {
    let (width, height) = SIZE;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" \
         font-size=\"13\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"24\" font-size=\"16\">Latency by percentile</text>\n"
    );
    let measured: Vec<_> = tracks.iter().filter(|(_, track)| !track.histogram().is_empty()).collect();
    if measured.is_empty() {
        let _ = writeln!(out, "<text x=\"{LEFT}\" y=\"{TOP}\">no measurements</text>\n</svg>");
        return out;
    }
    let values = |pick: fn(&Track) -> u64| measured.iter().map(move |(_, track)| pick(track) as f64);
    let low = values(|track| track.histogram().min().max(1)).fold(f64::MAX, f64::min);
    let high = values(|track| track.histogram().max().max(1)).fold(1.0, f64::max);
    let (bottom, top) = (low.log10().floor(), high.log10().ceil().max(low.log10().floor() + 1.0));
    let counts = measured.iter().map(|(_, track)| track.histogram().len()).max().unwrap_or(1);
    let nines = (counts as f64).log10().ceil().clamp(1.0, 9.0);
    let x = |beyond: f64| LEFT + (-beyond.log10()).clamp(0.0, nines) / nines * (width - LEFT - RIGHT);
    let y = |value: f64| {
        height - BOTTOM - (value.max(1.0).log10() - bottom) / (top - bottom) * (height - TOP - BOTTOM)
    };
    axes(&mut out, (bottom as i32, top as i32), nines as i32, x, y);
    for (index, (name, track)) in measured.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let mut points = String::new();
        for step in track.histogram().iter_quantiles(5) {
            let beyond = (1.0 - step.quantile_iterated_to()).max(0.1f64.powf(nines));
            let value = step.value_iterated_to().min(track.histogram().max());
            let _ = write!(points, "{:.1},{:.1} ", x(beyond), y(value as f64));
        }
        let _ = writeln!(
            out,
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" points=\"{}\"/>",
            points.trim_end()
        );
        let line = TOP + 18.0 * (index as f64 + 1.0);
        let _ = writeln!(
            out,
            "<text x=\"{}\" y=\"{line}\" fill=\"{colour}\">{name} ({})</text>",
            LEFT + 14.0,
            track.histogram().len()
        );
    }
    out += "</svg>\n";
    out
}

/// Lines and labels: decades of nanoseconds, nines of percentiles.
fn axes(
    out: &mut String,
    (bottom, top): (i32, i32),
    nines: i32,
    x: impl Fn(f64) -> f64,
    y: impl Fn(f64) -> f64,
) {
    let (width, height) = SIZE;
    for decade in bottom..=top {
        let at = y(10f64.powi(decade));
        let label = match decade {
            ..3 => format!("{} ns", 10u64.pow(decade.max(0) as u32)),
            3..6 => format!("{} µs", 10u64.pow(decade as u32 - 3)),
            6..9 => format!("{} ms", 10u64.pow(decade as u32 - 6)),
            _ => format!("{} s", 10u64.pow(decade as u32 - 9)),
        };
        let _ = writeln!(
            out,
            "<line x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
            width - RIGHT,
            LEFT - 8.0,
            at + 4.0
        );
    }
    for nine in 0..=nines {
        let at = x(0.1f64.powi(nine));
        let label = match nine {
            0 => "0 %".to_owned(),
            1 => "90 %".to_owned(),
            2 => "99 %".to_owned(),
            more => format!("99.{} %", "9".repeat(more as usize - 2)),
        };
        let _ = writeln!(
            out,
            "<line x1=\"{at:.1}\" y1=\"{TOP}\" x2=\"{at:.1}\" y2=\"{}\" stroke=\"#ddd\"/>\
             <text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{label}</text>",
            height - BOTTOM,
            height - BOTTOM + 20.0
        );
    }
    let _ = writeln!(
        out,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">percentile of datagrams</text>",
        (LEFT + width - RIGHT) / 2.0,
        height - 16.0
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_point_lies_within_the_picture() {
        let mut fast = Track::new();
        let mut slow = Track::new();
        for number in 1..=10_000 {
            fast.record(0, 700 + number % 50);
            slow.record(0, number * number);
        }
        slow.record(0, 59_000_000_000);
        let picture = draw(&[("from xdp stamp".to_owned(), &fast), ("wire".to_owned(), &slow)]);
        assert_eq!(picture.matches("<polyline").count(), 2);
        let mut points = 0;
        for part in picture.split("points=\"").skip(1) {
            for point in part.split('"').next().unwrap().split(' ') {
                let (x, y) = point.split_once(',').unwrap();
                let (x, y): (f64, f64) = (x.parse().unwrap(), y.parse().unwrap());
                assert!(
                    (LEFT..=SIZE.0 - RIGHT).contains(&x) && (TOP..=SIZE.1 - BOTTOM).contains(&y),
                    "{point}"
                );
                points += 1;
            }
        }
        assert!(points > 20);
        assert!(picture.contains("99.99 %") && picture.ends_with("</svg>\n"));
    }

    #[test]
    fn nothing_measured_is_said() {
        let track = Track::new();
        assert!(draw(&[("wire".to_owned(), &track)]).contains("no measurements"));
    }
}
