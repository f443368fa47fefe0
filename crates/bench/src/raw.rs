//! The raw file: JSON lines, written as runs end. Reports are made from it alone.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::environment::Environment;
use crate::guest::Emulated;
use crate::kind::Better;
use crate::nics::Hosts;
use crate::scenario::{About, Bed, Beside, Contestant, Effort, Scenario, Value};
use crate::{BenchError, io_error};

/// One line.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    /// The machine, the programs and the command; the first line.
    Environment(Box<Environment>),
    /// A scenario as it was run; before its runs.
    Scenario(Box<Described>),
    /// One run of one contestant.
    Run(Run),
    /// A contestant that could not take part.
    Missing(Absent),
    /// A run that failed.
    Failed(Absent),
}

/// Keys of metrics in committed files that have another name now.
const FORMER_KEYS: [(&str, &str); 1] = [("express_percent", "xsk_percent")];

impl Line {
    /// The same with metrics by the keys that they have now, so that runs of before can be compared with others.
    fn with_current_keys(mut self) -> Self {
        for (former, current) in FORMER_KEYS {
            match &mut self {
                Self::Scenario(scenario) => {
                    let renamed = scenario.metrics.iter_mut().filter(|metric| metric.key == former);
                    renamed.for_each(|metric| current.clone_into(&mut metric.key));
                }
                Self::Run(run) => {
                    if let Some(value) = run.values.remove(former) {
                        run.values.insert(current.to_owned(), value);
                    }
                }
                Self::Environment(_) | Self::Missing(_) | Self::Failed(_) => {}
            }
        }
        self
    }
}

/// A scenario as it was run, with all that a report says of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Described {
    /// What its file says of it in words.
    #[serde(flatten)]
    pub about: About,
    /// The kind.
    pub kind: String,
    /// Where it ran.
    pub bed: Bed,
    /// The emulated machine that it ran in, if it did.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub emulated: Option<Box<Emulated>>,
    /// The two hosts with given NICs that it ran between, if it did.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub hosts: Option<Box<Hosts>>,
    /// Those that were compared.
    pub contestants: Vec<Contestant>,
    /// Swept parameters.
    pub sweep: BTreeMap<String, Vec<Value>>,
    /// Parameters that were the same for all, with the kind's defaults.
    pub settings: BTreeMap<String, Value>,
    /// How often and how long.
    pub effort: Effort,
    /// What the numbers of a run are.
    pub metrics: Vec<Measured>,
    /// Published figures.
    pub beside: Vec<Beside>,
}

/// A metric.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Its key in runs.
    pub key: String,
    /// Its name in tables.
    pub label: String,
    /// Its unit; empty for a bare number.
    pub unit: String,
    /// Which way is better.
    pub better: Better,
    /// Digits after the point in tables.
    pub decimals: usize,
}

/// One run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    /// The scenario.
    pub scenario: String,
    /// The point of the sweep.
    pub point: BTreeMap<String, Value>,
    /// Who.
    pub contestant: String,
    /// Round, from 0.
    pub round: usize,
    /// The numbers, by metric.
    pub values: BTreeMap<String, f64>,
    /// What they were computed from, and what else was seen.
    pub detail: serde_json::Value,
}

/// What is not there.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Absent {
    /// The scenario.
    pub scenario: String,
    /// The point of the sweep; empty where all are meant.
    pub point: BTreeMap<String, Value>,
    /// Who.
    pub contestant: String,
    /// Why.
    pub reason: String,
}

impl Described {
    /// As it is about to run.
    pub(crate) fn new(scenario: &Scenario, bed: Bed, hosts: Option<&Hosts>) -> Self {
        let parameters = scenario.kind.table().parameters.iter();
        let of_contestants = |key: &str| scenario.contestants.iter().any(|c| c.parameters.contains_key(key));
        let mut settings: BTreeMap<String, Value> = parameters
            .filter(|p| !scenario.sweep.contains_key(p.key) && !of_contestants(p.key))
            .filter_map(|p| Some((p.key.to_owned(), p.default.clone()?)))
            .collect();
        settings.extend(scenario.settings.clone());
        let metrics = scenario.kind.table().metrics.iter().map(|metric| Measured {
            key: metric.key.into(),
            label: metric.label.into(),
            unit: metric.unit.into(),
            better: metric.better,
            decimals: metric.decimals,
        });
        Self {
            about: scenario.about.clone(),
            kind: scenario.kind().into(),
            bed,
            emulated: None,
            hosts: hosts.cloned().map(Box::new),
            contestants: scenario.contestants.clone(),
            sweep: scenario.sweep.clone(),
            settings,
            effort: scenario.effort,
            metrics: metrics.collect(),
            beside: scenario.beside.clone(),
        }
    }

    /// A metric by its key.
    pub fn metric(&self, key: &str) -> Option<&Measured> {
        self.metrics.iter().find(|metric| metric.key == key)
    }
}

/// A raw file that is being written.
pub struct RawFile {
    path: PathBuf,
    file: File,
}

impl RawFile {
    /// Makes `raw.jsonl` in a folder, which is made too.
    ///
    /// # Errors
    /// With the path.
    pub fn create(folder: &Path) -> Result<Self, BenchError> {
        std::fs::create_dir_all(folder).map_err(io_error(folder.display().to_string()))?;
        Self::at(folder.join("raw.jsonl"))
    }

    /// Makes, or opens, this one.
    ///
    /// # Errors
    /// With the path.
    pub fn at(path: PathBuf) -> Result<Self, BenchError> {
        let file = File::create(&path).map_err(io_error(path.display().to_string()))?;
        Ok(Self { path, file })
    }

    /// Writes one line at once.
    ///
    /// # Errors
    /// With the path.
    pub fn write(&mut self, line: &Line) -> Result<(), BenchError> {
        let text = serde_json::to_string(line).map_err(|error| BenchError::Raw {
            file: self.path.clone(),
            line: 0,
            problem: error.to_string(),
        })?;
        writeln!(self.file, "{text}").map_err(io_error(self.path.display().to_string()))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// A raw file that was read, or several as one.
#[derive(Clone, Debug, Default)]
pub struct RawRun {
    /// Machines, one for each file.
    pub environments: Vec<Environment>,
    /// Scenarios in their order.
    pub scenarios: Vec<Described>,
    /// Runs in their order.
    pub runs: Vec<Run>,
    /// Those that could not take part.
    pub missing: Vec<Absent>,
    /// Runs that failed.
    pub failed: Vec<Absent>,
}

impl RawRun {
    /// Reads raw files. A scenario may be in one of them only.
    ///
    /// # Errors
    /// With file and line.
    pub fn read<P: AsRef<Path>>(files: &[P]) -> Result<Self, BenchError> {
        let mut all = Self::default();
        for file in files {
            let file = file.as_ref();
            let text = std::fs::read_to_string(file).map_err(io_error(file.display().to_string()))?;
            all.add(file, &text)?;
        }
        Ok(all)
    }

    fn add(&mut self, file: &Path, text: &str) -> Result<(), BenchError> {
        let wrong = |line: usize, problem: String| BenchError::Raw { file: file.to_owned(), line, problem };
        let (machines, known) = (self.environments.len(), self.scenarios.len());
        for (index, text) in text.lines().enumerate() {
            let at = index + 1;
            let line: Line = serde_json::from_str(text).map_err(|error| wrong(at, error.to_string()))?;
            let line = line.with_current_keys();
            let named = match &line {
                Line::Run(run) => Some(&run.scenario),
                Line::Missing(absent) | Line::Failed(absent) => Some(&absent.scenario),
                Line::Environment(_) | Line::Scenario(_) => None,
            };
            if let Some(name) =
                named.filter(|name| !self.scenarios[known..].iter().any(|s| s.about.name == **name))
            {
                return Err(wrong(at, format!("scenario `{name}` has no preceding description line")));
            }
            match line {
                Line::Environment(environment) => self.environments.push(*environment),
                Line::Scenario(scenario)
                    if self.scenarios.iter().any(|known| known.about.name == scenario.about.name) =>
                {
                    return Err(wrong(at, format!("scenario `{}` occurs twice", scenario.about.name)));
                }
                Line::Scenario(scenario) => self.scenarios.push(*scenario),
                Line::Run(run) => self.runs.push(run),
                Line::Missing(absent) => self.missing.push(absent),
                Line::Failed(absent) => self.failed.push(absent),
            }
        }
        if self.environments.len() != machines + 1 {
            return Err(wrong(0, "not a raw file: it must have exactly one environment line".into()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixture;
    use crate::scenario::Side;

    #[test]
    fn files_with_former_words_are_read() {
        let raw = fixture::raw(&[[1.0, 2.0, 3.0]]);
        let (environment, scenario, run) = (&raw.environments[0], &raw.scenarios[0], &raw.runs[0]);
        let lines = [
            Line::Environment(Box::new(environment.clone())),
            Line::Scenario(Box::new(scenario.clone())),
            Line::Run(run.clone()),
        ];
        let former: Vec<String> = lines
            .iter()
            .map(|line| serde_json::to_string(line).unwrap())
            .map(|text| {
                text.replace("\"xdp\"", "\"express\"").replace("bytes_per_datagram", "express_percent")
            })
            .collect();
        assert!(former[1].contains("\"side\":\"express\""), "{}", former[1]);
        assert!(former[2].contains("\"express_percent\":1200.0"), "{}", former[2]);

        let mut read = RawRun::default();
        read.add(Path::new("raw.jsonl"), &former.join("\n")).unwrap();
        assert_eq!(read.scenarios[0].contestants[2].side, Side::Xdp);
        assert!(read.scenarios[0].metric("xsk_percent").is_some());
        assert_eq!(read.runs[0].values["xsk_percent"], 1200.0);
        assert!(!read.runs[0].values.contains_key("express_percent"));
    }
}
