//! `expressway forward`: routing between interfaces, and feeds copied to receivers, in XDP.

mod report;

use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use expressway_edge::forward::{Config, Router};
use expressway_gateway::admin::State;
use expressway_metrics::Sample;
use expressway_xbpf::Existing;

use crate::args::Forward as Arguments;
use crate::daemon::{self, Daemon, lock};
use crate::fail::Failure;

/// Forwards until a signal says stop.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let config = Config::load(&arguments.config).map_err(Failure::usage)?;
    if arguments.check {
        crate::print(&format!("{}: ok\n", arguments.config.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let signals = daemon::signals()?;
    let existing = if arguments.replace { Existing::Replace } else { Existing::Refuse };
    let section = config.admin.clone();
    let router = Mutex::new(Router::start(config, existing).map_err(Failure::run_time)?);
    let forward = Arc::new(Forward { router, arguments: arguments.clone() });
    let admin = daemon::admin(section.as_ref(), &forward, |_| ())?;
    report::ready(arguments.json, &lock(&forward.router))?;
    daemon::watch(&*forward, admin.as_ref(), &signals);
    drop(admin);
    let statistics = lock(&forward.router).statistics().map_err(Failure::run_time);
    // What is attached is taken off before anybody waits for output to be read.
    drop(forward);
    report::print(arguments.json, &statistics?)?;
    Ok(ExitCode::SUCCESS)
}

/// The router, for its upkeep and the admin pages.
struct Forward {
    router: Mutex<Router>,
    arguments: Arguments,
}

impl Daemon for Forward {
    /// How often the router may act on what it heard of.
    const UPKEEP: Duration = Duration::from_millis(100);

    fn upkeep(&self) {
        if let Err(error) = lock(&self.router).turn(Instant::now()) {
            // The maps stay as they were, and the next turn tries again.
            tracing::warn!(%error, "cannot follow a change");
        }
    }

    fn reload(&self) {
        let file = self.arguments.config.display();
        match Config::load(&self.arguments.config) {
            Ok(config) => match lock(&self.router).reload(config) {
                Ok(()) => tracing::info!("{file}: reloaded"),
                Err(error) => tracing::error!("{file}: not reloaded: {error}"),
            },
            Err(error) => tracing::error!("not reloaded: {error}"),
        }
    }

    fn print(&self) -> Result<(), Failure> {
        let statistics = lock(&self.router).statistics().map_err(Failure::run_time)?;
        report::print(self.arguments.json, &statistics)
    }

    fn samples(&self, out: &mut Vec<Sample>) {
        match lock(&self.router).statistics() {
            Ok(statistics) => report::samples(&statistics, out),
            Err(error) => tracing::warn!(%error, "cannot read the counters"),
        }
    }
}

impl State for Forward {
    fn health(&self) -> Result<(), String> {
        let router = lock(&self.router);
        let off: Vec<&str> =
            router.devices().filter(|(_, mode)| mode.is_none()).map(|(name, _)| name).collect();
        if off.is_empty() { Ok(()) } else { Err(format!("not on {}", off.join(", "))) }
    }

    fn configuration(&self) -> String {
        lock(&self.router).config().text.clone()
    }

    fn io(&self) -> Option<String> {
        Some(lock(&self.router).statistics().map_or_else(
            |error| serde_json::json!({ "error": error.to_string() }).to_string(),
            |statistics| statistics.document().to_string(),
        ))
    }
}
