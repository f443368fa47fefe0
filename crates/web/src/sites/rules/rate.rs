//! Requests per second of one client: a token bucket for each address, in a table of fixed size.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Buckets that share a lock and a place in the table.
const WAYS: usize = 8;

/// Sets of buckets: 65,536 clients, 1.5 MiB.
const SETS: usize = 8192;

/// A limit of requests by client: an IPv4 address or an IPv6 /64.
///
/// Of more clients than the table has room for, those that have used the least of their limit are forgotten first,
/// so a flood of new addresses does not free one that is at its limit.
pub struct RateLimit {
    rate: f64,
    burst: f64,
    hash: RandomState,
    start: Instant,
    sets: Box<[Mutex<[Bucket; WAYS]>]>,
}

#[derive(Clone, Copy, Default)]
struct Bucket {
    /// The client; 0: none.
    key: u64,
    /// Requests that it may make, as of `at`.
    tokens: f64,
    /// Seconds since the table's start.
    at: f64,
}

impl fmt::Debug for RateLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit")
            .field("rate", &self.rate)
            .field("burst", &self.burst)
            .finish_non_exhaustive()
    }
}

impl RateLimit {
    /// `rate` requests a second, and `burst` at once; both above 0.
    pub fn new(rate: f64, burst: u32) -> Self {
        let sets = (0..SETS).map(|_| Mutex::default()).collect();
        let burst = f64::from(burst.max(1));
        Self { rate, burst, hash: RandomState::new(), start: Instant::now(), sets }
    }

    /// Takes a request of `client`. If it is over its limit: the seconds after which it may ask again.
    pub(super) fn take(&self, client: IpAddr) -> Result<(), u64> {
        self.take_at(client, self.start.elapsed().as_secs_f64())
    }

    fn take_at(&self, client: IpAddr, now: f64) -> Result<(), u64> {
        let key = match client.to_canonical() {
            IpAddr::V4(address) => self.hash.hash_one(address.octets()),
            IpAddr::V6(address) => self.hash.hash_one(&address.octets()[..8]),
        };
        let key = key.max(1);
        let mut set = self.sets[key as usize % SETS].lock().unwrap_or_else(PoisonError::into_inner);
        let level = |bucket: &Bucket| match bucket.key {
            0 => f64::INFINITY,
            _ => (bucket.tokens + (now - bucket.at).max(0.0) * self.rate).min(self.burst),
        };
        let index = match set.iter().position(|bucket| bucket.key == key) {
            Some(index) => index,
            None => {
                let fullest =
                    (0..WAYS).max_by(|a, b| level(&set[*a]).total_cmp(&level(&set[*b]))).unwrap_or(0);
                set[fullest] = Bucket { key, tokens: self.burst, at: now };
                fullest
            }
        };
        let tokens = level(&set[index]);
        let allowed = tokens >= 1.0;
        let tokens = if allowed { tokens - 1.0 } else { tokens };
        set[index] = Bucket { key, tokens, at: now };
        match allowed {
            true => Ok(()),
            false => Err(((1.0 - tokens) / self.rate).ceil().min(3600.0) as u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(number: u32) -> IpAddr {
        IpAddr::from(number.to_be_bytes())
    }

    #[test]
    fn a_burst_then_the_rate() {
        let limit = RateLimit::new(2.0, 5);
        let taken = |now: f64| (0..100).take_while(|_| limit.take_at(v4(1), now).is_ok()).count();
        assert_eq!(taken(10.0), 5);
        assert_eq!(limit.take_at(v4(1), 10.0), Err(1));
        assert_eq!(taken(11.0), 2);
        assert_eq!(taken(1000.0), 5, "no more than a burst is saved");
        assert!(limit.take_at(v4(2), 10.0).is_ok(), "another client");
        assert_eq!(RateLimit::new(0.01, 1).take_at(v4(1), 0.0), Ok(()));
    }

    #[test]
    fn an_ipv6_network_is_one_client_and_a_mapped_address_is_the_ipv4_one() {
        let limit = RateLimit::new(1.0, 1);
        let take = |text: &str| limit.take_at(text.parse().unwrap(), 0.0).is_ok();
        assert!(take("2001:db8::1") && !take("2001:db8::2") && take("2001:db8:0:1::1"));
        assert!(take("192.0.2.1") && !take("::ffff:192.0.2.1"));
    }

    #[test]
    fn a_flood_of_addresses_frees_nobody_who_is_at_the_limit() {
        let limit = RateLimit::new(0.001, 10);
        let greedy = v4(u32::MAX);
        while limit.take_at(greedy, 0.0).is_ok() {}
        for address in 0..1_000_000 {
            let _ = limit.take_at(v4(address), 0.0);
        }
        assert!(limit.take_at(greedy, 0.0).is_err());
    }
}
