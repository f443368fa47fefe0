//! From an address pair to the frame header of the first hop.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use expressway_wire::{MacAddr, VlanTag, VlanTags};
use netlink_packet_core::NLM_F_CREATE;
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage,
};
use netlink_packet_route::route::{RouteAttribute, RouteMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::link::{Link, LinkKind};
use super::mirror::Shared;
use super::neighbour::Neighbour;
use super::netlink::{NetlinkSource, RequestSocket};
use super::snapshot::Snapshot;
use super::table::{Decision, Hop, decode_answer};

/// How frames to one destination leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The device that frames must leave by: the lower device where the route names a VLAN interface.
    pub ifindex: u32,
    /// The interface that the route names.
    pub egress: u32,
    /// Hardware address to send from: the egress interface's.
    pub source_mac: MacAddr,
    /// Hardware address of the next hop.
    pub destination_mac: MacAddr,
    /// VLAN tags to put in front, outermost first.
    pub vlan: VlanTags,
    /// Largest IP packet in bytes: the interface's MTU, or the route's where that is smaller.
    pub mtu: usize,
    /// Source address: the one asked for, or the kernel's choice when that was a wildcard.
    pub source: IpAddr,
    /// The kernel has not confirmed the neighbour lately (STALE, DELAY or PROBE). Usable; now and then a
    /// datagram should take the kernel socket, so that the kernel confirms it.
    pub stale: bool,
}

/// What is known about the way to a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// Frames can be built.
    Ready(Path),
    /// The next hop's hardware address is not known: a datagram through the kernel socket makes the kernel
    /// ask for it.
    Unresolved {
        /// The interface that the route names.
        egress: u32,
        /// The address on the link that has to be resolved.
        next_hop: IpAddr,
        /// Largest IP packet in bytes.
        mtu: usize,
    },
    /// The kernel can reach it, by a way that frames of ours cannot take: loopback, a bond, a bridge, a
    /// tunnel, a multicast group.
    NotDirect {
        /// The interface that the route names.
        egress: u32,
        /// Largest IP packet in bytes.
        mtu: usize,
    },
    /// There is no route.
    Unreachable,
}

/// Address pairs remembered in one generation of the memory; there are two.
const CAPACITY: usize = 8192;

/// MTU to go by when the kernel's answer does not lead to an interface.
const DEFAULT_MTU: usize = 1500;

/// Resolves address pairs for one worker, and remembers the answers until the mirror changes.
///
/// Memory is bounded by two maps of 8,192 pairs: the older is dropped when the newer is full.
pub struct Resolver {
    shared: Arc<Shared>,
    source: Arc<dyn NetlinkSource>,
    snapshot: Arc<Snapshot>,
    requests: RequestSocket,
    recent: HashMap<(IpAddr, IpAddr), Resolution>,
    older: HashMap<(IpAddr, IpAddr), Resolution>,
    asked: u64,
    multicast_egress: Option<u32>,
}

impl Resolver {
    pub(super) fn new(shared: Arc<Shared>, source: Arc<dyn NetlinkSource>, requests: RequestSocket) -> Self {
        let snapshot = shared.snapshot();
        Self {
            shared,
            source,
            snapshot,
            requests,
            recent: HashMap::new(),
            older: HashMap::new(),
            asked: 0,
            multicast_egress: None,
        }
    }

    /// Lets frames to multicast groups leave by the interface of that index. Without one they are the kernel's, which
    /// knows which interface is meant.
    pub fn set_multicast_egress(&mut self, ifindex: u32) {
        self.multicast_egress = Some(ifindex);
        self.recent.clear();
        self.older.clear();
    }

    /// Where the mirror's rtnetlink sockets come from.
    pub fn source(&self) -> &dyn NetlinkSource {
        &*self.source
    }

    /// The way from `local`, which may be a wildcard, to `remote`.
    ///
    /// Does not block, unless the kernel has to be asked: that is one system call, bounded by a quarter of
    /// a second, and remembered like every other answer.
    pub fn resolve(&mut self, local: IpAddr, remote: IpAddr) -> Resolution {
        if self.shared.generation() != self.snapshot.generation() {
            self.snapshot = self.shared.snapshot();
            self.recent.clear();
            self.older.clear();
        }
        let key = (local, remote);
        if let Some(known) = self.recent.get(&key) {
            return *known;
        }
        let resolution = self.older.get(&key).copied().unwrap_or_else(|| self.work_out(local, remote));
        if self.recent.len() >= CAPACITY {
            std::mem::swap(&mut self.recent, &mut self.older);
            self.recent.clear();
        }
        self.recent.insert(key, resolution);
        resolution
    }

    /// MTU of the first hop from `local` to `remote`, in bytes of IP packet; `None` without a route.
    pub fn mtu(&mut self, local: IpAddr, remote: IpAddr) -> Option<usize> {
        match self.resolve(local, remote) {
            Resolution::Ready(path) => Some(path.mtu),
            Resolution::Unresolved { mtu, .. } | Resolution::NotDirect { mtu, .. } => Some(mtu),
            Resolution::Unreachable => None,
        }
    }

    /// Has the kernel find out or confirm a neighbour's hardware address, as a packet to it would (`NTF_USE`). Takes
    /// CAP_NET_ADMIN.
    ///
    /// # Errors
    /// The kernel's.
    pub fn probe(&mut self, egress: u32, neighbour: IpAddr) -> io::Result<()> {
        let mut request = NeighbourMessage::default();
        request.header.family = if neighbour.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        request.header.ifindex = egress;
        request.header.flags = NeighbourFlags::Use;
        request.attributes.push(NeighbourAttribute::Destination(match neighbour {
            IpAddr::V4(ip) => NeighbourAddress::Inet(ip),
            IpAddr::V6(ip) => NeighbourAddress::Inet6(ip),
        }));
        self.requests.tell(RouteNetlinkMessage::NewNeighbour(request), NLM_F_CREATE)
    }

    /// The state that answers are worked out from.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// How often the kernel was asked for a route.
    pub fn asked(&self) -> u64 {
        self.asked
    }

    fn work_out(&mut self, local: IpAddr, remote: IpAddr) -> Resolution {
        let by_kernel = Resolution::NotDirect { egress: 0, mtu: DEFAULT_MTU };
        let link_local = matches!(remote, IpAddr::V6(ip) if ip.is_unicast_link_local());
        let broadcast = matches!(remote, IpAddr::V4(ip) if ip.is_broadcast());
        if let (true, Some(egress)) = (remote.is_multicast(), self.multicast_egress) {
            return self.frame(local, remote, &Hop::direct(egress), None, None);
        }
        if link_local || broadcast || remote.is_multicast() || remote.is_unspecified() {
            // Which link is meant does not stand in the address.
            return by_kernel;
        }
        let decision = match self.snapshot.decide(local, remote) {
            Decision::Ask => self.ask(local, remote),
            decided => decided,
        };
        match decision {
            Decision::Forward { hop, source, mtu } => self.frame(local, remote, &hop, source, mtu),
            Decision::Kernel => {
                let mtu = self.snapshot.interface_of(remote).map_or(DEFAULT_MTU, |link| link.mtu);
                Resolution::NotDirect { egress: 0, mtu }
            }
            Decision::Ask => by_kernel,
            Decision::Unreachable => Resolution::Unreachable,
        }
    }

    /// From the route to the frame header.
    fn frame(
        &self,
        local: IpAddr,
        remote: IpAddr,
        hop: &Hop,
        source: Option<IpAddr>,
        route_mtu: Option<u32>,
    ) -> Resolution {
        let snapshot = &*self.snapshot;
        let egress = hop.egress;
        let Some(link) = snapshot.link(egress) else {
            return Resolution::NotDirect { egress, mtu: DEFAULT_MTU };
        };
        let mtu = route_mtu.map_or(link.mtu, |mtu| link.mtu.min(mtu as usize));
        let indirect = Resolution::NotDirect { egress, mtu };
        let Some((device, vlan)) = descend(snapshot, link) else { return indirect };
        let Some(source_mac) = link.mac.filter(|_| link.is_running() && device.is_running()) else {
            return indirect;
        };
        let source = match (local.is_unspecified(), source) {
            (false, _) => Some(local),
            (true, Some(source)) => Some(source),
            (true, None) => snapshot.source_on(egress, remote),
        };
        let Some(source) = source else { return indirect };
        let next_hop = hop.gateway.unwrap_or(remote);
        let neighbour = match multicast_mac(next_hop) {
            Some(mac) => Some(Neighbour { mac, stale: false }),
            None => snapshot.neighbour(egress, next_hop),
        };
        match neighbour {
            Some(neighbour) => Resolution::Ready(Path {
                ifindex: device.index,
                egress,
                source_mac,
                destination_mac: neighbour.mac,
                vlan,
                mtu,
                source,
                stale: neighbour.stale,
            }),
            None => Resolution::Unresolved { egress, next_hop, mtu },
        }
    }

    /// Asks the kernel for the route.
    fn ask(&mut self, local: IpAddr, remote: IpAddr) -> Decision {
        self.asked += 1;
        let mut request = RouteMessage::default();
        let (family, length) =
            if remote.is_ipv4() { (AddressFamily::Inet, 32) } else { (AddressFamily::Inet6, 128) };
        request.header.address_family = family;
        request.header.destination_prefix_length = length;
        request.attributes.push(RouteAttribute::Destination(remote.into()));
        if !local.is_unspecified() {
            request.header.source_prefix_length = length;
            request.attributes.push(RouteAttribute::Source(local.into()));
        }
        // Some rules look at the protocol; ports are not known for an address pair.
        request.attributes.push(RouteAttribute::IpProto(libc::IPPROTO_UDP as u8));
        match self.requests.ask(RouteNetlinkMessage::GetRoute(request)) {
            Ok(RouteNetlinkMessage::NewRoute(answer)) => decode_answer(answer),
            Ok(_) => Decision::Kernel,
            Err(error) => match error.raw_os_error() {
                Some(libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EACCES | libc::EINVAL) => {
                    Decision::Unreachable
                }
                _ => {
                    tracing::warn!(%local, %remote, %error, "kernel route lookup failed");
                    Decision::Kernel
                }
            },
        }
    }
}

/// The hardware address of a multicast group: RFC 1112, section 6.4, and RFC 2464, section 7. `None` for others.
fn multicast_mac(group: IpAddr) -> Option<MacAddr> {
    match group {
        IpAddr::V4(ip) if ip.is_multicast() => {
            let [_, b, c, d] = ip.octets();
            Some(MacAddr([0x01, 0x00, 0x5e, b & 0x7f, c, d]))
        }
        IpAddr::V6(ip) if ip.is_multicast() => {
            let octets = ip.octets();
            Some(MacAddr([0x33, 0x33, octets[12], octets[13], octets[14], octets[15]]))
        }
        _ => None,
    }
}

/// From an interface down through VLANs to the device that frames leave by, and the tags on the way.
/// `None` when frames cannot be put there, or a port's controller decides.
fn descend<'a>(snapshot: &'a Snapshot, link: &'a Link) -> Option<(&'a Link, VlanTags)> {
    let mut tags = Vec::with_capacity(2);
    let mut device = link;
    while let LinkKind::Vlan { id, protocol, lower } = device.kind {
        if tags.len() == 2 || !device.is_running() {
            return None;
        }
        // The interface nearest to the address has the innermost tag.
        tags.insert(0, VlanTag { tpid: protocol, priority: 0, drop_eligible: false, id });
        device = snapshot.link(lower?)?;
    }
    let free = link.controller.is_none() && device.controller.is_none();
    Some((device, VlanTags::new(&tags).ok()?)).filter(|(device, _)| device.is_direct() && free)
}

#[cfg(test)]
mod tests {
    use super::super::netlink::OwnNamespace;
    use super::*;

    fn resolver(shared: Arc<Shared>) -> Resolver {
        let requests = RequestSocket::open(&OwnNamespace).unwrap();
        Resolver::new(shared, Arc::new(OwnNamespace), requests)
    }

    const NEXT: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);

    fn link(index: u32, kind: LinkKind) -> Link {
        Link {
            index,
            name: format!("d{index}"),
            mac: Some(MacAddr([2, 0, 0, 0, 0, index as u8])),
            mtu: 1500 + index as usize,
            is_up: true,
            has_carrier: true,
            kind,
            controller: None,
            rx_queues: 1,
            tx_queues: 1,
        }
    }

    fn vlan(index: u32, id: u16, protocol: u16, lower: Option<u32>) -> Link {
        link(index, LinkKind::Vlan { id, protocol, lower })
    }

    /// The way out by interface `egress` to a neighbour that is known on every interface.
    fn way(links: Vec<Link>, egress: u32) -> Resolution {
        let remote = IpAddr::from([192, 0, 2, 2]);
        let neighbour = Neighbour { mac: NEXT, stale: false };
        let snapshot = Snapshot {
            generation: 1,
            neighbours: Arc::new(links.iter().map(|link| ((link.index, remote), neighbour)).collect()),
            links: Arc::new(links),
            ..Snapshot::default()
        };
        let shared = Arc::<Shared>::default();
        shared.publish(&snapshot);
        let resolver = resolver(shared);
        let hop = Hop::direct(egress);
        resolver.frame([192, 0, 2, 1].into(), remote, &hop, None, None)
    }

    fn is_not_direct(resolution: Resolution) -> bool {
        matches!(resolution, Resolution::NotDirect { .. })
    }

    #[test]
    fn vlans_stack_from_the_device_outwards() {
        let links = vec![
            link(1, LinkKind::Physical),
            vlan(2, 7, 0x88a8, Some(1)),
            vlan(3, 42, 0x8100, Some(2)),
            vlan(4, 5, 0x8100, Some(3)),
        ];
        let Resolution::Ready(path) = way(links.clone(), 3) else { panic!("two tags fit") };
        let tags: Vec<_> = path.vlan.as_slice().iter().map(|tag| (tag.tpid, tag.id)).collect();
        assert_eq!(tags, [(0x88a8, 7), (0x8100, 42)], "outermost first");
        assert_eq!((path.ifindex, path.egress, path.mtu), (1, 3, 1503));
        assert_eq!((path.source_mac.0[5], path.destination_mac), (3, NEXT), "the egress interface's address");
        assert!(is_not_direct(way(links, 4)), "a third tag has no room");
    }

    #[test]
    fn a_vlan_without_a_usable_device_below_goes_by_the_kernel() {
        assert!(is_not_direct(way(vec![vlan(2, 7, 0x8100, None)], 2)), "below in another namespace");
        assert!(is_not_direct(way(vec![vlan(2, 7, 0x8100, Some(1))], 2)), "below not known");
        let bond = link(1, LinkKind::Other("bond".into()));
        assert!(is_not_direct(way(vec![bond, vlan(2, 7, 0x8100, Some(1))], 2)));
        let mut down = link(1, LinkKind::Physical);
        down.has_carrier = false;
        assert!(is_not_direct(way(vec![down, vlan(2, 7, 0x8100, Some(1))], 2)));
        assert!(is_not_direct(way(vec![vlan(2, 7, 0x8100, Some(2))], 2)), "a loop ends");
    }

    #[test]
    fn groups_are_the_kernel_s_until_an_interface_is_named() {
        let links = Arc::new(vec![link(1, LinkKind::Physical), vlan(2, 7, 0x8100, Some(1))]);
        let snapshot = Snapshot { generation: 1, links, ..Snapshot::default() };
        let shared = Arc::<Shared>::default();
        shared.publish(&snapshot);
        let mut resolver = resolver(shared);
        let local = IpAddr::from([192, 0, 2, 1]);
        let groups = [
            ("239.129.2.3".parse().unwrap(), [0x01, 0x00, 0x5e, 0x01, 0x02, 0x03]),
            ("ff02::1:ff00:5".parse().unwrap(), [0x33, 0x33, 0xff, 0, 0, 5]),
        ];
        for (group, _) in groups {
            assert!(is_not_direct(resolver.resolve(local, group)));
        }
        resolver.set_multicast_egress(2);
        for (group, mac) in groups {
            let Resolution::Ready(path) = resolver.resolve(local, group) else { panic!("{group}") };
            assert_eq!((path.ifindex, path.egress, path.destination_mac), (1, 2, MacAddr(mac)));
            assert_eq!(path.vlan.as_slice().len(), 1);
        }
        resolver.set_multicast_egress(9);
        assert!(is_not_direct(resolver.resolve(local, groups[0].0)), "no such interface");
    }

    #[test]
    fn a_port_of_a_bond_or_vrf_goes_by_the_kernel() {
        let mut port = link(1, LinkKind::Physical);
        assert!(matches!(way(vec![port.clone()], 1), Resolution::Ready(_)));
        port.controller = Some(9);
        assert!(is_not_direct(way(vec![port], 1)));
    }

    #[test]
    fn memory_is_bounded() {
        let shared = Arc::<Shared>::default();
        let mut resolver = resolver(shared);
        let local = IpAddr::from([192, 0, 2, 1]);
        for host in 0..5 * CAPACITY as u32 {
            let remote = IpAddr::V4((0x0a00_0000 + host).into());
            assert_eq!(resolver.resolve(local, remote), Resolution::Unreachable);
            assert!(resolver.recent.len() <= CAPACITY && resolver.older.len() <= CAPACITY);
        }
    }
}
