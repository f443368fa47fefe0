//! What a room keeps: the bytes of all its tracks, within a limit that is shared fairly.
//!
//! When the limit is reached, old groups are evicted first, from the track that has the most bytes of them. If only newest groups are left,
//! the longest of them ends (longest queue drop: Suter, Lakshman, Stiliadis and Choudhury, 1998). So each of n tracks can have an n-th of
//! the room, whatever the others take, and more while they do not.
//!
//! What is not kept any more may be a hundred thousand chunks. Many are dropped in pieces, by whoever needs room and by a session of the
//! room between other work, and count until they are.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;

use super::track::Track;

/// Tracks that lose groups for one chunk at most.
const VICTIMS: usize = 64;

/// What a chunk takes beside its octets.
pub(super) const CHUNK: usize = 64;
/// Chunks that are dropped at once.
pub(super) const DROPPED: usize = 256;
/// Times that so many are dropped for one chunk at most.
const PIECES: usize = 16;

/// A room in steps: newest groups are compared by steps, so that not each chunk changes their order.
const STEPS: usize = 1024;

/// Bytes that are kept of a room.
#[derive(Debug)]
pub struct Cache {
    limit: usize,
    held: AtomicUsize,
    /// What is not kept any more and was not dropped yet. Any other lock is taken before this one.
    gone: Mutex<Gone>,
    /// A track's lock is taken before this one, never within.
    ranks: Mutex<Ranks>,
}

/// Chunks of groups that are not kept any more.
pub(super) type Gone = VecDeque<Vec<Bytes>>;

/// Tracks by what they keep and their number.
#[derive(Debug, Default)]
struct Ranks {
    /// Of groups that are not their newest.
    old: BTreeMap<(usize, u64), Weak<Track>>,
    /// Of their newest, in steps.
    newest: BTreeMap<(usize, u64), Weak<Track>>,
}

/// What a track keeps, as its room knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Kept {
    /// Bytes of groups that are not the newest.
    pub(super) old: usize,
    /// Bytes of the newest.
    pub(super) newest: usize,
}

/// What may be taken from a track.
enum Victim {
    Old(Weak<Track>),
    Newest(Weak<Track>),
}

impl Cache {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, held: AtomicUsize::new(0), gone: Mutex::default(), ranks: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Ranks> {
        self.ranks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes that are kept.
    pub(super) fn held(&self) -> usize {
        self.held.load(Relaxed)
    }

    fn steps(&self, bytes: usize) -> usize {
        bytes / (self.limit / STEPS).max(1)
    }

    /// Takes so many bytes. False: so many are not left.
    pub(super) fn reserve(&self, bytes: usize) -> bool {
        let taken = self.held.fetch_update(Relaxed, Relaxed, |held| {
            held.checked_add(bytes).filter(|held| *held <= self.limit)
        });
        taken.is_ok()
    }

    pub(super) fn release(&self, bytes: usize) {
        self.held.fetch_sub(bytes, Relaxed);
    }

    fn lock_gone(&self) -> MutexGuard<'_, Gone> {
        self.gone.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops chunks that are not kept any more. True: they are many, and [`Self::drop_some`] does that.
    pub(super) fn discard(&self, gone: Gone) -> bool {
        let count: usize = gone.iter().map(Vec::len).sum();
        if count <= DROPPED {
            self.release_all(gone);
            return false;
        }
        self.lock_gone().extend(gone.into_iter().filter(|chunks| !chunks.is_empty()));
        true
    }

    /// Drops some chunks of those that are not kept any more. False: there were none.
    pub(super) fn drop_some(&self) -> bool {
        let (mut some, mut left) = (Gone::new(), DROPPED);
        let mut gone = self.lock_gone();
        while left > 0
            && let Some(mut chunks) = gone.pop_back()
        {
            if chunks.len() > left {
                some.push_back(chunks.split_off(chunks.len() - left));
                gone.push_back(chunks);
                break;
            }
            left -= chunks.len();
            some.push_back(chunks);
        }
        drop(gone);
        let is_some = !some.is_empty();
        self.release_all(some);
        is_some
    }

    /// Chunks that are not kept any more wait to be dropped.
    pub(super) fn has_gone(&self) -> bool {
        !self.lock_gone().is_empty()
    }

    fn release_all(&self, gone: Gone) {
        let bytes = gone.iter().flatten().map(|chunk| chunk.len() + CHUNK).sum();
        drop(gone);
        self.release(bytes);
    }

    /// The same as [`Self::reserve`], for a group of so many bytes with them, in place of what is not kept any more, of old groups, and of
    /// longer ones. False: it is the longest.
    pub(super) fn make_room(&self, bytes: usize, group: usize) -> bool {
        let mut pieces = 0;
        for _ in 0..VICTIMS {
            if self.reserve(bytes) {
                return true;
            }
            if pieces < PIECES && self.drop_some() {
                pieces += 1;
                continue;
            }
            match self.victim(group) {
                Some(Victim::Old(track)) => {
                    if let Some(track) = track.upgrade() {
                        track.give_up_old(bytes);
                    }
                }
                Some(Victim::Newest(track)) => {
                    if let Some(track) = track.upgrade() {
                        track.give_up_newest();
                    }
                }
                None => break,
            }
        }
        self.reserve(bytes)
    }

    /// Whose turn it is to lose something, other than a group of so many bytes.
    fn victim(&self, group: usize) -> Option<Victim> {
        let mut ranks = self.lock();
        if let Some((_, track)) = ranks.old.last_key_value() {
            let track = Weak::clone(track);
            if track.strong_count() == 0 {
                // It is being dropped.
                ranks.old.pop_last();
            }
            return Some(Victim::Old(track));
        }
        let (&(steps, _), track) = ranks.newest.last_key_value()?;
        let track = Weak::clone(track);
        if track.strong_count() == 0 {
            ranks.newest.pop_last();
        }
        (steps > self.steps(group)).then_some(Victim::Newest(track))
    }

    /// A track keeps so much, and kept `former`.
    pub(super) fn account(&self, (number, track): (u64, &Weak<Track>), former: Kept, kept: Kept) {
        let (steps_before, steps) = (self.steps(former.newest), self.steps(kept.newest));
        if former.old == kept.old && steps_before == steps {
            return;
        }
        let mut ranks = self.lock();
        let Ranks { old, newest } = &mut *ranks;
        for (rank, before, now) in [(old, former.old, kept.old), (newest, steps_before, steps)] {
            if before == now {
                continue;
            }
            rank.remove(&(before, number));
            if now > 0 {
                rank.insert((now, number), Weak::clone(track));
            }
        }
    }
}
