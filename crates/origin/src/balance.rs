//! Which server gets a request.

use std::sync::{Mutex, PoisonError};

use crate::Balance;

/// A server as far as the choice goes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate {
    /// Its place among the origin's servers.
    pub(crate) index: usize,
    /// Its share, above 0.
    pub(crate) weight: u64,
    /// Requests under way.
    pub(crate) active: usize,
    /// Of what it is called, for [`Balance::Hash`].
    pub(crate) seed: u64,
}

/// Chooses, and remembers what round-robin has to.
#[derive(Debug)]
pub(crate) struct Balancer {
    balance: Balance,
    /// What each server is ahead, by its place.
    turns: Mutex<Vec<i64>>,
}

impl Balancer {
    pub(crate) fn new(balance: Balance, servers: usize) -> Self {
        Self { balance, turns: Mutex::new(vec![0; servers]) }
    }

    /// The place of the one for a request with `key`; `None` if there is no candidate.
    pub(crate) fn choose(&self, candidates: &[Candidate], key: u64) -> Option<usize> {
        match self.balance {
            Balance::RoundRobin => self.in_turn(candidates),
            Balance::LeastConnections => self.least(candidates),
            Balance::Hash => {
                let best =
                    candidates.iter().min_by(|one, other| score(one, key).total_cmp(&score(other, key)));
                best.map(|best| best.index)
            }
        }
    }

    /// Smooth weighted round-robin: each goes ahead by its weight, and the one that is furthest falls back by all of
    /// them.
    fn in_turn(&self, candidates: &[Candidate]) -> Option<usize> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        let mut total = 0;
        let mut first: Option<usize> = None;
        for candidate in candidates {
            let weight = i64::try_from(candidate.weight).unwrap_or(i64::MAX);
            total += weight;
            turns[candidate.index] += weight;
            if first.is_none_or(|first| turns[candidate.index] > turns[first]) {
                first = Some(candidate.index);
            }
        }
        turns[first?] -= total;
        first
    }

    /// The least loaded for its weight; in turn among equals.
    fn least(&self, candidates: &[Candidate]) -> Option<usize> {
        let load = |one: &Candidate, other: &Candidate| (one.active as u64 + 1) * other.weight;
        let least = candidates.iter().min_by(|one, other| load(one, other).cmp(&load(other, one)))?;
        let equals: Vec<_> =
            candidates.iter().filter(|one| load(one, least) == load(least, one)).copied().collect();
        self.in_turn(&equals)
    }
}

/// Weighted rendezvous hashing: the lowest score wins, so that a server that is left out changes nothing for keys that
/// were not its own, and no table has to be built. −ln(u)/w of uniform u is exponential with rate w, and the least of
/// such is each one's in proportion to its rate.
fn score(candidate: &Candidate, key: u64) -> f64 {
    let uniform = ((mix(candidate.seed ^ key) >> 11) + 1) as f64 / (1_u64 << 53) as f64;
    -uniform.ln() / candidate.weight as f64
}

/// FNV-1a, and a final mix because it is weak in its high bits: the same on every machine and in every version, so that
/// several gateways agree.
pub(crate) fn hash<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for part in parts {
        // 0xff is in no UTF-8 text: it keeps parts apart.
        for byte in part.iter().chain(&[0xff]) {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    mix(hash)
}

/// The finalizer of SplitMix64.
fn mix(mut hash: u64) -> u64 {
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(weights: &[u64]) -> Vec<Candidate> {
        let candidate = |(index, weight): (usize, &u64)| Candidate {
            index,
            weight: *weight,
            active: 0,
            seed: hash([format!("10.0.0.{index}:80").as_bytes()]),
        };
        weights.iter().enumerate().map(candidate).collect()
    }

    fn key(number: usize) -> u64 {
        hash([b"a.example".as_slice(), format!("/video/{number}.mp4").as_bytes()])
    }

    #[test]
    fn round_robin_is_smooth_and_by_weight() {
        let (balancer, all) = (Balancer::new(Balance::RoundRobin, 3), candidates(&[5, 1, 1]));
        let order: Vec<_> = (0..7).map(|_| balancer.choose(&all, 0).unwrap()).collect();
        assert_eq!(order, [0, 0, 1, 0, 2, 0, 0]);
        assert_eq!(balancer.choose(&[], 0), None);
    }

    #[test]
    fn the_least_loaded_for_its_weight_is_chosen() {
        let (balancer, mut all) = (Balancer::new(Balance::LeastConnections, 3), candidates(&[1, 1, 4]));
        (all[0].active, all[1].active, all[2].active) = (3, 2, 8);
        assert_eq!(balancer.choose(&all, 0), Some(2), "9/4 is less than 3");
        all[2].active = 20;
        assert_eq!(balancer.choose(&all, 0), Some(1));
        let equal = candidates(&[1, 1]);
        let order: Vec<_> = (0..4).map(|_| balancer.choose(&equal, 0).unwrap()).collect();
        assert_eq!(order.iter().filter(|index| **index == 0).count(), 2, "{order:?}");
    }

    #[test]
    fn a_lost_server_moves_its_own_keys_only() {
        const KEYS: usize = 20_000;
        let balancer = Balancer::new(Balance::Hash, 5);
        let all = candidates(&[1, 1, 1, 1, 2]);
        let before: Vec<_> = (0..KEYS).map(|n| balancer.choose(&all, key(n)).unwrap()).collect();
        for (index, share) in [(0, 1), (1, 1), (2, 1), (3, 1), (4, 2)] {
            let count = before.iter().filter(|server| **server == index).count();
            let expected = KEYS * share / 6;
            assert!(count.abs_diff(expected) < expected / 10, "{index}: {count}, not {expected}");
        }
        let without: Vec<_> = all.iter().filter(|candidate| candidate.index != 2).copied().collect();
        let mut moved = [0; 5];
        for (number, was) in before.iter().enumerate() {
            let is = balancer.choose(&without, key(number)).unwrap();
            assert!(*was == 2 || is == *was, "a key of another moved");
            moved[is] += usize::from(*was == 2);
        }
        assert!(moved[4] > moved[0] && moved[0] > 0 && moved[1] > 0 && moved[3] > 0, "{moved:?}");
    }

    #[test]
    fn hashes_are_the_same_everywhere() {
        assert_eq!(hash([b"a".as_slice(), b"b"]), hash([b"a".as_slice(), b"b"]));
        assert_ne!(hash([b"ab".as_slice(), b""]), hash([b"a".as_slice(), b"b"]));
        assert_eq!(hash([]), mix(0xcbf2_9ce4_8422_2325));
    }
}
