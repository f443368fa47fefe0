//! From an address pair to the frame header of the first hop.

use std::net::IpAddr;

use expressway_wire::{MacAddr, VlanTags};

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

/// Resolves for one worker.
pub struct Resolver {}

impl Resolver {
    /// The way from `local` to `remote`.
    pub fn resolve(&mut self, _local: IpAddr, _remote: IpAddr) -> Resolution {
        Resolution::Unreachable
    }

    /// MTU of the first hop from `local` to `remote`, in bytes of IP packet; `None` without a route.
    pub fn mtu(&mut self, _local: IpAddr, _remote: IpAddr) -> Option<usize> {
        None
    }
}
