//! A track: the groups that are kept of it, and who follows it.
//!
//! ```text
//!  publisher's session ─▶ append ─▶ group: chunks, as they came ─┬▶ Place of a subscriber ─▶ its stream
//!                                    (one copy for all)          └▶ …
//! ```
//!
//! A group is kept as the octets of its frames, in the order they came in: nothing is put together again for a subscriber, whose QUIC
//! packets take them from the same buffers. What is kept is bounded by octets, of the track and of the room, and by groups: the
//! oldest goes first, of the track itself or, where the room is full, of the one that keeps the most beside its newest group. A group
//! that is too large for itself ends where it is. A track that has ended keeps what it has for those who follow it still. Sessions are on several workers, so that a track
//! has a lock, held for one chunk at a time.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use slab::Slab;

use super::room::{Room, Wake};
use super::wire::{TrackInfo, stream_code};

/// Groups that are kept of a track at most.
pub const GROUPS: usize = 256;
/// Sessions and fetches that follow one track at most: each new chunk wakes all of them.
pub const FOLLOWERS: usize = 4096;
/// What a chunk takes beside its octets.
const CHUNK: usize = 64;

/// A track of a broadcast.
#[derive(Debug)]
pub struct Track {
    /// The path of the broadcast as its publisher knows it.
    pub broadcast: Box<str>,
    /// Its name.
    pub name: Box<str>,
    room: Arc<Room>,
    /// Tells it from others of the room.
    number: u64,
    this: Weak<Track>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    info: Option<TrackInfo>,
    /// It will get nothing more.
    end: Option<End>,
    /// By ascending number.
    groups: VecDeque<Group>,
    /// What they take.
    bytes: usize,
    /// What all but the newest of them take, as the room knows it.
    old_bytes: usize,
    /// The highest number that was ever seen.
    newest: Option<u64>,
    followers: Slab<Follower>,
    /// Of these, who wants what is to come.
    subscribers: usize,
    /// The publisher's session has it in its queue.
    is_queued: bool,
}

/// Why a track gets nothing more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Its publisher says that there is no group from this one on.
    Complete(u64),
    /// For this reason, a code of a stream.
    Failed(u64),
}

#[derive(Debug)]
struct Group {
    sequence: u64,
    chunks: Vec<Bytes>,
    bytes: usize,
    /// It has ended: whole, or for a reason.
    end: Option<Result<(), u64>>,
    /// Since when there is a newer one.
    old_since: Option<Instant>,
}

#[derive(Debug)]
struct Follower {
    waker: Box<dyn Wake>,
    /// It was woken and has not looked since.
    is_woken: bool,
    subscribes: bool,
}

/// How far a subscriber is in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The group.
    pub sequence: u64,
    /// Chunks that were taken whole.
    chunk: usize,
    /// Octets of the next that were taken.
    offset: usize,
}

/// What is next at a place.
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

impl Track {
    /// A track of a broadcast in `room`, of which nothing is known.
    pub fn new(room: Arc<Room>, broadcast: &str, name: &str) -> Arc<Self> {
        room.gauges.tracks.fetch_add(1, Relaxed);
        Arc::new_cyclic(|this| Self {
            broadcast: broadcast.into(),
            name: name.into(),
            number: room.track_number(),
            room,
            this: Weak::clone(this),
            state: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its room.
    pub fn room(&self) -> &Arc<Room> {
        &self.room
    }

    /// Adds somebody who is woken by what is new; one that `subscribes` has the publisher send. `None`: there are too many, or the track
    /// has ended.
    pub fn follow(&self, waker: impl Wake + 'static, subscribes: bool) -> Option<usize> {
        let mut state = self.lock();
        if state.followers.len() >= FOLLOWERS || state.end.is_some() {
            return None;
        }
        state.subscribers += usize::from(subscribes);
        let follower = Follower { waker: Box::new(waker), is_woken: false, subscribes };
        Some(state.followers.insert(follower))
    }

    /// Takes it away. True: nobody wants the publisher to send any more, or nobody is left at all.
    pub fn unfollow(&self, key: usize) -> bool {
        let mut state = self.lock();
        let Some(follower) = state.followers.try_remove(key) else { return false };
        state.subscribers -= usize::from(follower.subscribes);
        self.clear_ended(&mut state);
        follower.subscribes && state.subscribers == 0 || state.followers.is_empty()
    }

    /// Somebody wants the publisher to send.
    pub fn is_wanted(&self) -> bool {
        self.lock().subscribers > 0
    }

    /// Nobody follows it.
    pub fn is_idle(&self) -> bool {
        self.lock().followers.is_empty()
    }

    /// Takes the place in the publisher's queue. False: it has it already.
    pub fn enqueue(&self) -> bool {
        !std::mem::replace(&mut self.lock().is_queued, true)
    }

    /// It has left the publisher's queue.
    pub fn dequeue(&self) {
        self.lock().is_queued = false;
    }

    /// What it is like, once that is known.
    pub fn info(&self) -> Option<TrackInfo> {
        self.lock().info
    }

    /// Says what it is like. False: that is known already, and stays.
    pub fn set_info(&self, info: TrackInfo) -> bool {
        let mut state = self.lock();
        if state.info.is_some() {
            return false;
        }
        state.info = Some(info);
        state.wake();
        true
    }

    /// Whether it has ended.
    pub fn end(&self) -> Option<End> {
        self.lock().end
    }

    /// Ends it. Groups that are under way end by themselves, or with their session.
    pub fn finish(&self, end: End) {
        let mut state = self.lock();
        if state.end.is_none() {
            state.end = Some(end);
            if let End::Failed(code) = end {
                for group in state.groups.iter_mut().filter(|group| group.end.is_none()) {
                    group.end = Some(Err(code));
                }
            }
            state.wake();
            self.clear_ended(&mut state);
        }
    }

    /// Forgets what is kept: nobody follows it and its publisher has stopped.
    pub fn clear(&self) {
        let mut state = self.lock();
        self.forget(&mut state);
        state.newest = None;
    }

    /// Nobody new finds a track that has ended: what it keeps is for those who follow it.
    fn clear_ended(&self, state: &mut State) {
        if state.end.is_some() && state.followers.is_empty() {
            self.forget(state);
        }
    }

    fn forget(&self, state: &mut State) {
        self.room.release(std::mem::take(&mut state.bytes));
        state.groups.clear();
        self.account(state);
    }

    /// Has the room know what may be evicted.
    fn account(&self, state: &mut State) {
        let newest = state.groups.back().map_or(0, |group| group.bytes);
        let former = std::mem::replace(&mut state.old_bytes, state.bytes - newest);
        self.room.account((self.number, &self.this), former, state.old_bytes);
    }

    /// Begins a group. False: it is known already, or older than all that is kept of many.
    pub fn begin(&self, sequence: u64, now: Instant) -> bool {
        let mut guard = self.lock();
        let state = &mut *guard;
        let at = state.groups.partition_point(|group| group.sequence < sequence);
        let is_known = state.groups.get(at).is_some_and(|group| group.sequence == sequence);
        if is_known || state.end.is_some() || at == 0 && state.groups.len() >= GROUPS {
            return false;
        }
        for group in state.groups.range_mut(..at) {
            group.old_since.get_or_insert(now);
        }
        let old_since = state.newest.is_some_and(|newest| newest > sequence).then_some(now);
        state.groups.insert(at, Group { sequence, chunks: Vec::new(), bytes: 0, end: None, old_since });
        state.newest = state.newest.max(Some(sequence));
        if state.groups.len() > GROUPS {
            self.evict(state);
        }
        self.account(state);
        state.wake();
        true
    }

    /// Keeps octets of a group, where the room is full in place of old groups.
    pub fn append(&self, sequence: u64, octets: Bytes) -> Appended {
        let cost = octets.len() + CHUNK;
        let mut guard = self.lock();
        if let Err(code) = guard.open(sequence) {
            return Appended::Unwanted(code);
        }
        let mut has_room = self.room.reserve(cost);
        if !has_room {
            // No lock is held while others are looked at: what was true of the group may not be any more.
            drop(guard);
            has_room = self.room.make_room(cost);
            guard = self.lock();
        }
        let state = &mut *guard;
        let limit = self.room.limits.track_cache;
        while has_room && state.bytes + cost > limit && state.groups.len() > 1 {
            self.evict(state);
        }
        let appended = match state.open(sequence) {
            Ok(at) if has_room && state.bytes + cost <= limit => {
                let group = &mut state.groups[at];
                group.chunks.push(octets);
                group.bytes += cost;
                state.bytes += cost;
                Ok(())
            }
            Ok(at) => {
                let group = &mut state.groups[at];
                let freed = std::mem::take(&mut group.bytes);
                group.chunks = Vec::new();
                group.end = Some(Err(stream_code::GROUP_TOO_LARGE));
                state.bytes -= freed;
                self.room.release(freed);
                self.room.counters.dropped_group_too_large.fetch_add(1, Relaxed);
                Err(stream_code::GROUP_TOO_LARGE)
            }
            Err(code) => Err(code),
        };
        if has_room && appended.is_err() {
            self.room.release(cost);
        }
        self.account(state);
        state.wake();
        appended.map_or_else(Appended::Unwanted, |()| Appended::Kept)
    }

    /// Gives up its oldest groups, but not its newest, until so many bytes are free.
    pub(super) fn make_room(&self, bytes: usize) {
        let mut state = self.lock();
        let enough = state.bytes.saturating_sub(bytes);
        while state.bytes > enough && state.groups.len() > 1 {
            self.evict(&mut state);
        }
        self.account(&mut state);
        state.wake();
    }

    /// Ends a group: whole, or for a reason, a code of a stream.
    pub fn end_group(&self, sequence: u64, end: Result<(), u64>) {
        let mut state = self.lock();
        if let Some(at) = state.position(sequence)
            && state.groups[at].end.is_none()
        {
            state.groups[at].end = Some(end);
            state.wake();
        }
    }

    /// The oldest group leaves what is kept.
    fn evict(&self, state: &mut State) {
        if let Some(group) = state.groups.pop_front() {
            state.bytes -= group.bytes;
            self.room.release(group.bytes);
            self.room.counters.groups_evicted.fetch_add(1, Relaxed);
        }
    }

    /// A follower has been woken, or looks by itself: what comes from now on wakes it again.
    pub fn look(&self, follower: usize) {
        if let Some(follower) = self.lock().followers.get_mut(follower) {
            follower.is_woken = false;
        }
    }

    /// The group that a subscriber is to have next, and how many are passed over that are kept: the first from `next` on that is not
    /// below `floor` and not older than `max_age`, and the newest at first (`None`).
    pub fn choose(
        &self,
        (next, floor): (Option<u64>, Option<u64>),
        max_age: Duration,
        now: Instant,
    ) -> Option<(u64, u64)> {
        let state = self.lock();
        let newest = state.groups.back()?.sequence;
        let Some(next) = next else { return Some((newest, 0)) };
        let position = |from: u64| state.groups.partition_point(|group| group.sequence < from);
        let (first, from) = (position(next), position(floor.map_or(next, |floor| floor.max(next))));
        let passed = state.groups.range(from..).position(|group| !group.is_old(max_age, now))?;
        let chosen = from + passed;
        Some((state.groups[chosen].sequence, (chosen - first) as u64))
    }

    /// Whether a group is older than that: there has been a newer one for so long.
    pub fn is_old(&self, sequence: u64, max_age: Duration, now: Instant) -> bool {
        let state = self.lock();
        state.position(sequence).is_none_or(|at| state.groups[at].is_old(max_age, now))
    }

    /// Whether a group is kept, or coming in.
    pub fn has(&self, sequence: u64) -> bool {
        self.lock().position(sequence).is_some()
    }

    /// The highest number of a group that there was.
    pub fn newest(&self) -> Option<u64> {
        self.lock().newest
    }

    /// What is next at a place.
    pub fn next(&self, place: &Place) -> Next {
        let state = self.lock();
        let Some(at) = state.position(place.sequence) else { return Next::Gone(stream_code::EVICTED) };
        let group = &state.groups[at];
        match (group.chunks.get(place.chunk), group.end) {
            (_, Some(Err(code))) => Next::Gone(code),
            (Some(chunk), _) => Next::Octets(chunk.slice(place.offset..)),
            (None, Some(Ok(()))) => Next::Complete,
            (None, None) => Next::Wait,
        }
    }
}

impl Drop for Track {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.room.release(state.bytes);
        self.room.account((self.number, &self.this), state.old_bytes, 0);
        self.room.gauges.tracks.fetch_sub(1, Relaxed);
    }
}

impl State {
    fn position(&self, sequence: u64) -> Option<usize> {
        self.groups.binary_search_by_key(&sequence, |group| group.sequence).ok()
    }

    /// The position of a group that takes more.
    ///
    /// # Errors
    /// It has ended or is not kept, a code of a stream.
    fn open(&self, sequence: u64) -> Result<usize, u64> {
        let at = self.position(sequence).ok_or(stream_code::EVICTED)?;
        self.groups[at].end.map_or(Ok(at), |end| Err(end.err().unwrap_or(stream_code::CANCEL)))
    }

    /// Wakes all who follow it and were not woken since they looked.
    fn wake(&mut self) {
        for (_, follower) in &mut self.followers {
            if !std::mem::replace(&mut follower.is_woken, true) {
                follower.waker.wake();
            }
        }
    }
}

impl Group {
    fn is_old(&self, max_age: Duration, now: Instant) -> bool {
        self.old_since.is_some_and(|since| now.saturating_duration_since(since) > max_age)
    }
}

impl Place {
    /// The beginning of a group.
    pub fn new(sequence: u64) -> Self {
        Self { sequence, chunk: 0, offset: 0 }
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::super::room::Limits;
    use super::*;

    fn track(track_cache: usize, room_cache: usize) -> Arc<Track> {
        let limits = Limits { track_cache, room_cache, ..Limits::default() };
        Track::new(Room::new("studio", limits), "cam", "video")
    }

    fn read(track: &Track, place: &mut Place) -> Vec<u8> {
        let mut out = Vec::new();
        while let Next::Octets(octets) = track.next(place) {
            out.extend_from_slice(&octets);
            place.advance(octets.len(), octets.len());
        }
        out
    }

    #[test]
    fn a_group_is_read_while_it_comes_in_and_to_its_end() {
        let (track, now) = (track(1 << 20, 1 << 20), Instant::now());
        assert!(track.begin(7, now));
        assert!(!track.begin(7, now), "twice");
        assert_eq!(track.append(7, Bytes::from_static(b"abc")), Appended::Kept);
        let mut place = Place::new(7);
        assert_eq!(track.next(&place), Next::Octets(Bytes::from_static(b"abc")));
        place.advance(3, 1);
        assert_eq!(track.next(&place), Next::Octets(Bytes::from_static(b"bc")));
        place.advance(2, 2);
        assert_eq!(track.next(&place), Next::Wait);
        assert_eq!(track.append(7, Bytes::from_static(b"d")), Appended::Kept);
        track.end_group(7, Ok(()));
        assert_eq!(track.append(7, Bytes::from_static(b"e")), Appended::Unwanted(stream_code::CANCEL));
        assert_eq!(read(&track, &mut place), b"d");
        assert_eq!(track.next(&place), Next::Complete);
        // Another reader has the same buffers from the start.
        assert_eq!(read(&track, &mut Place::new(7)), b"abcd");
        assert_eq!(track.next(&Place::new(8)), Next::Gone(stream_code::EVICTED));
    }

    #[test]
    fn what_a_track_is_like_is_said_once() {
        let track = track(1 << 20, 1 << 20);
        let woken = Arc::new(AtomicUsize::new(0));
        let key = track.follow(Arc::clone(&woken), false).unwrap();
        let info = |priority| TrackInfo { priority, max_age: 0, timescale: 0 };
        assert!(track.set_info(info(1)));
        track.look(key);
        assert!(!track.set_info(info(2)));
        assert_eq!((track.info(), woken.load(Relaxed)), (Some(info(1)), 1));
    }

    #[test]
    fn the_newest_comes_first_and_old_ones_are_skipped() {
        let (track, now) = (track(1 << 20, 1 << 20), Instant::now());
        let age = Duration::from_millis(500);
        assert_eq!(track.choose((None, None), age, now), None);
        for sequence in [3, 5, 4] {
            assert!(track.begin(sequence, now));
        }
        assert_eq!(track.choose((None, None), age, now), Some((5, 0)), "the newest at first");
        assert_eq!(track.choose((Some(4), None), age, now), Some((4, 0)));
        assert_eq!(track.choose((Some(3), Some(5)), age, now), Some((5, 2)), "what is below was given up");
        let later = now + Duration::from_secs(1);
        assert_eq!(track.choose((Some(3), None), age, later), Some((5, 2)), "3 and 4 are old");
        assert!(track.is_old(4, age, later) && !track.is_old(5, age, later));
        assert_eq!(track.choose((Some(6), None), age, later), None);
        assert!(track.is_old(2, age, now), "it is not there");
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let now = Instant::now();
        let chunk = || Bytes::from(vec![0; 1000 - CHUNK]);
        let both = track(3000, 1 << 20);
        for sequence in 0..5 {
            assert!(both.begin(sequence, now));
            assert_eq!(both.append(sequence, chunk()), Appended::Kept);
        }
        assert_eq!(both.room().cached(), 3000);
        assert!(!both.has(1) && both.has(2));
        // A group that alone is too large ends, and the next begins anew.
        for _ in 0..2 {
            assert_eq!(both.append(4, chunk()), Appended::Kept);
        }
        assert_eq!(both.append(4, chunk()), Appended::Unwanted(stream_code::GROUP_TOO_LARGE));
        assert_eq!(both.next(&Place::new(4)), Next::Gone(stream_code::GROUP_TOO_LARGE));
        assert_eq!(both.room().cached(), 0);
        assert!(both.begin(5, now));
        assert_eq!(both.append(5, chunk()), Appended::Kept);
        let two = track(3000, 1 << 20);
        assert!(two.begin(0, now));
        for sequence in 1..=GROUPS as u64 {
            assert!(two.begin(sequence, now));
        }
        assert!(!two.has(0) && two.has(1), "so many groups at most");
        assert!(!two.begin(0, now), "older than all that is kept");
    }

    #[test]
    fn where_the_room_is_full_the_largest_track_loses_old_groups() {
        let now = Instant::now();
        let limits = Limits { track_cache: 16 << 10, room_cache: 64 << 10, ..Limits::default() };
        let room = Room::new("studio", limits);
        let chunk = || Bytes::from(vec![0; 1024 - CHUNK]);
        let new = |name: &str| Track::new(Arc::clone(&room), "cam", name);
        let fill = |track: &Track, groups: std::ops::Range<u64>| {
            for sequence in groups {
                assert!(track.begin(sequence, now));
                for _ in 0..2 {
                    assert_eq!(track.append(sequence, chunk()), Appended::Kept, "{sequence}");
                }
                track.end_group(sequence, Ok(()));
            }
        };
        // Four tracks take all that there is: a fifth has its groups all the same.
        let four = ["a", "b", "c", "d"].map(new);
        four.iter().for_each(|track| fill(track, 0..20));
        assert_eq!(room.cached(), 64 << 10);
        let fifth = new("e");
        fill(&fifth, 0..40);
        assert!(room.cached() <= 64 << 10);
        let kept = |track: &Track| (0..40).filter(|sequence| track.has(*sequence)).count();
        assert!(kept(&fifth) >= 5, "{}", kept(&fifth));
        for track in &four {
            assert!(kept(track) >= 5 && track.has(19), "{}", kept(track));
        }
        drop(four);
        assert_eq!(room.cached(), 2048 * kept(&fifth));
        // Newest groups are not evicted: what does not fit beside them ends.
        let large = ["f", "g", "h", "i"].map(new);
        for track in &large {
            assert!(track.begin(0, now));
            (0..15).for_each(|_| assert_eq!(track.append(0, chunk()), Appended::Kept));
        }
        assert_eq!(kept(&fifth), 2);
        assert_eq!(fifth.append(39, chunk()), Appended::Unwanted(stream_code::CANCEL), "it had ended");
        assert_eq!(large[0].append(0, chunk()), Appended::Kept);
        assert_eq!(large[1].append(0, chunk()), Appended::Kept);
        assert_eq!(large[2].append(0, chunk()), Appended::Unwanted(stream_code::GROUP_TOO_LARGE));
        assert!(large[0].has(0) && fifth.has(39));
    }

    #[test]
    fn a_track_that_has_ended_keeps_nothing_once_nobody_follows_it() {
        let (track, now) = (track(1 << 20, 1 << 20), Instant::now());
        assert!(track.begin(0, now));
        assert_eq!(track.append(0, Bytes::from_static(b"abc")), Appended::Kept);
        assert_eq!(track.room().cached(), 3 + CHUNK);
        track.finish(End::Complete(1));
        assert_eq!((track.room().cached(), track.has(0)), (0, false), "nobody follows it");
        assert_eq!(track.append(0, Bytes::from_static(b"d")), Appended::Unwanted(stream_code::EVICTED));
        assert!(!track.begin(1, now));
        assert_eq!(track.room().cached(), 0);
    }

    #[test]
    fn who_follows_a_track_that_has_ended_reads_it_to_its_end() {
        let (track, now) = (track(1 << 20, 1 << 20), Instant::now());
        let woken = Arc::new(AtomicUsize::new(0));
        let keys = [true, false].map(|subscribes| track.follow(Arc::clone(&woken), subscribes).unwrap());
        assert!(track.begin(0, now));
        assert_eq!(track.append(0, Bytes::from_static(b"abc")), Appended::Kept);
        assert_eq!(woken.load(Relaxed), 2, "once until they look");
        track.end_group(0, Ok(()));
        track.finish(End::Complete(1));
        assert!(track.unfollow(keys[0]), "no subscriber is left");
        let mut place = Place::new(0);
        assert_eq!(read(&track, &mut place), b"abc");
        assert_eq!(track.next(&place), Next::Complete);
        assert!(track.unfollow(keys[1]), "nobody is left");
        assert_eq!((track.room().cached(), track.has(0)), (0, false));
        assert_eq!(track.follow(woken, true), None);
    }
}
