//! A veth between two namespaces as a bed: the backend at one end, plain sockets at the other.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use expressway_netio::express::{ExpressConfig, ExpressIo, TransmitVia};
use expressway_netio::udp::{SendMode, UdpConfig, UdpIo};
use expressway_netio::{Ecn, PacketIo, Wait};

use super::bed::{Bed, Family, PORT, Seen};
use super::peer::{Injector, Peer};
use crate::common::express::{self, Around};
use crate::common::netns::{FAR, FAR_DEVICE, NEAR, NEAR_DEVICE, Pair};

pub struct Veth<P> {
    io: P,
    /// What the backend needs alive: the XDP program, the thread that mirrors routes.
    _around: Around,
    peers: HashMap<SocketAddr, Peer>,
    injector: Injector,
    pair: Pair,
    mtu: usize,
    verifies: bool,
    ways: (bool, bool),
}

impl<P: PacketIo> Veth<P> {
    /// A bed whose backend `make` makes, on a thread in the near namespace.
    pub fn with(mtu: usize, queues: usize, make: impl FnOnce(&Pair) -> (P, Around)) -> Self {
        let pair = Pair::new(mtu, queues);
        let (io, _around) = make(&pair);
        let injector = pair.far.enter(|| Injector::open(FAR_DEVICE));
        Self { io, _around, peers: HashMap::new(), injector, pair, mtu, verifies: true, ways: (false, false) }
    }

    fn peer(&mut self, family: Family, port: u16) -> &Peer {
        let address = SocketAddr::new(FAR[family as usize], port);
        let far = &self.pair.far;
        self.peers.entry(address).or_insert_with(|| far.enter(|| Peer::bind(address)))
    }
}

/// Kernel UDP on wildcards.
pub fn kernel(mtu: usize, send: SendMode, gro: bool) -> Veth<UdpIo> {
    Veth::with(mtu, 1, |pair| {
        let wildcards = ["0.0.0.0", "::"].map(|ip| SocketAddr::new(ip.parse().expect("an address"), PORT));
        let config =
            UdpConfig { send, gro, receive_buffer: mtu.max(2048), ..UdpConfig::new(wildcards.to_vec()) };
        (pair.near.enter(|| UdpIo::bind(&config).expect("the addresses are free")), Vec::new())
    })
}

/// AF_XDP on `queues` queues, transmitting by itself or by the kernel.
pub fn express(mtu: usize, queues: u32, transmit: TransmitVia, verify_checksum: bool) -> Veth<ExpressIo> {
    let config = ExpressConfig { verify_checksum, ..ExpressConfig::default() };
    let bed =
        Veth::with(mtu, queues as usize, |pair| express::open_sending(pair, queues, PORT, config, transmit));
    Veth { verifies: verify_checksum, ways: (true, transmit == TransmitVia::Express), ..bed }
}

/// `bed`, prepared for a worker that waits in this way.
pub fn waiting<P: PacketIo>(mut bed: Veth<P>, wait: Wait) -> Veth<P> {
    bed.io.set_wait(wait).expect("root may busy-poll");
    bed
}

impl<P: PacketIo> Bed for Veth<P> {
    fn io(&mut self) -> &mut dyn PacketIo {
        &mut self.io
    }

    fn address(&self, family: Family, number: usize) -> IpAddr {
        NEAR[family as usize * 2 + number]
    }

    fn peer_address(&self, family: Family) -> IpAddr {
        FAR[family as usize]
    }

    fn peer_send(&mut self, port: u16, to: SocketAddr, ecn: Ecn, payload: &[u8]) {
        let family = if to.is_ipv4() { Family::V4 } else { Family::V6 };
        self.peer(family, port).send(to, ecn, payload);
    }

    fn peer_receive(&mut self, family: Family, port: u16) -> Option<Seen> {
        self.peer(family, port).receive()
    }

    fn mtu(&self) -> usize {
        self.mtu
    }

    fn ways(&self) -> (bool, bool) {
        self.ways
    }

    fn verifies_checksums(&self) -> bool {
        self.verifies
    }

    fn inject(&mut self, frame: &[u8]) -> bool {
        self.injector.send(frame);
        true
    }

    fn bounce(&mut self, act: &mut dyn FnMut(&mut dyn PacketIo)) -> bool {
        self.pair.near.ip(&format!("link set {NEAR_DEVICE} down"));
        act(&mut self.io);
        self.pair.near.ip(&format!("link set {NEAR_DEVICE} up"));
        true
    }

    fn forget_neighbours(&mut self) -> bool {
        self.pair.near.ip(&format!("neigh flush dev {NEAR_DEVICE}"));
        true
    }
}
