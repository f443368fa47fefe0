//! Service to good clients under attack: TCP transactions per second while a flood arrives on the same interface, with and
//! without a filter (the XDP paper's experiment on denial of service).
//!
//! ```text
//!  client namespace, core 1                     server namespace, core 0
//!  expressway-io transact ◀═ client0 ═════════▶ server0 ─▶ NAPI thread: filter ─▶ kernel's TCP ─▶ expressway-io server
//!  gen --io live ──────────▶
//! ```
//!
//! NAPI threads run before everything else on their cores (SCHED_FIFO), as softirqs would. So does the good client, because
//! otherwise the generator beside it would take its time.

use std::collections::BTreeMap;

use expressway_lab::Role;
use serde::{Deserialize, Serialize};

use super::bed::{End, VethBed};
use super::tables::{PREFIXES, RULES};
use super::{ACTION, WAY, lacks, program};
use crate::kind::{Better, Kind, Metric, Outcome, Run, Table, pinned_lab};
use crate::packet_path::PacketPath;
use crate::peers::Program;
use crate::process::Logged;
use crate::scenario::{Case, Form, Parameter, Value};
use crate::{BenchError, CLIENT_CORE, Tools, cpu};

/// The kind.
pub(crate) struct Attack;

/// Where good clients connect to.
const PORT: u16 = 8080;
/// How long the flood goes on before and behind what is counted.
const MARGIN: f64 = 0.25;

static PARAMETERS: [Parameter; 7] = [
    WAY,
    ACTION,
    RULES,
    PREFIXES,
    // Packets a second of the attack.
    Parameter::required("attack", Form::Count(0, 100_000_000)),
    // Connections of good clients, each with one transaction at a time.
    Parameter::new("connections", Form::Count(1, 1000), Value::Count(32)),
    // Bytes of UDP payload of the attack's packets.
    Parameter::new("size", Form::Bytes(24, 1472), Value::Count(24)),
];

static METRICS: [Metric; 5] = [
    Metric::new("transactions", "transactions", "thousand/s", Better::Higher, 1),
    Metric::new("p50_us", "p50", "us", Better::Lower, 0),
    Metric::new("p99_us", "p99", "us", Better::Lower, 0),
    Metric::new("offered_mpps", "attack at the link", "Mpps", Better::Neither, 3),
    Metric::new("taken_mpps", "attack taken by its ring", "Mpps", Better::Neither, 3),
];

static TABLE: Table = Table { name: "attack", parameters: &PARAMETERS, metrics: &METRICS };

/// The report of `expressway-io transact`.
#[derive(Deserialize, Serialize)]
struct Served {
    transactions: u64,
    seconds: f64,
    connections_lost: u64,
    p50_ns: u64,
    p99_ns: u64,
    max_ns: u64,
}

/// The report of the generator, as far as it is read.
#[derive(Default, Deserialize, Serialize)]
struct Attacked {
    sent: u64,
    #[serde(default)]
    refused: u64,
    seconds: f64,
}

impl Kind for Attack {
    fn table(&self) -> &'static Table {
        &TABLE
    }

    fn lab(&self, _: &Case) -> expressway_lab::LabConfig {
        pinned_lab()
    }

    fn lacks(&self, tools: &Tools, case: &Case) -> Option<String> {
        tools.lack_io().or_else(|| lacks(case))
    }

    fn program(&self, tools: &Tools, case: &Case) -> Option<(String, Program)> {
        program(tools, case)
    }

    fn measure(&self, run: &Run<'_>) -> Result<Outcome, BenchError> {
        let case = run.case;
        let bed = VethBed::make(run, End::Dropped, 1)?;
        let path = PacketPath::named(case.text("way"))?;
        bed.prepare(&path)?;
        let mut filter = bed.start(&path, case.text("action"))?;
        let to = format!("{}:{PORT}", run.lab.addresses(Role::Server).ipv4);
        let mut server = run.start_io(Role::Server, &["server".into(), "--listen".into(), to.clone()])?;
        server.wait_ready()?;
        for side in Role::ALL {
            cpu::run_first(&run.napi(side)?)?;
        }
        // Attaching a program has made others, which are on no core yet.
        cpu::run_first(&run.server_napi(1)?)?;
        let (warmup, seconds) = (run.effort.warmup.max(MARGIN), run.effort.seconds);
        let words = [
            ("--to", to),
            ("--connections", case.count("connections").to_string()),
            ("--warmup", warmup.to_string()),
            ("--seconds", seconds.to_string()),
        ];
        let words = words.into_iter().flat_map(|(option, value)| [option.to_owned(), value]);
        let words: Vec<String> = std::iter::once("transact".to_owned()).chain(words).collect();
        let mut client = run.start_io(Role::Client, &words)?;
        client.wait_ready()?;
        cpu::run_first(&client.threads()?)?;
        let attack = match case.count("attack") {
            0 => None,
            rate => {
                let time = (warmup + seconds + MARGIN).to_string();
                let size = case.count("size").to_string();
                let options = [("--rate", rate.to_string()), ("--size", size), ("--seconds", time)];
                Some(bed.generate(&path, CLIENT_CORE, &options)?)
            }
        };
        let served: Served = client.report()?;
        let attacked: Attacked = attack.map(|mut one: Logged| one.report()).transpose()?.unwrap_or_default();
        if let Some(filter) = &mut filter {
            filter.end()?;
        }
        let values = values(&served, &attacked);
        Ok(Outcome { values, detail: serde_json::json!({ "served": served, "attacked": attacked }) })
    }
}

fn values(served: &Served, attacked: &Attacked) -> BTreeMap<&'static str, f64> {
    let mpps = |packets: u64| match attacked.seconds > 0.0 {
        true => packets as f64 / attacked.seconds / 1e6,
        false => 0.0,
    };
    let mut values = BTreeMap::from([
        ("transactions", served.transactions as f64 / served.seconds / 1000.0),
        ("offered_mpps", mpps(attacked.sent + attacked.refused)),
        ("taken_mpps", mpps(attacked.sent)),
    ]);
    // Of none there are no times.
    if served.transactions > 0 {
        values.extend([("p50_us", served.p50_ns as f64 / 1000.0), ("p99_us", served.p99_ns as f64 / 1000.0)]);
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_per_second_and_no_transaction_has_no_time() {
        let mut served = Served {
            transactions: 60_000,
            seconds: 2.0,
            connections_lost: 0,
            p50_ns: 900_000,
            p99_ns: 2,
            max_ns: 3,
        };
        let attacked = Attacked { sent: 3_000_000, refused: 1_000_000, seconds: 2.0 };
        let found = values(&served, &attacked);
        assert_eq!((found["transactions"], found["p50_us"]), (30.0, 900.0));
        assert_eq!((found["offered_mpps"], found["taken_mpps"]), (2.0, 1.5));
        served.transactions = 0;
        let found = values(&served, &Attacked::default());
        assert_eq!(
            (found["transactions"], found["offered_mpps"], found.contains_key("p50_us")),
            (0.0, 0.0, false)
        );
    }
}
