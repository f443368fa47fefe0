//! The remote addresses of sessions. An address belongs to one session at a time, on whichever worker that is.
//!
//! Nothing proves that a peer has the address that its requests come from. Without this table, a peer with a session could send requests
//! with forged addresses and so take the datagrams of others. Therefore an address is claimed in the whole process, until its session ends
//! or has moved.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Addresses that one session may send from at a time: a few networks, and NATs that move.
pub(super) const ADDRESSES: usize = 4;
/// Silence after which an address that is not the latest is given up: what consent lasts (RFC 7675, section 5.1), for which a peer
/// sends requests every few seconds.
pub(super) const SILENT: Duration = Duration::from_secs(30);

/// How long the address that a peer chose is silent, while another is not, until what is for it goes to the other: a NAT has given the
/// peer another port, which is no better candidate than the one before, so that ICE stays with that until it fails. Peers send requests
/// every 2.5 seconds.
const LEFT: Duration = Duration::from_secs(4);

/// New addresses of a session that ICE is shown at once: a browser's candidates come together.
const AT_ONCE: usize = 8;
/// How long until it is shown one more.
const EACH: Duration = Duration::from_secs(1);
/// It is shown so many until ICE begins anew, and in all. The library keeps each for as long as the session is there, and goes through them
/// at every request.
const SHOWN: (usize, usize) = (64, 256);

/// The addresses that ICE was shown.
#[derive(Debug)]
pub(super) struct Newcomers {
    /// When ICE began.
    since: Instant,
    /// Since then.
    shown: usize,
    /// In all: the library knows them already.
    known: Vec<SocketAddr>,
}

impl Newcomers {
    /// ICE begins.
    pub(super) fn new(now: Instant) -> Self {
        Self { since: now, shown: 0, known: Vec::new() }
    }

    /// Whether ICE may be shown what comes from there.
    pub(super) fn admit(&mut self, remote: SocketAddr, now: Instant) -> bool {
        if self.known.contains(&remote) {
            return true;
        }
        let passed = now.saturating_duration_since(self.since).as_secs() / EACH.as_secs();
        let allowed = usize::try_from(passed).map_or(SHOWN.0, |passed| passed.saturating_add(AT_ONCE));
        if self.shown >= allowed.min(SHOWN.0) || self.known.len() >= SHOWN.1 {
            return false;
        }
        self.shown += 1;
        self.known.push(remote);
        true
    }

    /// ICE begins anew.
    pub(super) fn restart(&mut self, now: Instant) {
        (self.since, self.shown) = (now, 0);
    }
}

/// The addresses of all sessions, by their numbers. It is asked when a peer comes from a new address and has shown its password: what
/// strangers send takes no lock.
#[derive(Debug, Default)]
pub(super) struct Claims(Mutex<HashMap<SocketAddr, u64>>);

impl Claims {
    fn lock(&self) -> MutexGuard<'_, HashMap<SocketAddr, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of addresses.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }
}

/// The addresses of a session, the latest last. Dropped, they are free.
#[derive(Debug)]
pub(super) struct Addresses {
    claims: Arc<Claims>,
    session: u64,
    /// Each with when it was last heard from.
    heard: Vec<(SocketAddr, Instant)>,
}

impl Addresses {
    /// None, of the session of that number.
    pub(super) fn new(claims: Arc<Claims>, session: u64) -> Self {
        Self { claims, session, heard: Vec::new() }
    }

    /// Whether it is heard from an address that it has.
    pub(super) fn hear(&mut self, remote: SocketAddr, now: Instant) -> bool {
        let known = self.heard.iter_mut().find(|(address, _)| *address == remote);
        known.map(|(_, at)| *at = now).is_some()
    }

    /// Claims an address that the session does not have. False: it is another session's.
    pub(super) fn claim(&mut self, remote: SocketAddr, now: Instant) -> bool {
        match self.claims.lock().entry(remote) {
            Entry::Occupied(_) => return false,
            Entry::Vacant(free) => free.insert(self.session),
        };
        self.heard.push((remote, now));
        true
    }

    /// Where to send what is for an address that the peer chose: there, unless the peer has left it for another.
    pub(super) fn current(&self, chosen: SocketAddr) -> SocketAddr {
        let Some((latest, at)) = self.heard.iter().copied().max_by_key(|(_, at)| *at) else { return chosen };
        let heard = self.heard.iter().find(|(address, _)| *address == chosen);
        let is_left = heard.is_none_or(|(_, heard)| at.saturating_duration_since(*heard) >= LEFT);
        if is_left { latest } else { chosen }
    }

    /// The peer chooses anew: what it is heard from next is where it is.
    pub(super) fn restart(&mut self, now: Instant) {
        for (_, at) in &mut self.heard {
            *at = (*at).min(now.checked_sub(LEFT).unwrap_or(*at));
        }
    }

    /// Gives up an address that is one too many, or silent while another is not.
    pub(super) fn give_up(&mut self, now: Instant) -> Option<SocketAddr> {
        let (oldest, (remote, at)) = self.heard.iter().copied().enumerate().min_by_key(|(_, (_, at))| *at)?;
        let latest = self.heard.iter().map(|(_, at)| *at).max()?;
        let has_moved = at < latest && now.saturating_duration_since(at) >= SILENT;
        if self.heard.len() <= ADDRESSES && !has_moved {
            return None;
        }
        self.heard.remove(oldest);
        self.claims.lock().remove(&remote);
        Some(remote)
    }

    /// Gives up all.
    pub(super) fn clear(&mut self) -> Vec<SocketAddr> {
        let mut claims = self.claims.lock();
        self.heard
            .drain(..)
            .map(|(remote, _)| {
                claims.remove(&remote);
                remote
            })
            .collect()
    }
}

impl Drop for Addresses {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> SocketAddr {
        SocketAddr::new("192.0.2.9".parse().unwrap(), port)
    }

    #[test]
    fn an_address_is_one_sessions_until_that_is_gone() {
        let (claims, now) = (Arc::new(Claims::default()), Instant::now());
        let mut one = Addresses::new(Arc::clone(&claims), 1);
        let mut other = Addresses::new(Arc::clone(&claims), 2);
        assert!(one.claim(address(1), now) && !other.claim(address(1), now));
        assert!(one.hear(address(1), now) && !other.hear(address(1), now));
        assert!(other.claim(address(2), now));
        drop(one);
        assert!(other.claim(address(1), now));
        assert_eq!(other.clear(), [address(2), address(1)]);
        assert_eq!(claims.len(), 0);
    }

    #[test]
    fn an_address_that_its_session_has_left_is_free() {
        let (claims, start) = (Arc::new(Claims::default()), Instant::now());
        let mut one = Addresses::new(Arc::clone(&claims), 1);
        assert!(one.claim(address(1), start));
        let later = start + SILENT;
        assert_eq!(one.give_up(later), None, "it is the only one");
        assert!(one.claim(address(2), start + Duration::from_secs(1)));
        assert_eq!(one.give_up(later - Duration::from_secs(1)), None);
        assert_eq!(one.give_up(later), Some(address(1)));
        assert!(Addresses::new(claims, 2).claim(address(1), later));
    }

    #[test]
    fn what_is_for_an_address_that_was_left_goes_to_the_next() {
        let (claims, start) = (Arc::new(Claims::default()), Instant::now());
        let mut one = Addresses::new(claims, 1);
        assert_eq!(one.current(address(1)), address(1), "none is known");
        assert!(one.claim(address(1), start) && one.claim(address(2), start + Duration::from_secs(3)));
        assert_eq!(one.current(address(1)), address(1), "both are there");
        assert!(one.hear(address(2), start + LEFT));
        assert_eq!(one.current(address(1)), address(2));
        assert!(one.hear(address(1), start + LEFT));
        assert_eq!(one.current(address(1)), address(1), "it is back");
        one.restart(start + LEFT);
        assert!(one.hear(address(2), start + LEFT));
        assert_eq!(one.current(address(1)), address(2), "at once, as it chose anew");
    }

    #[test]
    fn ice_is_shown_a_few_new_addresses_at_a_time_and_not_many_in_all() {
        let start = Instant::now();
        let mut newcomers = Newcomers::new(start);
        let mut port = 0;
        let mut admit = |newcomers: &mut Newcomers, now| {
            port += 1;
            newcomers.admit(address(port), now)
        };
        let mut count = |now| (0..1000).filter(|_| admit(&mut newcomers, now)).count();
        assert_eq!((count(start), count(start + EACH), count(start + EACH)), (AT_ONCE, 1, 0));
        assert_eq!(count(start + 10 * EACH), 9);
        assert_eq!(count(start + 1000 * EACH), SHOWN.0 - AT_ONCE - 10);
        let mut all = SHOWN.0;
        for round in 2..10 {
            newcomers.restart(start);
            all += (0..1000).filter(|_| admit(&mut newcomers, start + 1000 * EACH)).count();
            assert_eq!(all, SHOWN.1.min(round * SHOWN.0));
        }
        assert!(newcomers.admit(address(1), start), "it is known");
    }

    #[test]
    fn a_session_has_a_few() {
        let (claims, start) = (Arc::new(Claims::default()), Instant::now());
        let mut one = Addresses::new(Arc::clone(&claims), 1);
        for port in 1..=ADDRESSES as u16 + 1 {
            assert!(one.claim(address(port), start + Duration::from_millis(port.into())));
        }
        assert!(one.hear(address(1), start + Duration::from_secs(1)));
        assert_eq!(one.give_up(start), Some(address(2)), "the one that was silent for longest");
        assert_eq!((one.give_up(start), claims.len()), (None, ADDRESSES));
    }
}
