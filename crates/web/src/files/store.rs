//! What all file sites share: the block cache, the open-file cache and the reader threads.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, Equivalent, OptionsBuilder, Weighter};
use rustix::time::{ClockId, clock_gettime};

use super::FileOptions;
use super::hls::Holds;
use super::lookup::{Found, LookupError, Tree};
use super::open::Identity;
use super::pool::{Pool, PoolCounters};
use crate::BodyError;
use crate::blocks::{Block, BlockKey, Blocks};
use crate::compress::CompressCounters;
use crate::memory::Memory;
use crate::timer::{Alarms, Timer};
use expressway_metrics::{Metric, count, counters};

counters! {
    /// What looking paths up did.
    pub(crate) struct LookupCounters {
        /// Requests answered from the open-file cache.
        pub(crate) open_file_cache_hits: AtomicU64,
        /// Requests whose path was not in the open-file cache or had expired.
        pub(crate) open_file_cache_misses: AtomicU64,
        /// Paths looked up by reader threads because the kernel's directory cache did not know them.
        pub(crate) lookups_pooled: AtomicU64,
        /// Lookups that failed for lack of file descriptors.
        pub(crate) lookups_exhausted: AtomicU64,
    }
}

/// What a reader thread is asked for, and by which later requests for the same join.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Job {
    /// A block of a file.
    Block(BlockKey),
    /// Octets of a file.
    Piece(Identity, Range<u64>),
    /// A path under the root of that number.
    Lookup(u64, Arc<[u8]>),
    /// Work of that number, which only one waits for.
    Task(u64),
    /// A playlist that is waited for, under the root of that number.
    Playlist(u64, Arc<[u8]>),
}

/// What a reader thread found.
#[derive(Debug, Clone)]
pub(crate) enum Outcome {
    /// For [`Job::Block`].
    Block(Result<Block, BodyError>),
    /// For [`Job::Piece`].
    Piece(Result<Bytes, BodyError>),
    /// For [`Job::Lookup`].
    Found(Result<Arc<Found>, LookupError>),
    /// For [`Job::Task`]: it is done.
    Task,
    /// The job could not be finished: it panicked, or the store is being dropped. Or nobody waits for it.
    Lost,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct OpenKey {
    root: u64,
    path: Box<[u8]>,
}

/// An [`OpenKey`] to look up with; hashes alike because `Box<[u8]>` hashes as `[u8]`.
#[derive(Debug, Hash)]
struct OpenKeyRef<'a> {
    root: u64,
    path: &'a [u8],
}

impl Equivalent<OpenKey> for OpenKeyRef<'_> {
    fn equivalent(&self, key: &OpenKey) -> bool {
        self.root == key.root && *self.path == *key.path
    }
}

#[derive(Debug, Clone)]
struct Kept {
    found: Arc<Found>,
    /// When the path is to be looked up again, by [`now`].
    until: Duration,
}

#[derive(Debug, Clone)]
struct ByDescriptors;

impl Weighter<OpenKey, Kept> for ByDescriptors {
    fn weight(&self, _key: &OpenKey, kept: &Kept) -> u64 {
        match &*kept.found {
            Found::Resource(resource) => resource.descriptors().max(1) as u64,
            Found::Redirect(_) => 1,
        }
    }
}

/// Paths looked up not long ago, with their files open. Bounded by file descriptors.
#[derive(Debug)]
pub(crate) struct OpenFiles {
    cache: Option<Cache<OpenKey, Kept, ByDescriptors>>,
    valid: Duration,
}

impl OpenFiles {
    fn new(capacity: usize, valid: Duration) -> Self {
        let cache = (capacity > 0 && !valid.is_zero()).then(|| {
            let options = OptionsBuilder::new()
                .estimated_items_capacity(capacity)
                .weight_capacity(capacity as u64)
                .shards((capacity / 64).clamp(1, 64).next_power_of_two())
                .build();
            match options {
                Ok(options) => Cache::with_options(
                    options,
                    ByDescriptors,
                    DefaultHashBuilder::default(),
                    DefaultLifecycle::default(),
                ),
                Err(_) => Cache::with_weighter(capacity, capacity as u64, ByDescriptors),
            }
        });
        Self { cache, valid }
    }

    /// What `path` was found to be, if that is still to be trusted.
    pub(crate) fn find(&self, root: u64, path: &[u8]) -> Option<Arc<Found>> {
        let kept = self.cache.as_ref()?.get(&OpenKeyRef { root, path })?;
        (now() < kept.until).then_some(kept.found)
    }

    /// Keeps what `path` was just found to be.
    pub(crate) fn keep(&self, root: u64, path: &[u8], found: &Arc<Found>) {
        if let Some(cache) = &self.cache {
            let until = now().saturating_add(self.valid.min(found.is_good_for()));
            cache.insert(OpenKey { root, path: path.into() }, Kept { found: Arc::clone(found), until });
        }
    }

    /// Forgets everything, and so closes what nobody is serving.
    pub(crate) fn clear(&self) {
        if let Some(cache) = &self.cache {
            cache.clear();
        }
    }

    /// Forgets what belongs to `root`.
    pub(crate) fn forget(&self, root: u64) {
        if let Some(cache) = &self.cache {
            cache.retain(|key, _| key.root != root);
        }
    }

    fn descriptors(&self) -> u64 {
        self.cache.as_ref().map_or(0, Cache::weight)
    }
}

/// Monotonic time with the resolution of the kernel's tick, which costs a few nanoseconds to read.
fn now() -> Duration {
    let time = clock_gettime(ClockId::MonotonicCoarse);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Caches, reader threads and counters that all sites of a process share. Survives reloads.
///
/// What it and the connections pin is counted in one [`Memory`].
pub struct FileStore {
    pub(crate) blocks: Arc<Blocks>,
    pub(crate) open_files: Arc<OpenFiles>,
    pub(crate) pool: Pool<Job, Outcome>,
    pub(crate) counters: Arc<LookupCounters>,
    pub(crate) compress_counters: Arc<CompressCounters>,
    pub(crate) holds: Holds,
    timer: Timer,
    memory: Arc<Memory>,
    pub(crate) readahead: u64,
    pub(crate) try_on_worker: bool,
}

impl FileStore {
    /// Starts the reader threads and a timer. Fails when a thread cannot be started or an option makes no sense
    /// (`InvalidInput`, naming the option).
    pub fn new(options: FileOptions) -> io::Result<Arc<Self>> {
        options.validate().map_err(|problem| io::Error::new(io::ErrorKind::InvalidInput, problem))?;
        let memory = Memory::new(usize::try_from(options.memory_bytes).unwrap_or(usize::MAX));
        let blocks = Blocks::new(options.cache_bytes, options.block_bytes, &memory);
        let readahead = if blocks.keeps() { options.readahead_blocks as u64 } else { 0 };
        let timer = Timer::start()?;
        Ok(Arc::new(Self {
            holds: Holds::new(timer.alarms()),
            timer,
            blocks: Arc::new(blocks),
            open_files: Arc::new(OpenFiles::new(options.open_files, options.open_file_valid)),
            pool: Pool::start(options.reader_threads, options.reader_queue, Outcome::Lost)?,
            counters: Arc::default(),
            compress_counters: Arc::default(),
            memory,
            readahead,
            try_on_worker: options.try_on_worker,
        }))
    }

    /// The block cache.
    pub fn blocks(&self) -> &Arc<Blocks> {
        &self.blocks
    }

    /// What wakes at a time.
    pub(crate) fn alarms(&self) -> Alarms {
        self.timer.alarms()
    }

    /// Where all that is pinned is counted.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Every counter and gauge of caches and readers.
    pub fn metrics(&self) -> Vec<Metric> {
        let (cache_bytes, cache_blocks) = self.blocks.levels();
        let (queued, blocked) = self.pool.levels();
        let gauge = Metric::gauge;
        let levels = [
            gauge("block_cache_bytes", "Bytes held by the block cache.", cache_bytes),
            gauge("block_cache_blocks", "Blocks in the block cache.", cache_blocks as u64),
            gauge(
                "open_file_cache_descriptors",
                "File descriptors held by the open-file cache.",
                self.open_files.descriptors(),
            ),
            gauge("reader_queue_length", "Jobs queued for reader threads.", queued as u64),
            gauge("reader_queue_blocked", "Exchanges waiting for room in the queue.", blocked as u64),
            gauge("reader_waiters", "Exchanges waiting for reader threads.", self.pool.waiters() as u64),
        ];
        let pool: &PoolCounters = self.pool.counters();
        let counters =
            self.counters.fields().into_iter().chain(self.blocks.counters.fields()).chain(pool.fields());
        let counters = counters.chain(self.compress_counters.fields()).chain(levels);
        counters.chain(self.holds.metrics()).chain(self.memory.metrics()).collect()
    }

    /// The job that looks `path` up, allowed to block.
    pub(crate) fn lookup_job(&self, tree: &Arc<Tree>, path: &Arc<[u8]>) -> impl FnOnce() -> Outcome + use<> {
        let (tree, path) = (Arc::clone(tree), Arc::clone(path));
        let (open_files, counters) = (Arc::clone(&self.open_files), Arc::clone(&self.counters));
        move || {
            count(&counters.lookups_pooled);
            let mut result = tree.look_up(&path, false);
            if matches!(result, Err(LookupError::Exhausted)) {
                open_files.clear();
                result = tree.look_up(&path, false);
            }
            if let Err(LookupError::Exhausted) = result {
                count(&counters.lookups_exhausted);
            }
            Outcome::Found(result.map(|found| {
                let found = Arc::new(found);
                open_files.keep(tree.root.id, &path, &found);
                found
            }))
        }
    }
}

impl std::fmt::Debug for FileStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileStore").field("blocks", &self.blocks).finish_non_exhaustive()
    }
}
