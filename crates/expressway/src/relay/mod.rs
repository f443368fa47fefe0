//! `expressway relay`: live media from publishers to receivers, until a signal.

mod groups;
mod http;
mod moq;
mod report;
mod workers;

use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use expressway_dataplane::{DataPath, Provider};
use expressway_gateway::admin::State;
use expressway_metrics::Sample;
use expressway_netio::udp::{SendOptions, UdpConfig};
use expressway_netio::xsk::interface_index;
use expressway_relay::webrtc::answer::Identity;
use expressway_relay::{Config, service};

use crate::args::Relay as Arguments;
use crate::daemon::{self, Daemon, lock};
use crate::fail::Failure;
use crate::metrics;
use groups::Groups;
use http::Http;
use moq::Moq;
use workers::Workers;

/// Relays until told to stop.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let config = load(arguments)?;
    if arguments.check {
        crate::print(&format!("{}: ok\n", arguments.config.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let signals = daemon::signals()?;
    let provider = Provider::agent_or_own(config.io.agent.as_deref(), "relay")?;
    let (path, ios) = DataPath::open(data_path(&config)?, provider, config.workers)?;
    let groups = Groups::join(&config, &ios)?;
    let status = service::status(&config);
    let listeners = http::bind(&config)?;
    let identity = Arc::new(Identity::new().map_err(Failure::run_time)?);
    let moq = Moq::new(&config, &status, ios.len())?;
    let workers = Workers::start(&config, ios, &status, &identity, moq.as_ref())?;
    let cells = workers.cells();
    let http = Http::start(&config, listeners, identity, workers.mailboxes())?;
    let http_stats = http.as_ref().map(Http::stats);
    let relay = Arc::new(Relay {
        arguments: arguments.clone(),
        config: Mutex::new(config),
        path: Mutex::new(path),
        groups: Mutex::new(groups),
        workers: Mutex::new(workers),
        http,
        moq,
        status,
    });
    let section = lock(&relay.config).admin.clone();
    let admin = daemon::admin(section.as_ref(), &relay, |registry| {
        for (worker, cell) in cells.into_iter().enumerate() {
            metrics::register_worker(registry, worker, cell);
        }
        if let Some(stats) = http_stats {
            metrics::register_tcp(registry, stats);
        }
    })?;
    report::ready(arguments.json, &lock(&relay.config), &lock(&relay.path))?;
    daemon::watch(&*relay, admin.as_ref(), &signals);
    drop(admin);
    let result = lock(&relay.workers).stop();
    lock(&relay.path).finish();
    relay.print()?;
    result.map(|()| ExitCode::SUCCESS)
}

fn load(arguments: &Arguments) -> Result<Config, Failure> {
    let mut config = Config::load(&arguments.config).map_err(Failure::usage)?;
    if let Some(mode) = arguments.io {
        config.io.mode = mode;
    }
    if arguments.agent.is_some() {
        config.io.agent.clone_from(&arguments.agent);
    }
    config.io.replace |= arguments.replace;
    Ok(config)
}

/// What the data path is to be.
fn data_path(config: &Config) -> Result<expressway_dataplane::Config, Failure> {
    let io = config.io.config();
    let udp = UdpConfig { groups: true, ..io.udp(config.listen()) };
    // One interface at most can have its groups by AF_XDP; those of others are the kernel's.
    let mut interfaces = config.rooms.iter().filter_map(|room| room.interface.as_ref());
    let groups_on = interfaces.next().filter(|first| interfaces.all(|other| other == *first)).cloned();
    let multicast_interface = groups_on.as_deref().map(interface_index).transpose().map_err(|error| {
        Failure::run_time(format!("interface {}: {error}", groups_on.as_deref().unwrap_or_default()))
    })?;
    let sending = SendOptions { ttl: config.ttl, multicast_interface, fragment: false };
    Ok(expressway_dataplane::Config { groups_on, sending, ..expressway_dataplane::Config::with(io, udp) })
}

/// What runs, for its upkeep and the admin pages.
struct Relay {
    arguments: Arguments,
    config: Mutex<Config>,
    path: Mutex<DataPath>,
    groups: Mutex<Groups>,
    workers: Mutex<Workers>,
    /// WHIP and WHEP, where there is WebRTC.
    http: Option<Http>,
    /// Where there is Media over QUIC.
    moq: Option<Moq>,
    status: service::Status,
}

impl Daemon for Relay {
    const UPKEEP: Duration = Duration::from_secs(1);

    fn upkeep(&self) {
        lock(&self.path).maintain();
        lock(&self.groups).look_after();
        if let Some(moq) = &self.moq {
            moq.shared.collect();
        }
    }

    fn has_ended(&self) -> bool {
        lock(&self.workers).has_ended()
    }

    fn reload(&self) {
        let new = match load(&self.arguments) {
            Ok(new) => new,
            Err(error) => {
                tracing::error!("not reloaded: {error}");
                return;
            }
        };
        let mut config = lock(&self.config);
        if let Some(what) = needs_restart(&config, &new) {
            tracing::error!(
                "not reloaded: {what} needs a restart; `rtp_out`, [[room.out]], and the keys of [webrtc] and [moq] can change"
            );
            return;
        }
        if let Some(http) = &self.http
            && let Err(error) = http.reload(&new, lock(&self.workers).mailboxes())
        {
            tracing::error!("not reloaded: {error}");
            return;
        }
        if let Some(moq) = &self.moq
            && let Err(error) = moq.reload(&new, &lock(&self.workers).mailboxes())
        {
            tracing::error!("not reloaded: {error}");
            return;
        }
        match lock(&self.workers).set_outputs(&config, &new) {
            Ok(()) => {
                *config = new;
                tracing::info!(config = %self.arguments.config.display(), "reloaded");
            }
            Err(room) => {
                tracing::error!("partly reloaded: the worker of room `{room}` is behind; reload again")
            }
        }
    }

    fn print(&self) -> Result<(), Failure> {
        report::print(self.arguments.json, &lock(&self.status))
    }

    fn samples(&self, out: &mut Vec<Sample>) {
        let (refused, demux) = {
            let workers = lock(&self.workers);
            (workers.refused(), workers.demux())
        };
        report::samples(&lock(&self.status), &refused, out);
        if let Some(http) = &self.http {
            report::sessions(&demux, http.counters(), http.sessions(), out);
        }
        if let Some(moq) = &self.moq {
            moq.samples(out);
        }
        metrics::data_path(&self.path, out);
    }
}

/// What of a configuration cannot change while it runs.
fn needs_restart(old: &Config, new: &Config) -> Option<String> {
    if (old.workers, old.ttl, &old.admin) != (new.workers, new.ttl, &new.admin) || old.io != new.io {
        return Some("`workers`, `ttl`, [io] or [admin]".into());
    }
    let is_same = match (&old.webrtc, &new.webrtc) {
        (Some(old), Some(new)) => old.same_but_keys(new),
        (None, None) => true,
        _ => false,
    };
    if !is_same {
        return Some("[webrtc]".into());
    }
    let is_same = match (&old.moq, &new.moq) {
        (Some(old), Some(new)) => old.same_but_keys(new),
        (None, None) => true,
        _ => false,
    };
    if !is_same {
        return Some("[moq]".into());
    }
    if old.rooms.len() != new.rooms.len() {
        return Some("the number of rooms".into());
    }
    let changed = old.rooms.iter().zip(&new.rooms).find(|(old, new)| !old.same_but_outputs(new));
    changed.map(|(old, _)| format!("a changed key of room `{}`", old.name))
}

impl State for Relay {
    fn health(&self) -> Result<(), String> {
        if self.has_ended() { Err("a worker has ended".into()) } else { Ok(()) }
    }

    fn configuration(&self) -> String {
        lock(&self.config).text.clone()
    }

    fn io(&self) -> Option<String> {
        Some(format!("{:#}\n", expressway_dataplane::report::io(&lock(&self.path))))
    }

    fn rooms(&self) -> Option<String> {
        Some(format!("{}\n", report::document(&lock(&self.status))))
    }
}
