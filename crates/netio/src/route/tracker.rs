//! Follows the kernel's tables: receives notifications, and rereads the tables that changed.
//!
//! Only neighbours are taken from the notifications themselves. For everything else, a notification only says which
//! table to read again, because notifications are incomplete: IPv4 routes of an interface that goes down disappear
//! without one (`fib_flush` in `net/ipv4/fib_frontend.c`), and IPv6 reports changes to parts of multipath routes. An
//! overflow of notifications is therefore no special case.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage, AddressScope};
use netlink_packet_route::link::LinkMessage;
use netlink_packet_route::neighbour::NeighbourMessage;
use netlink_packet_route::route::RouteMessage;
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleFlags, RuleMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::RouteError;
use super::link::Link;
use super::neighbour::{self, Neighbour, NeighbourKey};
use super::netlink::{Collector, EventSocket, Heard, NetlinkSource, OwnNamespace, RequestSocket, kind};
use super::snapshot::{InterfaceAddress, Rules, Snapshot};
use super::table::Tables;

/// Receives on the events socket before what was heard is acted on.
const HEAR_BATCH: usize = 256;

/// Tables that have to be read again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Dirty {
    links: bool,
    addresses: bool,
    routes: bool,
    rules: bool,
    neighbours: bool,
}

impl Dirty {
    const ALL: Self = Self { links: true, addresses: true, routes: true, rules: true, neighbours: true };
}

/// The mirror's working state.
pub(super) struct Tracker {
    events: EventSocket,
    requests: RequestSocket,
    dirty: Dirty,
    neighbours: HashMap<NeighbourKey, Neighbour>,
    neighbours_changed: bool,
    current: Snapshot,
    /// Changes heard of that the mirrored tables need not show but the kernel's answers do.
    unseen: u64,
    overflows: u64,
    /// Without them, the kernel is asked for every route.
    with_routes: bool,
}

impl Tracker {
    /// Opens the sockets in the source's network namespace; everything is to be read.
    pub(super) fn open(source: &dyn NetlinkSource, with_routes: bool) -> io::Result<Self> {
        Ok(Self {
            with_routes,
            events: EventSocket::open(source)?,
            requests: RequestSocket::open(source)?,
            dirty: Dirty::ALL,
            neighbours: HashMap::new(),
            neighbours_changed: false,
            current: Snapshot::default(),
            unseen: 0,
            overflows: 0,
        })
    }

    /// Goes on from `snapshot`, so that generations never go back.
    pub(super) fn resume(&mut self, snapshot: &Snapshot) {
        self.current = snapshot.clone();
        self.unseen = snapshot.unseen + 1;
    }

    /// Readable when something has changed.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.events.fd()
    }

    /// Times that notifications were lost and everything was read anew.
    pub(super) fn overflows(&self) -> u64 {
        self.overflows
    }

    /// The latest state read.
    pub(super) fn snapshot(&self) -> &Snapshot {
        &self.current
    }

    /// True when something is to be read though no notification waits.
    pub(super) fn is_behind(&self) -> bool {
        self.dirty != Dirty::default()
    }

    /// Takes in waiting notifications without blocking.
    pub(super) fn hear(&mut self) -> io::Result<()> {
        for _ in 0..HEAR_BATCH {
            let Self { events, dirty, neighbours, neighbours_changed, unseen, .. } = self;
            let heard = events.hear(&mut |kind, content| {
                note(dirty, unseen, kind);
                if let Some(content) = content {
                    *neighbours_changed |= apply_neighbour(neighbours, &content);
                }
            })?;
            match heard {
                Heard::Messages => {}
                Heard::Nothing => return Ok(()),
                Heard::Overflow => {
                    self.overflows += 1;
                    self.dirty = Dirty::ALL;
                    self.unseen += 1;
                }
            }
        }
        Ok(())
    }

    /// Reads what has to be read again. Returns true when the snapshot has changed. After an error
    /// all of it stays to be read: what was read before the error is not kept.
    pub(super) fn refresh(&mut self) -> io::Result<bool> {
        let (mut next, mut dirty) = (self.current.clone(), self.dirty);
        if dirty.links {
            next.links = Arc::new(read_links(&mut self.requests)?);
            dirty.links = false;
        }
        if dirty.addresses {
            let mut addresses = Collected::new(|message| match message {
                RouteNetlinkMessage::NewAddress(message) => decode_address(&message),
                _ => None,
            });
            let request = RouteNetlinkMessage::GetAddress(AddressMessage::default());
            self.requests.dump(&request, &mut addresses)?;
            next.addresses = Arc::new(addresses.items);
            dirty.addresses = false;
        }
        if dirty.routes {
            if self.with_routes {
                next.tables = Arc::new(self.read_routes()?);
            }
            dirty.routes = false;
        }
        if dirty.rules {
            next.rules = if self.with_routes {
                self.read_rules()?
            } else {
                Rules { v4_custom: true, v6_custom: true }
            };
            dirty.rules = false;
        }
        if dirty.neighbours {
            let mut neighbours = NeighbourCollector(HashMap::new());
            let request = RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default());
            self.requests.dump(&request, &mut neighbours)?;
            self.neighbours = neighbours.0;
            self.neighbours_changed = true;
            dirty.neighbours = false;
        }
        if std::mem::take(&mut self.neighbours_changed) {
            next.neighbours = Arc::new(self.neighbours.clone());
        }
        next.unseen = self.unseen;
        let changed = !next.is_same(&self.current);
        if changed {
            next.generation += 1;
        }
        (self.current, self.dirty) = (next, dirty);
        Ok(changed)
    }

    fn read_routes(&mut self) -> io::Result<Tables> {
        let mut tables = Tables::default();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut request = RouteMessage::default();
            request.header.address_family = family;
            // A kernel without the family answers with what it has of the others (`rtnl_dump_all`).
            let mut routes = Collected::new(|message| match message {
                RouteNetlinkMessage::NewRoute(message) => {
                    (message.header.address_family == family).then_some(message)
                }
                _ => None,
            });
            self.requests.dump(&RouteNetlinkMessage::GetRoute(request), &mut routes)?;
            routes.items.into_iter().for_each(|route| tables.insert(route));
        }
        Ok(tables)
    }

    fn read_rules(&mut self) -> io::Result<Rules> {
        let mut custom = [false; 2];
        let families = [(AddressFamily::Inet, &[255, 254, 253][..]), (AddressFamily::Inet6, &[255, 254])];
        for (custom, (family, tables)) in custom.iter_mut().zip(families) {
            let mut request = RuleMessage::default();
            request.header.family = family;
            let mut rules = Collected::new(|message| match message {
                RouteNetlinkMessage::NewRule(message) => Some(plain_rule(&message)),
                _ => None,
            });
            match self.requests.dump(&RouteNetlinkMessage::GetRule(request), &mut rules) {
                // A kernel without the family, or without policy routing, has no rules to obey.
                Err(error) if is_unsupported(&error) => continue,
                result => result?,
            }
            // The dump is in order of priority.
            *custom = !rules.items.iter().copied().eq(tables.iter().map(|table| Some(*table)));
        }
        Ok(Rules { v4_custom: custom[0], v6_custom: custom[1] })
    }
}

/// The interfaces alone, read once: a snapshot of the calling thread's network namespace without anything else.
///
/// # Errors
/// [`RouteError`] when rtnetlink cannot be read.
pub fn links() -> Result<Snapshot, RouteError> {
    let links = RequestSocket::open(&OwnNamespace).and_then(|mut requests| read_links(&mut requests));
    let links = links.map_err(|source| RouteError { what: "read the interfaces", source })?;
    Ok(Snapshot::of_links(links))
}

fn read_links(requests: &mut RequestSocket) -> io::Result<Vec<Link>> {
    let mut links = Collected::new(|message| match message {
        RouteNetlinkMessage::NewLink(message) => Link::decode(message),
        _ => None,
    });
    requests.dump(&RouteNetlinkMessage::GetLink(LinkMessage::default()), &mut links)?;
    links.items.sort_by_key(|link| link.index);
    Ok(links.items)
}

/// Notes what a notification of this type makes out of date.
fn note(dirty: &mut Dirty, unseen: &mut u64, message: u16) {
    if kind::LINKS.contains(&message) {
        (dirty.links, dirty.addresses, dirty.routes) = (true, true, true);
    } else if kind::ADDRESSES.contains(&message) {
        (dirty.addresses, dirty.routes) = (true, true);
    } else if kind::ROUTES.contains(&message) || kind::NEXT_HOPS.contains(&message) {
        dirty.routes = true;
        *unseen += 1;
    } else if kind::RULES.contains(&message) {
        dirty.rules = true;
        *unseen += 1;
    }
}

/// Applies a neighbour notification; returns whether anything changed.
fn apply_neighbour(neighbours: &mut HashMap<NeighbourKey, Neighbour>, message: &RouteNetlinkMessage) -> bool {
    match message {
        RouteNetlinkMessage::NewNeighbour(message) => match neighbour::decode(message) {
            Some((key, Some(neighbour))) => neighbours.insert(key, neighbour) != Some(neighbour),
            Some((key, None)) => neighbours.remove(&key).is_some(),
            None => false,
        },
        RouteNetlinkMessage::DelNeighbour(message) => {
            neighbour::decode(message).is_some_and(|(key, _)| neighbours.remove(&key).is_some())
        }
        _ => false,
    }
}

fn is_unsupported(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EOPNOTSUPP))
}

/// The table of a rule that selects nothing, as the rules that a namespace starts with; `None` for others.
fn plain_rule(message: &RuleMessage) -> Option<u32> {
    let header = &message.header;
    if header.action != RuleAction::ToTable
        || header.src_len != 0
        || header.dst_len != 0
        || header.tos != 0
        || header.flags.contains(RuleFlags::Invert)
    {
        return None;
    }
    let mut table = u32::from(header.table);
    for attribute in &message.attributes {
        match attribute {
            RuleAttribute::Table(number) => table = *number,
            // All ones is how the kernel says that nothing is suppressed.
            RuleAttribute::SuppressPrefixLen(u32::MAX) | RuleAttribute::SuppressIfGroup(u32::MAX) => {}
            RuleAttribute::Priority(_) | RuleAttribute::Protocol(_) => {}
            _ => return None,
        }
    }
    Some(table)
}

fn decode_address(message: &AddressMessage) -> Option<InterfaceAddress> {
    let (mut local, mut address, mut flags) = (None, None, AddressFlags::empty());
    for attribute in &message.attributes {
        match attribute {
            // On a point-to-point link IFA_ADDRESS is the peer's and IFA_LOCAL ours.
            AddressAttribute::Local(ip) => local = Some(*ip),
            AddressAttribute::Address(ip) => address = Some(*ip),
            AddressAttribute::Flags(value) => flags = *value,
            _ => {}
        }
    }
    let avoided = AddressFlags::Deprecated | AddressFlags::Tentative | AddressFlags::Dadfailed;
    let address: IpAddr = local.or(address)?;
    // The bit that marks an IPv4 address secondary marks an IPv6 address temporary (RFC 8981).
    let secondary = address.is_ipv4() && flags.contains(AddressFlags::Secondary);
    Some(InterfaceAddress {
        ifindex: message.header.index,
        address,
        prefix_length: message.header.prefix_len,
        is_global: message.header.scope == AddressScope::Universe,
        is_avoided: secondary || flags.intersects(avoided),
    })
}

/// Collects what `convert` makes of each object.
struct Collected<T, F> {
    items: Vec<T>,
    convert: F,
}

impl<T, F: FnMut(RouteNetlinkMessage) -> Option<T>> Collected<T, F> {
    fn new(convert: F) -> Self {
        Self { items: Vec::new(), convert }
    }
}

impl<T, F: FnMut(RouteNetlinkMessage) -> Option<T>> Collector for Collected<T, F> {
    fn restart(&mut self) {
        self.items.clear();
    }

    fn collect(&mut self, message: RouteNetlinkMessage) {
        self.items.extend((self.convert)(message));
    }
}

struct NeighbourCollector(HashMap<NeighbourKey, Neighbour>);

impl Collector for NeighbourCollector {
    fn restart(&mut self) {
        self.0.clear();
    }

    fn collect(&mut self, message: RouteNetlinkMessage) {
        apply_neighbour(&mut self.0, &message);
    }
}

#[cfg(test)]
#[path = "../../tests/udp_netns/mod.rs"]
mod udp_netns;

#[cfg(test)]
mod tests {
    use super::udp_netns::{Namespace, is_privileged, sh};
    use crate::route::NetlinkUse;
    use std::os::fd::OwnedFd;

    use super::*;

    /// Sockets with room for a few notifications only.
    #[derive(Debug)]
    struct SmallBuffers;

    impl NetlinkSource for SmallBuffers {
        fn open(&self, usage: NetlinkUse) -> io::Result<OwnedFd> {
            let fd = OwnNamespace.open(usage)?;
            rustix::net::sockopt::set_socket_recv_buffer_size(&fd, 4096)?;
            Ok(fd)
        }
    }

    #[test]
    fn lost_notifications_lead_to_a_reading_of_everything() {
        if !is_privileged() {
            return;
        }
        let (near, _far) = Namespace::pair();
        let mut tracker = near.run(|| Tracker::open(&SmallBuffers, true).unwrap());
        tracker.hear().unwrap();
        assert!(tracker.refresh().unwrap());
        assert!(!tracker.refresh().unwrap(), "nothing has changed");
        let generation = tracker.snapshot().generation();
        let mut batch = String::new();
        for host in 10..200 {
            batch += &format!("neigh add 10.9.0.{host} lladdr 02:00:00:00:00:01 dev v0 nud permanent\n");
            batch += &format!("route add 10.8.{host}.0/24 via 10.9.0.2\n");
        }
        sh(&format!("echo '{batch}' | ip -n {} -batch -", near.name));
        tracker.hear().unwrap();
        assert!(tracker.overflows() > 0);
        assert_eq!(tracker.dirty, Dirty::ALL);
        assert!(tracker.refresh().unwrap());
        let snapshot = tracker.snapshot();
        assert!(snapshot.generation() > generation);
        let v0 = snapshot.link_by_name("v0").unwrap().index;
        for host in 10..200u8 {
            assert!(snapshot.neighbour(v0, IpAddr::from([10, 9, 0, host])).is_some());
            let decision = snapshot.decide([10, 9, 0, 1].into(), [10, 8, host, 1].into());
            assert!(matches!(decision, crate::route::table::Decision::Forward { .. }));
        }
    }

    #[test]
    fn a_tracker_that_resumes_goes_on_counting() {
        if !is_privileged() {
            return;
        }
        let (near, _far) = Namespace::pair();
        let mut first = near.run(|| Tracker::open(&OwnNamespace, true).unwrap());
        first.refresh().unwrap();
        let mut second = near.run(|| Tracker::open(&OwnNamespace, true).unwrap());
        second.resume(first.snapshot());
        second.refresh().unwrap();
        assert!(second.snapshot().generation() > first.snapshot().generation());
    }
}
