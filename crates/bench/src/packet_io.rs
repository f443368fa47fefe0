//! Packet I/O by itself: what a datagram costs by each way to move it (`io`), and what each way to wait costs and
//! gives (`waiting`).

use expressway_lab::{Lab, LabConfig, Role};
use serde::{Deserialize, Serialize};

use crate::gateway::Bed;
use crate::peer::Peer;
use crate::{BenchError, CLIENT_CORE, SERVER_CORE, Tools, cpu};

/// The port that both ends use.
const PORT: u16 = 4433;

/// One measured run of either scenario, as a line of the raw file.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "measure")]
pub enum Run {
    /// Of `io`.
    Cost {
        /// `receive` or `transmit`.
        direction: &'static str,
        /// How.
        way: &'static str,
        /// Bytes of a payload.
        size: usize,
        /// Round, from 0.
        round: usize,
        /// Datagrams moved.
        packets: u64,
        /// Of them by AF_XDP.
        express: u64,
        /// CPU of the process, nanoseconds.
        process_ns: u64,
        /// CPU of the interface's NAPI thread, nanoseconds.
        napi_ns: u64,
        /// Both, by datagram.
        ns_a_packet: f64,
    },
    /// Of `waiting`.
    Latency {
        /// How packets move.
        way: &'static str,
        /// How the server waits.
        wait: &'static str,
        /// Round, from 0.
        round: usize,
        /// Round trips measured.
        round_trips: u64,
        /// Questions without an answer.
        lost: u64,
        /// Median, nanoseconds.
        p50_ns: u64,
        /// 99th percentile, nanoseconds.
        p99_ns: u64,
        /// CPU of the server's process and NAPI thread in percent of its core.
        cpu_percent: f64,
    },
}

/// What an `expressway-io` that moved packets reports.
#[derive(Deserialize)]
struct Moved {
    cpu_ns: u64,
    received: u64,
    received_express: u64,
    sent: u64,
    sent_express: u64,
}

/// What an `expressway-io` that asked reports.
#[derive(Deserialize)]
struct Asked {
    round_trips: u64,
    lost: u64,
    p50_ns: u64,
    p99_ns: u64,
}

/// The ways to send and to receive, with the arguments that choose them.
const TRANSMIT: [(&str, &[&str]); 4] = [
    ("AF_XDP copy", &["--interface"]),
    ("UDP GSO", &["--sending", "gso"]),
    ("UDP sendmmsg", &["--sending", "sendmmsg"]),
    ("UDP sendmsg", &["--sending", "sendmsg"]),
];
const RECEIVE: [(&str, &[&str]); 3] =
    [("AF_XDP copy", &["--interface"]), ("UDP recvmmsg + GRO", &[]), ("UDP recvmmsg", &["--no-gro"])];
const WAITS: [&str; 3] = ["interrupt", "busy-poll", "spin"];

/// How long and how often to measure.
#[derive(Clone, Copy, Debug)]
pub struct PacketIo {
    /// Rounds; each contestant runs once in each, in an order that turns.
    pub rounds: usize,
    /// Seconds of each run.
    pub seconds: f64,
}

impl PacketIo {
    /// CPU of a datagram by each way to send and to receive, at 64 and 1400 bytes of payload.
    pub fn io(&self, tools: &Tools, mut each: impl FnMut(&Run)) -> Result<(), BenchError> {
        for round in 0..self.rounds {
            for size in [64, 1400] {
                for (way, arguments) in turned(&TRANSMIT, round) {
                    each(&self.transmit(tools, (way, arguments), size, round)?);
                }
                for (way, arguments) in turned(&RECEIVE, round) {
                    each(&self.receive(tools, (way, arguments), size, round)?);
                }
            }
        }
        Ok(())
    }

    /// Round-trip time and server CPU by each way to wait, 64 bytes, one question at a time.
    pub fn waiting(&self, tools: &Tools, mut each: impl FnMut(&Run)) -> Result<(), BenchError> {
        let ways: Vec<(&str, &str)> = ["AF_XDP copy", "UDP"]
            .iter()
            .flat_map(|way| WAITS.iter().map(move |wait| (*way, *wait)))
            .collect();
        for round in 0..self.rounds {
            for (way, wait) in turned(&ways, round) {
                each(&self.latency(tools, way, wait, round)?);
            }
        }
        Ok(())
    }

    fn transmit(
        &self,
        tools: &Tools,
        (way, arguments): (&'static str, &[&str]),
        size: usize,
        round: usize,
    ) -> Result<Run, BenchError> {
        let bed = bed()?;
        let lab = bed.lab();
        // A sink that takes them off the wire; without one every datagram would be answered by an ICMP error.
        let mut sink = Peer::start(
            lab,
            tools,
            Role::Client,
            &self.moving("sink", lab, Role::Client, &["--interface"], 2.0),
        )?;
        sink.wait_ready()?;
        let mut command = self.moving("send", lab, Role::Server, arguments, 0.0);
        command.extend(["--to".into(), address(lab, Role::Client), "--size".into(), size.to_string()]);
        let mut sender = Peer::start(lab, tools, Role::Server, &command)?;
        sender.wait_ready()?;
        let moved: Moved = sender.report()?;
        // A veth's receive work is the other end's; what this end's NAPI thread does is not sending.
        Ok(cost("transmit", (way, size, round), moved.sent, moved.sent_express, (moved.cpu_ns, 0)))
    }

    fn receive(
        &self,
        tools: &Tools,
        (way, arguments): (&'static str, &[&str]),
        size: usize,
        round: usize,
    ) -> Result<Run, BenchError> {
        let before = cpu::napi_threads(Role::Server.interface())?;
        let bed = bed()?;
        let lab = bed.lab();
        let command = self.moving("sink", lab, Role::Server, arguments, 0.0);
        let mut sink = Peer::start(lab, tools, Role::Server, &command)?;
        sink.wait_ready()?;
        let threads = cpu::napi_threads(Role::Server.interface())?.difference(&before).copied().collect();
        cpu::pin(&threads, SERVER_CORE)?;
        let began = cpu::of_threads(&threads);
        let mut command = self.moving("send", lab, Role::Client, &["--interface"], 2.0);
        command.extend(["--to".into(), address(lab, Role::Server), "--size".into(), size.to_string()]);
        let mut sender = Peer::start(lab, tools, Role::Client, &command)?;
        sender.wait_ready()?;
        let moved: Moved = sink.report()?;
        let napi = cpu::of_threads(&threads) - began;
        Ok(cost("receive", (way, size, round), moved.received, moved.received_express, (moved.cpu_ns, napi)))
    }

    fn latency(
        &self,
        tools: &Tools,
        way: &'static str,
        wait: &'static str,
        round: usize,
    ) -> Result<Run, BenchError> {
        let before = cpu::napi_threads(Role::Server.interface())?;
        let bed = bed()?;
        let lab = bed.lab();
        let mut command = vec!["echo".to_owned(), "--listen".into(), address(lab, Role::Server)];
        if way == "AF_XDP copy" {
            command.extend(["--interface".into(), Role::Server.interface().into()]);
        }
        command.extend(["--wait".into(), wait.into()]);
        let mut echo = Peer::start(lab, tools, Role::Server, &command)?;
        echo.wait_ready()?;
        let threads = cpu::napi_threads(Role::Server.interface())?.difference(&before).copied().collect();
        cpu::pin(&threads, SERVER_CORE)?;
        let began = echo.cpu()? + cpu::of_threads(&threads);
        let seconds = self.seconds.to_string();
        let ping = ["ping", "--to", &address(lab, Role::Server), "--seconds", &seconds].map(str::to_owned);
        let asked: Asked = Peer::start(lab, tools, Role::Client, &ping)?.report()?;
        let cpu = echo.cpu()? + cpu::of_threads(&threads) - began;
        if asked.round_trips == 0 {
            let problem = format!("{} questions were lost and none was answered; run longer", asked.lost);
            return Err(BenchError::Load { contestant: format!("{way} {wait}"), problem });
        }
        Ok(Run::Latency {
            way,
            wait,
            round,
            round_trips: asked.round_trips,
            lost: asked.lost,
            p50_ns: asked.p50_ns,
            p99_ns: asked.p99_ns,
            cpu_percent: cpu as f64 / (self.seconds * 1e7),
        })
    }

    /// The arguments of a role that moves packets for the time of a run and `longer` seconds.
    fn moving(&self, role: &str, lab: &Lab, side: Role, way: &[&str], longer: f64) -> Vec<String> {
        let mut arguments = vec![role.to_owned(), "--listen".into(), address(lab, side)];
        arguments.extend(way.iter().map(|one| (*one).to_owned()));
        if way.contains(&"--interface") {
            arguments.push(side.interface().to_owned());
        }
        arguments.extend(["--seconds".into(), (self.seconds + longer).to_string()]);
        arguments
    }
}

fn cost(
    direction: &'static str,
    (way, size, round): (&'static str, usize, usize),
    packets: u64,
    express: u64,
    (process_ns, napi_ns): (u64, u64),
) -> Run {
    let ns_a_packet = (process_ns + napi_ns) as f64 / packets.max(1) as f64;
    Run::Cost { direction, way, size, round, packets, express, process_ns, napi_ns, ns_a_packet }
}

fn bed() -> Result<Bed, BenchError> {
    Bed::with(LabConfig {
        client_napi_core: Some(CLIENT_CORE),
        server_napi_core: Some(SERVER_CORE),
        ..LabConfig::default()
    })
}

fn address(lab: &Lab, side: Role) -> String {
    format!("{}:{PORT}", lab.addresses(side).ipv4)
}

/// As in [`crate::gateway`]: forth, then back.
fn turned<T: Copy>(all: &[T], round: usize) -> Vec<T> {
    let forth = all.iter().copied();
    if round.is_multiple_of(2) { forth.collect() } else { forth.rev().collect() }
}

/// The medians over the rounds, as a table.
pub fn medians(runs: &[Run]) -> String {
    // Of costs the first column alone, in nanoseconds; of latencies p50 and p99 in microseconds, and percent.
    let mut rows: Vec<(String, bool, Vec<[f64; 3]>)> = Vec::new();
    for run in runs {
        let (name, is_cost, values) = match run {
            Run::Cost { direction, way, size, ns_a_packet, .. } => {
                (format!("{direction:9} {way:20} {size:5} B"), true, [*ns_a_packet, 0.0, 0.0])
            }
            Run::Latency { way, wait, p50_ns, p99_ns, cpu_percent, .. } => (
                format!("{way:12} {wait:10}"),
                false,
                [*p50_ns as f64 / 1000.0, *p99_ns as f64 / 1000.0, *cpu_percent],
            ),
        };
        match rows.iter_mut().find(|(known, ..)| *known == name) {
            Some((.., all)) => all.push(values),
            None => rows.push((name, is_cost, vec![values])),
        }
    }
    let median = |all: &[[f64; 3]], column: usize| {
        let mut values: Vec<f64> = all.iter().map(|row| row[column]).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let mut table = String::new();
    for (name, is_cost, all) in &rows {
        let [one, two, three] = [0, 1, 2].map(|column| median(all, column));
        table += &match is_cost {
            true => format!("{name}  {one:8.0} ns CPU a packet\n"),
            false => format!("{name}  p50 {one:6.1} us  p99 {two:6.1} us  CPU {three:5.1} %\n"),
        };
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_by_contestant_and_over_rounds() {
        let run = |way, process_ns| cost("transmit", (way, 64, 0), 100, 0, (process_ns, 50_000));
        let runs =
            [run("UDP GSO", 950_000), run("UDP sendmsg", 0), run("UDP GSO", 50_000), run("UDP GSO", 150_000)];
        let table = medians(&runs);
        assert_eq!(table.lines().count(), 2, "{table}");
        assert!(table.contains("2000 ns CPU a packet"), "the middle one: {table}");
        assert!(table.contains("500 ns CPU a packet"), "{table}");
    }

    #[test]
    fn every_other_round_goes_back() {
        assert_eq!(turned(&[1, 2, 3], 0), [1, 2, 3]);
        assert_eq!(turned(&[1, 2, 3], 1), [3, 2, 1]);
    }
}
