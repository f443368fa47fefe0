//! Programs at one end of a lab, pinned to cores: starts them, waits for them, ends them, and reads their reports.
//!
//! A [`Piped`] program communicates line by line. A [`Logged`] one writes to files, which are read while it runs and at
//! its end.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::ops::{Deref, DerefMut, Range};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use expressway_lab::{Lab, Role};
use rustix::process::{Pid, Signal, kill_process};
use serde::de::DeserializeOwned;

use crate::cpu::Account;
use crate::{BenchError, SERVER_CORE, core_of, io_error};

/// How long a program may take to become ready, and to end.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// How often it is looked at meanwhile.
const LOOK: Duration = Duration::from_millis(2);

/// A command that runs `program` in a namespace of the lab on these cores. The child's process ID is the program's:
/// `ip netns exec` and `taskset` replace themselves.
fn on_cores(lab: &Lab, side: Role, cores: Range<usize>, program: impl AsRef<OsStr>) -> Command {
    let mut command = match lab.host() {
        None => lab.command(side, "taskset"),
        // There is no lab to end with: it is killed when its parent dies.
        Some(_) => {
            let mut command = lab.command(side, "setpriv");
            command.args(["--pdeathsig", "KILL", "taskset"]);
            command
        }
    };
    command.args(["-c", &format!("{}-{}", cores.start, cores.end - 1)]).arg(program).stdin(Stdio::null());
    command
}

/// A running program; dropping it ends it, and the XDP program that it attached by a link.
pub(crate) struct Process {
    child: Child,
    name: String,
}

impl Process {
    fn spawn(mut command: Command, name: String) -> Result<Self, BenchError> {
        let child = command.spawn().map_err(io_error(name.clone()))?;
        Ok(Self { child, name })
    }

    /// The process ID.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// What it and these NAPI threads have cost so far, on the server's first core.
    pub(crate) fn account(&self, napi: &BTreeSet<u32>) -> Result<Account, BenchError> {
        Account::now(self.id(), napi, SERVER_CORE..SERVER_CORE + 1)
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) -> Result<(), BenchError> {
        let pid = Pid::from_raw(self.id() as i32).ok_or_else(|| self.failed("is not running", ""))?;
        kill_process(pid, signal).map_err(|error| self.failed(&format!("{signal:?}: {error}"), ""))
    }

    /// Whether it still runs.
    pub(crate) fn is_running(&mut self) -> Result<bool, BenchError> {
        Ok(self.child.try_wait().map_err(io_error(self.name.clone()))?.is_none())
    }

    /// Its threads.
    pub(crate) fn threads(&self) -> Result<BTreeSet<u32>, BenchError> {
        let tasks = format!("/proc/{}/task", self.id());
        let entries = std::fs::read_dir(&tasks).map_err(io_error(tasks))?;
        let thread =
            |entry: std::io::Result<std::fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
        Ok(entries.filter_map(thread).collect())
    }

    /// An error with the last lines of what it printed.
    fn failed(&self, problem: &str, said: &str) -> BenchError {
        let lines: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let end = lines[lines.len().saturating_sub(3)..].join(" | ");
        let problem = if end.is_empty() { problem.to_owned() } else { format!("{problem}: {end}") };
        BenchError::Server { contestant: self.name.clone(), problem }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A program whose standard output is a pipe. Its errors go where ours go.
pub(crate) struct Piped {
    process: Process,
    output: BufReader<ChildStdout>,
}

impl Piped {
    /// Starts a program in a namespace of the lab, on a core.
    pub(crate) fn start(
        lab: &Lab,
        side: Role,
        core: usize,
        program: &Path,
        arguments: &[String],
    ) -> Result<Self, BenchError> {
        let file = program.file_name().unwrap_or_default().to_string_lossy();
        let name = format!("{file} {}", arguments.join(" "));
        let mut command = on_cores(lab, side, core..core + 1, program);
        command.args(arguments).stdout(Stdio::piped());
        let mut process = Process::spawn(command, name)?;
        let Some(stdout) = process.child.stdout.take() else {
            return Err(process.failed("has no output", ""));
        };
        Ok(Self { process, output: BufReader::new(stdout) })
    }

    /// The same on that side's first core.
    pub(crate) fn start_on(
        lab: &Lab,
        side: Role,
        program: &Path,
        arguments: &[String],
    ) -> Result<Self, BenchError> {
        Self::start(lab, side, core_of(side), program, arguments)
    }

    /// The next line that it prints; `None` at its end.
    pub(crate) fn line(&mut self) -> Result<Option<String>, BenchError> {
        let mut line = String::new();
        let read = self.output.read_line(&mut line).map_err(io_error(self.name.clone()))?;
        Ok((read > 0).then(|| line.trim().to_owned()))
    }

    fn some_line(&mut self) -> Result<String, BenchError> {
        let line = self.line()?;
        line.ok_or_else(|| self.failed("exited without a report; see its error above", ""))
    }

    /// Waits until it says that it is ready.
    pub(crate) fn wait_ready(&mut self) -> Result<(), BenchError> {
        let line = self.some_line()?;
        if line == "ready" || line.starts_with("ready ") {
            return Ok(());
        }
        Err(self.failed(&format!("printed `{line}` instead of `ready`"), ""))
    }

    /// Waits for its report.
    pub(crate) fn report<T: DeserializeOwned>(&mut self) -> Result<T, BenchError> {
        let line = self.some_line()?;
        serde_json::from_str(&line).map_err(|error| self.failed(&format!("report `{line}`: {error}"), ""))
    }
}

impl Deref for Piped {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

/// A program whose output and errors go to files.
pub(crate) struct Logged {
    process: Process,
    log: PathBuf,
}

impl Logged {
    /// Starts a command in a namespace of the lab, on these cores. Its files are `log` with the extensions `out` and `err`.
    pub(crate) fn start(
        lab: &Lab,
        side: Role,
        cores: Range<usize>,
        log: PathBuf,
        command: &[String],
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, BenchError> {
        if let Some(folder) = log.parent() {
            std::fs::create_dir_all(folder).map_err(io_error(folder.display().to_string()))?;
        }
        let create = |what: &str| {
            let path = log.with_extension(what);
            File::create(&path).map_err(io_error(path.display().to_string()))
        };
        let Some((program, arguments)) = command.split_first() else {
            return Err(BenchError::Missing(format!("{}: no command", log.display())));
        };
        let mut started = on_cores(lab, side, cores, program);
        started.args(arguments).envs(environment).stdout(create("out")?).stderr(create("err")?);
        let name = command.iter().map(|word| word.trim()).collect::<Vec<_>>().join(" ");
        Ok(Self { process: Process::spawn(started, name)?, log })
    }

    /// The same under another name in errors.
    pub(crate) fn named(mut self, name: &str) -> Self {
        name.clone_into(&mut self.process.name);
        self
    }

    /// Waits until something is true of it, looking that often.
    pub(crate) fn wait_until(
        &mut self,
        what: &str,
        look: Duration,
        is_so: &dyn Fn(&Self) -> Result<bool, BenchError>,
    ) -> Result<(), BenchError> {
        let began = Instant::now();
        while !is_so(self)? {
            if let Some(status) = self.process.child.try_wait().map_err(io_error(self.name.clone()))? {
                return Err(self.failed(&format!("exited with {status}")));
            }
            if began.elapsed() > LIMIT {
                return Err(self.failed(&format!("{what}: not within {} s", LIMIT.as_secs())));
            }
            sleep(look);
        }
        Ok(())
    }

    /// Waits until its log has this text.
    pub(crate) fn wait_until_log_has(&mut self, text: &str) -> Result<(), BenchError> {
        self.wait_until(text, LOOK, &|process| Ok(process.errors().contains(text)))
    }

    /// What it has printed so far.
    pub(crate) fn output(&self) -> String {
        self.text("out")
    }

    /// What it has printed and logged so far.
    pub(crate) fn all_said(&self) -> String {
        self.output() + &self.errors()
    }

    /// What it has logged so far.
    fn errors(&self) -> String {
        self.text("err")
    }

    /// Interrupts it, waits until it has ended, and returns all that it printed.
    pub(crate) fn end(&mut self) -> Result<String, BenchError> {
        self.signal(Signal::INT)?;
        let began = Instant::now();
        while self.is_running()? {
            if began.elapsed() > LIMIT {
                return Err(self.failed("does not exit on SIGINT"));
            }
            sleep(LOOK);
        }
        Ok(self.output())
    }

    /// As [`Logged::end`], for one that had to run until now: had it ended by itself, its counts would be of a part.
    pub(crate) fn end_running(&mut self) -> Result<String, BenchError> {
        if !self.is_running()? {
            return Err(self.failed("exited during measurement"));
        }
        self.end()
    }

    /// Waits until it has printed something, or has ended.
    pub(crate) fn wait_for_output(&mut self) -> Result<(), BenchError> {
        while self.output().is_empty() && self.is_running()? {
            sleep(LOOK);
        }
        Ok(())
    }

    /// Waits until it ends and reads its JSON report.
    pub(crate) fn report<T: DeserializeOwned>(&mut self) -> Result<T, BenchError> {
        let status = self.process.child.wait().map_err(io_error(self.name.clone()))?;
        if !status.success() {
            return Err(self.failed(&format!("exited with {status}")));
        }
        self.read()
    }

    /// The JSON report of one that has been ended.
    pub(crate) fn read<T: DeserializeOwned>(&self) -> Result<T, BenchError> {
        serde_json::from_str(&self.output()).map_err(|error| self.failed(&format!("report: {error}")))
    }

    fn text(&self, what: &str) -> String {
        std::fs::read(self.log.with_extension(what))
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    /// An error with the end of its log, or of its output where it logged nothing.
    pub(crate) fn failed(&self, problem: &str) -> BenchError {
        let errors = self.errors();
        let said = if errors.trim().is_empty() { self.output() } else { errors };
        self.process.failed(problem, &said)
    }
}

impl Deref for Logged {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

impl DerefMut for Logged {
    fn deref_mut(&mut self) -> &mut Process {
        &mut self.process
    }
}
