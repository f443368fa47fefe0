//! Merges records of several CPUs by time, each with its additional records.

use expressway_xbpf::{CaptureKind, CaptureRecord, PerfRings, XdpDrop};

/// Records behind a packet's among which those are looked for that tell more about it: a driver decides about a packet
/// before it takes the next, so that they follow at once, but for what an interrupt has put between.
const BEHIND: usize = 24;

/// `include/uapi/linux/bpf.h`.
const XDP_REDIRECT: i32 = 4;

/// The most pieces of a packet.
const PIECES: usize = 64;

/// Octets read of a buffer before the kernel gets them back.
const RELEASE: u64 = 32 * 1024;

/// Buffers of records, one a CPU; as [`PerfRings`] has them.
pub(super) trait Rings {
    fn count(&self) -> usize;
    fn size(&self) -> usize;
    fn head(&self, ring: usize) -> u64;
    fn tail(&self, ring: usize) -> u64;
    fn record<'a>(
        &'a self,
        ring: usize,
        position: u64,
        head: u64,
        room: &'a mut Vec<u8>,
    ) -> Option<(&'a [u8], u64)>;
    fn release(&mut self, ring: usize, position: u64);
}

impl Rings for PerfRings {
    fn count(&self) -> usize {
        self.count()
    }

    fn size(&self) -> usize {
        self.size()
    }

    fn head(&self, ring: usize) -> u64 {
        self.head(ring)
    }

    fn tail(&self, ring: usize) -> u64 {
        self.tail(ring)
    }

    fn record<'a>(
        &'a self,
        ring: usize,
        position: u64,
        head: u64,
        room: &'a mut Vec<u8>,
    ) -> Option<(&'a [u8], u64)> {
        self.record(ring, position, head, room)
    }

    fn release(&mut self, ring: usize, position: u64) {
        self.release(ring, position);
    }
}

/// What later records say about a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    /// The verdict of the XDP program.
    pub(super) verdict: Option<i32>,
    /// Why the XDP program dropped it.
    pub(super) drop: Option<XdpDrop>,
    /// The redirect's errno, if it failed.
    pub(super) redirect: Option<i32>,
    /// The AF_XDP socket that it was redirected to.
    pub(super) inode: u64,
    /// What its device said, if it did not take it.
    pub(super) sent: Option<i32>,
    /// A piece of it was lost.
    pub(super) incomplete: bool,
}

impl Outcome {
    /// Nothing more is told of a packet with that verdict.
    fn is_final(&self) -> bool {
        self.verdict.is_some_and(|verdict| verdict != XDP_REDIRECT)
    }
}

/// Where the reading of each buffer is.
#[derive(Debug, Default)]
pub(super) struct Merge {
    cursors: Vec<Cursor>,
    record: Vec<u8>,
    behind: Vec<u8>,
    pieces: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Cursor {
    at: u64,
    head: u64,
    released: u64,
    /// Time and end of the record at `at`, once it is known to begin a packet.
    next: Option<(u64, u64)>,
}

impl Merge {
    pub(super) fn new(rings: &impl Rings) -> Self {
        let cursor = |ring| {
            let at = rings.tail(ring);
            Cursor { at, head: at, released: at, next: None }
        };
        Self { cursors: (0..rings.count()).map(cursor).collect(), ..Self::default() }
    }

    /// Hands over what has come, up to the time `until`, and where there is more behind it even if it came later: then a
    /// buffer fills up. Returns how many packets it was.
    pub(super) fn deliver(
        &mut self,
        rings: &mut impl Rings,
        until: u64,
        each: &mut dyn FnMut(&CaptureRecord<'_>, &Outcome, &[u8]),
    ) -> usize {
        let mut count = 0;
        for (ring, cursor) in self.cursors.iter_mut().enumerate() {
            cursor.head = rings.head(ring);
        }
        loop {
            for (ring, cursor) in self.cursors.iter_mut().enumerate() {
                cursor.find(rings, ring, &mut self.record);
            }
            let first = self
                .cursors
                .iter()
                .enumerate()
                .filter_map(|(ring, cursor)| cursor.next.map(|(time, after)| (time, ring, after)));
            let Some((time, ring, after)) = first.min() else { break };
            if time > until && !self.cursors[ring].is_urgent(after, rings.size()) {
                break;
            }
            self.one(rings, ring, after, each);
            count += 1;
            let cursor = &mut self.cursors[ring];
            (cursor.at, cursor.next) = (after, None);
            if cursor.at - cursor.released >= RELEASE {
                cursor.released = cursor.at;
                rings.release(ring, cursor.at);
            }
        }
        for (ring, cursor) in self.cursors.iter_mut().enumerate() {
            if cursor.at != cursor.released {
                cursor.released = cursor.at;
                rings.release(ring, cursor.at);
            }
        }
        count
    }

    fn one(
        &mut self,
        rings: &impl Rings,
        ring: usize,
        after: u64,
        each: &mut dyn FnMut(&CaptureRecord<'_>, &Outcome, &[u8]),
    ) {
        let Cursor { at, head, .. } = self.cursors[ring];
        let Some((data, _)) = rings.record(ring, at, head, &mut self.record) else { return };
        let Some(mut record) = CaptureRecord::read(data) else { return };
        let mut outcome = Outcome::default();
        let mut more = record.more;
        self.pieces.clear();
        if more {
            self.pieces.extend_from_slice(record.payload);
        }
        let behind = if record.followed { BEHIND } else { 0 };
        let (mut position, mut left) = (after, if more { BEHIND + PIECES } else { behind });
        while position < head && left > 0 {
            let Some((data, next)) = rings.record(ring, position, head, &mut self.behind) else { break };
            (position, left) = (next, left - 1);
            if CaptureRecord::packet(data) != Some(record.id) {
                continue;
            }
            let Some(other) = CaptureRecord::read(data) else { continue };
            match other.kind {
                CaptureKind::Verdict => (outcome.verdict, outcome.drop) = (Some(other.result), other.drop),
                CaptureKind::Redirect => {
                    if other.inode != 0 {
                        outcome.inode = other.inode;
                    }
                    if other.result != 0 {
                        outcome.redirect = Some(-other.result);
                    }
                }
                CaptureKind::Sent => outcome.sent = Some(other.result),
                CaptureKind::Piece => {
                    record.length = record.length.saturating_add(other.length);
                    self.pieces.extend_from_slice(other.payload);
                    more = other.more;
                }
                _ => {}
            }
            if !more && (outcome.is_final() || other.kind == CaptureKind::Redirect && other.result == 0) {
                break;
            }
        }
        outcome.incomplete = more;
        each(&record, &outcome, &self.pieces);
    }
}

impl Cursor {
    /// Goes to the next record that begins a packet.
    fn find(&mut self, rings: &impl Rings, ring: usize, room: &mut Vec<u8>) {
        while self.next.is_none() && self.at < self.head {
            let Some((data, after)) = rings.record(ring, self.at, self.head, room) else {
                // What is there is no record, which the kernel never writes: all that is known is where the next begins.
                self.at = self.head;
                return;
            };
            match CaptureRecord::read(data) {
                Some(record) if record.kind.begins_packet() => self.next = Some((record.time, after)),
                _ => self.at = after,
            }
        }
    }

    /// Whether it fills up, so that a record cannot wait; those behind it tell what became of it.
    fn is_urgent(&self, after: u64, size: usize) -> bool {
        after < self.head && self.head - self.released > size as u64 / 4
    }
}

#[cfg(test)]
#[path = "merge_tests.rs"]
mod tests;
