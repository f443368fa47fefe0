//! The counters and gauges of a metrics page (Prometheus text format 0.0.4): what moves, and how fast.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use expressway_settings::admin::Address;
use serde_json::{Value, json};

use super::short;

/// Samples by series: name and labels as they stand.
type Samples = BTreeMap<String, f64>;

/// What every name on the page begins with.
const PREFIX: &str = "expressway_";

/// A series of the page.
pub(super) struct Series<'a> {
    /// Its name, without what all begin with.
    pub(super) name: &'a str,
    labels: &'a str,
    pub(super) value: f64,
    /// A second's growth, of one that only grows.
    pub(super) rate: Option<f64>,
}

impl Series<'_> {
    /// A label's value. In the page `\\`, `"` and line feeds stand behind a `\\`.
    pub(super) fn label(&self, wanted: &str) -> Option<String> {
        let mut rest = self.labels;
        loop {
            let (name, quoted) = rest.split_once("=\"")?;
            let mut value = String::new();
            let mut characters = quoted.char_indices();
            let end = loop {
                match characters.next()? {
                    (end, '"') => break end,
                    (_, '\\') => value.push(match characters.next()?.1 {
                        'n' => '\n',
                        other => other,
                    }),
                    (_, plain) => value.push(plain),
                }
            };
            if name == wanted {
                return Some(value);
            }
            rest = quoted[end + 1..].trim_start_matches(',');
        }
    }
}

/// The newest sample, with the one before.
pub(super) struct View {
    now: Samples,
    before: Samples,
    taken: Instant,
    interval: Duration,
}

fn read(text: &str) -> Result<Samples, String> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|(index, line)| {
            let sample =
                line.rsplit_once(' ').and_then(|(series, value)| Some((series, value.parse().ok()?)));
            let (series, value) = sample.ok_or_else(|| {
                let text: String = line.chars().take(80).collect();
                format!("line {} of /metrics is not a sample: `{text}`", index + 1)
            })?;
            Ok((series.to_owned(), value))
        })
        .collect()
}

/// Whether a series only grows, by its name: a counter, or one of those that make a histogram.
fn is_counter(series: &str) -> bool {
    let grows = ["_total", "_seconds_bucket", "_seconds_sum", "_seconds_count"];
    series.split('{').next().is_some_and(|name| grows.iter().any(|end| name.ends_with(end)))
}

impl View {
    /// The first sample.
    pub(super) fn of(text: &str) -> Result<Self, String> {
        let now = read(text)?;
        Ok(Self { before: now.clone(), now, taken: Instant::now(), interval: Duration::ZERO })
    }

    /// The next one.
    pub(super) fn update(&mut self, text: &str) -> Result<(), String> {
        self.apply(text, self.taken.elapsed())
    }

    /// The one that was taken so long after.
    pub(super) fn apply(&mut self, text: &str, interval: Duration) -> Result<(), String> {
        let now = read(text)?;
        self.interval = interval;
        self.taken = Instant::now();
        self.before = std::mem::replace(&mut self.now, now);
        Ok(())
    }

    /// Every series.
    pub(super) fn series(&self) -> impl Iterator<Item = Series<'_>> {
        self.now.iter().map(|(series, value)| {
            let rate = self.rate(series, *value);
            let bare = series.strip_prefix(PREFIX).unwrap_or(series);
            let (name, labels) = bare.split_once('{').unwrap_or((bare, ""));
            Series { name, labels: labels.strip_suffix('}').unwrap_or(labels), value: *value, rate }
        })
    }

    fn rate(&self, series: &str, value: f64) -> Option<f64> {
        let before = self.before.get(series).copied().unwrap_or_default();
        is_counter(series).then(|| (value - before).max(0.0) / self.interval.as_secs_f64())
    }

    /// For people: a title, then counters that moved, the fastest first, and gauges that are not zero.
    pub(super) fn lines(&self, title: Vec<String>) -> Vec<String> {
        let mut moving: Vec<(&String, f64, f64)> = Vec::new();
        let mut gauges = Vec::new();
        for (series, value) in &self.now {
            match self.rate(series, *value) {
                Some(rate) if rate > 0.0 => moving.push((series, *value, rate)),
                None if *value != 0.0 => gauges.push(format!("{:>10} {:>10}  {series}", short(*value), "")),
                _ => {}
            }
        }
        moving.sort_by(|one, other| other.2.total_cmp(&one.2).then(one.0.cmp(other.0)));
        let mut lines = title;
        lines.push(format!("{} series, {} changing", self.now.len(), moving.len()));
        lines.push(String::new());
        lines.push(format!("{:>10} {:>10}  SERIES", "VALUE", "PER SECOND"));
        lines.extend(
            moving
                .iter()
                .map(|(series, value, rate)| format!("{:>10} {:>10}  {series}", short(*value), short(*rate))),
        );
        lines.extend(gauges);
        lines
    }

    /// For programs: every series.
    pub(super) fn document(&self, admin: &Address) -> Value {
        let series: Vec<Value> = self
            .now
            .iter()
            .map(|(series, value)| json!({"series": series, "value": value, "per_second": self.rate(series, *value)}))
            .collect();
        json!({"admin": admin, "interval_seconds": self.interval.as_secs_f64(), "series": series})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_that_move_are_shown_with_their_rate() {
        let mut view = View::of("# HELP a\na_total{x=\"1 2\"} 5\nb_total 7\nc 3\nd 0\n").unwrap();
        view.apply("a_total{x=\"1 2\"} 25\nb_total 7\nc 4\nd 0\n", Duration::from_secs(2)).unwrap();
        let lines = view.lines(Vec::new());
        assert!(lines[0].ends_with("4 series, 1 changing"), "{}", lines[0]);
        assert_eq!(lines[3].split_whitespace().collect::<Vec<_>>(), ["25", "10", "a_total{x=\"1", "2\"}"]);
        assert!(lines[4].ends_with("  c") && lines.len() == 5, "{lines:?}");
        let document = view.document(&"127.0.0.1:9180".parse().unwrap());
        assert_eq!(document["series"][1], json!({"series": "b_total", "value": 7.0, "per_second": 0.0}));
        assert_eq!(document["series"][2]["per_second"], Value::Null);
    }

    #[test]
    fn labels_are_read_as_they_were_before_they_were_written() {
        let view =
            View::of("expressway_x_info{a=\"1,b=2\",b=\"say \\\"hi\\\"\\\\\\n\",c=\"\"} 1\ny 2\n").unwrap();
        let series: Vec<_> = view.series().collect();
        let label = |name: &str| series[0].label(name);
        assert_eq!(series[0].name, "x_info");
        assert_eq!(label("a").as_deref(), Some("1,b=2"));
        assert_eq!(label("b").as_deref(), Some("say \"hi\"\\\n"));
        assert_eq!((label("c").as_deref(), label("d")), (Some(""), None));
        assert_eq!((series[1].name, series[1].label("a")), ("y", None));
    }

    #[test]
    fn what_is_no_sample_is_named() {
        let error = View::of("a 1\n<html>\n").err().unwrap();
        assert_eq!(error, "line 2 of /metrics is not a sample: `<html>`");
    }
}
