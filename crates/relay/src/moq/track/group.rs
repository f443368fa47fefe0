//! A group of a track, and positions in it.

use std::time::{Duration, Instant};

use bytes::Bytes;

/// A group: its number, and what tells it from others of the track that had or will have that number.
///
/// A publisher that is asked for a track anew sends groups again that it sent before, while streams of the former may still be on
/// their way; so may subscribers be in the midst of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupId {
    /// Its number.
    pub sequence: u64,
    pub(super) tag: u64,
}

#[derive(Debug)]
pub(super) struct Group {
    pub(super) id: GroupId,
    pub(super) chunks: Vec<Bytes>,
    /// What they take.
    pub(super) bytes: usize,
    /// It has ended: whole, or for a reason.
    pub(super) end: Option<Result<(), u64>>,
    /// Since when there is a newer one.
    pub(super) old_since: Option<Instant>,
}

impl Group {
    pub(super) fn is_old(&self, max_age: Duration, now: Instant) -> bool {
        self.old_since.is_some_and(|since| now.saturating_duration_since(since) > max_age)
    }
}

/// How far a subscriber is in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupCursor {
    /// The group.
    pub group: GroupId,
    /// Chunks that were taken whole.
    pub(super) chunk: usize,
    /// Octets of the next that were taken.
    pub(super) offset: usize,
}

impl GroupCursor {
    /// The beginning of a group.
    pub(super) fn new(group: GroupId) -> Self {
        Self { group, chunk: 0, offset: 0 }
    }

    /// `taken` octets of `octets`, which were next, are done with.
    pub fn advance(&mut self, octets: usize, taken: usize) {
        if taken < octets {
            self.offset += taken;
        } else {
            (self.chunk, self.offset) = (self.chunk + 1, 0);
        }
    }
}

/// What is next at a cursor.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// These octets.
    Octets(Bytes),
    /// Nothing yet.
    Wait,
    /// The group is complete.
    Complete,
    /// It will not be complete, for this reason, a code of a stream.
    Gone(u64),
}

/// What a publisher's octets came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Appended {
    /// They are kept.
    Kept,
    /// The group has ended or is not kept: nothing more of it is wanted.
    Unwanted(u64),
}
