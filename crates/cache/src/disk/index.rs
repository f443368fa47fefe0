//! Which entries exist, and where.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks of the index, so that workers seldom meet.
const SHARDS: usize = 64;

/// What an entry holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Id {
    /// The block of that index of a version of an object.
    Block(u64, u32),
    /// What is known of a URL of that hash.
    Record(u128),
}

impl Id {
    /// Both kinds as one number. Versions and hashes are random, so no two meet.
    fn number(self) -> u128 {
        match self {
            Self::Block(version, index) => u128::from(version) << 64 | u128::from(index) << 1 | 1,
            Self::Record(number) => number & !1,
        }
    }

    fn shard(self) -> usize {
        let number = self.number();
        (mix(number) >> 32) as usize % SHARDS
    }
}

/// The octets of an entry, 12 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(super) region: u32,
    /// Of 64 octets, from the region's start.
    pub(super) unit: u32,
    /// Octets of content.
    pub(super) length: u32,
}

impl Extent {
    pub(super) fn at(&self) -> (u32, u32) {
        (self.region, self.unit)
    }
}

/// The highest bit of a length: the entry was read.
const HOT: u32 = 1 << 31;

fn mix(number: u128) -> u64 {
    let folded = number as u64 ^ (number >> 64) as u64;
    folded.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Keys are random already, apart from a block's index.
#[derive(Debug, Default)]
pub(super) struct Folded(u64);

impl Hasher for Folded {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are numbers of 128 bits");
    }

    fn write_u128(&mut self, number: u128) {
        self.0 = mix(number);
    }
}

/// A number of 128 bits at the alignment of smaller ones: 28 bytes an entry in place of 32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Packed([u32; 4]);

impl Packed {
    fn new(number: u128) -> Self {
        Self([number as u32, (number >> 32) as u32, (number >> 64) as u32, (number >> 96) as u32])
    }
}

impl std::hash::Hash for Packed {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let [a, b, c, d] = self.0.map(u128::from);
        state.write_u128(a | b << 32 | c << 64 | d << 96);
    }
}

type Shard = HashMap<Packed, Extent, BuildHasherDefault<Folded>>;

/// All entries.
#[derive(Debug)]
pub(super) struct Index {
    shards: Vec<Mutex<Shard>>,
    length: AtomicUsize,
    most: usize,
}

impl Index {
    pub(super) fn new(most: usize) -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), length: AtomicUsize::new(0), most }
    }

    fn lock(&self, id: Id) -> MutexGuard<'_, Shard> {
        self.shards[id.shard()].lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn len(&self) -> usize {
        self.length.load(Ordering::Relaxed)
    }

    pub(super) fn is_full(&self) -> bool {
        self.len() >= self.most
    }

    /// Where an entry is. `uses` counts as a use of it.
    pub(super) fn find(&self, id: Id, uses: bool) -> Option<Extent> {
        let mut shard = self.lock(id);
        let extent = shard.get_mut(&Packed::new(id.number()))?;
        if uses {
            extent.length |= HOT;
        }
        Some(Extent { length: extent.length & !HOT, ..*extent })
    }

    pub(super) fn insert(&self, id: Id, extent: Extent) {
        if self.lock(id).insert(Packed::new(id.number()), extent).is_none() {
            self.length.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn remove(&self, id: Id) -> Option<Extent> {
        let removed = self.lock(id).remove(&Packed::new(id.number()))?;
        self.length.fetch_sub(1, Ordering::Relaxed);
        Some(removed)
    }

    /// Removes an entry if it is at `extent`. True if it was.
    pub(super) fn remove_at(&self, id: Id, extent: Extent) -> bool {
        self.take_at(id, extent).is_some()
    }

    /// The same; whether it was read.
    pub(super) fn take_at(&self, id: Id, extent: Extent) -> Option<bool> {
        let mut shard = self.lock(id);
        let key = Packed::new(id.number());
        let found = shard.get(&key).filter(|found| found.at() == extent.at())?;
        let was_read = found.length & HOT != 0;
        shard.remove(&key);
        drop(shard);
        self.length.fetch_sub(1, Ordering::Relaxed);
        Some(was_read)
    }
}
