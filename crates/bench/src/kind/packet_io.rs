//! CPU per datagram of each method of sending and receiving.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddrV4;

use expressway_lab::{Lab, LabConfig, Offload, Role};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::receive::{handed, offered_percent};
use super::{Better, Kind, Metric, Outcome, Run, Table, pinned_lab};
use crate::client::Client;
use crate::cpu::Account;
use crate::process::Process;
use crate::profile::Recording;
use crate::scenario::{Bed, Case, Form, Parameter, Value, text};
use crate::task::{Sender, Task};
use crate::{BenchError, Tools, core_of, offload, profile};

/// The kind.
pub(crate) struct PacketIo;

/// The port that both ends use.
const PORT: u16 = 4433;

/// How much longer the other end runs than the measured one, in seconds.
const LONGER: f64 = 2.0;

static PARAMETERS: [Parameter; 6] = [
    Parameter::required("direction", Form::Choice(&["transmit", "receive"])),
    Parameter::required(
        "way",
        Form::Choice(&["af-xdp-zerocopy", "af-xdp-copy", "gso", "sendmmsg", "sendmsg", "gro", "recvmmsg"]),
    ),
    Parameter::new("size", Form::Bytes(1, 1472), Value::Count(64)),
    Parameter::new("sender", Form::Choice(&["af-xdp-copy", "gso", "live", "sendmmsg"]), text("af-xdp-copy")),
    // Whether the measured end's device segments UDP.
    Parameter::new("udp_segmentation", Form::Choice(&["off", "on"]), text("on")),
    // Datagrams a second of a `live` sender; the others send as fast as they can.
    Parameter::new("rate", Form::Count(0, 100_000_000), Value::Count(0)),
];

static METRICS: [Metric; 10] = [
    Metric::new("ns_per_packet", "CPU a packet", "ns", Better::Lower, 0),
    Metric::new("mpps", "rate", "Mpps", Better::Higher, 3),
    Metric::new("process_ns_per_packet", "of the process", "ns", Better::Neither, 0),
    Metric::new("napi_ns_per_packet", "of the NAPI thread", "ns", Better::Neither, 0),
    Metric::new("xsk_percent", "by AF_XDP", "%", Better::Neither, 0),
    Metric::new("lost_percent", "lost", "%", Better::Lower, 3),
    Metric::new("offered_percent", "offered share", "%", Better::Neither, 1),
    // In place of times on beds whose clock counts instructions.
    Metric::new("instructions_per_packet", "instructions a packet", "", Better::Lower, 0),
    Metric::new("process_instructions_per_packet", "of the process", "", Better::Neither, 0),
    Metric::new("napi_instructions_per_packet", "of NAPI threads", "", Better::Neither, 0),
];

static TABLE: Table = Table { name: "packet-io", parameters: &PARAMETERS, metrics: &METRICS };

/// The report of an `expressway-io` that moved packets.
#[derive(Deserialize, Serialize)]
struct Moved {
    seconds: f64,
    cpu_ns: u64,
    received: u64,
    received_xsk: u64,
    sent: u64,
    sent_xsk: u64,
    /// The AF_XDP socket's mode by XDP_OPTIONS, `copy` or `zero-copy`; `None` without a socket.
    #[serde(default)]
    obtained: Option<String>,
}

impl Moved {
    /// Fails if the socket's mode is not the one that the method names.
    fn check(&self, way: &str) -> Result<(), BenchError> {
        let expected = match way {
            "af-xdp-zerocopy" => Some("zero-copy"),
            "af-xdp-copy" => Some("copy"),
            _ => None,
        };
        if self.obtained.as_deref() == expected {
            return Ok(());
        }
        let obtained = self.obtained.as_deref().unwrap_or("no AF_XDP socket");
        let problem = format!("XDP_OPTIONS reports {obtained}");
        Err(BenchError::Server { contestant: way.to_owned(), problem })
    }
}

impl Kind for PacketIo {
    fn table(&self) -> &'static Table {
        &TABLE
    }

    fn check(&self, case: &Case) -> Result<(), String> {
        let (direction, way) = (case.text("direction"), case.text("way"));
        if (case.text("sender") == "live") != (case.count("rate") > 0) {
            return Err("a `live` sender needs a `rate` above 0; other senders must not have one".into());
        }
        match (direction, way) {
            ("transmit", "gro" | "recvmmsg") | ("receive", "gso" | "sendmmsg" | "sendmsg") => {
                Err(format!("`{way}` cannot be used to {direction}"))
            }
            _ => Ok(()),
        }
    }

    fn lab(&self, case: &Case) -> LabConfig {
        let on = case.text("udp_segmentation") == "on";
        LabConfig { udp_segmentation: if on { Offload::On } else { Offload::Off }, ..pinned_lab() }
    }

    fn needs_xdp(&self, case: &Case) -> bool {
        case.text("way").starts_with("af-xdp")
    }

    fn lacks(&self, tools: &Tools, case: &Case) -> Option<String> {
        if case.text("way") == "af-xdp-zerocopy" && tools.bed == Bed::Lab {
            return Some("veth does not support zero-copy: use --bed guest".into());
        }
        tools.lack_io()
    }

    fn measure(&self, run: &Run<'_>) -> Result<Outcome, BenchError> {
        match run.case.text("direction") {
            "transmit" => transmit(run),
            _ if run.case.count("rate") > 0 => receive_at_rate(run),
            _ => receive(run),
        }
    }
}

fn transmit(run: &Run<'_>) -> Result<Outcome, BenchError> {
    let bed = run.tools.bed;
    let _sink = if bed.counts_instructions() {
        // The only processor is the sender's: packets leave the machine and end there.
        run.lab.set_link(Role::Client, false)?;
        None
    } else {
        // A sink takes them off the wire; otherwise an ICMP error would answer every datagram.
        let seconds = run.effort.seconds + LONGER;
        let mut sink = far_end(run, &Task::Sink { port: PORT, seconds, xsk: run.nics.is_none() })?;
        sink.expect("ready")?;
        Some(sink)
    };
    let mut command = moving("send", run.lab, Role::Server, run.case.text("way"), run.effort.seconds);
    command.extend(["--to".into(), address(run.lab, Role::Client)]);
    command.extend(["--size".into(), run.case.count("size").to_string()]);
    let mut sender = run.start_io(Role::Server, &command)?;
    // A device's NAPI threads complete transmissions, and transmit in zero-copy. On a veth, this end's NAPI thread has no
    // part in sending.
    let threads = if bed == Bed::Lab { BTreeSet::new() } else { run.server_napi(1)? };
    sender.wait_ready()?;
    let before = account(run, &sender, &threads)?;
    let recording = run.sample(sender.id(), &BTreeSet::new())?;
    let moved: Moved = sender.report()?;
    let mut spent = account(run, &sender, &threads)?.since(before);
    // With no other sender, ksoftirqd only sends what was left in this sender's full queue.
    spent.napi_ns += if bed.counts_instructions() { spent.ksoftirqd_ns } else { 0 };
    finish(run, recording, &moved, (moved.sent, moved.sent_xsk), spent)
}

fn receive(run: &Run<'_>) -> Result<Outcome, BenchError> {
    let command = moving("sink", run.lab, Role::Server, run.case.text("way"), run.effort.seconds);
    let mut sink = run.start_io(Role::Server, &command)?;
    sink.wait_ready()?;
    let threads: BTreeSet<u32> = run.server_napi(1)?;
    let before = account(run, &sink, &threads)?;
    let task = Task::Send {
        to: SocketAddrV4::new(run.lab.addresses(Role::Server).ipv4, PORT),
        size: run.case.count("size"),
        seconds: run.effort.seconds + LONGER,
        sender: sender(run.case),
    };
    let recording = run.sample(sink.id(), &threads)?;
    let mut sender = far_end(run, &task)?;
    sender.expect("ready")?;
    let moved: Moved = sink.report()?;
    let spent = account(run, &sink, &threads)?.since(before);
    finish(run, recording, &moved, (moved.received, moved.received_xsk), spent)
}

/// Live frames at a rate that the receiver can take, so that lost packets do not count towards the cost of received ones.
fn receive_at_rate(run: &Run<'_>) -> Result<Outcome, BenchError> {
    let (seconds, rate) = (run.effort.seconds, run.case.count("rate"));
    let command = moving("sink", run.lab, Role::Server, run.case.text("way"), seconds + LONGER);
    let mut sink = run.start_io(Role::Server, &command)?;
    sink.wait_ready()?;
    let threads: BTreeSet<u32> = run.server_napi(1)?;
    let before = account(run, &sink, &threads)?;
    let recording = run.sample(sink.id(), &threads)?;
    let to = SocketAddrV4::new(run.lab.addresses(Role::Server).ipv4, PORT);
    let size = run.case.count("size");
    let load = Task::Generate { to, rate, size, seconds, sender: Sender::Live, to_mac: None };
    let sent: Json = far_end(run, &load)?.report()?;
    let moved: Moved = sink.report()?;
    let spent = account(run, &sink, &threads)?.since(before);
    let moved = Moved { seconds: sent["seconds"].as_f64().unwrap_or(seconds), ..moved };
    let packets = (moved.received, moved.received_xsk);
    let mut outcome = finish(run, recording, &moved, packets, spent)?;
    let all = handed(&sent);
    let lost = 100.0 * (all - moved.received as f64).max(0.0) / all.max(1.0);
    outcome.values.insert("lost_percent", lost);
    outcome.values.insert("offered_percent", offered_percent(&sent, rate as f64));
    outcome.detail["sent"] = sent;
    Ok(outcome)
}

/// Ends the recording, checks that packets went the way that was asked for, and computes what one cost.
fn finish(
    run: &Run<'_>,
    recording: Option<Recording>,
    moved: &Moved,
    packets: (u64, u64),
    spent: Account,
) -> Result<Outcome, BenchError> {
    profile::finish(recording)?;
    moved.check(run.case.text("way"))?;
    Ok(outcome(run.tools.bed, moved, packets, spent, offload::of(run.lab, Role::Server)?))
}

/// Starts a task at the other end.
fn far_end<'a>(run: &Run<'a>, task: &Task) -> Result<Client<'a>, BenchError> {
    Client::start(run, run.case.text("way"), core_of(Role::Client), task)
}

fn sender(case: &Case) -> Sender {
    match case.text("sender") {
        "gso" => Sender::Gso,
        "live" => Sender::Live,
        "sendmmsg" => Sender::Sendmmsg,
        _ => Sender::Copy,
    }
}

/// CPU of the measured end so far; on given NICs that of its whole host, where interrupts belong to no thread.
fn account(run: &Run<'_>, process: &Process, threads: &BTreeSet<u32>) -> Result<Account, BenchError> {
    let account = process.account(threads)?;
    Ok(if run.nics.is_some() { account.with_host() } else { account })
}

fn outcome(
    bed: Bed,
    moved: &Moved,
    (packets, by_xsk): (u64, u64),
    spent: Account,
    offloads: BTreeMap<String, bool>,
) -> Outcome {
    let per_packet = |amount: u64| amount as f64 / packets.max(1) as f64;
    let all = per_packet(spent.host_ns.unwrap_or(moved.cpu_ns + spent.napi_ns));
    let (process, napi) = (per_packet(moved.cpu_ns), per_packet(spent.napi_ns));
    let mut values = BTreeMap::from([("xsk_percent", 100.0 * per_packet(by_xsk))]);
    if bed.counts_instructions() {
        values.extend([
            ("instructions_per_packet", all),
            ("process_instructions_per_packet", process),
            ("napi_instructions_per_packet", napi),
        ]);
    } else {
        values.extend([
            ("ns_per_packet", all),
            ("process_ns_per_packet", process),
            ("mpps", packets as f64 / moved.seconds / 1e6),
        ]);
        // On a host, interrupts are in no thread's account.
        values.extend(spent.host_ns.is_none().then_some(("napi_ns_per_packet", napi)));
    }
    let detail = serde_json::json!({ "moved": moved, "spent": spent, "offloads": offloads });
    Outcome { values, detail }
}

/// The arguments of a role that moves packets for so many seconds.
fn moving(role: &str, lab: &Lab, side: Role, way: &str, seconds: f64) -> Vec<String> {
    let mut arguments = vec![role.to_owned(), "--listen".into(), address(lab, side)];
    let way: &[&str] = match way {
        "af-xdp-copy" => &["--interface", lab.interface(side)],
        "af-xdp-zerocopy" => &["--interface", lab.interface(side), "--zero-copy"],
        "recvmmsg" => &["--no-gro"],
        "gro" => &[],
        sending => &["--sending", sending],
    };
    arguments.extend(way.iter().map(|one| (*one).to_owned()));
    arguments.extend(["--seconds".into(), seconds.to_string()]);
    arguments
}

pub(super) fn address(lab: &Lab, side: Role) -> String {
    format!("{}:{PORT}", lab.addresses(side).ipv4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_and_napi_thread_are_charged() {
        let moved = moved();
        let spent = Account { napi_ns: 100, ..Account::default() };
        let outcome = outcome(Bed::Lab, &moved, (10, 5), spent, BTreeMap::new());
        assert_eq!(outcome.values["ns_per_packet"], 100.0);
        assert_eq!(outcome.values["napi_ns_per_packet"], 10.0);
        assert_eq!(outcome.values["xsk_percent"], 50.0);
        assert_eq!(outcome.values["mpps"], 5e-6);
    }

    #[test]
    fn on_given_nics_the_whole_host_is_charged() {
        let spent = Account { napi_ns: 100, host_ns: Some(5000), ..Account::default() };
        let outcome = outcome(Bed::Nics, &moved(), (10, 5), spent, BTreeMap::new());
        assert_eq!(outcome.values["ns_per_packet"], 500.0);
        assert_eq!(outcome.values["process_ns_per_packet"], 90.0);
        assert!(!outcome.values.contains_key("napi_ns_per_packet"));
    }

    fn moved() -> Moved {
        Moved {
            seconds: 2.0,
            cpu_ns: 900,
            received: 10,
            received_xsk: 5,
            sent: 0,
            sent_xsk: 0,
            obtained: Some("copy".into()),
        }
    }

    #[test]
    fn no_times_are_reported_where_instructions_are_counted() {
        let spent = Account { napi_ns: 100, ..Account::default() };
        let outcome = outcome(Bed::GuestIcount, &moved(), (10, 5), spent, BTreeMap::new());
        assert_eq!(outcome.values["instructions_per_packet"], 100.0);
        assert_eq!(outcome.values["napi_instructions_per_packet"], 10.0);
        let times: Vec<_> = outcome
            .values
            .keys()
            .filter(|key| key.contains("ns_per_packet") && !key.contains("instructions") || **key == "mpps")
            .collect();
        assert!(times.is_empty(), "{times:?}");
    }

    #[test]
    fn zero_copy_is_what_xdp_options_says() {
        let moved = moved();
        moved.check("af-xdp-copy").unwrap();
        let error = moved.check("af-xdp-zerocopy").unwrap_err().to_string();
        assert_eq!(error, "af-xdp-zerocopy: XDP_OPTIONS reports copy");
        assert!(Moved { obtained: None, ..moved }.check("af-xdp-copy").is_err());
    }
}
