//! An AF_XDP backend at the near end of a veth, and its peer.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use expressway_netio::route::RouteMirror;
use expressway_netio::udp::{UdpConfig, UdpIo};
use expressway_netio::xsk::{
    BindMode, BindingReport, BindingState, TransmitVia, XskBinding, XskConfig, XskIo, XskIoConfig,
};
use expressway_netio::{Flow, PacketIo};
use expressway_xbpf::{AttachMode, Attachment, Existing, Options, Redirect};

use crate::common::netns::{FAR, NEAR, NEAR_DEVICE, Pair};

pub(crate) const PORT: u16 = 4433;

/// After this long without what must come, a test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// An AF_XDP backend at the near end of a veth.
pub(crate) struct Bed {
    pub(crate) io: XskIo,
    pub(crate) redirect: Redirect,
    pub(crate) _attachment: Attachment,
    pub(crate) _mirror: RouteMirror,
    pub(crate) pair: Pair,
}

/// How a bed differs from the usual one.
pub(crate) struct Shape {
    pub(crate) mtu: usize,
    pub(crate) queues: usize,
    /// Ports are opened on this many of the queues.
    pub(crate) ports: u32,
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) frame_size: u32,
    pub(crate) tx_ring: u32,
    /// Which way the datagrams of a queue leave.
    pub(crate) transmit: fn(u32) -> TransmitVia,
    pub(crate) config: XskIoConfig,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            mtu: 1500,
            queues: 1,
            ports: 1,
            addresses: NEAR.to_vec(),
            frame_size: 2048,
            tx_ring: 512,
            transmit: |_| TransmitVia::Xsk,
            config: XskIoConfig::default(),
        }
    }
}

impl Bed {
    /// `prepare` sets up what the veth needs besides, before anything is opened.
    pub(crate) fn new(shape: Shape, prepare: impl FnOnce(&Pair)) -> Self {
        let pair = Pair::new(shape.mtu, shape.queues);
        prepare(&pair);
        let listen: Vec<_> = shape.addresses.iter().map(|&ip| SocketAddr::new(ip, PORT)).collect();
        let (io, redirect, attachment, mirror) = pair.near.enter(|| {
            let redirect = Redirect::load(&Options::default()).unwrap();
            for address in &listen {
                redirect.add_pair(*address).unwrap();
            }
            let attachment = redirect.attach(ifindex(), AttachMode::Native, Existing::Refuse).unwrap();
            let open = |queue| {
                let config = XskConfig {
                    mode: BindMode::Copy,
                    frame_size: shape.frame_size,
                    tx_ring: shape.tx_ring,
                    transmit: (shape.transmit)(queue),
                    ..XskConfig::new(NEAR_DEVICE, queue)
                };
                XskBinding::open(config, redirect.xsk_map()).unwrap()
            };
            let ports = (0..shape.ports).map(open).collect();
            let udp = UdpConfig { receive_buffer: 16_384, ..UdpConfig::new(listen) };
            let mirror = RouteMirror::start().unwrap();
            let mut kernel = UdpIo::bind(&udp).unwrap();
            kernel.set_resolver(mirror.resolver().unwrap());
            let io = XskIo::new(ports, kernel, mirror.resolver().unwrap(), shape.config).unwrap();
            (io, redirect, attachment, mirror)
        });
        Self { io, redirect, _attachment: attachment, _mirror: mirror, pair }
    }

    /// A socket of the peer's, connected to an address of the near end.
    pub(crate) fn peer(&self, near: IpAddr) -> UdpSocket {
        self.pair.far.enter(|| {
            let any: SocketAddr =
                if near.is_ipv4() { "0.0.0.0:0".parse().unwrap() } else { "[::]:0".parse().unwrap() };
            let socket = UdpSocket::bind(any).unwrap();
            socket.connect(SocketAddr::new(near, PORT)).unwrap();
            socket.set_nonblocking(true).unwrap();
            socket
        })
    }

    /// One turn that echoes what comes in. Returns how many datagrams.
    pub(crate) fn turn(&mut self) -> usize {
        let mut waiting: Vec<(Flow, Vec<u8>)> = Vec::new();
        self.io
            .receive(Instant::now(), &mut |datagram| {
                waiting.push((Flow::new(datagram.local, datagram.remote), datagram.payload.to_vec()));
            })
            .expect("receiving goes on");
        for (flow, payload) in &waiting {
            send(&mut self.io, flow, std::slice::from_ref(payload));
        }
        self.io.flush(Instant::now()).expect("flushing goes on");
        waiting.len()
    }

    /// Sends `payload` from the peer and turns until its echo is back. Sends again now and then when `lossy`.
    pub(crate) fn exchange(&mut self, peer: &UdpSocket, payload: &[u8], lossy: bool) {
        let deadline = Instant::now() + PATIENCE;
        let mut buffer = [0; 16_384];
        let mut turns = 0u32;
        loop {
            if turns == 0 || (lossy && turns.is_multiple_of(1000)) {
                // What the link being down makes of it is the test's business.
                let _ = peer.send(payload);
            }
            turns += 1;
            if self.turn() == 0 {
                std::thread::yield_now();
            }
            match peer.recv(&mut buffer) {
                Ok(length) if &buffer[..length] == payload => return,
                Ok(_) | Err(_) => {}
            }
            assert!(Instant::now() < deadline, "no echo of {} bytes: {:?}", payload.len(), self.io.stats());
            if lossy {
                std::thread::sleep(Duration::from_micros(100));
            }
        }
    }

    /// Exchanges until the neighbour is known and answers leave by AF_XDP.
    pub(crate) fn warm_up(&mut self, peer: &UdpSocket) {
        let deadline = Instant::now() + PATIENCE;
        let before = self.io.stats().tx_xsk_packets;
        while self.io.stats().tx_xsk_packets == before {
            self.exchange(peer, b"warm-up", false);
            assert!(Instant::now() < deadline, "{:?}", self.io.stats());
        }
    }

    /// Turns until the only port is in `state`.
    pub(crate) fn await_state(&mut self, state: BindingState) {
        let deadline = Instant::now() + PATIENCE;
        while self.report().state != state {
            self.turn();
            assert!(Instant::now() < deadline, "{:?} and not {state:?}", self.report());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn report(&self) -> BindingReport {
        self.io.reports().next().expect("a port")
    }
}

pub(crate) fn ifindex() -> u32 {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    rustix::net::netdevice::name_to_index(&socket, NEAR_DEVICE).unwrap()
}

/// Sends payloads in one flow; gives up none.
pub(crate) fn send(io: &mut XskIo, flow: &Flow, payloads: &[Vec<u8>]) {
    let segment = payloads.iter().map(Vec::len).max().unwrap_or(0).max(1);
    let mut next = 0;
    for _ in 0..100_000 {
        let mut rest = payloads[next..].iter();
        let sent = io
            .transmit(flow, segment, &mut |slice| {
                rest.next().map_or(0, |payload| {
                    assert_eq!(slice.len(), segment);
                    slice[..payload.len()].copy_from_slice(payload);
                    payload.len()
                })
            })
            .expect("sending goes on");
        next += sent.packets;
        if !sent.blocked {
            return;
        }
        io.flush(Instant::now()).expect("flushing goes on");
    }
    panic!("blocked for ever: {:?}", io.stats());
}

/// The peer's address as the near end sees it.
pub(crate) fn peer_address(near: IpAddr, peer: &UdpSocket) -> SocketAddr {
    let port = peer.local_addr().unwrap().port();
    SocketAddr::new(FAR[usize::from(near.is_ipv6())], port)
}
