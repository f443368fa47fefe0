//! `expressway guard`: a filter in XDP, until a signal.

mod report;

use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use expressway_edge::guard::{Config, Error, Filter};
use expressway_gateway::admin::State;
use expressway_gateway::metrics::Sample;
use expressway_xbpf::Existing;

use crate::args::Guard as Arguments;
use crate::daemon::{self, Daemon, lock};
use crate::fail::Failure;

/// Filters until told to stop.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let config = load(arguments)?;
    if arguments.check {
        crate::print(&format!("{}: ok\n", arguments.config.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let signals = daemon::signals()?;
    let address = config.admin;
    let filter = Mutex::new(Filter::start(config).map_err(Failure::run_time)?);
    let guard = Arc::new(Guard { filter, arguments: arguments.clone() });
    let _admin = daemon::admin(address, &guard, |_| ())?;
    if !arguments.json {
        crate::print(&report::ready(lock(&guard.filter).interfaces()))?;
    }
    daemon::watch(&*guard, &signals);
    // At the end lines would only be in the way of what the shell prints next.
    if arguments.json {
        guard.print()?;
    }
    Ok(ExitCode::SUCCESS)
}

fn load(arguments: &Arguments) -> Result<Config, Failure> {
    let mut config = Config::load(&arguments.config).map_err(Failure::usage)?;
    config.options.dry_run |= arguments.dry_run;
    if arguments.replace {
        config.manner.existing = Existing::Replace;
    }
    Ok(config)
}

/// The filter, for its upkeep and the admin pages.
struct Guard {
    filter: Mutex<Filter>,
    arguments: Arguments,
}

impl Daemon for Guard {
    const UPKEEP: Duration = Duration::from_secs(1);

    fn upkeep(&self) {
        lock(&self.filter).upkeep();
    }

    fn reload(&self) {
        // Lists are read before anybody has to wait.
        let result = load(&self.arguments).map(|config| lock(&self.filter).change(config));
        match result {
            Ok(Ok(())) => {
                tracing::info!(config = %self.arguments.config.display(), "configuration reloaded");
            }
            Ok(Err(error @ Error::Partly(_))) => tracing::error!("{error}"),
            Ok(Err(error)) => tracing::error!("configuration not reloaded, the earlier one stays: {error}"),
            Err(error) => tracing::error!("configuration not reloaded, the earlier one stays: {error}"),
        }
    }

    fn print(&self) -> Result<(), Failure> {
        let status = lock(&self.filter).status().map_err(Failure::run_time)?;
        crate::print(&if self.arguments.json { report::document(&status) } else { report::lines(&status) })
    }

    fn samples(&self, out: &mut Vec<Sample>) {
        match lock(&self.filter).status() {
            Ok(status) => report::samples(&status, out),
            Err(error) => tracing::warn!(%error, "cannot read the counters"),
        }
    }
}

impl State for Guard {
    fn health(&self) -> Result<(), String> {
        lock(&self.filter).health()
    }

    fn configuration(&self) -> String {
        lock(&self.filter).config().text.clone()
    }

    fn io(&self) -> Option<String> {
        lock(&self.filter).status().ok().map(|status| report::document(&status))
    }
}
