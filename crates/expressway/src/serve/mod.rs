//! `expressway serve`: reads the configuration, opens the data path, runs a worker a core, and follows
//! signals until the last worker has ended.
//!
//! * [`setup`] turns a configuration into what QUIC and request handling are given.
//! * [`data_path`] chooses the I/O mode of each interface and opens what it needs.
//! * [`devices`] says which devices the frames of an address come in on.
//! * [`upkeep`] follows what happens to interfaces while the server runs.
//! * [`events`] is what the main thread waits for.
//! * [`server`] is the running whole: workers, reload, drain.
//! * [`metrics`] shows every layer's counters.

mod data_path;
mod devices;
mod events;
mod metrics;
mod mode;
mod server;
mod setup;
mod upkeep;

use std::io::Write;
use std::process::ExitCode;

use expressway_gateway::config::Config;

use crate::args::Serve;
use crate::fail::Failure;
use server::Server;

/// Serves until told to stop.
pub(crate) fn run(arguments: Serve) -> Result<ExitCode, Failure> {
    let config = load(&arguments)?;
    let files = setup::file_store(&config)?;
    let setup = setup::build(&config, &files, None)?;
    if arguments.check {
        print(&format!("{}: ok\n", arguments.config.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    raise_file_limit();
    Server::start(arguments, config, files, setup)?.run()
}

/// Writes to standard output at once. That nobody reads it is an error like any other, and no panic.
fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| Failure::run_time(format!("standard output: {error}")))
}

/// Reads and checks the configuration, with what the command line overrides.
fn load(arguments: &Serve) -> Result<Config, Failure> {
    let mut config = Config::load(&arguments.config).map_err(Failure::usage)?;
    if let Some(mode) = arguments.io {
        config.io.mode = mode;
    }
    config.io.replace |= arguments.replace;
    config.check_files().map_err(Failure::usage)?;
    Ok(config)
}

/// Open files and connections' files count against RLIMIT_NOFILE: take what the hard limit allows.
fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::debug!(%error, "RLIMIT_NOFILE stays as it is");
    }
}
