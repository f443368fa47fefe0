//! How many bytes of bodies a connection keeps in memory: those handed to its streams and not yet acknowledged.
//!
//! What a request has fetched and not yet handed over does not count: nobody can say when the peer will take it. It is at
//! most 16 KiB more than its stream could take at the time, of a file in the block that its next chunk comes from too.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;

/// The count of one connection. A slice counts until its last reference has gone, whoever holds it: the
/// engine lets go of stream data when the peer acknowledges it or the stream is reset.
#[derive(Clone, Debug, Default)]
pub(crate) struct Held(Arc<AtomicUsize>);

struct Counted {
    bytes: Bytes,
    counts: usize,
    held: Held,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        // One thread changes it; only its being shared with `Bytes`, which is Send, makes it atomic.
        self.held.0.fetch_sub(self.counts, Ordering::Relaxed);
    }
}

impl Held {
    /// Bytes held now.
    pub(crate) fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// The same bytes, of which so many count until all are dropped.
    pub(crate) fn count(&self, bytes: Bytes, counts: usize) -> Bytes {
        self.0.fetch_add(counts, Ordering::Relaxed);
        Bytes::from_owner(Counted { bytes, counts, held: self.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_counts_until_its_last_part_is_gone() {
        let held = Held::default();
        let mut all = held.count(vec![7; 1000].into(), 900);
        let rest = all.split_off(400);
        assert_eq!(held.bytes(), 900);
        drop(all);
        assert_eq!(held.bytes(), 900, "the whole block stays in memory for any part of it");
        drop(rest);
        assert_eq!(held.bytes(), 0);
    }
}
