//! `expressway serve`: reads the configuration, opens the data path, runs a worker a core, and follows
//! signals until the last worker has ended.
//!
//! * [`config`] is the configuration file; [`setup`] turns it into what QUIC and request handling are given.
//! * [`privilege`] gives up what the server does not need, [`confine`] keeps it from more.
//! * [`qlog`] records the events of a connection.
//! * [`tcp`] is what is served over TCP.
//! * [`events`] is what the main thread waits for.
//! * [`keys`] follows the document of keys that several servers share.
//! * [`local`] is the configuration for a directory that is served without one.
//! * [`logs`] opens access logs, and knows those that have not ended.
//! * [`server`] is the running whole: workers, reload, drain; [`status`] what its admin listener shows.
//! * [`tls`] reads certificates and keeps ticket keys.
//! * [`upgrade`] puts another process in this one's place.
//! * [`metrics`] shows every layer's counters.

mod config;
mod confine;
mod events;
mod keys;
mod local;
mod logs;
mod metrics;
mod privilege;
mod qlog;
mod server;
mod setup;
mod status;
mod tcp;
mod tls;
mod trace;
mod upgrade;

use std::process::ExitCode;

use expressway_dataplane::Provider;
use expressway_gateway::admin::Listener;
use expressway_settings::admin::Section;

use crate::args::Serve;
use crate::daemon;
use crate::fail::Failure;
use crate::limits::{self, raise_file_limit};
use config::{Config, Workers};
use logs::Logs;
use privilege::Identity;
use server::{Server, Sockets};
use tls::Fixed;
use upgrade::handover::Step;
use upgrade::inheritance::Inheritance;
use upgrade::launcher::Launcher;

pub(crate) use upgrade::launcher::run as launch;

/// Serves until told to stop.
pub(crate) fn run(arguments: Serve) -> Result<ExitCode, Failure> {
    let inheritance = if arguments.take_over { Inheritance::receive()? } else { Inheritance::none() };
    let teller = inheritance.teller();
    match start(arguments, inheritance) {
        Ok(Some(server)) => {
            drop(teller);
            server.run()
        }
        Ok(None) => Ok(ExitCode::SUCCESS),
        Err(failure) => {
            teller.failed(&failure);
            Err(failure)
        }
    }
}

/// A server that is ready, unless the configuration was only to be checked.
fn start(arguments: Serve, inheritance: Inheritance) -> Result<Option<Server>, Failure> {
    let mut config = load(&arguments)?;
    let identity = Identity::of(&config)?;
    raise_file_limit();
    // Ports below 1024 take a privilege.
    let udp = inheritance.udp(&config.listen(), workers(&config))?;
    let listeners =
        if arguments.check { Vec::new() } else { tcp::bind(&config, tcp_workers(&config), &inheritance)? };
    let admin = config.admin.as_ref().filter(|_| !arguments.check);
    let admin = admin.map(|section| admin_listener(section, &inheritance)).transpose()?;
    let is_confined = identity.is_some() || config.io.agent.is_some() || config.io.device_plugin.is_some();
    let launcher = (is_confined && !arguments.check).then(Launcher::start).transpose()?;
    let mut agent = None;
    if let Some(identity) = identity {
        let has_another = config.io.agent.is_some() || config.io.device_plugin.is_some();
        if !has_another && !arguments.check {
            agent = Some(privilege::start_agent(&config)?);
        }
        identity.assume()?;
        // What a reload will read, this user has to be able to read now.
        config = load(&arguments)?;
    }
    let provider = match agent {
        _ if arguments.check => None,
        Some(socket) => Some(Provider::Agent(privilege::client(socket)?)),
        None => Some(Provider::of(&config.io, "serve")?),
    };
    // Threads inherit it: the reader threads of the files are the first.
    // What the CPU quota and the memory limit are, a confined process cannot read, nor what machine this is.
    let memory = limits::memory();
    let workers = workers(&config);
    let fixed = Fixed::new(&config, arguments.check)?;
    let instance = match provider {
        Some(_) => setup::instance(&config, &fixed, inheritance.place())?,
        None => Default::default(),
    };
    let filter_keys = config.filter_keys().map_err(Failure::usage)?;
    let confinement = match &provider {
        Some(Provider::Agent(_) | Provider::Plugin(_)) => Some(confine::confine(&config)?),
        Some(Provider::Own) | None => None,
    };
    inheritance.step(Step::Prepared)?;
    let files = setup::file_store(&config, workers, memory)?;
    let mut logs = Logs::default();
    let origins = setup::origins(&config)?;
    let cache = match &provider {
        Some(_) => setup::cache(&config, &files, &origins)?,
        None => None,
    };
    let mut setup = setup::build(&config, &fixed, &files, (&origins, cache.as_ref()), &mut logs, None)?;
    tls::adopt(&config, &fixed)?;
    setup.settings.instance = instance;
    setup.settings.filter_keys = filter_keys;
    let Some(provider) = provider else {
        let effective = config.effective().map_err(Failure::run_time)?;
        crate::print(&format!("# {}: ok; with defaults:\n\n{effective}", config.file().display()))?;
        return Ok(None);
    };
    if let Some(directory) = &arguments.directory {
        local::say(directory, &config);
    }
    Server::start(
        arguments,
        config,
        (provider, confinement),
        workers,
        (files, origins, cache, logs),
        (fixed, setup, Sockets { tcp: listeners, admin, udp, launcher }),
        inheritance,
    )
    .map(Some)
}

/// That of the process before, or a new one.
fn admin_listener(section: &Section, inheritance: &Inheritance) -> Result<Listener, Failure> {
    match inheritance.admin(&section.listen.get_ref().to_string()) {
        Some(socket) => Listener::adopt(section, socket)
            .map_err(|error| Failure::run_time(format!("{} {error}", daemon::OF_FILE.0))),
        None => daemon::listener(section, daemon::OF_FILE),
    }
}

/// Workers that handle packets.
fn workers(config: &Config) -> usize {
    match config.server.workers {
        Workers::Auto => crate::cores::workers(),
        Workers::Count(count) => usize::from(count),
    }
}

/// Workers that serve TCP.
fn tcp_workers(config: &Config) -> usize {
    tcp::workers(config, workers(config))
}

/// Reads and checks the configuration, with what the command line overrides.
fn load(arguments: &Serve) -> Result<Config, Failure> {
    let mut config = match (&arguments.config, &arguments.directory) {
        (Some(file), _) => Config::load(file).map_err(Failure::usage)?,
        (None, directory) => local::config(directory.as_deref(), &arguments.listen)?,
    };
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
