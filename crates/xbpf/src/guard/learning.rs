//! Sources that are known from before an attack: the table of them, and the program that fills it. `bpf/guard_learn.bpf.c`
//! says by what a source gets there.

use std::fmt;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::AsFd;

use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{Link, MapCore, MapFlags};

use super::tables::{GuardPrefix, GuardRate};
use super::{Guard, SWEEP, monotonic, percpu};
use crate::error::Error;
use crate::redirect::forward_libbpf_messages;
use crate::skeleton::guard::OpenGuardMaps;
use crate::skeleton::guard::types::{guard_learned, guard_learning};
use crate::skeleton::guard_learn::GuardLearnSkelBuilder;
use crate::sys;

const _: () = assert!(size_of::<guard_learned>() == 24 && size_of::<guard_learning>() == 32);

/// How sources are learned, and what that is worth to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuardLearning {
    /// Sources at a time, at least 1. About 100 bytes each, at once.
    pub entries: u32,
    /// Bits of an IPv4 address that are learned, up to 32.
    pub prefix4: u8,
    /// Of an IPv6 address, up to 128.
    pub prefix6: u8,
    /// Nanoseconds between the first and the last proof, at least, of a source that is preferred.
    pub after: u64,
    /// Nanoseconds after the last proof in which it is preferred.
    pub expiry: u64,
    /// Packets of a source that is preferred beyond the limits of rules; `None`: as many as it likes.
    pub rate: Option<GuardRate>,
}

impl GuardLearning {
    /// Whether a table that was filled by `self` means the same by `other`.
    fn has_sources_for(&self, other: &Self) -> bool {
        (self.entries, self.prefix4, self.prefix6) == (other.entries, other.prefix4, other.prefix6)
    }
}

/// A source that has proved that its address is its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GuardLearned {
    /// With the bits that are learned.
    pub source: GuardPrefix,
    /// When it proved it first, in nanoseconds of the monotonic clock; negative before this boot.
    pub first: i64,
    /// When it did last.
    pub last: i64,
}

/// What was counted of proofs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GuardLearningCount {
    /// Of any source.
    pub proofs: u64,
    /// Of new ones, which were added.
    pub added: u64,
    /// Of new ones in an attack, which were not.
    pub late: u64,
    /// Of new ones that found no room.
    pub full: u64,
}

/// Keeps the program attached that notes who establishes TCP connections.
pub struct GuardLearner {
    _link: Link,
}

impl fmt::Debug for GuardLearner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuardLearner").finish_non_exhaustive()
    }
}

const LEARNED: &str = "learned_map";
const ATTACK: &str = "attack_map";

impl Guard {
    /// Notes the sources of TCP connections that the calling thread's network namespace establishes from now on, as this
    /// filter's options say.
    ///
    /// # Errors
    /// [`Error::Learn`]: the kernel has no BTF, or is older than 5.14.
    pub fn learner(&self) -> Result<GuardLearner, Error> {
        forward_libbpf_messages();
        let failed = |source| Error::Learn { source };
        let mut storage = MaybeUninit::uninit();
        let mut open = GuardLearnSkelBuilder::default().open(&mut storage).map_err(failed)?;
        let netns = sys::network_namespace().map_err(|source| Error::Descriptor { source })?;
        if let (Some(knobs), Some(learning)) = (open.maps.rodata_data.as_deref_mut(), &self.options.learning)
        {
            knobs.netns = netns;
            knobs.learn_prefix4 = learning.prefix4.min(32).into();
            knobs.learn_prefix6 = learning.prefix6.min(128).into();
            knobs.learn_expiry = learning.expiry;
        }
        open.maps.learned_map.reuse_fd(self.maps.learned_map.as_fd()).map_err(failed)?;
        open.maps.attack_map.reuse_fd(self.maps.attack_map.as_fd()).map_err(failed)?;
        open.maps.learning_map.reuse_fd(self.maps.learning_map.as_fd()).map_err(failed)?;
        let mut loaded = open.load().map_err(failed)?;
        loaded.attach().map_err(failed)?;
        let link = loaded.links.guard_learn.take();
        let link = link.ok_or_else(|| failed(std::io::Error::from(std::io::ErrorKind::NotFound).into()))?;
        Ok(GuardLearner { _link: link })
    }

    /// The sources that are known, in no order.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn learned(&self) -> Result<Vec<GuardLearned>, Error> {
        let Some(learning) = &self.options.learning else { return Ok(Vec::new()) };
        let fault = |source| Error::Map { map: LEARNED, source };
        let entries =
            self.maps.learned_map.lookup_batch(SWEEP, MapFlags::ANY, MapFlags::ANY).map_err(fault)?;
        let time = |value: &[u8], at: usize| value.get(at..at + 8)?.try_into().ok().map(i64::from_ne_bytes);
        let one = |(key, value): (Vec<u8>, Vec<u8>)| {
            let address = Ipv6Addr::from(<[u8; 16]>::try_from(key).ok()?).to_canonical();
            let length = if address.is_ipv4() { learning.prefix4 } else { learning.prefix6 };
            let source = GuardPrefix { address, length };
            Some(GuardLearned { source, first: time(&value, 0)?, last: time(&value, 8)? })
        };
        Ok(entries.filter_map(one).collect())
    }

    /// Adds sources, each with the times of its proofs. How many found room; who is there already stays as it is.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn remember(&self, sources: &[GuardLearned]) -> Result<usize, Error> {
        let Some(learning) = &self.options.learning else { return Ok(0) };
        let mut added = 0;
        for one in sources {
            let key = key(learning, one.source.address);
            let mut value = one.first.to_ne_bytes().to_vec();
            value.extend(one.last.to_ne_bytes());
            value.extend([0; 8]);
            match self.maps.learned_map.update(&key, &value, MapFlags::NO_EXIST) {
                Ok(()) => added += 1,
                Err(error) if error.kind() == libbpf_rs::ErrorKind::AlreadyExists => {}
                // E2BIG: full, which is the end of it.
                Err(_) if self.is_full() => break,
                Err(source) => return Err(Error::Map { map: LEARNED, source }),
            }
        }
        Ok(added)
    }

    fn is_full(&self) -> bool {
        let entries = self.options.learning.map_or(0, |learning| learning.entries as usize);
        self.maps.learned_map.keys().take(entries).count() == entries
    }

    /// Takes a proof by somebody else that the source has its address: it is new now, or known for longer.
    ///
    /// # Errors
    /// [`Error::Map`]; there is no room, or nothing is learned.
    pub fn learn(&self, address: IpAddr) -> Result<(), Error> {
        let fault = |source| Error::Map { map: LEARNED, source };
        let Some(learning) = &self.options.learning else { return Ok(()) };
        let (key, now) = (key(learning, address), monotonic());
        let known = self.maps.learned_map.lookup(&key, MapFlags::ANY).map_err(fault)?;
        let mut value = known.unwrap_or_else(|| [now.to_ne_bytes(), now.to_ne_bytes(), [0; 8]].concat());
        if let Some(last) = value.get_mut(8..16) {
            last.copy_from_slice(&now.to_ne_bytes());
        }
        self.maps.learned_map.update(&key, &value, MapFlags::ANY).map_err(fault)
    }

    /// Removes sources.
    pub fn forget(&self, sources: &[GuardLearned]) {
        let Some(learning) = &self.options.learning else { return };
        for one in sources {
            let _ = self.maps.learned_map.delete(&key(learning, one.source.address));
        }
    }

    /// What was counted of proofs, since the first of the filters that this one succeeded.
    ///
    /// # Errors
    /// [`Error::Map`], [`Error::Layout`].
    pub fn learning_count(&self) -> Result<GuardLearningCount, Error> {
        let [proofs, added, late, full] = percpu(&self.maps.learning_map, "learning_map", 0)?;
        Ok(GuardLearningCount { proofs, added, late, full })
    }

    /// Whether there is an attack: then nobody new is learned, and who is known is preferred.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn set_attack(&self, attack: bool) -> Result<(), Error> {
        let (key, value) = (0u32.to_ne_bytes(), u32::from(attack).to_ne_bytes());
        let result = self.maps.attack_map.update(&key, &value, MapFlags::ANY);
        result.map_err(|source| Error::Map { map: ATTACK, source })
    }

    /// Nanoseconds of the clock that proofs have the times of.
    pub fn now(&self) -> i64 {
        monotonic().cast_signed()
    }

    /// Whether the sources of this one mean the same to a program with these options.
    pub(super) fn has_sources_for(&self, learning: Option<&GuardLearning>) -> bool {
        let (Some(mine), Some(other)) = (&self.options.learning, learning) else { return false };
        mine.has_sources_for(other)
    }
}

/// An address as the table has it.
fn key(learning: &GuardLearning, address: IpAddr) -> [u8; 16] {
    let (bits, length) = match address {
        IpAddr::V4(address) => (address.to_ipv6_mapped().to_bits(), 96 + u32::from(learning.prefix4.min(32))),
        IpAddr::V6(address) => (address.to_bits(), u32::from(learning.prefix6.min(128))),
    };
    let mask = u128::MAX.checked_shl(128 - length).unwrap_or(0);
    (bits & mask).to_be_bytes()
}

/// Sets what the program prefers.
pub(super) fn set(maps: &mut OpenGuardMaps<'_>, learning: Option<&GuardLearning>) {
    let (Some(knobs), Some(learning)) = (maps.rodata_data.as_deref_mut(), learning) else { return };
    knobs.has_learning = true;
    knobs.learn_prefix4 = learning.prefix4.min(32).into();
    knobs.learn_prefix6 = learning.prefix6.min(128).into();
    knobs.learn_after = learning.after.min(1 << 62);
    knobs.learn_expiry = learning.expiry.min(1 << 62);
    (knobs.learned_cost, knobs.learned_burst) = learning.rate.map_or((0, 0), GuardRate::times);
}
