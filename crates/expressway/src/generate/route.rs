//! The way to the destination: interface, source address, MTU, and for frames the hardware addresses.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use expressway_netio::route::{Link, Path, Resolution, Resolver, RouteMirror, Snapshot};
use expressway_wire::VlanTags;

use crate::args::generate::{Io, Udp};
use crate::fail::Failure;

/// How long a neighbour may take to answer: the kernel asks three times, a second apart (`mcast_solicit`,
/// `retrans_time_ms`).
const NEIGHBOUR_PATIENCE: Duration = Duration::from_millis(3500);

/// RFC 863: what is sent there is thrown away.
const DISCARD: u16 = 9;

/// Bytes of IP and UDP headers.
pub(super) fn headers(to: &SocketAddr) -> usize {
    if to.is_ipv4() { 28 } else { 48 }
}

/// How datagrams get there.
pub(super) struct Route {
    /// Where to send from if nothing else is asked for.
    pub(super) source: IpAddr,
    /// The interface that they leave by, as far as it is known.
    pub(super) interface: Option<Link>,
    /// Bytes of the largest IP packet.
    pub(super) mtu: usize,
    /// How frames are built; `None` where only the kernel can.
    pub(super) path: Option<Path>,
}

impl Route {
    /// The largest payload without fragments.
    pub(super) fn largest(&self, to: &SocketAddr) -> usize {
        self.mtu.saturating_sub(headers(to))
    }
}

/// Finds the route, and has the next hop's hardware address resolved.
pub(super) fn find(arguments: &Udp, mirror: &RouteMirror) -> Result<Route, Failure> {
    let to = arguments.to;
    let mut resolver = mirror.resolver().map_err(Failure::run_time)?;
    let source = arguments.source.first().and_then(|sources| sources.addresses().next());
    let named = named(arguments, &mirror.snapshot())?;
    if let (Some(mac), Some(link), Some(source)) = (arguments.to_mac, &named, source) {
        let source_mac = link.mac.ok_or_else(|| no_frames(link))?;
        let (ifindex, mtu) = (link.index, link.mtu);
        let path = Path {
            ifindex,
            egress: ifindex,
            source_mac,
            destination_mac: mac,
            vlan: VlanTags::NONE,
            mtu,
            source,
            stale: false,
        };
        return Ok(Route { source, interface: named, mtu, path: Some(path) });
    }
    if to.ip().is_multicast() {
        return multicast(&mut resolver, to, source, named);
    }
    let route = unicast(&mut resolver, to, source)?;
    match (&named, &route.interface) {
        (Some(named), Some(link)) if named.index != link.index => Err(Failure::run_time(format!(
            "--interface {}: the route to {} uses {}; give --to-mac to send on another interface",
            named.name,
            to.ip(),
            link.name
        ))),
        _ => Ok(route),
    }
}

fn named(arguments: &Udp, snapshot: &Snapshot) -> Result<Option<Link>, Failure> {
    let Some(name) = &arguments.interface else { return Ok(None) };
    let link = snapshot.link_by_name(name).cloned().ok_or_else(|| {
        Failure::run_time(format!("interface {name}: no such interface in this network namespace"))
    })?;
    if !link.is_running() {
        let what = format!("interface {name}: is down or has no carrier; `ip link set dev {name} up`");
        return Err(Failure::run_time(what));
    }
    Ok(Some(link))
}

fn no_frames(link: &Link) -> Failure {
    Failure::run_time(format!("interface {}: not an Ethernet device; use --io udp", link.name))
}

/// The address that the kernel would send from.
fn kernel_source(to: SocketAddr) -> Result<IpAddr, Failure> {
    let any: SocketAddr = if to.is_ipv4() { ([0; 4], 0).into() } else { ([0u16; 8], 0).into() };
    let asked = UdpSocket::bind(any).and_then(|socket| {
        socket.connect(to)?;
        socket.local_addr()
    });
    asked
        .map(|local| local.ip())
        .map_err(|error| Failure::run_time(format!("{}: {error}; see `ip route get {}`", to.ip(), to.ip())))
}

fn multicast(
    resolver: &mut Resolver,
    to: SocketAddr,
    source: Option<IpAddr>,
    named: Option<Link>,
) -> Result<Route, Failure> {
    let source = match (source, &named) {
        (Some(source), _) => source,
        (None, Some(link)) => {
            let of_family = |ip: &IpAddr| ip.is_ipv4() == to.is_ipv4();
            let mut own = resolver.snapshot().addresses(link.index).map(|own| own.address).filter(of_family);
            own.next().ok_or_else(|| {
                Failure::run_time(format!(
                    "interface {}: has no address of the same family as {}; give one with --source",
                    link.name,
                    to.ip()
                ))
            })?
        }
        (None, None) => kernel_source(to)?,
    };
    let interface = named.or_else(|| resolver.snapshot().interface_of(source).cloned());
    let Some(link) = &interface else {
        return Err(Failure::run_time(format!("{}: give the interface to send on: --interface", to.ip())));
    };
    resolver.set_multicast_egress(link.index);
    let path = match resolver.resolve(source, to.ip()) {
        Resolution::Ready(path) => Some(path),
        _ => None,
    };
    Ok(Route { source, mtu: link.mtu, interface, path })
}

fn unicast(resolver: &mut Resolver, to: SocketAddr, source: Option<IpAddr>) -> Result<Route, Failure> {
    let any = if to.is_ipv4() { IpAddr::from([0; 4]) } else { IpAddr::from([0u16; 8]) };
    // A source that is not of this machine takes the route of those that are.
    let own = |source: &IpAddr| resolver.snapshot().interface_of(*source).is_some();
    let local = source.filter(own).unwrap_or(any);
    let deadline = Instant::now() + NEIGHBOUR_PATIENCE;
    let mut asked = false;
    loop {
        match resolver.resolve(local, to.ip()) {
            Resolution::Ready(path) => {
                let interface = resolver.snapshot().link(path.egress).cloned();
                return Ok(Route {
                    source: source.unwrap_or(path.source),
                    interface,
                    mtu: path.mtu,
                    path: Some(path),
                });
            }
            Resolution::NotDirect { egress, mtu } => {
                let source = source.map_or_else(|| kernel_source(to), Ok)?;
                let snapshot = resolver.snapshot();
                let interface = snapshot.link(egress).or_else(|| snapshot.interface_of(source)).cloned();
                return Ok(Route { source, interface, mtu, path: None });
            }
            Resolution::Unreachable => {
                let ip = to.ip();
                return Err(Failure::run_time(format!("{ip}: no route; see `ip route get {ip}`")));
            }
            Resolution::Unresolved { egress, next_hop, .. } => {
                if !asked {
                    asked = true;
                    ask_for(next_hop, to)?;
                }
                if Instant::now() >= deadline {
                    let name = resolver.snapshot().link(egress).map_or("?", |link| &link.name);
                    return Err(Failure::run_time(format!(
                        "{next_hop}: no answer to neighbour discovery on {name}; check that it is up and on that link: \
                         `ip neighbour show dev {name}`"
                    )));
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

/// Has the kernel resolve a neighbour, by an empty datagram to its discard port.
fn ask_for(next_hop: IpAddr, to: SocketAddr) -> Result<(), Failure> {
    let any: SocketAddr = if to.is_ipv4() { ([0; 4], 0).into() } else { ([0u16; 8], 0).into() };
    let sent = UdpSocket::bind(any).and_then(|socket| socket.send_to(&[], (next_hop, DISCARD)));
    sent.map(drop).map_err(|error| Failure::run_time(format!("{next_hop}: {error}")))
}

/// The path for frames, or why there is none.
pub(super) fn path_of<'a>(route: &'a Route, io: Io, to: &SocketAddr) -> Result<&'a Path, Failure> {
    route.path.as_ref().ok_or_else(|| {
        let by = route.interface.as_ref().map_or(String::new(), |link| format!(" by {}", link.name));
        Failure::run_time(format!(
            "--io {io}: the path to {}{by} cannot be used by AF_XDP; use --io udp",
            to.ip()
        ))
    })
}
