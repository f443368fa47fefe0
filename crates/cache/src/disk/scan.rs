//! Reads which entries a file has from their headers.

use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU32, Ordering};

use super::Shared;
use super::index::{Extent, Id};
use super::layout::{ENTRY, Header, entry_bytes, region_epoch};

/// Threads that read headers: a disk answers several at once.
const THREADS: usize = 8;

/// Octets that are read at a time where entries are small, and where the next header is far.
const NEAR: usize = 256 << 10;
const FAR: usize = 4 << 10;

/// The region that was written last.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Last {
    pub(super) epoch: u64,
    pub(super) region: u32,
}

/// A region's epoch and number, and its entries.
type Found = (u64, u32, Vec<(Id, Extent)>);

/// Fills the index. Where an entry is there more than once, the last one counts.
pub(super) fn scan(shared: &Shared) -> Last {
    let next = AtomicU32::new(0);
    let all: Mutex<Vec<Found>> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..THREADS.min(shared.layout.regions as usize) {
            scope.spawn(|| {
                loop {
                    let region = next.fetch_add(1, Ordering::Relaxed);
                    if region >= shared.layout.regions {
                        return;
                    }
                    if let Some((epoch, entries)) = read_region(shared, region) {
                        all.lock().unwrap_or_else(PoisonError::into_inner).push((epoch, region, entries));
                    }
                }
            });
        }
    });
    let mut all = all.into_inner().unwrap_or_else(PoisonError::into_inner);
    all.sort_unstable_by_key(|(epoch, ..)| *epoch);
    for (epoch, region, entries) in &all {
        shared.epochs[*region as usize].store(*epoch, Ordering::Release);
        for (id, extent) in entries {
            if matches!(id, Id::Record(_)) && extent.length == 0 {
                shared.index.remove(*id);
            } else {
                shared.index.insert(*id, *extent);
            }
        }
    }
    all.last().map_or(Last::default(), |(epoch, region, _)| Last { epoch: *epoch, region: *region })
}

/// The epoch and the entries of a region, up to the first header that is none of this epoch.
pub(super) fn read_region(shared: &Shared, region: u32) -> Option<(u64, Vec<(Id, Extent)>)> {
    let mut window = Window { shared, start: shared.layout.start(region), buffer: Vec::new(), from: 0 };
    let epoch = region_epoch(window.octets(0, FAR)?)?;
    let mut entries = Vec::new();
    let (mut at, mut ahead) = (ENTRY as u64, NEAR);
    while at + ENTRY as u64 <= shared.layout.region {
        let header = window.octets(at, ahead).and_then(|octets| Header::decode(octets.try_into().ok()?));
        let Some(header) = header else { break };
        let unit = u32::try_from(at / ENTRY as u64).unwrap_or(u32::MAX);
        let size = entry_bytes(u64::from(header.length));
        if header.epoch != epoch || header.extent != (region, unit) || at + size > shared.layout.region {
            break;
        }
        entries.push((header.id, Extent { region, unit, length: header.length }));
        at += size;
        ahead = if size as usize > NEAR / 8 { FAR } else { NEAR };
    }
    Some((epoch, entries))
}

/// A part of a region in memory.
struct Window<'a> {
    shared: &'a Shared,
    start: u64,
    buffer: Vec<u8>,
    from: u64,
}

impl Window<'_> {
    /// The octets of a header at `at`, read with what follows if need be.
    fn octets(&mut self, at: u64, ahead: usize) -> Option<&[u8]> {
        let end = at + ENTRY as u64;
        if at < self.from || end > self.from + self.buffer.len() as u64 {
            let length = (ahead as u64).min(self.shared.layout.region - at) as usize;
            self.buffer.resize(length, 0);
            self.from = at;
            self.shared.file.read_exact_at(&mut self.buffer, self.start + at).ok()?;
        }
        let from = (at - self.from) as usize;
        self.buffer.get(from..from + ENTRY)
    }
}
