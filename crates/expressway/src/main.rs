//! The `expressway` command: arguments, logging, exit codes, and the wiring of the crates.

mod admin;
mod agent;
mod args;

mod balance;
mod bench;
mod cert;
mod cores;
mod daemon;
mod doctor;
mod drop;
mod dump;
mod fail;
mod fanout;
mod forward;
mod generate;
mod guard;
mod keys;
mod lab;
mod limits;
mod logging;
mod metrics;
mod notify;
mod qlog;
mod recv;
mod relay;
mod screen;
mod serve;
mod signals;
mod top;
mod trace;
mod upgrade;

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;

use args::{Arguments, Command};
use fail::Failure;

/// The gateway allocates per connection and per request, mostly small and short-lived: mimalloc costs about
/// a third of what the C library's allocator does for that.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse_from(words()) {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help and version are no errors; clap prints each where it belongs.
            let code = if error.use_stderr() { ExitCode::from(2) } else { ExitCode::SUCCESS };
            let _ = error.print();
            return code;
        }
    };
    // A report is to be read, not what led to it; a screen is not to be written across; and what a stranger does wrong over
    // HTTP/2 is counted, not logged.
    let quiet = matches!(
        arguments.command,
        Command::Doctor(_) | Command::Top(_) | Command::Trace(_) | Command::Qlog(_) | Command::Upgrade(_)
    );
    let level = if quiet { "error" } else { "info,h2=error" };
    if let Err(failure) = logging::start(&arguments.logging, level) {
        return failure.report();
    }
    let result = match arguments.command {
        Command::Serve(arguments) => serve::run(arguments),
        Command::Upgrade(arguments) => upgrade::run(&arguments),
        Command::Launch(arguments) => serve::launch(&arguments),
        Command::Agent(arguments) => agent::run(arguments),
        Command::Fanout(arguments) => fanout::run(&arguments),
        Command::Forward(arguments) => forward::run(&arguments),
        Command::Balance(arguments) => balance::run(&arguments),
        Command::Top(arguments) => top::run(&arguments),
        Command::Trace(arguments) => trace::run(&arguments),
        Command::Qlog(arguments) => qlog::run(&arguments),
        Command::Recv(arguments) => recv::run(&arguments),
        Command::Relay(arguments) => relay::run(&arguments),
        Command::Gen(arguments) => generate::run(&arguments.kind),
        Command::Drop(arguments) => drop::run(&arguments),
        Command::Guard(arguments) => guard::run(&arguments),
        Command::Dump(arguments) => dump::run(&arguments),
        Command::Cert(arguments) => cert::run(&arguments),
        Command::Keys(arguments) => keys::run(&arguments.command),
        Command::Lab(arguments) => lab::run(arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Man(arguments) => args::man(&arguments),
        Command::Completions(arguments) => args::completions(&arguments),
    };
    match result {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}

/// The words of the command line. Under the name `expressway-extcap`, as a link in Wireshark's folder for such programs, it is
/// `expressway dump`.
fn words() -> Vec<OsString> {
    let mut words: Vec<_> = std::env::args_os().collect();
    if words
        .first()
        .and_then(|name| Path::new(name).file_name())
        .is_some_and(|name| name == "expressway-extcap")
    {
        words.insert(1, "dump".into());
    }
    words
}

/// Writes to standard output at once. That nobody reads it is an error like any other, and no panic.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| Failure::run_time(format!("standard output: {error}")))
}
