//! `expressway fanout`: one UDP feed to many TCP subscribers, until a signal.

mod mode;
mod options;
mod report;

use std::net::IpAddr;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use expressway_dataplane::{Config, DataPath, IoConfig, Provider, Purpose, WorkerIo};
use expressway_feed::fanout::{Fanout, FanoutError, KernelFeed, Membership, Options, Statistics};
use expressway_gateway::admin::{Admin, State};
use expressway_metrics::Registry;
use expressway_netio::udp::UdpConfig;
use expressway_settings::admin::Section;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};

use self::mode::Mode;
use crate::args::{self, Fanout as Arguments};
use crate::daemon;
use crate::fail::Failure;
use crate::metrics;
use crate::signals;

/// Datagrams taken by one recvmmsg: bursts longer than this take another.
const RECEIVE_BATCH: usize = 64;

/// How often the threads are looked after between signals.
const WATCH: Duration = Duration::from_millis(200);

/// How often the data path is looked after.
const MAINTENANCE: Duration = Duration::from_secs(1);

/// The data path, for its upkeep and the metrics page.
type SharedPath = Arc<Mutex<DataPath>>;

/// What `/healthz` and `/config` show.
struct Status {
    state: Mutex<Result<(), String>>,
    command: String,
    statistics: Box<dyn Fn() -> Statistics + Send + Sync>,
}

impl State for Status {
    fn health(&self) -> Result<(), String> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn configuration(&self) -> String {
        self.command.clone()
    }

    fn subscribers(&self) -> Option<String> {
        Some(format!("{}\n", report::document(&(self.statistics)())))
    }
}

/// Fans out until told to stop.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let (options, membership) = options::of(arguments)?;
    crate::limits::raise_file_limit();
    let section = arguments.admin.section()?;
    let mut asked = vec![SIGTERM, SIGINT, SIGUSR1];
    // Without tokens there is nothing to be read again, and the signal ends the process as it ends others.
    asked.extend(arguments.admin.token_file.is_some().then_some(SIGHUP));
    let signals = signals::receiver(&asked)?;
    let threads = options.threads;
    let (mode, path, fanout) = start(arguments, options, membership)?;
    let source = fanout.statistics_source();
    let status = Arc::new(Status {
        state: Mutex::new(Ok(())),
        command: command_line(),
        statistics: Box::new(move || source().0),
    });
    let admin = section.map(|section| admin(&section, &fanout, &path, status.clone())).transpose()?;
    let io = path.as_ref().map_or_else(|| "udp".to_owned(), |path| lock(path).mode().to_string());
    report::ready(arguments.json, arguments.udp, mode, &io, &fanout, threads)?;
    let result = watch(arguments, &fanout, (path.as_deref(), admin.as_ref()), &signals);
    *status.state.lock().unwrap_or_else(PoisonError::into_inner) = Err("stopping".into());
    let statistics = fanout.stop().map_err(Failure::run_time)?;
    if arguments.json {
        report::print(true, &statistics)?;
    }
    result.map(|()| ExitCode::SUCCESS)
}

/// The fan-out in the mode that was asked for or chosen, with its data path.
fn start(
    arguments: &Arguments,
    options: Options,
    membership: Option<Membership>,
) -> Result<(Mode, Option<SharedPath>, Fanout), Failure> {
    let choice = mode::choose(arguments)?;
    if choice.mode == Mode::Kernel {
        match start_in_kernel(arguments, options.clone()) {
            Ok(fanout) => return Ok((Mode::Kernel, None, fanout)),
            Err(failure) if choice.asked => return Err(failure),
            Err(failure) => tracing::warn!("falling back to mode user: {failure}"),
        }
    }
    let (path, io) = open(arguments)?;
    let path = Some(Arc::new(Mutex::new(path)));
    let fanout = match io {
        WorkerIo::Kernel(io) => Fanout::start(options, *io, membership),
        WorkerIo::Xsk(io) => Fanout::start(options, *io, membership),
    };
    Ok((Mode::User, path, fanout.map_err(Failure::run_time)?))
}

fn start_in_kernel(arguments: &Arguments, options: Options) -> Result<Fanout, Failure> {
    let feed = KernelFeed { udp: arguments.udp, interface: mode::interface(arguments)? };
    Fanout::start_in_kernel(options, &feed).map_err(|error| match error {
        FanoutError::Options(problem) => Failure::usage(format!("--{problem}")),
        error => Failure::run_time(error),
    })
}

/// The data path and its packet I/O.
fn open(arguments: &Arguments) -> Result<(DataPath, WorkerIo), Failure> {
    let provider = Provider::agent_or_own(arguments.agent.as_deref(), "fanout")?;
    let io = IoConfig { mode: arguments.io, replace: arguments.replace, ..IoConfig::default() };
    let groups_on = arguments.interface.clone();
    let config = Config { purpose: Purpose::RECEIVE, groups_on, ..Config::with(io, udp(arguments)) };
    let (path, mut ios) = DataPath::open(config, provider, 1)?;
    Ok((path, ios.remove(0)))
}

fn lock(path: &Mutex<DataPath>) -> MutexGuard<'_, DataPath> {
    path.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves signals until one says stop, or a thread has ended by itself.
fn watch(
    arguments: &Arguments,
    fanout: &Fanout,
    (path, admin): (Option<&Mutex<DataPath>>, Option<&Admin>),
    signals: &Receiver<i32>,
) -> Result<(), Failure> {
    let mut maintained = Instant::now();
    loop {
        if let Some(path) = path
            && maintained.elapsed() >= MAINTENANCE
        {
            lock(path).maintain();
            maintained = Instant::now();
        }
        match signals.recv_timeout(WATCH) {
            Ok(SIGHUP) => {
                if let Some(admin) = admin {
                    admin.reload();
                }
            }
            Ok(SIGUSR1) => report::print(arguments.json, &fanout.statistics())?,
            Ok(_) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
            // Its error comes out of `stop`.
            Err(RecvTimeoutError::Timeout) if fanout.wait(Duration::ZERO) => return Ok(()),
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

fn udp(arguments: &Arguments) -> UdpConfig {
    UdpConfig {
        groups: true,
        receive_batch: RECEIVE_BATCH,
        socket_receive_buffer: arguments.receive_buffer.0 as usize,
        // Nothing is sent.
        transmit_memory: 65_536,
        socket_send_buffer: 4096,
        ..UdpConfig::new(vec![arguments.udp])
    }
}

fn admin(
    section: &Section,
    fanout: &Fanout,
    path: &Option<SharedPath>,
    status: Arc<Status>,
) -> Result<Admin, Failure> {
    let keys = args::AdminListener::KEYS;
    let listener = daemon::listener(section, keys)?;
    let registry = Registry::with_summary(crate::metrics::drops);
    let source = fanout.statistics_source();
    let path = path.clone();
    registry.register(move |out: &mut Vec<_>| {
        let (statistics, io) = source();
        report::samples(&statistics, &io, out);
        if let Some(path) = &path {
            metrics::data_path(path, out);
        }
    });
    daemon::serve(listener, section, registry, status, keys)
}

fn command_line() -> String {
    let words: Vec<String> = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    words.join(" ") + "\n"
}

/// The group to join, if the feed is one.
fn membership(arguments: &Arguments) -> Option<Membership> {
    let group: IpAddr = arguments.udp.ip();
    group.is_multicast().then(|| Membership {
        group,
        interface: arguments.interface.clone(),
        sources: arguments.source.clone(),
    })
}
