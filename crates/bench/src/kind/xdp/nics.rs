//! The same between two hosts: the far end sends live frames to this host's interface. Either an XDP program takes
//! them, or the kernel delivers them to a socket that nobody reads.

use std::net::{SocketAddrV4, UdpSocket};
use std::thread::sleep;
use std::time::{Duration, Instant};

use expressway_lab::Role;
use serde_json::Value as Json;

use super::bed::{PORT, received, start_path};
use super::{Busy, Flood, Run};
use crate::cpu::Account;
use crate::nics::{Nic, Nics};
use crate::packet_path::PacketPath;
use crate::peers::Placeholders;
use crate::process::Logged;
use crate::scenario::Case;
use crate::task::{Sender, Task};
use crate::{BenchError, SERVER_CORE, io_error};

/// How long a link may take to come back.
const LINK: Duration = Duration::from_secs(15);

/// Polling interval.
const LOOK: Duration = Duration::from_millis(10);

/// The refresh interval of drivers' counters, and the number of intervals after which a counter need not be stable.
const REFRESH: Duration = Duration::from_millis(1200);
const SETTLING: usize = 4;

/// Why a case is possible in a lab only.
pub(super) fn lacks(case: &Case) -> Option<String> {
    let (way, end) = (case.text("way"), case.text("end"));
    if !matches!(end, "dropped" | "passed") {
        return Some(format!("end \"{end}\" needs links and routes created by the suite: lab only"));
    }
    if ["cores", "flows", "sources", "destinations"].iter().any(|key| case.count(key) > 1) {
        return Some("the far end sends one flow, and this host's NIC decides which core takes it".into());
    }
    if case.text("generators") == "beside" {
        return Some("generators \"beside\" run on this host; the far end sends from one core".into());
    }
    if case.text("action") == "tx" {
        return Some("action \"tx\" sends to a host that might forward the packets: lab only".into());
    }
    match PacketPath::named(way) {
        Ok(path) if path.on_nics => None,
        Ok(_) => Some(format!("{way} changes host settings that are not all undone at the end: lab only")),
        Err(error) => Some(error.to_string()),
    }
}

/// This host and the far one.
pub(super) struct Hosts<'a> {
    run: &'a Run<'a>,
    nics: &'a Nics,
    to: SocketAddrV4,
    /// Where passed packets end: it soon fills, and no closed port replies.
    _socket: UdpSocket,
}

impl<'a> Hosts<'a> {
    /// Opens a socket for packets that nothing else takes.
    pub(super) fn make(run: &'a Run<'a>, nics: &'a Nics) -> Result<Self, BenchError> {
        let to = SocketAddrV4::new(run.lab.addresses(Role::Server).ipv4, PORT);
        let socket = UdpSocket::bind(to).map_err(io_error(to.to_string()))?;
        Ok(Self { run, nics, to, _socket: socket })
    }

    /// Starts a path's program, if any, and waits until it is ready and the link is up: some drivers reset the link when an XDP
    /// program is attached or detached.
    pub(super) fn start(&self, path: &PacketPath, action: &str) -> Result<Option<Logged>, BenchError> {
        let interface = self.run.lab.interface(Role::Server);
        let places = Placeholders::from([
            ("interface", interface.to_owned()),
            ("action", action.to_owned()),
            ("expressway", self.run.tools.expressway.display().to_string()),
        ]);
        let process = start_path(self.run, path, &places)?;
        let began = Instant::now();
        while !Nic::has_carrier(interface) {
            if began.elapsed() > LINK {
                let problem = format!("{interface}: no link within {} s", LINK.as_secs());
                return Err(BenchError::Missing(problem));
            }
            sleep(LOOK);
        }
        Ok(process)
    }

    /// Has the far end send to a path. CPU is everything this host's cores ran, since interrupts are in no thread's account; for
    /// the same reason nothing is sampled.
    pub(super) fn flood(&self, path: &PacketPath, action: &str) -> Result<Flood, BenchError> {
        let Self { run, nics, to, .. } = self;
        let mut process = self.start(path, action)?;
        let measured = process.as_ref().map_or_else(std::process::id, |process| process.id());
        let account = || -> Result<Account, BenchError> {
            Ok(Account::now(measured, &run.server_napi(1)?, SERVER_CORE..SERVER_CORE + 1)?.with_host())
        };
        // A program's own count is exact; otherwise the interface's counter is used.
        let counts = process.is_some() && action != "pass";
        let came = if counts { 0 } else { self.settled()? };
        let before = account()?;
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
        let packets = match &mut process {
            Some(process) if counts => {
                process.end_running()?;
                let report: Json = process.read()?;
                report["packets"].as_u64().unwrap_or(0)
            }
            process => {
                let came = self.settled()?.saturating_sub(came);
                process.as_mut().map(Logged::end_running).transpose()?;
                came
            }
        };
        if packets == 0 {
            return Err(run.load_failed("way", "no packet arrived"));
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
            detail: serde_json::json!({ "sent": sent, "packets": packets, "spent": spent }),
        })
    }

    /// The interface's received packets, once the counter is stable: some drivers refresh it once a second. If other traffic
    /// keeps it changing, its last value.
    fn settled(&self) -> Result<u64, BenchError> {
        let mut count = received(self.run.lab, Role::Server)?;
        for _ in 0..SETTLING {
            sleep(REFRESH);
            let now = received(self.run.lab, Role::Server)?;
            if now == count {
                break;
            }
            count = now;
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::super::PARAMETERS;
    use super::*;
    use crate::scenario::{Value, text};

    #[test]
    fn cases_for_labs_only_say_why() {
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
        assert!(lacking("expressway", &[("action", text("tx"))]).unwrap().contains("lab only"));
        assert!(lacking("expressway", &[("generators", text("beside"))]).unwrap().contains("one core"));
        assert!(lacking("iptables-raw", &[]).unwrap().contains("host settings"));
    }
}
