//! The data path: kernel sockets for every worker and address, and on each interface that takes it an XDP
//! program with AF_XDP sockets for its queues.
//!
//! The order matters. Kernel sockets come first, so that nothing is lost that XDP passes. Then the program is
//! attached with no pairs (everything passes), the sockets are bound and entered into its map, and only then
//! the pairs are added: from that moment packets take the express path.

use std::collections::HashSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use expressway_gateway::config::{Config, IoMode, UdpSend};
use expressway_netio::express::{ExpressConfig, ExpressIo, ObtainedMode, Port, PortConfig, TransmitVia};
use expressway_netio::route::device::{channels, hazards, udp_segmentation};
use expressway_netio::route::{Link, LinkKind, Resolver, RouteMirror, Snapshot};
use expressway_netio::udp::{SendMode, Steering, UdpConfig, UdpGroup, UdpIo};
use expressway_xbpf::{Attachment, Counters, Existing, Options, Redirect};

use super::mode::{Obtained, Step, steps};
use crate::fail::Failure;

/// Where the worker's number stands in a short-header packet: the first byte of the connection ID, behind
/// the first byte of the packet; long headers (0x80) are left to the kernel's hash.
const STEERING: Steering = Steering::ByteAt { offset: 1, clear_mask: 0x80 };

/// A worker's packet I/O.
pub(crate) enum WorkerIo {
    /// Kernel sockets alone.
    Kernel(Box<UdpIo>),
    /// AF_XDP sockets with kernel sockets behind.
    Express(Box<ExpressIo<UdpIo, Resolver>>),
}

/// What all workers share of the data path; dropping it detaches the XDP programs.
pub(crate) struct DataPath {
    listen: Vec<SocketAddr>,
    mirror: RouteMirror,
    generation: u64,
    interfaces: Vec<Interface>,
}

/// An interface with our program on it.
struct Interface {
    index: u32,
    name: String,
    obtained: Obtained,
    pairs: HashSet<SocketAddr>,
    redirect: Redirect,
    attachment: Attachment,
    lost: bool,
}

/// An interface opened, with its sockets by worker.
struct Opened {
    interface: Interface,
    ports: Vec<(usize, Port)>,
    transmit: TransmitVia,
}

/// Why an address cannot take the express path.
struct Reason(String);

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl DataPath {
    /// Opens everything for `workers` workers.
    pub(crate) fn open(config: &Config, workers: usize) -> Result<(Self, Vec<WorkerIo>), Failure> {
        let listen = config.listen();
        let udp = udp_config(config);
        let kernel = UdpGroup::bind(&udp, workers).map_err(Failure::run_time)?.into_workers();
        let mirror = RouteMirror::start().map_err(Failure::run_time)?;
        let snapshot = mirror.snapshot();
        let mut opened = Vec::new();
        for link in devices(config.io.mode, &listen, &snapshot)? {
            opened.extend(open_interface(config, &link, workers)?);
        }
        let transmit = opened.first().map_or(TransmitVia::Kernel, |first| first.transmit);
        let mut ports: Vec<Vec<Port>> = (0..workers).map(|_| Vec::new()).collect();
        let mut interfaces = Vec::new();
        for one in opened {
            one.ports.into_iter().for_each(|(worker, port)| ports[worker].push(port));
            interfaces.push(one.interface);
        }
        let mut ios = Vec::new();
        for (sockets, ports) in kernel.into_iter().zip(ports) {
            let mut kernel = UdpIo::new(&udp, sockets).map_err(Failure::run_time)?;
            kernel.set_resolver(mirror.resolver().map_err(Failure::run_time)?);
            if ports.is_empty() {
                ios.push(WorkerIo::Kernel(Box::new(kernel)));
                continue;
            }
            let resolver = mirror.resolver().map_err(Failure::run_time)?;
            let express = ExpressConfig { transmit, ..ExpressConfig::default() };
            let io = ExpressIo::new(ports, kernel, resolver, express).map_err(Failure::run_time)?;
            ios.push(WorkerIo::Express(Box::new(io)));
        }
        let mut path = Self { listen, mirror, generation: 0, interfaces };
        path.follow_addresses()?;
        Ok((path, ios))
    }

    /// The mode of each listen address.
    pub(crate) fn modes(&self) -> Vec<(SocketAddr, Obtained)> {
        let snapshot = self.mirror.snapshot();
        let mode = |address: &SocketAddr| {
            let device = snapshot.interface_of(address.ip()).and_then(|link| snapshot.device_of(link.index));
            let serves = |interface: &&Interface| {
                address.ip().is_unspecified() || device.is_some_and(|device| device.index == interface.index)
            };
            self.interfaces.iter().find(serves).map_or(Obtained::Udp, |interface| interface.obtained)
        };
        self.listen.iter().map(|address| (*address, mode(address))).collect()
    }

    /// The mode as one word: that of the first interface, or `udp`.
    pub(crate) fn mode(&self) -> Obtained {
        self.interfaces.first().map_or(Obtained::Udp, |interface| interface.obtained)
    }

    /// Each interface's name and the counters of its XDP program.
    pub(crate) fn counters(&self) -> Vec<(String, Counters)> {
        let read =
            |interface: &Interface| Some((interface.name.clone(), interface.redirect.counters().ok()?));
        self.interfaces.iter().filter_map(read).collect()
    }

    /// Looks after what changes outside: addresses come and go, programs are taken off.
    pub(crate) fn maintain(&mut self) {
        if self.generation != self.mirror.generation()
            && let Err(failure) = self.follow_addresses()
        {
            tracing::warn!("addresses changed: {failure}");
        }
        for interface in &mut self.interfaces {
            let lost = !interface.attachment.is_attached().unwrap_or(true);
            if lost && !interface.lost {
                tracing::warn!(
                    interface = interface.name,
                    "the XDP program is no longer on the interface; kernel sockets serve its addresses"
                );
            }
            interface.lost = lost;
        }
    }

    /// Makes each interface take the pairs that belong to it now.
    fn follow_addresses(&mut self) -> Result<(), Failure> {
        self.generation = self.mirror.generation();
        let snapshot = self.mirror.snapshot();
        for interface in &mut self.interfaces {
            let wanted = pairs(&self.listen, &snapshot, interface.index);
            for gone in interface.pairs.difference(&wanted) {
                interface.redirect.remove_pair(*gone).map_err(Failure::run_time)?;
            }
            for new in wanted.difference(&interface.pairs) {
                interface.redirect.add_pair(*new).map_err(Failure::run_time)?;
            }
            interface.pairs = wanted;
        }
        Ok(())
    }
}

fn udp_config(config: &Config) -> UdpConfig {
    let mut udp = UdpConfig::new(config.listen());
    udp.steering = STEERING;
    udp.send = match config.io.udp_send {
        UdpSend::Gso => SendMode::Gso,
        UdpSend::Sendmmsg => SendMode::Sendmmsg,
        UdpSend::Sendmsg => SendMode::Sendmsg,
    };
    if let Some(size) = &config.io.socket_buffer {
        udp.socket_receive_buffer = size.get_ref().0 as usize;
        udp.socket_send_buffer = size.get_ref().0 as usize;
    }
    udp
}

/// The devices that frames to the listen addresses come in by. An explicit mode fails where an address has
/// none that XDP can serve; `auto` says why and leaves the address to the kernel.
fn devices(mode: IoMode, listen: &[SocketAddr], snapshot: &Snapshot) -> Result<Vec<Link>, Failure> {
    let mut found: Vec<Link> = Vec::new();
    if mode == IoMode::Udp {
        return Ok(found);
    }
    for address in listen {
        match devices_of(address.ip(), snapshot) {
            Ok(links) => {
                for link in links {
                    if !found.iter().any(|known| known.index == link.index) {
                        found.push(link);
                    }
                }
            }
            Err(reason) if mode == IoMode::Auto => {
                tracing::info!(listen = %address, "kernel UDP serves this address: {reason}");
            }
            Err(reason) => return Err(Failure::run_time(format!("--io {mode}: {address}: {reason}"))),
        }
    }
    Ok(found)
}

fn devices_of(address: IpAddr, snapshot: &Snapshot) -> Result<Vec<Link>, Reason> {
    if !address.is_unspecified() {
        let link = snapshot
            .interface_of(address)
            .ok_or_else(|| Reason("no interface has this address; see `ip address`".into()))?;
        return device(link, snapshot).map(|device| vec![device.clone()]);
    }
    let mut links: Vec<Link> = Vec::new();
    let mut last = Reason("no interface has an address of this family".into());
    for link in snapshot.links() {
        if !snapshot.addresses(link.index).any(|own| own.address.is_ipv4() == address.is_ipv4()) {
            continue;
        }
        match device(link, snapshot) {
            Ok(device) if !links.iter().any(|known| known.index == device.index) => {
                links.push(device.clone())
            }
            Ok(_) => {}
            Err(reason) => last = reason,
        }
    }
    if links.is_empty() { Err(last) } else { Ok(links) }
}

fn device<'a>(link: &Link, snapshot: &'a Snapshot) -> Result<&'a Link, Reason> {
    let device = snapshot
        .device_of(link.index)
        .ok_or_else(|| Reason(format!("the device below {} is in another network namespace", link.name)))?;
    if device.kind == LinkKind::Loopback {
        return Err(Reason("loopback has no AF_XDP path".into()));
    }
    if !device.is_direct() {
        return Err(Reason(format!(
            "frames of {} come in by its members; AF_XDP binds to those",
            device.name
        )));
    }
    Ok(device)
}

/// The pairs that the program on device `index` takes: listen addresses that the device, or a VLAN on it,
/// has; wildcards mean each of its addresses. Link-local ones stay with the kernel, which knows their scope.
fn pairs(listen: &[SocketAddr], snapshot: &Snapshot, index: u32) -> HashSet<SocketAddr> {
    let on_device = |ifindex: u32| snapshot.device_of(ifindex).is_some_and(|device| device.index == index);
    let own: Vec<IpAddr> = snapshot
        .links()
        .iter()
        .filter(|link| on_device(link.index))
        .flat_map(|link| snapshot.addresses(link.index).map(|address| address.address))
        .filter(|address| !matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local()))
        .collect();
    let mut pairs = HashSet::new();
    for address in listen {
        let fits = |candidate: &&IpAddr| {
            **candidate == address.ip()
                || (address.ip().is_unspecified() && candidate.is_ipv4() == address.ip().is_ipv4())
        };
        pairs.extend(own.iter().filter(fits).map(|ip| SocketAddr::new(*ip, address.port())));
    }
    pairs
}

/// Tries the steps of the mode on one interface. `None` when `auto` leaves it to the kernel.
fn open_interface(config: &Config, link: &Link, workers: usize) -> Result<Option<Opened>, Failure> {
    let mode = config.io.mode;
    let segments = udp_segmentation(&link.name).unwrap_or(false);
    for hazard in hazards(&link.name) {
        tracing::warn!(interface = link.name, "{hazard}");
    }
    for step in steps(mode, segments) {
        match try_step(config, link, workers, step) {
            Ok(opened) => {
                tracing::info!(
                    interface = link.name,
                    mode = %opened.interface.obtained,
                    sockets = opened.ports.len(),
                    "express path open"
                );
                return Ok(Some(opened));
            }
            Err(reason) if mode == IoMode::Auto => {
                tracing::info!(interface = link.name, bind = %step.bind, "auto steps down: {reason}");
            }
            Err(reason) => return Err(Failure::run_time(format!("--io {mode}: {reason}"))),
        }
    }
    tracing::info!(interface = link.name, "kernel UDP serves this interface");
    Ok(None)
}

fn try_step(config: &Config, link: &Link, workers: usize, step: Step) -> Result<Opened, Reason> {
    let reason = |error: &dyn fmt::Display| Reason(error.to_string());
    let queues = channels(&link.name).map_or(link.rx_queues, |channels| channels.rx).max(1);
    let redirect =
        Redirect::load(&Options { queues, ..Options::default() }).map_err(|error| reason(&error))?;
    let existing = if config.io.replace { Existing::Replace } else { Existing::Refuse };
    let attachment = redirect.attach(link.index, step.attach, existing).map_err(|error| reason(&error))?;
    let mut ports = Vec::new();
    let mut zero_copy = true;
    for queue in 0..queues {
        let mut port = PortConfig { mode: step.bind, ..PortConfig::new(&link.name, queue) };
        if let Some(frames) = &config.io.frames {
            (port.rx_ring, port.tx_ring) = (frames.get_ref() / 2, frames.get_ref() / 2);
        }
        let port = Port::open(port, redirect.xsk_map()).map_err(|error| reason(&error))?;
        zero_copy &= port.mode() == Some(ObtainedMode::ZeroCopy);
        ports.push((queue as usize % workers, port));
    }
    let interface = Interface {
        index: link.index,
        name: link.name.clone(),
        obtained: step.obtained(zero_copy),
        pairs: HashSet::new(),
        redirect,
        attachment,
        lost: false,
    };
    Ok(Opened { interface, ports, transmit: step.transmit })
}
