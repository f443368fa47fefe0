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
use crate::route::{NetlinkSource, OwnNamespace, Path, Resolution, Resolver};

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

    /// Where rtnetlink sockets of that network come from.
    fn source(&self) -> &dyn NetlinkSource {
        &OwnNamespace
    }
}

impl Routes for Resolver {
    fn resolve(&mut self, local: IpAddr, remote: IpAddr) -> Resolution {
        Resolver::resolve(self, local, remote)
    }

    fn source(&self) -> &dyn NetlinkSource {
        Resolver::source(self)
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

#[cfg(all(test, not(loom)))]
mod tests {
    use expressway_wire::{ChecksumMode, VlanTag, VlanTags, parse_udp};

    use super::*;
    use crate::io::Ecn;

    const MAC: [MacAddr; 2] = [MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2])];

    fn path(source: &str) -> Path {
        Path {
            ifindex: 3,
            egress: 3,
            source_mac: MAC[0],
            destination_mac: MAC[1],
            vlan: VlanTags::NONE,
            mtu: 1500,
            source: source.parse().unwrap(),
            stale: false,
        }
    }

    fn flow(local: &str, remote: &str) -> Flow {
        Flow::new(local.parse().unwrap(), remote.parse().unwrap())
    }

    /// The headers that the cache has for a flow, read back by the parser.
    fn headers(cache: &mut PathCache, flow: &Flow, path: &Path) -> expressway_wire::UdpLayout {
        let hash = cache.hash(flow);
        let mut frame = [0; 128];
        let length =
            cache.template(flow, path, hash).unwrap().write(&mut frame, 5, ChecksumMode::Full, 0).unwrap();
        let layout = parse_udp(&frame[..length]).unwrap();
        layout.verify_checksum(&frame[..length]).unwrap();
        layout
    }

    #[test]
    fn headers_carry_addresses_marks_and_tags() {
        let mut cache = PathCache::new(33);
        let mut four = flow("192.0.2.1:443", "198.51.100.7:5000");
        (four.ecn, four.dscp) = (Ecn::Ect0, 46);
        let mut tagged = path("192.0.2.1");
        tagged.vlan = VlanTags::new(&[VlanTag::service(20), VlanTag::customer(30)]).unwrap();
        let layout = headers(&mut cache, &four, &tagged);
        assert_eq!((layout.source, layout.destination), (four.local, four.remote));
        assert_eq!((layout.source_mac, layout.destination_mac), (MAC[0], MAC[1]));
        assert_eq!((layout.tos, layout.ttl, layout.dont_fragment), (46 << 2 | 2, 33, true));
        assert_eq!(layout.vlan, tagged.vlan);
        let six = flow("[2001:db8::1]:443", "[2001:db8::2]:5000");
        let layout = headers(&mut cache, &six, &path("2001:db8::1"));
        assert_ne!(layout.flow_label, 0);
        assert_eq!((layout.source, layout.tos), (six.local, 0));
    }

    #[test]
    fn a_wildcard_source_becomes_the_route_s_choice() {
        let mut cache = PathCache::new(64);
        let layout = headers(&mut cache, &flow("0.0.0.0:443", "198.51.100.7:5000"), &path("192.0.2.9"));
        assert_eq!(layout.source, "192.0.2.9:443".parse().unwrap());
    }

    #[test]
    fn ipv4_and_ipv6_of_one_slot_do_not_mix() {
        // One entry holds one family's template; a look-up for the other compiles it anew.
        let mut cache = PathCache::new(64);
        let (four, six) =
            (flow("192.0.2.1:443", "198.51.100.7:5000"), flow("[2001:db8::1]:443", "[2001:db8::2]:5000"));
        for _ in 0..2 {
            let template = cache.template(&four, &path("192.0.2.1"), 0).unwrap();
            assert_eq!((template.is_ipv4(), template.header_len()), (true, 42));
            let template = cache.template(&six, &path("2001:db8::1"), 0).unwrap();
            assert_eq!((template.is_ipv4(), template.header_len()), (false, 62));
        }
    }

    #[test]
    fn a_neighbour_that_moved_gets_new_headers() {
        let mut cache = PathCache::new(64);
        let flow = flow("192.0.2.1:443", "198.51.100.7:5000");
        let before = path("192.0.2.1");
        assert_eq!(headers(&mut cache, &flow, &before).destination_mac, MAC[1]);
        let moved = Path { destination_mac: MacAddr([2, 0, 0, 0, 0, 9]), ..before };
        assert_eq!(headers(&mut cache, &flow, &moved).destination_mac, moved.destination_mac);
    }

    #[test]
    fn what_frames_cannot_carry_is_an_error() {
        let mut cache = PathCache::new(64);
        let mapped = flow("[2001:db8::1]:443", "[::ffff:198.51.100.7]:5000");
        assert!(cache.template(&mapped, &path("2001:db8::1"), 0).is_err());
        let port_zero = flow("192.0.2.1:443", "198.51.100.7:0");
        assert!(cache.template(&port_zero, &path("192.0.2.1"), 0).is_err());
    }

    #[test]
    fn a_stale_neighbour_is_reminded_once_a_second() {
        let mut reminders = Reminders::new();
        let (path, start) = (path("192.0.2.1"), Instant::now());
        assert!(reminders.is_due(&path, start));
        assert!(!reminders.is_due(&path, start));
        assert!(!reminders.is_due(&path, start + Duration::from_millis(999)));
        assert!(reminders.is_due(&path, start + REMIND_EVERY));
        let other = Path { destination_mac: MacAddr([2, 0, 0, 0, 0, 7]), ..path };
        assert!(reminders.is_due(&other, start), "each neighbour has its own second");
    }
}
