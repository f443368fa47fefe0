//! The protocol by which Wireshark has others capture for it: see extcap(4), and doc/extcap_example.py of Wireshark.
//!
//! Wireshark calls the programs of its extcap folder: for a list of interfaces, for their options, and to write pcapng to a
//! pipe until SIGTERM. A link there called `expressway-extcap` is enough; see `main`.

use std::process::ExitCode;

use expressway_observe::{CaptureOptions, Filter};

use super::interfaces;
use super::live::{self, Job};
use crate::args::{Dump as Arguments, Extcap};
use crate::fail::Failure;

/// What the names of interfaces begin with, so that they differ from those that Wireshark has itself.
const PREFIX: &str = "expressway-";

/// Whether Wireshark asks.
pub(super) fn is_asked(extcap: &Extcap) -> bool {
    extcap.extcap_interfaces || extcap.extcap_interface.is_some()
}

/// Answers.
pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let extcap = &arguments.extcap;
    let Some(interface) = extcap.extcap_interface.as_deref().filter(|_| !extcap.extcap_interfaces) else {
        return list();
    };
    if extcap.extcap_dlts {
        crate::print("dlt {number=1}{name=EN10MB}{display=Ethernet}\n")?;
    } else if extcap.extcap_config {
        crate::print(CONFIG)?;
    } else if let Some(fifo) = extcap.fifo.as_ref().filter(|_| extcap.capture) {
        let name = interface.strip_prefix(PREFIX).unwrap_or(interface);
        let job = Job {
            interfaces: vec![name.to_owned()],
            filter: extcap.extcap_capture_filter.clone().filter(|filter| !filter.trim().is_empty()),
            write: Some(fifo.clone()),
            at_once: true,
            silent: true,
            ..Job::of(arguments, None)
        };
        return live::run(arguments, &job);
    } else if let Some(filter) = &extcap.extcap_capture_filter {
        // Nothing said is assent.
        if let Err(error) = Filter::compile(filter, CaptureOptions::SNAPLEN) {
            crate::print(&format!("{error}\n"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn list() -> Result<ExitCode, Failure> {
    let mut text = format!("extcap {{version={}}}{{display=Expressway}}\n", env!("CARGO_PKG_VERSION"));
    for interface in interfaces::all()? {
        let name = interface.name;
        text.push_str(&format!(
            "interface {{value={PREFIX}{name}}}{{display=Expressway: {name} with XDP and AF_XDP}}\n"
        ));
    }
    crate::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// The options that Wireshark shows; each is one of the command's.
const CONFIG: &str = "\
arg {number=0}{call=--point}{display=Packets of an XDP program}{type=selector}
value {arg=0}{value=once}{display=Once, as they came, with the verdict}{default=true}
value {arg=0}{value=entry}{display=As they came}{default=false}
value {arg=0}{value=exit}{display=As they left, with the verdict}{default=false}
value {arg=0}{value=both}{display=As they came and as they left}{default=false}
arg {number=1}{call=--drops}{display=Packets that the kernel drops once more, with the reason}{type=boolflag}{default=false}
arg {number=2}{call=--secrets}{display=TLS key log of the server}{type=fileselect}{mustexist=false}{required=false}
";
