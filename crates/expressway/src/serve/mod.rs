//! `expressway serve`: reads the configuration, opens the data path, runs a worker a core, and follows
//! signals until the last worker has ended.
//!
//! * [`setup`] turns a configuration into what QUIC and request handling are given.
//! * [`data_path`] chooses the I/O mode of each interface and opens what it needs.
//! * [`devices`] says which devices the frames of an address come in on.
//! * [`upkeep`] follows what happens to interfaces while the server runs.
//! * [`privilege`] gives up what the server does not need, [`confine`] keeps it from more; [`source`] asks for what
//!   it does.
//! * [`events`] is what the main thread waits for.
//! * [`server`] is the running whole: workers, reload, drain.
//! * [`metrics`] shows every layer's counters.

mod confine;
pub(crate) mod data_path;
mod devices;
mod events;
pub(crate) mod metrics;
mod mode;
mod napi;
mod privilege;
mod server;
mod setup;
pub(crate) mod source;
mod upkeep;

use std::process::ExitCode;

use expressway_gateway::config::Config;

use crate::args::Serve;
use crate::fail::Failure;
use crate::limits::raise_file_limit;
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
    let confinement = match &source {
        Some(Source::Agent(_) | Source::Plugin(_)) => Some(confine::confine(&config)?),
        Some(Source::Own) | None => None,
    };
    let files = setup::file_store(&config)?;
    let setup = setup::build(&config, &files, None)?;
    let Some(source) = source else {
        crate::print(&format!("{}: ok\n", arguments.config.display()))?;
        return Ok(ExitCode::SUCCESS);
    };
    Server::start(arguments, config, (source, confinement), files, setup)?.run()
}

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
