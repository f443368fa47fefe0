use proptest::prelude::*;

use super::*;
use crate::flows::sample::{Counts, Flow, Queue};
use crate::packet::Direction;

const SECOND: u64 = 1_000_000_000;

fn conversation(host: u8, port: u16) -> Conversation {
    let address = |last| Address::Ip([192, 0, 2, last].into());
    Conversation {
        ethertype: 0x0800,
        protocol: 17,
        local: address(1),
        local_port: 443,
        remote: address(host),
        remote_port: port,
    }
}

fn flow(host: u8, port: u16, bytes: u64) -> Flow {
    Flow {
        conversation: conversation(host, port),
        received: Paths { af_xdp: Counts { packets: 1, bytes }, ..Paths::default() },
        sent: Paths { kernel: Counts { packets: 1, bytes }, ..Paths::default() },
        dropped: 0,
        cid: String::new(),
        quic: false,
    }
}

/// A sample whose totals grow by `flows` and by what has no flow.
fn sample(before: &Totals, elapsed: u64, flows: Vec<Flow>, others: u64) -> Sample {
    let mut totals = *before;
    for flow in &flows {
        totals.received += flow.received;
        totals.sent += flow.sent;
    }
    totals.received += Paths { kernel: Counts { packets: others, bytes: others * 100 }, ..Paths::default() };
    Sample { elapsed, totals, flows, ..Sample::default() }
}

fn fed(seconds: u64, each: impl Fn(u64) -> Vec<Flow>) -> Model {
    let mut model = Model::new(&[]);
    let mut totals = Totals::default();
    for second in 0..seconds {
        let sample = sample(&totals, SECOND, each(second), 0);
        totals = sample.totals;
        model.add(sample);
    }
    model
}

#[test]
fn rates_are_over_their_windows() {
    // A flow that was there in the first 20 of 40 seconds, and one in the last.
    let model = fed(40, |second| match second {
        0..20 => vec![flow(2, 1, 1000)],
        39 => vec![flow(3, 1, 500)],
        _ => vec![],
    });
    let mut rows = model.rows(Group::Flow, Show::default());
    rows.sort_by_key(|row| row.remote);
    let [old, new] = &rows[..] else { panic!("{rows:?}") };
    assert_eq!(old.rates.map(|rate| rate.received), [0.0, 0.0, 20.0 * 1000.0 * 8.0 / 40.0]);
    assert_eq!(new.rates.map(|rate| rate.sent), [2000.0, 400.0, 100.0]);
    assert_eq!((old.rates[2].af_xdp, old.received.af_xdp.packets, old.sent.kernel.bytes), (0.5, 20, 20_000));
    assert_eq!(model.rate(Window::Short).received, 2000.0);
}

#[test]
fn a_flow_that_has_been_silent_for_the_longest_window_has_no_row() {
    let model = fed(60, |second| if second == 0 { vec![flow(2, 1, 1)] } else { vec![] });
    assert!(model.rows(Group::Flow, Show::default()).is_empty());
}

#[test]
fn short_samples_share_a_slot() {
    let mut model = Model::new(&[]);
    let mut totals = Totals::default();
    for _ in 0..100 {
        let sample = sample(&totals, SECOND / 10, vec![flow(2, 1, 100)], 0);
        totals = sample.totals;
        model.add(sample);
    }
    let rate = model.rows(Group::Flow, Show::default())[0].rates[1];
    assert!((rate.received - 8000.0).abs() < 1.0, "{rate:?}");
}

#[test]
fn rows_are_grouped_by_host_port_and_what_is_shown() {
    let model = fed(1, |_| vec![flow(2, 1, 10), flow(2, 2, 10), flow(3, 1, 10)]);
    let hosts = model.rows(Group::Host, Show::default());
    assert_eq!(hosts.len(), 2);
    let two = hosts.iter().find(|row| row.conversations == 2).unwrap();
    assert_eq!((two.remote_port, two.local_port, two.bytes()), (None, Some(443), 40));
    let ports = model.rows(Group::Port, Show::default());
    assert_eq!((ports.len(), ports[0].remote, ports[0].local_port), (1, None, Some(443)));
    let shown = Show { remote_port: false, ..Show::default() };
    assert_eq!(model.rows(Group::Flow, shown).len(), 2);
}

#[test]
fn a_connection_is_one_row_across_addresses() {
    let with = |port, cid: &str| Flow { cid: cid.to_owned(), ..flow(2, port, 10) };
    let mut model = Model::new(&[443]);
    model.add(Sample { elapsed: SECOND, flows: vec![with(1000, "aa"), with(5, "ff")], ..Sample::default() });
    model.add(Sample { elapsed: SECOND, flows: vec![with(2000, "aa")], ..Sample::default() });
    let rows = model.rows(Group::Connection, Show::default());
    assert_eq!(rows.len(), 2);
    let moved = rows.iter().find(|row| row.conversations == 2).unwrap();
    assert_eq!((moved.remote_port, moved.cid.as_deref()), (Some(2000), Some("aa")));
    // Another UDP flow is no connection until a handshake says so.
    let mut model = Model::new(&[]);
    model.add(Sample { elapsed: SECOND, flows: vec![with(1000, "aa")], ..Sample::default() });
    assert!(model.rows(Group::Connection, Show::default()).is_empty());
}

#[test]
fn in_a_flood_the_heavy_flow_stays_and_memory_is_bounded() {
    let mut model = Model::new(&[]);
    let mut totals = Totals::default();
    for round in 0..20u32 {
        let mut flows: Vec<Flow> = (0..2000).map(|port| flow((round + 3) as u8, port, 60)).collect();
        flows.push(flow(2, 1, 100_000));
        let sample = sample(&totals, SECOND, flows, 5);
        totals = sample.totals;
        model.add(sample);
    }
    assert!(model.entries.len() <= ROWS);
    let rows = model.rows(Group::Flow, Show::default());
    let heavy = rows.iter().max_by_key(|row| row.bytes()).unwrap();
    assert_eq!((heavy.remote_port, heavy.received.af_xdp.bytes), (Some(1), 2_000_000));
    assert_eq!(model.last().totals.received.all().packets, 20 * 2006);
}

#[test]
fn queues_have_rates_and_their_share_and_those_that_went_are_forgotten() {
    let queue = |number: Option<u32>, direction, af_xdp: u64, kernel: u64| Queue {
        device: "eth0".to_owned(),
        direction,
        queue: number,
        paths: Paths {
            af_xdp: Counts { packets: af_xdp, bytes: af_xdp * 100 },
            kernel: Counts { packets: kernel, bytes: kernel * 1000 },
            ..Paths::default()
        },
    };
    let mut model = Model::new(&[]);
    for second in 0..20 {
        let mut queues = vec![
            queue(Some(0), Direction::In, 0, 0),
            queue(Some(1), Direction::In, 30, 0),
            queue(None, Direction::In, 0, 10),
        ];
        if second == 0 {
            queues.push(queue(Some(0), Direction::Out, 0, 20));
        }
        model.add(Sample { elapsed: SECOND, queues, ..Sample::default() });
    }
    let rows = model.queues();
    let told: Vec<_> = rows.iter().map(|row| (row.queue, row.rates[1].packets, row.share)).collect();
    assert_eq!(told, [(Some(0), 0.0, 0.0), (Some(1), 30.0, 0.75), (None, 10.0, 0.25), (Some(0), 0.0, 0.0)]);
    assert_eq!((rows[1].af_xdp.bits, rows[1].kernel.bits), (24_000.0, 0.0));
    assert_eq!((rows[2].kernel, rows[3].rates[2].packets), (PathRate { bits: 80_000.0, packets: 10.0 }, 1.0));
    for _ in 0..41 {
        model.add(Sample { elapsed: SECOND, ..Sample::default() });
    }
    assert_eq!(model.queues(), []);
}

proptest! {
    /// Rows and what has none add up to what passed, in each window.
    #[test]
    fn rows_and_others_are_all(
        seconds in proptest::collection::vec(
            (1u64..3 * SECOND, proptest::collection::vec((2u8..6, 1u16..4, 1u64..10_000), 0..8), 0u64..5),
            1..60,
        )
    ) {
        let mut model = Model::new(&[]);
        let mut totals = Totals::default();
        for (elapsed, flows, others) in seconds {
            // A conversation is in a sample once.
            let mut once: HashMap<(u8, u16), u64> = HashMap::new();
            for (host, port, bytes) in flows {
                *once.entry((host, port)).or_default() += bytes;
            }
            let flows = once.into_iter().map(|((host, port), bytes)| flow(host, port, bytes)).collect();
            let sample = sample(&totals, elapsed, flows, others);
            totals = sample.totals;
            model.add(sample);
        }
        for (at, window) in Window::ALL.into_iter().enumerate() {
            let rows = model.rows(Group::Flow, Show::default());
            let of_rows: f64 = rows.iter().map(|row| row.rates[at].bits()).sum();
            let all = model.rate(window).bits();
            let others = model.others(window).bits();
            prop_assert!((of_rows + others - all).abs() <= all * 1e-9 + 1e-6, "{of_rows} + {others} != {all}");
            let hosts: f64 =
                model.rows(Group::Host, Show::default()).iter().map(|row| row.rates[at].bits()).sum();
            prop_assert!((hosts - of_rows).abs() <= all * 1e-9 + 1e-6);
        }
    }
}
