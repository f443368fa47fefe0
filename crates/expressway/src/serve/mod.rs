//! `expressway serve`: reads the configuration, opens the data path, runs a worker a core, and follows
//! signals until the last worker has ended.
//!
//! * [`setup`] turns a configuration into what QUIC and request handling are given.
//! * [`data_path`] is what all workers share: interfaces with their programs, and the way to each worker.
//! * [`opening`] opens one interface: program, sockets, self-test, and how each queue sends.
//! * [`cores`] says how many workers there are and where they run.
//! * [`devices`] says which devices the frames of an address come in on.
//! * [`upkeep`] follows what happens to interfaces while the server runs, [`agent_watch`] what happens to the agent;
//!   both try again after the pauses of [`backoff`].
//! * [`persistence`] begins a start anew that an agent went away from.
//! * [`privilege`] gives up what the server does not need, [`confine`] keeps it from more; [`source`] asks for what
//!   it does.
//! * [`events`] is what the main thread waits for.
//! * [`logs`] opens access logs, and knows those that have not ended.
//! * [`server`] is the running whole: workers, reload, drain.
//! * [`metrics`] shows every layer's counters.

mod agent_watch;
mod backoff;
mod confine;
mod cores;
pub(crate) mod data_path;
mod devices;
mod events;
mod logs;
pub(crate) mod metrics;
mod napi;
mod opening;
mod persistence;
mod privilege;
mod report;
mod server;
mod setup;
pub(crate) mod source;
mod upkeep;

use std::process::ExitCode;

use expressway_gateway::config::{Config, Io, Workers};
use expressway_netio::route::{Link, Snapshot};

use crate::args::Serve;
use crate::choice::{Obtained, Receive, StepDown, Transmit};
use crate::fail::Failure;
use crate::limits::{self, raise_file_limit};
pub(crate) use cores::allowed as allowed_cores;
use data_path::Purpose;
use logs::Logs;
use privilege::Identity;
use server::Server;
use source::Source;

/// Serves until told to stop.
pub(crate) fn run(arguments: Serve) -> Result<ExitCode, Failure> {
    let mut config = load(&arguments)?;
    let identity = Identity::of(&config)?;
    let mut agent = None;
    if let Some(identity) = identity {
        raise_file_limit();
        let has_another = config.io.agent.is_some() || config.io.device_plugin.is_some();
        if !has_another && !arguments.check {
            agent = Some(privilege::start_agent(&config)?);
        }
        identity.assume()?;
        // What a reload will read, this user has to be able to read now.
        config = load(&arguments)?;
    }
    raise_file_limit();
    let source = match agent {
        _ if arguments.check => None,
        Some(socket) => Some(Source::Agent(privilege::client(socket)?)),
        None => Some(Source::of(&config)?),
    };
    // Threads inherit it: the reader threads of the files are the first.
    // What the CPU quota and the memory limit are, a confined process cannot read, nor what machine this is.
    let memory = limits::memory();
    let workers = match config.server.workers {
        Workers::Auto => cores::workers(),
        Workers::Count(count) => usize::from(count),
    };
    let instance = match source {
        Some(_) => setup::instance(&config)?,
        None => Default::default(),
    };
    let confinement = match &source {
        Some(Source::Agent(_) | Source::Plugin(_)) => Some(confine::confine(&config)?),
        Some(Source::Own) | None => None,
    };
    let files = setup::file_store(&config, workers, memory)?;
    let mut logs = Logs::default();
    let mut setup = setup::build(&config, &files, &mut logs, None)?;
    setup.settings.instance = instance;
    let Some(source) = source else {
        crate::print(&format!("{}: ok\n", arguments.config.display()))?;
        return Ok(ExitCode::SUCCESS);
    };
    Server::start(arguments, config, (source, confinement), workers, (files, logs), setup)?.run()
}

/// Opens an interface as `serve` would in that configuration with what takes privilege from `source`, says what its
/// queues do, and takes all off again.
///
/// # Errors
/// Why it has no express path, with the steps down.
pub(crate) fn try_mode(
    config: &Io,
    source: &Source,
    link: &Link,
    is_member: bool,
    snapshot: &Snapshot,
) -> Result<Tried, (String, Vec<StepDown>)> {
    let device = devices::Device { link: link.clone(), is_member };
    let opened = opening::open((config, &Purpose::SERVE), source, &device, snapshot, 1)
        .map_err(|(reason, steps)| (reason.to_string(), steps))?;
    let queues = opened.way.queues().into_iter().map(|way| (way.receive, way.transmit)).collect();
    Ok((opened.way.obtained(), queues, opened.way.step_downs()))
}

/// What an interface obtained, what each queue does, and the steps down on the way.
pub(crate) type Tried = (Obtained, Vec<(Receive, Transmit)>, Vec<StepDown>);

/// Reads and checks the configuration, with what the command line overrides.
fn load(arguments: &Serve) -> Result<Config, Failure> {
    let mut config = Config::load(&arguments.config).map_err(Failure::usage)?;
    if let Some(mode) = arguments.io {
        config.io.mode = mode;
    }
    config.io.replace |= arguments.replace;
    if let Some(agent) = &arguments.agent {
        config.io.agent = Some(agent.clone());
    }
    config.check_files().map_err(Failure::usage)?;
    Ok(config)
}
