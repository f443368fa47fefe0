//! An immutable picture of links, addresses, routes and neighbours.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use super::link::Link;
use super::neighbour::{Neighbour, NeighbourKey};
use super::table::{Decision, Tables};

/// One address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// Index of the interface.
    pub ifindex: u32,
    /// The address.
    pub address: IpAddr,
    /// Length of its network's prefix in bits.
    pub prefix_length: u8,
    /// Valid everywhere, not only on its link or this machine (`RT_SCOPE_UNIVERSE`).
    pub is_global: bool,
    /// Not to be chosen as a source: deprecated, tentative, a duplicate, or secondary.
    pub is_avoided: bool,
}

/// What the policy rules of one family are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Rules {
    /// IPv4 has other rules than the three that every namespace starts with.
    pub(super) v4_custom: bool,
    /// IPv6 has other rules than the two that every namespace starts with.
    pub(super) v6_custom: bool,
}

/// One state of the mirror. Cheap to clone: the parts are shared.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    pub(super) generation: u64,
    pub(super) links: Arc<Vec<Link>>,
    pub(super) addresses: Arc<Vec<InterfaceAddress>>,
    pub(super) tables: Arc<Tables>,
    pub(super) rules: Rules,
    pub(super) neighbours: Arc<HashMap<NeighbourKey, Neighbour>>,
    /// Changes of routes, rules and next-hop objects that the mirrored tables need not show but the
    /// kernel's answers do.
    pub(super) unseen: u64,
}

impl Snapshot {
    /// One with interfaces and nothing else.
    pub fn of_links(mut links: Vec<Link>) -> Self {
        links.sort_by_key(|link| link.index);
        Self { links: Arc::new(links), ..Self::default() }
    }

    /// Grows with every change.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// All interfaces, by index.
    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// The interface with a kernel index.
    pub fn link(&self, index: u32) -> Option<&Link> {
        self.links.binary_search_by_key(&index, |link| link.index).ok().map(|at| &self.links[at])
    }

    /// The interface of a name.
    pub fn link_by_name(&self, name: &str) -> Option<&Link> {
        self.links.iter().find(|link| link.name == name)
    }

    /// The addresses of an interface.
    pub fn addresses(&self, ifindex: u32) -> impl Iterator<Item = &InterfaceAddress> {
        self.addresses.iter().filter(move |address| address.ifindex == ifindex)
    }

    /// The interface that has `address`.
    pub fn interface_of(&self, address: IpAddr) -> Option<&Link> {
        let found = self.addresses.iter().find(|candidate| candidate.address == address)?;
        self.link(found.ifindex)
    }

    /// The neighbour at `address` on an interface, if its hardware address is usable.
    pub fn neighbour(&self, ifindex: u32, address: IpAddr) -> Option<Neighbour> {
        self.neighbours.get(&(ifindex, address)).copied()
    }

    /// All neighbours with a usable hardware address: interface, address, neighbour; in no order.
    pub fn neighbours(&self) -> impl Iterator<Item = (u32, IpAddr, Neighbour)> + '_ {
        self.neighbours.iter().map(|((ifindex, address), neighbour)| (*ifindex, *address, *neighbour))
    }

    /// The device that frames of `ifindex` leave by: the lowest below a stack of VLANs, itself otherwise.
    pub fn device_of(&self, ifindex: u32) -> Option<&Link> {
        let mut link = self.link(ifindex)?;
        // Deeper than the kernel allows devices to nest (MAX_NEST_DEV) there is only a loop.
        for _ in 0..8 {
            let super::LinkKind::Vlan { lower, .. } = link.kind else { return Some(link) };
            link = self.link(lower?)?;
        }
        None
    }

    /// The devices on which the frames of interface `ifindex` come in as they are, so that XDP and AF_XDP can
    /// have them: the lowest one below a stack of VLANs, if it is hardware, veth or tap; the members of a bond.
    /// None for what sorts frames by rules of its own (bridge, macvlan, tunnel), for loopback, and for a device
    /// in another namespace.
    pub fn carriers_of(&self, ifindex: u32) -> Vec<&Link> {
        let Some(device) = self.device_of(ifindex) else { return Vec::new() };
        if device.is_direct() {
            return vec![device];
        }
        if !device.is_bond() {
            return Vec::new();
        }
        let member = |link: &&Link| link.controller == Some(device.index) && link.is_direct();
        self.links.iter().filter(member).collect()
    }

    /// What the mirrored tables say; [`Decision::Ask`] when they are not all there is.
    pub(super) fn decide(&self, local: IpAddr, remote: IpAddr) -> Decision {
        let custom = if remote.is_ipv4() { self.rules.v4_custom } else { self.rules.v6_custom };
        if custom { Decision::Ask } else { self.tables.lookup(local, remote) }
    }

    /// The source that the kernel would choose on an interface, if there is no better word from the route.
    pub(super) fn source_on(&self, ifindex: u32, remote: IpAddr) -> Option<IpAddr> {
        let fits = |candidate: &&InterfaceAddress| {
            candidate.is_global && !candidate.is_avoided && candidate.address.is_ipv4() == remote.is_ipv4()
        };
        self.addresses(ifindex).find(fits).map(|address| address.address)
    }

    /// Whether everything but the generation is equal.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.links == other.links
            && self.addresses == other.addresses
            && self.tables == other.tables
            && self.rules == other.rules
            && self.neighbours == other.neighbours
            && self.unseen == other.unseen
    }
}

#[cfg(test)]
mod tests {
    use expressway_wire::MacAddr;

    use super::super::LinkKind;
    use super::*;

    fn link(index: u32, kind: LinkKind, controller: Option<u32>) -> Link {
        Link {
            index,
            name: format!("if{index}"),
            mac: Some(MacAddr([2, 0, 0, 0, 0, index as u8])),
            mtu: 1500,
            is_up: true,
            has_carrier: true,
            kind,
            controller,
            rx_queues: 1,
            tx_queues: 1,
        }
    }

    fn carriers(links: &[Link], ifindex: u32) -> Vec<u32> {
        let snapshot = Snapshot { links: Arc::new(links.to_vec()), ..Snapshot::default() };
        snapshot.carriers_of(ifindex).iter().map(|link| link.index).collect()
    }

    fn vlan(lower: Option<u32>) -> LinkKind {
        LinkKind::Vlan { id: 7, protocol: 0x8100, lower }
    }

    fn other(kind: &str) -> LinkKind {
        LinkKind::Other(kind.into())
    }

    #[test]
    fn frames_of_a_vlan_come_in_on_the_device_below_and_those_of_a_bond_on_its_members() {
        let links = [
            link(2, LinkKind::Physical, None),
            link(3, LinkKind::Physical, Some(5)),
            link(4, LinkKind::Veth, Some(5)),
            link(5, other("bond"), None),
            link(6, vlan(Some(5)), None),
            link(7, vlan(Some(2)), None),
        ];
        assert_eq!(carriers(&links, 2), [2]);
        assert_eq!(carriers(&links, 7), [2]);
        assert_eq!(carriers(&links, 5), [3, 4]);
        assert_eq!(carriers(&links, 6), [3, 4], "a VLAN on a bond");
    }

    #[test]
    fn what_sorts_frames_by_its_own_rules_has_no_carrier() {
        let mut links = vec![link(2, LinkKind::Loopback, None), link(3, LinkKind::Veth, Some(4))];
        links.push(link(4, other("bridge"), None));
        links.push(link(5, other("macvlan"), None));
        links.push(link(6, vlan(None), None));
        links.push(link(7, other("bond"), None));
        for ifindex in [2, 4, 5, 6, 7, 99] {
            assert!(carriers(&links, ifindex).is_empty(), "{ifindex}");
        }
        assert_eq!(carriers(&links, 3), [3], "a bridge's port is a device nonetheless");
    }
}
