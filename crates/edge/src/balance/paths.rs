//! How frames reach nodes: by the mirror of the kernel's routes and neighbours, and by asking the kernel for those that
//! the mirror does not know.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::time::{Duration, Instant};

use expressway_netio::route::{InterfaceAddress, Resolution, Resolver, RouteError, RouteMirror, Snapshot};
use expressway_xbpf::Balance;

use super::health::Source;

/// How often the kernel is asked to find a neighbour that it does not know, or to confirm one.
const POKE: Duration = Duration::from_secs(1);
/// The discard port: what is sent there makes the kernel resolve a neighbour, and nothing else.
const DISCARD: u16 = 9;

/// The path to a node.
pub(super) struct NodePath {
    /// Of outer headers; `None` if every address that could stand there is a service's.
    pub(super) source: Option<IpAddr>,
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
    /// Addresses of services. Nodes have them too, and take nothing that comes from there.
    services: HashSet<IpAddr>,
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
            services: HashSet::new(),
            poked: HashMap::new(),
            ipv4: UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok(),
            ipv6: UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).ok(),
        })
    }

    /// Links and addresses as of the last answer.
    pub(super) fn snapshot(&self) -> &Snapshot {
        self.resolver.snapshot()
    }

    /// Has paths begin at none of these.
    pub(super) fn avoid(&mut self, services: HashSet<IpAddr>) {
        self.services = services;
    }

    /// The path to a node, if frames can take it and its first hop is known. If not, the kernel is asked for that.
    pub(super) fn to(&mut self, address: IpAddr) -> Option<NodePath> {
        match self.resolver.resolve(unspecified(address), address) {
            Resolution::Ready(path) if path.vlan.is_empty() => {
                if path.stale {
                    self.poke(address);
                }
                Some(NodePath {
                    source: self.no_services(path.source, path.egress, address),
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

    /// Where checks of a node come from: the kernel's choice, unless that is a service's address.
    pub(super) fn source_of_checks(&mut self, node: IpAddr) -> Source {
        let snapshot = self.resolver.snapshot();
        let is_here = |service: &&IpAddr| snapshot.interface_of(**service).is_some();
        if !self.services.iter().filter(is_here).any(|service| service.is_ipv4() == node.is_ipv4()) {
            return Source::Kernel;
        }
        let Some(source) = kernels_source(node).filter(|source| self.services.contains(source)) else {
            return Source::Kernel;
        };
        let egress = match self.resolver.resolve(unspecified(node), node) {
            Resolution::Ready(path) => path.egress,
            Resolution::Unresolved { egress, .. } | Resolution::NotDirect { egress, .. } => egress,
            Resolution::Unreachable => 0,
        };
        self.no_services(source, egress, node).map_or(Source::Missing, Source::Address)
    }

    /// This source, or if it is a service's, what stands in for it: an address of the interface that leads to the node, or one of
    /// another interface, and of these the one that has most in common with the node's. Linux prefers a service's in IPv6, since it
    /// has the longest prefix (RFC 6724, rule 8, in net/ipv6/addrconf.c).
    fn no_services(&self, source: IpAddr, egress: u32, node: IpAddr) -> Option<IpAddr> {
        if !self.services.contains(&source) {
            return Some(source);
        }
        let snapshot = self.resolver.snapshot();
        let all = snapshot.links().iter().flat_map(|link| snapshot.addresses(link.index));
        stand_in(all, &self.services, egress, node)
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

/// Where the kernel would send from: a socket knows, without a packet. `None` without a route.
fn kernels_source(node: IpAddr) -> Option<IpAddr> {
    let socket = UdpSocket::bind((unspecified(node), 0)).ok()?;
    socket.connect((node, DISCARD)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// The wildcard of an address's family.
pub(super) fn unspecified(node: IpAddr) -> IpAddr {
    match node {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

fn stand_in<'a>(
    all: impl Iterator<Item = &'a InterfaceAddress>,
    services: &HashSet<IpAddr>,
    egress: u32,
    node: IpAddr,
) -> Option<IpAddr> {
    // What is avoided in IPv4 is secondary, and good where the primary address is a service's.
    all.filter(|one| one.is_global && (!one.is_avoided || one.address.is_ipv4()))
        .filter(|one| one.address.is_ipv4() == node.is_ipv4() && !services.contains(&one.address))
        .max_by_key(|one| (one.ifindex == egress, !one.is_avoided, common_bits(one.address, node)))
        .map(|one| one.address)
}

/// How long a prefix two addresses of one family share.
fn common_bits(one: IpAddr, other: IpAddr) -> u32 {
    match (one, other) {
        (IpAddr::V4(one), IpAddr::V4(other)) => (one.to_bits() ^ other.to_bits()).leading_zeros(),
        (IpAddr::V6(one), IpAddr::V6(other)) => (one.to_bits() ^ other.to_bits()).leading_zeros(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_in_for_a_services_address() {
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let on = |ifindex, text| InterfaceAddress {
            ifindex,
            address: address(text),
            prefix_length: 64,
            is_global: true,
            is_avoided: false,
        };
        let services: HashSet<IpAddr> = ["fd77::100", "fd78::100", "10.77.0.100"].map(address).into();
        let all = [
            on(1, "fd78::100"),
            on(2, "fd77::100"),
            InterfaceAddress { is_global: false, ..on(2, "fe80::2") },
            InterfaceAddress { is_avoided: true, ..on(2, "fd77::20") },
            on(2, "10.77.0.2"),
            on(2, "fd76::2"),
            on(2, "fd77::2"),
            on(3, "fd77::21"),
        ];
        let found = |all: &[InterfaceAddress], egress| {
            stand_in(all.iter(), &services, egress, address("fd77::21")).map(|found| found.to_string())
        };
        assert_eq!(found(&all, 2).as_deref(), Some("fd77::2"), "of the interface, the nearest");
        assert_eq!(found(&all, 1).as_deref(), Some("fd77::21"), "of another, where the interface has none");
        assert_eq!(found(&all[..5], 2), None, "none is fit");
        let secondary = [on(2, "10.77.0.100"), InterfaceAddress { is_avoided: true, ..on(2, "10.77.0.2") }];
        let second = stand_in(secondary.iter(), &services, 2, address("10.77.0.21"));
        assert_eq!(second, Some(address("10.77.0.2")), "the service's came first");
    }
}
