//! The simulated network as a bed: its peer is an endpoint.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Instant;

use expressway_netio::sim::{Link, Network, SimIo};
use expressway_netio::{Ecn, Flow, PacketIo};

use super::bed::{Bed, Family, PORT, Seen};

pub struct Simulated {
    network: Network,
    io: SimIo,
    peers: HashMap<SocketAddr, Peer>,
    mtu: usize,
}

struct Peer {
    io: SimIo,
    /// Received, and not asked for yet.
    waiting: VecDeque<Seen>,
}

impl Simulated {
    pub fn new(mtu: usize) -> Self {
        let network = Network::real_time(1, Link { mtu, ..Link::default() });
        let addresses: Vec<SocketAddr> = [Family::V4, Family::V6]
            .into_iter()
            .flat_map(|family| [0, 1].map(|number| SocketAddr::new(address(family, 1 + number * 2), PORT)))
            .collect();
        let io = network.endpoint(&addresses).expect("the addresses are free");
        Self { network, io, peers: HashMap::new(), mtu }
    }

    fn peer(&mut self, family: Family, port: u16) -> &mut Peer {
        let address = SocketAddr::new(address(family, 2), port);
        let network = &self.network;
        self.peers.entry(address).or_insert_with(|| Peer {
            io: network.endpoint(&[address]).expect("the address is free"),
            waiting: VecDeque::new(),
        })
    }
}

fn address(family: Family, host: u16) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::new(10, 77, 0, host as u8).into(),
        Family::V6 => Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, host).into(),
    }
}

impl Bed for Simulated {
    fn io(&mut self) -> &mut dyn PacketIo {
        &mut self.io
    }

    fn address(&self, family: Family, number: usize) -> IpAddr {
        address(family, 1 + number as u16 * 2)
    }

    fn peer_address(&self, family: Family) -> IpAddr {
        address(family, 2)
    }

    fn peer_send(&mut self, port: u16, to: SocketAddr, ecn: Ecn, payload: &[u8]) {
        let family = if to.is_ipv4() { Family::V4 } else { Family::V6 };
        let from = SocketAddr::new(address(family, 2), port);
        let peer = &mut self.peer(family, port).io;
        let mut once = Some(payload);
        peer.transmit(&Flow { ecn, ..Flow::new(from, to) }, payload.len(), &mut |slot| {
            once.take().map_or(0, |payload| {
                slot.copy_from_slice(payload);
                payload.len()
            })
        })
        .expect("the simulated network does not fail");
        peer.flush(Instant::now()).expect("the simulated network does not fail");
    }

    fn peer_receive(&mut self, family: Family, port: u16) -> Option<Seen> {
        let Peer { io, waiting } = self.peer(family, port);
        io.receive(Instant::now(), &mut |datagram| {
            waiting.push_back(Seen {
                payload: datagram.payload.to_vec(),
                remote: datagram.remote,
                local: datagram.local,
                ecn: datagram.ecn as u8,
            });
        })
        .expect("the simulated network does not fail");
        waiting.pop_front()
    }

    fn peer_sends_empty(&self) -> bool {
        false
    }

    fn mtu(&self) -> usize {
        self.mtu
    }
}
