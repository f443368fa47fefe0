//! The router's counters: names and meanings for people and metrics.
//!
//! The numbering is that of `enum forward_counter` in `bpf/include/forward_shared.h`, by BTF; this file does not
//! compile if it differs.

use std::fmt;
use std::ops::{Add, Index};

use libbpf_rs::{MapCore, MapFlags, MapHandle};

pub use crate::counters::Verdict;
use crate::counters::reasons;
use crate::error::Error;
use crate::skeleton::forward::types::{forward_counter, forward_egress, forward_stats, forward_traffic};

reasons! {
    /// The reason for a packet's verdict. Each packet counts under exactly one.
    ForwardCounter: forward_counter::FORWARD_COUNTERS, Verdict;

    /// Sent on to its next hop.
    Forwarded = FORWARD_SENT, Verdict::Redirect, "forwarded";
    /// Copied to the receivers of its feed.
    Replicated = FORWARD_REPLICATED, Verdict::Redirect, "replicated";
    /// Came by an interface or VLAN that is not configured.
    PassOtherPort = FORWARD_PASS_OTHER_PORT, Verdict::Pass, "other_interface";
    /// More than two VLAN tags.
    PassVlanDepth = FORWARD_PASS_VLAN_DEPTH, Verdict::Pass, "vlan_depth";
    /// The destination MAC is not the interface's.
    PassOtherMac = FORWARD_PASS_OTHER_MAC, Verdict::Pass, "other_mac";
    /// Neither IPv4 nor IPv6.
    PassNotIp = FORWARD_PASS_NOT_IP, Verdict::Pass, "not_ip";
    /// The frame ends before the packet, or its headers are in several buffers.
    PassTruncated = FORWARD_PASS_TRUNCATED, Verdict::Pass, "truncated";
    /// The IP header contradicts itself, or its checksum is wrong.
    PassMalformed = FORWARD_PASS_MALFORMED, Verdict::Pass, "malformed";
    /// More bytes follow the packet than Ethernet pads.
    PassTrailer = FORWARD_PASS_TRAILER, Verdict::Pass, "trailer";
    /// IPv4 options.
    PassIpv4Options = FORWARD_PASS_IPV4_OPTIONS, Verdict::Pass, "ipv4_options";
    /// IPv6 extension headers that the kernel looks at.
    PassIpv6Extension = FORWARD_PASS_IPV6_EXTENSION, Verdict::Pass, "ipv6_extension";
    /// The destination is never forwarded: multicast, broadcast, loopback, link-local.
    PassDestination = FORWARD_PASS_DESTINATION, Verdict::Pass, "destination";
    /// The source is never forwarded or copied, or is an address of this host.
    PassSource = FORWARD_PASS_SOURCE, Verdict::Pass, "source";
    /// The source is not routed as rp_filter demands.
    PassReversePath = FORWARD_PASS_REVERSE_PATH, Verdict::Pass, "reverse_path";
    /// The TTL or hop limit ends here.
    PassTtl = FORWARD_PASS_TTL, Verdict::Pass, "ttl";
    /// An ICMP error.
    PassIcmpError = FORWARD_PASS_ICMP_ERROR, Verdict::Pass, "icmp_error";
    /// For this host, or without a route.
    PassNotForwarded = FORWARD_PASS_NOT_FORWARDED, Verdict::Pass, "local_or_no_route";
    /// The route is of type unreachable or prohibit.
    PassRefused = FORWARD_PASS_REFUSED, Verdict::Pass, "refused";
    /// Forwarding is off in the kernel.
    PassDisabled = FORWARD_PASS_DISABLED, Verdict::Pass, "forwarding_off";
    /// The route has a tunnel.
    PassTunnel = FORWARD_PASS_TUNNEL, Verdict::Pass, "tunnel";
    /// The hardware address of the next hop is unknown.
    PassNeighbour = FORWARD_PASS_NEIGHBOUR, Verdict::Pass, "neighbour";
    /// Larger than the MTU of the route, or of a route to a receiver of its feed.
    PassTooLarge = FORWARD_PASS_TOO_LARGE, Verdict::Pass, "too_large";
    /// The route leaves by an interface that is not configured or cannot send redirected frames.
    PassOtherEgress = FORWARD_PASS_OTHER_EGRESS, Verdict::Pass, "other_egress";
    /// In several buffers, which the device cannot send or which cannot be copied.
    PassMultiBuffer = FORWARD_PASS_MULTI_BUFFER, Verdict::Pass, "multi_buffer";
    /// No room for a VLAN tag in front of the frame.
    PassNoRoom = FORWARD_PASS_NO_ROOM, Verdict::Pass, "no_room";
    /// The route lookup failed for another reason.
    PassLookup = FORWARD_PASS_LOOKUP, Verdict::Pass, "lookup";
    /// No receiver of its feed can be reached.
    PassNoReceiver = FORWARD_PASS_NO_RECEIVER, Verdict::Pass, "no_receiver";
    /// The route is a blackhole.
    DropBlackhole = FORWARD_DROP_BLACKHOLE, Verdict::Drop, "blackhole";
}

const COUNTERS: usize = ForwardCounter::ALL.len();

const _: () = {
    assert!(size_of::<forward_stats>() == (COUNTERS + 1) * size_of::<u64>());
    assert!(size_of::<forward_traffic>() == 2 * size_of::<u64>());
    assert!(size_of::<forward_egress>() == 3 * size_of::<u64>());
    let mut index = 0;
    while index < COUNTERS {
        assert!(ForwardCounter::ALL[index] as usize == index, "the order differs from forward_shared.h");
        index += 1;
    }
};

impl fmt::Display for ForwardCounter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.verdict().name(), self.name())
    }
}

/// What became of the packets of one interface since load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForwardCounts {
    packets: [u64; COUNTERS],
    /// Bytes of those that were forwarded or replicated, as received.
    pub sent_bytes: u64,
}

impl Default for ForwardCounts {
    fn default() -> Self {
        Self { packets: [0; COUNTERS], sent_bytes: 0 }
    }
}

impl ForwardCounts {
    /// Each counter with its packets, in the order of [`ForwardCounter::ALL`].
    pub fn iter(&self) -> impl Iterator<Item = (ForwardCounter, u64)> + '_ {
        ForwardCounter::ALL.into_iter().zip(self.packets)
    }

    /// All packets.
    pub fn total(&self) -> u64 {
        self.packets.iter().sum()
    }

    /// The difference to `earlier`, a reading of the same program.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut difference = *self;
        for (packets, before) in difference.packets.iter_mut().zip(earlier.packets) {
            *packets = packets.saturating_sub(before);
        }
        difference.sent_bytes = self.sent_bytes.saturating_sub(earlier.sent_bytes);
        difference
    }
}

impl Index<ForwardCounter> for ForwardCounts {
    type Output = u64;

    fn index(&self, counter: ForwardCounter) -> &u64 {
        &self.packets[counter as usize]
    }
}

impl Add for ForwardCounts {
    type Output = Self;

    fn add(mut self, other: Self) -> Self {
        self.packets.iter_mut().zip(other.packets).for_each(|(sum, packets)| *sum += packets);
        self.sent_bytes += other.sent_bytes;
        self
    }
}

/// Packets and their bytes, from the Ethernet header on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrafficCounts {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

/// What a device made of the frames that XDP programs gave it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EgressCounts {
    /// Taken.
    pub sent: u64,
    /// Not taken: its ring was full, it is down, or it sends no such frames. They are lost.
    pub refused: u64,
    /// Copies of a feed for which there was no receiver.
    pub unclaimed: u64,
}

/// A value that consists of 64-bit words.
pub(super) trait Words: Sized + Default {
    fn add_words(self, words: &[u64]) -> Option<Self>;
}

impl Words for ForwardCounts {
    fn add_words(self, words: &[u64]) -> Option<Self> {
        let (sent_bytes, packets) = words.split_last()?;
        Some(self + Self { packets: packets.try_into().ok()?, sent_bytes: *sent_bytes })
    }
}

impl Words for TrafficCounts {
    fn add_words(self, words: &[u64]) -> Option<Self> {
        let [packets, bytes] = words.try_into().ok()?;
        Some(Self { packets: self.packets + packets, bytes: self.bytes + bytes })
    }
}

impl Words for EgressCounts {
    fn add_words(self, words: &[u64]) -> Option<Self> {
        let [sent, refused, unclaimed] = words.try_into().ok()?;
        Some(Self {
            sent: self.sent + sent,
            refused: self.refused + refused,
            unclaimed: self.unclaimed + unclaimed,
        })
    }
}

/// The sum over CPUs of an entry; `None` without one.
pub(super) fn read_hash<T: Words>(map: &MapHandle, name: &'static str, key: u32) -> Result<Option<T>, Error> {
    let cpus = map
        .lookup_percpu(&key.to_ne_bytes(), MapFlags::ANY)
        .map_err(|source| Error::Map { map: name, source })?;
    let Some(cpus) = cpus else { return Ok(None) };
    let sum = cpus.iter().try_fold(T::default(), |sum, value| {
        let (chunks, rest) = value.as_chunks::<8>();
        let words: Vec<u64> = chunks.iter().map(|chunk| u64::from_ne_bytes(*chunk)).collect();
        rest.is_empty().then(|| sum.add_words(&words)).flatten()
    });
    sum.map(Some).ok_or(Error::Layout { map: name })
}

/// The same of an array, which has every entry up to its length.
pub(super) fn read<T: Words>(map: &MapHandle, name: &'static str, key: u32) -> Result<T, Error> {
    read_hash(map, name, key)?.ok_or(Error::Layout { map: name })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn labels_are_unique_in_snake_case() {
        let labels: HashSet<_> = ForwardCounter::ALL.iter().map(|counter| counter.name()).collect();
        assert_eq!(labels.len(), COUNTERS);
        for label in labels {
            assert!(label.bytes().all(|byte| byte.is_ascii_lowercase() || b"_46".contains(&byte)), "{label}");
        }
    }

    #[test]
    fn drops_are_those_from_the_first_drop_on() {
        let first = forward_counter::FORWARD_DROP_BLACKHOLE.0;
        for counter in ForwardCounter::ALL {
            assert_eq!(counter.verdict() == Verdict::Drop, counter as u32 >= first, "{counter}");
        }
    }

    #[test]
    fn values_of_another_size_are_refused() {
        let words: Vec<u64> = (0..=COUNTERS as u64).collect();
        let counts = ForwardCounts::default().add_words(&words).unwrap();
        assert_eq!((counts[ForwardCounter::Replicated], counts.sent_bytes), (1, COUNTERS as u64));
        assert_eq!(counts.since(&counts).total(), 0);
        assert!(ForwardCounts::default().add_words(&words[1..]).is_none());
        assert!(TrafficCounts::default().add_words(&words[..3]).is_none());
        assert!(EgressCounts::default().add_words(&words[..2]).is_none());
    }
}
