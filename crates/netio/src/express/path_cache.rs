//! Headers ready to write, by flow; and which stale neighbours were reminded when.
//!
//! A burst costs one look-up here, its packets none. Entries are of fixed number and overwrite each other,
//! so the cache needs no maintenance and cannot grow. An entry is good for the path that it was compiled
//! for; another path (a neighbour's new address, another route) compiles it anew.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use expressway_wire::{BuildError, MacAddr, UdpHeaders, UdpTemplate};

use crate::io::Flow;
use crate::route::{Path, Resolution, Resolver};

/// Flows remembered: about 256 KiB, and enough that the flows of one turn rarely meet.
const FLOWS: usize = 1024;
/// Neighbours remembered.
const NEIGHBOURS: usize = 256;
/// How often the kernel is reminded of a neighbour that it has not confirmed: its own probes of a
/// neighbour in use are a second apart (`retrans_time_ms`, RFC 4861 RETRANS_TIMER).
const REMIND_EVERY: Duration = Duration::from_secs(1);

/// Knows the way of a datagram; [`Resolver`] outside of tests.
pub trait Routes {
    /// The way from `local` to `remote`.
    fn resolve(&mut self, local: IpAddr, remote: IpAddr) -> Resolution;
}

impl Routes for Resolver {
    fn resolve(&mut self, local: IpAddr, remote: IpAddr) -> Resolution {
        Resolver::resolve(self, local, remote)
    }
}

/// Compiled headers of one flow.
#[derive(Clone, Copy, Debug)]
struct Entry {
    flow: Flow,
    path: Path,
    template: UdpTemplate,
}

/// Compiled headers by flow.
#[derive(Debug)]
pub(super) struct PathCache {
    entries: Box<[Option<Entry>]>,
    /// Keyed by the process, so that no peer can choose its slot.
    hasher: RandomState,
    ttl: u8,
}

impl PathCache {
    /// An empty cache of headers with that TTL or hop limit.
    pub(super) fn new(ttl: u8) -> Self {
        Self { entries: vec![None; FLOWS].into_boxed_slice(), hasher: RandomState::new(), ttl }
    }

    /// A number that spreads flows: the cache slot, the flow label and the choice among queues come of it.
    #[inline]
    pub(super) fn hash(&self, flow: &Flow) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hash_address(&mut hasher, &flow.local);
        hash_address(&mut hasher, &flow.remote);
        hasher.finish()
    }

    /// The headers of `flow` along `path`. `hash` is the flow's.
    ///
    /// # Errors
    /// The field that does not fit a frame of ours.
    #[inline]
    pub(super) fn template(
        &mut self,
        flow: &Flow,
        path: &Path,
        hash: u64,
    ) -> Result<&UdpTemplate, BuildError> {
        let slot = &mut self.entries[hash as usize % FLOWS];
        let fresh = matches!(slot, Some(entry) if entry.flow == *flow && same_frames(&entry.path, path));
        if !fresh {
            let template = compile(flow, path, hash, self.ttl)?;
            *slot = Some(Entry { flow: *flow, path: *path, template });
        }
        slot.as_ref().map(|entry| &entry.template).ok_or(BuildError::Address)
    }
}

/// True if frames for both paths carry the same headers.
fn same_frames(one: &Path, other: &Path) -> bool {
    one.source_mac == other.source_mac
        && one.destination_mac == other.destination_mac
        && one.vlan == other.vlan
        && one.source == other.source
}

#[cold]
fn compile(flow: &Flow, path: &Path, hash: u64, ttl: u8) -> Result<UdpTemplate, BuildError> {
    let source = match flow.local.ip().is_unspecified() {
        true => SocketAddr::new(path.source, flow.local.port()),
        false => flow.local,
    };
    let mut headers = UdpHeaders::new(path.source_mac, path.destination_mac, source, flow.remote);
    headers.vlan = path.vlan;
    headers.dscp = flow.dscp;
    headers.ecn = flow.ecn as u8;
    headers.ttl = ttl;
    // The same for all packets of a flow, not 0, and not to be guessed (RFC 6437, section 3).
    headers.flow_label = ((hash >> 44) as u32).max(1);
    headers.template()
}

fn hash_address(hasher: &mut impl Hasher, address: &SocketAddr) {
    match address.ip() {
        IpAddr::V4(ip) => hasher.write_u64(u64::from(ip.to_bits()) << 16 | u64::from(address.port())),
        IpAddr::V6(ip) => {
            hasher.write(&ip.octets());
            hasher.write_u16(address.port());
        }
    }
}

/// When each stale neighbour was last sent to through the kernel.
///
/// Frames of ours do not pass the kernel's neighbour table, so it never learns that an entry is in use: the
/// entry turns stale, and then vanishes. One burst a second through the kernel socket makes the kernel
/// confirm it (STALE, DELAY, PROBE, REACHABLE: RFC 4861, section 7.3.2), and follow a hardware address that
/// has changed.
#[derive(Debug)]
pub(super) struct Reminders {
    slots: Box<[Option<(u32, MacAddr, Instant)>]>,
}

impl Reminders {
    pub(super) fn new() -> Self {
        Self { slots: vec![None; NEIGHBOURS].into_boxed_slice() }
    }

    /// True if this burst to a stale neighbour is to take the kernel socket. Two neighbours in one slot
    /// take turns.
    pub(super) fn is_due(&mut self, path: &Path, now: Instant) -> bool {
        let mac = path.destination_mac.0;
        let place = mac.iter().fold(path.egress as usize, |sum, byte| sum.wrapping_mul(31) + *byte as usize);
        let slot = &mut self.slots[place % NEIGHBOURS];
        if matches!(slot, Some((_, _, last)) if now.saturating_duration_since(*last) < REMIND_EVERY) {
            return false;
        }
        *slot = Some((path.egress, path.destination_mac, now));
        true
    }
}
