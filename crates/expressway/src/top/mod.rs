//! `expressway top`: what passes an interface ([`flows`]), or what a running process does, from its admin listener.
//!
//! A fan-out shows its subscribers; a gateway its paths and workers, a filter its rules, a balancer its nodes, a router its
//! interfaces, and like any other process the counters of their metrics page that move.

mod balance;
mod counters;
mod drops;
mod flows;
mod forward;
mod gateway;
mod guard;
mod subscribers;

use std::process::ExitCode;
use std::time::Duration;

use expressway_settings::admin::Address;
use serde_json::Value;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::admin::{Admin, Answer};
use crate::args::Top as Arguments;
use crate::fail::Failure;
use crate::screen::Screen;
use crate::signals;
use balance::Balance;
use forward::Forward;
use gateway::Gateway;
use guard::Guard;

/// What is looked at, with the sample before.
enum View {
    Subscribers(Box<subscribers::View>),
    Counters(counters::View),
}

/// Shows until told to stop.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let interval = arguments.interval.0;
    if !(Duration::from_millis(100)..=Duration::from_secs(3600)).contains(&interval) {
        return Err(Failure::usage(format!("--interval is {interval:?}: must be 100ms to 1h")));
    }
    if arguments.interface.is_some() || arguments.flows.replay.is_some() {
        return flows::run(arguments);
    }
    let admin = Admin::of(&arguments.peer)?;
    let signals = signals::receiver(&[SIGINT, SIGTERM])?;
    // The first sample says what there is; rates take a second one.
    let mut view = first(&admin)?;
    let live = !arguments.once && !arguments.json;
    let mut screen = Screen::open(live)?;
    loop {
        if signals.recv_timeout(interval) != Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            return Ok(ExitCode::SUCCESS);
        }
        match view.update(&admin) {
            Ok(()) if arguments.json => crate::print(&format!("{}\n", view.document(&arguments.peer.admin)))?,
            Ok(()) => screen.show(&view.lines(&arguments.peer.admin))?,
            // It may come back; who asked for one sample has none.
            Err(failure) if live => screen.show(&[failure.to_string()])?,
            Err(failure) => return Err(failure),
        }
        if arguments.once {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

fn first(admin: &Admin) -> Result<View, Failure> {
    let view = match admin.page("/subscribers")? {
        Answer::Page(text) => subscribers::View::of(&text).map(|view| View::Subscribers(Box::new(view))),
        Answer::Absent => match admin.page("/metrics")? {
            Answer::Page(text) => counters::View::of(&text).map(View::Counters),
            Answer::Absent => Err("has neither /subscribers nor /metrics: not an expressway process".into()),
        },
    };
    view.map_err(|problem| admin.failure(&problem))
}

impl View {
    fn update(&mut self, admin: &Admin) -> Result<(), Failure> {
        let path = match self {
            Self::Subscribers(_) => "/subscribers",
            Self::Counters(_) => "/metrics",
        };
        let Answer::Page(text) = admin.page(path)? else {
            return Err(admin.failure(&format!("no longer has {path}")));
        };
        let updated = match self {
            Self::Subscribers(view) => view.update(&text),
            Self::Counters(view) => view.update(&text),
        };
        updated.map_err(|problem| admin.failure(&problem))
    }

    fn lines(&self, address: &Address) -> Vec<String> {
        match self {
            Self::Subscribers(view) => view.lines(address),
            Self::Counters(view) => view.lines(match pane(view, address) {
                Some(lines) => [lines, vec![String::new()]].concat(),
                None => vec![format!("process {address}")],
            }),
        }
    }

    fn document(&self, address: &Address) -> Value {
        match self {
            Self::Subscribers(view) => view.document(address),
            Self::Counters(view) => {
                let mut document = view.document(address);
                let panes = [
                    ("gateway", Gateway::of(view).map(|gateway| gateway.document())),
                    ("guard", Guard::of(view).map(|guard| guard.document())),
                    ("balance", Balance::of(view).map(|balance| balance.document())),
                    ("forward", Forward::of(view).map(|forward| forward.document())),
                ];
                for (name, pane) in panes {
                    if let Some(pane) = pane {
                        document[name] = pane;
                    }
                }
                document
            }
        }
    }
}

/// What is known of a process by what it is, for people.
fn pane(view: &counters::View, address: &Address) -> Option<Vec<String>> {
    let gateway = || Gateway::of(view).map(|gateway| gateway.lines(view, address));
    let guard = || Guard::of(view).map(|guard| guard.lines(address));
    let balance = || Balance::of(view).map(|balance| balance.lines(address));
    let forward = || Forward::of(view).map(|forward| forward.lines(address));
    gateway().or_else(guard).or_else(balance).or_else(forward)
}

/// `1234567` as `1.23M`.
fn short(value: f64) -> String {
    let (scaled, unit) = match value {
        value if value >= 1e9 => (value / 1e9, "G"),
        value if value >= 1e6 => (value / 1e6, "M"),
        value if value >= 1e4 => (value / 1e3, "k"),
        value => return format!("{value:.0}"),
    };
    format!("{scaled:.*}{unit}", if scaled < 10.0 { 2 } else { 1 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        for (value, text) in
            [(0.0, "0"), (9999.0, "9999"), (12_345.0, "12.3k"), (1_234_567.0, "1.23M"), (2.5e9, "2.50G")]
        {
            assert_eq!(short(value), text);
        }
    }
}
