//! `expressway guard`: a filter in XDP, until a signal.

mod report;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use expressway_edge::guard::{Config, Error, Filter};
use expressway_gateway::admin::{Admin, Limits, State};
use expressway_gateway::metrics::Registry;
use expressway_xbpf::Existing;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};

use crate::args::Guard as Arguments;
use crate::fail::Failure;
use crate::signals;

/// How often interfaces and tables are looked after.
const UPKEEP: Duration = Duration::from_secs(1);

/// The filter, for its upkeep and the admin pages.
#[derive(Clone)]
struct Shared(Arc<Mutex<Filter>>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Filter> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State for Shared {
    fn health(&self) -> Result<(), String> {
        self.lock().health()
    }

    fn configuration(&self) -> String {
        self.lock().config().text.clone()
    }

    fn io(&self) -> Option<String> {
        self.lock().status().ok().map(|status| report::document(&status))
    }
}

/// Filters until told to stop.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let config = load(arguments)?;
    if arguments.check {
        crate::print(&format!("{}: ok\n", arguments.config.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let signals = signals::receiver(&[SIGTERM, SIGINT, SIGHUP, SIGUSR1])?;
    let address = config.admin;
    let filter = Shared(Arc::new(Mutex::new(Filter::start(config).map_err(Failure::run_time)?)));
    let _admin = address.map(|address| admin(address, &filter)).transpose()?;
    if !arguments.json {
        crate::print(&report::ready(filter.lock().interfaces()))?;
    }
    watch(arguments, &filter, &signals)?;
    // At the end lines would only be in the way of what the shell prints next.
    if arguments.json {
        print(arguments, &filter)?;
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

/// Serves signals until one says stop.
fn watch(arguments: &Arguments, filter: &Shared, signals: &Receiver<i32>) -> Result<(), Failure> {
    let mut next = Instant::now() + UPKEEP;
    loop {
        match signals.recv_timeout(next.saturating_duration_since(Instant::now())) {
            Ok(SIGHUP) => reload(arguments, filter),
            // Nobody reads it any more, perhaps; the filter is needed still.
            Ok(SIGUSR1) => {
                if let Err(error) = print(arguments, filter) {
                    tracing::error!("statistics not printed: {error}");
                }
            }
            Ok(_) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
            Err(RecvTimeoutError::Timeout) => {
                filter.lock().upkeep();
                next = Instant::now() + UPKEEP;
            }
        }
    }
}

/// A filter that cannot be changed goes on as it is.
fn reload(arguments: &Arguments, filter: &Shared) {
    // Lists are read before anybody has to wait.
    let result = load(arguments).map(|config| filter.lock().change(config));
    match result {
        Ok(Ok(())) => tracing::info!(config = %arguments.config.display(), "configuration reloaded"),
        Ok(Err(error @ Error::Partly(_))) => tracing::error!("{error}"),
        Ok(Err(error)) => tracing::error!("configuration not reloaded, the earlier one stays: {error}"),
        Err(error) => tracing::error!("configuration not reloaded, the earlier one stays: {error}"),
    }
}

fn print(arguments: &Arguments, filter: &Shared) -> Result<(), Failure> {
    let status = filter.lock().status().map_err(Failure::run_time)?;
    crate::print(&if arguments.json { report::document(&status) } else { report::lines(&status) })
}

fn admin(address: SocketAddr, filter: &Shared) -> Result<Admin, Failure> {
    let registry = Registry::with_summary(crate::metrics::drops);
    let source = filter.clone();
    registry.register(move |out: &mut Vec<_>| {
        if let Ok(status) = source.lock().status() {
            report::samples(&status, out);
        }
    });
    Admin::start(address, Limits::default(), registry, Arc::new(filter.clone()))
        .map_err(|error| Failure::run_time(format!("admin.listen {address}: {error}")))
}
