//! A store with arbitrary contents, for a fuzz target.

use std::fs::File;

use xxhash_rust::xxh3::xxh3_64;

use super::layout::{ENTRY, ENTRY_MAGIC, Layout, REGION_MAGIC, entry_bytes};
use super::{Shared, scan};

/// Two regions that are small.
const LAYOUT: Layout = Layout { regions: 2, region: 4096 };

/// Where the first region begins.
pub(crate) const FIRST: u64 = 4096;

/// Makes the sums right of what looks like a header.
pub(crate) fn seal(octets: &mut [u8]) {
    for header in octets.chunks_exact_mut(ENTRY) {
        let sum_at = match u32::from_le_bytes([header[0], header[1], header[2], header[3]]) {
            ENTRY_MAGIC => 56,
            REGION_MAGIC => 16,
            _ => continue,
        };
        let sum = xxh3_64(&header[..sum_at]).to_le_bytes();
        header[sum_at..sum_at + 8].copy_from_slice(&sum);
    }
}

/// Entries that are found in the regions of a file.
pub(crate) fn scan_file(file: File) -> usize {
    let shared = Shared::new(file, LAYOUT, 0);
    for region in 0..LAYOUT.regions {
        let Some((_epoch, entries)) = scan::read_region(&shared, region) else { continue };
        for (id, extent) in entries {
            let end = u64::from(extent.unit) * ENTRY as u64 + entry_bytes(u64::from(extent.length));
            assert!(end <= LAYOUT.region, "{extent:?}");
            shared.index.insert(id, extent);
            // Whatever the sums of its octets are.
            let _is_its_own = shared.read_at(id, extent, &mut vec![0; extent.length as usize]);
        }
    }
    shared.index.len()
}
