//! A server under measurement, running in a lab.

use std::collections::BTreeSet;
use std::ops::Range;
use std::thread::sleep;
use std::time::{Duration, Instant};

use expressway_lab::Role;
use rustix::process::Signal;

use crate::cpu::{self, Account};
use crate::kind::Run;
use crate::origin::{self, Origin};
use crate::peers::{self, Placeholders};
use crate::process::{LIMIT, Logged};
use crate::scenario::{Case, Form, Parameter, Value, text};
use crate::{BenchError, HOST, SERVER_CORE, io_error};

/// Polling interval while waiting for it to listen.
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

/// What is asked for: HTTP/3 of our load generator, HTTP/2 or HTTP/1.1 over TLS of h2load.
pub(crate) const PROTOCOL: Parameter =
    Parameter::new("protocol", Form::Choice(&["h3", "h2", "h1"]), text("h3"));
/// Files, or what an origin gives a cache (see [`Origin`]).
pub(crate) const CONTENT: Parameter =
    Parameter::new("content", Form::Choice(&["file", "cached"]), text("file"));

/// Whether requests come over TCP. Kinds without the parameter measure HTTP/3.
pub(crate) fn is_tcp(case: &Case) -> bool {
    case.0.get("protocol").is_some_and(|protocol| *protocol != text("h3"))
}

/// What a case has served. Kinds without the parameter have files.
pub(crate) fn content(case: &Case) -> &str {
    if case.0.contains_key("content") { case.text("content") } else { "file" }
}

/// The origin of a case whose content is cached.
pub(crate) fn origin(run: &Run<'_>, delay: Duration) -> Result<Option<Origin>, BenchError> {
    let is_cached = content(run.case) == "cached";
    is_cached.then(|| Origin::start(run.lab, run.tools.root(), delay)).transpose()
}

/// A running server; dropping it ends it.
pub(crate) struct Server {
    process: Logged,
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
        // What an earlier run has cached on disk.
        let _ = std::fs::remove_dir_all(work.join("cached"));
        let configuration = work.join("configuration");
        let workers = case.count("workers") as usize;
        let cores = SERVER_CORE..SERVER_CORE + workers;
        let mut places: Placeholders = [
            ("address", lab.addresses(Role::Server).ipv4.to_string()),
            ("port", PORT.to_string()),
            ("host", HOST.to_owned()),
            ("root", peers::shown(&tools.root())),
            ("certificates", peers::shown(&tools.certificates())),
            ("work", peers::shown(&work)),
            ("configuration", peers::shown(&configuration)),
            ("workers", workers.to_string()),
            ("cores_mask", format!("{:b}", cores.clone().fold(0u64, |mask, core| mask | 1 << core))),
            // Kinds without a `body` parameter request 1 KiB at most.
            ("body", case.0.get("body").map_or_else(|| "1024".to_owned(), ToString::to_string)),
            ("io", case.text("io").to_owned()),
            ("udp_send", case.text("udp_send").to_owned()),
            ("origin", format!("http://127.0.0.1:{}", origin::PORT)),
        ]
        .into();
        let content = server.content.get(content(case)).map(|text| peers::fill(text, &places));
        places.insert("content", content.unwrap_or_default());
        if let Some(text) = &server.configuration {
            std::fs::write(&configuration, peers::fill(text, &places))
                .map_err(io_error(configuration.display().to_string()))?;
        }
        let program = peers::shown(&server.program(tools));
        let command: Vec<String> = [program].into_iter().chain(server.arguments(&places)).collect();
        let filled = |(name, value): (&String, &String)| (name.clone(), peers::fill(value, &places));
        let environment: Vec<_> = server.environment.iter().map(filled).collect();
        let began = Instant::now();
        let process =
            Logged::start(lab, Role::Server, cores.clone(), work.join("log"), &command, environment)?;
        let mut process = process.named(&name);
        let is_ours = name == "expressway";
        // On a thread of the server's namespace, whose sockets `/proc/thread-self/net` then shows.
        lab.run(Role::Server, || {
            process.wait_until("listening", LOOK, &|process| {
                Ok(is_listening(is_tcp(case))? && (!is_ours || ready_line(process).is_some()))
            })
        })??;
        Ok(Self { process, cores, whole_host: run.nics.is_some(), started_in: began.elapsed() })
    }

    /// What its processes and these NAPI threads have cost so far.
    pub(crate) fn account(&self, napi: &BTreeSet<u32>) -> Result<Account, BenchError> {
        let account = Account::now(self.process.id(), napi, self.cores.clone())?;
        Ok(if self.whole_host { account.with_host() } else { account })
    }

    /// Anonymous resident memory now, bytes.
    pub(crate) fn memory(&self) -> Result<u64, BenchError> {
        cpu::anonymous_memory(self.process.id())
    }

    /// The process.
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Sends it SIGHUP to reload.
    pub(crate) fn reload(&self) -> Result<(), BenchError> {
        self.process.signal(Signal::HUP)
    }

    /// Of ours: the mode that its sockets obtained (XDP_OPTIONS), from its ready line.
    pub(crate) fn obtained(&self) -> Option<String> {
        ready_line(&self.process)?.split(' ').find_map(|word| word.strip_prefix("io=")).map(str::to_owned)
    }
}

fn ready_line(process: &Logged) -> Option<String> {
    process.output().lines().find(|line| line.starts_with("ready ")).map(str::to_owned)
}

/// Whether a socket of this thread's namespace has the servers' port.
fn is_listening(over_tcp: bool) -> Result<bool, BenchError> {
    let file = if over_tcp { "/proc/thread-self/net/tcp" } else { "/proc/thread-self/net/udp" };
    let sockets = std::fs::read_to_string(file).map_err(io_error(file))?;
    // Local address and port in hexadecimal.
    let port = format!(":{PORT:04X}");
    let mut local = sockets.lines().filter_map(|line| line.split_whitespace().nth(1));
    Ok(local.any(|local| local.ends_with(&port)))
}

impl Drop for Server {
    fn drop(&mut self) {
        let deadline = Instant::now() + LIMIT;
        if self.process.signal(Signal::TERM).is_ok() {
            while self.process.is_running().is_ok_and(|runs| runs) && Instant::now() < deadline {
                sleep(Duration::from_millis(10));
            }
        }
    }
}
