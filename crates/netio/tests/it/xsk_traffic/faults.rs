//! Links that go down and interfaces that vanish.

use std::net::SocketAddr;
use std::time::Instant;

use expressway_netio::xsk::BindingState;
use expressway_netio::{Flow, PacketIo};

use super::bed::{Bed, PATIENCE, PORT, Shape, peer_address, send};
use crate::common::netns::{NEAR, NEAR_DEVICE, is_privileged};

#[test]
fn a_link_that_goes_down_and_comes_back_is_survived() {
    if !is_privileged() {
        return;
    }
    let mut bed = Bed::new(Shape::default(), |_| ());
    let peer = bed.peer(NEAR[0]);
    bed.warm_up(&peer);
    for round in 0..3 {
        bed.pair.near.ip(&format!("link set {NEAR_DEVICE} down"));
        // The first burst may meet the link before anyone has told.
        let flow = Flow::new(SocketAddr::new(NEAR[0], PORT), peer_address(NEAR[0], &peer));
        send(&mut bed.io, &flow, &vec![b"lost".to_vec(); 100]);
        bed.io.flush(Instant::now()).unwrap();
        bed.await_state(BindingState::Down);
        let before = bed.io.stats();
        send(&mut bed.io, &flow, &vec![b"lost".to_vec(); 100]);
        bed.io.flush(Instant::now()).unwrap();
        let stats = bed.io.stats();
        assert_eq!(stats.tx_xsk_packets, before.tx_xsk_packets, "nothing is sent into a dead link");
        bed.pair.near.ip(&format!("link set {NEAR_DEVICE} up"));
        bed.await_state(BindingState::Up);
        let (rx, tx) = (stats.rx_xsk_packets, stats.tx_xsk_packets);
        let deadline = Instant::now() + PATIENCE;
        while bed.io.stats().rx_xsk_packets == rx || bed.io.stats().tx_xsk_packets == tx {
            bed.exchange(&peer, format!("after {round}").as_bytes(), true);
            assert!(Instant::now() < deadline, "{:?}", bed.io.stats());
        }
    }
    assert_eq!(bed.report().reopened, 0, "the socket outlived it");
}

#[test]
fn an_interface_that_vanishes_leaves_the_backend_working() {
    if !is_privileged() {
        return;
    }
    let mut bed = Bed::new(Shape::default(), |_| ());
    let peer = bed.peer(NEAR[0]);
    bed.exchange(&peer, b"before", false);
    let flow = Flow::new(SocketAddr::new(NEAR[0], PORT), peer_address(NEAR[0], &peer));
    bed.pair.near.ip(&format!("link del {NEAR_DEVICE}"));
    send(&mut bed.io, &flow, &vec![b"lost".to_vec(); 10]);
    bed.await_state(BindingState::Gone);
    assert_eq!(bed.report().mode, None);
    send(&mut bed.io, &flow, &vec![b"lost".to_vec(); 10]);
    bed.turn();
    let before = bed.io.stats().rx_xsk_packets;
    assert_eq!(before, 1, "what the closed socket had counted stays counted");
}
