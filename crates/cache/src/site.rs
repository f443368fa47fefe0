//! The cache as a handler in front of another handler.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use expressway_metrics::{Metric, Times};
use expressway_web::blocks::{BlockKey, BlockSource};
use expressway_web::files::FileStore;
use expressway_web::{Exchange, Handler, RequestBody, RequestHead, Wake};
use tokio::runtime::Handle;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::bans::Bans;
use crate::disk::{Disk, Id};
use crate::exchange;
use crate::fill::Table;
use crate::heads::Heads;
use crate::metrics::{CacheCounters, FillTimes};
use crate::object::Object;
use crate::options::{CacheOptions, SiteOptions};
use crate::policy;

/// Part of the memory's budget that fetches may hold.
const FILL_SHARE: usize = 4;

/// The seed of keys' hashes, which a disk store outlives a restart by.
const SEED: u64 = 0x6578_7072_6573_7377;

/// What all sites share.
pub(crate) struct Shared {
    pub(crate) options: CacheOptions,
    pub(crate) store: Arc<FileStore>,
    pub(crate) heads: Heads,
    pub(crate) disk: Option<Arc<Disk>>,
    pub(crate) table: Table,
    pub(crate) counters: CacheCounters,
    pub(crate) times: FillTimes,
    pub(crate) runtime: Handle,
    pub(crate) block_bytes: usize,
    /// Octets a slice, a multiple of the block size.
    pub(crate) slice: u64,
    versions: AtomicU64,
    first_version: u64,
}

/// The cache of a process. Survives reloads.
#[derive(Clone)]
pub struct Cache {
    pub(crate) shared: Arc<Shared>,
}

/// A site's part in it.
pub(crate) struct SiteShared {
    pub(crate) cache: Arc<Shared>,
    pub(crate) upstream: Arc<dyn Handler>,
    pub(crate) options: SiteOptions,
}

/// A handler that answers from the cache what it can, and asks another for the rest.
pub struct CachedSite(Arc<SiteShared>);

impl Cache {
    /// Leaves the disk store to a process that succeeds this one: from now on it is only read.
    ///
    /// # Errors
    /// The lock cannot be given up.
    pub fn let_go(&self) -> io::Result<()> {
        self.shared.disk.as_ref().map_or(Ok(()), |disk| disk.let_go())
    }

    /// Takes the disk store back from a process that did not succeed this one after all.
    ///
    /// # Errors
    /// It has the store still; nothing is written then.
    pub fn take_back(&self) -> io::Result<()> {
        self.shared.disk.as_ref().map_or(Ok(()), |disk| disk.take_back())
    }

    /// Opens it: blocks and reader threads are those of `store`, fetches run on `runtime`. Fails if the disk store cannot
    /// be opened.
    pub fn open(options: CacheOptions, store: &Arc<FileStore>, runtime: Handle) -> io::Result<Self> {
        let block_bytes = store.blocks().block_bytes();
        let disk = match &options.disk {
            Some(folder) => {
                Some(Arc::new(Disk::open(folder, options.disk_size, block_bytes, options.write_queue)?))
            }
            None => None,
        };
        let bans = Bans::open(options.disk.as_deref());
        let random =
            std::hash::BuildHasher::hash_one(&std::collections::hash_map::RandomState::new(), policy::now());
        Ok(Self {
            shared: Arc::new(Shared {
                heads: Heads::new(options.heads, bans, disk.clone()),
                store: Arc::clone(store),
                disk,
                table: Table::new(options.max_fills, options.max_waiters),
                counters: CacheCounters::default(),
                times: FillTimes::default(),
                runtime,
                block_bytes,
                slice: options.slice.next_multiple_of(block_bytes as u64),
                versions: AtomicU64::new(0),
                first_version: random,
                options,
            }),
        })
    }

    /// A site that is answered from the cache, and by `upstream`.
    pub fn site(&self, options: SiteOptions, upstream: Arc<dyn Handler>) -> CachedSite {
        CachedSite(Arc::new(SiteShared { cache: Arc::clone(&self.shared), upstream, options }))
    }

    /// Waits until what is to be written to the disk is written or given up.
    pub fn flush(&self) {
        if let Some(disk) = &self.shared.disk {
            disk.flush();
        }
    }

    /// How long fetches took: names without `_total`, their help, and times.
    pub fn times(&self) -> impl Iterator<Item = (&'static str, &'static str, &Times)> {
        self.shared.times.fields().into_iter()
    }

    /// Every counter and gauge.
    pub fn metrics(&self) -> Vec<Metric> {
        let shared = &self.shared;
        let gauge = Metric::gauge;
        let ((octets, entries), (fills, waiting)) = (shared.heads.levels(), shared.table.levels());
        let levels = [
            gauge("cache_head_bytes", "Bytes held by the metadata of cached objects.", octets),
            gauge("cache_heads", "URLs with metadata in memory.", entries as u64),
            gauge("cache_fills_active", "Fetches under way.", fills as u64),
            gauge("cache_fill_readers", "Requests waiting for fetches or reading from them.", waiting as u64),
            gauge(
                "cache_fill_held_bytes",
                "Bytes of blocks that fetches hold for their readers.",
                shared.table.held() as u64,
            ),
        ];
        let disk = shared.disk.iter().flat_map(|disk| disk.metrics());
        shared.counters.fields().into_iter().chain(levels).chain(disk).collect()
    }
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache").field("options", &self.shared.options).finish_non_exhaustive()
    }
}

impl Shared {
    pub(crate) fn seed(&self) -> u64 {
        SEED
    }

    /// A number that no other version has.
    pub(crate) fn next_version(&self) -> u64 {
        let number = self.versions.fetch_add(1, Ordering::Relaxed);
        xxh3_64_with_seed(&number.to_le_bytes(), self.first_version)
    }

    /// Whether fetches may hold so many octets more.
    pub(crate) fn has_room_for(&self, octets: u64) -> bool {
        let most = (self.store.memory().budget() / FILL_SHARE) as u64;
        (self.table.held() as u64).saturating_add(octets) <= most
    }

    /// Octets of a block of an object.
    pub(crate) fn extent(&self, object: &Object, index: u64) -> u64 {
        object.length.saturating_sub(index * self.block_bytes as u64).min(self.block_bytes as u64)
    }

    /// Whether a block is in memory or on disk.
    pub(crate) fn has_block(&self, object: &Object, index: u64) -> bool {
        let key = BlockKey { source: BlockSource::object(object.version), index };
        self.store.blocks().holds(&key)
            || self.disk.as_ref().is_some_and(|disk| {
                u32::try_from(index).is_ok_and(|index| disk.has(Id::Block(object.version, index)))
            })
    }

    /// Whether the first block of a slice is there.
    pub(crate) fn has_slice(&self, object: &Object, slice: u64) -> bool {
        self.has_block(object, slice * self.slice / self.block_bytes as u64)
    }
}

impl std::fmt::Debug for CachedSite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CachedSite").field("options", &self.0.options).finish_non_exhaustive()
    }
}

impl Handler for CachedSite {
    fn start(&self, request: &RequestHead, body: RequestBody, wake: Wake) -> Exchange {
        exchange::start(&self.0, request, body, wake)
    }
}
