//! Scenarios: files that say what is compared, on which bed, and what was published about it. The
//! [kind](crate::kind) does the measuring.

mod catalog;
mod file;
mod parameter;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use toml::Spanned;

pub use catalog::{BUILT_IN, expand, find};
pub use parameter::Value;
pub(crate) use parameter::{Case, Form, Parameter, text};

use crate::Tools;
use crate::kind::Kind;
use crate::peers::Program;
use crate::published::Figure;

/// Whose side a contestant is on, so that reports can begin with the points where ours is not ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// Another project's program.
    Peer,
    /// Ours on kernel sockets, or the kernel itself.
    Kernel,
    /// Ours on XDP or AF_XDP. Raw files of earlier versions call it `express`.
    #[serde(alias = "express")]
    Xdp,
    /// Ours, where packet I/O is not what is compared.
    Ours,
}

impl Side {
    /// Whether it counts as ours in reports.
    pub(crate) fn is_ours(self) -> bool {
        matches!(self, Self::Xdp | Self::Ours)
    }
}

/// A contestant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Contestant {
    /// Its name in tables.
    pub name: String,
    /// Whose it is.
    pub side: Side,
    /// The parameters that make it.
    pub parameters: BTreeMap<String, Value>,
    /// The beds that it can run on; empty for all of the scenario's.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub beds: Vec<Bed>,
    /// Its figures vary from run to run by more than their intervals, so comparisons of two runs show them without judging.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub varies: bool,
}

/// A published figure to print beside ours.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Beside {
    /// The figure.
    pub figure: Figure,
    /// The metric that it is a figure of.
    pub metric: String,
    /// The contestant that it is about.
    pub contestant: String,
    /// For a ratio: the contestant that it is a ratio to.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub to: Option<String>,
    /// The points it applies to, by some or all swept parameters.
    pub at: BTreeMap<String, Value>,
    /// What differs, or why ours is what it is.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub note: String,
}

/// Rounds and times.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Effort {
    /// Rounds; each contestant runs once in each.
    pub rounds: usize,
    /// Seconds that are measured in each run.
    pub seconds: f64,
    /// Seconds of load before that.
    pub warmup: f64,
}

/// A scenario's description: what it tests, and how to read its results.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct About {
    /// Its name: the file's, without `.toml`.
    pub name: String,
    /// One line on it.
    pub title: String,
    /// The claim that it tests.
    pub claim: String,
    /// What is measured, and how.
    pub measures: String,
    /// What is equal for all contestants.
    pub held_equal: Vec<String>,
    /// How to read the results; may be empty.
    pub reading: String,
    /// The metric that decides.
    pub headline: String,
    /// The contestant that ratios are to.
    pub base: Option<String>,
    /// The parameter of the sweep that curves are drawn over.
    pub curve: Option<String>,
}

/// A scenario, checked.
#[derive(Clone)]
pub struct Scenario {
    /// What its file says of it.
    pub about: About,
    /// Where it can run.
    pub beds: Vec<Bed>,
    /// Those that are compared.
    pub contestants: Vec<Contestant>,
    /// Parameters that are swept, with their values.
    pub sweep: BTreeMap<String, Vec<Value>>,
    /// Parameters that are the same for all.
    pub settings: BTreeMap<String, Value>,
    /// Published figures.
    pub beside: Vec<Beside>,
    /// How often and how long.
    pub effort: Effort,
    /// The same for the tour, with its smaller sweep; none if the tour leaves it out.
    pub tour: Option<Tour>,
    /// What replaces, on given NICs, what is true of labs only.
    pub(crate) on_nics: Option<OnNics>,
    pub(crate) kind: &'static dyn Kind,
}

/// A scenario's description on given NICs.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OnNics {
    held_equal: Vec<String>,
    #[serde(default)]
    reading: String,
    /// In place of a base that is for labs only.
    pub(crate) base: Option<Spanned<String>>,
}

/// What the tour runs of a scenario.
#[derive(Clone, Debug)]
pub struct Tour {
    /// How often and how long.
    pub effort: Effort,
    /// Values in place of the sweep's.
    pub sweep: BTreeMap<String, Vec<Value>>,
    /// The contestants; all when empty.
    pub contestants: Vec<String>,
}

/// A test bed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bed {
    /// Two namespaces with a veth, which the suite makes.
    Lab,
    /// A guest with emulated processors and two virtio-net devices that do zero-copy.
    Guest,
    /// The same with one processor whose clock is the count of its instructions.
    GuestIcount,
    /// Given NICs between this host and another, each running the suite's own end.
    Nics,
}

impl Bed {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Lab, Self::Guest, Self::GuestIcount, Self::Nics];

    /// Its name in scenario files and options.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lab => "lab",
            Self::Guest => "guest",
            Self::GuestIcount => "guest-icount",
            Self::Nics => "nics",
        }
    }

    /// Whether it is an emulated machine, whose clock is not real time.
    pub fn is_guest(self) -> bool {
        matches!(self, Self::Guest | Self::GuestIcount)
    }

    /// Whether its nanoseconds are instructions.
    pub fn counts_instructions(self) -> bool {
        self == Self::GuestIcount
    }
}

impl std::fmt::Display for Bed {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.pad(self.name())
    }
}

impl Scenario {
    /// The name of the kind.
    pub fn kind(&self) -> &'static str {
        self.kind.table().name
    }

    /// All points of the sweep, the last parameter turning fastest; one empty point where nothing is swept.
    pub fn points(&self) -> Vec<BTreeMap<String, Value>> {
        let mut points = vec![BTreeMap::new()];
        for (key, values) in &self.sweep {
            points = points
                .iter()
                .flat_map(|point| {
                    values.iter().map(|value| {
                        let mut point: BTreeMap<String, Value> = point.clone();
                        point.insert(key.clone(), value.clone());
                        point
                    })
                })
                .collect();
        }
        points
    }

    /// The parameters of one run.
    pub(crate) fn case(&self, point: &BTreeMap<String, Value>, contestant: &Contestant) -> Case {
        let defaults = self.kind.table().parameters.iter();
        let mut all: BTreeMap<String, Value> =
            defaults.filter_map(|p| Some((p.key.to_owned(), p.default.clone()?))).collect();
        for part in [&self.settings, point, &contestant.parameters] {
            all.extend(part.iter().map(|(key, value)| (key.clone(), value.clone())));
        }
        Case(all)
    }

    /// Its contestants' programs other than servers, by name.
    pub(crate) fn programs(&self, tools: &Tools) -> BTreeMap<String, Program> {
        let point = self.points().into_iter().next().unwrap_or_default();
        let program = |contestant| self.kind.program(tools, &self.case(&point, contestant));
        self.contestants.iter().filter_map(program).collect()
    }

    /// Its total number of runs.
    pub fn runs(&self) -> usize {
        self.effort.rounds * self.points().len() * self.contestants.len()
    }

    /// Reduces it to what the tour runs.
    pub fn shorten(&mut self) -> bool {
        let Some(tour) = self.tour.clone() else { return false };
        self.effort = tour.effort;
        self.sweep.extend(tour.sweep);
        if !tour.contestants.is_empty() {
            self.contestants.retain(|contestant| tour.contestants.contains(&contestant.name));
        }
        true
    }

    /// Chooses a bed: contestants that cannot run there are left out. A scenario of several beds is named with that bed
    /// where it is not the first, so that one report can have it of both.
    ///
    /// # Errors
    /// When the scenario is for other beds, or what its kind measures cannot be measured there.
    pub fn on(&mut self, bed: Bed) -> Result<(), String> {
        if let Some(reason) = self.kind.refuses(bed) {
            return Err(format!("{}: not for bed {bed}: {reason}", self.about.name));
        }
        if !self.beds.contains(&bed) {
            let beds: Vec<&str> = self.beds.iter().map(|bed| bed.name()).collect();
            return Err(format!("{}: not for bed {bed}; it is for {}", self.about.name, beds.join(", ")));
        }
        self.contestants.retain(|contestant| contestant.beds.is_empty() || contestant.beds.contains(&bed));
        let left = |name: &str| self.contestants.iter().any(|contestant| contestant.name == name);
        self.beside.retain(|beside| left(&beside.contestant) && beside.to.as_deref().is_none_or(left));
        if let Some(own) = self.on_nics.clone().filter(|_| bed == Bed::Nics) {
            self.about.base = own.base.map(Spanned::into_inner).or(self.about.base.take());
            self.about.held_equal = own.held_equal;
            self.about.reading = own.reading;
        }
        if self.beds[0] != bed {
            self.about.name = format!("{}@{bed}", self.about.name);
        }
        Ok(())
    }

    /// Sets a parameter to the bed's value unless the file sets it.
    pub(crate) fn found(&mut self, key: &str, value: Value) {
        if self.can_set(key) && !self.sweep.contains_key(key) && !self.settings.contains_key(key) {
            self.settings.insert(key.to_owned(), value);
        }
    }

    /// Keeps these contestants only.
    ///
    /// # Errors
    /// Naming one that is not there.
    pub fn keep(&mut self, names: &[String]) -> Result<(), String> {
        let known: Vec<&str> = self.contestants.iter().map(|contestant| contestant.name.as_str()).collect();
        if let Some(unknown) = names.iter().find(|name| !known.contains(&name.as_str())) {
            return Err(format!(
                "{}: no contestant `{unknown}`: known are {}",
                self.about.name,
                known.join(", ")
            ));
        }
        self.contestants.retain(|contestant| names.contains(&contestant.name));
        Ok(())
    }

    /// Whether a parameter may be set for all contestants.
    pub fn can_set(&self, key: &str) -> bool {
        let of_contestants =
            self.contestants.iter().any(|contestant| contestant.parameters.contains_key(key));
        !of_contestants && self.kind.table().parameters.iter().any(|parameter| parameter.key == key)
    }

    /// Checks every case: settings may not fit together.
    ///
    /// # Errors
    /// With the first that the kind rejects.
    pub fn check(&self) -> Result<(), String> {
        for contestant in &self.contestants {
            for point in self.points() {
                let checked = self.kind.check(&self.case(&point, contestant));
                checked.map_err(|problem| format!("{}: {}: {problem}", self.about.name, contestant.name))?;
            }
        }
        Ok(())
    }

    /// Sweeps a parameter over other values.
    ///
    /// # Errors
    /// When the kind has no such parameter, contestants differ in it, or a value is none of it.
    pub fn set(&mut self, key: &str, values: &[String]) -> Result<(), String> {
        let parameter = self.kind.table().parameters.iter().find(|parameter| parameter.key == key);
        let Some(parameter) = parameter.filter(|_| self.can_set(key)) else {
            let known: Vec<&str> =
                self.kind.table().parameters.iter().map(|p| p.key).filter(|key| self.can_set(key)).collect();
            return Err(format!(
                "{}: `{key}` cannot be set; known are {}",
                self.about.name,
                known.join(", ")
            ));
        };
        let take = |value: &String| {
            parameter.form.parse(value).map_err(|error| format!("{}: {key}: {error}", self.about.name))
        };
        let values = values.iter().map(take).collect::<Result<Vec<Value>, String>>()?;
        self.settings.remove(key);
        self.sweep.insert(key.to_owned(), values);
        Ok(())
    }
}
