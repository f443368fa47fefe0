//! Limits of the way out by AF_XDP: the MTU of the path, a link that comes up unseen, and settings of the
//! device that harm it.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use expressway_netio::route::{Path, Resolution};
use expressway_netio::udp::{UdpConfig, UdpIo};
use expressway_netio::xsk::{BindMode, BindingState, Routes, XskBinding, XskConfig, XskIo, XskIoConfig};
use expressway_netio::{Flow, PacketIo, Sent};
use expressway_wire::{MacAddr, VlanTags};
use expressway_xbpf::{Options, Redirect};

use crate::common::netns::{FAR, FAR_DEVICE, FAR_MAC, NEAR, NEAR_DEVICE, NEAR_MAC, Pair, is_privileged};

const PORT: u16 = 4433;
const PATIENCE: Duration = Duration::from_secs(20);
/// Below the interface's, as a route may say.
const MTU: usize = 1400;

/// Everything leaves by one interface.
struct Direct(u32);

impl Routes for Direct {
    fn resolve(&mut self, local: IpAddr, _remote: IpAddr) -> Resolution {
        Resolution::Ready(Path {
            ifindex: self.0,
            egress: self.0,
            source_mac: MacAddr(NEAR_MAC),
            destination_mac: MacAddr(FAR_MAC),
            vlan: VlanTags::NONE,
            mtu: MTU,
            source: local,
            stale: false,
        })
    }
}

fn binding(redirect: &Redirect, queue: u32) -> XskBinding {
    let config =
        XskConfig { mode: BindMode::Copy, rx_ring: 64, tx_ring: 64, ..XskConfig::new(NEAR_DEVICE, queue) };
    XskBinding::open(config, redirect.xsk_map()).unwrap()
}

fn backend(binding: XskBinding) -> XskIo<UdpIo, Direct> {
    let listen = NEAR.iter().map(|&ip| SocketAddr::new(ip, PORT)).collect();
    let kernel = UdpIo::bind(&UdpConfig { freebind: true, ..UdpConfig::new(listen) }).unwrap();
    let routes = Direct(binding.ifindex());
    XskIo::new(vec![binding], kernel, routes, XskIoConfig::default()).unwrap()
}

/// Waits until a binding that is opened finds the link so: carriers are reported by a work item of the kernel.
fn await_link(redirect: &Redirect, state: BindingState) {
    let deadline = Instant::now() + PATIENCE;
    while binding(redirect, 1).report().state != state {
        assert!(Instant::now() < deadline, "the link never was {state:?}");
    }
}

fn redirect() -> Redirect {
    Redirect::load(&Options::default()).unwrap()
}

#[test]
fn datagrams_above_the_mtu_of_the_path_are_refused_and_counted() {
    if !is_privileged() {
        return;
    }
    let (pair, redirect) = (Pair::new(1500, 1), redirect());
    let mut io = pair.near.enter(|| backend(binding(&redirect, 0)));
    for (near, far, headers) in [(NEAR[0], FAR[0], 28), (NEAR[2], FAR[1], 48)] {
        let flow = Flow::new(SocketAddr::new(near, PORT), SocketAddr::new(far, 9));
        let before = io.stats();
        let largest = MTU - headers;
        let mut lengths = [largest, largest + 1, largest].into_iter();
        let mut fill = |_: &mut [u8]| lengths.next().unwrap_or(0);
        let sent = io.transmit(&flow, 1500, &mut fill).unwrap();
        assert_eq!(
            sent,
            Sent { packets: 3, bytes: 3 * largest + 1, blocked: false },
            "accepted, sent or not"
        );
        io.flush(Instant::now()).unwrap();
        let stats = io.stats();
        assert_eq!(stats.dropped_send_refused - before.dropped_send_refused, 1);
        assert_eq!(stats.tx_xsk_packets - before.tx_xsk_packets, 2);
    }
}

#[test]
fn a_link_that_comes_up_before_anyone_listens_is_used() {
    if !is_privileged() {
        return;
    }
    let (pair, redirect) = (Pair::new(1500, 2), redirect());
    let mut io = pair.near.enter(|| {
        pair.far.ip(&format!("link set {FAR_DEVICE} down"));
        await_link(&redirect, BindingState::Down);
        let binding = binding(&redirect, 0);
        assert_eq!(binding.report().state, BindingState::Down, "no carrier");
        pair.far.ip(&format!("link set {FAR_DEVICE} up"));
        await_link(&redirect, BindingState::Up);
        backend(binding)
    });
    io.receive(Instant::now(), &mut |_| ()).unwrap();
    assert!(io.reports().all(|report| report.state == BindingState::Up));
}

#[test]
fn datagrams_above_a_frame_are_sent_after_the_mtu_was_raised() {
    if !is_privileged() {
        return;
    }
    let (pair, redirect) = (Pair::new(1500, 1), redirect());
    let mut io = pair.near.enter(|| backend(binding(&redirect, 0)));
    assert!(io.reports().all(|report| !report.multi_buffer));
    for (namespace, device) in [(&pair.near, NEAR_DEVICE), (&pair.far, FAR_DEVICE)] {
        namespace.ip(&format!("link set {device} mtu 9000"));
    }
    let deadline = Instant::now() + PATIENCE;
    let is_raised = |io: &XskIo<UdpIo, Direct>| {
        io.reports().all(|report| report.multi_buffer && report.state == BindingState::Up)
    };
    // Opening another socket is a worker's work, in its namespace.
    while !is_raised(&io) {
        assert!(Instant::now() < deadline, "the raised MTU was not followed");
        pair.near.enter(|| io.receive(Instant::now(), &mut |_| ()).unwrap());
    }
    let flow = Flow::new(SocketAddr::new(NEAR[0], PORT), SocketAddr::new(FAR[0], 9));
    let mut lengths = [1000].into_iter();
    let sent = io.transmit(&flow, 4000, &mut |slot| {
        assert_eq!(slot.len(), 4000);
        lengths.next().unwrap_or(0)
    });
    assert_eq!(sent.unwrap(), Sent { packets: 1, bytes: 1000, blocked: false });
    io.flush(Instant::now()).unwrap();
    assert_eq!(io.stats().tx_xsk_packets, 1);
}
