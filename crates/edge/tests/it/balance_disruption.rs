//! How many new flows get another node when a node goes, comes or gets another weight: the program's hash over rings as the
//! balancer makes them, with fixed seeds. Needs root.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use expressway_edge::balance::maglev::{Share, ring};
use expressway_xbpf::{
    Balance, BalanceListener, BalanceMethod, BalanceNode, BalanceOptions, BalanceProtocol, BalanceState,
};

use crate::support::{Packet, TX, permitted};

const FLOWS: u32 = 4000;

/// The node of each flow, by its index in `weights`: every flow is a new one.
fn placed(seed: u64, weights: &[u32]) -> Option<Vec<usize>> {
    let balance = permitted(Balance::load(&BalanceOptions { flows: 1024, probation: 1024, seed }))?;
    let names: Vec<String> = (0..weights.len()).map(|index| format!("10.0.0.{}", index + 1)).collect();
    let shares = names.iter().zip(weights).map(|(name, weight)| Share { name, weight: *weight });
    let shares: Vec<Share<'_>> = shares.collect();
    for slot in 0..weights.len() as u32 {
        balance.set_node(slot, &node(slot)).unwrap();
    }
    balance.set_ring(0, &ring(&shares, Balance::RING as usize)).unwrap();
    let listener = BalanceListener {
        service: 0,
        quic_lb: false,
        affinity: false,
        least_connections: false,
        idle: Duration::from_secs(60),
    };
    let service = SocketAddr::from(([192, 0, 2, 10], 443));
    balance.set_listener(service, BalanceProtocol::Udp, &listener).unwrap();
    let node_of = |flow: u32| {
        let run = balance.prog_test_run(&frame(flow), 1).unwrap();
        assert_eq!(run.verdict, TX);
        usize::from(run.frame[5])
    };
    Some((0..FLOWS).map(node_of).collect())
}

fn node(slot: u32) -> BalanceNode {
    BalanceNode {
        address: Ipv4Addr::new(10, 0, 0, slot as u8 + 1).into(),
        source: Ipv4Addr::new(10, 0, 0, 254).into(),
        ifindex: 1,
        destination_mac: [2, 0, 0, 0, 0, slot as u8],
        source_mac: [2, 0, 0, 0, 1, 0],
        generation: 1,
        mtu: 1500,
        load: 0,
        step: 0,
        method: BalanceMethod::L2,
        state: BalanceState::Up,
    }
}

/// A UDP packet of that flow: clients with many ports, and ports of many clients.
fn frame(flow: u32) -> Vec<u8> {
    let source = Ipv4Addr::new(198, 51, (flow >> 8) as u8, flow as u8);
    let ports = (1024 + (flow % 1000) as u16, 443);
    Packet {
        source: source.into(),
        destination: [192, 0, 2, 10].into(),
        ports,
        ..Packet::udp("192.0.2.1", 443, &[7; 4])
    }
    .frame()
}

/// The share of flows that moved, of those that did not have to.
fn moved(before: &[usize], after: &[usize], had_to: impl Fn(usize, usize) -> bool) -> f64 {
    let free: Vec<_> = before.iter().zip(after).filter(|(old, new)| !had_to(**old, **new)).collect();
    free.iter().filter(|(old, new)| old != new).count() as f64 / free.len() as f64
}

#[test]
fn a_node_that_goes_or_comes_moves_hardly_a_flow_of_others() {
    for seed in [0, 7, 0xdead_beef] {
        for count in [2, 3, 10, 50] {
            let whole = vec![1; count];
            let mut without = whole.clone();
            without[count / 2] = 0;
            let Some(before) = placed(seed, &whole) else { return };
            let after = placed(seed, &without).unwrap();
            assert!(!after.contains(&(count / 2)));
            let gone = moved(&before, &after, |old, _| old == count / 2);
            let back = moved(&after, &before, |_, new| new == count / 2);
            println!("seed {seed}, {count} nodes: {gone:.4} of others' flows move, {back:.4} when it comes");
            assert!(gone < 0.015 && back < 0.015, "seed {seed}, {count} nodes: {gone} and {back}");
        }
    }
}

#[test]
fn flows_are_spread_by_weight_and_move_by_its_change() {
    for seed in [0, 7, 0xdead_beef] {
        let Some(before) = placed(seed, &[10; 10]) else { return };
        let mut weights = [10; 10];
        weights[4] = 20;
        let after = placed(seed, &weights).unwrap();
        let part =
            |flows: &[usize]| flows.iter().filter(|node| **node == 4).count() as f64 / f64::from(FLOWS);
        assert!((0.08..0.12).contains(&part(&before)), "a tenth: {}", part(&before));
        assert!((0.155..0.21).contains(&part(&after)), "two elevenths: {}", part(&after));
        let others = moved(&before, &after, |_, new| new == 4);
        println!("seed {seed}: {others:.4} of the other flows move between the other nodes");
        assert!(others < 0.1, "seed {seed}: {others} of the other flows move between the other nodes");
    }
}
