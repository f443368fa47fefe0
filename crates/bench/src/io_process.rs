//! `expressway-io` as a process: one end of a measurement of packet I/O.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Stdio};

use expressway_lab::{Lab, Role};
use serde::de::DeserializeOwned;

use crate::cpu::Account;
use crate::{BenchError, SERVER_CORE, Tools, io_error, pinned};

/// A running `expressway-io`; dropping it ends it.
pub(crate) struct IoProcess {
    child: Child,
    output: BufReader<ChildStdout>,
    name: String,
}

impl IoProcess {
    /// What is missing for it.
    pub(crate) fn lacks(tools: &Tools) -> Option<String> {
        let built = "build it with `cargo build --release -p expressway-load`";
        (!tools.io.exists()).then(|| format!("{}: missing; {built}", tools.io.display()))
    }

    /// Starts a role in a namespace of the lab, on that side's core.
    pub(crate) fn start(
        lab: &Lab,
        tools: &Tools,
        side: Role,
        arguments: &[String],
    ) -> Result<Self, BenchError> {
        Self::start_program(lab, &tools.io, side, arguments)
    }

    /// The same of another program that says `ready` first.
    pub(crate) fn start_program(
        lab: &Lab,
        program: &Path,
        side: Role,
        arguments: &[String],
    ) -> Result<Self, BenchError> {
        let file = program.file_name().unwrap_or_default().to_string_lossy();
        let name = format!("{file} {}", arguments.join(" "));
        let mut child = pinned::on_first_core(lab, side, program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(io_error(name.clone()))?;
        let Some(stdout) = child.stdout.take() else {
            return Err(BenchError::Missing(format!("{name}: no output")));
        };
        Ok(Self { child, output: BufReader::new(stdout), name })
    }

    /// Waits until it has opened its sockets.
    pub(crate) fn wait_ready(&mut self) -> Result<(), BenchError> {
        let line = self.line()?;
        if line == "ready" || line.starts_with("ready ") {
            Ok(())
        } else {
            Err(self.failed(&format!("printed `{line}` instead of `ready`")))
        }
    }

    /// Waits for its report.
    pub(crate) fn report<T: DeserializeOwned>(&mut self) -> Result<T, BenchError> {
        let line = self.line()?;
        serde_json::from_str(&line).map_err(|error| self.failed(&format!("report `{line}`: {error}")))
    }

    /// The process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// What it and these NAPI threads have cost so far.
    pub(crate) fn account(&self, napi: &BTreeSet<u32>) -> Result<Account, BenchError> {
        Account::now(self.child.id(), napi, SERVER_CORE..SERVER_CORE + 1)
    }

    fn line(&mut self) -> Result<String, BenchError> {
        let mut line = String::new();
        let read = self.output.read_line(&mut line).map_err(io_error(self.name.clone()))?;
        if read == 0 {
            return Err(self.failed("exited without a report; see its error above"));
        }
        Ok(line.trim().to_owned())
    }

    fn failed(&self, problem: &str) -> BenchError {
        BenchError::Server { contestant: self.name.clone(), problem: problem.to_owned() }
    }
}

impl Drop for IoProcess {
    fn drop(&mut self) {
        // `ip netns exec` and `taskset` replace themselves, so this is the program. Its XDP program goes with it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
