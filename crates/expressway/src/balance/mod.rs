//! `expressway balance`: services over nodes, until a signal.

mod report;

use std::net::IpAddr;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use expressway_edge::balance::{Balancer, Config, Error};
use expressway_gateway::admin::{Admin, Limits, State};
use expressway_gateway::metrics::Registry;
use expressway_xbpf::Existing;
use serde::Deserialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};

use crate::args::Balance as Arguments;
use crate::fail::Failure;
use crate::signals;

/// How often health, neighbours and interfaces are looked after.
const TICK: Duration = Duration::from_millis(200);

/// Balances until told to stop.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let config = Config::load(&arguments.config).map_err(Failure::usage)?;
    if arguments.check {
        crate::print(&format!("{}: ok\n", arguments.config.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let signals = signals::receiver(&[SIGTERM, SIGINT, SIGHUP, SIGUSR1])?;
    let existing = if arguments.replace { Existing::Replace } else { Existing::Refuse };
    let listen = config.admin;
    let desk = Desk { balancer: Mutex::new(Balancer::start(config, existing).map_err(Failure::run_time)?) };
    let desk = Arc::new(desk);
    let _admin = listen
        .map(|address| {
            let registry = Registry::with_summary(crate::metrics::drops);
            let counted = desk.clone();
            registry.register(move |out: &mut Vec<_>| {
                if let Ok(status) = counted.lock().status() {
                    report::samples(&status, out);
                }
            });
            Admin::start(address, Limits::default(), registry, desk.clone())
                .map_err(|error| Failure::run_time(format!("[admin] listen {address}: {error}")))
        })
        .transpose()?;
    report::ready(arguments.json, &desk.lock())?;
    watch(arguments, &desk, &signals);
    print(arguments, &desk)?;
    Ok(ExitCode::SUCCESS)
}

/// Serves signals, and does what time brings between them.
fn watch(arguments: &Arguments, desk: &Desk, signals: &Receiver<i32>) {
    let mut problem = None;
    loop {
        match signals.recv_timeout(TICK) {
            Ok(SIGHUP) => reload(arguments, desk),
            Ok(SIGUSR1) => {
                if let Err(error) = print(arguments, desk) {
                    tracing::warn!("statistics not printed: {error}");
                }
            }
            Ok(_) | Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => tick(desk, &mut problem),
        }
    }
}

/// What fails is tried again the next time, and told once; packets go on as the program was last told.
fn tick(desk: &Desk, problem: &mut Option<String>) {
    let result = desk.lock().tick().map_err(|error| error.to_string());
    match result {
        Err(error) if problem.as_ref() != Some(&error) => {
            tracing::warn!(%error, "services are not looked after: trying again");
            *problem = Some(error);
        }
        Err(_) => {}
        Ok(()) if problem.take().is_some() => tracing::info!("services are looked after again"),
        Ok(()) => {}
    }
}

/// The file again. What is wrong with it is logged, and the old one stays.
fn reload(arguments: &Arguments, desk: &Desk) {
    let config = match Config::load(&arguments.config) {
        Ok(config) => config,
        Err(error) => {
            tracing::warn!(%error, "not reloaded: the old configuration stays");
            return;
        }
    };
    match desk.lock().apply(config) {
        Ok(()) => tracing::info!("reloaded"),
        Err(error @ (Error::Restart(_) | Error::Full(_))) => {
            tracing::warn!(%error, "not reloaded: the old configuration stays");
        }
        Err(error) => tracing::warn!(%error, "reloaded in part: reload again"),
    }
}

fn print(arguments: &Arguments, desk: &Desk) -> Result<(), Failure> {
    let status = desk.lock().status().map_err(Failure::run_time)?;
    report::print(arguments.json, &status)
}

/// What the admin listener shows and takes orders for.
struct Desk {
    balancer: Mutex<Balancer>,
}

impl Desk {
    fn lock(&self) -> MutexGuard<'_, Balancer> {
        self.balancer.lock().unwrap_or_else(PoisonError::into_inner)
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

fn yes() -> bool {
    true
}

impl State for Desk {
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
}
