//! Benchmarks on NICs between two hosts: the near end's connection, and the far end.

use std::process::ExitCode;
use std::sync::atomic::Ordering;

use expressway_bench::{Allowed, Bed, EndOptions, Nic, Nics, Token, serve_end};

use super::{failure, stop_flag, tools};
use crate::args::{Bench, BenchEnd};
use crate::fail::Failure;
use crate::print;

/// The far end that the options name, connected; `None` where none is.
pub(super) fn connect(arguments: &Bench) -> Result<Option<Nics>, Failure> {
    let (Some(end), Some(token), Some(interface)) = (arguments.end, &arguments.token, &arguments.interface)
    else {
        return Ok(None);
    };
    let token = Token::read(token).map_err(Failure::usage)?;
    let allowed = Allowed { xdp: arguments.xdp, offloads: arguments.offloads };
    Nics::connect(end, &token, interface, arguments.address, allowed).map(Some).map_err(failure)
}

/// Is the far end until a signal.
pub(super) fn serve(arguments: &Bench, end: &BenchEnd) -> Result<ExitCode, Failure> {
    let token = Token::read(&end.token).map_err(Failure::usage)?;
    let nic = Nic::read(&end.interface, end.address).map_err(Failure::usage)?;
    let mut tools = tools(arguments)?;
    tools.bed = Bed::Nics;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if end.core >= cores {
        return Err(Failure::usage(format!(
            "--core {}: this host has {cores} cores, numbered from 0",
            end.core
        )));
    }
    let (interface, address) = (nic.interface.clone(), nic.address);
    let options = EndOptions { listen: end.listen, token, nic, core: end.core, xdp: end.xdp, tools };
    let stop = stop_flag()?;
    let mut printed = Ok(());
    serve_end(&options, &stop, |listen| {
        printed = print(&format!("ready listen={listen} interface={interface} address={address}\n"));
        if printed.is_err() {
            stop.store(true, Ordering::Relaxed);
        }
    })
    .map_err(failure)?;
    printed.map(|()| ExitCode::SUCCESS)
}
