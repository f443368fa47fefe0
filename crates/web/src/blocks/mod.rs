//! Blocks of files and of cached objects as reference-counted octets: the cache, the buffers, and how they are lent.
//!
//! ```text
//!   spare buffers ──buffer──▶ Buffer ──filled from a file or an origin──▶ Block ──▶ cache, exchanges, transports
//!        ▲                                                                  │ last reference dropped
//!        └──────────────────────────────────────────────────────────────────┘
//! ```
//!
//! One budget serves all of them, whatever they are blocks of. A block counts in [`Memory`] until its last reference has
//! gone. Where a client takes little, or may hold little, just the piece is copied that it takes.

mod hold;

use std::ops::{Deref, Range};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use quick_cache::sync::Cache;
use quick_cache::{DefaultHashBuilder, Lifecycle, OptionsBuilder, Weighter};

use crate::files::{Encoding, Identity};
use crate::memory::{Memory, Sliced};
use expressway_metrics::{count, counters};
pub(crate) use hold::hold_block;
pub use hold::{Hold, lend};

/// Spare buffers kept for the next read. Enough for all readers, read-ahead and the blocks that a turn of
/// evictions frees, at 16 MiB with the default block.
const SPARE_BUFFERS: usize = 64;

/// Part of the memory's budget that spare buffers may take.
const SPARE_SHARE: usize = 16;

/// What a cached block costs beyond its octets: key, value and the cache's own tables.
const ENTRY_OVERHEAD: usize = 192;

counters! {
    /// What reading files did.
    pub(crate) struct BlockCounters {
        /// Blocks found in the block cache.
        pub(crate) block_cache_hits: AtomicU64,
        /// Blocks not found in the block cache.
        pub(crate) block_cache_misses: AtomicU64,
        /// Blocks read from the page cache without leaving the worker.
        pub(crate) block_reads_now: AtomicU64,
        /// Blocks read by reader threads.
        pub(crate) block_reads_pooled: AtomicU64,
        /// Partial blocks read from the page cache because their client reads slowly or may hold little memory.
        pub(crate) piece_reads_now: AtomicU64,
        /// Such partial blocks read by reader threads.
        pub(crate) piece_reads_pooled: AtomicU64,
        /// Bytes read from files.
        pub(crate) block_read_bytes: AtomicU64,
        /// Blocks released by responses because their client was not reading them.
        pub(crate) blocks_released: AtomicU64,
        /// Reads that found the file truncated, extended or rewritten while it was served.
        pub(crate) file_changed: AtomicU64,
        /// Reads that failed.
        pub(crate) file_read_errors: AtomicU64,
    }
}

/// What a block is part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockSource(pub(crate) Of);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Of {
    File(Identity),
    /// A file in a coding, made at a level.
    Coded(Identity, Encoding, u8),
    Object(u64),
    Record(u128),
}

impl BlockSource {
    /// A version of an object of that number, which no other version of anything has.
    pub fn object(version: u64) -> Self {
        Self(Of::Object(version))
    }

    /// Something that is read but not kept as a block, such as what is known of a cached object.
    pub fn record(number: u128) -> Self {
        Self(Of::Record(number))
    }
}

/// A block of one version of a file or object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockKey {
    /// What it is part of.
    pub source: BlockSource,
    /// Its index there: a block begins at this times the octets a block.
    pub index: u64,
}

impl BlockKey {
    pub(crate) fn file(file: Identity, index: u64) -> Self {
        Self { source: BlockSource(Of::File(file)), index }
    }

    /// All of a file, coded.
    pub(crate) fn coded(file: Identity, encoding: Encoding, level: u8) -> Self {
        Self { source: BlockSource(Of::Coded(file, encoding, level)), index: 0 }
    }
}

/// A block's bytes, shared by all its holders.
#[derive(Debug, Clone)]
pub struct Block(Arc<Buffer>);

impl Deref for Block {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0.octets[..self.0.length]
    }
}

impl Block {
    /// Octets of memory that it takes.
    pub fn memory(&self) -> usize {
        self.0.octets.len()
    }

    /// Octets of it, which keep it in memory.
    pub fn part(&self, range: Range<usize>) -> Bytes {
        self.slice(range, None)
    }

    /// Octets of it, which keep it in memory; `sliced` counts them.
    pub(crate) fn slice(&self, range: Range<usize>, sliced: Option<Sliced>) -> Bytes {
        Bytes::from_owner(Slice { block: self.clone(), range, _sliced: sliced })
    }
}

struct Slice {
    block: Block,
    range: Range<usize>,
    _sliced: Option<Sliced>,
}

impl AsRef<[u8]> for Slice {
    fn as_ref(&self) -> &[u8] {
        &self.block[self.range.clone()]
    }
}

/// The memory of a block that is being filled. A whole one goes back to the spare ones in the end.
#[derive(Debug)]
pub struct Buffer {
    octets: Box<[u8]>,
    length: usize,
    spare: Arc<Spare>,
}

impl Buffer {
    /// The octets to fill, and those of the block when it is filled.
    pub fn octets(&mut self) -> &mut [u8] {
        &mut self.octets[..self.length]
    }

    /// Shortens the block.
    pub fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }

    /// The block.
    pub fn freeze(self) -> Block {
        Block(Arc::new(self))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.spare.memory.remove_block(self.octets.len());
        self.spare.give_back(std::mem::take(&mut self.octets));
    }
}

/// Buffers for blocks to come.
#[derive(Debug)]
struct Spare {
    buffers: Mutex<Vec<Box<[u8]>>>,
    most: usize,
    block_bytes: usize,
    memory: Arc<Memory>,
}

impl Spare {
    /// A buffer for `length` octets: a spare whole one, or one of just that size for a small block.
    fn take(&self, length: usize) -> Box<[u8]> {
        let held = held_bytes(length, self.block_bytes);
        let spare = (held == self.block_bytes)
            .then(|| self.buffers.lock().unwrap_or_else(PoisonError::into_inner).pop())
            .flatten();
        if spare.is_some() {
            self.memory.remove_spare(self.block_bytes);
        }
        self.memory.add_block(held);
        spare.unwrap_or_else(|| vec![0; held].into_boxed_slice())
    }

    /// Keeps a buffer that does not count as a block any more, if it is whole and there is room.
    fn give_back(&self, octets: Box<[u8]>) {
        if octets.len() != self.block_bytes {
            return;
        }
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        if buffers.len() < self.most {
            self.memory.add_spare(octets.len());
            buffers.push(octets);
        }
    }
}

/// Octets of memory behind a block of `length`: a whole buffer above half its size, else just its length (also for
/// what is read like a block but is longer).
pub(crate) fn held_bytes(length: usize, block_bytes: usize) -> usize {
    if (block_bytes / 2 + 1..=block_bytes).contains(&length) { block_bytes } else { length }
}

#[derive(Debug, Clone)]
struct ByMemory;

impl Weighter<BlockKey, Block> for ByMemory {
    fn weight(&self, _key: &BlockKey, block: &Block) -> u64 {
        (block.memory() + ENTRY_OVERHEAD) as u64
    }
}

/// Counts what leaves the cache.
#[derive(Debug, Clone)]
struct Leaving(Arc<Memory>);

impl Lifecycle<BlockKey, Block> for Leaving {
    /// The first two are dropped outside the cache's lock; more come of a few small ones that give way to a large one.
    type RequestState = [Option<Block>; 2];

    fn on_evict(&self, state: &mut Self::RequestState, _key: BlockKey, block: Block) {
        self.0.remove_cached(block.memory() + ENTRY_OVERHEAD);
        self.0.remove_block(ENTRY_OVERHEAD);
        if let Some(place) = state.iter_mut().find(|place| place.is_none()) {
            *place = Some(block);
        }
    }
}

/// The block cache and the buffers that blocks are read into.
#[derive(Debug)]
pub struct Blocks {
    cache: Option<Cache<BlockKey, Block, ByMemory, DefaultHashBuilder, Leaving>>,
    spare: Arc<Spare>,
    pub(crate) counters: BlockCounters,
}

impl Blocks {
    /// A cache of `cache_bytes` (0: none) for blocks of `block_bytes`, counted in `memory`.
    pub(crate) fn new(cache_bytes: u64, block_bytes: usize, memory: &Arc<Memory>) -> Self {
        let cache = (cache_bytes > 0).then(|| {
            // Each shard evicts for itself and takes nothing larger than itself, so a small cache has few.
            let blocks = usize::try_from(cache_bytes / block_bytes as u64).unwrap_or(usize::MAX).max(1);
            let (items, shards) = (blocks.min(1 << 20), (blocks / 16).clamp(1, 64).next_power_of_two());
            let options = OptionsBuilder::new()
                .estimated_items_capacity(items)
                .weight_capacity(cache_bytes)
                .shards(shards)
                .build();
            let (hash, leaving) = (DefaultHashBuilder::default(), Leaving(Arc::clone(memory)));
            match options {
                Ok(options) => Cache::with_options(options, ByMemory, hash, leaving),
                Err(_) => Cache::with(items, cache_bytes, ByMemory, hash, leaving),
            }
        });
        let spare = Spare {
            buffers: Mutex::default(),
            most: SPARE_BUFFERS.min(memory.budget() / SPARE_SHARE / block_bytes),
            block_bytes,
            memory: Arc::clone(memory),
        };
        Self { cache, spare: Arc::new(spare), counters: BlockCounters::default() }
    }

    /// Octets a block.
    pub fn block_bytes(&self) -> usize {
        self.spare.block_bytes
    }

    /// Whether blocks are kept at all.
    pub fn keeps(&self) -> bool {
        self.cache.is_some()
    }

    /// Octets held by the cache, and blocks in it.
    pub(crate) fn levels(&self) -> (u64, usize) {
        self.cache.as_ref().map_or((0, 0), |cache| (cache.weight(), cache.len()))
    }

    /// A cached block. Counts a hit; the caller that then reads the block counts the miss.
    pub fn cached(&self, key: &BlockKey) -> Option<Block> {
        let block = self.cache.as_ref().and_then(|cache| cache.get(key));
        if block.is_some() {
            count(&self.counters.block_cache_hits);
        }
        block
    }

    /// Whether a block is cached, without counting as a use of it.
    pub fn holds(&self, key: &BlockKey) -> bool {
        self.cache.as_ref().is_some_and(|cache| cache.contains_key(key))
    }

    /// A cached block, without counting as a use of it.
    pub(crate) fn peek(&self, key: &BlockKey) -> Option<Block> {
        self.cache.as_ref().and_then(|cache| cache.peek(key))
    }

    /// A buffer for `length` octets, whose content is arbitrary.
    pub fn buffer(&self, length: usize) -> Buffer {
        Buffer { octets: self.spare.take(length), length, spare: Arc::clone(&self.spare) }
    }

    /// Keeps a block for others.
    pub fn keep(&self, key: BlockKey, block: &Block) {
        let Some(cache) = &self.cache else { return };
        let memory = &self.spare.memory;
        memory.add_block(ENTRY_OVERHEAD);
        memory.add_cached(block.memory() + ENTRY_OVERHEAD);
        cache.insert(key, block.clone());
    }

    /// Lets go of a block.
    pub fn forget(&self, key: &BlockKey) {
        let Some(cache) = &self.cache else { return };
        if let Some((_, block)) = cache.remove(key) {
            let memory = &self.spare.memory;
            memory.remove_cached(block.memory() + ENTRY_OVERHEAD);
            memory.remove_block(ENTRY_OVERHEAD);
        }
    }
}
