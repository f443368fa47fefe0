//! Objects on disk: a log of entries in regions of fixed size, in one file.
//!
//! ```text
//!   superblock │ region 0: header, entry, entry, … │ region 1 … │ … │ region n-1
//!                  entry: header {key, region's epoch, place, length, sums}, octets
//! ```
//!
//! One thread ([`writer`]) appends entries to the active region; when it is full, the oldest region is reused. Entries
//! of that region that have been read since they were written are written again, up to a quarter of a region; the rest
//! is lost. The index ([`index`]) is in memory, with 32 bytes per entry plus the free space of a hash table. At start,
//! the headers of all entries are read ([`scan`]).
//!
//! Nothing is synced and nothing is trusted: an entry only counts if header, key, epoch and checksum are right when it
//! is read. A torn tail, a flipped bit or a half overwritten region therefore costs a fetch, but never corrupts a
//! response.
//!
//! # Why not foyer
//!
//! foyer 0.22 has the same structure, and was evaluated. Its fetch path has known races between eviction and refill
//! (its PR 1289), which could mix two versions of an object. Its device layer has its own executor and io_uring, beside
//! the reader threads that files use. It would add about sixty crates to a build from scratch. And its unit is a
//! serialised value, where ours is a block that goes into the block cache without a copy.

#[cfg(feature = "fuzzing")]
mod fuzzing;
mod index;
mod layout;
mod scan;
mod writer;

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use expressway_metrics::{Metric, count, counters};
use expressway_web::BodyError;
use expressway_web::blocks::{Block, Blocks};
use rustix::fs::{FlockOperation, flock};
use rustix::io::{Errno, preadv};

#[cfg(feature = "fuzzing")]
pub(crate) use fuzzing::{FIRST, scan_file, seal};
pub(crate) use index::Id;
use index::{Extent, Index};
use layout::{ENTRY, Layout, Superblock};
use writer::{Queue, Write, Writer};

counters! {
    /// What the disk store did.
    pub(crate) struct DiskCounters {
        /// Entries written to the cache's disk store.
        pub(crate) cache_disk_writes: AtomicU64,
        /// Bytes written to the cache's disk store.
        pub(crate) cache_disk_written_bytes: AtomicU64,
        /// Entries not written to the disk store because its queue was full.
        pub(crate) cache_disk_queue_full: AtomicU64,
        /// Entries not written because the disk store was off after an error.
        pub(crate) cache_disk_off: AtomicU64,
        /// Reads from the cache's disk store.
        pub(crate) cache_disk_reads: AtomicU64,
        /// Bytes read from the cache's disk store.
        pub(crate) cache_disk_read_bytes: AtomicU64,
        /// Entries of the disk store that were found corrupt, and dropped.
        pub(crate) cache_disk_corrupt: AtomicU64,
        /// Reads and writes of the disk store that failed.
        pub(crate) cache_disk_errors: AtomicU64,
        /// Regions of the disk store that were given to new entries.
        pub(crate) cache_disk_regions_evicted: AtomicU64,
        /// Entries that were written again because they had been read.
        pub(crate) cache_disk_reinserted: AtomicU64,
    }
}

/// The disk store. Dropping it writes what is queued.
#[derive(Debug)]
pub(crate) struct Disk {
    shared: Arc<Shared>,
    writer: Option<JoinHandle<()>>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    file: File,
    layout: Layout,
    index: Index,
    /// The epoch of each region; 0: none.
    epochs: Vec<AtomicU64>,
    queue: Queue,
    counters: DiskCounters,
    /// 1 while writes are off after an error.
    is_off: AtomicU64,
}

impl Disk {
    /// Opens or creates the store in `folder`, of at most `size` octets for blocks of up to `block_bytes`, with a queue of
    /// so many octets. What is there is found again.
    pub(crate) fn open(folder: &Path, size: u64, block_bytes: usize, queue: usize) -> io::Result<Self> {
        let layout = Layout::new(size, block_bytes)
            .map_err(|problem| io::Error::new(io::ErrorKind::InvalidInput, problem))?;
        std::fs::create_dir_all(folder)?;
        let path = folder.join("objects");
        let file = File::options().read(true).write(true).create(true).truncate(false).open(&path)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|error| match error {
            Errno::WOULDBLOCK => io::Error::other("the cache folder is in use by another process"),
            error => error.into(),
        })?;
        let started = Instant::now();
        let (superblock, is_new) = match Superblock::read(&file).filter(|found| found.layout == layout) {
            Some(found) => (found, false),
            None => (Superblock::new(layout), true),
        };
        if is_new {
            file.set_len(0)?;
            superblock.write(&file)?;
        }
        file.set_len(layout.end())?;
        let shared = Arc::new(Shared::new(file, layout, queue));
        let last = if is_new { scan::Last::default() } else { scan::scan(&shared) };
        tracing::info!(
            entries = shared.index.len(),
            milliseconds = started.elapsed().as_millis() as u64,
            "cache: disk store open"
        );
        let writer = Writer::new(Arc::clone(&shared), last);
        let thread = std::thread::Builder::new().name("cache-writer".into()).spawn(move || writer.run())?;
        Ok(Self { shared, writer: Some(thread) })
    }

    /// Whether an entry is there, as far as the index knows.
    pub(crate) fn has(&self, id: Id) -> bool {
        self.shared.index.find(id, false).is_some()
    }

    /// The job that reads an entry, for a thread that may wait. [`BodyError::Changed`]: it is not there (any more), or was
    /// corrupt.
    pub(crate) fn read(
        &self,
        id: Id,
        blocks: &Arc<Blocks>,
    ) -> impl FnOnce() -> Result<Block, BodyError> + Send + use<> {
        let (shared, blocks) = (Arc::clone(&self.shared), Arc::clone(blocks));
        move || shared.read(id, &blocks)
    }

    /// Has a block written. False if the queue is full.
    pub(crate) fn write_block(&self, version: u64, index: u32, block: &Block) -> bool {
        self.put(Write::Block(Id::Block(version, index), block.clone()))
    }

    /// Has a record written in place of the one of the same number, which counts as gone from now on.
    pub(crate) fn write_record(&self, number: u128, octets: Vec<u8>) -> bool {
        let id = Id::Record(number);
        let is_queued = self.shared.queue.replace(Write::Record(id, octets), || {
            self.shared.index.remove(id);
        });
        if !is_queued {
            count(&self.shared.counters.cache_disk_queue_full);
        }
        is_queued
    }

    /// Forgets a record, also beyond a restart. True if there was one.
    pub(crate) fn remove_record(&self, number: u128) -> bool {
        let was_there = self.has(Id::Record(number));
        if !self.write_record(number, Vec::new()) {
            tracing::warn!(
                "cache: an object was purged, but this could not be recorded on disk: it may reappear after a restart"
            );
        }
        was_there
    }

    fn put(&self, write: Write) -> bool {
        let is_queued = self.shared.queue.put(write);
        if !is_queued {
            count(&self.shared.counters.cache_disk_queue_full);
        }
        is_queued
    }

    /// Leaves the store to another process: writes what is queued, and nothing more. What is there is still read, and believed as far as its
    /// sums are right.
    pub(crate) fn let_go(&self) -> io::Result<()> {
        self.shared.queue.pause(true);
        self.flush();
        Ok(flock(&self.shared.file, FlockOperation::Unlock)?)
    }

    /// Writes again, if no other process has the store.
    pub(crate) fn take_back(&self) -> io::Result<()> {
        flock(&self.shared.file, FlockOperation::NonBlockingLockExclusive)?;
        self.shared.queue.pause(false);
        Ok(())
    }

    /// Waits until everything that was queued before is written or given up.
    pub(crate) fn flush(&self) {
        self.shared.queue.wait_until_empty();
    }

    pub(crate) fn metrics(&self) -> impl Iterator<Item = Metric> + use<> {
        let gauge = Metric::gauge;
        let shared = &self.shared;
        shared.counters.fields().into_iter().chain([
            gauge("cache_disk_entries", "Entries in the cache's disk store.", shared.index.len() as u64),
            gauge(
                "cache_disk_queued_bytes",
                "Bytes waiting to be written to the disk store.",
                shared.queue.held() as u64,
            ),
            gauge(
                "cache_disk_is_off",
                "1 while the disk store has stopped writing after an error.",
                shared.is_off.load(Ordering::Relaxed),
            ),
        ])
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.shared.queue.close();
        if let Some(writer) = self.writer.take()
            && writer.join().is_err()
        {
            tracing::error!("the cache's writing thread panicked");
        }
    }
}

impl Shared {
    /// With nothing in the index yet.
    fn new(file: File, layout: Layout, queue: usize) -> Self {
        Self {
            file,
            layout,
            index: Index::new(layout.most_entries()),
            epochs: (0..layout.regions).map(|_| AtomicU64::new(0)).collect(),
            queue: Queue::new(queue),
            counters: DiskCounters::default(),
            is_off: AtomicU64::new(0),
        }
    }

    fn read(&self, id: Id, blocks: &Blocks) -> Result<Block, BodyError> {
        let extent = self.index.find(id, true).ok_or(BodyError::Changed)?;
        let mut buffer = blocks.buffer(extent.length as usize);
        match self.read_at(id, extent, buffer.octets()) {
            Ok(true) => {
                count(&self.counters.cache_disk_reads);
                self.counters.cache_disk_read_bytes.fetch_add(u64::from(extent.length), Ordering::Relaxed);
                return Ok(buffer.freeze());
            }
            // Where the region was given to others meanwhile, other entries are no surprise.
            Ok(false) if self.index.remove_at(id, extent) => {
                count(&self.counters.cache_disk_corrupt);
                tracing::warn!(?id, "cache: dropping a corrupt entry on disk");
            }
            Ok(false) => {}
            Err(error) => {
                count(&self.counters.cache_disk_errors);
                tracing::warn!(%error, "cache: reading from disk failed");
                self.index.remove_at(id, extent);
            }
        }
        Err(BodyError::Changed)
    }

    /// Reads the octets of an entry. False: they are not its own.
    fn read_at(&self, id: Id, extent: Extent, octets: &mut [u8]) -> Result<bool, Errno> {
        let offset = self.layout.offset(extent);
        let mut header = [0; ENTRY];
        let mut done = 0;
        while done < ENTRY + octets.len() {
            let read = if done < ENTRY {
                let (rest, all) = (&mut header[done..], &mut octets[..]);
                preadv(&self.file, &mut [IoSliceMut::new(rest), IoSliceMut::new(all)], offset + done as u64)
            } else {
                rustix::io::pread(&self.file, &mut octets[done - ENTRY..], offset + done as u64)
            };
            match read {
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
                Ok(0) => return Ok(false),
                Ok(more) => done += more,
            }
        }
        let epoch = self.epochs[extent.region as usize].load(Ordering::Acquire);
        Ok(layout::Header::decode(&header).is_some_and(|header| {
            header.id == id && header.epoch == epoch && header.extent == extent.at() && header.is_of(octets)
        }))
    }
}
