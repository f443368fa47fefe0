//! `expressway dump`: packets of interfaces, printed like tcpdump's or written as pcapng.

mod extcap;
mod interfaces;
mod json;
mod live;
mod output;
mod privilege;
mod read;

use std::io::Read;
use std::path::Path;
use std::process::ExitCode;

use expressway_observe::text::{Dump, Payload, TextOptions, TimeFormat};

use crate::args::{Dump as Arguments, PayloadType, Text};
use crate::fail::Failure;

/// A filter in a file is no longer.
const LONGEST_FILTER: u64 = 64 << 10;

/// Captures, reads or lists.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    // Whoever runs a binary that has capabilities of its own may capture, and no more.
    if arguments.secrets.is_some() && !rustix::process::geteuid().is_root() {
        return Err(Failure::run_time(
            "--secrets: only root may put TLS secrets into a capture; run as root",
        ));
    }
    if extcap::is_asked(&arguments.extcap) {
        return extcap::run(arguments);
    }
    if arguments.list_interfaces {
        return interfaces::print();
    }
    if let (Some(_), Some(user)) = (&arguments.secrets, &arguments.relinquish_privileges) {
        return Err(Failure::usage(format!("--secrets: user `{user}` could read the secrets; leave out -Z")));
    }
    let filter = filter(arguments)?;
    match &arguments.read {
        Some(file) => read::run(arguments, file, filter),
        None => live::run(arguments, &live::Job::of(arguments, filter)),
    }
}

/// The filter's text; `None` if there is none.
fn filter(arguments: &Arguments) -> Result<Option<String>, Failure> {
    let text = match &arguments.filter_file {
        None => arguments.filter.join(" "),
        Some(path) => {
            let failed = |error| Failure::usage(format!("-F {}: {error}", path.display()));
            let file = std::fs::File::open(path).map_err(failed)?;
            let mut text = String::new();
            file.take(LONGEST_FILTER).read_to_string(&mut text).map_err(failed)?;
            text
        }
    };
    let text = text.trim();
    Ok((!text.is_empty()).then(|| text.to_owned()))
}

fn is_standard(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// How lines are to look.
fn text_options(text: &Text) -> TextOptions {
    TextOptions {
        time: match text.time {
            0 => TimeFormat::Time,
            1 => TimeFormat::None,
            2 => TimeFormat::Epoch,
            3 => TimeFormat::Previous,
            4 => TimeFormat::Date,
            _ => TimeFormat::First,
        },
        nano: text.nano,
        link: text.link,
        quiet: text.quiet,
        verbose: text.verbose > 0,
        dump: Dump {
            hex: text.hex > 0 || text.ascii > 0,
            ascii: text.ascii > 0,
            link: text.hex > 1 || text.ascii > 1,
        },
        number: text.number,
        payload: text.payload.map(|payload| match payload {
            PayloadType::Quic => Payload::Quic,
            PayloadType::Rtp => Payload::Rtp,
            PayloadType::Moldudp64 => Payload::Mold,
            PayloadType::None => Payload::Opaque,
        }),
    }
}
