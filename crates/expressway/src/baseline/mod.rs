//! `expressway drop`: the baseline programs of the XDP paper on one interface, with rates by core.

mod rates;

use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use clap::Args;
use expressway_netio::express::interface_index;
use expressway_xbpf::{Action, AttachMode, Attachment, Baseline, Error, Existing};
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::fail::Failure;
use rates::{Rates, Reading};

/// How often rates are printed.
const SECOND: Duration = Duration::from_secs(1);

/// Which program goes where.
#[derive(Args)]
pub(crate) struct Drop {
    /// Interface to attach the program to
    #[arg(short, long, value_name = "IFACE")]
    pub(crate) interface: String,
    /// What to do with each packet: drop; pass (uncounted: the cost of having a program); count (and pass); touch (reads
    /// the Ethernet header, then drops); tx (swaps MACs, sends it back; to a veth only while its peer has an XDP program);
    /// redirect (swaps MACs, sends it out on --to)
    #[arg(long, value_name = "ACTION", default_value = "drop")]
    pub(crate) action: Action,
    /// Interface that redirect sends to, through a DEVMAP
    #[arg(long, value_name = "IFACE", required_if_eq("action", "redirect"))]
    pub(crate) to: Option<String>,
    /// Use generic XDP, in the network stack on socket buffers, instead of the driver
    #[arg(long)]
    pub(crate) generic: bool,
    /// Detach a foreign XDP program from the interface first
    #[arg(long)]
    pub(crate) replace: bool,
    /// Exit after this many seconds [default: on a signal]
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) seconds: Option<u64>,
    /// Print one JSON document at the end instead of lines
    #[arg(long)]
    pub(crate) json: bool,
}

/// Attaches, reports, detaches.
pub(crate) fn run(arguments: &Drop) -> Result<ExitCode, Failure> {
    if arguments.to.is_some() && arguments.action != Action::Redirect {
        return Err(Failure::usage(format!(
            "--to: action {} does not redirect to another interface",
            arguments.action
        )));
    }
    let signals = signals()?;
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
    signals: &Receiver<()>,
    rates: &mut Rates,
) -> Result<(), Failure> {
    let started = Instant::now();
    let end = arguments.seconds.map(|seconds| started + Duration::from_secs(seconds));
    let mut next = started + SECOND;
    loop {
        let until = end.map_or(next, |end| end.min(next));
        let stop = match signals.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(()) | Err(RecvTimeoutError::Disconnected) => true,
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

/// Says once that the process is to end.
fn signals() -> Result<Receiver<()>, Failure> {
    let failed = |error: std::io::Error| Failure::run_time(format!("signal handlers: {error}"));
    let (sender, receiver) = channel();
    let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(failed)?;
    let follow = move || {
        if signals.forever().next().is_some() {
            // Nobody listens any more: the process ends already.
            let _ = sender.send(());
        }
    };
    std::thread::Builder::new().name("expressway-signal".into()).spawn(follow).map_err(failed)?;
    Ok(receiver)
}
