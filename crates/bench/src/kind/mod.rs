//! Kinds of measurement: the code behind scenarios.
//!
//! A new kind is a file here with a type that implements [`Kind`], and a line in [`ALL`]. It declares its parameters
//! and metrics; everything else (sweeps, rounds, raw file, reports) follows from those.

mod capture;
mod collapse;
mod fanout;
mod gateway;
mod handshake;
mod idle;
mod packet_io;
mod receive;
mod receive_limit;
mod round_trip;
mod startup;
mod waiting;
mod xdp;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use expressway_lab::{Lab, LabConfig, Role};
use serde::{Deserialize, Serialize};

use crate::nics::Nics;
use crate::peers::Program;
use crate::process::{Logged, Piped};
use crate::profile::Recording;
use crate::scenario::{Bed, Case, Effort, Parameter, Value};
use crate::task::Site;
use crate::{BenchError, SERVER_CORE, Tools, core_of, cpu};

/// All kinds.
pub(crate) const ALL: &[&dyn Kind] = &[
    &gateway::Gateway,
    &collapse::Collapse,
    &handshake::Handshake,
    &idle::Idle,
    &startup::Startup,
    &packet_io::PacketIo,
    &waiting::Waiting,
    &receive::Receive,
    &receive_limit::ReceiveLimit,
    &round_trip::RoundTrip,
    &capture::Capture,
    &fanout::Fanout,
    &xdp::Xdp,
    &xdp::XdpLatency,
    &xdp::ProgRun,
    &xdp::Attack,
];

/// The kind of this name.
pub(crate) fn find(name: &str) -> Option<&'static dyn Kind> {
    ALL.iter().copied().find(|kind| kind.table().name == name)
}

/// Which way a metric is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// More is better.
    Higher,
    /// Less is better.
    Lower,
    /// It describes the run and decides nothing.
    Neither,
}

/// A number that runs of a kind yield.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Metric {
    /// Its key in the raw file and in scenarios.
    pub(crate) key: &'static str,
    /// Its short name in tables.
    pub(crate) label: &'static str,
    /// Its unit; empty for a bare number.
    pub(crate) unit: &'static str,
    /// Which way is better.
    pub(crate) better: Better,
    /// Digits after the point in tables.
    pub(crate) decimals: usize,
}

impl Metric {
    pub(crate) const fn new(
        key: &'static str,
        label: &'static str,
        unit: &'static str,
        better: Better,
        decimals: usize,
    ) -> Self {
        Self { key, label, unit, better, decimals }
    }
}

/// What scenarios and reports know of a kind.
pub(crate) struct Table {
    /// Its name in scenario files.
    pub(crate) name: &'static str,
    /// What a scenario may set, sweep or make contestants of.
    pub(crate) parameters: &'static [Parameter],
    /// What a run gives; the first is the headline where a scenario names none.
    pub(crate) metrics: &'static [Metric],
}

/// The result of a run.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Values by metric; a run need not have all.
    pub(crate) values: BTreeMap<&'static str, f64>,
    /// What they were computed from.
    pub(crate) detail: serde_json::Value,
}

/// A kind of measurement.
pub(crate) trait Kind: Sync + Send {
    /// What scenarios and reports know of it.
    fn table(&self) -> &'static Table;

    /// Whether parameters that are valid by themselves fit together.
    fn check(&self, _case: &Case) -> Result<(), String> {
        Ok(())
    }

    /// The lab for a run; each run gets a fresh one, so that it inherits nothing.
    fn lab(&self, case: &Case) -> LabConfig {
        if measures_server(case) { gateway::lab(case) } else { pinned_lab() }
    }

    /// Why it cannot measure on a bed at all. Scenario files choose among the others.
    fn refuses(&self, _bed: Bed) -> Option<&'static str> {
        None
    }

    /// Whether a case attaches an XDP program to the measured interface, which given NICs may not allow.
    fn needs_xdp(&self, case: &Case) -> bool {
        measures_server(case) && gateway::needs_xdp(case)
    }

    /// Whether a case consumes every packet on the measured interface, whatever its destination.
    fn takes_all(&self, _case: &Case) -> bool {
        false
    }

    /// What this machine lacks for the case. The contestant is then reported as missing, and the others are measured.
    fn lacks(&self, tools: &Tools, case: &Case) -> Option<String> {
        if measures_server(case) { gateway::lacks(tools, case) } else { None }
    }

    /// The measured program, if it is not a server: name, version, and why it is configured as it is.
    fn program(&self, _tools: &Tools, _case: &Case) -> Option<(String, Program)> {
        None
    }

    /// A calibration run before the rounds of a point, whose cases depend on what the machine can currently do. Called again
    /// with the results so far until it returns `None`.
    fn calibration(&self, _case: &Case, _so_far: &[Trial]) -> Option<Case> {
        None
    }

    /// The parameters that follow from the calibration.
    fn calibrated(&self, _case: &Case, _trials: &[Trial]) -> BTreeMap<String, Value> {
        BTreeMap::new()
    }

    /// One run.
    fn measure(&self, run: &Run<'_>) -> Result<Outcome, BenchError>;
}

/// A calibration run with its result.
#[derive(Debug)]
pub(crate) struct Trial {
    pub(crate) case: Case,
    pub(crate) outcome: Outcome,
}

/// A run to be made.
pub(crate) struct Run<'a> {
    pub(crate) tools: &'a Tools,
    pub(crate) lab: &'a Lab,
    /// Given NICs and the far end that generates the load.
    pub(crate) nics: Option<&'a Nics>,
    pub(crate) case: &'a Case,
    pub(crate) effort: Effort,
    /// NAPI threads that existed before this lab: those of other labs, whose interfaces have the same names.
    pub(crate) others: BTreeSet<u32>,
    /// Where to draw a flame graph of the measured side, if requested.
    pub(crate) profile: Option<PathBuf>,
}

impl Run<'_> {
    /// Starts sampling the measured side's stacks, if a flame graph was requested.
    pub(crate) fn sample(&self, process: u32, napi: &BTreeSet<u32>) -> Result<Option<Recording>, BenchError> {
        let Some(svg) = &self.profile else { return Ok(None) };
        let mut tasks = cpu::tree(process)?;
        tasks.extend(napi);
        let title = svg.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        Recording::start(&tasks, svg, &title).map(Some)
    }

    /// Pins the NAPI threads of the server's interface to the server's cores in turn and returns them: attaching an XDP program
    /// creates new, unpinned ones.
    pub(crate) fn server_napi(&self, cores: usize) -> Result<BTreeSet<u32>, BenchError> {
        if self.nics.is_some() {
            // The host decides where they run.
            return cpu::napi_threads(self.lab.interface(Role::Server));
        }
        cpu::pin_in_turn(Role::Server.interface(), &self.others, SERVER_CORE..SERVER_CORE + cores.max(1))
    }

    /// Starts `expressway-io` on an end's first core.
    pub(crate) fn start_io(&self, end: Role, arguments: &[String]) -> Result<Piped, BenchError> {
        Piped::start_on(self.lab, end, &self.tools.io, arguments)
    }

    /// Starts a command of `expressway` on an end's first core. `log` names its files.
    pub(crate) fn start_expressway(
        &self,
        end: Role,
        log: &str,
        arguments: &[String],
    ) -> Result<Logged, BenchError> {
        let program = self.tools.expressway.display().to_string();
        let words =
            [program, "--log-level".into(), "info".into()].into_iter().chain(arguments.iter().cloned());
        let (command, core) = (words.collect::<Vec<_>>(), core_of(end));
        Logged::start(self.lab, end, core..core + 1, self.tools.work.join(log), &command, [])
    }

    /// A failure of the measured contestant under load, which is named by that parameter.
    pub(crate) fn load_failed(&self, contestant: &str, problem: impl Into<String>) -> BenchError {
        BenchError::Load { contestant: self.case.text(contestant).into(), problem: problem.into() }
    }

    /// Where tasks of the client's end run in a lab.
    pub(crate) fn client_site(&self) -> Site<'_> {
        let address = self.lab.addresses(Role::Client).ipv4;
        Site { tools: self.tools, interface: self.lab.interface(Role::Client), address }
    }

    /// The NAPI threads of an end's interface.
    pub(crate) fn napi(&self, end: Role) -> Result<BTreeSet<u32>, BenchError> {
        let threads = cpu::napi_threads(end.interface())?;
        Ok(threads.difference(&self.others).copied().collect())
    }
}

/// Whether what is measured is an HTTP server, whose lab, needs and cores are the same for all kinds.
fn measures_server(case: &Case) -> bool {
    case.0.contains_key("server")
}

/// A lab that receives in NAPI threads, the server's on its core and the client's on the other.
pub(crate) fn pinned_lab() -> LabConfig {
    LabConfig {
        client_napi_core: Some(core_of(Role::Client)),
        server_napi_core: Some(core_of(Role::Server)),
        ..LabConfig::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_tables_have_no_duplicates() {
        for kind in ALL {
            assert_eq!(
                ALL.iter().filter(|other| other.table().name == kind.table().name).count(),
                1,
                "{}",
                kind.table().name
            );
            assert!(!kind.table().metrics.is_empty(), "{}", kind.table().name);
            for parameter in kind.table().parameters {
                let same = kind.table().parameters.iter().filter(|other| other.key == parameter.key);
                assert_eq!(same.count(), 1, "{} {}", kind.table().name, parameter.key);
            }
            for metric in kind.table().metrics {
                let same = kind.table().metrics.iter().filter(|other| other.key == metric.key);
                assert_eq!(same.count(), 1, "{} {}", kind.table().name, metric.key);
            }
        }
    }
}
