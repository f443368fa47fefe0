//! Counts subscribers and handshakes together against the limits, in total and by source.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::options::Limits;

/// Where a peer comes from, as far as limits tell peers apart: its IPv4 address, or the /64 of its IPv6 address, of
/// which a host has all addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Host(IpAddr);

impl Host {
    /// That of an address.
    pub(crate) fn of(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            // A link has one network of those for all of its hosts.
            IpAddr::V6(v6) if v6.is_unicast_link_local() => v6.into(),
            IpAddr::V6(v6) => {
                let [a, b, c, d, ..] = v6.segments();
                Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
            }
            v4 => v4,
        })
    }
}

/// Which limit a newcomer is beyond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    /// That of all.
    All,
    /// That of its host.
    Host,
}

/// The count. It takes a lock only if there is a limit per host: otherwise the accepting thread, which has
/// low priority, would delay those that send.
#[derive(Debug)]
pub(crate) struct Presence {
    all: AtomicUsize,
    most: usize,
    by_host: Option<ByHost>,
}

#[derive(Debug)]
struct ByHost {
    present: Mutex<HashMap<Host, usize>>,
    most: usize,
}

impl Presence {
    /// Of nobody yet.
    pub(crate) fn new(limits: &Limits) -> Self {
        let by_host = limits.subscribers_per_address.map(|most| ByHost { present: Mutex::default(), most });
        Self { all: AtomicUsize::new(0), most: limits.subscribers, by_host }
    }

    /// Counts one in, if there is room.
    pub(crate) fn enter(&self, host: Host) -> Result<(), Full> {
        if self.all.fetch_add(1, Ordering::AcqRel) >= self.most {
            self.all.fetch_sub(1, Ordering::AcqRel);
            return Err(Full::All);
        }
        let Some(by_host) = &self.by_host else { return Ok(()) };
        let mut present = by_host.lock();
        let own = present.entry(host).or_default();
        if *own >= by_host.most {
            self.all.fetch_sub(1, Ordering::AcqRel);
            return Err(Full::Host);
        }
        *own += 1;
        Ok(())
    }

    /// Counts one out that was counted in.
    pub(crate) fn leave(&self, host: Host) {
        if let Some(by_host) = &self.by_host
            && let Entry::Occupied(mut own) = by_host.lock().entry(host)
        {
            *own.get_mut() -= 1;
            if *own.get() == 0 {
                own.remove();
            }
        }
        self.all.fetch_sub(1, Ordering::AcqRel);
    }
}

impl ByHost {
    fn lock(&self) -> MutexGuard<'_, HashMap<Host, usize>> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(address: &str) -> Host {
        Host::of(address.parse().unwrap())
    }

    #[test]
    fn an_origin_is_an_address_or_the_network_of_a_host() {
        assert_eq!(host("192.0.2.1"), host("::ffff:192.0.2.1"));
        assert_ne!(host("192.0.2.1"), host("192.0.2.2"));
        assert_eq!(host("2001:db8:0:1::1"), host("2001:db8:0:1:ffff::2"));
        assert_ne!(host("2001:db8:0:1::1"), host("2001:db8:0:2::1"));
        assert_ne!(host("fe80::1"), host("fe80::2"));
    }

    #[test]
    fn who_leaves_makes_room_and_nothing_is_kept_of_it() {
        let limits = Limits { subscribers: 3, subscribers_per_address: Some(2), ..Limits::default() };
        let presence = Presence::new(&limits);
        let (one, other) = (host("192.0.2.1"), host("192.0.2.2"));
        assert_eq!(presence.enter(one), Ok(()));
        assert_eq!(presence.enter(one), Ok(()));
        assert_eq!(presence.enter(one), Err(Full::Host));
        assert_eq!(presence.enter(other), Ok(()));
        assert_eq!(presence.enter(other), Err(Full::All));
        presence.leave(one);
        assert_eq!(presence.enter(other), Ok(()));
        [one, other, other].into_iter().for_each(|host| presence.leave(host));
        let kept = presence.by_host.as_ref().unwrap().lock().len();
        assert_eq!((presence.all.load(Ordering::Relaxed), kept), (0, 0));
    }
}
