//! A link between two namespaces as a bed: the backend at one end, plain sockets at the other. The link is a
//! veth, or two devices of the machine that are wired to each other.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use expressway_netio::udp::{SendMode, UdpConfig, UdpIo};
use expressway_netio::xsk::{BindingState, ObtainedMode, TransmitVia, XskIo, XskIoConfig};
use expressway_netio::{Ecn, PacketIo, Wait};

use super::bed::{Bed, Family, PORT, Pause, Seen};
use super::peer::{Injector, Peer};
use crate::common::netns::{self, FAR, FAR_DEVICE, NEAR, NEAR_DEVICE, Pair};
use crate::common::xsk::{self, Around};

pub struct Linked<P> {
    io: P,
    /// What the backend needs alive: the XDP program, the thread that mirrors routes.
    _around: Around,
    peers: HashMap<SocketAddr, Peer>,
    injector: Injector,
    pair: Pair,
    mtu: usize,
    verifies: bool,
    uses_xsk: (bool, bool),
    /// The machine's own devices, not a veth.
    is_device: bool,
}

impl<P: PacketIo> Linked<P> {
    /// A bed whose backend `make` makes, on a thread in the near namespace.
    pub fn with(pair: Pair, make: impl FnOnce(&Pair) -> (P, Around)) -> Self {
        let mtu = pair.mtu;
        let (io, _around) = make(&pair);
        let injector = pair.far.enter(|| Injector::open(FAR_DEVICE));
        let (verifies, uses_xsk, is_device) = (true, (false, false), false);
        Self { io, _around, peers: HashMap::new(), injector, pair, mtu, verifies, uses_xsk, is_device }
    }

    fn peer(&mut self, family: Family, port: u16) -> &Peer {
        let address = SocketAddr::new(FAR[family as usize], port);
        let far = &self.pair.far;
        self.peers.entry(address).or_insert_with(|| far.enter(|| Peer::bind(address)))
    }
}

/// Kernel UDP on wildcards.
pub fn kernel(mtu: usize, send: SendMode, gro: bool) -> Linked<UdpIo> {
    Linked::with(Pair::new(mtu, 1), |pair| {
        let wildcards = ["0.0.0.0", "::"].map(|ip| SocketAddr::new(ip.parse().expect("an address"), PORT));
        let config =
            UdpConfig { send, gro, receive_buffer: mtu.max(2048), ..UdpConfig::new(wildcards.to_vec()) };
        (pair.near.enter(|| UdpIo::bind(&config).expect("the addresses are free")), Vec::new())
    })
}

/// AF_XDP on `queues` queues, transmitting by itself or by the kernel.
pub fn xsk(mtu: usize, queues: u32, transmit: TransmitVia, verify_checksum: bool) -> Linked<XskIo> {
    let config = XskIoConfig { verify_checksum, ..XskIoConfig::default() };
    let bed = Linked::with(Pair::new(mtu, queues as usize), |pair| {
        xsk::open_sending(pair, queues, PORT, config, transmit)
    });
    Linked { verifies: verify_checksum, uses_xsk: (true, transmit == TransmitVia::Xsk), ..bed }
}

/// `bed`, prepared for a worker that waits in this way.
pub fn waiting<P: PacketIo>(mut bed: Linked<P>, wait: Wait) -> Linked<P> {
    bed.io.set_wait(wait).expect("root may busy-poll");
    bed
}

/// AF_XDP in `mode` on every queue of the machine's own devices.
pub fn device(mode: ObtainedMode, transmit: TransmitVia) -> Linked<XskIo> {
    let config = XskIoConfig { verify_checksum: true, ..XskIoConfig::default() };
    let mut bed = Linked::with(Pair::of_devices(1500), |pair| {
        xsk::open_mode(pair, netns::device_queues(), PORT, config, (mode, transmit))
    });
    // Some drivers restart the link when a program comes, and the kernel tells of a carrier up to a second late.
    let mut pause = Pause::new("the link comes up");
    while bed.io.reports().any(|port| port.state != BindingState::Up) {
        bed.io.receive(Instant::now(), &mut |_| ()).expect("a link that is down is no error");
        pause.wait();
    }
    Linked { uses_xsk: (true, transmit == TransmitVia::Xsk), is_device: true, ..bed }
}

impl<P: PacketIo> Bed for Linked<P> {
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

    fn uses_xsk(&self) -> (bool, bool) {
        self.uses_xsk
    }

    fn loses_nothing(&self) -> bool {
        !self.is_device
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
