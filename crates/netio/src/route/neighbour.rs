//! Neighbours: the hardware addresses of next hops.

use std::net::IpAddr;

use expressway_wire::MacAddr;
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};

/// A neighbour with a usable hardware address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Its hardware address.
    pub mac: MacAddr,
    /// The kernel has not confirmed it lately (STALE, DELAY, PROBE); usable all the same.
    pub stale: bool,
}

/// Interface index and address of a neighbour.
pub(super) type NeighbourKey = (u32, IpAddr);

/// Reads a neighbour message: who it is about, and the neighbour if it is usable.
pub(super) fn decode(message: &NeighbourMessage) -> Option<(NeighbourKey, Option<Neighbour>)> {
    if message.header.flags.contains(NeighbourFlags::Proxy) {
        return None;
    }
    let (mut address, mut mac) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(ip)) => address = Some(IpAddr::V4(*ip)),
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(ip)) => address = Some(IpAddr::V6(*ip)),
            NeighbourAttribute::LinkLayerAddress(bytes) => {
                mac = <[u8; 6]>::try_from(bytes.as_slice()).ok().map(MacAddr);
            }
            _ => {}
        }
    }
    let stale = match message.header.state {
        NeighbourState::Reachable | NeighbourState::Permanent | NeighbourState::Noarp => Some(false),
        NeighbourState::Stale | NeighbourState::Delay | NeighbourState::Probe => Some(true),
        _ => None,
    };
    let neighbour = mac.zip(stale).map(|(mac, stale)| Neighbour { mac, stale });
    Some(((message.header.ifindex, address?), neighbour))
}
