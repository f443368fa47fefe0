//! Turns a received frame into its datagram.

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use expressway_wire::parse_udp;

use crate::io::{Datagram, Ecn, Hints, IoStats, TimeSource, Timestamp, Via};
use crate::readers::{PacketInfo, abi};
use crate::xsk::metadata::{self, METADATA_LEN};

/// What of a received packet readers may have, and what they are told of it.
pub(super) struct Lendable {
    /// Which bytes of those that were handed over.
    pub(super) part: Range<usize>,
    pub(super) info: PacketInfo,
}

/// Where a frame came in, and what is to be checked of it.
#[derive(Clone, Copy)]
pub(super) struct Origin {
    pub(super) via: Via,
    pub(super) ifindex: u32,
    pub(super) verify: bool,
    /// What lies in front of packets of the frames that are handed over.
    pub(super) prefix: Prefix,
}

/// What lies in front of a packet.
#[derive(Clone, Copy)]
pub(super) enum Prefix {
    None,
    /// Room for a description, which nobody wants.
    Unread,
    /// A description, if it has this cookie.
    Description(u32),
}

/// Finds the datagram in a received frame and hands it over where it lies. `None` if it is dropped; else what readers may
/// have of it: the packet to the end of its payload, whose start is told by the flags.
#[inline]
pub(super) fn deliver(
    frame: &mut [u8],
    origin: Origin,
    stats: &mut IoStats,
    sink: &mut dyn FnMut(Datagram<'_>),
) -> Option<Lendable> {
    let start = if matches!(origin.prefix, Prefix::None) { 0 } else { METADATA_LEN };
    let (hints, frame) = match (origin.prefix, frame.split_first_chunk_mut()) {
        (Prefix::None, _) => (Hints::default(), frame),
        (Prefix::Unread, Some((_, frame))) => (Hints::default(), frame),
        (Prefix::Description(cookie), Some((area, frame))) => (metadata::take(area, cookie), frame),
        (_, None) => (Hints::default(), &mut [][..]),
    };
    let Ok(layout) = parse_udp(frame) else {
        stats.dropped_malformed += 1;
        return None;
    };
    // The kernel's own check (`fib_validate_source`) is passed by: an answer to such a source would reach
    // services of this machine that trust it.
    if is_martian(layout.source.ip()) || layout.source.ip() == layout.destination.ip() {
        stats.dropped_malformed += 1;
        return None;
    }
    if origin.verify && layout.verify_checksum(frame).is_err() {
        stats.dropped_checksum += 1;
        return None;
    }
    let range = layout.payload();
    let lendable = Lendable { part: start..start + range.end, info: info(range.start, hints.timestamp) };
    let payload = &mut frame[range];
    stats.rx_xsk_packets += 1;
    stats.rx_xsk_bytes += payload.len() as u64;
    let (mut remote, mut local) = (layout.source, layout.destination);
    if layout.vlan.is_empty() {
        scope(&mut remote, origin.ifindex);
        scope(&mut local, origin.ifindex);
    }
    sink(Datagram { payload, remote, local, ecn: Ecn::from_tos(layout.tos), via: origin.via, hints });
    Some(lendable)
}

/// What readers are told of a packet whose payload starts there.
#[inline]
pub(super) fn info(payload: usize, timestamp: Option<Timestamp>) -> PacketInfo {
    let (timestamp, by) = match timestamp {
        Some(Timestamp { nanoseconds, source: TimeSource::Device }) => (nanoseconds, abi::STAMP_NIC),
        Some(Timestamp { nanoseconds, source: TimeSource::Program }) => (nanoseconds, abi::STAMP_XDP),
        // The kernel stamps no frames.
        Some(Timestamp { source: TimeSource::Kernel, .. }) | None => (0, 0),
    };
    // Headers are 128 bytes at most.
    PacketInfo { timestamp, flags: payload as u16 | by }
}

/// True for a source address that no packet on a wire may have (RFC 1812, section 5.3.7; RFC 4291, sections
/// 2.5.2, 2.5.3 and 2.7).
#[inline]
pub(super) fn is_martian(source: IpAddr) -> bool {
    match source {
        IpAddr::V4(ip) => matches!(ip.octets()[0], 0 | 127 | 224..),
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unspecified() || ip.is_multicast(),
    }
}

/// Says on which link a link-local address is, as the kernel's sockets do.
#[inline]
fn scope(address: &mut SocketAddr, ifindex: u32) {
    if let SocketAddr::V6(v6) = address
        && v6.ip().is_unicast_link_local()
    {
        v6.set_scope_id(ifindex);
    }
}
