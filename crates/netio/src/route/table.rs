//! Routing tables: longest-prefix match with metrics and several next hops.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::net::IpAddr;

use netlink_packet_route::AddressFamily;
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteMetric, RouteNextHopFlags, RouteType,
    RouteVia,
};

/// The tables of the default rules, in the order in which these ask them (`linux/rtnetlink.h`).
const TABLES: [u32; 3] = [255, 254, 253];

/// One way out of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hop {
    /// Interface that it leaves by.
    pub(super) egress: u32,
    /// The router, or `None` when the destination is on the link.
    pub(super) gateway: Option<IpAddr>,
    /// Share of the flows, 1 to 256.
    weight: u32,
    /// The kernel has taken it out of use.
    dead: bool,
}

impl Hop {
    /// The only way, straight onto a link.
    pub(super) fn direct(egress: u32) -> Self {
        Self { egress, gateway: None, weight: 1, dead: false }
    }
}

/// What a route does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// Leaves by one of the hops.
    Forward,
    /// Stays with the kernel: this machine's own addresses, broadcast, multicast.
    Kernel,
    /// Is refused.
    Refuse,
    /// The next table decides.
    NextTable,
    /// Something that is not imitated here.
    Ask,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Route {
    metric: u32,
    action: Action,
    hops: Vec<Hop>,
    source: Option<IpAddr>,
    mtu: Option<u32>,
}

/// What the tables say of a destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// Leaves by `hop`.
    Forward {
        /// The hop chosen.
        hop: Hop,
        /// The source that the route prefers.
        source: Option<IpAddr>,
        /// The MTU that the route sets.
        mtu: Option<u32>,
    },
    /// Stays with the kernel.
    Kernel,
    /// No route, or one that refuses.
    Unreachable,
    /// Only the kernel knows.
    Ask,
}

/// Routes of one table and family, by prefix length (longest first) and prefix.
#[derive(Debug, Default, PartialEq, Eq)]
struct Table {
    lengths: Vec<(u8, HashMap<u128, Vec<Route>>)>,
}

/// The mirrored tables of both families.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Tables {
    v4: [Table; 3],
    v6: [Table; 3],
    /// An IPv6 route depends on the source prefix, which is not imitated.
    v6_by_source: bool,
}

/// The address with its first bit as the highest.
fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(ip) => u128::from(u32::from(ip)) << 96,
        IpAddr::V6(ip) => u128::from(ip),
    }
}

fn prefix(bits: u128, length: u8) -> u128 {
    if length == 0 { 0 } else { bits & (u128::MAX << (128 - u32::from(length.min(128)))) }
}

impl Table {
    fn insert(&mut self, destination: u128, length: u8, route: Route) {
        let at = match self.lengths.binary_search_by(|(other, _)| length.cmp(other)) {
            Ok(at) => at,
            Err(at) => {
                self.lengths.insert(at, (length, HashMap::new()));
                at
            }
        };
        let routes = self.lengths[at].1.entry(prefix(destination, length)).or_default();
        let place = routes.partition_point(|other| other.metric <= route.metric);
        if let Some(twin) = place.checked_sub(1).and_then(|at| routes.get_mut(at))
            && twin.metric == route.metric
        {
            // Two routes of one prefix and metric differ in TOS, preference or order of insertion.
            twin.action = Action::Ask;
            return;
        }
        routes.insert(place, route);
    }

    /// The first route for `destination` that can be used.
    fn lookup(&self, destination: u128) -> Option<&Route> {
        self.lengths
            .iter()
            .filter_map(|(length, routes)| routes.get(&prefix(destination, *length)))
            .flatten()
            .find(|route| route.action != Action::Forward || route.hops.iter().any(|hop| !hop.dead))
    }
}

impl Tables {
    /// Adds a route of a dump, if it is of a mirrored table.
    pub(super) fn insert(&mut self, message: RouteMessage) {
        let header = &message.header;
        let v6 = match header.address_family {
            AddressFamily::Inet => false,
            AddressFamily::Inet6 => true,
            _ => return,
        };
        let flags = header.flags;
        if flags.contains(RouteFlags::Cloned) {
            return;
        }
        let table = message.attributes.iter().find_map(|attribute| match attribute {
            RouteAttribute::Table(table) => Some(*table),
            _ => None,
        });
        let table = table.unwrap_or(u32::from(header.table));
        let Some(place) = TABLES.iter().position(|other| *other == table) else { return };
        if header.source_prefix_length != 0 && v6 {
            self.v6_by_source = true;
        }
        let length = header.destination_prefix_length;
        let destination = message.attributes.iter().find_map(|attribute| match attribute {
            RouteAttribute::Destination(address) => ip(address),
            _ => None,
        });
        let route = decode(message);
        let tables = if v6 { &mut self.v6 } else { &mut self.v4 };
        tables[place].insert(destination.map_or(0, bits), length, route);
    }

    /// What the default rules and these tables say of the way from `local` to `remote`.
    pub(super) fn lookup(&self, local: IpAddr, remote: IpAddr) -> Decision {
        if remote.is_ipv6() && self.v6_by_source {
            return Decision::Ask;
        }
        let tables = if remote.is_ipv4() { &self.v4 } else { &self.v6 };
        let destination = bits(remote);
        for route in tables.iter().filter_map(|table| table.lookup(destination)) {
            match route.action {
                Action::Forward => {
                    let hop = route.choose(local, remote);
                    return match hop {
                        Some(hop) => {
                            Decision::Forward { hop: hop.clone(), source: route.source, mtu: route.mtu }
                        }
                        None => Decision::Unreachable,
                    };
                }
                Action::Kernel => return Decision::Kernel,
                Action::Refuse => return Decision::Unreachable,
                Action::Ask => return Decision::Ask,
                Action::NextTable => {}
            }
        }
        Decision::Unreachable
    }
}

impl Route {
    /// A hop by the hash of the address pair and the hops' weights: a flow stays on one way.
    fn choose(&self, local: IpAddr, remote: IpAddr) -> Option<&Hop> {
        let mut alive = self.hops.iter().filter(|hop| !hop.dead);
        if self.hops.len() == 1 {
            return alive.next();
        }
        let total: u32 = alive.clone().map(|hop| hop.weight).sum();
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one((local, remote));
        let mut ticket = (hash % u64::from(total.max(1))) as u32;
        alive.find(|hop| match ticket.checked_sub(hop.weight) {
            Some(rest) => {
                ticket = rest;
                false
            }
            None => true,
        })
    }
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(ip) => Some(IpAddr::V4(*ip)),
        RouteAddress::Inet6(ip) => Some(IpAddr::V6(*ip)),
        _ => None,
    }
}

/// The router that an attribute names.
fn gateway(attribute: &RouteAttribute) -> Option<IpAddr> {
    match attribute {
        RouteAttribute::Gateway(address) => ip(address),
        RouteAttribute::Via(RouteVia::Inet(ip)) => Some(IpAddr::V4(*ip)),
        RouteAttribute::Via(RouteVia::Inet6(ip)) => Some(IpAddr::V6(*ip)),
        _ => None,
    }
}

fn action(kind: RouteType) -> Action {
    match kind {
        RouteType::Unicast => Action::Forward,
        RouteType::Local | RouteType::Broadcast | RouteType::Anycast | RouteType::Multicast => Action::Kernel,
        RouteType::BlackHole | RouteType::Unreachable | RouteType::Prohibit => Action::Refuse,
        RouteType::Throw => Action::NextTable,
        _ => Action::Ask,
    }
}

fn decode(message: RouteMessage) -> Route {
    let header = &message.header;
    let mut route =
        Route { metric: 0, action: action(header.kind), hops: Vec::new(), source: None, mtu: None };
    if header.tos != 0 {
        route.action = Action::Ask;
    }
    let dead = header.flags.contains(RouteFlags::Dead);
    let mut single = Hop { egress: 0, gateway: None, weight: 1, dead };
    for attribute in message.attributes {
        match attribute {
            RouteAttribute::Priority(metric) => route.metric = metric,
            RouteAttribute::Oif(index) => single.egress = index,
            RouteAttribute::PrefSource(address) => route.source = ip(&address),
            RouteAttribute::Metrics(metrics) => {
                route.mtu = metrics.iter().find_map(|metric| match metric {
                    RouteMetric::Mtu(mtu) if *mtu > 0 => Some(*mtu),
                    _ => None,
                });
            }
            RouteAttribute::MultiPath(hops) => {
                for hop in hops {
                    let encapsulated =
                        hop.attributes.iter().any(|a| matches!(a, RouteAttribute::EncapType(_)));
                    if encapsulated {
                        route.action = Action::Ask;
                    }
                    route.hops.push(Hop {
                        egress: hop.interface_index,
                        gateway: hop.attributes.iter().find_map(gateway),
                        weight: u32::from(hop.hops) + 1,
                        dead: hop.flags.contains(RouteNextHopFlags::Dead),
                    });
                }
            }
            // Next-hop objects can change without a word about their routes; encapsulation is a tunnel.
            RouteAttribute::NhId(_) | RouteAttribute::EncapType(_) => route.action = Action::Ask,
            other => single.gateway = gateway(&other).or(single.gateway),
        }
    }
    if route.hops.is_empty() {
        route.hops.push(single);
    }
    route
}

/// Reads the kernel's answer to `RTM_GETROUTE`.
pub(super) fn decode_answer(message: RouteMessage) -> Decision {
    let tunnel = message.attributes.iter().any(|a| matches!(a, RouteAttribute::EncapType(_)));
    let mut route = decode(message);
    if tunnel {
        return Decision::Kernel;
    }
    match route.action {
        Action::Forward | Action::Ask => match route.hops.pop() {
            Some(hop) if hop.egress != 0 => Decision::Forward { hop, source: route.source, mtu: route.mtu },
            _ => Decision::Kernel,
        },
        Action::Refuse => Decision::Unreachable,
        Action::Kernel | Action::NextTable => Decision::Kernel,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(egress: u32, metric: u32) -> Route {
        Route {
            metric,
            action: Action::Forward,
            hops: vec![Hop { egress, gateway: None, weight: 1, dead: false }],
            source: None,
            mtu: None,
        }
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn egress(tables: &Tables, remote: &str) -> Option<u32> {
        match tables.lookup(address("192.0.2.1"), address(remote)) {
            Decision::Forward { hop, .. } => Some(hop.egress),
            _ => None,
        }
    }

    #[test]
    fn the_longest_prefix_wins_then_the_lowest_metric() {
        let mut tables = Tables::default();
        let main = &mut tables.v4[1];
        main.insert(0, 0, route(1, 0));
        main.insert(bits(address("10.0.0.0")), 8, route(2, 100));
        main.insert(bits(address("10.0.0.0")), 8, route(3, 50));
        main.insert(bits(address("10.1.0.0")), 16, route(4, 900));
        main.insert(bits(address("10.1.2.3")), 32, route(5, 0));
        for (remote, expected) in [("8.8.8.8", 1), ("10.9.9.9", 3), ("10.1.9.9", 4), ("10.1.2.3", 5)] {
            assert_eq!(egress(&tables, remote), Some(expected), "{remote}");
        }
        assert_eq!(tables.lookup(address("::1"), address("2001:db8::1")), Decision::Unreachable);
    }

    #[test]
    fn a_dead_route_gives_way_to_a_shorter_prefix_and_throw_to_the_next_table() {
        let mut tables = Tables::default();
        let mut dead = route(2, 0);
        dead.hops[0].dead = true;
        tables.v4[1].insert(bits(address("10.0.0.0")), 8, dead);
        tables.v4[1].insert(0, 0, route(1, 0));
        assert_eq!(egress(&tables, "10.1.1.1"), Some(1));
        let throw = Route { action: Action::NextTable, ..route(0, 0) };
        tables.v4[1].insert(bits(address("10.1.0.0")), 16, throw);
        tables.v4[2].insert(0, 0, route(9, 0));
        assert_eq!(egress(&tables, "10.1.1.1"), Some(9));
    }

    #[test]
    fn a_flow_stays_on_one_hop_and_weights_hold() {
        let mut many = route(1, 0);
        many.hops[0].weight = 3;
        many.hops.push(Hop { egress: 2, gateway: None, weight: 1, dead: false });
        many.hops.push(Hop { egress: 3, gateway: None, weight: 100, dead: true });
        let mut tables = Tables::default();
        tables.v4[1].insert(0, 0, many);
        let mut counts = [0; 4];
        for host in 0..4000u32 {
            let remote = IpAddr::V4((0x0a00_0000 + host).into());
            let chosen = egress(&tables, &remote.to_string()).unwrap();
            assert_eq!(egress(&tables, &remote.to_string()), Some(chosen));
            counts[chosen as usize] += 1;
        }
        assert_eq!(counts[3], 0, "dead hops get nothing");
        assert!((2700..3300).contains(&counts[1]), "{counts:?}");
    }

    #[test]
    fn what_cannot_be_told_apart_is_asked() {
        let mut tables = Tables::default();
        tables.v4[1].insert(0, 0, route(1, 5));
        tables.v4[1].insert(0, 0, route(2, 5));
        assert_eq!(tables.lookup(address("192.0.2.1"), address("8.8.8.8")), Decision::Ask);
    }
}
