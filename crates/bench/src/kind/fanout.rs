//! One UDP feed to many TCP subscribers: latency and the sending machine's CPU per delivery.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use expressway_lab::Role;
use serde::{Deserialize, Serialize};

use super::{Better, Kind, Metric, Outcome, Run, Table, Trial};
use crate::cpu::{self, Account};
use crate::process::{Piped, Process};
use crate::scenario::{Case, Form, Parameter, Value, text};
use crate::task::words;
use crate::{BenchError, SERVER_CORE, Tools, io_error, profile};

/// The kind.
pub(crate) struct Fanout;

/// The plain loop in C.
const SEND_LOOP: &str = include_str!("../../peers/send_loop.c");

const FEED_PORT: u16 = 5000;
const TCP_PORT: u16 = 9000;

/// Datagrams that are due at once in bursts.
const BURST: u64 = 10;

/// Deliveries a second that calibration starts with: any core can make them.
const FIRST_TRIAL: f64 = 30_000.0;

/// The most trials of a calibration, and the deviation from the load at which it stops earlier.
const TRIALS: usize = 7;
const NEAR: f64 = 0.03;

/// The deviation of the best trial from the load above which a warning is logged.
const FAR: f64 = 0.1;

/// The least load that trials can measure.
const LEAST_LOAD: f64 = 0.1;

static PARAMETERS: [Parameter; 10] = [
    Parameter::required("forwarder", Form::Choice(&["send-loop", "user", "kernel"])),
    Parameter::new("pattern", Form::Choice(&["bursts", "poisson", "even"]), text("even")),
    Parameter::new("subscribers", Form::Count(1, 20_000), Value::Count(64)),
    // Offered deliveries a second: a number, or as many as keep the C loop's core busy for this share of the time, calibrated
    // at each point before its rounds. `rate` caps the datagrams a second when there are few subscribers.
    Parameter::optional("deliveries", Form::Count(1, 100_000_000)),
    Parameter::optional("load", Form::Number(LEAST_LOAD)),
    Parameter::new("rate", Form::Count(1, 10_000_000), Value::Count(2_000)),
    Parameter::new("size", Form::Count(24, 1400), Value::Count(128)),
    // How the generator waits for a datagram's due time: spinning is exact, but occupies the subscribers' core while datagrams
    // are within 100 µs of each other.
    Parameter::new("generator", Form::Choice(&["spin", "sleep"]), text("spin")),
    // How the generator sends: one system call a datagram, or frames by XDP. All frames that are due together are in the
    // receive ring together, as from a NIC.
    Parameter::new("sender", Form::Choice(&["sendmsg", "live"]), text("sendmsg")),
    // Seconds to wait for late deliveries.
    Parameter::new("drain", Form::Number(0.0), Value::Number(0.5)),
];

static METRICS: [Metric; 10] = [
    Metric::new("mean_us", "mean latency", "µs", Better::Lower, 0),
    Metric::new("p50_us", "p50", "µs", Better::Lower, 0),
    Metric::new("p99_us", "p99", "µs", Better::Lower, 0),
    Metric::new("cpu_us_per_delivery", "CPU a delivery", "µs", Better::Lower, 2),
    Metric::new("lost_percent", "not delivered", "%", Better::Lower, 1),
    Metric::new("torn", "torn streams", "", Better::Lower, 0),
    Metric::new("deliveries_per_second", "deliveries", "/s", Better::Neither, 0),
    Metric::new("late_us", "sender late, p99", "µs", Better::Neither, 0),
    Metric::new("server_cpu_percent", "forwarder's core", "%", Better::Neither, 0),
    Metric::new("subscriber_cpu_percent", "subscribers' core", "%", Better::Neither, 0),
];

static TABLE: Table = Table { name: "fanout", parameters: &PARAMETERS, metrics: &METRICS };

/// The subscribers' report.
#[derive(Debug, Deserialize, Serialize)]
struct Received {
    datagrams: u64,
    expected: u64,
    delivered: u64,
    torn: u64,
    ended: u64,
    reads: u64,
    mean_ns: f64,
    p50_ns: u64,
    p99_ns: u64,
    max_ns: u64,
}

impl Kind for Fanout {
    fn table(&self) -> &'static Table {
        &TABLE
    }

    fn lacks(&self, tools: &Tools, case: &Case) -> Option<String> {
        let compiler = Command::new("cc").arg("--version").stdout(Stdio::null()).status();
        let built = compiler.is_ok_and(|status| status.success());
        if case.text("forwarder") == "send-loop" && !built {
            return Some("cc: no such program; install gcc".into());
        }
        tools.lack_io()
    }

    fn check(&self, case: &Case) -> Result<(), String> {
        match (case.given("deliveries"), case.given("load")) {
            (None, None) => Err("neither `deliveries` nor `load` is given".into()),
            (Some(_), Some(_)) => Err("both `deliveries` and `load` are given".into()),
            (None, Some(load)) if load > 1.0 => {
                Err(format!("`load` {load}: must be at most 1 (a fully busy core)"))
            }
            _ => Ok(()),
        }
    }

    fn calibration(&self, case: &Case, so_far: &[Trial]) -> Option<Case> {
        let deliveries = next_trial(case.given("load")?, &tried(so_far))?;
        let trial = [("forwarder", text("send-loop")), ("deliveries", Value::Count(deliveries as u64))];
        Some(case.with(trial).without("load"))
    }

    fn calibrated(&self, case: &Case, trials: &[Trial]) -> BTreeMap<String, Value> {
        let Some(load) = case.given("load") else { return BTreeMap::new() };
        let nearest = tried(trials).into_iter().min_by(|one, other| {
            let off = |(_, busy): &(f64, f64)| (busy - load).abs();
            off(one).total_cmp(&off(other))
        });
        let Some((deliveries, busy)) = nearest else { return BTreeMap::new() };
        if (busy - load).abs() > FAR {
            tracing::warn!(
                load,
                busy,
                deliveries,
                "no trial came near the load; the runs will report the actual load"
            );
        }
        BTreeMap::from([("deliveries".to_owned(), Value::Count(deliveries as u64))])
    }

    /// Starts the forwarder, the subscribers and the feed, and takes the CPU accounts of the measured part.
    fn measure(&self, run: &Run<'_>) -> Result<Outcome, BenchError> {
        let case = run.case;
        let host = run.lab.addresses(Role::Server).ipv4;
        let (feed, tcp) = (SocketAddr::from((host, FEED_PORT)), SocketAddr::from((host, TCP_PORT)));
        queue_at_client(run)?;
        let mut forwarder = start(run, feed, tcp)?;
        forwarder.wait_ready()?;
        let threads = Threads { server: run.server_napi(1)?, client: run.napi(Role::Client)? };
        let (warmup, seconds) = (run.effort.warmup, run.effort.seconds);
        let recording = run.sample(forwarder.id(), &threads.server)?;
        let mut subscribers = run.start_io(Role::Client, &subscribe(run, tcp))?;
        subscribers.wait_ready()?;
        let mut generator = start_generator(run, feed)?;
        sleep(Duration::from_secs_f64(warmup));
        let before = Cost::now(&forwarder, &subscribers, &threads)?;
        sleep(Duration::from_secs_f64(seconds));
        let cost = Cost::now(&forwarder, &subscribers, &threads)?.since(&before);
        profile::finish(recording)?;
        let sent: serde_json::Value = generator.report()?;
        let received: Received = subscribers.report()?;
        if received.delivered == 0 {
            return Err(run.load_failed("forwarder", format!("nothing was delivered: {received:?}")));
        }
        let deliveries = received.delivered as f64;
        let values = BTreeMap::from([
            ("mean_us", received.mean_ns / 1e3),
            ("p50_us", received.p50_ns as f64 / 1e3),
            ("p99_us", received.p99_ns as f64 / 1e3),
            ("cpu_us_per_delivery", cost.charged_ns() as f64 / 1e3 / deliveries),
            ("lost_percent", 100.0 * (1.0 - deliveries / received.expected.max(1) as f64)),
            ("torn", received.torn as f64),
            ("deliveries_per_second", deliveries / seconds),
            ("late_us", sent["lateness_ns"]["p99"].as_f64().unwrap_or_default() / 1e3),
            ("server_cpu_percent", cost.charged_ns() as f64 / (seconds * 1e7)),
            ("subscriber_cpu_percent", cost.subscribers.charged_ns() as f64 / (seconds * 1e7)),
        ]);
        let detail = serde_json::json!({"rate": rate(case), "received": received, "sent": sent, "server_cpu": cost.server,
            "kworker_ns": cost.kworker_ns, "subscriber_cpu": cost.subscribers});
        Ok(Outcome { values, detail })
    }
}

/// The datagrams a second of a case.
fn rate(case: &Case) -> u64 {
    (case.count("deliveries") / case.count("subscribers")).clamp(1, case.count("rate"))
}

/// Trials as deliveries a second, and the share of the time that the forwarder's core was busy.
fn tried(trials: &[Trial]) -> Vec<(f64, f64)> {
    let one = |trial: &Trial| {
        Some((trial.case.given("deliveries")?, trial.outcome.values.get("server_cpu_percent")? / 100.0))
    };
    trials.iter().filter_map(one).collect()
}

/// The deliveries a second to try next for a load: between the highest rate that stayed below it and the lowest that exceeded
/// it. A delivery costs less the more there are, so one trial is not enough.
fn next_trial(load: f64, tried: &[(f64, f64)]) -> Option<f64> {
    let Some((_, last)) = tried.last() else { return Some(FIRST_TRIAL) };
    if tried.len() >= TRIALS || (last - load).abs() < NEAR {
        return None;
    }
    let below = tried.iter().filter(|(_, busy)| *busy < load).max_by(|one, other| one.0.total_cmp(&other.0));
    let above = tried.iter().filter(|(_, busy)| *busy >= load).min_by(|one, other| one.0.total_cmp(&other.0));
    match (below, above) {
        (Some(&(below, busy)), None) => Some(below * (load / busy).clamp(1.1, 3.0)),
        (None, Some(&(above, busy))) => Some(above * (load / busy).clamp(0.2, 0.9)),
        (Some((below, _)), Some((above, _))) if below < above => Some((below * above).sqrt()),
        // The machine has changed between them.
        _ => None,
    }
}

/// Gives the client's end the server's transmit queue: a veth's ring holds 256 packets, and without a queue the ACKs of a
/// burst would push datagrams of the feed out of it before any forwarder sees them.
fn queue_at_client(run: &Run<'_>) -> Result<(), BenchError> {
    let limit = run.lab.config().queue_limit.to_string();
    let queue = ["qdisc", "replace", "dev", Role::Client.interface(), "root", "pfifo", "limit", &limit];
    let status = run.lab.command(Role::Client, "tc").args(queue).status().map_err(io_error("tc"))?;
    if status.success() {
        return Ok(());
    }
    Err(BenchError::Missing(format!("tc {}: {status}; see its error above", queue.join(" "))))
}

/// Starts the forwarder on the server's core.
fn start(run: &Run<'_>, feed: SocketAddr, tcp: SocketAddr) -> Result<Piped, BenchError> {
    let (program, arguments): (PathBuf, Vec<String>) = match run.case.text("forwarder") {
        "send-loop" => {
            let ports = [feed.ip().to_string(), feed.port().to_string(), tcp.port().to_string()];
            (compile(run.tools)?, ports.into())
        }
        mode => {
            let options = format!(
                "--log-level error fanout --mode {mode} --udp {feed} --tcp {tcp} --framing none --slow-client drop \
                 --max-subscribers 20000 --admin 127.0.0.1:9180"
            );
            (run.tools.expressway.clone(), words(&options))
        }
    };
    Piped::start_on(run.lab, Role::Server, &program, &arguments)
}

/// Compiles the C loop with ordinary options.
fn compile(tools: &Tools) -> Result<PathBuf, BenchError> {
    let (source, program) = (tools.work.join("send_loop.c"), tools.work.join("send_loop"));
    std::fs::create_dir_all(&tools.work).map_err(io_error(tools.work.display().to_string()))?;
    std::fs::write(&source, SEND_LOOP).map_err(io_error(source.display().to_string()))?;
    let output = Command::new("cc")
        .args(["-O2", "-pthread", "-o"])
        .args([&program, &source])
        .output()
        .map_err(io_error("cc"))?;
    if !output.status.success() {
        let problem = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(BenchError::Missing(format!("cc send_loop.c: {problem}")));
    }
    Ok(program)
}

fn subscribe(run: &Run<'_>, tcp: SocketAddr) -> Vec<String> {
    let (case, effort) = (run.case, run.effort);
    let options = format!(
        "subscribe --to {tcp} --subscribers {} --size {} --warmup {} --seconds {} --drain {}",
        case.count("subscribers"),
        case.count("size"),
        effort.warmup,
        effort.seconds,
        case.number("drain"),
    );
    words(&options)
}

/// Starts the generator of the feed, beside the subscribers. It keeps its schedule whatever they do.
fn start_generator(run: &Run<'_>, feed: SocketAddr) -> Result<Piped, BenchError> {
    let (case, effort) = (run.case, run.effort);
    let pattern = match case.text("pattern") {
        "bursts" => format!("--burst {BURST}"),
        "poisson" => "--poisson".to_owned(),
        _ => String::new(),
    };
    let wait = if case.text("generator") == "sleep" { "--no-spin" } else { "" };
    let way = match case.text("sender") {
        "live" => "--io live",
        _ => "--send sendmsg",
    };
    let options = format!(
        "gen udp --to {feed} --rate {} --size {} --seconds {} {way} {pattern} {wait} --json",
        rate(case),
        case.count("size"),
        effort.warmup + effort.seconds + 0.5,
    );
    let mut arguments = vec!["-n".to_owned(), "-20".into(), run.tools.expressway.display().to_string()];
    arguments.extend(words(&options));
    Piped::start_on(run.lab, Role::Client, Path::new("nice"), &arguments)
}

/// The NAPI threads of both ends.
struct Threads {
    server: BTreeSet<u32>,
    client: BTreeSet<u32>,
}

/// CPU of the two ends so far.
struct Cost {
    server: Account,
    /// Of the kernel's workers on the server's core, which send what the kernel forwards.
    kworkers: BTreeMap<u32, u64>,
    kworker_ns: u64,
    subscribers: Account,
}

impl Cost {
    fn now(forwarder: &Process, subscribers: &Process, threads: &Threads) -> Result<Self, BenchError> {
        Ok(Self {
            server: forwarder.account(&threads.server)?,
            kworkers: cpu::of_kworkers(SERVER_CORE)?,
            kworker_ns: 0,
            subscribers: subscribers.account(&threads.client)?,
        })
    }

    fn since(self, before: &Self) -> Self {
        // Workers come and go: a new one counts from 0.
        let grown = self
            .kworkers
            .iter()
            .map(|(id, now)| now.saturating_sub(before.kworkers.get(id).copied().unwrap_or_default()));
        Self {
            kworker_ns: grown.sum(),
            server: self.server.since(before.server),
            subscribers: self.subscribers.since(before.subscribers),
            kworkers: self.kworkers,
        }
    }

    /// CPU charged to every forwarder: its process, its NAPI threads, and the kernel's workers on its core.
    fn charged_ns(&self) -> u64 {
        self.server.charged_ns() + self.kworker_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calibration_finds_the_load_although_deliveries_get_cheaper() {
        // From 6 µs when there are few to 1.5 µs, and a core is never busier than always.
        let busy =
            |deliveries: f64| (deliveries * (1.5e-6 + 4.5e-6 / (1.0 + deliveries / 50_000.0))).min(1.0);
        for load in [0.25, 0.5, 0.75, 0.9] {
            let mut tried = Vec::new();
            while let Some(deliveries) = next_trial(load, &tried) {
                tried.push((deliveries, busy(deliveries)));
            }
            assert!(
                tried.len() < TRIALS && (tried.last().unwrap().1 - load).abs() < NEAR,
                "{load}: {tried:?}"
            );
        }
    }

    #[test]
    fn calibration_ends_on_a_machine_that_changes_meanwhile() {
        assert_eq!(next_trial(0.5, &[(100_000.0, 0.8), (120_000.0, 0.3)]), None);
        let never = vec![(100_000.0, 1.0); TRIALS];
        assert_eq!(next_trial(0.5, &never), None);
        assert_eq!(next_trial(0.5, &never[..1]), Some(50_000.0));
    }

    #[test]
    fn a_rate_is_given_as_deliveries_or_as_a_load() {
        let case = |given: &[&(&str, Value)]| {
            Case(given.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect())
        };
        let (deliveries, load) = (("deliveries", Value::Count(1000)), ("load", Value::Number(0.5)));
        assert_eq!(Fanout.check(&case(&[&deliveries])), Ok(()));
        assert_eq!(Fanout.check(&case(&[&load])), Ok(()));
        assert!(Fanout.check(&case(&[])).unwrap_err().contains("neither"));
        assert!(Fanout.check(&case(&[&deliveries, &load])).unwrap_err().contains("both"));
        assert!(Fanout.check(&case(&[&("load", Value::Number(1.5))])).unwrap_err().contains("1.5"));
        // A fixed rate needs no trial; a load starts with few deliveries.
        assert_eq!(Fanout.calibration(&case(&[&deliveries]), &[]), None);
        let first = Fanout.calibration(&case(&[&load]), &[]).unwrap();
        assert_eq!((first.given("load"), first.given("deliveries")), (None, Some(FIRST_TRIAL)));
    }
}
