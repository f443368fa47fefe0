//! A server under measurement, running in a lab.

use std::collections::BTreeSet;
use std::fs::File;
use std::ops::Range;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use expressway_lab::Role;
use rustix::process::{Pid, Signal, kill_process};

use crate::cpu::{self, Account};
use crate::kind::Run;
use crate::peers::{self, Placeholders};
use crate::scenario::Value;
use crate::scenario::{Form, Parameter, text};
use crate::{BenchError, HOST, SERVER_CORE, io_error, pinned};

/// How long a server may take to listen, and to end.
const START_LIMIT: Duration = Duration::from_secs(20);

/// How often it is looked whether it listens.
const LOOK: Duration = Duration::from_micros(500);

/// UDP port that every server listens on.
pub(crate) const PORT: u16 = 443;

/// The parameters that make a server, for the kinds that measure one.
pub(crate) const SERVER: Parameter = Parameter::required("server", Form::Choice(peers::NAMES));
/// Of ours: `[io] mode`.
pub(crate) const IO: Parameter = Parameter::new(
    "io",
    Form::Choice(&["auto", "zerocopy", "copy", "hybrid", "generic", "udp"]),
    text("udp"),
);
/// Of ours: `[io] udp_send`.
pub(crate) const UDP_SEND: Parameter =
    Parameter::new("udp_send", Form::Choice(&["gso", "sendmmsg", "sendmsg"]), text("gso"));
/// Workers, each with a core.
pub(crate) const WORKERS: Parameter = Parameter::new("workers", Form::Count(1, 64), Value::Count(1));

/// Whether the server's device segments UDP.
pub(crate) const UDP_SEGMENTATION: Parameter =
    Parameter::new("udp_segmentation", Form::Choice(&["off", "on"]), text("off"));
/// MTU of both ends.
pub(crate) const MTU: Parameter = Parameter::new("mtu", Form::Count(1280, 9000), Value::Count(1500));

/// A running server; dropping it ends it.
pub(crate) struct Server {
    child: Child,
    name: String,
    log: PathBuf,
    cores: Range<usize>,
    whole_host: bool,
    /// From the start of the process until it listened.
    pub(crate) started_in: Duration,
}

impl Server {
    /// Starts the server of a case in the server namespace, on the server's cores, and waits until it listens.
    pub(crate) fn start(run: &Run<'_>) -> Result<Self, BenchError> {
        let (tools, lab, case) = (run.tools, run.lab, run.case);
        let name = case.text("server").to_owned();
        let server = peers::Server::named(&name)?;
        let work = tools.work.join(&name);
        std::fs::create_dir_all(&work).map_err(io_error(work.display().to_string()))?;
        let configuration = work.join("configuration");
        let workers = case.count("workers") as usize;
        let cores = SERVER_CORE..SERVER_CORE + workers;
        let places: Placeholders = [
            ("address", lab.addresses(Role::Server).ipv4.to_string()),
            ("port", PORT.to_string()),
            ("host", HOST.to_owned()),
            ("root", peers::shown(&tools.root())),
            ("certificates", peers::shown(&tools.certificates())),
            ("work", peers::shown(&work)),
            ("configuration", peers::shown(&configuration)),
            ("workers", workers.to_string()),
            ("cores_mask", format!("{:b}", cores.clone().fold(0u64, |mask, core| mask | 1 << core))),
            // Kinds without bodies of sizes ask for one of 1 KiB at most.
            ("body", case.0.get("body").map_or_else(|| "1024".to_owned(), ToString::to_string)),
            ("io", case.text("io").to_owned()),
            ("udp_send", case.text("udp_send").to_owned()),
        ]
        .into();
        if let Some(text) = &server.configuration {
            std::fs::write(&configuration, peers::fill(text, &places))
                .map_err(io_error(configuration.display().to_string()))?;
        }
        let log = work.join("log");
        let file = File::create(&log).map_err(io_error(log.display().to_string()))?;
        let both = file.try_clone().map_err(io_error(log.display().to_string()))?;
        let began = Instant::now();
        let child = pinned::on_cores(lab, Role::Server, cores.clone(), server.program(tools))
            .args(server.arguments(&places))
            .envs(server.environment.iter().map(|(name, value)| (name, peers::fill(value, &places))))
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(both)
            .spawn()
            .map_err(io_error(name.clone()))?;
        let whole_host = run.nics.is_some();
        let mut running = Self { child, name, log, cores, whole_host, started_in: Duration::ZERO };
        lab.run(Role::Server, || running.wait_until_it_listens(began))??;
        Ok(running)
    }

    /// What its processes and these NAPI threads have cost so far.
    pub(crate) fn account(&self, napi: &BTreeSet<u32>) -> Result<Account, BenchError> {
        let account = Account::now(self.child.id(), napi, self.cores.clone())?;
        Ok(if self.whole_host { account.with_host() } else { account })
    }

    /// Anonymous resident memory now, bytes.
    pub(crate) fn memory(&self) -> Result<u64, BenchError> {
        cpu::anonymous_memory(self.child.id())
    }

    /// The process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends it SIGHUP, which all that can reload take as that.
    pub(crate) fn reload(&self) -> Result<(), BenchError> {
        let pid =
            Pid::from_raw(self.child.id() as i32).ok_or_else(|| self.failed("is not running".into()))?;
        kill_process(pid, Signal::HUP).map_err(|error| self.failed(format!("SIGHUP: {error}")))
    }

    /// On a thread of the server's namespace, whose sockets `/proc/thread-self/net/udp` then shows.
    fn wait_until_it_listens(&mut self, began: Instant) -> Result<(), BenchError> {
        loop {
            if let Some(status) = self.child.try_wait().map_err(io_error(self.name.clone()))? {
                return Err(self.failed(format!("exited with {status}")));
            }
            let sockets = std::fs::read_to_string("/proc/thread-self/net/udp")
                .map_err(io_error("/proc/thread-self/net/udp"))?;
            // Local address and port in hexadecimal.
            let port = format!(":{PORT:04X}");
            let mut local = sockets.lines().filter_map(|line| line.split_whitespace().nth(1));
            let listening = local.any(|local| local.ends_with(&port));
            let ready = self.name != "expressway" || self.said_ready();
            if listening && ready {
                self.started_in = began.elapsed();
                return Ok(());
            }
            if began.elapsed() > START_LIMIT {
                return Err(self.failed("is not listening".into()));
            }
            sleep(LOOK);
        }
    }

    /// Of ours: the mode that its sockets obtained (XDP_OPTIONS), as it says when it is ready.
    pub(crate) fn obtained(&self) -> Option<String> {
        let log = std::fs::read_to_string(&self.log).ok()?;
        let ready = log.lines().find(|line| line.starts_with("ready "))?;
        ready.split(' ').find_map(|word| word.strip_prefix("io=")).map(str::to_owned)
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
