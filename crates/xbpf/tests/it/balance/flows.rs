//! Flows: when they are established, which node they have, and when they leave it.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::Duration;

use expressway_xbpf::BalanceCounter::*;
use expressway_xbpf::BalanceMethod::*;
use expressway_xbpf::{BalanceListener, BalanceNode, BalanceOptions, BalanceProtocol, BalanceState};

use super::bed::*;

#[test]
fn udp_is_established_by_its_packets_and_keeps_its_node() {
    let Some(bed) = Bed::new(L2, false) else { return };
    let slots: Vec<u32> = (1..200).map(|port| bed.establish(port)).collect();
    assert!(slots.contains(&1) && slots.contains(&2));
    bed.ring(0, &[3]);
    for (port, slot) in (1..200).zip(&slots) {
        assert_eq!(bed.to(&udp(vip4(), port, b"x")), (TxFlow, *slot));
    }
    assert_eq!(bed.to(&udp(vip4(), 900, b"x")), (TxNew, 3), "a new one goes by the new ring");
    let traffic = bed.balance.service_traffic(0).unwrap();
    assert_eq!((traffic.flows, traffic.established), (200, 199));
    let nodes: u64 = (1..=3).map(|slot| bed.balance.node_traffic(slot).unwrap().packets).sum();
    assert_eq!(nodes, traffic.packets);
}

#[test]
fn tcp_is_established_behind_its_syn() {
    let Some(bed) = Bed::new(L2, false) else { return };
    let (counter, slot) = bed.to(&tcp(vip4(), 5, Tcp::Syn));
    assert_eq!(counter, TxNew);
    bed.ring(1, &[3 - slot]);
    assert_eq!(bed.to(&tcp(vip4(), 5, Tcp::Syn)), (TxProbation, slot), "a repeated SYN stays");
    for _ in 0..2 {
        assert_eq!(bed.to(&tcp(vip4(), 5, Tcp::Ack)), (TxProbation, slot));
    }
    assert_eq!(bed.to(&tcp(vip4(), 5, Tcp::Ack)), (TxFlow, slot));
    assert_eq!(bed.to(&tcp(vip4(), 5, Tcp::Fin)), (TxFlow, slot));
    assert_eq!(bed.to(&tcp(vip4(), 5, Tcp::Ack)), (TxFlow, slot), "its last ACK");
    sleep(QUIET);
    assert_eq!(bed.to(&tcp(vip4(), 5, Tcp::Syn)), (TxNew, 3 - slot), "the same ports again");
}

/// Longer than a closed flow has to be quiet before a SYN takes its ports.
const QUIET: Duration = Duration::from_secs(3);

/// Nobody has to know a sequence number for these.
#[test]
fn resets_and_syns_of_others_move_no_connection_that_goes_on() {
    let Some(bed) = Bed::new(L2, false) else { return };
    bed.ring(1, &[1]);
    for kind in [Tcp::Syn, Tcp::Ack, Tcp::Ack, Tcp::Ack] {
        bed.to(&tcp(vip4(), 5, kind));
    }
    bed.ring(1, &[2]);
    for state in [BalanceState::Up, BalanceState::Draining] {
        bed.state(1, state);
        for kind in [Tcp::Rst, Tcp::Fin] {
            for kind in [kind, Tcp::Syn, Tcp::Ack] {
                assert_eq!(bed.to(&tcp(vip4(), 5, kind)), (TxFlow, 1));
            }
        }
    }
    assert_eq!(bed.to(&tcp(vip4(), 5, Tcp::Rst)), (TxFlow, 1));
    sleep(QUIET);
    assert_eq!(bed.to(&tcp(vip4(), 5, Tcp::Ack)), (TxFlow, 1), "it was not its client's");
    sleep(QUIET);
    assert_eq!(bed.to(&tcp(vip4(), 5, Tcp::Syn)), (TxFlow, 1), "nothing has closed it since");
}

/// Behind a FIN or RST and two quiet seconds, a SYN is a new connection or a stranger's: the next packet says which.
#[test]
fn an_idle_connection_outlives_a_strangers_reset_and_syn() {
    let Some(bed) = Bed::new(L2, false) else { return };
    let at = |port, kind, sequence| bed.to(&tcp_at(vip4(), port, kind, sequence));
    let begin = |port| {
        bed.ring(1, &[1]);
        for (kind, sequence) in [(Tcp::Syn, 5000), (Tcp::Ack, 5001), (Tcp::Ack, 5001), (Tcp::Ack, 900_000)] {
            assert_eq!(at(port, kind, sequence).1, 1);
        }
        bed.ring(1, &[2]);
    };
    for (port, end) in [(1, Tcp::Rst), (2, Tcp::Fin), (3, Tcp::Rst), (4, Tcp::Rst)] {
        begin(port);
        assert_eq!(at(port, end, 77), (TxFlow, 1));
    }
    sleep(QUIET);
    // A stranger's: the connection goes on where it was, and what the stranger began leads nowhere.
    assert_eq!(at(1, Tcp::Syn, 3_000_000_000), (TxNew, 2));
    assert_eq!(at(1, Tcp::Syn, 3_000_000_000), (TxProbation, 2), "again");
    assert_eq!(at(1, Tcp::Ack, 900_100), (TxFlow, 1));
    assert_eq!(at(1, Tcp::Ack, 3_000_000_001), (TxFlow, 1), "it is known by now that none was closed");
    // The client's own, with the ports of the last one.
    assert_eq!(at(2, Tcp::Syn, 70), (TxNew, 2));
    assert_eq!(at(2, Tcp::Ack, 71), (TxProbation, 2));
    assert_eq!(at(2, Tcp::Ack, 60_000), (TxProbation, 2));
    assert_eq!(at(2, Tcp::Ack, 900_100), (TxFlow, 2), "it has taken the place of the old one");
    // Sequence numbers wrap.
    assert_eq!(at(3, Tcp::Syn, u32::MAX - 1), (TxNew, 2));
    assert_eq!(at(3, Tcp::Ack, u32::MAX), (TxProbation, 2));
    assert_eq!(at(3, Tcp::Ack, 9), (TxProbation, 2));
    assert_eq!(at(3, Tcp::Ack, 9), (TxFlow, 2));
    // Several SYNs: the last one counts.
    assert_eq!(at(4, Tcp::Syn, 1_000_000), (TxNew, 2));
    assert_eq!(at(4, Tcp::Syn, 2_000_000), (TxNew, 2));
    assert_eq!(at(4, Tcp::Ack, 2_000_001), (TxProbation, 2));
    assert_eq!(at(4, Tcp::Ack, 900_100), (TxFlow, 1), "not enough of the new one: the old one goes on");
}

/// The SYN of a new connection finds a flow whose node is dead: what follows goes where the SYN went, whatever the ring says.
#[test]
fn a_connection_on_the_ports_of_a_dead_nodes_flow_stays_together() {
    let Some(bed) = Bed::new(L2, false) else { return };
    bed.ring(1, &[1]);
    for kind in [Tcp::Syn, Tcp::Ack, Tcp::Ack] {
        bed.to(&tcp(vip4(), 5, kind));
    }
    bed.state(1, BalanceState::Down);
    bed.ring(1, &[2]);
    assert_eq!(bed.to(&tcp_at(vip4(), 5, Tcp::Syn, 70_000)), (TxNew, 2));
    bed.ring(1, &[3]);
    assert_eq!(bed.to(&tcp_at(vip4(), 5, Tcp::Syn, 70_000)), (TxProbation, 2), "again");
    for _ in 0..2 {
        assert_eq!(bed.to(&tcp_at(vip4(), 5, Tcp::Ack, 70_001)), (TxProbation, 2));
    }
    assert_eq!(bed.to(&tcp_at(vip4(), 5, Tcp::Ack, 70_001)), (TxFlow, 2));
}

#[test]
fn flows_that_move_are_counted_by_what_their_node_was() {
    let Some(bed) = Bed::new(L2, false) else { return };
    bed.ring(0, &[1]);
    bed.establish(1);
    bed.establish(2);
    bed.to(&udp(vip4(), 3, b"x"));
    bed.state(1, BalanceState::Down);
    bed.ring(0, &[2]);
    assert_eq!(bed.to(&udp(vip4(), 1, b"x")), (TxNew, 2));
    assert_eq!(bed.to(&udp(vip4(), 3, b"x")), (TxNew, 2), "not established");
    bed.balance.set_node(1, &BalanceNode { generation: 2, ..node(1, L2, false) }).unwrap();
    assert_eq!(bed.to(&udp(vip4(), 2, b"x")), (TxNew, 2));
    for traffic in [bed.balance.service_traffic(0).unwrap(), bed.balance.node_traffic(2).unwrap()] {
        assert_eq!((traffic.moved_down, traffic.moved_gone), (1, 1));
    }
    assert_eq!(bed.balance.node_traffic(1).unwrap().moved_down, 0);
}

#[test]
fn flows_leave_dead_nodes_only() {
    let Some(bed) = Bed::new(L2, false) else { return };
    let slots: Vec<u32> = (1..100).map(|port| bed.establish(port)).collect();
    bed.state(1, BalanceState::Down);
    bed.ring(0, &[2, 3]);
    for (port, slot) in (1..100).zip(&slots) {
        let (counter, now) = bed.to(&udp(vip4(), port, b"x"));
        match slot {
            1 => assert!(counter == TxNew && now != 1),
            _ => assert_eq!((counter, now), (TxFlow, 2)),
        }
        assert_eq!(bed.to(&udp(vip4(), port, b"x")), (TxFlow, now), "a moved flow stays where it is");
    }
    bed.state(1, BalanceState::Up);
    bed.ring(0, &[1, 2, 3]);
    for port in 1..100 {
        assert_eq!(bed.to(&udp(vip4(), port, b"x")).0, TxFlow, "one that comes back takes none");
    }
}

#[test]
fn a_draining_node_keeps_what_it_has() {
    let Some(bed) = Bed::new(L2, false) else { return };
    bed.ring(0, &[1]);
    bed.ring(1, &[1]);
    assert_eq!(bed.establish(1), 1);
    bed.to(&tcp(vip4(), 1, Tcp::Syn));
    bed.state(1, BalanceState::Draining);
    bed.ring(0, &[2]);
    bed.ring(1, &[2]);
    assert_eq!(bed.to(&udp(vip4(), 1, b"x")), (TxFlow, 1));
    assert_eq!(bed.to(&tcp(vip4(), 1, Tcp::Ack)), (TxProbation, 1));
    assert_eq!(bed.to(&udp(vip4(), 2, b"x")), (TxNew, 2));
    assert_eq!(bed.to(&tcp(vip4(), 1, Tcp::Syn)), (TxProbation, 1), "a repeated SYN");
    assert_eq!(bed.to(&tcp(vip4(), 2, Tcp::Syn)), (TxNew, 2), "a new connection");
    bed.to(&tcp(vip4(), 1, Tcp::Fin));
    sleep(QUIET);
    assert_eq!(bed.to(&tcp(vip4(), 1, Tcp::Syn)), (TxNew, 2), "another one with these ports");
}

#[test]
fn a_slot_that_gets_another_node_inherits_no_flow() {
    let Some(bed) = Bed::new(L2, false) else { return };
    bed.ring(0, &[1]);
    bed.establish(1);
    bed.balance.set_node(1, &BalanceNode { generation: 2, ..node(1, L2, false) }).unwrap();
    bed.ring(0, &[2]);
    assert_eq!(bed.to(&udp(vip4(), 1, b"x")), (TxNew, 2));
}

#[test]
fn without_a_node_packets_are_dropped_and_counted() {
    let Some(bed) = Bed::new(L2, false) else { return };
    bed.ring(0, &[]);
    assert_eq!(bed.run(&udp(vip4(), 1, b"x")).0, DropNoNode);
    bed.ring(0, &[1]);
    bed.state(1, BalanceState::Down);
    assert_eq!(bed.run(&udp(vip4(), 1, b"x")).0, DropNoNode);
    let traffic = bed.balance.service_traffic(0).unwrap();
    assert_eq!((traffic.dropped, traffic.lost()), ([2, 0, 0, 0], 2), "by reason: no node");
}

#[test]
fn a_flood_of_strangers_evicts_no_established_flow() {
    let options = BalanceOptions { flows: 4096, probation: 512, seed: 7 };
    let Some(bed) = Bed::with(&options, L2, false) else { return };
    let slots: Vec<u32> = (1..100).map(|port| bed.establish(port)).collect();
    let mut frame = udp(vip4(), 1, b"x");
    for source in 0..20_000u32 {
        frame[26..30].copy_from_slice(&(0x0b00_0000 + source).to_be_bytes());
        bed.balance.prog_test_run(&frame, 1).unwrap();
    }
    let mut syn = tcp(vip4(), 1, Tcp::Syn);
    for source in 0..20_000u32 {
        syn[26..30].copy_from_slice(&(0x0b00_0000 + source).to_be_bytes());
        bed.balance.prog_test_run(&syn, 1).unwrap();
    }
    bed.ring(0, &[3]);
    for (port, slot) in (1..100).zip(&slots) {
        assert_eq!(bed.to(&udp(vip4(), port, b"x")), (TxFlow, *slot));
    }
    let (established, probation) = bed.balance.flow_counts();
    assert!(established == 99 && probation <= 512, "{established} {probation}");
}

#[test]
fn affinity_keeps_an_address_on_a_node() {
    let Some(bed) = Bed::new(L2, false) else { return };
    let sticky = BalanceListener { affinity: true, ..listener(0) };
    bed.balance.set_listener(vip4(), BalanceProtocol::Udp, &sticky).unwrap();
    let (_, first) = bed.to(&udp(vip4(), 1, b"x"));
    for port in 2..200 {
        assert_eq!(bed.to(&udp(vip4(), port, b"x")).1, first);
    }
}

#[test]
fn with_affinity_the_end_of_a_connection_is_not_that_of_others() {
    let Some(bed) = Bed::new(L2, false) else { return };
    let sticky = BalanceListener { affinity: true, ..listener(1) };
    bed.balance.set_listener(vip4(), BalanceProtocol::Tcp, &sticky).unwrap();
    bed.ring(1, &[1]);
    for kind in [Tcp::Syn, Tcp::Ack, Tcp::Ack, Tcp::Ack] {
        bed.to(&tcp(vip4(), 5, kind));
    }
    bed.ring(1, &[2]);
    assert_eq!(bed.to(&tcp(vip4(), 6, Tcp::Fin)), (TxFlow, 1));
    assert_eq!(bed.to(&tcp(vip4(), 7, Tcp::Rst)), (TxFlow, 1));
    sleep(QUIET);
    assert_eq!(bed.to(&tcp(vip4(), 8, Tcp::Syn)), (TxFlow, 1), "the same source");
    assert_eq!(bed.to(&tcp(vip4(), 5, Tcp::Ack)), (TxFlow, 1), "its first connection goes on");
    bed.state(1, BalanceState::Draining);
    assert_eq!(bed.to(&tcp(vip4(), 9, Tcp::Syn)), (TxFlow, 1), "a drained node keeps the source");
}

#[test]
fn flows_are_counted_by_the_node_and_the_time_of_their_service() {
    let Some(bed) = Bed::new(L2, false) else { return };
    bed.ring(0, &[1]);
    bed.ring(1, &[1]);
    bed.establish(1);
    bed.establish(2);
    for port in [3, 4] {
        for kind in [Tcp::Syn, Tcp::Ack, Tcp::Ack] {
            bed.to(&tcp(vip4(), port, kind));
        }
    }
    bed.to(&tcp(vip4(), 4, Tcp::Rst));
    bed.balance.set_node(1, &BalanceNode { generation: 2, ..node(1, L2, false) }).unwrap();
    bed.establish(5);
    let minute = Duration::from_secs(60);
    let count = |idle: &[(u32, Duration)]| {
        bed.balance
            .flows_by_node(&idle.iter().copied().collect())
            .unwrap()
            .into_iter()
            .collect::<BTreeMap<_, _>>()
    };
    assert_eq!(count(&[(0, minute), (1, minute)]), BTreeMap::from([((1, 1), 3), ((1, 2), 1)]));
    sleep(QUIET);
    let second = Duration::from_secs(1);
    assert_eq!(count(&[(0, second), (1, minute)]), BTreeMap::from([((1, 1), 1)]));
}

#[test]
fn fewer_flows_win_new_ones() {
    let Some(bed) = Bed::new(L2, false) else { return };
    let least = BalanceListener { least_connections: true, ..listener(0) };
    bed.balance.set_listener(vip4(), BalanceProtocol::Udp, &least).unwrap();
    bed.balance.set_node(1, &BalanceNode { load: 1_000_000, ..node(1, L2, false) }).unwrap();
    let to: Vec<u32> = (0..400).map(|port| bed.to(&udp(vip4(), 1000 + port, b"x")).1).collect();
    let loaded = to.iter().filter(|slot| **slot == 1).count();
    // Both candidates of a flow are the loaded node for a quarter of the flows.
    assert!((50..150).contains(&loaded), "{loaded} of 400 went to the loaded node");
}

/// Loads are of established flows: else whoever sends SYNs would say where connections go.
#[test]
fn a_flood_of_new_flows_is_no_load() {
    // Room for all of the flood, on each CPU.
    let options = BalanceOptions { flows: 4096, probation: 1 << 17, seed: 7 };
    let Some(bed) = Bed::with(&options, L2, false) else { return };
    let least = BalanceListener { least_connections: true, ..listener(1) };
    bed.balance.set_listener(vip4(), BalanceProtocol::Tcp, &least).unwrap();
    let load = |slot, load| {
        bed.balance.set_node(slot, &BalanceNode { load, step: 1, ..node(slot, L2, false) }).unwrap();
    };
    // Each port is a flow of its own, and both nodes are candidates of three in four of them.
    let many = |ports: std::ops::Range<u16>| -> Vec<u32> {
        ports.map(|port| bed.to(&tcp(vip4(), port, Tcp::Syn)).1).collect()
    };
    let of = |slot: u32, to: &[u32]| to.iter().filter(|one| **one == slot).count();
    load(1, 0);
    load(2, 50);
    let flood = many(1000..2000);
    let late = many(3000..3400);
    for (to, what) in [(&flood[500..], "flood"), (&late[..], "later ones")] {
        let share = of(1, to) as f64 / to.len() as f64;
        assert!(
            share > 0.6,
            "{what}: {share} went to the node with the lower load, though none is established"
        );
    }
    // Connections that are established do count, until that node has more.
    for (port, slot) in (1000..2000).zip(&flood).filter(|(_, slot)| **slot == 1).take(100) {
        for _ in 0..2 {
            assert_eq!(bed.to(&tcp(vip4(), port, Tcp::Ack)), (TxProbation, *slot));
        }
    }
    let then = many(5000..5400);
    assert!(of(2, &then) > 240, "{} of 400 went to the node that has fewer by now", of(2, &then));
}
