//! Sending and receiving whole bursts through the kernel UDP backend.
#![allow(unreachable_pub)] // A module of test binaries.

use std::net::SocketAddr;
use std::time::Instant;

use expressway_netio::udp::{UdpConfig, UdpIo};
use expressway_netio::{Ecn, Flow, PacketIo};

use crate::udp_netns::{Namespace, eventually};

/// A datagram as a test keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    pub payload: Vec<u8>,
    pub remote: SocketAddr,
    pub local: SocketAddr,
    pub ecn: Ecn,
}

pub fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

pub fn open(space: &Namespace, config: &UdpConfig) -> UdpIo {
    space.run(|| UdpIo::bind(config).unwrap())
}

pub fn receive(io: &mut UdpIo, count: usize) -> Vec<Kept> {
    let mut kept = Vec::new();
    eventually(&format!("{count} datagrams"), || {
        io.receive(Instant::now(), &mut |datagram| {
            kept.push(Kept {
                payload: datagram.payload.to_vec(),
                remote: datagram.remote,
                local: datagram.local,
                ecn: datagram.ecn,
            });
        })
        .unwrap();
        (kept.len() >= count).then_some(())
    });
    assert_eq!(kept.len(), count, "no datagram comes twice");
    kept
}

/// Payload `number`: of `length` bytes, its own all over.
pub fn payload(number: usize, length: usize) -> Vec<u8> {
    (0..length).map(|index| (number.wrapping_mul(31) + index * 7 + index / 251) as u8).collect()
}

/// Sends payloads of these lengths as one burst and flushes.
pub fn send(io: &mut UdpIo, flow: &Flow, segment: usize, lengths: &[usize]) {
    let mut number = 0;
    while number < lengths.len() {
        let sent = io
            .transmit(flow, segment, &mut |slice| {
                let Some(length) = lengths.get(number).copied() else { return 0 };
                slice[..length].copy_from_slice(&payload(number, length));
                number += 1;
                length
            })
            .unwrap();
        io.flush(Instant::now()).unwrap();
        assert!(sent.packets > 0 || number == lengths.len(), "transmit makes progress");
    }
    io.flush(Instant::now()).unwrap();
}

/// Lengths of a burst with short datagrams between full ones.
pub const LENGTHS: [usize; 10] = [1200, 1200, 1200, 700, 1200, 1200, 1, 1200, 1200, 1200];
