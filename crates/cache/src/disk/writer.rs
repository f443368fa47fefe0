//! The thread that appends entries, and the queue in front of it.

use std::collections::{HashMap, VecDeque};
use std::io::IoSlice;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use expressway_metrics::count;
use expressway_web::blocks::Block;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::{Errno, pwritev};

use super::Shared;
use super::index::{Extent, Id};
use super::layout::{ENTRY, Header, REGION, entry_bytes, region_header};
use super::scan::{Last, read_region};

/// How long nothing is written after an error, such as a full disk.
const OFF: Duration = Duration::from_secs(10);

/// Part of a region that entries which were read may take in the next one.
const REINSERTED: u64 = 4;

/// What a queued write costs beyond its octets.
const WRITE: usize = 128;

/// Records that may wait beyond the queue's limit: they are small, and one that says that something is gone must not be lost.
const RECORDS: usize = 16 << 20;

/// Something to write.
#[derive(Debug)]
pub(super) enum Write {
    Block(Id, Block),
    /// Empty: it is gone.
    Record(Id, Vec<u8>),
}

impl Write {
    fn id(&self) -> Id {
        match self {
            Self::Block(id, _) | Self::Record(id, _) => *id,
        }
    }

    fn octets(&self) -> &[u8] {
        match self {
            Self::Block(_, block) => block,
            Self::Record(_, octets) => octets,
        }
    }

    fn cost(&self) -> usize {
        WRITE
            + match self {
                Self::Block(_, block) => block.memory(),
                Self::Record(_, octets) => octets.len(),
            }
    }
}

#[derive(Debug, Default)]
struct Waiting {
    writes: VecDeque<Write>,
    /// How many writes of each record there are among them: only the last one counts.
    records: HashMap<Id, usize>,
    held: usize,
    is_busy: bool,
    is_closed: bool,
    /// Nothing is taken until further notice.
    is_paused: bool,
}

/// Writes that wait, bounded by octets.
#[derive(Debug)]
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
    limit: usize,
}

impl Queue {
    pub(super) fn new(limit: usize) -> Self {
        Self { waiting: Mutex::default(), changed: Condvar::new(), limit }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// False if it is full.
    pub(super) fn put(&self, write: Write) -> bool {
        let mut waiting = self.lock();
        let beyond = if matches!(write, Write::Record(..)) { RECORDS } else { 0 };
        if waiting.held + write.cost() > self.limit + beyond || waiting.is_closed || waiting.is_paused {
            return false;
        }
        waiting.held += write.cost();
        if matches!(write, Write::Record(..)) {
            *waiting.records.entry(write.id()).or_default() += 1;
        }
        waiting.writes.push_back(write);
        drop(waiting);
        self.changed.notify_all();
        true
    }

    /// The same, and has `forget` called when no earlier write of the record can come to count any more.
    pub(super) fn replace(&self, write: Write, forget: impl FnOnce()) -> bool {
        let id = write.id();
        let is_queued = self.put(write);
        let mut waiting = self.lock();
        if !is_queued {
            // Earlier writes of it must not count either.
            waiting.writes.retain(|other| other.id() != id);
            waiting.records.remove(&id);
            waiting.held = waiting.writes.iter().map(Write::cost).sum();
        }
        forget();
        is_queued
    }

    /// Calls `enter` unless a later write of the same record waits.
    fn settle(&self, id: Id, enter: impl FnOnce()) {
        let waiting = self.lock();
        if !waiting.records.contains_key(&id) {
            enter();
        }
    }

    /// The next write; `None` once it is closed and empty.
    fn take(&self) -> Option<Write> {
        let mut waiting = self.lock();
        waiting.is_busy = false;
        loop {
            if let Some(write) = waiting.writes.pop_front() {
                waiting.held -= write.cost();
                if let Some(more) = waiting.records.get_mut(&write.id()) {
                    *more -= 1;
                    if *more == 0 {
                        waiting.records.remove(&write.id());
                    }
                }
                waiting.is_busy = true;
                return Some(write);
            }
            self.changed.notify_all();
            if waiting.is_closed {
                return None;
            }
            waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(super) fn held(&self) -> usize {
        self.lock().held
    }

    /// Takes no more writes, or takes them again.
    pub(super) fn pause(&self, is_paused: bool) {
        self.lock().is_paused = is_paused;
    }

    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_all();
    }

    pub(super) fn wait_until_empty(&self) {
        let mut waiting = self.lock();
        while !waiting.writes.is_empty() || waiting.is_busy {
            waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The thread's state.
#[derive(Debug)]
pub(super) struct Writer {
    shared: Arc<Shared>,
    last: Last,
    /// Octets of the active region that are written; none before the first write.
    used: Option<u64>,
    off_until: Option<Instant>,
}

impl Writer {
    pub(super) fn new(shared: Arc<Shared>, last: Last) -> Self {
        Self { shared, last, used: None, off_until: None }
    }

    pub(super) fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        while let Some(write) = shared.queue.take() {
            if self.off_until.is_some_and(|until| Instant::now() < until) {
                count(&shared.counters.cache_disk_off);
                continue;
            }
            self.off_until = None;
            shared.is_off.store(0, Ordering::Relaxed);
            if let Err(error) = self.append(write.id(), write.octets()) {
                count(&shared.counters.cache_disk_errors);
                tracing::warn!(%error, seconds = OFF.as_secs(), "cache: writing to disk failed; pausing writes for a while");
                self.off_until = Some(Instant::now() + OFF);
                shared.is_off.store(1, Ordering::Relaxed);
                // What is in the region so far stays; a torn entry at its end must not be followed by others.
                self.used = None;
            }
        }
    }

    fn append(&mut self, id: Id, content: &[u8]) -> Result<(), Errno> {
        let size = entry_bytes(content.len() as u64);
        if size + REGION > self.shared.layout.region {
            return Ok(());
        }
        let used = match self.used {
            Some(used) if used + size <= self.shared.layout.region && !self.shared.index.is_full() => used,
            _ => self.rotate()?,
        };
        if used + size > self.shared.layout.region {
            // Reinserted entries leave no room for a large one: it is not worth another region.
            return Ok(());
        }
        self.write(id, content, used)
    }

    /// Appends an entry for which there is room.
    fn write(&mut self, id: Id, content: &[u8], used: u64) -> Result<(), Errno> {
        let region = self.last.region;
        let unit = u32::try_from(used / ENTRY as u64).unwrap_or(u32::MAX);
        let header = Header::new(id, self.last.epoch, (region, unit), content);
        let extent = Extent { region, unit, length: header.length };
        self.write_all(&header.encode(), content, self.shared.layout.offset(extent))?;
        self.used = Some(used + entry_bytes(content.len() as u64));
        let is_gone = content.is_empty() && matches!(id, Id::Record(_));
        self.shared.queue.settle(id, || {
            if is_gone {
                self.shared.index.remove(id);
            } else {
                self.shared.index.insert(id, extent);
            }
        });
        count(&self.shared.counters.cache_disk_writes);
        self.shared
            .counters
            .cache_disk_written_bytes
            .fetch_add((ENTRY + content.len()) as u64, Ordering::Relaxed);
        Ok(())
    }

    fn write_all(&self, header: &[u8], content: &[u8], offset: u64) -> Result<(), Errno> {
        let mut done = 0;
        while done < header.len() + content.len() {
            let (head, body) =
                (&header[done.min(header.len())..], &content[done.saturating_sub(header.len())..]);
            match pwritev(&self.shared.file, &[IoSlice::new(head), IoSlice::new(body)], offset + done as u64)
            {
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
                Ok(0) => return Err(Errno::IO),
                Ok(written) => done += written,
            }
        }
        Ok(())
    }

    /// Makes the oldest region the active one. What of it was read is written to it again. Octets used.
    fn rotate(&mut self) -> Result<u64, Errno> {
        self.used = None;
        let shared = Arc::clone(&self.shared);
        let region = if self.last.epoch == 0 { 0 } else { (self.last.region + 1) % shared.layout.regions };
        // The space is taken before anything counts on it: a full disk shows here.
        match fallocate(
            &shared.file,
            FallocateFlags::KEEP_SIZE,
            shared.layout.start(region),
            shared.layout.region,
        ) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
            Err(error) => return Err(error),
        }
        let kept = self.empty(region);
        let epoch = self.last.epoch + 1;
        self.write_all(&region_header(epoch), &[], shared.layout.start(region))?;
        shared.epochs[region as usize].store(epoch, Ordering::Release);
        self.last = Last { epoch, region };
        self.used = Some(REGION);
        for (id, content) in kept {
            self.write(id, &content, self.used.unwrap_or(REGION))?;
            count(&shared.counters.cache_disk_reinserted);
        }
        Ok(self.used.unwrap_or(REGION))
    }

    /// Takes the entries of a region off the index. Those that were read, with their octets, as far as they may stay.
    fn empty(&self, region: u32) -> Vec<(Id, Vec<u8>)> {
        let shared = &self.shared;
        if shared.epochs[region as usize].load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        count(&shared.counters.cache_disk_regions_evicted);
        let Some((_, entries)) = read_region(shared, region) else { return Vec::new() };
        let mut room = shared.layout.region / REINSERTED;
        let mut kept = Vec::new();
        for (id, extent) in entries {
            let size = entry_bytes(u64::from(extent.length));
            if shared.index.take_at(id, extent) != Some(true) || size > room {
                continue;
            }
            let mut content = vec![0; extent.length as usize];
            if shared.read_at(id, extent, &mut content) == Ok(true) {
                room -= size;
                kept.push((id, content));
            }
        }
        kept
    }
}
