//! The path MTUs that routers have reported: a bounded memory by destination address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Destinations remembered in one generation; there are two.
const CAPACITY: usize = 1024;

/// How long a report is believed: as long as the kernel does (`net.ipv4.route.mtu_expires`).
const EXPIRY: Duration = Duration::from_secs(600);

/// No report is believed below this MTU: QUIC needs payloads of 1,200 bytes (RFC 9000, section 14), so a
/// forged ICMP message can do no more than that.
const FLOOR: usize = 1200 + 48;

/// Path MTUs by destination, in bytes of IP packet.
///
/// Two generations: the older is forgotten when the newer is full or old. A report therefore lives
/// between one and two expiry times, and memory stays bounded however many destinations report.
pub(super) struct PathMtus {
    current: HashMap<IpAddr, u16>,
    previous: HashMap<IpAddr, u16>,
    since: Option<Instant>,
}

impl PathMtus {
    pub(super) fn new() -> Self {
        Self {
            current: HashMap::with_capacity(CAPACITY),
            previous: HashMap::with_capacity(CAPACITY),
            since: None,
        }
    }

    /// Remembers that packets to `destination` may have `mtu` bytes.
    pub(super) fn insert(&mut self, destination: IpAddr, mtu: usize, now: Instant) {
        let mtu = u16::try_from(mtu.max(FLOOR)).unwrap_or(u16::MAX);
        if self.current.len() >= CAPACITY {
            self.turn(now);
        }
        self.current.insert(destination, mtu);
        self.since.get_or_insert(now);
    }

    /// Forgets what is too old.
    pub(super) fn expire(&mut self, now: Instant) {
        if self.since.is_some_and(|since| now.saturating_duration_since(since) >= EXPIRY) {
            self.turn(now);
        }
    }

    fn turn(&mut self, now: Instant) {
        std::mem::swap(&mut self.current, &mut self.previous);
        self.current.clear();
        self.since = (!self.previous.is_empty()).then_some(now);
    }

    /// The MTU reported for `destination`, if any.
    pub(super) fn lookup(&self, destination: &IpAddr) -> Option<usize> {
        self.since?;
        self.current.get(destination).or_else(|| self.previous.get(destination)).map(|mtu| usize::from(*mtu))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(index: usize) -> IpAddr {
        IpAddr::from((index as u32).to_be_bytes())
    }

    #[test]
    fn a_report_is_floored_and_expires() {
        let start = Instant::now();
        let mut mtus = PathMtus::new();
        assert_eq!(mtus.lookup(&address(1)), None);
        mtus.insert(address(1), 1400, start);
        mtus.insert(address(2), 68, start);
        assert_eq!(mtus.lookup(&address(1)), Some(1400));
        assert_eq!(mtus.lookup(&address(2)), Some(FLOOR));
        mtus.expire(start + EXPIRY);
        assert_eq!(mtus.lookup(&address(1)), Some(1400), "believed for at least one expiry time");
        mtus.expire(start + EXPIRY * 2);
        assert_eq!(mtus.lookup(&address(1)), None);
        mtus.expire(start + EXPIRY * 3);
        assert_eq!(mtus.since, None);
    }

    #[test]
    fn memory_is_bounded_and_the_newest_survive() {
        let start = Instant::now();
        let mut mtus = PathMtus::new();
        for index in 0..10 * CAPACITY {
            mtus.insert(address(index), 1300, start);
            assert!(mtus.current.len() + mtus.previous.len() <= 2 * CAPACITY);
        }
        assert_eq!(mtus.lookup(&address(10 * CAPACITY - 1)), Some(1300));
        assert_eq!(mtus.lookup(&address(0)), None);
    }
}
