//! `expressway forward`: routing between interfaces, and feeds copied to receivers, in XDP.

mod report;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use expressway_edge::forward::{Config, Router};
use expressway_gateway::admin::{Admin, Limits, State};
use expressway_gateway::metrics::Registry;
use expressway_xbpf::Existing;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};

use crate::args::Forward;
use crate::fail::Failure;
use crate::signals;

/// How often the router may act on what it heard of.
const TURN: Duration = Duration::from_millis(100);

/// Forwards until a signal says stop.
pub(crate) fn run(arguments: &Forward) -> Result<ExitCode, Failure> {
    let config = Config::load(&arguments.config).map_err(Failure::usage)?;
    if arguments.check {
        crate::print(&format!("{}: ok\n", arguments.config.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let signals = signals::receiver(&[SIGTERM, SIGINT, SIGHUP, SIGUSR1])?;
    let existing = if arguments.replace { Existing::Replace } else { Existing::Refuse };
    let listen = config.admin;
    let router = Router::start(config, existing).map_err(Failure::run_time)?;
    let router = Arc::new(Mutex::new(router));
    let admin = listen.map(|address| admin(address, arguments, &router)).transpose()?;
    report::ready(arguments.json, &lock(&router))?;
    let result = serve(arguments, &router, &signals);
    drop(admin);
    let statistics = lock(&router).statistics().map_err(Failure::run_time);
    // What is attached is taken off before anybody waits for output to be read.
    drop(router);
    result?;
    report::print(arguments.json, &statistics?)?;
    Ok(ExitCode::SUCCESS)
}

fn serve(arguments: &Forward, router: &Mutex<Router>, signals: &Receiver<i32>) -> Result<(), Failure> {
    loop {
        match signals.recv_timeout(TURN) {
            Ok(SIGHUP) => reload(arguments, router),
            Ok(SIGUSR1) => {
                let statistics = lock(router).statistics().map_err(Failure::run_time)?;
                report::print(arguments.json, &statistics)?;
            }
            Ok(_) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
            Err(RecvTimeoutError::Timeout) => {}
        }
        if let Err(error) = lock(router).turn(Instant::now()) {
            // The maps stay as they were, and the next turn tries again.
            tracing::warn!(%error, "cannot follow a change");
        }
    }
}

fn reload(arguments: &Forward, router: &Mutex<Router>) {
    let file = arguments.config.display();
    match Config::load(&arguments.config) {
        Ok(config) => match lock(router).reload(config) {
            Ok(()) => tracing::info!("{file}: reloaded"),
            Err(error) => tracing::error!("{file}: not reloaded: {error}"),
        },
        Err(error) => tracing::error!("not reloaded: {error}"),
    }
}

fn lock(router: &Mutex<Router>) -> MutexGuard<'_, Router> {
    router.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the admin pages show.
struct Status {
    router: Arc<Mutex<Router>>,
    file: std::path::PathBuf,
}

impl State for Status {
    fn health(&self) -> Result<(), String> {
        let router = lock(&self.router);
        let off: Vec<&str> =
            router.devices().filter(|(_, mode)| mode.is_none()).map(|(name, _)| name).collect();
        if off.is_empty() { Ok(()) } else { Err(format!("not on {}", off.join(", "))) }
    }

    fn configuration(&self) -> String {
        std::fs::read_to_string(&self.file).unwrap_or_default()
    }

    fn io(&self) -> Option<String> {
        Some(lock(&self.router).statistics().map_or_else(
            |error| serde_json::json!({ "error": error.to_string() }).to_string(),
            |statistics| statistics.document().to_string(),
        ))
    }
}

fn admin(address: SocketAddr, arguments: &Forward, router: &Arc<Mutex<Router>>) -> Result<Admin, Failure> {
    let registry = Registry::with_summary(crate::metrics::drops);
    let source = Arc::clone(router);
    registry.register(move |out: &mut Vec<_>| match lock(&source).statistics() {
        Ok(statistics) => report::samples(&statistics, out),
        Err(error) => tracing::warn!(%error, "cannot read the counters"),
    });
    let status = Status { router: Arc::clone(router), file: arguments.config.clone() };
    Admin::start(address, Limits::default(), registry, Arc::new(status))
        .map_err(|error| Failure::run_time(format!("admin.listen {address}: {error}")))
}
