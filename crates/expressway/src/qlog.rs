//! `expressway qlog`: the events of one connection of a running gateway, as its admin listener tells them, in a file.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::process::ExitCode;
use std::sync::mpsc::TryRecvError;
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};

use crate::admin::{Admin, Lines, Part};
use crate::args::Qlog as Arguments;
use crate::fail::Failure;
use crate::signals;

/// How long signals may wait.
const PATIENCE: Duration = Duration::from_millis(100);

/// Records until the time limit was reached, the connection closes, or one is told to stop.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let signals = signals::receiver(&[SIGINT, SIGTERM])?;
    let path = &arguments.write;
    let failed = |error: std::io::Error| Failure::run_time(format!("--write {}: {error}", path.display()));
    if path.exists() {
        return Err(Failure::usage(format!("--write {}: exists", path.display())));
    }
    let order = serde_json::json!({
        "client": arguments.client, "connection": arguments.connection,
        "seconds": arguments.seconds, "bytes": arguments.size.0,
    });
    let admin = Admin::of(&arguments.peer)?;
    let lines = admin.order("/qlog", &order.to_string())?;
    // Nothing is left behind of a recording that was refused, or that found no connection.
    let mut file = None;
    let stopped = || !matches!(signals.try_recv(), Err(TryRecvError::Empty));
    let create =
        || OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map(BufWriter::new);
    let followed = follow(&admin, lines, stopped, |line| {
        let out: &mut BufWriter<File> = match &mut file {
            Some(out) => out,
            none => none.insert(create().map_err(failed)?),
        };
        writeln!(out, "{line}").map_err(failed)
    });
    // What has come is worth something, whatever the rest was.
    let (events, is_stopped) = followed?;
    match file {
        Some(mut out) => out.flush().map_err(failed)?,
        None if is_stopped => {
            return Err(admin.failure("interrupted before any datagram of a matching connection arrived"));
        }
        None => {
            let problem =
                format!("no datagram of a matching connection arrived within {} s", arguments.seconds);
            return Err(admin.failure(&problem));
        }
    }
    crate::print(&format!("{events} events in {}\n", path.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// Takes line by line, and counts them; says too whether it was told to stop.
fn follow(
    admin: &Admin,
    mut lines: Lines,
    stopped: impl Fn() -> bool,
    mut take: impl FnMut(&str) -> Result<(), Failure>,
) -> Result<(u64, bool), Failure> {
    let failed = |error: std::io::Error| admin.failure(&format!("the recording was cut short: {error}"));
    lines.set_patience(PATIENCE).map_err(failed)?;
    let mut events = 0;
    while !stopped() {
        match lines.poll().map_err(failed)? {
            Part::End => return Ok((events, false)),
            Part::Nothing => {}
            Part::Line(line) => {
                take(&line)?;
                events += 1;
            }
        }
    }
    Ok((events, true))
}
