//! Bindings that are added to a running backend and removed from it. Needs root.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use expressway_netio::route::RouteMirror;
use expressway_netio::udp::{UdpConfig, UdpIo};
use expressway_netio::xsk::{BindMode, XskBinding, XskConfig, XskIo, XskIoConfig};
use expressway_netio::{IoStats, PacketIo};
use expressway_xbpf::{AttachMode, Existing, Options, Redirect};

use crate::common::netns::{NEAR, NEAR_DEVICE, Pair, is_privileged};
use crate::common::xsk::listen;

const PORT: u16 = 4433;
const PATIENCE: Duration = Duration::from_secs(20);

/// Sends a datagram and turns until it has come; returns the counters then.
fn receive(io: &mut XskIo, peer: &UdpSocket) -> IoStats {
    peer.send(b"x").unwrap();
    let deadline = Instant::now() + PATIENCE;
    while io.receive(Instant::now(), &mut |_| ()).unwrap() == 0 {
        assert!(Instant::now() < deadline, "never came: {:?}", io.stats());
    }
    io.stats()
}

#[test]
fn bindings_come_and_go_while_datagrams_are_served() {
    if !is_privileged() {
        return;
    }
    let pair = Pair::new(1500, 1);
    let peer = pair.far.enter(|| UdpSocket::bind("0.0.0.0:0").unwrap());
    peer.connect(SocketAddr::new(NEAR[0], PORT)).unwrap();
    pair.near.enter(|| {
        let redirect = Redirect::load(&Options::default()).unwrap();
        redirect.add_pair(SocketAddr::new(NEAR[0], PORT)).unwrap();
        let index = {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            rustix::net::netdevice::name_to_index(&socket, NEAR_DEVICE).unwrap()
        };
        let _attachment = redirect.attach(index, AttachMode::Native, Existing::Refuse).unwrap();
        let kernel = UdpIo::bind(&UdpConfig::new(listen(PORT))).unwrap();
        let mirror = RouteMirror::start().unwrap();
        let resolver = mirror.resolver().unwrap();
        let mut io = XskIo::new(Vec::new(), kernel, resolver, XskIoConfig::default()).unwrap();
        let sender = io.sender();
        for round in 1..=3 {
            let before = receive(&mut io, &peer);
            assert_eq!((before.rx_kernel_packets, before.rx_xsk_packets), (round, round - 1));
            let config = XskConfig { mode: BindMode::Copy, ..XskConfig::new(NEAR_DEVICE, 0) };
            // From another thread, as it is meant. The queue may still be held by the round before.
            let map = redirect.xsk_map();
            let binding =
                std::thread::scope(|scope| scope.spawn(|| XskBinding::open(config, map)).join().unwrap());
            assert!(sender.add(binding.unwrap()));
            let stats = receive(&mut io, &peer);
            assert_eq!((stats.rx_kernel_packets, stats.rx_xsk_packets), (round, round));
            assert_eq!(io.reports().count(), 1);
            assert!(sender.remove(index + 1));
            io.receive(Instant::now(), &mut |_| ()).unwrap();
            assert_eq!(io.reports().count(), 1, "another interface");
            assert!(sender.remove(index));
            io.receive(Instant::now(), &mut |_| ()).unwrap();
            assert_eq!(io.reports().count(), 0);
            assert_eq!(io.stats().rx_xsk_packets, round, "what a removed binding counted stays counted");
        }
    });
}
