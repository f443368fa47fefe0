//! `expressway agent`: the privileged side of privilege separation.

use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use expressway_agent::policy::Policy;
use expressway_agent::server::{Server, serve_one};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::args::Agent;
use crate::fail::Failure;
use crate::notify;

/// Serves clients until SIGTERM or SIGINT. What they hold by then goes on working: the kernel keeps a program on
/// its interface while somebody holds its link, and each client does.
pub(crate) fn run(arguments: Agent) -> Result<ExitCode, Failure> {
    // What is prepared for clients passes through here, hundreds of sockets at a time.
    crate::limits::raise_file_limit();
    if let Some(listen) = arguments.own {
        return serve_own(Policy::for_own(listen, arguments.own_replace));
    }
    let Some(file) = arguments.config else { return Err(Failure::usage("--config FILE is missing")) };
    let policy = Policy::load(&file).map_err(Failure::usage)?;
    if arguments.check {
        crate::print(&format!("{}: ok\n", file.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let failed = |error: std::io::Error| Failure::run_time(format!("signal handlers: {error}"));
    let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(failed)?;
    let server = Arc::new(Server::bind(policy).map_err(Failure::run_time)?);
    notify::ready(&format!("ready agent={}\n", server.path().display()))?;
    let (ended, end) = std::sync::mpsc::channel();
    let (accepting, by_accept) = (Arc::clone(&server), ended.clone());
    std::thread::Builder::new()
        .name("agent-accept".into())
        .spawn(move || {
            let _ = by_accept.send(accepting.run());
        })
        .map_err(|error| Failure::run_time(format!("thread: {error}")))?;
    std::thread::Builder::new()
        .name("agent-signal".into())
        .spawn(move || {
            if signals.forever().next().is_some() {
                let _ = ended.send(Ok(()));
            }
        })
        .map_err(|error| Failure::run_time(format!("thread: {error}")))?;
    let result = end.recv().unwrap_or(Ok(()));
    let counts = server.counts();
    tracing::info!(
        clients = counts.clients,
        rejected = counts.rejected,
        refused = counts.refused,
        dropped = counts.dropped,
        "stopping: resources held by clients keep working"
    );
    // The clients' threads end with the process, without taking anything back.
    let _ = std::fs::remove_file(server.path());
    result.map_err(Failure::run_time)?;
    Ok(ExitCode::SUCCESS)
}

/// Serves the process that started this one, and ends with it. Signals are for that process, which finishes its
/// connections first.
fn serve_own(policy: Policy) -> Result<ExitCode, Failure> {
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))
            .map_err(|error| Failure::run_time(format!("signal handlers: {error}")))?;
    }
    let socket = std::io::stdin()
        .as_fd()
        .try_clone_to_owned()
        .map_err(|error| Failure::run_time(format!("standard input: {error}")))?;
    serve_one(&policy, socket).map_err(Failure::run_time)?;
    Ok(ExitCode::SUCCESS)
}
