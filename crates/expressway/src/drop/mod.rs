//! `expressway drop`: the baseline programs of the XDP paper on one interface, with rates by core.

mod rates;

use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use expressway_netio::xsk::interface_index;
use expressway_xbpf::{Action, AttachMode, Attachment, Baseline, Error, Existing};
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::args::Drop;
use crate::fail::Failure;
use crate::signals;
use rates::{Rates, Reading};

/// How often rates are printed.
const SECOND: Duration = Duration::from_secs(1);

/// Attaches, reports, detaches.
pub(crate) fn run(arguments: &Drop) -> Result<ExitCode, Failure> {
    if arguments.to.is_some() && arguments.action != Action::Redirect {
        return Err(Failure::usage(format!(
            "--to: action {} does not redirect to another interface",
            arguments.action
        )));
    }
    let signals = signals::receiver(&[SIGTERM, SIGINT])?;
    let index = index_of(&arguments.interface)?;
    let to = arguments.to.as_deref().map(index_of).transpose()?;
    let mode = if arguments.generic { AttachMode::Generic } else { AttachMode::Native };
    let existing = if arguments.replace { Existing::Replace } else { Existing::Refuse };
    let baseline = Baseline::load(arguments.action, index, to).map_err(Failure::run_time)?;
    let attachment = baseline.attach(index, mode, existing).map_err(|error| match error {
        Error::NoNativeXdp { interface } => {
            Failure::run_time(format!("{interface}: the driver does not support native XDP; use --generic"))
        }
        other => Failure::run_time(other),
    })?;
    // Before anybody is told that it is ready: what comes from then on counts.
    let mut rates = Rates::new(read(arguments, &baseline)?);
    if !arguments.json {
        crate::print(&format!(
            "ready interface={} action={} mode={}\n",
            arguments.interface,
            arguments.action,
            mode.name()
        ))?;
    }
    let result = watch(arguments, &baseline, &attachment, &signals, &mut rates);
    std::mem::drop(attachment);
    report(arguments, mode, &rates)?;
    result.map(|()| ExitCode::SUCCESS)
}

fn read(arguments: &Drop, baseline: &Baseline) -> Result<Reading, Failure> {
    Reading::take(baseline, arguments.action, &arguments.interface).map_err(Failure::run_time)
}

/// Prints a line a second until it is time to end.
fn watch(
    arguments: &Drop,
    baseline: &Baseline,
    attachment: &Attachment,
    signals: &Receiver<i32>,
    rates: &mut Rates,
) -> Result<(), Failure> {
    let started = Instant::now();
    let end = arguments.seconds.map(|seconds| started + Duration::from_secs(seconds));
    let mut next = started + SECOND;
    loop {
        let until = end.map_or(next, |end| end.min(next));
        let stop = match signals.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(_) | Err(RecvTimeoutError::Disconnected) => true,
            Err(RecvTimeoutError::Timeout) => end.is_some_and(|end| Instant::now() >= end),
        };
        if !attachment.is_attached().map_err(Failure::run_time)? {
            return Err(Failure::run_time(format!(
                "interface {}: interface removed or XDP program detached by someone else",
                arguments.interface
            )));
        }
        let line = rates.second(read(arguments, baseline)?);
        if stop {
            return Ok(());
        }
        next += SECOND;
        if !arguments.json {
            crate::print(&line)?;
        }
    }
}

fn report(arguments: &Drop, mode: AttachMode, rates: &Rates) -> Result<(), Failure> {
    if !arguments.json {
        return crate::print(&rates.summary());
    }
    let mut document = rates.document();
    document["interface"] = json!(arguments.interface);
    document["action"] = json!(arguments.action.name());
    document["to"] = json!(arguments.to);
    document["mode"] = json!(mode.name());
    crate::print(&format!("{document}\n"))
}

fn index_of(name: &str) -> Result<u32, Failure> {
    interface_index(name).map_err(|_| {
        Failure::run_time(format!(
            "interface {name}: no such interface in this network namespace; see `ip link`"
        ))
    })
}
