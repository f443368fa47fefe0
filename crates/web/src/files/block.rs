//! Blocks of files as reference-counted octets: the cache, the buffers, and the two ways of reading.
//!
//! ```text
//!   spare buffers ──take──▶ Buffer ──filled by preadv2/pread──▶ Block ──▶ cache, exchanges, transports
//!        ▲                                                        │ last reference dropped
//!        └────────────────────────────────────────────────────────┘
//! ```
//!
//! A block counts in [`Memory`] until its last reference has gone. Where a client takes little, or may hold little, just
//! the piece is read that it takes.

use std::io::IoSliceMut;
use std::ops::{Deref, Range};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use quick_cache::sync::Cache;
use quick_cache::{DefaultHashBuilder, Lifecycle, OptionsBuilder, Weighter};
use rustix::io::{Errno, ReadWriteFlags, pread, preadv2};

use super::open::{Identity, OpenFile};
use crate::BodyError;
use crate::log_limit::LogLimit;
use crate::memory::{Memory, Sliced};
use crate::metrics::{count, counters};

/// Spare buffers kept for the next read. Enough for all readers, read-ahead and the blocks that a turn of
/// evictions frees, at 16 MiB with the default block.
const SPARE_BUFFERS: usize = 64;

/// Part of the memory's budget that spare buffers may take.
const SPARE_SHARE: usize = 16;

/// What a cached block costs beyond its octets: key, value and the cache's own tables.
const ENTRY_OVERHEAD: usize = 192;

/// Errors of reading.
static UNREAD: LogLimit = LogLimit::new();

counters! {
    /// What reading files did.
    pub(crate) struct BlockCounters {
        "Blocks found in the block cache." block_cache_hits,
        "Blocks not found in the block cache." block_cache_misses,
        "Blocks read from the page cache without leaving the worker." block_reads_now,
        "Blocks read by reader threads." block_reads_pooled,
        "Partial blocks read from the page cache because their client reads slowly or may hold little memory." piece_reads_now,
        "Such partial blocks read by reader threads." piece_reads_pooled,
        "Bytes read from files." block_read_bytes,
        "Blocks released by responses because their client was not reading them." blocks_released,
        "Reads that found the file truncated, extended or rewritten while it was served." file_changed,
        "Reads that failed." file_read_errors,
    }
}

/// A block of one version of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct BlockKey {
    pub(crate) file: Identity,
    /// Index of the block in the file.
    pub(crate) index: u64,
}

/// A block's bytes, shared by all its holders.
#[derive(Debug, Clone)]
pub(crate) struct Block(Arc<Buffer>);

impl Deref for Block {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0.octets[..self.0.length]
    }
}

impl Block {
    /// Octets of memory that it takes.
    pub(crate) fn memory(&self) -> usize {
        self.0.octets.len()
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

/// The memory of one block. A whole one goes back to the spare ones in the end.
#[derive(Debug)]
struct Buffer {
    octets: Box<[u8]>,
    length: usize,
    spare: Arc<Spare>,
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

/// Octets of memory behind a block of `length`: a whole buffer above half its size, else just its length.
fn held_bytes(length: usize, block_bytes: usize) -> usize {
    if length > block_bytes / 2 { block_bytes } else { length }
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
pub(crate) struct Blocks {
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
    pub(crate) fn block_bytes(&self) -> usize {
        self.spare.block_bytes
    }

    /// Whether blocks are kept at all.
    pub(crate) fn keeps(&self) -> bool {
        self.cache.is_some()
    }

    /// Octets held by the cache, and blocks in it.
    pub(crate) fn levels(&self) -> (u64, usize) {
        self.cache.as_ref().map_or((0, 0), |cache| (cache.weight(), cache.len()))
    }

    /// A cached block. Counts a hit; the caller that then reads the block counts the miss.
    pub(crate) fn cached(&self, key: &BlockKey) -> Option<Block> {
        let block = self.cache.as_ref().and_then(|cache| cache.get(key));
        if block.is_some() {
            count(&self.counters.block_cache_hits);
        }
        block
    }

    /// Whether a block is cached, without counting as a use of it.
    pub(crate) fn holds(&self, key: &BlockKey) -> bool {
        self.cache.as_ref().is_some_and(|cache| cache.contains_key(key))
    }

    /// Octets of memory that a block takes once it is read.
    pub(crate) fn memory_of(&self, file: &OpenFile, index: u64) -> usize {
        held_bytes(self.extent(file, index).1, self.block_bytes())
    }

    /// Reads a block if the page cache has all of it; `None` if a thread that may block has to read it.
    pub(crate) fn read_now(&self, file: &OpenFile, index: u64) -> Result<Option<Block>, BodyError> {
        let (offset, length) = self.extent(file, index);
        let mut buffer = self.take(length);
        if !self.fill_now(file, &mut buffer.octets[..length], offset)? {
            return Ok(None);
        }
        count(&self.counters.block_reads_now);
        self.complete(file, index, buffer).map(Some)
    }

    /// Reads a block, waiting for the disk; or returns it if it was cached since the job was queued.
    pub(crate) fn read(&self, file: &OpenFile, index: u64) -> Result<Block, BodyError> {
        let key = BlockKey { file: file.identity, index };
        if let Some(block) = self.cache.as_ref().and_then(|cache| cache.peek(&key)) {
            return Ok(block);
        }
        let (offset, length) = self.extent(file, index);
        let mut buffer = self.take(length);
        self.fill(file, &mut buffer.octets[..length], offset)?;
        count(&self.counters.block_reads_pooled);
        self.complete(file, index, buffer)
    }

    /// Reads the octets in `range` alone, if the page cache has them.
    pub(crate) fn read_piece_now(
        &self,
        file: &OpenFile,
        range: Range<u64>,
    ) -> Result<Option<Bytes>, BodyError> {
        let mut octets = vec![0; (range.end - range.start) as usize];
        if !self.fill_now(file, &mut octets, range.start)? {
            return Ok(None);
        }
        count(&self.counters.piece_reads_now);
        self.check(file, octets.len())?;
        Ok(Some(octets.into()))
    }

    /// Reads the octets in `range` alone, waiting for the disk.
    pub(crate) fn read_piece(&self, file: &OpenFile, range: Range<u64>) -> Result<Bytes, BodyError> {
        let mut octets = vec![0; (range.end - range.start) as usize];
        self.fill(file, &mut octets, range.start)?;
        count(&self.counters.piece_reads_pooled);
        self.check(file, octets.len())?;
        Ok(octets.into())
    }

    /// Fills `octets` from `offset` if the page cache has all of it.
    fn fill_now(&self, file: &OpenFile, octets: &mut [u8], offset: u64) -> Result<bool, BodyError> {
        if !file.nowait.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let length = octets.len();
        let mut slices = [IoSliceMut::new(octets)];
        loop {
            match preadv2(&file.fd, &mut slices, offset, ReadWriteFlags::NOWAIT) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::OPNOTSUPP) => {
                    file.nowait.store(false, Ordering::Relaxed);
                    return Ok(false);
                }
                Err(error) => return Err(self.failed(error)),
                // Either the page cache has only a part, or the file is shorter now: the reader finds out.
                Ok(read) => return Ok(read == length),
            }
        }
    }

    /// Fills `octets` from `offset`, waiting for the disk.
    fn fill(&self, file: &OpenFile, octets: &mut [u8], offset: u64) -> Result<(), BodyError> {
        let mut filled = 0;
        while filled < octets.len() {
            match pread(&file.fd, &mut octets[filled..], offset + filled as u64) {
                Err(Errno::INTR) => {}
                Err(error) => return Err(self.failed(error)),
                Ok(0) => {
                    count(&self.counters.file_changed);
                    return Err(BodyError::Changed);
                }
                Ok(read) => filled += read,
            }
        }
        Ok(())
    }

    /// Where a block lies in its file: offset and length.
    fn extent(&self, file: &OpenFile, index: u64) -> (u64, usize) {
        let offset = index * self.block_bytes() as u64;
        let rest = file.identity.size.saturating_sub(offset);
        (offset, usize::try_from(rest).unwrap_or(usize::MAX).min(self.block_bytes()))
    }

    /// Checks that the file is still the one announced. The check comes after the read, so data affected by
    /// a change is never handed out.
    fn check(&self, file: &OpenFile, length: usize) -> Result<(), BodyError> {
        match file.is_unchanged() {
            Ok(true) => {
                self.counters.block_read_bytes.fetch_add(length as u64, Ordering::Relaxed);
                Ok(())
            }
            Ok(false) => {
                count(&self.counters.file_changed);
                Err(BodyError::Changed)
            }
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Checks the file, then shares and caches the block.
    fn complete(&self, file: &OpenFile, index: u64, buffer: Buffer) -> Result<Block, BodyError> {
        self.check(file, buffer.length)?;
        let block = Block(Arc::new(buffer));
        if let Some(cache) = &self.cache
            && file.identity.age.is_kept()
        {
            let memory = &self.spare.memory;
            memory.add_block(ENTRY_OVERHEAD);
            memory.add_cached(block.memory() + ENTRY_OVERHEAD);
            cache.insert(BlockKey { file: file.identity, index }, block.clone());
        }
        Ok(block)
    }

    /// A buffer for `length` octets.
    fn take(&self, length: usize) -> Buffer {
        Buffer { octets: self.spare.take(length), length, spare: Arc::clone(&self.spare) }
    }

    fn failed(&self, error: Errno) -> BodyError {
        count(&self.counters.file_read_errors);
        if let Some(unsaid) = UNREAD.is_due() {
            tracing::warn!(%error, unsaid, "reading a file failed");
        }
        BodyError::Read(error.raw_os_error())
    }
}
