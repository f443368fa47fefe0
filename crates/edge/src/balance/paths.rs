//! How frames reach nodes: by the mirror of the kernel's routes and neighbours, and by asking the kernel for those that
//! the mirror does not know.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::time::{Duration, Instant};

use expressway_netio::route::{Resolution, Resolver, RouteError, RouteMirror, Snapshot};
use expressway_xbpf::Balance;

/// How often the kernel is asked to find a neighbour that it does not know, or to confirm one.
const POKE: Duration = Duration::from_secs(1);
/// The discard port: what is sent there makes the kernel resolve a neighbour, and nothing else.
const DISCARD: u16 = 9;

/// The path to a node.
pub(super) struct NodePath {
    pub(super) source: IpAddr,
    pub(super) ifindex: u32,
    pub(super) destination_mac: [u8; 6],
    pub(super) source_mac: [u8; 6],
    pub(super) mtu: u32,
}

/// Finds paths.
pub(super) struct NodePaths {
    /// Keeps the resolver's answers true.
    _mirror: RouteMirror,
    resolver: Resolver,
    poked: HashMap<IpAddr, Instant>,
    ipv4: Option<UdpSocket>,
    ipv6: Option<UdpSocket>,
}

impl NodePaths {
    /// Of the calling thread's network namespace.
    pub(super) fn start() -> Result<Self, RouteError> {
        let mirror = RouteMirror::start()?;
        Ok(Self {
            resolver: mirror.resolver()?,
            _mirror: mirror,
            poked: HashMap::new(),
            ipv4: UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok(),
            ipv6: UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).ok(),
        })
    }

    /// Links and addresses as of the last answer.
    pub(super) fn snapshot(&self) -> &Snapshot {
        self.resolver.snapshot()
    }

    /// The path to a node, if frames can take it and its first hop is known. If not, the kernel is asked for that.
    pub(super) fn to(&mut self, address: IpAddr) -> Option<NodePath> {
        let any: IpAddr = match address {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        match self.resolver.resolve(any, address) {
            Resolution::Ready(path) if path.vlan.is_empty() => {
                if path.stale {
                    self.poke(address);
                }
                Some(NodePath {
                    source: path.source,
                    ifindex: path.ifindex,
                    destination_mac: path.destination_mac.0,
                    source_mac: path.source_mac.0,
                    mtu: u32::try_from(path.mtu).unwrap_or(u32::MAX),
                })
            }
            Resolution::Unresolved { .. } => {
                self.poke(address);
                None
            }
            _ => None,
        }
    }

    /// Makes the kernel ask for the neighbour that leads to a node.
    fn poke(&mut self, address: IpAddr) {
        if self.poked.get(&address).is_some_and(|at| at.elapsed() < POKE) {
            return;
        }
        if self.poked.len() > Balance::NODES as usize {
            self.poked.clear();
        }
        self.poked.insert(address, Instant::now());
        let socket = if address.is_ipv4() { &self.ipv4 } else { &self.ipv6 };
        if let Some(socket) = socket
            && let Err(error) = socket.send_to(&[], (address, DISCARD))
        {
            tracing::debug!(%address, %error, "no datagram can be sent to the node");
        }
    }
}
