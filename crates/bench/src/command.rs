//! A command of `expressway` itself under measurement, such as `recv`, in a lab: started, waited for, told to end, and its
//! JSON report read.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use expressway_lab::{Lab, Role};
use rustix::process::{Pid, Signal, kill_process};
use serde::de::DeserializeOwned;

use crate::cpu::Account;
use crate::{BenchError, SERVER_CORE, Tools, io_error, pinned};

/// How long one may take to become ready, and to end.
const LIMIT: Duration = Duration::from_secs(20);

/// A running command; dropping it ends it.
pub(crate) struct Command {
    child: Child,
    name: String,
    log: PathBuf,
}

impl Command {
    /// Starts it in a namespace of the lab, on that side's core. Its log goes to a file, its report is read at the end.
    pub(crate) fn start(
        lab: &Lab,
        tools: &Tools,
        side: Role,
        arguments: &[String],
    ) -> Result<Self, BenchError> {
        let name = format!("expressway {}", arguments.join(" "));
        std::fs::create_dir_all(&tools.work).map_err(io_error(tools.work.display().to_string()))?;
        let log = tools.work.join(format!("{side}.log"));
        let file = File::create(&log).map_err(io_error(log.display().to_string()))?;
        let child = pinned::on_first_core(lab, side, &tools.expressway)
            .args(["--log-level", "info"])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(file)
            .spawn()
            .map_err(io_error(name.clone()))?;
        Ok(Self { child, name, log })
    }

    /// Waits until its log has this text.
    pub(crate) fn wait_until_log_has(&mut self, text: &str) -> Result<(), BenchError> {
        let began = Instant::now();
        loop {
            if self.log().contains(text) {
                return Ok(());
            }
            if let Some(status) = self.child.try_wait().map_err(io_error(self.name.clone()))? {
                return Err(self.failed(&format!("exited with {status}")));
            }
            if began.elapsed() > LIMIT {
                return Err(self.failed(&format!("did not print `{text}`")));
            }
            sleep(Duration::from_millis(5));
        }
    }

    /// What it and these NAPI threads have cost so far.
    pub(crate) fn account(&self, napi: &BTreeSet<u32>) -> Result<Account, BenchError> {
        Account::now(self.child.id(), napi, SERVER_CORE..SERVER_CORE + 1)
    }

    /// The process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Tells it to end, which makes it report.
    pub(crate) fn interrupt(&self) -> Result<(), BenchError> {
        let pid = Pid::from_raw(self.child.id() as i32).ok_or_else(|| self.failed("is not running"))?;
        kill_process(pid, Signal::INT).map_err(|error| self.failed(&format!("SIGINT: {error}")))
    }

    /// Waits for its end and its report.
    pub(crate) fn report<T: DeserializeOwned>(&mut self) -> Result<T, BenchError> {
        let mut text = String::new();
        if let Some(output) = self.child.stdout.as_mut() {
            output.read_to_string(&mut text).map_err(io_error(self.name.clone()))?;
        }
        let status = self.child.wait().map_err(io_error(self.name.clone()))?;
        if !status.success() {
            return Err(self.failed(&format!("exited with {status}")));
        }
        serde_json::from_str(&text).map_err(|error| self.failed(&format!("report: {error}")))
    }

    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// An error with the end of its log.
    pub(crate) fn failed(&self, problem: &str) -> BenchError {
        let log = self.log();
        let end: Vec<&str> = log.lines().rev().take(2).collect();
        let problem = format!("{problem}: {}", end.into_iter().rev().collect::<Vec<_>>().join(" | "));
        BenchError::Server { contestant: self.name.clone(), problem }
    }
}

impl Drop for Command {
    fn drop(&mut self) {
        // Its XDP program goes with it: it is attached by a link.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
