//! A program in a lab: its output goes to a file, which is read while it runs and at its end.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use expressway_lab::Role;
use rustix::process::{Pid, Signal, kill_process};
use serde::de::DeserializeOwned;

use super::Run;
use crate::{BenchError, io_error, pinned};

/// How long one may take to become ready, and to end.
const LIMIT: Duration = Duration::from_secs(20);

/// How often it is looked.
const LOOK: Duration = Duration::from_millis(2);

/// A running program; dropping it ends it.
pub(super) struct Process {
    child: Child,
    name: String,
    log: PathBuf,
}

impl Process {
    /// Starts a command in a namespace of the lab, on a core. `log` names its files.
    pub(super) fn start(
        run: &Run<'_>,
        side: Role,
        core: usize,
        log: &str,
        command: &[String],
        environment: &[(String, String)],
    ) -> Result<Self, BenchError> {
        let work = &run.tools.work;
        std::fs::create_dir_all(work).map_err(io_error(work.display().to_string()))?;
        let path = |what: &str| work.join(format!("{log}.{what}"));
        let create = |path: PathBuf| File::create(&path).map_err(io_error(path.display().to_string()));
        let (program, arguments) =
            command.split_first().ok_or_else(|| BenchError::Missing(format!("{log}: no command")))?;
        let child = pinned::on_cores(run.lab, side, core..core + 1, program)
            .args(arguments)
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(create(path("out"))?)
            .stderr(create(path("err"))?)
            .spawn()
            .map_err(io_error(command.join(" ")))?;
        let name = command.iter().map(|word| word.trim()).collect::<Vec<_>>().join(" ");
        Ok(Self { child, name, log: work.join(log) })
    }

    /// The process.
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until something is so, which is false as long as it is not.
    pub(super) fn wait_until(
        &mut self,
        what: &str,
        is_so: &dyn Fn(&Self) -> Result<bool, BenchError>,
    ) -> Result<(), BenchError> {
        let began = Instant::now();
        while !is_so(self)? {
            if let Some(status) = self.child.try_wait().map_err(io_error(self.name.clone()))? {
                return Err(self.failed(&format!("exited with {status}")));
            }
            if began.elapsed() > LIMIT {
                return Err(self.failed(&format!("{what}: not within {} s", LIMIT.as_secs())));
            }
            sleep(LOOK);
        }
        Ok(())
    }

    /// What it has printed so far.
    pub(super) fn output(&self) -> String {
        self.text("out")
    }

    /// What it has complained of, or logged, so far.
    pub(super) fn errors(&self) -> String {
        self.text("err")
    }

    /// Tells it to end, waits for that, and gives all that it printed. A program that ends by the signal has ended well.
    pub(super) fn end(&mut self) -> Result<String, BenchError> {
        let pid = Pid::from_raw(self.child.id() as i32).ok_or_else(|| self.failed("is not running"))?;
        kill_process(pid, Signal::INT).map_err(|error| self.failed(&format!("SIGINT: {error}")))?;
        let began = Instant::now();
        while self.is_running()? {
            if began.elapsed() > LIMIT {
                return Err(self.failed("does not exit on SIGINT"));
            }
            sleep(LOOK);
        }
        Ok(self.output())
    }

    /// As [`Process::end`], for one that was to run until now: what it did before an end of its own is half of it.
    pub(super) fn end_running(&mut self) -> Result<String, BenchError> {
        if !self.is_running()? {
            return Err(self.failed("exited during measurement"));
        }
        self.end()
    }

    /// Waits until it has printed something, or has ended.
    pub(super) fn wait_for_output(&mut self) -> Result<(), BenchError> {
        while self.output().is_empty() && self.is_running()? {
            sleep(LOOK);
        }
        Ok(())
    }

    /// Whether it runs still.
    pub(super) fn is_running(&mut self) -> Result<bool, BenchError> {
        Ok(self.child.try_wait().map_err(io_error(self.name.clone()))?.is_none())
    }

    /// Its threads.
    pub(super) fn threads(&self) -> Result<BTreeSet<u32>, BenchError> {
        let tasks = format!("/proc/{}/task", self.child.id());
        let entries = std::fs::read_dir(&tasks).map_err(io_error(tasks))?;
        let thread =
            |entry: std::io::Result<std::fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
        Ok(entries.filter_map(thread).collect())
    }

    /// Waits for its end by itself and reads its JSON report.
    pub(super) fn report<T: DeserializeOwned>(mut self) -> Result<T, BenchError> {
        let status = self.child.wait().map_err(io_error(self.name.clone()))?;
        if !status.success() {
            return Err(self.failed(&format!("exited with {status}")));
        }
        self.read()
    }

    /// The report of one that has been told to end.
    pub(super) fn read<T: DeserializeOwned>(&self) -> Result<T, BenchError> {
        serde_json::from_str(&self.output()).map_err(|error| self.failed(&format!("report: {error}")))
    }

    fn text(&self, what: &str) -> String {
        std::fs::read(self.log.with_extension(what))
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    /// An error with the end of what it complained of.
    fn failed(&self, problem: &str) -> BenchError {
        let errors = self.errors();
        let said = if errors.trim().is_empty() { self.output() } else { errors };
        let end: Vec<&str> =
            said.lines().map(str::trim).filter(|line| !line.is_empty()).rev().take(2).collect();
        let problem = format!("{problem}: {}", end.into_iter().rev().collect::<Vec<_>>().join(" | "));
        BenchError::Server { contestant: self.name.clone(), problem }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // `ip netns exec` and `taskset` replace themselves, so this is the program. Its XDP program goes with it, or with the
        // lab.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
