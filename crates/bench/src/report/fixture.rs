//! A raw run for tests: one scenario with three contestants, and values for each round.

use std::collections::BTreeMap;

use crate::environment::Environment;
use crate::kind::Better;
use crate::raw::{Described, Measured, RawRun, Run};
use crate::scenario::{About, Bed, Beside, Contestant, Effort, Side, Value};

/// The scenario.
pub(crate) fn described() -> Described {
    let contestant = |name: &str, side| Contestant {
        name: name.into(),
        side,
        parameters: BTreeMap::new(),
        beds: Vec::new(),
        varies: false,
    };
    Described {
        about: About {
            name: "trial".into(),
            title: "a trial".into(),
            claim: "b takes half".into(),
            measures: "Work for each <second>.".into(),
            held_equal: vec!["all".into()],
            reading: String::new(),
            headline: "gbit_per_cpu_second".into(),
            base: Some("a".into()),
            curve: None,
        },
        kind: "gateway".into(),
        bed: Bed::Lab,
        emulated: None,
        hosts: None,
        contestants: vec![
            contestant("a", Side::Peer),
            contestant("b", Side::Kernel),
            contestant("c", Side::Xdp),
        ],
        sweep: [("body".to_owned(), vec![Value::Count(1024)])].into(),
        settings: BTreeMap::new(),
        effort: Effort { rounds: 6, seconds: 1.0, warmup: 1.0 },
        metrics: vec![
            Measured {
                key: "gbit_per_cpu_second".into(),
                label: "Gbit/CPU-s".into(),
                unit: "Gbit".into(),
                better: Better::Higher,
                decimals: 2,
            },
            Measured {
                key: "bytes_per_datagram".into(),
                label: "B/datagram".into(),
                unit: "B".into(),
                better: Better::Neither,
                decimals: 0,
            },
        ],
        beside: vec![Beside {
            figure: crate::published::find("quic-gateway-one-thread").expect("it is in published.toml"),
            metric: "gbit_per_cpu_second".into(),
            contestant: "a".into(),
            to: Some("b".into()),
            at: BTreeMap::new(),
            note: "A note.".into(),
        }],
    }
}

/// A run of it: for each round the headline of a, b and c.
pub(crate) fn raw(rounds: &[[f64; 3]]) -> RawRun {
    let mut runs = Vec::new();
    for (round, values) in rounds.iter().enumerate() {
        for (contestant, value) in ["a", "b", "c"].iter().zip(values) {
            runs.push(Run {
                scenario: "trial".into(),
                point: [("body".to_owned(), Value::Count(1024))].into(),
                contestant: (*contestant).into(),
                round,
                values: [
                    ("gbit_per_cpu_second".to_owned(), *value),
                    ("bytes_per_datagram".to_owned(), 1200.0),
                ]
                .into(),
                detail: serde_json::Value::Null,
            });
        }
    }
    let environment = Environment {
        version: "0.1.0".into(),
        commit: "abc".into(),
        build: "release".into(),
        command: "expressway bench trial".into(),
        began: 1_795_305_600,
        cpu: "A <CPU>".into(),
        cores: 2,
        virtual_machine: true,
        memory: 1 << 34,
        kernel: "6.18.0".into(),
        ..Environment::default()
    };
    RawRun { environments: vec![environment], scenarios: vec![described()], runs, ..RawRun::default() }
}
