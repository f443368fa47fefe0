//! What the filter knows of QUIC servers: their ports, and the keys that it shares with them.

use super::retry::{self, GuardRetry};
use super::{Maps, monotonic, numbered, write};
use crate::error::Error;
use crate::skeleton::guard::types::{
    guard_ghash, guard_limit, guard_quic_count, guard_quic_key, guard_unknown,
};

/// Words of the table of ports, a bit each.
pub(super) const PORT_WORDS: usize = 1024;

/// What is done about connection IDs that no server issued.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GuardUnknown {
    /// They are not looked at.
    #[default]
    Pass,
    /// They are counted, and the packet passes on.
    Count,
    /// The packet is dropped.
    Drop,
}

/// A key that servers have too: the first half is for connection IDs, the other for tokens.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct GuardKey(pub [u8; 32]);

impl std::fmt::Debug for GuardKey {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("GuardKey(..)")
    }
}

/// Servers of QUIC behind the filter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuardQuic {
    /// Their ports, packets to which are looked at; without any, nothing of this counts.
    pub ports: Vec<u16>,
    /// Keys that they have too, [`GuardQuic::KEYS`] at most, the one in use first.
    pub keys: Vec<GuardKey>,
    /// Packets with a connection ID that the servers did not issue; without keys none is known to be.
    pub unknown: GuardUnknown,
    /// When Initial packets without a token are answered by Retry, if ever; without keys, never.
    pub retry: Option<GuardRetry>,
}

/// What the filter counted of QUIC, beside the packets' reasons.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GuardQuicCount {
    /// Packets with unknown connection IDs that passed on.
    pub unknown_ids: u64,
    /// Initial packets with a valid token.
    pub tokens: u64,
}

const _: () = assert!(size_of::<guard_quic_count>() == 16 && size_of::<guard_quic_key>() == 32);

impl GuardQuic {
    /// Keys at most.
    pub const KEYS: usize = guard_limit::GUARD_QUIC_KEYS.0 as usize;

    /// What `quic_unknown` is.
    pub(super) fn unknown(&self) -> u32 {
        match self.unknown {
            _ if self.keys.is_empty() => guard_unknown::GUARD_UNKNOWN_PASS.0,
            GuardUnknown::Pass => guard_unknown::GUARD_UNKNOWN_PASS.0,
            GuardUnknown::Count => guard_unknown::GUARD_UNKNOWN_COUNT.0,
            GuardUnknown::Drop => guard_unknown::GUARD_UNKNOWN_DROP.0,
        }
    }

    /// Fills in `quic_keys`, and returns how many there are.
    pub(super) fn keys(&self, into: &mut [guard_quic_key]) -> u32 {
        let mut used = 0;
        for (place, key) in into.iter_mut().zip(&self.keys) {
            let words: [u64; 4] = std::array::from_fn(|at| {
                u64::from_le_bytes(std::array::from_fn(|byte| key.0[at * 8 + byte]))
            });
            place.id = [words[0], words[1]];
            place.token = [words[2], words[3]];
            used += 1;
        }
        used
    }

    /// Fills in what the integrity tags of Retry packets are made of, if there are to be any.
    pub(super) fn retry(&self, table: &mut [guard_ghash], mask: &mut [u64; 2]) -> Option<(u64, u64)> {
        let retry = self.retry.filter(|_| !self.keys.is_empty() && !self.ports.is_empty())?;
        retry::fill(table);
        *mask = retry::mask();
        Some(retry.times())
    }

    pub(super) fn fill(&self, maps: &Maps) -> Result<(), Error> {
        if self.ports.is_empty() {
            return Ok(());
        }
        write(&maps.quic_port_map, "quic_port_map", numbered(port_words(&self.ports).into_iter()))?;
        let now = monotonic() << guard_limit::GUARD_TIME_SHIFT.0;
        let bucket = [now.to_ne_bytes(), now.to_ne_bytes()].concat();
        write(&maps.retry_map, "retry_map", numbered(std::iter::once(bucket)))?;
        set_clock(maps)
    }
}

/// A table of ports, a bit each.
pub(super) fn port_words(ports: &[u16]) -> Vec<Vec<u8>> {
    let mut words = vec![0u64; PORT_WORDS];
    for port in ports {
        words[usize::from(port / 64)] |= 1 << (port % 64);
    }
    words.iter().map(|word| word.to_ne_bytes().to_vec()).collect()
}

/// Tells the program what Unix time is, in which tokens are dated: it has only the time since boot.
pub(super) fn set_clock(maps: &Maps) -> Result<(), Error> {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    let unix = (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64);
    let ahead = unix.wrapping_sub(monotonic()).to_ne_bytes().to_vec();
    write(&maps.clock_map, "clock_map", numbered(std::iter::once(ahead)))
}
