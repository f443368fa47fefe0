//! Where CPU time goes: `perf` samples the stacks of the measured side during a run, for a flame graph. Sampling is
//! by the clock, because virtual machines often have no hardware counters.

mod control;
mod flame;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::{BenchError, io_error};

/// Samples a second, each with the top of the user stack, whose frames release builds keep no pointers to: a prime, so that no loop's period divides it.
const FREQUENCY: &str = "499";

/// For how long the threads of what is measured must have stayed the same.
const SETTLED: Duration = Duration::from_millis(500);

/// How often that is looked for.
const LOOKS: usize = 20;

/// How often `perf` is started, should it exit over a thread that ended.
const ATTEMPTS: usize = 3;

/// What is missing for it.
pub fn lacks() -> Option<String> {
    let there = Command::new("perf").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    (!there.is_ok_and(|status| status.success()))
        .then(|| "perf: cannot be run (on Debian: apt-get install linux-perf)".to_owned())
}

/// A running `perf record`; dropping it ends it.
pub(crate) struct Recording {
    child: Child,
    data: PathBuf,
    folded: PathBuf,
    svg: PathBuf,
    title: String,
}

impl Recording {
    /// Samples all threads of these tasks, kernel included, from when this returns: `perf` takes a moment to begin, and
    /// seconds where it was not read from the disk before. `svg` is what [`Recording::finish`] writes; the samples go beside
    /// it.
    pub(crate) fn start(tasks: &[u32], svg: &Path, title: &str) -> Result<Self, BenchError> {
        settle(tasks);
        let mut attempt = 1;
        loop {
            let mut recording = Self::spawn(tasks, svg, title)?;
            match control::begin(&mut recording.child) {
                Ok(()) => return Ok(recording),
                Err(error) if attempt == ATTEMPTS => return Err(error),
                Err(error) => tracing::debug!(%error, attempt, "once more"),
            }
            attempt += 1;
        }
    }

    fn spawn(tasks: &[u32], svg: &Path, title: &str) -> Result<Self, BenchError> {
        let data = svg.with_extension("perf");
        let list = tasks.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let child = Command::new("perf")
            .args([
                "record",
                "--quiet",
                "--event",
                "cpu-clock",
                "--freq",
                FREQUENCY,
                "--call-graph",
                "dwarf,8192",
                "--delay=-1",
                "--control",
                control::ARGUMENT,
            ])
            .args(["--pid", &list, "--output"])
            .arg(&data)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(io_error("perf record"))?;
        let folded = svg.with_extension("folded");
        Ok(Self { child, data, folded, svg: svg.to_owned(), title: title.to_owned() })
    }

    /// Ends sampling and draws.
    fn finish(mut self) -> Result<(), BenchError> {
        if let Some(pid) = Pid::from_raw(self.child.id() as i32) {
            // It writes what it has and ends.
            let _ = kill_process(pid, Signal::INT);
        }
        // Waiting would close it, and `perf` (6.1) ends without its file's header when what controls it goes.
        let _control = self.child.stdin.take();
        self.child.wait().map_err(io_error("perf record"))?;
        let output = Command::new("perf")
            .args(["script", "--no-inline", "--fields", "comm,ip,sym", "--input"])
            .arg(&self.data)
            .stderr(Stdio::null())
            .output()
            .map_err(io_error("perf script"))?;
        let stacks = flame::fold(&String::from_utf8_lossy(&output.stdout));
        if stacks.is_empty() {
            return Err(BenchError::Missing(format!("{}: perf recorded no samples", self.data.display())));
        }
        let text: String =
            stacks.iter().map(|(stack, count)| format!("{} {count}\n", stack.join(";"))).collect();
        std::fs::write(&self.folded, text).map_err(io_error(self.folded.display().to_string()))?;
        std::fs::write(&self.svg, flame::draw(&stacks, &self.title))
            .map_err(io_error(self.svg.display().to_string()))?;
        // Tens of megabytes; the folded stacks are what is left of it.
        let _ = std::fs::remove_file(&self.data);
        Ok(())
    }
}

/// Waits until no thread of these tasks comes or goes, as some do while they start: `perf` (6.1) may fail over one that ends while it
/// opens its counters, and spins on one that ends later.
fn settle(tasks: &[u32]) {
    let threads = || -> Vec<std::ffi::OsString> {
        let of_task = |task: &u32| std::fs::read_dir(format!("/proc/{task}/task")).into_iter().flatten();
        let mut threads: Vec<_> =
            tasks.iter().flat_map(of_task).flatten().map(|entry| entry.file_name()).collect();
        threads.sort();
        threads
    };
    let mut before = threads();
    for _ in 0..LOOKS {
        std::thread::sleep(SETTLED);
        let now = threads();
        if std::mem::replace(&mut before, now) == before {
            return;
        }
    }
}

/// Ends sampling, where there is any, and draws.
pub(crate) fn finish(recording: Option<Recording>) -> Result<(), BenchError> {
    recording.map_or(Ok(()), Recording::finish)
}

impl Drop for Recording {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
