//! One of the suite's programs at the client's end: in its namespace of a lab, or on the far host.

use std::path::Path;

use expressway_lab::Role;
use serde::de::DeserializeOwned;

use crate::kind::Run;
use crate::nics::FarProgram;
use crate::process::Piped;
use crate::task::Task;
use crate::{BenchError, io_error};

/// The program; dropping it ends it.
pub(crate) struct Client<'a> {
    output: Output<'a>,
    contestant: String,
}

/// Where its lines come from.
enum Output<'a> {
    Here(Piped),
    Far(FarProgram<'a>),
}

impl<'a> Client<'a> {
    /// Starts a task, in a lab on that core. Errors name the contestant.
    pub(crate) fn start(
        run: &Run<'a>,
        contestant: &str,
        core: usize,
        task: &Task,
    ) -> Result<Self, BenchError> {
        let Some(nics) = run.nics else {
            let (program, arguments) = task.command(&run.client_site());
            return Self::start_here(run, contestant, core, &program, &arguments);
        };
        let authority = match task {
            Task::Load { .. } => {
                let file = run.tools.certificates().join("ca.pem");
                Some(std::fs::read_to_string(&file).map_err(io_error(file.display().to_string()))?)
            }
            _ => None,
        };
        let output = Output::Far(nics.start(task, authority)?);
        Ok(Self { output, contestant: contestant.into() })
    }

    /// Starts a program that no task describes, in a lab.
    pub(crate) fn start_here(
        run: &Run<'_>,
        contestant: &str,
        core: usize,
        program: &Path,
        arguments: &[String],
    ) -> Result<Self, BenchError> {
        let output = Output::Here(Piped::start(run.lab, Role::Client, core, program, arguments)?);
        Ok(Self { output, contestant: contestant.into() })
    }

    /// Its next line.
    pub(crate) fn line(&mut self) -> Result<String, BenchError> {
        let line = match &mut self.output {
            Output::Here(program) => program.line()?,
            Output::Far(program) => program.line()?,
        };
        line.ok_or_else(|| self.failed("it exited early; see its error above"))
    }

    /// Waits for a line, which has to be this one.
    pub(crate) fn expect(&mut self, expected: &str) -> Result<(), BenchError> {
        let line = self.line()?;
        if line == expected {
            return Ok(());
        }
        Err(self.failed(format!("the client printed `{line}` instead of `{expected}`")))
    }

    /// Waits for its report, one line of JSON.
    pub(crate) fn report<T: DeserializeOwned>(&mut self) -> Result<T, BenchError> {
        let line = self.line()?;
        serde_json::from_str(&line).map_err(|error| self.failed(error.to_string()))
    }

    /// An error of the load.
    pub(crate) fn failed(&self, problem: impl Into<String>) -> BenchError {
        BenchError::Load { contestant: self.contestant.clone(), problem: problem.into() }
    }
}
