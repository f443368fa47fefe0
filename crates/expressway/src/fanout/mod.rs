//! `expressway fanout`: one UDP feed to many TCP subscribers, until a signal.

mod options;
mod report;

use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use expressway_feed::fanout::{Fanout, Membership};
use expressway_gateway::admin::{Admin, State};
use expressway_gateway::metrics::Registry;
use expressway_netio::udp::{UdpConfig, UdpIo};
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use crate::args::Fanout as Arguments;
use crate::fail::Failure;

/// Datagrams taken by one recvmmsg: bursts longer than this take another.
const RECEIVE_BATCH: usize = 64;

/// How often the threads are looked after between signals.
const WATCH: Duration = Duration::from_millis(200);

/// What `/healthz` and `/config` show.
struct Status {
    state: Mutex<Result<(), String>>,
    command: String,
}

impl State for Status {
    fn health(&self) -> Result<(), String> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn configuration(&self) -> String {
        self.command.clone()
    }
}

/// Fans out until told to stop.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let (options, membership) = options::of(arguments)?;
    crate::limits::raise_file_limit();
    let signals = follow_signals()?;
    let io = UdpIo::bind(&udp(arguments)).map_err(Failure::run_time)?;
    let feed = io.addresses().next().unwrap_or(arguments.udp);
    let threads = options.threads;
    let fanout = Fanout::start(options, io, membership).map_err(Failure::run_time)?;
    let status = Arc::new(Status { state: Mutex::new(Ok(())), command: command_line() });
    let _admin = arguments.admin.map(|address| admin(address, &fanout, status.clone())).transpose()?;
    report::ready(arguments.json, feed, fanout.listen(), threads)?;
    let result = watch(arguments, &fanout, &signals);
    *status.state.lock().unwrap_or_else(PoisonError::into_inner) = Err("stopping".into());
    let statistics = fanout.stop().map_err(Failure::run_time)?;
    if arguments.json {
        report::print(true, &statistics)?;
    }
    result.map(|()| ExitCode::SUCCESS)
}

/// Serves signals until one says stop, or a thread has ended by itself.
fn watch(arguments: &Arguments, fanout: &Fanout, signals: &Receiver<i32>) -> Result<(), Failure> {
    loop {
        match signals.recv_timeout(WATCH) {
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

fn admin(address: SocketAddr, fanout: &Fanout, status: Arc<Status>) -> Result<Admin, Failure> {
    let registry = Registry::default();
    let source = fanout.statistics_source();
    registry.register(move |out: &mut Vec<_>| {
        let (statistics, io) = source();
        report::samples(&statistics, &io, out);
    });
    Admin::start(address, registry, status)
        .map_err(|error| Failure::run_time(format!("--admin {address}: {error}")))
}

fn command_line() -> String {
    let words: Vec<String> = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    words.join(" ") + "\n"
}

fn follow_signals() -> Result<Receiver<i32>, Failure> {
    let failed = |error: std::io::Error| Failure::run_time(format!("signal handlers: {error}"));
    let (sender, receiver) = channel();
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGUSR1]).map_err(failed)?;
    let follow = move || {
        for signal in signals.forever() {
            if sender.send(signal).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("expressway-signal".into()).spawn(follow).map_err(failed)?;
    Ok(receiver)
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
