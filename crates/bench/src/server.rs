//! A contestant running in a lab.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use expressway_lab::{Lab, Role};
use rustix::process::{Pid, Signal, kill_process};

use crate::contestant::{Contestant, Place};
use crate::{BenchError, SERVER_CORE, Tools, cpu, io_error};

/// How long a server may take to listen, and to end.
const START_LIMIT: Duration = Duration::from_secs(20);

/// A running server; dropping it ends it.
pub(crate) struct Server {
    child: Child,
    name: String,
    log: PathBuf,
}

impl Server {
    /// Starts a contestant in the server namespace, on the server's core, and waits until it listens.
    pub(crate) fn start(lab: &Lab, tools: &Tools, contestant: &Contestant) -> Result<Self, BenchError> {
        let name = contestant.name();
        let work = tools.work.join(name.replace(' ', "-"));
        std::fs::create_dir_all(&work).map_err(io_error(work.display().to_string()))?;
        let place = Place {
            address: lab.addresses(Role::Server).ipv4,
            root: &tools.work.join("root"),
            certificates: &tools.work.join("certificates"),
            work: &work,
        };
        let configuration = work.join("configuration");
        std::fs::write(&configuration, contestant.configuration(&place))
            .map_err(io_error(configuration.display().to_string()))?;
        let (program, arguments) = contestant
            .command(tools, &configuration)
            .ok_or_else(|| BenchError::Missing(format!("{name}: no binary; `make bench` builds it")))?;
        let log = work.join("log");
        let file = File::create(&log).map_err(io_error(log.display().to_string()))?;
        let both = file.try_clone().map_err(io_error(log.display().to_string()))?;
        let child = lab
            .command(Role::Server, "taskset")
            .args(["-c", &SERVER_CORE.to_string()])
            .arg(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(both)
            .spawn()
            .map_err(io_error(name.clone()))?;
        let mut server = Self { child, name, log };
        server.wait_until_it_listens(lab)?;
        Ok(server)
    }

    /// Nanoseconds of CPU so far, all processes of the server.
    pub(crate) fn cpu(&self) -> Result<u64, BenchError> {
        cpu::of_tree(self.child.id())
    }

    /// Anonymous resident memory now, bytes.
    pub(crate) fn memory(&self) -> Result<u64, BenchError> {
        cpu::anonymous_memory(self.child.id())
    }

    fn wait_until_it_listens(&mut self, lab: &Lab) -> Result<(), BenchError> {
        let deadline = Instant::now() + START_LIMIT;
        loop {
            if let Some(status) = self.child.try_wait().map_err(io_error(self.name.clone()))? {
                return Err(self.failed(format!("ended with {status}")));
            }
            let sockets = lab
                .command(Role::Server, "cat")
                .args(["/proc/net/udp"])
                .output()
                .map_err(io_error("/proc/net/udp"))?;
            // Local address and port in hexadecimal: `:01BB` is port 443.
            let listening = String::from_utf8_lossy(&sockets.stdout)
                .lines()
                .filter_map(|line| line.split_whitespace().nth(1).map(str::to_owned))
                .any(|local| local.ends_with(":01BB"));
            let ready = !self.name.starts_with("expressway") || self.said_ready();
            if listening && ready {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(self.failed("does not listen".into()));
            }
            sleep(Duration::from_millis(20));
        }
    }

    fn said_ready(&self) -> bool {
        std::fs::read_to_string(&self.log).is_ok_and(|log| log.lines().any(|line| line.starts_with("ready ")))
    }

    fn failed(&self, problem: String) -> BenchError {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let end: Vec<&str> = log.lines().rev().take(3).collect();
        let problem = format!("{problem}: {}", end.into_iter().rev().collect::<Vec<_>>().join(" | "));
        BenchError::Server { contestant: self.name.clone(), problem }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(pid) = Pid::from_raw(self.child.id() as i32) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let deadline = Instant::now() + START_LIMIT;
        while Instant::now() < deadline {
            if matches!(self.child.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
