//! What is in the maps of the programs that count flows; layouts are those of `bpf/include/flows_shared.h`.

use std::net::{IpAddr, Ipv6Addr};

/// Entries of a set, and bytes of an entry and of a set.
pub(super) const WAYS: usize = 8;
const ENTRY: usize = 176;
pub(super) const SET: usize = WAYS * ENTRY;
/// Bytes of a key, and of the longest connection ID.
const KEY: usize = 40;
const CID: usize = 20;
/// What a packet may have become.
pub const FLOW_PATHS: usize = 4;

/// What becomes of a packet; each is counted under one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FlowPath {
    /// To or from an AF_XDP socket.
    AfXdp = 0,
    /// To or from the kernel's stack.
    Kernel = 1,
    /// Sent back or forwarded by an XDP program.
    Xdp = 2,
    /// Dropped by an XDP program, or because its redirect failed.
    Dropped = 3,
}

/// Packets and their octets on the wire, by [`FlowPath`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowCounts {
    /// How many.
    pub packets: [u64; FLOW_PATHS],
    /// How long all together, from the Ethernet header on, without FCS.
    pub bytes: [u64; FLOW_PATHS],
}

impl FlowCounts {
    pub(super) const SIZE: usize = 2 * FLOW_PATHS * 8;

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut counts = Self::default();
        for path in 0..FLOW_PATHS {
            counts.packets[path] = word(bytes, path * 8)?;
            counts.bytes[path] = word(bytes, (FLOW_PATHS + path) * 8)?;
        }
        Some(counts)
    }

    /// Adds to each number.
    pub fn add(&mut self, other: &Self) {
        for path in 0..FLOW_PATHS {
            self.packets[path] = self.packets[path].wrapping_add(other.packets[path]);
            self.bytes[path] = self.bytes[path].wrapping_add(other.bytes[path]);
        }
    }

    /// What was counted since `earlier`; numbers that were taken back are 0.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut counts = *self;
        for path in 0..FLOW_PATHS {
            counts.packets[path] = counts.packets[path].saturating_sub(earlier.packets[path]);
            counts.bytes[path] = counts.bytes[path].saturating_sub(earlier.bytes[path]);
        }
        counts
    }

    /// Whether nothing was counted.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        *self == Self::default()
    }
}

/// What packets of a flow have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowKey {
    /// Leaving the host.
    pub out: bool,
    /// The ethertype behind VLAN tags; 0 if not even that could be read.
    pub ethertype: u16,
    /// IP's protocol number; 0 with other ethertypes.
    pub protocol: u8,
    /// The source: IPv6, or IPv4 mapped into it; with other ethertypes a MAC address and zeros.
    pub source: [u8; 16],
    /// The destination likewise.
    pub destination: [u8; 16],
    /// 0 where there is none, or it isn't known: in fragments behind the first.
    pub source_port: u16,
    /// As `source_port`.
    pub destination_port: u16,
}

impl FlowKey {
    const IPV4: u16 = 0x0800;
    const IPV6: u16 = 0x86dd;

    fn from_bytes(bytes: &[u8; KEY]) -> Self {
        let half = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let address = |at: usize| std::array::from_fn(|byte| bytes[at + byte]);
        Self {
            source: address(0),
            destination: address(16),
            source_port: half(32),
            destination_port: half(34),
            ethertype: half(36),
            protocol: bytes[38],
            out: bytes[39] != 0,
        }
    }

    /// Whether it is IP with addresses.
    #[must_use]
    pub fn is_ip(&self) -> bool {
        matches!(self.ethertype, Self::IPV4 | Self::IPV6)
    }

    /// An address of a key of IP as such.
    #[must_use]
    pub fn address(octets: [u8; 16]) -> IpAddr {
        Ipv6Addr::from(octets).to_canonical()
    }

    /// The same flow's packets in the other direction.
    #[must_use]
    pub fn reverse(&self) -> Self {
        Self {
            out: !self.out,
            source: self.destination,
            destination: self.source,
            source_port: self.destination_port,
            destination_port: self.source_port,
            ..*self
        }
    }
}

/// A flow in its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowEntry {
    /// The place: it has one flow at a time.
    pub place: u32,
    /// When the flow took it, by the kernel's monotonic clock in nanoseconds: another number, another tenure.
    pub born: u64,
    /// Whose packets.
    pub key: FlowKey,
    /// Since then.
    pub counts: FlowCounts,
    /// Of these, packets that the kernel's stack dropped.
    pub dropped: u64,
    /// The destination connection ID of the last packet that looked like QUIC; empty without.
    pub cid: Vec<u8>,
    /// A long header of QUIC has been seen.
    pub quic: bool,
}

/// The flows among `values`, which are sets one behind the other. One that was changing hands is left out.
pub(super) fn entries(values: &[u8]) -> Vec<FlowEntry> {
    values
        .as_chunks::<ENTRY>()
        .0
        .iter()
        .enumerate()
        .filter_map(|(place, bytes)| {
            let born = word(bytes, 0)?;
            if born == 0 || word(bytes, ENTRY - 8)? != born {
                return None;
            }
            let key = bytes.get(8..8 + KEY)?.try_into().ok()?;
            let at = 8 + KEY;
            let after = at + FlowCounts::SIZE;
            let cid = after + 32;
            let length = usize::from(bytes[cid + CID]).min(CID);
            Some(FlowEntry {
                place: u32::try_from(place).ok()?,
                born,
                key: FlowKey::from_bytes(key),
                counts: FlowCounts::from_bytes(&bytes[at..after])?,
                dropped: word(bytes, after)?,
                cid: bytes[cid..cid + length].to_vec(),
                quic: bytes[cid + CID + 1] != 0,
            })
        })
        .collect()
}

/// What was counted in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowTotals {
    /// Received.
    pub received: FlowCounts,
    /// Sent.
    pub sent: FlowCounts,
    /// Packets whose flow found no place.
    pub not_held: u64,
    /// Flows that gave way to others.
    pub evictions: u64,
    /// Drops whose reason found no place.
    pub drops_unlisted: u64,
}

impl FlowTotals {
    /// Adds one CPU's value of `totals_map`; `None` if it does not have the size of the struct.
    pub(super) fn add(&mut self, value: &[u8]) -> Option<()> {
        let (size, rest) = (FlowCounts::SIZE, 2 * FlowCounts::SIZE);
        self.received.add(&FlowCounts::from_bytes(value.get(..size)?)?);
        self.sent.add(&FlowCounts::from_bytes(value.get(size..rest)?)?);
        self.not_held += word(value, rest)?;
        self.evictions += word(value, rest + 8)?;
        self.drops_unlisted += word(value, rest + 16)?;
        (value.len() == rest + 24).then_some(())
    }
}

const QUEUES: usize = super::FlowPrograms::QUEUES;
/// Elements of `queues_map` that a device has.
pub(super) const QUEUES_OF_DEVICE: usize = 2 * (QUEUES + 1);

/// What passed a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowQueue {
    /// The device's index.
    pub device: u32,
    /// A transmit queue.
    pub out: bool,
    /// Its number; `None`: packets whose queue is not known, or beyond the 256th.
    pub queue: Option<u32>,
    /// All of its packets.
    pub counts: FlowCounts,
}

/// The queues with packets among `values`, which are the elements of `queues_map` with a value for each CPU.
pub(super) fn queues(values: &[u8], devices: &[u32], cpus: usize) -> Vec<FlowQueue> {
    let element = FlowCounts::SIZE * cpus.max(1);
    let mut found = Vec::new();
    for (number, element) in values.chunks_exact(element).enumerate() {
        let mut counts = FlowCounts::default();
        for cpu in element.chunks_exact(FlowCounts::SIZE).filter_map(FlowCounts::from_bytes) {
            counts.add(&cpu);
        }
        let (place, queue) = (number / (QUEUES + 1), number % (QUEUES + 1));
        let Some(device) = devices.get(place / 2).filter(|_| !counts.is_zero()) else { continue };
        found.push(FlowQueue {
            device: *device,
            out: place % 2 == 1,
            queue: u32::try_from(queue).ok().filter(|_| queue < QUEUES),
            counts,
        });
    }
    found
}

/// Who dropped, and what the reason's number means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DropKind {
    /// An XDP program: its verdict.
    Verdict,
    /// A redirect that failed: a positive `errno`.
    Redirect,
    /// The kernel's stack: `enum skb_drop_reason`.
    Kernel,
    /// An XDP program of ours: the number of an [`XdpDrop`](crate::XdpDrop).
    Program,
    /// A device that did not take what was redirected to it: 0.
    Egress,
}

/// Drops for one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DropCounts {
    /// Who dropped.
    pub kind: DropKind,
    /// Why, as `kind` says.
    pub reason: u32,
    /// How many packets.
    pub packets: u64,
    /// How long all together.
    pub bytes: u64,
}

impl DropCounts {
    pub(super) fn from_values(key: &[u8], values: &[Vec<u8>]) -> Option<Self> {
        let kind = match u32::from_ne_bytes(key.get(..4)?.try_into().ok()?) {
            0 => DropKind::Verdict,
            1 => DropKind::Redirect,
            2 => DropKind::Kernel,
            3 => DropKind::Program,
            4 => DropKind::Egress,
            _ => return None,
        };
        let reason = u32::from_ne_bytes(key.get(4..8)?.try_into().ok()?);
        let mut counts = Self { kind, reason, packets: 0, bytes: 0 };
        for value in values {
            counts.packets += word(value, 0)?;
            counts.bytes += word(value, 8)?;
        }
        Some(counts)
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.try_into().ok().map(u64::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::skeleton::flows::types;

    const _: () = assert!(size_of::<types::flow_entry>() == ENTRY);
    const _: () = assert!(std::mem::offset_of!(types::flow_entry, counts) == 48);
    const _: () = assert!(std::mem::offset_of!(types::flow_entry, dropped) == 112);
    const _: () = assert!(std::mem::offset_of!(types::flow_entry, cid) == 144);
    const _: () = assert!(std::mem::offset_of!(types::flow_entry, whole) == 168);
    const _: () = assert!(size_of::<types::flow_set>() == SET);

    fn entry(born: u64, whole: u64) -> Vec<u8> {
        let mut bytes = vec![0; ENTRY];
        bytes[..8].copy_from_slice(&born.to_ne_bytes());
        bytes[ENTRY - 8..].copy_from_slice(&whole.to_ne_bytes());
        bytes[18..20].fill(0xff);
        bytes[20..24].copy_from_slice(&[192, 0, 2, 1]);
        bytes[40..42].copy_from_slice(&443u16.to_be_bytes());
        bytes[44..46].copy_from_slice(&0x0800u16.to_be_bytes());
        bytes[46] = 17;
        bytes[48 + 8..48 + 16].copy_from_slice(&5u64.to_ne_bytes());
        bytes[112..120].copy_from_slice(&2u64.to_ne_bytes());
        bytes[144..148].copy_from_slice(&[1, 2, 3, 4]);
        bytes[164] = 3;
        bytes[165] = 1;
        bytes
    }

    #[test]
    fn entries_are_taken_apart_and_torn_ones_left_out() {
        let values = [vec![0; ENTRY], entry(7, 7), entry(8, 7), entry(8, 0)].concat();
        let entries = entries(&values);
        let [found] = &entries[..] else { panic!("{entries:?}") };
        assert_eq!((found.place, found.born, found.dropped), (1, 7, 2));
        assert_eq!(FlowKey::address(found.key.source).to_string(), "192.0.2.1");
        assert_eq!((found.key.source_port, found.key.protocol, found.key.out), (443, 17, false));
        assert_eq!(found.counts.packets[FlowPath::Kernel as usize], 5);
        assert_eq!((found.cid.as_slice(), found.quic), (&[1u8, 2, 3][..], true));
        assert_eq!(found.key.reverse().reverse(), found.key);
    }

    #[test]
    fn queues_are_told_by_device_and_direction_and_cpus_are_summed() {
        let cpus = 3;
        let mut values = vec![0; 2 * QUEUES_OF_DEVICE * FlowCounts::SIZE * cpus];
        let mut put = |number: usize, cpu: usize, packets: u64| {
            let at = (number * cpus + cpu) * FlowCounts::SIZE + 8 * FlowPath::Kernel as usize;
            values[at..at + 8].copy_from_slice(&packets.to_ne_bytes());
        };
        put(3, 0, 5);
        put(3, 2, 6);
        put(QUEUES + 1, 1, 7);
        put(QUEUES_OF_DEVICE + QUEUES, 1, 8);
        let found: Vec<_> = queues(&values, &[4, 9], cpus)
            .into_iter()
            .map(|one| (one.device, one.out, one.queue, one.counts.packets[FlowPath::Kernel as usize]))
            .collect();
        assert_eq!(found, [(4, false, Some(3), 11), (4, true, Some(0), 7), (9, false, None, 8)]);
    }

    #[test]
    fn totals_of_another_size_are_refused() {
        let mut totals = FlowTotals::default();
        assert_eq!(totals.add(&[0; 151]), None);
        assert_eq!(totals.add(&[0; 152]), Some(()));
        assert_eq!(totals.add(&[0; 160]), None);
    }
}
