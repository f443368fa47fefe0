//! The same between two hosts: the far end sends live frames to this host's interface, where a program takes them, or the
//! kernel, for a socket that nobody reads.

use std::net::{SocketAddrV4, UdpSocket};
use std::time::Duration;

use expressway_lab::Role;
use serde_json::Value as Json;

use super::bed::{PORT, received, start_path};
use super::process::Process;
use super::{Busy, Flood, Run};
use crate::cpu::Account;
use crate::nics::Nics;
use crate::packet_path::PacketPath;
use crate::peers::Places;
use crate::scenario::Case;
use crate::task::{Sender, Task};
use crate::{BenchError, SERVER_CORE, io_error, profile};

/// What of a case takes a network of the suite's own.
pub(super) fn lacks(case: &Case) -> Option<String> {
    let (way, end) = (case.text("way"), case.text("end"));
    if !matches!(end, "dropped" | "passed") {
        return Some(format!("end \"{end}\" takes links and routes of the suite's own: only in a lab"));
    }
    if case.count("cores") > 1 || case.count("flows") > 1 {
        return Some("the far end sends one flow, and this host's NIC decides which core takes it".into());
    }
    match PacketPath::named(way) {
        Ok(path) if path.on_nics => None,
        Ok(_) => Some(format!("{way} would change more of this host than its end undoes: only in a lab")),
        Err(error) => Some(error.to_string()),
    }
}

/// This host and the far one.
pub(super) struct Hosts<'a> {
    run: &'a Run<'a>,
    nics: &'a Nics,
    to: SocketAddrV4,
    /// Where what is passed on ends: it fills soon, and no closed port answers.
    _socket: UdpSocket,
}

impl<'a> Hosts<'a> {
    /// Opens what takes packets that nothing else does.
    pub(super) fn make(run: &'a Run<'a>, nics: &'a Nics) -> Result<Self, BenchError> {
        nics.control_is_apart()?;
        let to = SocketAddrV4::new(run.lab.addresses(Role::Server).ipv4, PORT);
        let socket = UdpSocket::bind(to).map_err(io_error(to.to_string()))?;
        Ok(Self { run, nics, to, _socket: socket })
    }

    /// Starts what a path runs, if anything, and waits until it is ready.
    pub(super) fn start(&self, path: &PacketPath, action: &str) -> Result<Option<Process>, BenchError> {
        let places = Places::from([
            ("interface", self.run.lab.interface(Role::Server).to_owned()),
            ("action", action.to_owned()),
            ("expressway", self.run.tools.expressway.display().to_string()),
        ]);
        start_path(self.run, path, &places)
    }

    /// Has the far end send to a path. CPU is all that this host's cores ran, since interrupts are in no thread's account.
    pub(super) fn flood(&self, path: &PacketPath, action: &str) -> Result<Flood, BenchError> {
        let Self { run, nics, to, .. } = self;
        let mut process = self.start(path, action)?;
        let measured = process.as_ref().map_or_else(std::process::id, Process::id);
        let recording = run.sample(measured, &run.server_napi(1)?)?;
        let account = || -> Result<Account, BenchError> {
            Ok(Account::now(measured, &run.server_napi(1)?, SERVER_CORE..SERVER_CORE + 1)?.with_host())
        };
        let (before, came) = (account()?, received(run.lab, Role::Server)?);
        let load = Task::Generate {
            to: *to,
            rate: run.case.count("rate"),
            size: run.case.count("size"),
            seconds: run.effort.seconds,
            sender: Sender::Live,
            to_mac: Some(nics.hosts().near.hardware_address()?),
        };
        let sent: Json = nics.start(&load, None)?.report()?;
        let spent = account()?.since(before);
        let came = received(run.lab, Role::Server)?.saturating_sub(came);
        profile::finish(recording)?;
        // Drivers differ in whether they count what XDP drops: the program's own count is what is believed.
        let packets = match &mut process {
            Some(process) => {
                process.end()?;
                let report: Json = process.read()?;
                report["packets"].as_u64().unwrap_or(came)
            }
            None => came,
        };
        if packets == 0 {
            let problem = "no packet got there".into();
            return Err(BenchError::Load { contestant: run.case.text("way").into(), problem });
        }
        let number = |key: &str| sent[key].as_u64().unwrap_or(0);
        let seconds = sent["seconds"].as_f64().filter(|seconds| *seconds > 0.0);
        let seconds = seconds.unwrap_or(run.effort.seconds);
        Ok(Flood {
            seconds,
            offered: number("sent") + number("refused"),
            packets,
            napi_ns: spent.charged_ns(),
            busy: Busy { time: Duration::from_secs_f64(seconds), process_ns: 0 },
            detail: serde_json::json!({ "sent": sent, "received": came, "packets": packets, "spent": spent }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::PARAMETERS;
    use super::*;
    use crate::scenario::{Value, text};

    #[test]
    fn what_takes_a_lab_says_so() {
        let lacking = |way: &'static str, changes: &[(&str, Value)]| {
            let defaults = PARAMETERS.iter().filter_map(|p| Some((p.key.to_owned(), p.default.clone()?)));
            let mut all: std::collections::BTreeMap<_, _> = defaults.collect();
            all.insert("way".into(), text(way));
            all.extend(changes.iter().map(|(key, value)| ((*key).to_owned(), value.clone())));
            lacks(&Case(all))
        };
        assert_eq!(lacking("expressway", &[]), None);
        assert_eq!(lacking("kernel", &[("end", text("passed"))]), None);
        assert!(lacking("expressway", &[("end", text("through"))]).unwrap().contains("links and routes"));
        assert!(lacking("expressway", &[("flows", Value::Count(2))]).unwrap().contains("one flow"));
        assert!(lacking("iptables-raw", &[]).unwrap().contains("more of this host"));
    }
}
