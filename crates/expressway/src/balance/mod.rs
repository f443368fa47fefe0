//! `expressway balance`: services over nodes, until a signal.

mod report;

use std::net::IpAddr;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use expressway_edge::balance::{Balancer, Config, Error};
use expressway_gateway::admin::State;
use expressway_metrics::Sample;
use expressway_xbpf::Existing;
use serde::Deserialize;

use crate::args::Balance as Arguments;
use crate::daemon::{self, Daemon, lock};
use crate::fail::Failure;
use crate::metrics;

/// Balances until told to stop.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let config = Config::load(&arguments.config).map_err(Failure::usage)?;
    if arguments.check {
        crate::print(&format!("{}: ok\n", arguments.config.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let signals = daemon::signals()?;
    let existing = if arguments.replace { Existing::Replace } else { Existing::Refuse };
    let section = config.admin.clone();
    let balancer = Mutex::new(Balancer::start(config, existing).map_err(Failure::run_time)?);
    let balance = Arc::new(Balance { balancer, problem: Mutex::default(), arguments: arguments.clone() });
    let admin = daemon::admin(section.as_ref(), &balance, |_| ())?;
    report::ready(arguments.json, &balance.lock())?;
    daemon::watch(&*balance, admin.as_ref(), &signals);
    balance.print()?;
    Ok(ExitCode::SUCCESS)
}

/// The balancer, for its upkeep, the admin pages and orders.
struct Balance {
    balancer: Mutex<Balancer>,
    /// Why the upkeep failed last, which is told once.
    problem: Mutex<Option<String>>,
    arguments: Arguments,
}

impl Balance {
    fn lock(&self) -> MutexGuard<'_, Balancer> {
        lock(&self.balancer)
    }
}

impl Daemon for Balance {
    /// How often health, neighbours and interfaces are looked after.
    const UPKEEP: Duration = Duration::from_millis(200);

    /// Packets go on as the program was last told.
    fn upkeep(&self) {
        let result = self.lock().tick().map_err(|error| error.to_string());
        let mut problem = lock(&self.problem);
        match result {
            Err(error) if problem.as_ref() != Some(&error) => {
                tracing::warn!(%error, "maintenance of services failed: retrying");
                *problem = Some(error);
            }
            Err(_) => {}
            Ok(()) if problem.take().is_some() => tracing::info!("maintenance of services resumed"),
            Ok(()) => {}
        }
    }

    fn reload(&self) {
        let config = match Config::load(&self.arguments.config) {
            Ok(config) => config,
            Err(error) => {
                tracing::warn!(%error, "not reloaded: keeping the old configuration");
                return;
            }
        };
        match self.lock().apply(config) {
            Ok(()) => tracing::info!("reloaded"),
            Err(error @ (Error::Restart(_) | Error::Keys(_) | Error::Full(_))) => {
                tracing::warn!(%error, "not reloaded: keeping the old configuration");
            }
            Err(error) => tracing::warn!(%error, "partly reloaded: reload again"),
        }
    }

    fn print(&self) -> Result<(), Failure> {
        let status = self.lock().status().map_err(Failure::run_time)?;
        report::print(self.arguments.json, &status)
    }

    fn samples(&self, out: &mut Vec<Sample>) {
        let mut balancer = self.lock();
        match balancer.status() {
            Ok(status) => report::samples(&status, out),
            Err(error) => tracing::warn!(%error, "cannot read the counters"),
        }
        if let Some(keys) = balancer.keys() {
            metrics::shared_keys(&keys, out);
        }
    }
}

/// `POST /drain`
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Order {
    service: String,
    node: IpAddr,
    #[serde(default = "yes")]
    drain: bool,
}

/// `POST /weight`
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Weight {
    service: String,
    node: IpAddr,
    weight: u32,
}

fn yes() -> bool {
    true
}

impl State for Balance {
    fn health(&self) -> Result<(), String> {
        self.lock().health()
    }

    fn configuration(&self) -> String {
        self.lock().config().text.clone()
    }

    fn services(&self) -> Option<String> {
        let status = self.lock().status().ok()?;
        Some(format!("{}\n", report::document(&status)))
    }

    fn drain(&self, order: &[u8]) -> Option<Result<String, String>> {
        let obey = |order: Order| {
            self.lock().drain(&order.service, order.node, order.drain).map_err(|error| error.to_string())?;
            let state = if order.drain { "draining" } else { "in service" };
            Ok(format!(r#"{{"node":"{}","state":"{state}"}}"#, order.node))
        };
        Some(serde_json::from_slice(order).map_err(|error| error.to_string()).and_then(obey))
    }

    fn weight(&self, order: &[u8]) -> Option<Result<String, String>> {
        let obey = |order: Weight| {
            let done = self.lock().set_weight(&order.service, order.node, order.weight);
            done.map_err(|error| error.to_string())?;
            Ok(format!(r#"{{"node":"{}","weight":{}}}"#, order.node, order.weight))
        };
        Some(serde_json::from_slice(order).map_err(|error| error.to_string()).and_then(obey))
    }
}
