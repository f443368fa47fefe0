//! What goes wrong: frames that are no datagrams, neighbours unknown, links down, sizes that do not fit.

use std::net::SocketAddr;
use std::time::Instant;

use expressway_netio::Ecn;
use expressway_netio::sim::Random;

use super::bed::{Bed, Family, Pause, offer, payload, payloads};
use super::peer::frame;
use crate::common::netns::{FAR_MAC, NEAR_MAC};

/// The beginning of a good frame in bytes: Ethernet, IPv4.
const ETHERNET: usize = 14;
const IPV4: usize = 20;

pub fn survives_garbage(bed: &mut dyn Bed) {
    bed.greet(Family::V4, 5000);
    let local = bed.local(Family::V4);
    let peer = SocketAddr::new(bed.peer_address(Family::V4), 5000);
    let good = frame((NEAR_MAC, FAR_MAC), peer, local, b"a good one");
    if !bed.inject(&good) {
        return;
    }
    assert_eq!(bed.receive_exactly(1)[0].payload, b"a good one", "the frames are what they should be");

    let udp = ETHERNET + IPV4;
    let changed = |at: usize, value: u8| {
        let mut bad = good.clone();
        bad[at] = value;
        bad
    };
    // A device that pads short frames makes a whole datagram of what ends before the checksum: one without.
    let lengths = (ETHERNET..good.len()).filter(|len| *len != udp + 6);
    let mut bad: Vec<Vec<u8>> = lengths.map(|len| good[..len].to_vec()).collect();
    bad.extend([
        changed(ETHERNET, 0x44),     // IHL below 20 bytes
        changed(ETHERNET, 0x4f),     // IHL beyond the header
        changed(ETHERNET, 0x65),     // version 6 in an IPv4 frame
        changed(ETHERNET + 2, 0xff), // total length beyond the frame
        changed(ETHERNET + 10, 0),   // header checksum
        changed(udp + 4, 0xff),      // UDP length beyond the packet
        changed(udp + 5, 7),         // UDP length below 8
    ]);
    if bed.verifies_checksums() {
        bad.push(changed(udp + 6, good[udp + 6] ^ 0x55)); // checksum
        bad.push(changed(udp + 8, b'A')); // content that the checksum does not cover
    }
    let mut random = Random::new(7);
    for _ in 0..500 {
        let len = 14 + random.below(200) as usize;
        let mut noise: Vec<u8> = (0..len).map(|_| random.next_u64() as u8).collect();
        noise[..6].copy_from_slice(&NEAR_MAC);
        noise[12..14].copy_from_slice(if random.chance(0.5) { &[8, 0] } else { &[0x86, 0xdd] });
        bad.push(noise);
    }
    let mut handed = Vec::new();
    for frame in &bad {
        bed.inject(frame);
        handed.extend(bed.received());
    }
    bed.inject(&good);
    let mut pause = Pause::new("the good one comes behind the bad ones");
    while handed.is_empty() {
        handed.extend(bed.received());
        pause.wait();
    }
    assert_eq!(payloads(&handed), [b"a good one".to_vec()], "nothing else is handed over");
}

pub fn sends_the_first_burst_to_an_unknown_neighbour(bed: &mut dyn Bed) {
    for family in [Family::V4, Family::V6] {
        bed.greet(family, 5000);
        if !bed.forget_neighbours() {
            return;
        }
        // No more than the kernel keeps for an unresolved neighbour (`unres_qlen_bytes`, 208 KiB).
        let sent: Vec<_> = (0..20).map(|number| payload(number, 1000)).collect();
        let flow = bed.flow(family, 5000);
        bed.send(&flow, &sent);
        let seen = bed.peer_receive_exactly(family, 5000, sent.len());
        assert_eq!(payloads(&seen), super::bed::sorted(sent));
    }
}

pub fn serves_again_after_the_link_was_down(bed: &mut dyn Bed) {
    // IPv6 loses its addresses with the link; IPv4 keeps them.
    bed.greet(Family::V4, 5000);
    let flow = bed.flow(Family::V4, 5000);
    let bounced = bed.bounce(&mut |io| {
        for number in 0..10 {
            let now = Instant::now();
            io.receive(now, &mut |_| ()).expect("a link that is down is no error");
            offer(io, &flow, 100, &[payload(number, 100)]);
            io.flush(now).expect("a link that is down is no error");
        }
    });
    if bounced {
        bed.greet(Family::V4, 5000);
        let sent: Vec<_> = (0..50).map(|number| payload(number, 1000)).collect();
        bed.send(&flow, &sent);
        assert_eq!(payloads(&bed.peer_receive_exactly(Family::V4, 5000, 50)), super::bed::sorted(sent));
    }
}

pub fn counts_what_cannot_be_sent(bed: &mut dyn Bed) {
    bed.greet(Family::V4, 5000);
    let flow = bed.flow(Family::V4, 5000);
    let before = bed.io().stats();
    let large = bed.mtu() - 28 + 1;
    let accepted = offer(bed.io(), &flow, large, &[payload(0, large)]).0 as u64;
    bed.io().flush(Instant::now()).expect("what is too large is no error");
    let mut pause = Pause::new("it is counted");
    loop {
        let after = bed.io().stats();
        let sent =
            after.tx_kernel_packets + after.tx_xsk_packets - before.tx_kernel_packets - before.tx_xsk_packets;
        assert_eq!(sent, 0, "it does not fit");
        if after.dropped_send_refused - before.dropped_send_refused == accepted {
            break;
        }
        pause.wait();
        bed.io().flush(Instant::now()).expect("what is too large is no error");
    }
    // And nothing of it stands in the way of the next.
    bed.send(&flow, &[b"small".to_vec()]);
    assert_eq!(bed.peer_receive_exactly(Family::V4, 5000, 1)[0].payload, b"small");
}

pub fn receives_the_largest(bed: &mut dyn Bed) {
    for (family, headers) in [(Family::V4, 28), (Family::V6, 48)] {
        bed.greet(family, 5000);
        let (local, most) = (bed.local(family), bed.mtu() - headers);
        let sent: Vec<_> = (0..20).map(|number| payload(number, most - number % 2)).collect();
        for payload in &sent {
            bed.peer_send(5000, local, Ecn::NotEct, payload);
        }
        assert_eq!(payloads(&bed.receive_exactly(20)), super::bed::sorted(sent));
    }
}
