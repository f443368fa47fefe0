//! Where things are in the file, and what their headers look like.

use std::fs::File;
use std::os::unix::fs::FileExt;

use xxhash_rust::xxh3::xxh3_64;

use super::index::{Extent, Id};

/// Octets of the superblock.
const SUPERBLOCK: u64 = 4096;

/// Octets of an entry's header, and what entries are aligned to.
pub(super) const ENTRY: usize = 64;

/// Octets of a region's header.
pub(super) const REGION: u64 = ENTRY as u64;

/// Octets of the largest region: what is evicted at once.
const LARGEST_REGION: u64 = 64 << 20;

/// Octets of the smallest.
const SMALLEST_REGION: u64 = 64 << 10;

/// Regions that are aimed at.
const REGIONS: u64 = 64;

/// Regions at least.
const LEAST_REGIONS: u64 = 4;

/// Blocks that a region holds at least.
const LEAST_BLOCKS: u64 = 2;

/// Octets of the store an entry of the index, at least.
const OCTETS_AN_ENTRY: u64 = 1024;

const MAGIC: [u8; 8] = *b"exwcach1";
pub(super) const REGION_MAGIC: u32 = 0x7265_6701;
pub(super) const ENTRY_MAGIC: u32 = 0x656e_7401;

/// The regions of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) regions: u32,
    /// Octets a region, headers included.
    pub(super) region: u64,
}

impl Layout {
    /// For a file of at most `size` octets with blocks of up to `block_bytes`.
    pub(super) fn new(size: u64, block_bytes: usize) -> Result<Self, String> {
        let block = (block_bytes + ENTRY) as u64;
        let least = (block * LEAST_BLOCKS + REGION).max(SMALLEST_REGION);
        let region = (size / REGIONS).clamp(least, LARGEST_REGION.max(least)) / ENTRY as u64 * ENTRY as u64;
        let regions = size.saturating_sub(SUPERBLOCK) / region;
        if regions < LEAST_REGIONS {
            let needed = LEAST_REGIONS * region + SUPERBLOCK;
            return Err(format!("disk_size is {size}: the blocks' size needs at least {needed}"));
        }
        Ok(Self { regions: u32::try_from(regions).unwrap_or(u32::MAX), region })
    }

    /// Octets of the file.
    pub(super) fn end(&self) -> u64 {
        self.start(self.regions)
    }

    /// Where a region begins.
    pub(super) fn start(&self, region: u32) -> u64 {
        SUPERBLOCK + u64::from(region) * self.region
    }

    pub(super) fn offset(&self, extent: Extent) -> u64 {
        self.start(extent.region) + u64::from(extent.unit) * ENTRY as u64
    }

    /// Entries that the index may hold.
    pub(super) fn most_entries(&self) -> usize {
        usize::try_from(self.end() / OCTETS_AN_ENTRY).unwrap_or(usize::MAX)
    }
}

/// Octets of an entry with `length` octets of content, as it is aligned.
pub(super) fn entry_bytes(length: u64) -> u64 {
    (ENTRY as u64 + length).next_multiple_of(ENTRY as u64)
}

/// What a file says of itself.
#[derive(Debug)]
pub(super) struct Superblock {
    pub(super) layout: Layout,
}

impl Superblock {
    pub(super) fn new(layout: Layout) -> Self {
        Self { layout }
    }

    pub(super) fn read(file: &File) -> Option<Self> {
        let mut octets = [0; 32];
        file.read_exact_at(&mut octets, 0).ok()?;
        let layout = Layout {
            regions: u32::from_le_bytes(octets[8..12].try_into().ok()?),
            region: number(&octets, 16),
        };
        (octets[..8] == MAGIC && number(&octets, 24) == xxh3_64(&octets[..24])).then_some(Self { layout })
    }

    pub(super) fn write(&self, file: &File) -> std::io::Result<()> {
        let mut octets = [0; 32];
        octets[..8].copy_from_slice(&MAGIC);
        octets[8..12].copy_from_slice(&self.layout.regions.to_le_bytes());
        octets[16..24].copy_from_slice(&self.layout.region.to_le_bytes());
        let sum = xxh3_64(&octets[..24]);
        octets[24..].copy_from_slice(&sum.to_le_bytes());
        file.write_all_at(&octets, 0)
    }
}

fn number(octets: &[u8], at: usize) -> u64 {
    octets[at..at + 8].try_into().map_or(0, u64::from_le_bytes)
}

/// The header of a region of that epoch.
pub(super) fn region_header(epoch: u64) -> [u8; ENTRY] {
    let mut octets = [0; ENTRY];
    octets[..4].copy_from_slice(&REGION_MAGIC.to_le_bytes());
    octets[8..16].copy_from_slice(&epoch.to_le_bytes());
    let sum = xxh3_64(&octets[..16]);
    octets[16..24].copy_from_slice(&sum.to_le_bytes());
    octets
}

/// The epoch that a region's header names.
pub(super) fn region_epoch(octets: &[u8]) -> Option<u64> {
    let is_one = octets.len() >= ENTRY
        && octets[..4] == REGION_MAGIC.to_le_bytes()
        && number(octets, 16) == xxh3_64(&octets[..16]);
    is_one.then(|| number(octets, 8))
}

/// The header of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) id: Id,
    pub(super) epoch: u64,
    /// Region and unit within it.
    pub(super) extent: (u32, u32),
    pub(super) length: u32,
    /// Of the content.
    pub(super) sum: u64,
}

impl Header {
    pub(super) fn new(id: Id, epoch: u64, extent: (u32, u32), content: &[u8]) -> Self {
        let length = u32::try_from(content.len()).unwrap_or(u32::MAX);
        Self { id, epoch, extent, length, sum: xxh3_64(content) }
    }

    pub(super) fn encode(&self) -> [u8; ENTRY] {
        let (kind, key) = match self.id {
            Id::Block(version, index) => (0_u8, u128::from(version) << 64 | u128::from(index)),
            Id::Record(number) => (1, number),
        };
        let mut octets = [0; ENTRY];
        octets[..4].copy_from_slice(&ENTRY_MAGIC.to_le_bytes());
        octets[4] = kind;
        octets[8..16].copy_from_slice(&self.epoch.to_le_bytes());
        octets[16..32].copy_from_slice(&key.to_le_bytes());
        octets[32..36].copy_from_slice(&self.extent.0.to_le_bytes());
        octets[36..40].copy_from_slice(&self.extent.1.to_le_bytes());
        octets[40..44].copy_from_slice(&self.length.to_le_bytes());
        octets[48..56].copy_from_slice(&self.sum.to_le_bytes());
        let sum = xxh3_64(&octets[..56]);
        octets[56..].copy_from_slice(&sum.to_le_bytes());
        octets
    }

    pub(super) fn decode(octets: &[u8; ENTRY]) -> Option<Self> {
        if octets[..4] != ENTRY_MAGIC.to_le_bytes() || number(octets, 56) != xxh3_64(&octets[..56]) {
            return None;
        }
        let small =
            |at: usize| u32::from_le_bytes([octets[at], octets[at + 1], octets[at + 2], octets[at + 3]]);
        let id = match octets[4] {
            0 => Id::Block(number(octets, 24), small(16)),
            1 => Id::Record(u128::from(number(octets, 24)) << 64 | u128::from(number(octets, 16))),
            _ => return None,
        };
        Some(Self {
            id,
            epoch: number(octets, 8),
            extent: (small(32), small(36)),
            length: small(40),
            sum: number(octets, 48),
        })
    }

    /// Whether `content` is what it was written with.
    pub(super) fn is_of(&self, content: &[u8]) -> bool {
        content.len() == self.length as usize && xxh3_64(content) == self.sum
    }
}
