//! Runs a scenario: every point, round and contestant. Each run has a fresh lab and is a line of the raw file.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use expressway_lab::{Lab, LabConfig, Role};

use crate::kind::{Outcome, Run, Trial};
use crate::nics::Nics;
use crate::raw::{Absent, Described, Line, Run as Record};
use crate::scenario::{Case, Contestant, Effort, Scenario, Value};
use crate::{BenchError, Tools, cpu, io_error};

/// The outcome of a scenario.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Runs with figures.
    pub measured: usize,
    /// Runs that failed.
    pub failed: usize,
}

/// Removes the labs of benchmarks that were killed.
///
/// # Errors
/// When labs cannot be listed or removed.
pub fn remove_leftovers() -> Result<(), BenchError> {
    for lab in Lab::status()? {
        let owner = lab.name.strip_prefix(LAB).and_then(|owner| owner.parse::<u32>().ok());
        if owner.is_some_and(|owner| !Path::new(&format!("/proc/{owner}")).exists()) {
            Lab::down(&lab.name)?;
        }
    }
    Ok(())
}

/// What the names of labs begin with, before the process ID.
const LAB: &str = "bench-";

/// The least measured seconds of a calibration trial: fewer would be chance.
const LEAST_TRIAL: f64 = 2.0;

/// Runs a scenario and hands each line to `each` at once. Contestants that this machine cannot run and failed runs become
/// lines too, and the others continue. With a folder for `profiles`, each contestant runs once more at each point after its
/// rounds, sampled and not counted.
///
/// # Errors
/// When `each` fails, or the lab cannot be made.
pub fn run(
    scenario: &Scenario,
    tools: &Tools,
    nics: Option<&Nics>,
    profiles: Option<&Path>,
    each: &mut dyn FnMut(&Line) -> Result<(), BenchError>,
) -> Result<Tally, BenchError> {
    tools.make_certificates()?;
    let mut scenario = scenario.clone();
    if let Some(nics) = nics {
        nics.describe(&mut scenario);
    }
    let (scenario, place) = (&scenario, RunContext { tools, nics });
    each(&Line::Scenario(Box::new(Described::new(scenario, tools.bed, nics.map(Nics::hosts)))))?;
    let mut tally = Tally::default();
    for point in scenario.points() {
        let present = present(scenario, place, &point, each)?;
        let cases = calibrated(scenario, place, &point, present, each, &mut tally)?;
        for round in 0..scenario.effort.rounds {
            for (contestant, case) in turned(&cases, round) {
                let line = match measure(scenario, place, case, scenario.effort, None) {
                    Ok(outcome) => {
                        tally.measured += 1;
                        let values =
                            outcome.values.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
                        Line::Run(Record {
                            scenario: scenario.about.name.clone(),
                            point: point.clone(),
                            contestant: contestant.name.clone(),
                            round,
                            values,
                            detail: outcome.detail,
                        })
                    }
                    // Without a lab or a far end nothing can be measured: this ends the scenario.
                    Err(error @ (BenchError::Lab(_) | BenchError::FarLost { .. })) => return Err(error),
                    Err(error) => {
                        tally.failed += 1;
                        Line::Failed(absent(scenario, &point, contestant, error.to_string()))
                    }
                };
                each(&line)?;
            }
        }
        if let Some(folder) = profiles {
            for (contestant, case) in &cases {
                let svg = profile(scenario, folder, &point, contestant)?;
                if let Err(error) = measure(scenario, place, case, scenario.effort, Some(svg)) {
                    tally.failed += 1;
                    each(&Line::Failed(absent(scenario, &point, contestant, format!("profile: {error}"))))?;
                }
            }
        }
    }
    Ok(tally)
}

/// What all runs of a scenario share.
#[derive(Clone, Copy)]
struct RunContext<'a> {
    tools: &'a Tools,
    nics: Option<&'a Nics>,
}

impl RunContext<'_> {
    /// Why a case cannot be measured here, if it cannot.
    fn lacks(&self, scenario: &Scenario, case: &Case) -> Option<String> {
        let of_nics = self.nics.and_then(|nics| nics.lacks(scenario.kind, case));
        of_nics.or_else(|| scenario.kind.lacks(self.tools, case))
    }
}

/// The file of a flame graph: scenario, point and contestant.
fn profile(
    scenario: &Scenario,
    folder: &Path,
    point: &BTreeMap<String, Value>,
    contestant: &Contestant,
) -> Result<PathBuf, BenchError> {
    std::fs::create_dir_all(folder).map_err(io_error(folder.display().to_string()))?;
    let mut name = scenario.about.name.clone();
    for (key, value) in point {
        name += &format!("-{key}-{value}");
    }
    name += &format!("-{}", contestant.name);
    Ok(folder.join(name.replace([' ', '/', ',', '.'], "-") + ".svg"))
}

/// The contestants that this machine can run at a point; the others are reported as missing.
fn present<'a>(
    scenario: &'a Scenario,
    place: RunContext<'_>,
    point: &BTreeMap<String, Value>,
    each: &mut dyn FnMut(&Line) -> Result<(), BenchError>,
) -> Result<Vec<&'a Contestant>, BenchError> {
    let mut present = Vec::new();
    for contestant in &scenario.contestants {
        match place.lacks(scenario, &scenario.case(point, contestant)) {
            None => present.push(contestant),
            Some(reason) => each(&Line::Missing(absent(scenario, point, contestant, reason)))?,
        }
    }
    Ok(present)
}

/// The contestants of a point with their cases, calibrated if the kind needs it; cases that are equal as far as calibration is
/// concerned share one. Contestants whose calibration fails are reported.
fn calibrated<'a>(
    scenario: &Scenario,
    place: RunContext<'_>,
    point: &BTreeMap<String, Value>,
    present: Vec<&'a Contestant>,
    each: &mut dyn FnMut(&Line) -> Result<(), BenchError>,
    tally: &mut Tally,
) -> Result<Vec<(&'a Contestant, Case)>, BenchError> {
    let mut known: Vec<(Case, Found)> = Vec::new();
    let mut cases = Vec::new();
    for contestant in present {
        let mut case = scenario.case(point, contestant);
        if let Some(first) = scenario.kind.calibration(&case, &[]) {
            let found = match known.iter().position(|(known, _)| *known == first) {
                Some(index) => &known[index].1,
                None => {
                    known.push((first, calibrate(scenario, place, &case)?));
                    &known[known.len() - 1].1
                }
            };
            match found {
                Found::Fixed(fixed) => case.0.extend(fixed.clone()),
                Found::Lacking(reason) => {
                    each(&Line::Missing(absent(scenario, point, contestant, reason.clone())))?;
                    continue;
                }
                Found::Failed(reason) => {
                    tally.failed += 1;
                    each(&Line::Failed(absent(scenario, point, contestant, reason.clone())))?;
                    continue;
                }
            }
        }
        cases.push((contestant, case));
    }
    Ok(cases)
}

/// The outcome of a calibration.
enum Found {
    /// These parameters.
    Fixed(BTreeMap<String, Value>),
    /// The machine lacks something for it.
    Lacking(String),
    /// A trial failed.
    Failed(String),
}

/// The parameters that cases like this one get from calibration.
fn calibrate(scenario: &Scenario, place: RunContext<'_>, case: &Case) -> Result<Found, BenchError> {
    let effort = Effort { seconds: scenario.effort.seconds.max(LEAST_TRIAL), ..scenario.effort };
    let mut trials = Vec::new();
    while let Some(case) = scenario.kind.calibration(case, &trials) {
        if let Some(reason) = place.lacks(scenario, &case) {
            return Ok(Found::Lacking(format!("calibration: {reason}")));
        }
        match measure(scenario, place, &case, effort, None) {
            Ok(outcome) => trials.push(Trial { case, outcome }),
            Err(error @ (BenchError::Lab(_) | BenchError::FarLost { .. })) => return Err(error),
            Err(error) => return Ok(Found::Failed(format!("calibration: {error}"))),
        }
    }
    let fixed = scenario.kind.calibrated(case, &trials);
    tracing::info!(scenario = scenario.about.name, trials = trials.len(), ?fixed, "calibrated");
    Ok(Found::Fixed(fixed))
}

fn absent(
    scenario: &Scenario,
    point: &BTreeMap<String, Value>,
    contestant: &Contestant,
    reason: String,
) -> Absent {
    let (scenario, contestant) = (scenario.about.name.clone(), contestant.name.clone());
    Absent { scenario, point: point.clone(), contestant, reason }
}

fn measure(
    scenario: &Scenario,
    place: RunContext<'_>,
    case: &Case,
    effort: Effort,
    profile: Option<PathBuf>,
) -> Result<Outcome, BenchError> {
    let RunContext { tools, nics } = place;
    match nics {
        Some(nics) => {
            let _changed = nics.prepare(case)?;
            let (lab, others) = (nics.lab(), BTreeSet::new());
            scenario.kind.measure(&Run { tools, lab: &lab, nics: Some(nics), case, effort, others, profile })
        }
        None => {
            let mut others = BTreeSet::new();
            // A device keeps its threads from run to run; there is no other lab where devices are used.
            for role in Role::ALL.into_iter().filter(|_| tools.devices.is_none()) {
                others.extend(cpu::napi_threads(role.interface())?);
            }
            let bed =
                TemporaryLab::up(LabConfig { devices: tools.devices.clone(), ..scenario.kind.lab(case) })?;
            scenario.kind.measure(&Run { tools, lab: &bed.0, nics: None, case, effort, others, profile })
        }
    }
}

/// A, B, C, then C, B, A, then A, B, C …: drift of the machine affects all alike.
fn turned<T>(all: &[T], round: usize) -> Vec<&T> {
    let forth = all.iter();
    if round.is_multiple_of(2) { forth.collect() } else { forth.rev().collect() }
}

/// A lab that is removed after the run.
struct TemporaryLab(Lab);

impl TemporaryLab {
    fn up(config: LabConfig) -> Result<Self, BenchError> {
        let name = format!("{LAB}{}", std::process::id());
        Ok(Self(Lab::up(LabConfig { name, ..config })?))
    }
}

impl Drop for TemporaryLab {
    fn drop(&mut self) {
        if let Err(error) = Lab::down(&self.0.config().name) {
            tracing::warn!(%error, "the benchmark's lab is still up");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_other_round_goes_back() {
        assert_eq!(turned(&[1, 2, 3], 0), [&1, &2, &3]);
        assert_eq!(turned(&[1, 2, 3], 1), [&3, &2, &1]);
    }
}
