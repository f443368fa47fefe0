//! Scenarios in an emulated guest: `scripts/guest` boots it, this program runs the scenarios inside, and raw lines come
//! back as they are written.
//!
//! ```text
//!  bench --bed guest-icount ─▶ scripts/guest (python) ─▶ QEMU: /init ─▶ bench --devices eth0,eth1 --raw /dev/ttyS2
//!         ▲                       boots, taps, console                    │ lab of the two devices, kinds as everywhere
//!         └────────── raw lines, as they are written ◀────────────────────┘
//! ```
//!
//! Emulated time is not real time, so a report gives ratios or, with `-icount`, instructions. An instruction is
//! then a nanosecond of the guest's clock, so the scheduler's accounts, which all kinds read anyway, are counts.
//! Three settings make them complete. The processor never halts (`idle=poll`), because the clock would skip the
//! time for which packets are in flight outside. Interrupts are charged to the task that they interrupt
//! (`tsc=noirqtime`). And the devices' NAPI runs in threads, whose accounts are read separately. Under
//! `-icount`, packets that are sent end outside the guest, at a bridge of taps, because the one processor
//! belongs to the sender. Taps are used instead of an emulated hub, because only they accept checksums and
//! segments left to the device, without which there is no GSO.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::{JoinHandle, spawn};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use crate::environment::Environment;
use crate::raw::Line;
use crate::runner::Tally;
use crate::scenario::Bed;
use crate::{BenchError, Tools, io_error};

/// Interval at which `stop` is polled.
const LOOK: Duration = Duration::from_millis(200);

/// The prefix of the runner's own lines.
const SAID: &str = "guest: ";

/// The two interfaces of the guest, the server's first.
const DEVICES: &str = "eth0,eth1";

/// An emulated machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Emulated {
    /// Version of QEMU.
    pub qemu: String,
    /// QEMU's options for its processors.
    pub processors: String,
    /// The kernel's options for them.
    pub kernel_options: String,
    /// The environment inside.
    #[serde(default)]
    pub inside: Environment,
}

/// A guest that is to run scenarios.
#[derive(Clone, Debug)]
pub struct Guest {
    /// The folder of the runner.
    pub runner: PathBuf,
    /// Seconds until it is ended.
    pub deadline: u64,
    /// Arguments of `expressway bench` inside: scenarios and overrides.
    pub arguments: Vec<String>,
    /// Scenario files, named in the arguments by file name.
    pub files: Vec<PathBuf>,
}

/// The runner's first message.
#[derive(Deserialize)]
struct First {
    guest: Emulated,
}

impl Guest {
    /// What this machine lacks for it.
    pub fn lacks(&self) -> Option<String> {
        let runner = &self.runner;
        if !runner.join("__main__.py").exists() {
            let how =
                "it is scripts/guest in the repository: run this from there, or give its path with --guest";
            return Some(format!("{}: guest runner not found; {how}", runner.display()));
        }
        let python = Command::new("python3").arg("--version").stdout(Stdio::null()).status();
        if python.is_err() {
            return Some("python3 is needed to start the guest: apt-get install python3".into());
        }
        None
    }

    /// Boots it and hands each line of its raw file to `each` as it comes; its first one, of the machine inside, goes into
    /// the lines of scenarios. `stop` is polled.
    ///
    /// # Errors
    /// When it cannot be booted or ends early, with what its runner said last; when `each` fails; when it was stopped.
    pub fn run(
        &self,
        tools: &Tools,
        stop: &dyn Fn() -> bool,
        each: &mut dyn FnMut(&Line) -> Result<(), BenchError>,
    ) -> Result<Tally, BenchError> {
        if let Some(lacking) = self.lacks() {
            return Err(BenchError::Missing(lacking));
        }
        let mut runner = Runner::start(self, tools)?;
        let (mut tally, mut emulated) = (Tally::default(), Emulated::default());
        loop {
            if stop() {
                return Err(BenchError::Interrupted);
            }
            let text = match runner.lines.recv_timeout(LOOK) {
                Ok(text) => text,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            if let Ok(First { guest }) = serde_json::from_str(&text) {
                emulated = guest;
                continue;
            }
            let mut line: Line = serde_json::from_str(&text).map_err(|error| {
                BenchError::Missing(format!("the guest sent `{text}`, which is not a raw line: {error}"))
            })?;
            match &mut line {
                Line::Environment(inside) => {
                    emulated.inside = (**inside).clone();
                    continue;
                }
                Line::Scenario(scenario) => scenario.emulated = Some(Box::new(emulated.clone())),
                Line::Run(_) => tally.measured += 1,
                Line::Failed(_) => tally.failed += 1,
                Line::Missing(_) => {}
            }
            each(&line)?;
        }
        let (code, last) = runner.end()?;
        // Failed runs are lines, and the program inside ends with 1 over them.
        let told = code == Some(0) || (code == Some(1) && tally.failed > 0);
        if told { Ok(tally) } else { Err(BenchError::Missing(format!("guest: {last}"))) }
    }
}

/// The running runner; dropping it ends it and its guest.
struct Runner {
    child: Child,
    lines: Receiver<String>,
    last: Option<JoinHandle<String>>,
}

impl Runner {
    fn start(guest: &Guest, tools: &Tools) -> Result<Self, BenchError> {
        let mut command = Command::new("python3");
        command.arg(&guest.runner).args(["--deadline", &guest.deadline.to_string()]);
        if tools.bed == Bed::GuestIcount {
            command.arg("--counting");
        }
        for program in [&tools.expressway, &tools.load, &tools.io] {
            command.arg("--program").arg(program);
        }
        for file in &guest.files {
            command.arg("--file").arg(file);
        }
        command.args(["--", "--log-level", "warn", "bench", "--json", "--out", "/tmp/bench"]);
        command.args(["--raw", "/dev/ttyS2", "--bed", tools.bed.name(), "--devices", DEVICES]);
        let mut child = command
            .args(&guest.arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(io_error("python3"))?;
        let (sender, lines) = channel();
        if let Some(stdout) = child.stdout.take() {
            spawn(move || {
                for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                    if sender.send(line).is_err() {
                        return;
                    }
                }
            });
        }
        let last = child.stderr.take().map(|stderr| spawn(move || tell(BufReader::new(stderr))));
        Ok(Self { child, lines, last })
    }

    /// Its exit code and last message.
    fn end(&mut self) -> Result<(Option<i32>, String), BenchError> {
        let status = self.child.wait().map_err(io_error("python3"))?;
        let last = self.last.take().and_then(|thread| thread.join().ok()).unwrap_or_default();
        Ok((status.code(), last))
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        // It ends its guest first, and removes its namespace.
        if let (Ok(None), Some(pid)) = (self.child.try_wait(), Pid::from_raw(self.child.id() as i32)) {
            let _ = kill_process(pid, Signal::TERM);
            let _ = self.child.wait();
        }
    }
}

/// Passes console and messages on to the log. Returns the reason of a failure: the last line of the program inside or of the
/// runner, except its closing line.
fn tell(lines: impl BufRead) -> String {
    let mut last = String::new();
    for line in lines.lines().map_while(Result::ok) {
        match line.strip_prefix(SAID) {
            Some(said) => tracing::info!("guest: {said}"),
            None => tracing::debug!("guest's console: {line}"),
        }
        let said = line.strip_prefix(SAID).unwrap_or(&line).trim();
        // The kernel's own lines begin with a time in brackets.
        if !said.is_empty() && !said.starts_with('[') && !said.starts_with("exited with code") {
            last = said.to_owned();
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    fn tools() -> Tools {
        Tools {
            expressway: "/bin/expressway".into(),
            load: "/bin/load".into(),
            io: "/bin/io".into(),
            peers: "/peers".into(),
            nginx: None,
            work: "/work".into(),
            bed: Bed::GuestIcount,
            devices: None,
        }
    }

    /// Runs a guest whose runner is this Python code.
    fn run(code: &str) -> (Result<Tally, String>, Vec<Line>) {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("__main__.py"), code).unwrap();
        let guest =
            Guest { runner: folder.path().into(), deadline: 60, arguments: vec!["x".into()], files: vec![] };
        let lines = RefCell::new(Vec::new());
        let result = guest.run(&tools(), &|| false, &mut |line| {
            lines.borrow_mut().push(line.clone());
            Ok(())
        });
        (result.map_err(|error| error.to_string()), lines.into_inner())
    }

    fn lines_of_a_run() -> String {
        let raw = crate::report::fixture::raw(&[[1.0, 2.0, 3.0]]);
        let mut environment = raw.environments[0].clone();
        environment.kernel = "6.18.15 of the guest".into();
        let mut lines = vec![Line::Environment(Box::new(environment))];
        lines.extend(raw.scenarios.into_iter().map(|scenario| Line::Scenario(Box::new(scenario))));
        lines.extend(raw.runs.into_iter().map(Line::Run));
        let text: Vec<String> = lines.iter().map(|line| serde_json::to_string(line).unwrap()).collect();
        text.join("\n")
    }

    #[test]
    fn lines_come_back_with_the_machine_that_they_are_of() {
        let first =
            r#"{"guest": {"qemu": "10.0", "processors": "-icount shift=0", "kernel_options": "idle=poll"}}"#;
        let (tally, lines) = run(&format!("print(r'''{first}\n{}''')", lines_of_a_run()));
        assert_eq!(tally, Ok(Tally { measured: 3, failed: 0 }));
        let Line::Scenario(scenario) = &lines[0] else { panic!("{lines:?}") };
        let emulated = scenario.emulated.as_ref().unwrap();
        assert_eq!(
            (emulated.qemu.as_str(), emulated.inside.kernel.as_str()),
            ("10.0", "6.18.15 of the guest")
        );
        assert_eq!(lines.len(), 4);
    }

    #[test]
    fn the_runner_is_given_programs_bed_and_arguments() {
        let (result, _) = run("import sys\nsys.exit(' '.join(sys.argv[1:]))");
        let said = result.unwrap_err();
        let expected = "guest: --deadline 60 --counting --program /bin/expressway --program /bin/load --program /bin/io \
             -- --log-level warn bench --json --out /tmp/bench --raw /dev/ttyS2 --bed guest-icount --devices eth0,eth1 x";
        assert_eq!(said, expected);
    }

    #[test]
    fn a_guest_that_cannot_be_run_says_why_in_one_line() {
        let said = "import sys\nprint('guest: Linux 6.18', 'guest: ip is missing: apt-get install iproute2', \
                    'guest: exited with code 2 in 1 s', sep='\\n', file=sys.stderr)\nsys.exit(2)";
        assert_eq!(run(said).0, Err("guest: ip is missing: apt-get install iproute2".into()));
        let inside = "import sys\nprint('expressway: bench: boom', '[  1.2] reboot', sep='\\n', file=sys.stderr)\nsys.exit(1)";
        assert_eq!(run(inside).0, Err("guest: expressway: bench: boom".into()));
        let (result, _) = run("print('half a li')");
        assert!(result.unwrap_err().starts_with("the guest sent `half a li`, which is not a raw line"));
    }

    #[test]
    fn without_the_runner_it_is_said_where_that_is() {
        let guest = Guest { runner: "/nowhere".into(), deadline: 60, arguments: vec![], files: vec![] };
        let lacking = guest.lacks().unwrap();
        assert!(lacking.starts_with("/nowhere: guest runner not found; it is scripts/guest"), "{lacking}");
    }

    #[test]
    fn a_stop_ends_the_runner() {
        let folder = tempfile::tempdir().unwrap();
        let pid = folder.path().join("pid");
        let code = format!(
            "import os, pathlib, time\npathlib.Path({pid:?}).write_text(str(os.getpid()))\ntime.sleep(1000)"
        );
        std::fs::write(folder.path().join("__main__.py"), code).unwrap();
        let guest = Guest { runner: folder.path().into(), deadline: 60, arguments: vec![], files: vec![] };
        let written = || std::fs::read_to_string(&pid).is_ok_and(|text| !text.is_empty());
        let result = guest.run(&tools(), &written, &mut |_| Ok(()));
        assert!(matches!(result, Err(BenchError::Interrupted)));
        let pid = std::fs::read_to_string(&pid).unwrap();
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "it was waited for");
    }
}
