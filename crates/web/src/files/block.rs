//! Blocks of files as reference-counted octets: the cache, the buffers, and the two ways of reading.
//!
//! ```text
//!   free buffers ──take──▶ Buffer ──filled by preadv2/pread──▶ Bytes ──▶ cache and connections
//!        ▲                                                      │ last reference dropped
//!        └──────────────────────────────────────────────────────┘
//! ```

use std::io::IoSliceMut;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};
use rustix::io::{Errno, ReadWriteFlags, pread, preadv2};

use super::open::{Identity, OpenFile};
use crate::BodyError;
use crate::metrics::{count, counters};

/// Free buffers kept for the next read. Enough for all readers, read-ahead and the blocks that a turn of
/// evictions frees, at 16 MiB with the default block.
const FREE_BUFFERS: usize = 64;

/// What a cached block costs beyond its octets: key, value and the cache's own tables.
const ENTRY_OVERHEAD: u64 = 160;

counters! {
    /// What reading files did.
    pub(crate) struct BlockCounters {
        "Blocks found in the block cache." block_cache_hits,
        "Blocks not found in the block cache." block_cache_misses,
        "Blocks read from the page cache without leaving the worker." block_reads_now,
        "Blocks read by reader threads." block_reads_pooled,
        "Octets read from files." block_read_bytes,
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

#[derive(Debug, Clone)]
struct ByBytes {
    block_bytes: usize,
}

impl Weighter<BlockKey, Bytes> for ByBytes {
    fn weight(&self, _key: &BlockKey, block: &Bytes) -> u64 {
        held_bytes(block.len(), self.block_bytes) as u64 + ENTRY_OVERHEAD
    }
}

/// Octets of memory behind a block of `length`: a whole buffer above half its size, else just its length.
fn held_bytes(length: usize, block_bytes: usize) -> usize {
    if length > block_bytes / 2 { block_bytes } else { length }
}

/// The block cache and the buffers that blocks are read into.
#[derive(Debug)]
pub(crate) struct Blocks {
    cache: Option<Cache<BlockKey, Bytes, ByBytes>>,
    free: Arc<Mutex<Vec<Box<[u8]>>>>,
    block_bytes: usize,
    pub(crate) counters: BlockCounters,
}

/// A buffer that goes back to the free ones with the last reference to its block.
struct Buffer {
    octets: Box<[u8]>,
    length: usize,
    free: Arc<Mutex<Vec<Box<[u8]>>>>,
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.octets[..self.length]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < FREE_BUFFERS {
            free.push(std::mem::take(&mut self.octets));
        }
    }
}

impl Blocks {
    /// A cache of `cache_bytes` (0: none) for blocks of `block_bytes`.
    pub(crate) fn new(cache_bytes: u64, block_bytes: usize) -> Self {
        let cache = (cache_bytes > 0).then(|| {
            // Each shard evicts for itself and takes nothing larger than itself, so a small cache has few.
            let blocks = usize::try_from(cache_bytes / block_bytes as u64).unwrap_or(usize::MAX).max(1);
            let shards = (blocks / 16).clamp(1, 64).next_power_of_two();
            let options = OptionsBuilder::new()
                .estimated_items_capacity(blocks.min(1 << 20))
                .weight_capacity(cache_bytes)
                .shards(shards)
                .build();
            let weighter = ByBytes { block_bytes };
            match options {
                Ok(options) => Cache::with_options(
                    options,
                    weighter,
                    DefaultHashBuilder::default(),
                    DefaultLifecycle::default(),
                ),
                Err(_) => Cache::with_weighter(blocks.min(1 << 20), cache_bytes, weighter),
            }
        });
        Self { cache, free: Arc::default(), block_bytes, counters: BlockCounters::default() }
    }

    /// Octets a block.
    pub(crate) fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Whether blocks are kept at all.
    pub(crate) fn keeps(&self) -> bool {
        self.cache.is_some()
    }

    /// Octets held by the cache, and blocks in it.
    pub(crate) fn levels(&self) -> (u64, usize) {
        self.cache.as_ref().map_or((0, 0), |cache| (cache.weight(), cache.len()))
    }

    /// A cached block. Counts a hit; whoever goes on to read the block counts the miss.
    pub(crate) fn cached(&self, key: &BlockKey) -> Option<Bytes> {
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

    /// Reads a block if the page cache has all of it; `None` if a thread that may block has to read it.
    pub(crate) fn read_now(&self, file: &OpenFile, index: u64) -> Result<Option<Bytes>, BodyError> {
        if !file.nowait.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let (offset, length) = self.extent(file, index);
        let mut octets = self.take(length);
        let read = loop {
            let mut slices = [IoSliceMut::new(&mut octets[..length])];
            match preadv2(&file.fd, &mut slices, offset, ReadWriteFlags::NOWAIT) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break 0,
                Err(Errno::OPNOTSUPP) => {
                    file.nowait.store(false, Ordering::Relaxed);
                    break 0;
                }
                Err(error) => return Err(self.failed(error)),
                Ok(read) => break read,
            }
        };
        if read < length {
            // Either the page cache has only a part, or the file is shorter now: the reader finds out.
            self.give_back(octets);
            return Ok(None);
        }
        count(&self.counters.block_reads_now);
        self.complete(file, index, octets, length).map(Some)
    }

    /// Reads a block, waiting for the disk; or returns it if it was cached since the job was queued.
    pub(crate) fn read(&self, file: &OpenFile, index: u64) -> Result<Bytes, BodyError> {
        let key = BlockKey { file: file.identity, index };
        if let Some(block) = self.cache.as_ref().and_then(|cache| cache.peek(&key)) {
            return Ok(block);
        }
        let (offset, length) = self.extent(file, index);
        let mut octets = self.take(length);
        let mut filled = 0;
        while filled < length {
            match pread(&file.fd, &mut octets[filled..length], offset + filled as u64) {
                Err(Errno::INTR) => {}
                Err(error) => return Err(self.failed(error)),
                Ok(0) => {
                    count(&self.counters.file_changed);
                    return Err(BodyError::Changed);
                }
                Ok(read) => filled += read,
            }
        }
        count(&self.counters.block_reads_pooled);
        self.complete(file, index, octets, length)
    }

    /// Where a block lies in its file: offset and length.
    fn extent(&self, file: &OpenFile, index: u64) -> (u64, usize) {
        let offset = index * self.block_bytes as u64;
        let rest = file.identity.size.saturating_sub(offset);
        (offset, usize::try_from(rest).unwrap_or(usize::MAX).min(self.block_bytes))
    }

    /// Checks that the file is still the one announced, then shares and caches the block. The check comes
    /// after the read, so what a change may have put into the block is never handed out.
    fn complete(
        &self,
        file: &OpenFile,
        index: u64,
        octets: Box<[u8]>,
        length: usize,
    ) -> Result<Bytes, BodyError> {
        match file.is_unchanged() {
            Ok(true) => {}
            Ok(false) => {
                count(&self.counters.file_changed);
                return Err(BodyError::Changed);
            }
            Err(error) => return Err(self.failed(error)),
        }
        self.counters.block_read_bytes.fetch_add(length as u64, Ordering::Relaxed);
        let block = if octets.len() == self.block_bytes {
            Bytes::from_owner(Buffer { octets, length, free: Arc::clone(&self.free) })
        } else {
            Bytes::from(octets)
        };
        if let Some(cache) = &self.cache {
            cache.insert(BlockKey { file: file.identity, index }, block.clone());
        }
        Ok(block)
    }

    /// A buffer for `length` octets: a recycled whole one, or one of just that size for a small block.
    fn take(&self, length: usize) -> Box<[u8]> {
        let held = held_bytes(length, self.block_bytes);
        if held == self.block_bytes
            && let Some(octets) = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop()
        {
            return octets;
        }
        vec![0; held].into_boxed_slice()
    }

    fn give_back(&self, octets: Box<[u8]>) {
        if octets.len() == self.block_bytes {
            drop(Buffer { octets, length: 0, free: Arc::clone(&self.free) });
        }
    }

    fn failed(&self, error: Errno) -> BodyError {
        count(&self.counters.file_read_errors);
        tracing::warn!(%error, "reading a file failed");
        BodyError::Read(error.raw_os_error())
    }
}
