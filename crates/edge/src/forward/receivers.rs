//! Turns configured receivers into frames: routes, neighbours, memberships.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use expressway_netio::route::{Path, Resolution, Resolver};
use expressway_xbpf::forward::{Receiver, Tag};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};

use super::config::To;

/// How often the kernel is asked to resolve or confirm one neighbour.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);
/// Neighbours probed in a second; the others have their turn later.
const PROBES: usize = 64;

/// Asks the kernel to resolve and confirm neighbours. Forwarded packets do neither, as they do not pass its stack: a
/// neighbour that moved would be sent to for ever, and one that is not used by the kernel would be forgotten.
#[derive(Default)]
pub(super) struct Probes {
    last: HashMap<(u32, IpAddr), Instant>,
    second: Option<Instant>,
    left: usize,
}

impl Probes {
    /// Begins a turn.
    pub(super) fn begin(&mut self, now: Instant) {
        self.last.retain(|_, at| now.duration_since(*at) < PROBE_INTERVAL);
        if self.second.is_none_or(|began| now.duration_since(began) >= Duration::from_secs(1)) {
            (self.second, self.left) = (Some(now), PROBES);
        }
    }

    /// Probes unless that was done lately.
    pub(super) fn probe(&mut self, resolver: &mut Resolver, interface: u32, address: IpAddr, now: Instant) {
        if self.left == 0 || self.last.contains_key(&(interface, address)) {
            return;
        }
        self.left -= 1;
        self.last.insert((interface, address), now);
        if let Err(error) = resolver.probe(interface, address) {
            tracing::debug!(interface, %address, %error, "cannot probe a neighbour");
        }
    }
}

/// Why a receiver gets nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unreached {
    /// No route.
    NoRoute,
    /// Its next hop does not answer (yet).
    NoNeighbour,
    /// The route leaves by an interface that is not configured, or whose device sends no redirected frames.
    OtherEgress(u32),
}

/// The frame that reaches a receiver now. `sends` tells whether the device of an interface may be used.
pub(super) fn resolve(
    resolver: &mut Resolver,
    probes: &mut Probes,
    to: &To,
    sends: impl Fn(&Path) -> bool,
    now: Instant,
) -> Result<Receiver, Unreached> {
    let any = match to.address.ip() {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    match resolver.resolve(to.source.unwrap_or(any), to.address.ip()) {
        Resolution::Ready(path) if sends(&path) => Ok(Receiver {
            destination: to.address,
            source: path.source,
            hop_limit: 0,
            device: path.ifindex,
            source_mac: path.source_mac.0,
            destination_mac: path.destination_mac.0,
            tags: tags(&path),
            mtu: u32::try_from(path.mtu).unwrap_or(u32::MAX),
            slot: 0,
        }),
        Resolution::Ready(path) => Err(Unreached::OtherEgress(path.egress)),
        Resolution::NotDirect { egress, .. } => Err(Unreached::OtherEgress(egress)),
        Resolution::Unresolved { egress, next_hop, .. } => {
            probes.probe(resolver, egress, next_hop, now);
            Err(Unreached::NoNeighbour)
        }
        Resolution::Unreachable => Err(Unreached::NoRoute),
    }
}

fn tags(path: &Path) -> [Option<Tag>; 2] {
    let tag = |at: usize| path.vlan.as_slice().get(at).map(|tag| Tag { protocol: tag.tpid, vlan: tag.id });
    [tag(0), tag(1)]
}

/// Memberships of a feed's group, one socket for each interface: only the kernel can join. Nothing is read from the
/// sockets, which are bound to no port.
#[derive(Default)]
pub(super) struct Memberships {
    joined: HashMap<(IpAddr, u32), OwnedFd>,
}

impl Memberships {
    /// Joins and leaves until those of `wanted` stand. Returns those that could not be joined. The kernel forgets a
    /// membership with its interface, whose index does not come again, so one that stands needs no looking after.
    pub(super) fn set(&mut self, wanted: &[(IpAddr, u32)]) -> Vec<(IpAddr, u32, io::Error)> {
        self.joined.retain(|membership, _| wanted.contains(membership));
        let mut failed = Vec::new();
        for membership in wanted {
            if !self.joined.contains_key(membership) {
                match join(membership.0, membership.1) {
                    Ok(socket) => drop(self.joined.insert(*membership, socket)),
                    Err(error) => failed.push((membership.0, membership.1, error)),
                }
            }
        }
        failed
    }
}

fn join(group: IpAddr, interface: u32) -> io::Result<OwnedFd> {
    let family = if group.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    match group {
        IpAddr::V4(group) => {
            sockopt::set_ip_add_membership_with_ifindex(&socket, &group, &Ipv4Addr::UNSPECIFIED, interface)?;
        }
        IpAddr::V6(group) => sockopt::set_ipv6_add_membership(&socket, &group, interface)?,
    }
    Ok(socket)
}
