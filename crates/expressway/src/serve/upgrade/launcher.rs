//! Starts the next process. A server that has given up its privileges and may not exec cannot, and one that could would be a better
//! prize for whoever breaks into it: so it has a small process of the rights that it was itself started with, which can do one thing, to
//! start the server's own command line again, and ends with it.
//!
//! It is this binary too (`expressway launch`, hidden), started like the server's own agent, before privileges go. A server that keeps its
//! privileges starts it when it is first needed.

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use expressway_agent::channel::{Channel, ChannelError};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGHUP, SIGINT, SIGUSR2};

use crate::args::Launch;
use crate::fail::Failure;

/// How long either side may take to read.
const PATIENCE: Duration = Duration::from_secs(5);

/// Processes that are being started at once, from which only one has a place to serve in.
const MOST: usize = 8;

/// To the launcher.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Order {
    /// Start a process, with the descriptor beside this as its standard input.
    Start { attempt: u64 },
    /// End it.
    Kill { attempt: u64 },
}

/// From the launcher.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Told {
    /// It runs.
    Started { attempt: u64, pid: u32 },
    /// It cannot be started.
    Refused { attempt: u64, problem: String },
    /// It has ended, in that way.
    Ended { attempt: u64, how: String },
}

/// The server's end.
#[derive(Clone, Debug)]
pub(crate) struct Launcher(Arc<Channel>);

impl Launcher {
    /// Starts it, with this process's command line and rights.
    pub(crate) fn start() -> Result<Self, Failure> {
        let failed = |error: std::io::Error| Failure::run_time(format!("starting the launcher: {error}"));
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(|errno| failed(errno.into()))?;
        let mut words = std::env::args_os();
        let mut command = Command::new("/proc/self/exe");
        command.arg("launch").args(crate::logging::options()).arg("--").args(words.next());
        command.args(words.filter(|word| word != TAKE_OVER));
        command.stdin(Stdio::from(theirs)).spawn().map_err(failed)?;
        Channel::new(ours, PATIENCE).map(|channel| Self(Arc::new(channel))).map_err(failed)
    }

    /// Has the next process started.
    pub(crate) fn launch(&self, attempt: u64, control: &OwnedFd) -> Result<(), ChannelError> {
        self.0.send(0, &Order::Start { attempt }, &[control.as_fd()])
    }

    /// Has it ended, if it runs.
    pub(crate) fn kill(&self, attempt: u64) -> Result<(), ChannelError> {
        self.0.send(0, &Order::Kill { attempt }, &[])
    }

    /// What it tells next.
    pub(crate) fn hear(&self) -> Result<Told, ChannelError> {
        self.0.receive(0).map(|received| received.content)
    }
}

/// The option by which the next process knows that it is one.
pub(crate) const TAKE_OVER: &str = "--take-over";

/// The launcher itself: until the server at the other end of standard input is gone.
pub(crate) fn run(arguments: &Launch) -> Result<ExitCode, Failure> {
    let failed = |error: std::io::Error| Failure::run_time(format!("launcher: {error}"));
    // A terminal's signals are for the server; the next process has them as ever.
    for signal in [SIGHUP, SIGINT, SIGUSR2] {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false))).map_err(failed)?;
    }
    let socket = std::io::stdin().as_fd().try_clone_to_owned().map_err(failed)?;
    let channel = Arc::new(Channel::new(socket, PATIENCE).map_err(failed)?);
    let mut running: Vec<(u64, OwnedFd)> = Vec::new();
    loop {
        let received = match channel.receive::<Order>(1) {
            Ok(received) => received,
            Err(ChannelError::Closed) => return Ok(ExitCode::SUCCESS),
            Err(error) => return Err(Failure::run_time(format!("launcher: {error}"))),
        };
        match received.content {
            Order::Start { attempt } => {
                running.retain(|(_, process)| is_running(process));
                let started = match received.fds.into_iter().next() {
                    Some(_) if running.len() >= MOST => Err("too many processes are being started".into()),
                    Some(control) => start(arguments, control),
                    None => Err("no control descriptor passed".into()),
                };
                let told = match started {
                    Ok((child, process)) => {
                        running.push((attempt, process));
                        let told = Told::Started { attempt, pid: child.id() };
                        attend(Arc::clone(&channel), attempt, child).map_err(failed)?;
                        told
                    }
                    Err(problem) => Told::Refused { attempt, problem },
                };
                if channel.send(0, &told, &[]).is_err() {
                    return Ok(ExitCode::SUCCESS);
                }
            }
            Order::Kill { attempt } => {
                for (_, process) in running.iter().filter(|(other, _)| *other == attempt) {
                    // It may have ended already.
                    let _ = pidfd_send_signal(process, Signal::KILL);
                }
            }
        }
    }
}

/// Starts the server's command line, as whoever started the server did.
fn start(arguments: &Launch, control: OwnedFd) -> Result<(Child, OwnedFd), String> {
    let Some((program, words)) = arguments.words.split_first() else { return Err("no command".into()) };
    let failed = |error: std::io::Error| format!("{}: {error}", program.display());
    let mut command = Command::new(program);
    command.args(with_take_over(words)).stdin(Stdio::from(control));
    let mut child = command.spawn().map_err(failed)?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let opened = pid.map(|pid| pidfd_open(pid, PidfdFlags::empty()));
    match opened {
        Some(Ok(process)) => Ok((child, process)),
        other => {
            let _ = child.kill();
            let _ = child.wait();
            Err(format!(
                "pidfd_open: {}",
                other.and_then(Result::err).map_or_else(String::new, |errno| errno.to_string())
            ))
        }
    }
}

/// The words with the option, which belongs to `serve`.
fn with_take_over(words: &[OsString]) -> Vec<OsString> {
    let mut words = words.to_vec();
    words.push(TAKE_OVER.into());
    words
}

/// Whether the process has not ended: one that has is readable (pidfd_open(2)).
fn is_running(process: &OwnedFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    !matches!(poll(&mut fds, Some(&at_once)), Ok(1..))
}

/// Tells how it ends.
fn attend(channel: Arc<Channel>, attempt: u64, mut child: Child) -> std::io::Result<()> {
    let wait = move || {
        let how = child.wait().map_or_else(|error| error.to_string(), describe);
        // The server may have ended before.
        let _ = channel.send(0, &Told::Ended { attempt, how }, &[]);
    };
    std::thread::Builder::new().name("launched".into()).spawn(wait).map(drop)
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => status.to_string(),
    }
}
