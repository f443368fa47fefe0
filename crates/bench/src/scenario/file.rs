//! The format of scenario files, and its check: every name must be known to the kind.

use std::collections::BTreeMap;
use std::ops::Range;

use expressway_settings::{ConfigError, SourceFile};
use serde::Deserialize;
use toml::Spanned;

use super::{About, Bed, Beside, Contestant, Effort, Form, OnNics, Parameter, Scenario, Side, Tour, Value};
use crate::kind::{self, Kind};
use crate::published;

type Table = BTreeMap<Spanned<String>, Spanned<toml::Value>>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    title: String,
    kind: Spanned<String>,
    claim: String,
    measures: String,
    held_equal: Vec<String>,
    #[serde(default)]
    reading: String,
    beds: Spanned<Vec<Bed>>,
    headline: Option<Spanned<String>>,
    base: Option<Spanned<String>>,
    curve: Option<Spanned<String>>,
    rounds: Spanned<usize>,
    seconds: Spanned<f64>,
    #[serde(default = "one_second")]
    warmup: Spanned<f64>,
    #[serde(default)]
    settings: Table,
    #[serde(default)]
    sweep: Table,
    contestant: Spanned<Vec<Spanned<Table>>>,
    #[serde(default)]
    beside: Vec<BesideFile>,
    tour: Option<TourFile>,
    on_nics: Option<OnNics>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BesideFile {
    figure: Spanned<String>,
    metric: Spanned<String>,
    contestant: Spanned<String>,
    to: Option<Spanned<String>>,
    #[serde(default)]
    at: Table,
    #[serde(default)]
    note: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TourFile {
    rounds: Spanned<usize>,
    seconds: Spanned<f64>,
    #[serde(default = "one_second")]
    warmup: Spanned<f64>,
    #[serde(default)]
    sweep: Table,
    #[serde(default)]
    contestants: Vec<Spanned<String>>,
}

fn one_second() -> Spanned<f64> {
    Spanned::new(0..0, 1.0)
}

/// Fails for an unknown name.
fn among(source: &SourceFile, name: &Spanned<String>, what: &str, known: &[&str]) -> Result<(), ConfigError> {
    if known.contains(&name.get_ref().as_str()) {
        return Ok(());
    }
    let problem = format!("`{}` is not a {what}; valid here: {}", name.get_ref(), known.join(", "));
    Err(source.at(name.span(), problem))
}

impl Scenario {
    /// Reads and checks the text of a scenario; its name is the file's.
    ///
    /// # Errors
    /// With file, line and key of the first thing wrong.
    pub fn read(source: &SourceFile) -> Result<Self, ConfigError> {
        let file: File = source.parse()?;
        let name =
            source.file.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        let kinds: Vec<&str> = kind::ALL.iter().map(|kind| kind.table().name).collect();
        among(source, &file.kind, "kind", &kinds)?;
        let kind =
            kind::find(file.kind.get_ref()).ok_or_else(|| source.at(file.kind.span(), "no such kind"))?;
        let check = Check { source, kind };
        if file.beds.get_ref().is_empty() {
            let problem = "name at least one bed: \"lab\", \"guest\", \"guest-icount\", \"nics\"";
            return Err(source.at(file.beds.span(), problem));
        }
        let settings = check.table(&file.settings)?;
        let sweep = check.sweep(&file.sweep)?;
        let contestants = check.contestants(&file.contestant, file.beds.get_ref())?;
        check.once(&file)?;
        let names: Vec<&str> = contestants.iter().map(|contestant| contestant.name.as_str()).collect();
        let metrics: Vec<&str> = kind.table().metrics.iter().map(|metric| metric.key).collect();
        if let Some(headline) = &file.headline {
            among(source, headline, "metric", &metrics)?;
        }
        if let Some(base) = &file.base {
            among(source, base, "contestant", &names)?;
        }
        if let Some(base) = file.on_nics.as_ref().and_then(|own| own.base.as_ref()) {
            among(source, base, "contestant", &names)?;
        }
        if let Some(curve) = &file.curve {
            among(
                source,
                curve,
                "parameter of [sweep]",
                &sweep.keys().map(String::as_str).collect::<Vec<_>>(),
            )?;
        }
        let tour = file.tour.as_ref().map(|tour| check.tour(tour, &sweep, &names)).transpose()?;
        let beside = file
            .beside
            .iter()
            .map(|one| check.beside(one, &metrics, &names, &sweep))
            .collect::<Result<_, _>>()?;
        let about = About {
            name,
            title: file.title,
            claim: file.claim,
            measures: file.measures,
            held_equal: file.held_equal,
            reading: file.reading,
            headline: file.headline.map_or_else(|| metrics[0].to_owned(), Spanned::into_inner),
            base: file.base.map(Spanned::into_inner),
            curve: file.curve.map(Spanned::into_inner),
        };
        let scenario = Self {
            about,
            beds: file.beds.into_inner(),
            effort: check.effort(&file.rounds, &file.seconds, &file.warmup)?,
            contestants,
            sweep,
            settings,
            beside,
            tour,
            on_nics: file.on_nics,
            kind,
        };
        check.cases(&scenario, file.contestant.span())?;
        Ok(scenario)
    }
}

/// The checks of one file.
struct Check<'a> {
    source: &'a SourceFile,
    kind: &'static dyn Kind,
}

impl Check<'_> {
    fn parameter(&self, key: &Spanned<String>) -> Result<&'static Parameter, ConfigError> {
        let known: Vec<&str> = self.kind.table().parameters.iter().map(|parameter| parameter.key).collect();
        among(self.source, key, &format!("parameter of kind {}", self.kind.table().name), &known)?;
        let found =
            self.kind.table().parameters.iter().find(|parameter| parameter.key == key.get_ref().as_str());
        found.ok_or_else(|| self.source.at(key.span(), "no such parameter"))
    }

    fn value(&self, form: Form, value: &toml::Value, span: Range<usize>) -> Result<Value, ConfigError> {
        form.take(value).map_err(|problem| self.source.at(span, problem))
    }

    fn table(&self, table: &Table) -> Result<BTreeMap<String, Value>, ConfigError> {
        let entry = |(key, value): (&Spanned<String>, &Spanned<toml::Value>)| {
            let form = self.parameter(key)?.form;
            Ok((key.get_ref().clone(), self.value(form, value.get_ref(), value.span())?))
        };
        table.iter().map(entry).collect()
    }

    fn sweep(&self, table: &Table) -> Result<BTreeMap<String, Vec<Value>>, ConfigError> {
        let mut sweep = BTreeMap::new();
        for (key, values) in table {
            let form = self.parameter(key)?.form;
            let toml::Value::Array(list) = values.get_ref() else {
                return Err(self.source.at(values.span(), "expected a list of values"));
            };
            if list.is_empty() {
                return Err(self.source.at(values.span(), "expected at least one value"));
            }
            let taken = list.iter().map(|value| self.value(form, value, values.span()));
            sweep.insert(key.get_ref().clone(), taken.collect::<Result<_, _>>()?);
        }
        Ok(sweep)
    }

    fn contestants(
        &self,
        list: &Spanned<Vec<Spanned<Table>>>,
        of_scenario: &[Bed],
    ) -> Result<Vec<Contestant>, ConfigError> {
        let mut contestants: Vec<Contestant> = Vec::new();
        for table in list.get_ref() {
            let mut parameters = table.get_ref().clone();
            let mut text = |key: &str| {
                let value = parameters.remove(&Spanned::new(0..0, key.to_owned()));
                let value =
                    value.ok_or_else(|| self.source.at(table.span(), format!("missing key `{key}`")))?;
                match value.get_ref() {
                    toml::Value::String(text) => Ok((text.clone(), value.span())),
                    _ => Err(self.source.at(value.span(), "expected a string")),
                }
            };
            let (name, at) = text("name")?;
            self.value(Form::Name, &toml::Value::String(name.clone()), at.clone())?;
            if contestants.iter().any(|known| known.name == name) {
                return Err(self.source.at(at, format!("`{name}` occurs twice")));
            }
            let (side, at) = text("side")?;
            let side = match side.as_str() {
                "peer" => Side::Peer,
                "kernel" => Side::Kernel,
                "xdp" => Side::Xdp,
                "ours" => Side::Ours,
                _ => {
                    let problem = "expected one of \"peer\", \"kernel\", \"xdp\", \"ours\"";
                    return Err(self.source.at(at, problem));
                }
            };
            let beds = match parameters.remove(&Spanned::new(0..0, "beds".to_owned())) {
                Some(beds) => self.beds(&beds, of_scenario)?,
                None => Vec::new(),
            };
            let varies = match parameters.remove(&Spanned::new(0..0, "varies".to_owned())) {
                Some(value) => value
                    .get_ref()
                    .as_bool()
                    .ok_or_else(|| self.source.at(value.span(), "expected true or false"))?,
                None => false,
            };
            contestants.push(Contestant { name, side, parameters: self.table(&parameters)?, beds, varies });
        }
        if contestants.is_empty() {
            return Err(self.source.at(list.span(), "expected at least one contestant"));
        }
        Ok(contestants)
    }

    /// A contestant's beds, which must be among its scenario's.
    fn beds(&self, value: &Spanned<toml::Value>, of_scenario: &[Bed]) -> Result<Vec<Bed>, ConfigError> {
        let names: Vec<&str> = of_scenario.iter().map(|bed| bed.name()).collect();
        let found: Vec<Bed> = value.get_ref().clone().try_into().unwrap_or_default();
        if found.is_empty() || found.iter().any(|bed| !of_scenario.contains(bed)) {
            let problem = format!("expected a list of beds of the scenario: {}", names.join(", "));
            return Err(self.source.at(value.span(), problem));
        }
        Ok(found)
    }

    /// A parameter may be set in one place only.
    fn once(&self, file: &File) -> Result<(), ConfigError> {
        let contestants = file.contestant.get_ref().iter().flat_map(|table| table.get_ref().keys());
        for key in file.settings.keys().chain(contestants.clone()) {
            if file.sweep.contains_key(key) {
                return Err(self.source.at(key.span(), "is also swept: give it in one place only"));
            }
        }
        for key in contestants {
            if file.settings.contains_key(key) {
                return Err(self.source.at(key.span(), "is also in [settings]: give it in one place only"));
            }
        }
        Ok(())
    }

    fn effort(
        &self,
        rounds: &Spanned<usize>,
        seconds: &Spanned<f64>,
        warmup: &Spanned<f64>,
    ) -> Result<Effort, ConfigError> {
        if !(1..=1000).contains(rounds.get_ref()) {
            return Err(self.source.at(rounds.span(), "expected a whole number from 1 to 1000"));
        }
        if !(0.1..=3600.0).contains(seconds.get_ref()) {
            return Err(self.source.at(seconds.span(), "expected seconds from 0.1 to 3600"));
        }
        if !(0.0..=3600.0).contains(warmup.get_ref()) {
            return Err(self.source.at(warmup.span(), "expected seconds from 0 to 3600"));
        }
        Ok(Effort { rounds: *rounds.get_ref(), seconds: *seconds.get_ref(), warmup: *warmup.get_ref() })
    }

    fn tour(
        &self,
        tour: &TourFile,
        sweep: &BTreeMap<String, Vec<Value>>,
        names: &[&str],
    ) -> Result<Tour, ConfigError> {
        let swept: Vec<&str> = sweep.keys().map(String::as_str).collect();
        for key in tour.sweep.keys() {
            among(self.source, key, "parameter of [sweep]", &swept)?;
        }
        for contestant in &tour.contestants {
            among(self.source, contestant, "contestant", names)?;
        }
        Ok(Tour {
            effort: self.effort(&tour.rounds, &tour.seconds, &tour.warmup)?,
            sweep: self.sweep(&tour.sweep)?,
            contestants: tour.contestants.iter().map(|name| name.get_ref().clone()).collect(),
        })
    }

    fn beside(
        &self,
        file: &BesideFile,
        metrics: &[&str],
        names: &[&str],
        sweep: &BTreeMap<String, Vec<Value>>,
    ) -> Result<Beside, ConfigError> {
        among(self.source, &file.metric, "metric", metrics)?;
        among(self.source, &file.contestant, "contestant", names)?;
        if let Some(to) = &file.to {
            among(self.source, to, "contestant", names)?;
        }
        let swept: Vec<&str> = sweep.keys().map(String::as_str).collect();
        for key in file.at.keys() {
            among(self.source, key, "parameter of [sweep]", &swept)?;
        }
        let figure = published::find(file.figure.get_ref()).ok_or_else(|| {
            let problem = format!("no published figure `{}` in published.toml", file.figure.get_ref());
            self.source.at(file.figure.span(), problem)
        })?;
        if figure.is_ratio() != file.to.is_some() {
            let problem = if figure.is_ratio() {
                "is a ratio: give its base (`to`)"
            } else {
                "is not a ratio: remove `to`"
            };
            return Err(self.source.at(file.figure.span(), problem));
        }
        Ok(Beside {
            figure,
            metric: file.metric.get_ref().clone(),
            contestant: file.contestant.get_ref().clone(),
            to: file.to.as_ref().map(|to| to.get_ref().clone()),
            at: self.table(&file.at)?,
            note: file.note.clone(),
        })
    }

    /// Every case must have all its parameters and suit the kind.
    fn cases(&self, scenario: &Scenario, contestants: Range<usize>) -> Result<(), ConfigError> {
        for contestant in &scenario.contestants {
            for point in scenario.points() {
                let case = scenario.case(&point, contestant);
                let missing = self
                    .kind
                    .table()
                    .parameters
                    .iter()
                    .find(|parameter| parameter.required && !case.0.contains_key(parameter.key));
                let problem = match missing {
                    Some(parameter) => Err(format!("`{}` is not given", parameter.key)),
                    None => self.kind.check(&case),
                };
                problem.map_err(|problem| {
                    self.source.at(contestants.clone(), format!("{}: {problem}", contestant.name))
                })?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"title = "t"
kind = "waiting"
claim = "c"
measures = "m"
held_equal = ["e"]
beds = ["lab"]
rounds = 2
seconds = 1.0
base = "a"
[sweep]
wait = ["interrupt", "spin"]
[[contestant]]
name = "a"
side = "kernel"
way = "udp"
[[contestant]]
name = "b"
side = "xdp"
way = "af-xdp-copy"
[tour]
rounds = 1
seconds = 0.5
sweep = { wait = ["spin"] }
contestants = ["b"]
"#;

    fn read(text: &str) -> Result<Scenario, String> {
        Scenario::read(&SourceFile { file: "x.toml".into(), text: text.into() })
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_scenario_sweeps_contestants_over_points() {
        let mut scenario = read(GOOD).unwrap();
        assert_eq!(scenario.about.name, "x");
        assert_eq!(scenario.runs(), 2 * 2 * 2);
        let case = scenario.case(&scenario.points()[1], &scenario.contestants[1]);
        assert_eq!((case.text("wait"), case.text("way")), ("spin", "af-xdp-copy"));
        assert!(scenario.shorten());
        assert_eq!(scenario.runs(), 1);
        assert!(scenario.set("wait", &["busy-poll".into()]).is_ok());
        assert!(scenario.set("way", &["udp".into()]).unwrap_err().contains("cannot be set"));
        assert!(scenario.keep(&["c".into()]).unwrap_err().contains("known are b"));
    }

    #[test]
    fn what_is_wrong_is_named_with_file_line_and_key() {
        for (from, to, expected) in [
            (
                "kind = \"waiting\"",
                "kind = \"wating\"",
                "x.toml:2: kind: `wating` is not a kind; valid here: ",
            ),
            ("title", "tilte", "x.toml:1: tilte: unknown key; did you mean `title`?"),
            ("\"spin\"]\n[[", "\"doze\"]\n[[", "x.toml:11: sweep.wait: expected one of \"interrupt\""),
            (
                "wait = [\"interrupt\", \"spin\"]",
                "wate = [1]",
                "x.toml:11: sweep.wate: `wate` is not a parameter",
            ),
            (
                "wait = [\"interrupt\", \"spin\"]",
                "wait = []",
                "x.toml:11: sweep.wait: expected at least one value",
            ),
            ("base = \"a\"", "base = \"z\"", "x.toml:9: base: `z` is not a contestant; valid here: a, b"),
            ("side = \"xdp\"", "side = \"theirs\"", "x.toml:18: contestant.1.side: expected one of \"peer\""),
            ("name = \"b\"", "name = \"a\"", "x.toml:17: contestant.1.name: `a` occurs twice"),
            ("way = \"udp\"", "wait = \"spin\"", "x.toml:15: contestant.0.wait: is also swept"),
            ("rounds = 2", "rounds = 0", "x.toml:7: rounds: expected a whole number from 1 to 1000"),
            ("seconds = 1.0", "seconds = -1.0", "x.toml:8: seconds: expected seconds from 0.1"),
            ("beds = [\"lab\"]", "beds = [\"moon\"]", "x.toml:6: beds.0: unknown variant `moon`"),
            (
                "contestants = [\"b\"]",
                "contestants = [\"c\"]",
                "x.toml:24: tour.contestants.0: `c` is not a contestant",
            ),
            ("way = \"udp\"\n", "", "a: `way` is not given"),
            (
                "way = \"udp\"",
                "way = \"udp\"\nvaries = 1",
                "x.toml:16: contestant.0.varies: expected true or false",
            ),
            (
                "way = \"udp\"",
                "way = \"udp\"\nbeds = [\"guest\"]",
                "x.toml:16: contestant.0.beds: expected a list of beds of the scenario: lab",
            ),
        ] {
            assert!(GOOD.contains(from), "{from}");
            let error = read(&GOOD.replacen(from, to, 1)).err().unwrap_or_else(|| panic!("{to}: accepted"));
            assert!(
                error.starts_with(expected) || (expected.starts_with("a:") && error.contains(expected)),
                "{error}"
            );
            assert!(!error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn a_published_figure_is_looked_up_and_a_ratio_says_to_what() {
        let beside = "[[beside]]\nfigure = \"quic-gateway-one-thread\"\nmetric = \"cpu_percent\"\ncontestant = \"b\"\n";
        let error = read(&format!("{GOOD}{beside}")).err().unwrap();
        assert!(error.starts_with("x.toml:26: beside.0.figure: is a ratio"), "{error}");
        let right = read(&format!("{GOOD}{beside}to = \"a\"\n")).unwrap();
        assert!(right.beside[0].figure.is_ratio());
        let error = read(&format!("{GOOD}{}", beside.replace("one-thread", "none"))).err().unwrap();
        assert!(error.contains("no published figure `quic-gateway-none`"), "{error}");
    }
}
